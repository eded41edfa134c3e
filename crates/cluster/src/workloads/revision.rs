//! Revision history of DaemonSets and StatefulSets: pod templates stored as ControllerRevisions.
//!
//! Input: the owner's template, its existing revisions. Output: the revision of the template,
//! created or renumbered if necessary.
//! Guarantees: the revision of the owner's template has the highest number, also after a rollback
//! to an earlier template; a revision used by a pod is not deleted.

use std::sync::Arc;

use bellerophon::ObjectKey;
use bellerophon::controller::Error;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::ResourceExt;
use kube::api::ObjectMeta;
use kube::core::Selector;
use serde_json::json;

use super::api_writer::{ApiWriter, StaticKind};
use super::claim::{claim_children, controller_reference, matches};
use super::enqueue::Children;
use super::template::{compute_hash, equal_ignore_hash, template_from_json, template_to_json};
use crate::api_errors::has_code;

/// Label of pods, and of the revisions of DaemonSets, with the hash of the template.
pub(crate) const CONTROLLER_REVISION_HASH_LABEL: &str = "controller-revision-hash";

/// Default of `revisionHistoryLimit`.
const DEFAULT_HISTORY_LIMIT: usize = 10;

/// Maximum length of the owner's name in the name of a revision, as in ControllerRevisionName.
const OWNER_NAME_MAX: usize = 223;

/// A workload with a revision history.
pub(crate) trait RevisionOwner: StaticKind {
    /// Label of the revisions with the hash of the template.
    const HASH_LABEL: &'static str;

    fn template(&self) -> PodTemplateSpec;
    /// `status.collisionCount` as it enters the hash.
    fn collision_count(&self) -> Option<i32>;
}

/// The revisions of one owner.
#[derive(Clone, Debug)]
pub(crate) struct Revisions {
    /// Revisions of the owner's template, by number. More than one only after adoptions.
    pub(crate) current: Vec<Arc<ControllerRevision>>,
    /// All other revisions, by number.
    pub(crate) old: Vec<Arc<ControllerRevision>>,
}

impl Revisions {
    /// Claims the revisions of an owner.
    ///
    /// # Errors
    /// As [`claim_children`].
    pub(crate) async fn claim<O: RevisionOwner>(
        writer: &ApiWriter<'_>,
        revisions: &Children<ControllerRevision>,
        owner: &O,
        selector: &Selector,
    ) -> Result<Self, Error> {
        let all = revisions.candidates(owner);
        let all =
            claim_children(writer, owner, all, |revision| matches(selector, revision)).await?;
        Ok(Self::new(&owner.template(), all))
    }

    /// Sorts revisions by number and partitions them by template. Mirrors SortControllerRevisions
    /// and FindEqualRevisions.
    fn new(template: &PodTemplateSpec, mut all: Vec<Arc<ControllerRevision>>) -> Self {
        all.sort_by_key(|revision| {
            (
                revision.revision,
                revision
                    .metadata
                    .creation_timestamp
                    .as_ref()
                    .map(|time| time.0),
                revision.name_any(),
            )
        });
        let is_current = |revision: &Arc<ControllerRevision>| {
            equal_ignore_hash(template_of(revision).as_ref(), Some(template))
        };
        let (current, old) = all.into_iter().partition(is_current);
        Self { current, old }
    }

    /// The lowest number that the current revision may have. Mirrors nextRevision.
    fn next_number(&self) -> i64 {
        self.old.last().map_or(0, |latest| latest.revision) + 1
    }

    /// Duplicates of the current revision and old revisions beyond the limit that are not live,
    /// lowest number first.
    pub(crate) fn surplus(
        &self,
        limit: Option<i32>,
        is_live: impl Fn(&ControllerRevision) -> bool,
    ) -> Vec<Arc<ControllerRevision>> {
        let limit = limit.map_or(DEFAULT_HISTORY_LIMIT, |limit| {
            usize::try_from(limit).unwrap_or(0)
        });
        let duplicates = self.current.len().saturating_sub(1);
        let duplicates = self.current[..duplicates]
            .iter()
            .filter(|duplicate| !is_live(duplicate))
            .cloned();
        let old = self
            .old
            .iter()
            .filter(|old| !is_live(old))
            .take(self.old.len().saturating_sub(limit))
            .cloned();
        duplicates.chain(old).collect()
    }

    /// The current revision with the highest number. It is created or renumbered if necessary.
    /// Mirrors constructHistory of DaemonSets and getStatefulSetRevisions.
    ///
    /// # Errors
    /// A write failed, or the name of the new revision is taken by another template. In the latter
    /// case the collision count is incremented, so that the retry uses another name.
    pub(crate) async fn ensure_current<O: RevisionOwner>(
        &self,
        writer: &ApiWriter<'_>,
        owner: &O,
    ) -> Result<ControllerRevision, Error> {
        let number = self.next_number();
        let Some(latest) = self.current.last() else {
            return create(writer, owner, new_revision(owner, number)).await;
        };
        let mut desired = ControllerRevision::clone(latest);
        // After a rollback the revision of the restored template gets the highest number, as in
        // getStatefulSetRevisions.
        desired.revision = desired.revision.max(number);
        // Pods are matched by this label. The revision's name is unique, as a hash is.
        desired
            .labels_mut()
            .entry(O::HASH_LABEL.into())
            .or_insert_with(|| latest.name_any());
        writer.update(&**latest, &desired).await?;
        Ok(desired)
    }
}

