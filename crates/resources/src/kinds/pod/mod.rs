//! Pods: strategy, defaults and validation.
//! In: Pods and pod templates that are written. Out: defaulted and validated ones.

mod affinity; // affinity and anti-affinity
mod annotations; // annotations that Kubernetes interprets
pub mod binding; // the binding subresource
pub(crate) mod claim; // claim templates
pub(crate) mod condition; // conditions the server sets
mod container; // main, init and ephemeral containers
pub(crate) mod defaults; // defaults
mod env; // environment variables
pub mod ephemeral; // ephemeral containers
mod mount; // volume mounts and devices
mod prepare; // a new pod's status, labels merged into selectors
mod probe; // probes and hooks
mod projection; // several sources in one volume
pub mod resize; // resources changed in place
pub mod resources; // requests, limits, quality of service
mod scheduling; // gates, tolerations, spreading
mod security; // security contexts and operating systems
pub(crate) mod spec; // validation of a spec
mod status; // updates of the status
mod update; // updates of the spec
mod volume; // volumes and their sources
pub(crate) mod volume_defaults; // defaults of volume sources
pub(crate) mod warnings; // warnings

pub(crate) use annotations::validate_template as annotations_of_template;
use serde_json::Value;

use self::spec::Holder;
use super::{
    DeleteAnswer, ProxyTarget, Strategy,
    strategy::{keep_all_but_status, keep_status},
};
use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::JsonExt,
};
use bellerophon_codec::object::Object;

/// A Pod.
pub const POD: Strategy = Strategy {
    reset_fields: &[(
        "status",
        &[
            &["spec"],
            &["metadata", "deletionTimestamp"],
            &["metadata", "ownerReferences"],
        ],
    )],
    proxy: Some(ProxyTarget::Pod),
    default: defaults::default_pod,
    prepare_create: prepare::prepare_create,
    prepare_update: keep_status,
    prepare_status: status::prepare,
    validate,
    validate_create,
    validate_update: update::validate,
    validate_status: status::validate,
    warnings: |new, old| {
        if old.is_none() {
            warnings::of_new_pod(new)
        } else {
            Vec::new()
        }
    },
    stamp: prepare::stamp,
    delete_answer: DeleteAnswer::Object,
    grace_period,
    ..Strategy::WITH_STATUS
};

/// The grace period of a pod on a node: that of the request, or that of its spec. A pod that was
/// never scheduled, or that ended, is removed immediately.
fn grace_period(pod: &Object, requested: Option<i64>) -> Option<i64> {
    let spec = spec_value(pod);
    let ended = matches!(pod.str_at("status.phase"), "Failed" | "Succeeded");
    let seconds = match requested.unwrap_or_else(|| spec.number("terminationGracePeriodSeconds")) {
        _ if spec.text("nodeName").is_empty() || ended => 0,
        seconds if seconds < 0 => 1,
        seconds => seconds,
    };
    Some(seconds)
}

fn spec_value(pod: &Object) -> &Value {
    pod.body.field("spec")
}

fn validate(pod: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("spec");
    let spec = spec_value(pod);
    let annotations = pod
        .meta
        .annotations
        .iter()
        .map(|(k, v)| (k.as_str(), v.as_str()))
        .collect();
    annotations::validate(
        &annotations,
        spec,
        &Path::field("metadata.annotations"),
        out,
    );
    spec::validate(spec, Holder::Pod(&pod.meta), &at, out);
    if spec.text("serviceAccountName").is_empty() {
        refuse_tokens(spec, &at.child("volumes"), out);
    }
    for list in ["containers", "initContainers"] {
        let list_at = at.child(list);
        for (i, container) in spec.list(list).iter().enumerate() {
            container::validate_image_blanks(container, &list_at.index(i), out);
        }
    }
}

