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

use bellerophon::{
    Controller, EventRecorder, Failure, Lister, ObjectKey, Outcome, ReconcileResult, Request,
    WallClock,
};
use k8s_openapi::api::apps::v1::{ControllerRevision, StatefulSet};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, PodTemplateSpec};
use kube::core::Selector;
use kube::{Client, ResourceExt};

use super::api_writer::ApiWriter;
use super::batch::run_concurrently;
use super::claim::{self, claim_children, matches};
use super::enqueue::{
    ORPHAN_INDEX, add_orphan_index, deletions_only, owners_to_enqueue, pod_update_predicate,
};
use super::events::{normal_event, warning_event};
use super::pods::{duration_from_seconds, next_availability_check};
use super::revision::{RevisionOwner, Revisions, template_of};
use crate::api_errors::status_message;
use crate::component::Component;
use crate::context::{Context, Loop};
use crate::index::{CONTROLLER_UID_INDEX, add_controller_uid_index};
use plan::{Action, Plan, Revision, StatefulSetState, allows_burst, plan};

/// Name of the controller in events and metrics.
const CONTROLLER: &str = "statefulset-controller";

/// StatefulSets reconciled concurrently, as upstream.
const WORKERS: usize = 5;

/// The StatefulSet controller.
pub(crate) fn controller(ctx: &Context) -> Loop {
    let sets = ctx.informer::<StatefulSet>();
    let pods = ctx.pods();
    let claims = ctx.informer::<PersistentVolumeClaim>();
    let revisions = ctx.informer::<ControllerRevision>();
    add_controller_uid_index(&pods);
    add_orphan_index(&pods);
    add_controller_uid_index(&revisions);
    add_orphan_index(&revisions);
    let reconciler = Arc::new(StatefulSetReconciler {
        client: ctx.client(Component::ControllerManager),
        pods: pods.lister(),
        claims: claims.lister(),
        revisions: revisions.lister(),
        recorder: ctx.recorder(Component::ControllerManager, CONTROLLER),
        clock: ctx.clock,
    });
    let sets_of_pods = sets.lister();
    let sets_of_claims = sets.lister();
    let sets_of_revisions = sets.lister();
    Controller::of(&sets)
        .watches_if(&pods, pod_update_predicate(), move |pod| {
            owners_to_enqueue(&sets_of_pods, pod, selector)
        })
        .watches(&revisions, move |revision| {
            owners_to_enqueue(&sets_of_revisions, revision, selector)
        })
        .watches_if(&claims, deletions_only(), move |claim| {
            sets_of_claim(&sets_of_claims, claim)
        })
        .with_options(ctx.options(CONTROLLER, WORKERS))
        .reconcile_with(move |request| reconciler.clone().reconcile(request))
        .into()
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
        .map(|set| ObjectKey::of(&**set))
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
    client: Client,
    pods: Lister<Pod>,
    claims: Lister<PersistentVolumeClaim>,
    revisions: Lister<ControllerRevision>,
    recorder: EventRecorder,
    clock: WallClock,
}

impl StatefulSetReconciler {
    /// Mirrors syncStatefulSet.
    async fn reconcile(self: Arc<Self>, request: Request<StatefulSet>) -> ReconcileResult {
        let Some(set) = request.object.as_deref() else {
            return Ok(Outcome::Done);
        };
        // Validation rejects invalid selectors.
        let (Some(spec), Some(selector)) = (&set.spec, selector(set)) else {
            return Ok(Outcome::Done);
        };
        let writer = ApiWriter {
            client: &self.client,
            writes: request.writes(),
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
        writer
            .update_status(set, &set.status.clone().unwrap_or_default(), &plan.status)
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
        Ok(requeue_after.map_or(Outcome::Done, Outcome::RequeueAfter))
    }

    /// The revision of the set's template, created if necessary. A terminating set creates none.
    async fn update_revision(
        &self,
        writer: &ApiWriter<'_>,
        set: &StatefulSet,
        revisions: &Revisions,
    ) -> Result<Revision, Failure> {
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
    ) -> Result<Vec<Arc<Pod>>, Failure> {
        let mut pods = self
            .pods
            .by_index(CONTROLLER_UID_INDEX, &set.uid().unwrap_or_default())?;
        pods.extend(
            self.pods
                .by_index(ORPHAN_INDEX, &set.namespace().unwrap_or_default())?,
        );
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
    ) -> Result<(), Failure> {
        if allows_burst(set) {
            // The claims of a pod are created before the pod; pods are created concurrently.
            let (pods, others): (Vec<_>, Vec<_>) = plan
                .actions
                .iter()
                .partition(|action| matches!(action, Action::CreatePod(_)));
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
        action: &Action,
    ) -> Result<(), Failure> {
        match action {
            Action::CreateClaim { claim, pod } => {
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
            Action::CreatePod(pod) => {
                self.record_pod_event(set, "Create", pod, writer.create(&**pod).await.map(|_| ()))
            }
            Action::DeletePod(pod) => self.record_pod_event(
                set,
                "Delete",
                pod,
                writer.delete(&**pod, Default::default()).await.map(|_| ()),
            ),
            Action::UpdatePod { from, to } => self.record_pod_event(
                set,
                "Update",
                to,
                writer.update(&**from, &**to).await.map(|_| ()),
            ),
            Action::UpdateClaim { from, to } => {
                Ok(writer.update(&**from, &**to).await.map(|_| ())?)
            }
            Action::RecordConflictingController(claim) => {
                let message = format!(
                    "PersistentVolumeClaim {claim} has a conflicting OwnerReference that acts as a \
                        managing controller, the retention policy is ignored for this claim"
                );
                self.recorder
                    .event(set, warning_event("ConflictingController", message));
                Ok(())
            }
            Action::RecordCreateFailure { pod, reason } => {
                let message = format!(
                    "Create Pod {pod} in StatefulSet {} failed error: {reason}",
                    set.name_any()
                );
                self.recorder
                    .event(set, warning_event("FailedCreate", message));
                Err(Failure::retry(reason.clone()))
            }
        }
    }

    fn record_pod_event(
        &self,
        set: &StatefulSet,
        verb: &str,
        pod: &Pod,
        result: Result<(), kube::Error>,
    ) -> Result<(), Failure> {
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
        result: Result<(), kube::Error>,
    ) -> Result<(), Failure> {
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
    ) -> Result<(), kube::Error> {
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
            writer.delete(&*revision, Default::default()).await?;
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
