//! StatefulSet controller.
//!
//! Input: StatefulSets, pods, PersistentVolumeClaims, ControllerRevisions. Output: pods and claims;
//! revisions; the status.
//! Guarantees: at most one pod per ordinal exists, because the ordinal determines the pod's name.

mod identity; // ordinals, names and volumes of pods
mod plan; // writes of one reconcile, and the status
mod volume_claims; // claims and their retention policy

use std::collections::BTreeSet;
use std::sync::Arc;

use bellerophon::client::WriteError;
use bellerophon::clock::Clock;
use bellerophon::events::EventRecorder;
use bellerophon::informer::InformerOptions;
use bellerophon::prelude::*;
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, PodTemplateSpec};
use kube::ResourceExt;
use kube::core::Selector;

use super::api_writer::ApiWriter;
use super::batch::run_concurrently;
use super::claim::{self, claim_children, matches};
use super::enqueue::{Children, owners_to_enqueue, pod_update_predicate};
use super::events::{normal_event, warning_event};
use super::pods::{duration_from_seconds, next_availability_check};
use super::revision::{RevisionOwner, Revisions, template_of};
use crate::api_errors::status_message;
use crate::component::Component;
use crate::index;
use plan::{Plan, Revision, StatefulSetAction, StatefulSetState, allows_burst, plan};

/// Name of the controller in events and metrics.
const CONTROLLER: &str = "statefulset-controller";

/// StatefulSets reconciled concurrently, as upstream.
const WORKERS: usize = 5;

/// Adds the StatefulSet controller.
pub(crate) fn setup(mgr: &mut Manager) {
    let revisions = mgr.informer::<ControllerRevision>(InformerOptions::default());
    let reconciler = StatefulSetReconciler {
        pods: Children::new(&index::pods(mgr)),
        claims: mgr.lister(),
        revisions: Children::new(&revisions),
        recorder: Component::ControllerManager.recorder(mgr, CONTROLLER),
        clock: mgr.clock(),
    };
    let sets = mgr.lister::<StatefulSet>();
    let sets_of_pods = sets.clone();
    let sets_of_revisions = sets.clone();
    mgr.controller::<StatefulSet>()
        .watches::<Pod>(move |pod| owners_to_enqueue(&sets_of_pods, pod, selector))
        .predicate(pod_update_predicate())
        .watches::<ControllerRevision>(move |revision| {
            owners_to_enqueue(&sets_of_revisions, revision, selector)
        })
        .watches::<PersistentVolumeClaim>(move |claim| sets_of_claim(&sets, claim))
        .predicate(Predicate::deletions())
        .name(CONTROLLER)
        .concurrency(WORKERS)
        .reconcile(reconciler);
}

fn selector(set: &StatefulSet) -> Option<Selector> {
    claim::non_empty_selector(&set.spec.as_ref()?.selector)
}

/// The StatefulSets whose claim templates match the name of a deleted claim. They may wait for it
/// to be gone before they recreate it.
fn sets_of_claim(sets: &Lister<StatefulSet>, claim: &PersistentVolumeClaim) -> Vec<ObjectKey> {
    let name = claim.name_any();
    let is_member = |set: &StatefulSet| {
        let templates = set
            .spec
            .as_ref()
            .and_then(|spec| spec.volume_claim_templates.as_deref())
            .unwrap_or_default();
        templates.iter().any(|template| {
            name.starts_with(&format!("{}-{}-", template.name_any(), set.name_any()))
        })
    };
    let sets = sets.in_namespace(&claim.namespace().unwrap_or_default());
    sets.iter()
        .filter(|set| is_member(set))
        .map(|set| ObjectKey::from_object(&**set))
        .collect()
}

impl RevisionOwner for StatefulSet {
    const HASH_LABEL: &'static str = "controller.kubernetes.io/hash";

    fn template(&self) -> PodTemplateSpec {
        self.spec
            .as_ref()
            .map(|spec| spec.template.clone())
            .unwrap_or_default()
    }

    // Unlike that of a DaemonSet, the hash of a StatefulSet always contains the count.
    fn collision_count(&self) -> Option<i32> {
        let count = self
            .status
            .as_ref()
            .and_then(|status| status.collision_count);
        Some(count.unwrap_or(0))
    }
}

struct StatefulSetReconciler {
    pods: Children<Pod>,
    claims: Lister<PersistentVolumeClaim>,
    revisions: Children<ControllerRevision>,
    recorder: EventRecorder,
    clock: Clock,
}

