//! Claiming: which objects belong to an owner, by selector and by owner reference together.
//!
//! In: an owner, a selector, children as cached. Out: those it owns now; orphans adopted, strangers by label released.
//! Holds: nothing that another owner controls is touched; an owner that is being deleted, or that the server no longer has
//! under this uid, adopts nothing (asked of the server itself, once a pass, before the first adoption).

use std::fmt::Debug;
use std::sync::Arc;

use bellerophon::{Failure, controller_of};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{LabelSelector, OwnerReference};
use kube::core::{Selector, SelectorExt};
use kube::{Api, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::hand::{Hand, Kind, is_code};

/// What is to happen with one child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claim {
    /// It is ours and matches.
    Keep,
    /// Nobody's, and it matches.
    Adopt,
    /// Ours, but it no longer matches.
    Release,
    /// Another's, or nobody's business.
    Ignore,
}

/// Decides on one child by its controlling owner and whether it matches.
pub(crate) fn claim<O: Resource, C: Resource>(owner: &O, child: &C, matches: bool) -> Claim {
    let owner_is_deleting = owner.meta().deletion_timestamp.is_some();
    match controller_of(child) {
        Some(controller) if Some(&controller.uid) != owner.meta().uid.as_ref() => Claim::Ignore,
        Some(_) if matches => Claim::Keep,
        Some(_) if owner_is_deleting => Claim::Ignore,
        Some(_) => Claim::Release,
        None if owner_is_deleting || !matches || child.meta().deletion_timestamp.is_some() => {
            Claim::Ignore
        }
        None if owner.meta().namespace != child.meta().namespace => Claim::Ignore,
        None => Claim::Adopt,
    }
}

/// The reference by which an owner controls what it creates.
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

