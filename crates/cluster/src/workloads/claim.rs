//! Claiming of children by controller reference and selector, as the upstream
//! ControllerRefManagers.
//!
//! Input: an owner, a selector, cached children. Output: the claimed children; matching orphans are
//! adopted, controlled children that no longer match are released.
//! Guarantees: children of other controllers are not modified; an owner that is terminating, or no
//! longer exists with this uid, adopts nothing. That is checked with a live read before the first
//! adoption of a reconcile.

use std::sync::Arc;

use bellerophon::ObjectKey;
use bellerophon::controller::Error;
use bellerophon::owner::controller_of;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};
use kube::core::{Selector, SelectorExt};
use kube::{Resource, ResourceExt};
use serde_json::{Value, json};

use super::api_writer::{ApiWriter, StaticKind};
use crate::api_errors::has_code;

/// What to do with one child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClaimAction {
    /// Controlled by the owner, and matches.
    Keep,
    /// An orphan that matches.
    Adopt,
    /// Controlled by the owner, but no longer matches.
    Release,
    /// Controlled by another owner, or an orphan that is not adopted.
    Ignore,
}

/// The action for a child. Mirrors ClaimObject.
fn claim_action<O: Resource, C: Resource>(owner: &O, child: &C, matches: bool) -> ClaimAction {
    let owner_is_terminating = owner.meta().deletion_timestamp.is_some();
    match controller_of(child) {
        Some(controller) if Some(&controller.uid) != owner.meta().uid.as_ref() => {
            ClaimAction::Ignore
        }
        Some(_) if matches => ClaimAction::Keep,
        // A terminating owner leaves its children to the garbage collector.
        Some(_) if owner_is_terminating => ClaimAction::Ignore,
        Some(_) => ClaimAction::Release,
        None if owner_is_terminating || !matches || child.meta().deletion_timestamp.is_some() => {
            ClaimAction::Ignore
        }
        // Owner references cannot cross namespaces.
        None if owner.meta().namespace != child.meta().namespace => ClaimAction::Ignore,
        None => ClaimAction::Adopt,
    }
}

/// The controller reference to an owner, with `blockOwnerDeletion`.
pub(crate) fn controller_reference<O: Resource<DynamicType = ()>>(owner: &O) -> OwnerReference {
    OwnerReference {
        api_version: O::api_version(&()).into_owned(),
        kind: O::kind(&()).into_owned(),
        name: owner.name_any(),
        uid: owner.uid().unwrap_or_default(),
        controller: Some(true),
        block_owner_deletion: Some(true),
    }
}

/// The parsed selector; `None` if it is invalid or empty. An empty selector would match every
/// object.
pub(crate) fn non_empty_selector(selector: &LabelSelector) -> Option<Selector> {
    let empty = selector
        .match_labels
        .as_ref()
        .is_none_or(|labels| labels.is_empty())
        && selector
            .match_expressions
            .as_ref()
            .is_none_or(|expressions| expressions.is_empty());
    if empty {
        None
    } else {
        Selector::try_from(selector.clone()).ok()
    }
}

/// Claims children. Returns the kept and the adopted ones; the latter in their state before the
/// adoption.
///
/// # Errors
/// The live owner is terminating or replaced, or a write failed. Earlier adoptions and releases are
/// not undone.
pub(crate) async fn claim_children<O, C>(
    writer: &ApiWriter<'_>,
    owner: &O,
    children: Vec<Arc<C>>,
    matches: impl Fn(&C) -> bool,
) -> Result<Vec<Arc<C>>, Error>
where
    O: StaticKind,
    C: StaticKind,
{
    claim_with_finalizers(writer, owner, children, matches, &[]).await
}

/// As [`claim_children`]; adopted children also get the finalizers, released ones lose them.
///
/// # Errors
/// As [`claim_children`].
pub(crate) async fn claim_with_finalizers<O, C>(
    writer: &ApiWriter<'_>,
    owner: &O,
    children: Vec<Arc<C>>,
    matches: impl Fn(&C) -> bool,
    finalizers: &[&str],
) -> Result<Vec<Arc<C>>, Error>
where
    O: StaticKind,
    C: StaticKind,
{
    let mut claimed = Vec::with_capacity(children.len());
    let mut adoption_checked = false;
    for child in children {
        match claim_action(owner, &*child, matches(&child)) {
            ClaimAction::Keep => claimed.push(child),
            ClaimAction::Ignore => {}
            ClaimAction::Release => {
                release(writer, &*child, &release_patch(owner, &*child, finalizers)).await?
            }
            ClaimAction::Adopt => {
                // Mirrors CanAdopt: one live read per reconcile.
                if !adoption_checked {
                    check_can_adopt(writer, owner).await?;
                    adoption_checked = true;
                }
                if adopt(writer, &*child, &adopt_patch(owner, &*child, finalizers)).await? {
                    claimed.push(child);
                }
            }
        }
    }
    Ok(claimed)
}

/// Whether a selector matches the labels of a child.
pub(crate) fn matches<C: Resource>(selector: &Selector, child: &C) -> bool {
    selector.matches(child.labels())
}