impl Reconciler<StatefulSet> for StatefulSetReconciler {
    /// Mirrors syncStatefulSet.
    async fn reconcile(&self, req: Request<StatefulSet>) -> Result<Action, Error> {
        let Some(set) = req.object() else {
            return Ok(Action::await_change());
        };
        // Validation rejects invalid selectors.
        let (Some(spec), Some(selector)) = (&set.spec, selector(set)) else {
            return Ok(Action::await_change());
        };
        let writer = ApiWriter {
            client: req.client(),
        };
        let namespace = set.namespace().unwrap_or_default();
        let revisions = Revisions::claim(&writer, &self.revisions, set, &selector).await?;
        let update = self.update_revision(&writer, set, &revisions).await?;
        let current = current_revision(set, &revisions).unwrap_or_else(|| update.clone());
        let pods = self.pods(&writer, set, &selector).await?;
        let claim = |name: &str| self.claims.get(&ObjectKey::namespaced(&namespace, name));
        let now = self.clock.now();
        let plan = plan(&StatefulSetState {
            set,
            current: &current,
            update: &update,
            pods: &pods,
            claim: &claim,
            now,
        });
        // The status is updated also after a failed write, as in performUpdate.
        let result = self.apply(&writer, set, &plan).await;
        let current_status = set.status.clone().unwrap_or_default();
        let set_status = |set: &mut StatefulSet, status| set.status = Some(status);
        let desired = plan.status.clone();
        writer
            .update_status(set, &current_status, desired, set_status)
            .await?;
        self.truncate_history(
            &writer,
            set,
            &revisions,
            &[&current.name, &update.name],
            &pods,
        )
        .await?;
        result?;
        let requeue_after = next_availability_check(
            pods.iter().map(|pod| &**pod),
            duration_from_seconds(spec.min_ready_seconds),
            now,
        );
        Ok(requeue_after.map_or_else(Action::await_change, Action::requeue_after))
    }
}

impl StatefulSetReconciler {
    /// The revision of the set's template, created if necessary. A terminating set creates none.
    async fn update_revision(
        &self,
        writer: &ApiWriter<'_>,
        set: &StatefulSet,
        revisions: &Revisions,
    ) -> Result<Revision, Error> {
        let template = set.template();
        if set.metadata.deletion_timestamp.is_some() {
            let name = set
                .status
                .as_ref()
                .and_then(|status| status.update_revision.clone())
                .unwrap_or_default();
            return Ok(Revision { name, template });
        }
        let revision = revisions.ensure_current(writer, set).await?;
        Ok(Revision {
            name: revision.name_any(),
            template,
        })
    }

    async fn pods(
        &self,
        writer: &ApiWriter<'_>,
        set: &StatefulSet,
        selector: &Selector,
    ) -> Result<Vec<Arc<Pod>>, Error> {
        let pods = self.pods.candidates(set);
        claim_children(writer, set, pods, |pod| {
            // Mirrors isMemberOf: pods of other names are not claimed.
            identity::ordinal(set, pod).is_some() && matches(selector, pod)
        })
        .await
    }

    async fn apply(
        &self,
        writer: &ApiWriter<'_>,
        set: &StatefulSet,
        plan: &Plan,
    ) -> Result<(), Error> {
        if allows_burst(set) {
            // The claims of a pod are created before the pod; pods are created concurrently.
            let (pods, others): (Vec<_>, Vec<_>) = plan
                .actions
                .iter()
                .partition(|action| matches!(action, StatefulSetAction::CreatePod(_)));
            let (_, first_error) = run_concurrently(
                others
                    .into_iter()
                    .map(|action| self.execute(writer, set, action))
                    .collect(),
            )
            .await;
            let (_, second_error) = run_concurrently(
                pods.into_iter()
                    .map(|action| self.execute(writer, set, action))
                    .collect(),
            )
            .await;
            return first_error.or(second_error).map_or(Ok(()), Err);
        }
        for action in &plan.actions {
            self.execute(writer, set, action).await?;
        }
        Ok(())
    }