/// A selector that is fit to claim with: valid, and not matching everything, which is never meant.
pub(crate) fn selector(selector: &LabelSelector) -> Option<Selector> {
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

/// Claims children one by one: all that are owned already come back as they are, adopted ones as they were before.
///
/// # Errors
/// The owner is not what the server has, or a write failed. What was done before stays done.
pub(crate) async fn claim_all<O, C>(
    hand: &Hand<'_>,
    owner: &O,
    children: Vec<Arc<C>>,
    matches: impl Fn(&C) -> bool,
) -> Result<Vec<Arc<C>>, Failure>
where
    O: Kind + Clone + Debug + DeserializeOwned,
    C: Kind + Clone + Debug + DeserializeOwned,
{
    claim_tracked(hand, owner, children, matches, &[]).await
}

/// As [`claim_all`]; what is adopted gets finalizers, what is released loses them.
///
/// # Errors
/// As for [`claim_all`].
pub(crate) async fn claim_tracked<O, C>(
    hand: &Hand<'_>,
    owner: &O,
    children: Vec<Arc<C>>,
    matches: impl Fn(&C) -> bool,
    finalizers: &[&str],
) -> Result<Vec<Arc<C>>, Failure>
where
    O: Kind + Clone + Debug + DeserializeOwned,
    C: Kind + Clone + Debug + DeserializeOwned,
{
    let mut claimed = Vec::with_capacity(children.len());
    let mut may_adopt = false;
    for child in children {
        match claim(owner, &*child, matches(&child)) {
            Claim::Keep => claimed.push(child),
            Claim::Ignore => {}
            Claim::Release => {
                release(hand, &*child, &release_patch(owner, &*child, finalizers)).await?
            }
            Claim::Adopt => {
                if !may_adopt {
                    still_there(hand, owner).await?;
                    may_adopt = true;
                }
                if adopt(hand, &*child, &adopt_patch(owner, &*child, finalizers)).await? {
                    claimed.push(child);
                }
            }
        }
    }
    Ok(claimed)
}

/// Whether labels match a selector.
pub(crate) fn matches<C: Resource>(selector: &Selector, child: &C) -> bool {
    selector.matches(child.labels())
}

/// The cache may be older than a deletion of the owner, and what a dead owner adopts is collected as garbage.
async fn still_there<O>(hand: &Hand<'_>, owner: &O) -> Result<(), Failure>
where
    O: Kind + Clone + Debug + DeserializeOwned,
{
    let owners = Api::<O>::namespaced(hand.client.clone(), &owner.namespace().unwrap_or_default());
    let fresh = owners.get(&owner.name_any()).await?;
    let what = format!(
        "{} {}/{}",
        O::kind(&()),
        owner.namespace().unwrap_or_default(),
        owner.name_any()
    );
    if fresh.uid() != owner.uid() {
        return Err(Failure::retry(format!(
            "original {what} is gone: another one has its name"
        )));
    }
    if fresh.meta().deletion_timestamp.is_some() {
        return Err(Failure::retry(format!("{what} has just been deleted")));
    }
    Ok(())
}

/// Says whether the child is ours now; one that is gone is not.
async fn adopt<C: Kind>(hand: &Hand<'_>, child: &C, patch: &Value) -> Result<bool, Failure> {
    match hand.patch(child, patch).await {
        Ok(_) => Ok(true),
        Err(error) if is_code(&error, 404) => Ok(false),
        Err(error) => Err(error.into()),
    }
}

async fn release<C: Kind>(hand: &Hand<'_>, child: &C, patch: &Value) -> Result<(), Failure> {
    match hand.patch(child, patch).await {
        Ok(_) => Ok(()),
        // Gone, or no longer ours, or another object of the same name: nothing is left to release.
        Err(error) if is_code(&error, 404) || is_code(&error, 422) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

fn adopt_patch<O: Kind, C: Resource>(owner: &O, child: &C, finalizers: &[&str]) -> Value {
    let mut patch = json!({ "metadata": { "uid": child.uid(), "ownerReferences": [controller_reference(owner)] } });
    if !finalizers.is_empty() {
        patch["metadata"]["finalizers"] = json!(finalizers);
    }
    patch
}

fn release_patch<O: Resource, C: Resource>(owner: &O, child: &C, finalizers: &[&str]) -> Value {
    let mut patch = json!({ "metadata": { "uid": child.uid(), "ownerReferences": [{ "$patch": "delete", "uid": owner.uid() }] } });
    if !finalizers.is_empty() {
        patch["metadata"]["$deleteFromPrimitiveList/finalizers"] = json!(finalizers);
    }
    patch
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::ReplicaSet;

    use super::*;
    use crate::workloads::samples::{at, pod};

    fn owner(deleting: bool) -> ReplicaSet {
        let mut set = ReplicaSet::default();
        set.metadata.uid = Some("us".into());
        set.metadata.namespace = Some("default".into());
        set.metadata.deletion_timestamp = deleting.then(|| at(1));
        set
    }

    #[test]
    fn children_are_claimed_by_reference_and_selector() {
        let live = owner(false);
        let dying = owner(true);
        let mut elsewhere = pod("elsewhere").build();
        elsewhere.metadata.namespace = Some("other".into());
        for (what, owner, child, matches, expected) in [
            (
                "ours",
                &live,
                pod("a").owned_by("us").build(),
                true,
                Claim::Keep,
            ),
            (
                "ours, owner is dying",
                &dying,
                pod("a").owned_by("us").build(),
                true,
                Claim::Keep,
            ),
            (
                "ours no longer",
                &live,
                pod("a").owned_by("us").build(),
                false,
                Claim::Release,
            ),
            (
                "ours no longer, owner is dying",
                &dying,
                pod("a").owned_by("us").build(),
                false,
                Claim::Ignore,
            ),
            (
                "another's",
                &live,
                pod("a").owned_by("them").build(),
                true,
                Claim::Ignore,
            ),
            ("orphan", &live, pod("a").build(), true, Claim::Adopt),
            (
                "orphan, owner is dying",
                &dying,
                pod("a").build(),
                true,
                Claim::Ignore,
            ),
            (
                "dying orphan",
                &live,
                pod("a").deleting().build(),
                true,
                Claim::Ignore,
            ),
            ("stranger", &live, pod("a").build(), false, Claim::Ignore),
            ("orphan elsewhere", &live, elsewhere, true, Claim::Ignore),
        ] {
            assert_eq!(claim(owner, &child, matches), expected, "{what}");
        }
    }

    #[test]
    fn selector_of_everything_claims_nothing() {
        assert!(selector(&LabelSelector::default()).is_none());
        assert!(
            selector(&LabelSelector {
                match_labels: Some([("a".into(), "b".into())].into()),
                ..Default::default()
            })
            .is_some()
        );
    }
}