/// Rejects projected tokens of a pod without a service account.
fn refuse_tokens(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    for (i, volume) in spec.list("volumes").iter().enumerate() {
        let volume_at = at.index(i);
        let projected_at = volume_at.child("projected");
        let sources_at = projected_at.child("sources");
        for (j, source) in volume.field("projected").list("sources").iter().enumerate() {
            if source.has("serviceAccountToken") {
                let detail = "must not be specified when serviceAccountName is not set";
                out.push(FieldError::forbidden(
                    sources_at.index(j).child("serviceAccountToken"),
                    detail,
                ));
            }
        }
    }
}

fn validate_create(pod: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("spec");
    let spec = spec_value(pod);
    if !spec.list("ephemeralContainers").is_empty() {
        out.push(FieldError::forbidden(
            at.child("ephemeralContainers"),
            "cannot be set on create",
        ));
    }
    if !spec.text("nodeName").is_empty() && !spec.list("schedulingGates").is_empty() {
        out.push(FieldError::forbidden(
            at.child("nodeName"),
            "cannot be set until all schedulingGates have been cleared",
        ));
    }
}

/// Puts the metadata of the old object back, as for a write to a part of it; field owners are the
/// writer's.
fn keep_metadata(new: &mut Object, old: &Object) {
    let mut kept = old.clone();
    std::mem::swap(&mut kept.body, &mut new.body);
    kept.meta.managed_fields = std::mem::take(&mut new.meta.managed_fields);
    kept.meta.resource_version = std::mem::take(&mut new.meta.resource_version);
    *new = kept;
}

/// A status write keeps the labels and annotations of the writer, for kinds that do not override
/// this.
pub(crate) fn status_keeping_labels(new: &mut Object, old: &Object) {
    keep_all_but_status(new, old);
    new.meta.labels.clone_from(&old.meta.labels);
}

#[cfg(test)]
pub(crate) mod testing {
    //! Short builders and the recorded causes of refusals.

    use serde_json::{Value, json};

    use super::*;
    pub(crate) use crate::kinds::test_support::object;
    use bellerophon_apimachinery::time::Time;

    use crate::kinds::test_support::NOW;

    /// A pod `web` with this spec.
    pub(crate) fn pod(spec: Value) -> Object {
        object(
            json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "web"}, "spec": spec}),
        )
    }

    pub(crate) fn spec_of(object: &Object) -> Value {
        object.body["spec"].clone()
    }

    /// The errors of a create of the object, each as `field: message`.
    pub(crate) fn refusals(strategy: &Strategy, object: &Object) -> Vec<String> {
        let mut object = object.clone();
        object.meta.uid = "u-1".into();
        (strategy.default)(&mut object);
        (strategy.prepare_create)(&mut object);
        let mut out = Vec::new();
        (strategy.validate)(&object, &mut out);
        (strategy.validate_create)(&object, &mut out);
        out.iter().map(ToString::to_string).collect()
    }

    /// The object as a create stores it.
    pub(crate) fn created(strategy: &Strategy, object: &Object) -> Object {
        let mut object = object.clone();
        object.meta.uid = "u-1".into();
        (strategy.default)(&mut object);
        (strategy.prepare_create)(&mut object);
        (strategy.stamp)(
            &mut object,
            None,
            Time::parse(NOW).expect("a constant time"),
        );
        let mut out = Vec::new();
        (strategy.validate)(&object, &mut out);
        (strategy.validate_create)(&object, &mut out);
        assert_eq!(out, [], "the object is sound");
        object
    }

    /// The errors of an update of a stored object, each as `field: message`.
    pub(crate) fn update_refusals(
        strategy: &Strategy,
        old: &Object,
        change: impl FnOnce(&mut Object),
    ) -> Vec<String> {
        let mut new = old.clone();
        change(&mut new);
        (strategy.default)(&mut new);
        (strategy.prepare_update)(&mut new, old);
        let mut out = Vec::new();
        (strategy.validate)(&new, &mut out);
        (strategy.validate_update)(&new, old, &mut out);
        out.iter().map(ToString::to_string).collect()
    }
}

#[cfg(test)]
mod tests;
