//! Revisions: the templates a DaemonSet or StatefulSet has had, kept as ControllerRevisions to go back to.
//!
//! In: a template, the revisions that are there. Out: the revision of the template, made or renumbered if need be.
//! Holds: a template that comes back gets its old revision under a new number, so the latest number is always the present
//! template; a revision that a pod still has is not forgotten.

use std::fmt::Debug;
use std::sync::Arc;

use bellerophon::Failure;
use k8s_openapi::api::apps::v1::ControllerRevision;
use k8s_openapi::api::core::v1::PodTemplateSpec;
use k8s_openapi::apimachinery::pkg::runtime::RawExtension;
use kube::api::ObjectMeta;
use kube::{Api, ResourceExt};
use serde_json::json;

use super::claim::controller_reference;
use super::hand::{Hand, Kind, is_code};
use super::template::{hash, same_template};

/// The label by which pods, and revisions of DaemonSets, tell their template.
pub(crate) const HASH: &str = "controller-revision-hash";

/// The revisions of one owner.
#[derive(Clone, Debug)]
pub(crate) struct Revisions {
    /// Those with the present template, by number. More than one only after two owners were merged.
    pub(crate) present: Vec<Arc<ControllerRevision>>,
    /// All others, by number.
    pub(crate) old: Vec<Arc<ControllerRevision>>,
}

impl Revisions {
    /// Sorts revisions by whether they hold the template.
    pub(crate) fn of(template: &PodTemplateSpec, mut all: Vec<Arc<ControllerRevision>>) -> Self {
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
        let holds = |revision: &Arc<ControllerRevision>| {
            same_template(template_of(revision).as_ref(), Some(template))
        };
        let (present, old) = all.into_iter().partition(holds);
        Self { present, old }
    }

    /// The number the present template's revision must have at least.
    pub(crate) fn next_number(&self) -> i64 {
        self.old.last().map_or(0, |latest| latest.revision) + 1
    }

    /// Revisions beyond the limit that nothing needs, the earliest first.
    pub(crate) fn surplus(
        &self,
        limit: Option<i32>,
        is_live: impl Fn(&ControllerRevision) -> bool,
    ) -> Vec<Arc<ControllerRevision>> {
        let limit = limit.map_or(10, |limit| usize::try_from(limit).unwrap_or(0));
        let spare = self.present.len().saturating_sub(1);
        let doubles = self.present[..spare]
            .iter()
            .filter(|double| !is_live(double))
            .cloned();
        let idle = self
            .old
            .iter()
            .filter(|old| !is_live(old))
            .take(self.old.len().saturating_sub(limit))
            .cloned();
        doubles.chain(idle).collect()
    }
}

/// The template that a revision holds.
pub(crate) fn template_of(revision: &ControllerRevision) -> Option<PodTemplateSpec> {
    let template = revision.data.as_ref()?.0.get("spec")?.get("template")?;
    serde_json::from_value(template.clone()).ok()
}

/// What a new revision is made of.
pub(crate) struct Snapshot<'a, O> {
    pub(crate) owner: &'a O,
    pub(crate) template: &'a PodTemplateSpec,
    /// How many names were found to be taken by other templates.
    pub(crate) collisions: Option<i32>,
    /// The label that tells its hash.
    pub(crate) hash_label: &'static str,
}

impl<O: Kind> Snapshot<'_, O> {
    /// The revision as it is to be created. It holds a patch that puts the template back, as `kubectl rollout undo` wants.
    fn build(&self, number: i64) -> ControllerRevision {
        let mut template = json!(self.template);
        template["$patch"] = json!("replace");
        let hash = hash(self.template, self.collisions);
        let mut labels = self
            .template
            .metadata
            .as_ref()
            .and_then(|meta| meta.labels.clone())
            .unwrap_or_default();
        labels.insert(self.hash_label.into(), hash.clone());
        ControllerRevision {
            metadata: ObjectMeta {
                name: Some(format!(
                    "{}-{hash}",
                    self.owner.name_any().chars().take(223).collect::<String>()
                )),
                namespace: self.owner.namespace(),
                labels: Some(labels),
                annotations: self.owner.meta().annotations.clone(),
                owner_references: Some(vec![controller_reference(self.owner)]),
                ..ObjectMeta::default()
            },
            data: Some(RawExtension(json!({ "spec": { "template": template } }))),
            revision: number,
        }
    }
}