/// The template of a revision.
pub(crate) fn template_of(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let template = revision.data.as_ref()?.0.get("spec")?.get("template")?;
    template_from_json(template)
}

/// The revision of the owner's template. Its data is a patch that restores the template, for
/// `kubectl rollout undo`. Mirrors getPatch and NewControllerRevision.
fn new_revision<O: RevisionOwner>(owner: &O, number: i64) -> ControllerRevision {
    let template = owner.template();
    let mut patch = template_to_json(&template);
    // Mirrors getPatch: without the directive a rollback would merge lists by key and keep
    // containers that the restored template does not have.
    patch["$patch"] = json!("replace");
    let hash = compute_hash(&template, owner.collision_count());
    let mut labels = template
        .metadata
        .and_then(|meta| meta.labels)
        .unwrap_or_default();
    labels.insert(O::HASH_LABEL.into(), hash.clone());
    let prefix: String = owner.name_any().chars().take(OWNER_NAME_MAX).collect();
    ControllerRevision {
        metadata: ObjectMeta {
            name: Some(format!("{prefix}-{hash}")),
            namespace: owner.namespace(),
            labels: Some(labels),
            annotations: owner.meta().annotations.clone(),
            owner_references: Some(vec![controller_reference(owner)]),
            ..ObjectMeta::default()
        },
        data: Some(RawExtension(json!({ "spec": { "template": patch } }))),
        revision: number,
    }
}

async fn create<O: RevisionOwner>(
    writer: &ApiWriter<'_>,
    owner: &O,
    revision: ControllerRevision,
) -> Result<ControllerRevision, Error> {
    let error = match writer.create(&revision).await {
        Ok(_) => return Ok(revision),
        Err(error) if has_code(&error, 409) => error,
        Err(error) => return Err(error.into()),
    };
    let key = ObjectKey::from_object(&revision);
    let Some(existing) = writer.client.get::<ControllerRevision>(&key).await? else {
        return Err(error.into());
    };
    // Mirrors CreateControllerRevision: an equal revision was created by an earlier reconcile.
    if equal_ignore_hash(
        template_of(&existing).as_ref(),
        template_of(&revision).as_ref(),
    ) {
        return Ok(ControllerRevision::clone(&existing));
    }
    let collision_count = owner.collision_count().unwrap_or(0) + 1;
    writer.set_collision_count(owner, collision_count).await?;
    Err(Error::retry(format!(
        "ControllerRevision {} has another template, retrying with collision count \
            {collision_count}",
        revision.name_any()
    )))
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::DaemonSet;

    use super::*;

    fn owner(image: &str) -> DaemonSet {
        let template = json!({
            "metadata": { "labels": { "app": "a" } },
            "spec": { "containers": [{ "name": "x", "image": image }] },
        });
        serde_json::from_value(json!({
            "metadata": { "name": "agent", "namespace": "default", "uid": "u" },
            "spec": { "selector": {}, "template": template },
        }))
        .unwrap()
    }

    fn revision(image: &str, number: i64) -> Arc<ControllerRevision> {
        Arc::new(new_revision(&owner(image), number))
    }

    fn numbers(revisions: &[Arc<ControllerRevision>]) -> Vec<i64> {
        revisions.iter().map(|it| it.revision).collect()
    }

    #[test]
    fn rollback_gets_the_next_revision_number() {
        let revisions = Revisions::new(
            &owner("v1").template(),
            vec![revision("v2", 2), revision("v1", 1), revision("v3", 3)],
        );
        assert_eq!(numbers(&revisions.current), [1]);
        assert_eq!(numbers(&revisions.old), [2, 3]);
        assert_eq!(revisions.next_number(), 4);
        let none = Revisions::new(&owner("v9").template(), Vec::new());
        assert_eq!(none.next_number(), 1);
    }

    #[test]
    fn surplus_revisions_exclude_live_ones() {
        let all = (1..=6)
            .map(|number| revision(&format!("v{number}"), number))
            .collect();
        let revisions = Revisions::new(&owner("v6").template(), all);
        let surplus =
            |limit, live: i64| numbers(&revisions.surplus(Some(limit), |it| it.revision == live));
        assert_eq!(surplus(2, 0), [1, 2, 3]);
        assert_eq!(surplus(2, 1), [2, 3, 4]);
        assert_eq!(surplus(10, 0), Vec::<i64>::new());
    }
}
