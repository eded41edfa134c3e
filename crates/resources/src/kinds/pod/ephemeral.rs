//! The `ephemeralcontainers` subresource: containers added to a running pod, never changed or
//! removed.
//! In: the new and the old Pod of such a write. Out: the Pod to store, and the errors of the
//! change.
//! Mirrors `ValidatePodEphemeralContainersUpdate` in `pkg/apis/core/validation`.

use std::collections::BTreeMap;

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonExt, same},
};
use bellerophon_codec::{object::Object, types::changes};
use serde_json::Value;

use super::{annotations, keep_metadata, spec_value, validate};

/// Puts back everything but the debugging containers.
pub fn prepare(new: &mut Object, old: &Object) {
    let containers = new.body.field("spec").get("ephemeralContainers").cloned();
    keep_metadata(new, old);
    new.body.clone_from(&old.body);
    match containers {
        Some(containers) => new
            .section("spec")
            .insert("ephemeralContainers".into(), containers),
        None => new.section("spec").remove("ephemeralContainers"),
    };
}

/// The errors of the prepared pod and the change.
pub fn validate_ephemeral_containers(new: &Object, old: &Object, out: &mut Vec<FieldError>) {
    if old.meta.annotations.contains_key(super::spec::MIRROR) {
        out.push(FieldError::forbidden(
            "",
            "static pods do not support ephemeral containers",
        ));
        return;
    }
    validate(new, out);
    annotations::validate_update(
        &new.meta.annotations,
        &old.meta.annotations,
        &Path::field("metadata.annotations"),
        out,
    );
    let at = Path::field("spec.ephemeralContainers");
    // Of equal names the last counts.
    let now: BTreeMap<&str, &Value> = spec_value(new)
        .list("ephemeralContainers")
        .iter()
        .map(|container| (container.text("name"), container))
        .collect();
    for before in spec_value(old).list("ephemeralContainers") {
        let name = before.text("name");
        match now.get(name).copied() {
            // The line break is part of the message of Kubernetes.
            None => out.push(FieldError::forbidden(
                at,
                &format!("existing ephemeral containers {name:?} may not be removed\n"),
            )),
            Some(after) if !same(after, before) => {
                let changes = changes("core.EphemeralContainer", before, after);
                out.push(FieldError::forbidden(
                    at,
                    &format!(
                        "existing ephemeral containers {name:?} may not be changed\n{changes}"
                    ),
                ));
            }
            Some(_) => {}
        }
    }
}