/// What became of the present template's revision.
#[derive(Clone, Debug)]
pub(crate) enum Present {
    /// It is there under the right number.
    Is(Box<ControllerRevision>),
    /// Another template has its name; count it, and try again.
    Collision,
}

/// Sees to it that the present template has a revision with the latest number.
///
/// # Errors
/// The server refuses.
pub(crate) async fn ensure<O>(
    hand: &Hand<'_>,
    revisions: &Revisions,
    snapshot: &Snapshot<'_, O>,
) -> Result<Present, Failure>
where
    O: Kind + Debug,
{
    let number = revisions.next_number();
    let Some(latest) = revisions.present.last() else {
        return create(hand, snapshot.build(number)).await;
    };
    let mut wanted = ControllerRevision::clone(latest);
    wanted.revision = wanted.revision.max(number);
    // Without the label pods could not be matched with it. Its own name is as good as a hash, and as unique.
    wanted
        .labels_mut()
        .entry(snapshot.hash_label.into())
        .or_insert_with(|| latest.name_any());
    hand.change(&**latest, &wanted).await?;
    Ok(Present::Is(Box::new(wanted)))
}

async fn create(hand: &Hand<'_>, revision: ControllerRevision) -> Result<Present, Failure> {
    match hand.create(&revision).await {
        Ok(_) => Ok(Present::Is(Box::new(revision))),
        Err(error) if is_code(&error, 409) => {
            let api = Api::<ControllerRevision>::namespaced(
                hand.client.clone(),
                &revision.namespace().unwrap_or_default(),
            );
            let Some(taken) = api.get_opt(&revision.name_any()).await? else {
                return Err(error.into());
            };
            let same = same_template(
                template_of(&taken).as_ref(),
                template_of(&revision).as_ref(),
            );
            Ok(if same {
                Present::Is(Box::new(taken))
            } else {
                Present::Collision
            })
        }
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::apps::v1::DaemonSet;

    use super::*;

    fn template(image: &str) -> PodTemplateSpec {
        serde_json::from_value(
            json!({ "metadata": { "labels": { "app": "a" } }, "spec": { "containers": [{ "name": "x", "image": image }] } }),
        )
        .unwrap()
    }

    fn revision(image: &str, number: i64) -> Arc<ControllerRevision> {
        let owner: DaemonSet = serde_json::from_value(
            json!({ "metadata": { "name": "agent", "namespace": "default", "uid": "u" } }),
        )
        .unwrap();
        let template = template(image);
        Arc::new(
            Snapshot {
                owner: &owner,
                template: &template,
                collisions: None,
                hash_label: HASH,
            }
            .build(number),
        )
    }

    #[test]
    fn template_that_comes_back_gets_the_latest_number() {
        let revisions = Revisions::of(
            &template("v1"),
            vec![revision("v2", 2), revision("v1", 1), revision("v3", 3)],
        );
        assert_eq!(
            revisions
                .present
                .iter()
                .map(|it| it.revision)
                .collect::<Vec<_>>(),
            [1]
        );
        assert_eq!(
            revisions
                .old
                .iter()
                .map(|it| it.revision)
                .collect::<Vec<_>>(),
            [2, 3]
        );
        assert_eq!(revisions.next_number(), 4);
        assert_eq!(Revisions::of(&template("v9"), Vec::new()).next_number(), 1);
    }

    #[test]
    fn surplus_is_what_nothing_needs() {
        let all = (1..=6)
            .map(|number| revision(&format!("v{number}"), number))
            .collect();
        let revisions = Revisions::of(&template("v6"), all);
        let numbers = |limit, live: i64| {
            revisions
                .surplus(Some(limit), |it| it.revision == live)
                .iter()
                .map(|it| it.revision)
                .collect::<Vec<_>>()
        };
        assert_eq!(numbers(2, 0), [1, 2, 3]);
        assert_eq!(numbers(2, 1), [2, 3, 4]);
        assert_eq!(numbers(10, 0), Vec::<i64>::new());
    }
}