    async fn execute(
        &self,
        writer: &ApiWriter<'_>,
        set: &StatefulSet,
        action: &StatefulSetAction,
    ) -> Result<(), Error> {
        match action {
            StatefulSetAction::CreateClaim { claim, pod } => {
                let result = writer.create(&**claim).await.map(|_| ());
                let success = format!(
                    "Create Claim {} Pod {pod} in StatefulSet {} success",
                    claim.name_any(),
                    set.name_any()
                );
                let failed = format!(
                    "Create Claim {} for Pod {pod} in StatefulSet {}",
                    claim.name_any(),
                    set.name_any()
                );
                self.record_event(set, "Create", &success, &failed, result)
            }
            StatefulSetAction::CreatePod(pod) => {
                self.record_pod_event(set, "Create", pod, writer.create(&**pod).await.map(|_| ()))
            }
            StatefulSetAction::DeletePod(pod) => self.record_pod_event(
                set,
                "Delete",
                pod,
                writer.delete(&**pod, None).await.map(|_| ()),
            ),
            StatefulSetAction::UpdatePod { from, to } => self.record_pod_event(
                set,
                "Update",
                to,
                writer.update(&**from, &**to).await.map(|_| ()),
            ),
            StatefulSetAction::UpdateClaim { from, to } => {
                Ok(writer.update(&**from, &**to).await.map(|_| ())?)
            }
            StatefulSetAction::RecordConflictingController(claim) => {
                let message = format!(
                    "PersistentVolumeClaim {claim} has a conflicting OwnerReference that acts as a \
                        managing controller, the retention policy is ignored for this claim"
                );
                self.recorder
                    .event(set, warning_event("ConflictingController", message));
                Ok(())
            }
            StatefulSetAction::RecordCreateFailure { pod, reason } => {
                let message = format!(
                    "Create Pod {pod} in StatefulSet {} failed error: {reason}",
                    set.name_any()
                );
                self.recorder
                    .event(set, warning_event("FailedCreate", message));
                Err(Error::retry(reason.clone()))
            }
        }
    }

    fn record_pod_event(
        &self,
        set: &StatefulSet,
        verb: &str,
        pod: &Pod,
        result: Result<(), WriteError>,
    ) -> Result<(), Error> {
        let operation = format!(
            "{verb} Pod {} in StatefulSet {}",
            pod.name_any(),
            set.name_any()
        );
        self.record_event(
            set,
            verb,
            &format!("{operation} successful"),
            &operation,
            result,
        )
    }

    /// Records the event of a write and returns its result.
    fn record_event(
        &self,
        set: &StatefulSet,
        verb: &str,
        success: &str,
        failed: &str,
        result: Result<(), WriteError>,
    ) -> Result<(), Error> {
        match result {
            Ok(()) => {
                self.recorder.event(
                    set,
                    normal_event(&format!("Successful{verb}"), success.to_owned()),
                );
                Ok(())
            }
            Err(error) => {
                self.recorder.event(
                    set,
                    warning_event(
                        &format!("Failed{verb}"),
                        format!("{failed} failed error: {}", status_message(&error)),
                    ),
                );
                Err(error.into())
            }
        }
    }

    /// Deletes revisions beyond the history limit that neither the set nor a pod references.
    /// Mirrors truncateHistory.
    async fn truncate_history(
        &self,
        writer: &ApiWriter<'_>,
        set: &StatefulSet,
        revisions: &Revisions,
        set_revisions: &[&str],
        pods: &[Arc<Pod>],
    ) -> Result<(), WriteError> {
        let live: BTreeSet<&str> = set_revisions
            .iter()
            .copied()
            .chain(pods.iter().map(|pod| identity::pod_revision(pod)))
            .collect();
        let is_live = |revision: &ControllerRevision| {
            revision
                .metadata
                .name
                .as_deref()
                .is_some_and(|name| live.contains(name))
        };
        let limit = set
            .spec
            .as_ref()
            .and_then(|spec| spec.revision_history_limit)
            .unwrap_or(10);
        // Live revisions do not count towards the limit.
        let live_count = revisions.old.iter().filter(|old| is_live(old)).count();
        let limit = limit.saturating_add(i32::try_from(live_count).unwrap_or(i32::MAX));
        for revision in revisions.surplus(Some(limit), is_live) {
            writer.delete(&*revision, None).await?;
        }
        Ok(())
    }
}

/// The revision of `status.currentRevision`, if it exists.
fn current_revision(set: &StatefulSet, revisions: &Revisions) -> Option<Revision> {
    let name = set.status.as_ref()?.current_revision.as_ref()?;
    let revision = revisions
        .old
        .iter()
        .chain(&revisions.current)
        .find(|revision| revision.metadata.name.as_ref() == Some(name))?;
    Some(Revision {
        name: name.clone(),
        template: template_of(revision)?,
    })
}
