//! The validating webhook: refuses an Icecream whose Deployment name belongs to another owner.
//!
//! Input: the Icecream and the cached Deployments. Output: the error that the controller would
//! report later.
//!
//! Guarantees: an update that does not change the name is admitted; the Deployment of a deleted
//! Icecream of the same name, which the garbage collector is about to delete, is no obstacle.

use bellerophon::{
    owner::controller_of,
    prelude::*,
    webhook::{FailurePolicy, Rejection, Review, Validator},
};
use bellerophon_operator::Switches;
use k8s_openapi::api::apps::v1::Deployment;
use kube::Resource as _;

use crate::{Icecream, ResourceExists};

/// Declares the webhook. The controller reports the same, so that nothing relies on it: if it is
/// down, Icecreams are admitted.
pub(crate) fn declare(mgr: &mut Manager, _switches: &Switches) {
    let deployments = mgr.lister();
    mgr.webhook::<Icecream>()
        .validate(FailurePolicy::Ignore, NameIsFree { deployments });
}

/// Checks that no other Deployment has the desired name.
struct NameIsFree {
    deployments: Lister<Deployment>,
}

impl Validator<Icecream> for NameIsFree {
    async fn validate(
        &self,
        review: &Review<Icecream>,
        icecream: &Icecream,
    ) -> Result<(), Rejection> {
        let name = &icecream.spec.deployment_name;
        let old_name = review.old_object().map(|old| &old.spec.deployment_name);
        if old_name == Some(name) {
            return Ok(());
        }
        let namespace = review.namespace().unwrap_or_default();
        let current = self
            .deployments
            .get(&ObjectKey::namespaced(namespace, name));
        match current.filter(|deployment| is_taken(deployment, review.name())) {
            Some(_) => Err(Rejection::denied(ResourceExists(name.clone()).to_string())),
            None => Ok(()),
        }
    }
}

/// Whether a Deployment stays with another owner than the Icecream of this name.
fn is_taken(deployment: &Deployment, icecream: &str) -> bool {
    let is_own = controller_of(deployment).is_some_and(|owner| {
        owner.kind == Icecream::kind(&())
            && owner.api_version == Icecream::api_version(&())
            && owner.name == icecream
    });
    !is_own && deployment.meta().deletion_timestamp.is_none()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn only_deployments_of_others_that_stay_are_taken() {
        let owner = |kind: &str, name: &str| {
            json!([{
                "apiVersion": "controller.nicoleh.io/v1alpha1", "kind": kind, "name": name,
                "uid": "u", "controller": true,
            }])
        };
        for (what, owners, deleted, is_taken_expected) in [
            ("without an owner", json!([]), Value::Null, true),
            (
                "of another Icecream",
                owner("Icecream", "other"),
                Value::Null,
                true,
            ),
            (
                "of another kind",
                owner("Sorbet", "shop"),
                Value::Null,
                true,
            ),
            (
                "of a former Icecream of the name",
                owner("Icecream", "shop"),
                Value::Null,
                false,
            ),
            (
                "that is being deleted",
                json!([]),
                json!("2026-01-01T00:00:00Z"),
                false,
            ),
        ] {
            let metadata =
                json!({"name": "d", "ownerReferences": owners, "deletionTimestamp": deleted});
            let deployment = json!({"metadata": metadata}).to_string();
            let deployment = bellerophon::kinds::decode::<Deployment>(deployment.as_bytes());
            let deployment = deployment.expect("a Deployment");
            assert_eq!(is_taken(&deployment, "shop"), is_taken_expected, "{what}");
        }
    }
}
