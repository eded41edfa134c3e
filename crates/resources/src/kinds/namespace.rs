//! Namespaces: labels, finalizers and phase.
//! Guarantees: `spec.finalizers` changes only through `finalize`; the label with the name is always
//! there.
//! Mirrors `ValidateNamespace` and `ValidateNamespaceFinalizeUpdate` in `pkg/apis/core/validation`.

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt},
    names,
};
use bellerophon_codec::object::Object;
use serde_json::{Value, json};

use super::{DeleteAnswer, Deletion, Generation, Strategy, strategy::keep_status, validation};

const NAME_LABEL: &str = "kubernetes.io/metadata.name";
const KUBERNETES: &str = "kubernetes";

/// The strategy of Namespaces. Mirrors `pkg/registry/core/namespace`.
pub const NAMESPACE: Strategy = Strategy {
    reset_fields: &[("finalize", &[&["status"]])],
    default,
    prepare_create,
    prepare_update,
    validate,
    validate_status,
    name: names::dns_label,
    generation: Generation::None,
    delete_answer: DeleteAnswer::Object,
    deletion: Deletion {
        begin: |namespace, _| terminate(namespace),
        held: |namespace| !is_released(namespace),
        time_only: true,
    },
    ..Strategy::WITH_STATUS
};

fn default(namespace: &mut Object) {
    if !namespace.meta.name.is_empty() {
        namespace
            .meta
            .labels
            .insert(NAME_LABEL.into(), namespace.meta.name.clone());
    }
    namespace.section("spec");
    namespace.section("status").default_text("phase", "Active");
}

fn prepare_create(namespace: &mut Object) {
    // A name made from generateName is only known now.
    default(namespace);
    namespace
        .body
        .insert("status".into(), json!({"phase": "Active"}));
    let spec = namespace.section("spec");
    let mut finalizers = spec.list("finalizers").to_vec();
    if !finalizers.iter().any(|f| f == KUBERNETES) {
        finalizers.push(KUBERNETES.into());
    }
    spec.insert("finalizers".into(), finalizers.into());
}

fn prepare_update(new: &mut Object, old: &Object) {
    keep_status(new, old);
    set_finalizers(new, old.body.field("spec").list("finalizers").to_vec());
}

fn set_finalizers(namespace: &mut Object, finalizers: Vec<Value>) {
    let spec = namespace.section("spec");
    if finalizers.is_empty() {
        spec.remove("finalizers");
    } else {
        spec.insert("finalizers".into(), finalizers.into());
    }
}

fn validate(namespace: &Object, out: &mut Vec<FieldError>) {
    for finalizer in namespace.body.field("spec").list("finalizers") {
        finalizer_name(
            &Path::field("spec.finalizers"),
            finalizer.as_str().unwrap_or_default(),
            out,
        );
    }
}

fn finalizer_name(at: &Path, name: &str, out: &mut Vec<FieldError>) {
    validation::named(at, name, names::qualified_name(name), out);
    if !name.contains('/') && ![KUBERNETES, "orphan", "foregroundDeletion"].contains(&name) {
        out.push(FieldError::invalid(
            at,
            name,
            "name is neither a standard finalizer name nor is it fully qualified",
        ));
    }
}

fn validate_status(new: &Object, _: &Object, out: &mut Vec<FieldError>) {
    let (phase, why) = match new.meta.deletion_timestamp {
        None => (
            "Active",
            "may only be 'Active' if `deletionTimestamp` is empty",
        ),
        Some(_) => (
            "Terminating",
            "may only be 'Terminating' if `deletionTimestamp` is not empty",
        ),
    };
    let given = new.str_at("status.phase");
    if given != phase {
        out.push(FieldError::invalid("status.Phase", given, why));
    }
}

fn terminate(namespace: &mut Object) {
    namespace
        .section("status")
        .insert("phase".into(), "Terminating".into());
}

/// Writes to `finalize`: the only ones that change the finalizers of the spec.
pub mod finalize {
    use super::{FieldError, JsonExt, Object, Path, finalizer_name, keep_status};

    /// Takes the status from the old namespace.
    pub fn prepare(new: &mut Object, old: &Object) {
        keep_status(new, old);
    }

    /// The errors of the finalizers.
    pub fn validate(new: &Object, out: &mut Vec<FieldError>) {
        let all = Path::field("spec.finalizers");
        for (i, finalizer) in new.body.field("spec").list("finalizers").iter().enumerate() {
            finalizer_name(&all.index(i), finalizer.as_str().unwrap_or_default(), out);
        }
    }
}

/// Whether no finalizer of the spec holds the namespace.
fn is_released(namespace: &Object) -> bool {
    namespace.body.field("spec").is_empty_at("finalizers")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::test_support::{create, object, refused, update, update_status};

    #[test]
    fn namespace_starts_active_and_held() {
        let (namespace, errors) = create(
            &NAMESPACE,
            json!({"metadata": {"name": "a"}, "spec": {"finalizers": ["example.com/hold"]}, "status": {"phase": "Gone"}}),
        );
        assert_eq!(namespace.meta.labels[NAME_LABEL].as_str(), "a");
        assert_eq!(errors.len(), 0);
        assert_eq!(
            namespace.body["spec"],
            json!({"finalizers": ["example.com/hold", "kubernetes"]})
        );
        assert_eq!(namespace.body["status"], json!({"phase": "Active"}));
    }

    #[test]
    fn finalizers_change_only_through_finalize() {
        let (stored, _) = create(&NAMESPACE, json!({"metadata": {"name": "a"}}));
        let (updated, _) = update(
            &NAMESPACE,
            &stored,
            json!({"metadata": {"name": "a"}, "spec": {"finalizers": []}}),
        );
        assert_eq!(updated.body, stored.body);
        let mut out = Vec::new();
        let mut gone = object(json!({"spec": {}}));
        finalize::prepare(&mut gone, &stored);
        finalize::validate(&gone, &mut out);
        assert!(is_released(&gone) && !is_released(&stored) && out.is_empty());
        assert_eq!(gone.str_at("status.phase"), "Active");
        finalize::validate(&object(json!({"spec": {"finalizers": ["hold"]}})), &mut out);
        assert_eq!(out[0].field, "spec.finalizers[0]");
    }

    #[test]
    fn phase_follows_the_deletion_timestamp() {
        let (stored, _) = create(&NAMESPACE, json!({"metadata": {"name": "a"}}));
        let (_, errors) = update_status(
            &NAMESPACE,
            &stored,
            json!({"metadata": {"name": "a"}, "status": {"phase": "Terminating"}}),
        );
        assert_eq!(
            errors,
            [
                "status.Phase: Invalid value: \"Terminating\": may only be 'Active' if `deletionTimestamp` is empty"
            ]
        );
        refused(
            &NAMESPACE,
            json!({"metadata": {"name": "a"}, "spec": {"finalizers": ["hold"]}}),
            &[
                "spec.finalizers: Invalid value: \"hold\": name is neither a standard finalizer name nor is it fully qualified",
            ],
        );
    }
}