/// Checks the live owner. The cached one may be stale, and children adopted by a deleted owner
/// would be garbage collected. Mirrors RecheckDeletionTimestamp.
async fn check_can_adopt<O>(writer: &ApiWriter<'_>, owner: &O) -> Result<(), Error>
where
    O: StaticKind,
{
    let live = writer
        .client
        .get::<O>(&ObjectKey::from_object(owner))
        .await?;
    let description = format!(
        "{} {}/{}",
        O::kind(&()),
        owner.namespace().unwrap_or_default(),
        owner.name_any()
    );
    let Some(live) = live else {
        return Err(Error::retry(format!("original {description} is gone")));
    };
    // An owner reference with the uid of an owner that no longer exists would make the garbage
    // collector delete the child.
    if live.uid() != owner.uid() {
        return Err(Error::retry(format!(
            "original {description} is gone: its name has another uid"
        )));
    }
    if live.meta().deletion_timestamp.is_some() {
        return Err(Error::retry(format!("{description} has just been deleted")));
    }
    Ok(())
}

/// Returns whether the child was adopted; `false` if it is gone.
async fn adopt<C: StaticKind>(
    writer: &ApiWriter<'_>,
    child: &C,
    patch: &Value,
) -> Result<bool, Error> {
    match writer.patch(child, patch).await {
        Ok(_) => Ok(true),
        Err(error) if has_code(&error, 404) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

async fn release<C: StaticKind>(
    writer: &ApiWriter<'_>,
    child: &C,
    patch: &Value,
) -> Result<(), Error> {
    match writer.patch(child, patch).await {
        Ok(_) => Ok(()),
        // 404: the child is gone. 422: it has another uid or no longer references the owner.
        Err(error) if has_code(&error, 404) || has_code(&error, 422) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn adopt_patch<O: StaticKind, C: Resource>(owner: &O, child: &C, finalizers: &[&str]) -> Value {
    let mut patch = json!({
        "metadata": { "uid": child.uid(), "ownerReferences": [controller_reference(owner)] },
    });
    if !finalizers.is_empty() {
        patch["metadata"]["finalizers"] = json!(finalizers);
    }
    patch
}

// Mirrors GenerateDeleteOwnerRefStrategicMergeBytes: the directive removes this reference and keeps
// those of other owners.
fn release_patch<O: Resource, C: Resource>(owner: &O, child: &C, finalizers: &[&str]) -> Value {
    let mut patch = json!({
        "metadata": {
            "uid": child.uid(),
            "ownerReferences": [{ "$patch": "delete", "uid": owner.uid() }],
        },
    });
    if !finalizers.is_empty() {
        patch["metadata"]["$deleteFromPrimitiveList/finalizers"] = json!(finalizers);
    }
    patch
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::ReplicaSet;

    use super::*;
    use crate::workloads::test_objects::{at, pod};

    fn owner(terminating: bool) -> ReplicaSet {
        let mut set = ReplicaSet::default();
        set.metadata.uid = Some("owner".into());
        set.metadata.namespace = Some("default".into());
        set.metadata.deletion_timestamp = terminating.then(|| at(1));
        set
    }

    #[test]
    fn children_are_claimed_by_reference_and_selector() {
        let live = owner(false);
        let terminating = owner(true);
        let mut in_other_namespace = pod("other-namespace").build();
        in_other_namespace.metadata.namespace = Some("other".into());
        for (case, owner, child, matches, expected) in [
            (
                "controlled",
                &live,
                pod("a").owned_by("owner").build(),
                true,
                ClaimAction::Keep,
            ),
            (
                "controlled by a terminating owner",
                &terminating,
                pod("a").owned_by("owner").build(),
                true,
                ClaimAction::Keep,
            ),
            (
                "controlled, no longer matching",
                &live,
                pod("a").owned_by("owner").build(),
                false,
                ClaimAction::Release,
            ),
            (
                "controlled by a terminating owner, no longer matching",
                &terminating,
                pod("a").owned_by("owner").build(),
                false,
                ClaimAction::Ignore,
            ),
            (
                "controlled by another owner",
                &live,
                pod("a").owned_by("other").build(),
                true,
                ClaimAction::Ignore,
            ),
            ("orphan", &live, pod("a").build(), true, ClaimAction::Adopt),
            (
                "orphan, terminating owner",
                &terminating,
                pod("a").build(),
                true,
                ClaimAction::Ignore,
            ),
            (
                "terminating orphan",
                &live,
                pod("a").deleting().build(),
                true,
                ClaimAction::Ignore,
            ),
            (
                "orphan that does not match",
                &live,
                pod("a").build(),
                false,
                ClaimAction::Ignore,
            ),
            (
                "orphan in another namespace",
                &live,
                in_other_namespace,
                true,
                ClaimAction::Ignore,
            ),
        ] {
            assert_eq!(claim_action(owner, &child, matches), expected, "{case}");
        }
    }

    #[test]
    fn empty_selector_is_rejected() {
        assert!(non_empty_selector(&LabelSelector::default()).is_none());
        assert!(
            non_empty_selector(&LabelSelector {
                match_labels: Some([("a".into(), "b".into())].into()),
                ..Default::default()
            })
            .is_some()
        );
    }
}
