//! The plan for one StatefulSet: which member comes, goes or is mended next, and what its status says.
//!
//! In: the set, its revisions, its pods and claims, the time. Out: steps and a status.
//! Holds: in order, a member is made only when all before it are available, and goes only when none after it is left;
//! in parallel they come and go at once. Either way an update replaces from the last member down, never below the partition.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::apps::v1::{
    RollingUpdateStatefulSetStrategy, StatefulSet, StatefulSetSpec, StatefulSetStatus,
};
use k8s_openapi::api::core::v1::{PersistentVolumeClaim, Pod, PodTemplateSpec};
use kube::ResourceExt;

use super::claims;
use super::identity::{identify, is_identified, member, ordinal, ordinals, revision};
use crate::workloads::pods::{
    Phase, is_available, is_deleting, is_finished, is_ready, phase, seconds,
};
use crate::workloads::share::{Round, share};

/// One thing to do.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Step {
    /// Make a claim for a member.
    CreateClaim {
        claim: Box<PersistentVolumeClaim>,
        pod: String,
    },
    /// Make a member.
    CreatePod(Box<Pod>),
    /// End a member.
    DeletePod(Arc<Pod>),
    /// Mend labels and volumes of a member.
    MendPod { from: Arc<Pod>, to: Box<Pod> },
    /// Change the owners of a claim.
    ChangeClaim {
        from: Arc<PersistentVolumeClaim>,
        to: Box<PersistentVolumeClaim>,
    },
    /// Tell that another controller manages a claim.
    TellContested(String),
    /// A member cannot be made, and why.
    Refuse { pod: String, why: String },
}

/// A template and its name.
#[derive(Clone, Debug)]
pub(super) struct Revision {
    pub(super) name: String,
    pub(super) template: PodTemplateSpec,
}

/// What a plan is made from.
pub(super) struct Facts<'a> {
    pub(super) set: &'a StatefulSet,
    /// The revision that members have until they are updated.
    pub(super) current: &'a Revision,
    /// The revision of the present template.
    pub(super) update: &'a Revision,
    pub(super) pods: &'a [Arc<Pod>],
    /// Claims by name.
    pub(super) claim: &'a (dyn Fn(&str) -> Option<Arc<PersistentVolumeClaim>> + Sync),
    pub(super) now: Timestamp,
}

/// What is to happen, and what is told.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) steps: Vec<Step>,
    pub(super) status: StatefulSetStatus,
}

/// The members that are to be there, by ordinal; `None` for those that are not made yet.
type Members = BTreeMap<i32, Option<Arc<Pod>>>;

/// Members beyond the wanted number, the last one first.
type Condemned = Vec<(i32, Arc<Pod>)>;

/// Whether there is more to do after this, or everything else must wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Flow {
    On,
    Wait,
}

/// Makes the plan.
pub(super) fn plan(facts: &Facts<'_>) -> Plan {
    let mut steps = Vec::new();
    let mut status = facts.count();
    if facts.set.metadata.deletion_timestamp.is_none() {
        let (members, condemned) = facts.sort();
        let flow = facts.tend_all(&members, &mut steps);
        let flow = if flow == Flow::On {
            facts.scale_down(&members, &condemned, &mut steps)
        } else {
            flow
        };
        if flow == Flow::On && facts.is_rolling() {
            facts.roll(&members, &mut steps, &mut status);
        }
    }
    facts.complete(&mut status);
    Plan { steps, status }
}

/// Whether members come and go at once.
pub(super) fn is_parallel(set: &StatefulSet) -> bool {
    set.spec
        .as_ref()
        .and_then(|spec| spec.pod_management_policy.as_deref())
        == Some("Parallel")
}

impl Facts<'_> {
    fn spec(&self) -> &StatefulSetSpec {
        self.set
            .spec
            .as_ref()
            .expect("a set without a spec has no selector and is not planned for")
    }

    fn rolling(&self) -> Option<&RollingUpdateStatefulSetStrategy> {
        self.spec()
            .update_strategy
            .as_ref()?
            .rolling_update
            .as_ref()
    }

    fn is_rolling(&self) -> bool {
        self.spec()
            .update_strategy
            .as_ref()
            .and_then(|strategy| strategy.type_.as_deref())
            != Some("OnDelete")
    }

    fn min_ready(&self) -> Duration {
        seconds(self.spec().min_ready_seconds)
    }

    fn is_available(&self, pod: &Pod) -> bool {
        is_available(pod, self.min_ready(), self.now) && !is_deleting(pod)
    }

    /// The members that are to be there, by ordinal, and those that are not, the last one first.
    fn sort(&self) -> (Members, Condemned) {
        let mut members: Members = ordinals(self.set).map(|ordinal| (ordinal, None)).collect();
        let mut condemned = Condemned::new();
        for pod in self.pods {
            let Some(ordinal) = ordinal(self.set, pod) else {
                continue;
            };
            match members.get_mut(&ordinal) {
                Some(place) => *place = Some(pod.clone()),
                None => condemned.push((ordinal, pod.clone())),
            }
        }
        condemned.sort_by_key(|(ordinal, _)| std::cmp::Reverse(*ordinal));
        (members, condemned)
    }

    fn tend_all(&self, members: &Members, steps: &mut Vec<Step>) -> Flow {
        let parallel = is_parallel(self.set);
        for (ordinal, pod) in members {
            let flow = match pod {
                None => self.make(*ordinal, steps),
                Some(pod) => self.tend(*ordinal, pod, steps),
            };
            if flow == Flow::Wait && !parallel {
                return Flow::Wait;
            }
        }
        Flow::On
    }

    /// Makes a member and its claims, unless an earlier claim of it is still going.
    fn make(&self, ordinal: i32, steps: &mut Vec<Step>) -> Flow {
        let revision = if self.is_before_update(ordinal) {
            self.current
        } else {
            self.update
        };
        let pod = member(self.set, &revision.template, &revision.name, ordinal);
        let claims: Vec<_> = claims::wanted(self.set, ordinal)
            .into_iter()
            .map(|wanted| ((self.claim)(&wanted.name_any()), wanted))
            .collect();
        if claims.iter().any(|(known, _)| {
            known
                .as_ref()
                .is_some_and(|known| claims::is_stale(self.set, known, ordinal))
        }) {
            return Flow::Wait;
        }
        let going = claims.iter().find(|(known, _)| {
            known
                .as_ref()
                .is_some_and(|known| known.metadata.deletion_timestamp.is_some())
        });
        if let Some((_, claim)) = going {
            steps.push(Step::Refuse {
                pod: pod.name_any(),
                why: format!("pvc {} is being deleted", claim.name_any()),
            });
            return Flow::Wait;
        }
        self.make_claims(ordinal, &pod.name_any(), steps);
        steps.push(Step::CreatePod(Box::new(pod)));
        Flow::Wait
    }

    fn make_claims(&self, ordinal: i32, pod: &str, steps: &mut Vec<Step>) {
        let missing = claims::wanted(self.set, ordinal)
            .into_iter()
            .filter(|claim| (self.claim)(&claim.name_any()).is_none());
        steps.extend(missing.map(|claim| Step::CreateClaim {
            claim: Box::new(claim),
            pod: pod.to_owned(),
        }));
    }

    /// Whether a member of this ordinal is still made from the current revision.
    fn is_before_update(&self, ordinal: i32) -> bool {
        let position = ordinal - ordinals(self.set).start;
        match self.rolling() {
            Some(rolling) => position < rolling.partition.unwrap_or(0),
            None => {
                self.is_rolling()
                    && position
                        < self
                            .set
                            .status
                            .as_ref()
                            .and_then(|status| status.current_replicas)
                            .unwrap_or(0)
            }
        }
    }

    fn tend(&self, ordinal: i32, pod: &Arc<Pod>, steps: &mut Vec<Step>) -> Flow {
        // A pod that ended, well or not, did not do what members are for: it is made again when it is gone.
        if is_finished(pod) {
            steps.extend((!is_deleting(pod)).then(|| Step::DeletePod(pod.clone())));
            return Flow::Wait;
        }
        if phase(pod) == Phase::Pending && !is_deleting(pod) {
            self.make_claims(ordinal, &pod.name_any(), steps);
        }
        let serves = phase(pod) == Phase::Running && self.is_available(pod);
        if !serves && !is_parallel(self.set) {
            return Flow::Wait;
        }
        if !is_identified(self.set, pod, ordinal) {
            self.make_claims(ordinal, &pod.name_any(), steps);
            let mut mended = Pod::clone(pod);
            identify(self.set, &mut mended, ordinal);
            steps.push(Step::MendPod {
                from: pod.clone(),
                to: Box::new(mended),
            });
        }
        self.settle_claims(ordinal, pod, steps);
        Flow::On
    }

    /// Gives the claims of a member the owners that the policy wants.
    fn settle_claims(&self, ordinal: i32, pod: &Pod, steps: &mut Vec<Step>) {
        for claim in claims::wanted(self.set, ordinal)
            .iter()
            .filter_map(|claim| (self.claim)(&claim.name_any()))
        {
            if let Some(owned) = claims::owned(self.set, pod, ordinal, &claim) {
                steps.extend(
                    claims::is_contested(self.set, pod, &claim)
                        .then(|| Step::TellContested(claim.name_any())),
                );
                steps.push(Step::ChangeClaim {
                    from: claim,
                    to: Box::new(owned),
                });
            }
        }
    }

    fn scale_down(&self, members: &Members, condemned: &Condemned, steps: &mut Vec<Step>) -> Flow {
        for (ordinal, pod) in condemned {
            self.settle_claims(*ordinal, pod, steps);
        }
        let parallel = is_parallel(self.set);
        let lowest_first = members
            .values()
            .flatten()
            .chain(condemned.iter().rev().map(|(_, pod)| pod));
        let first_unavailable = lowest_first
            .into_iter()
            .find(|pod| !self.is_available(pod))
            .map(|pod| pod.uid());
        for (_, pod) in condemned {
            // In order, one goes at a time, and none while another is in trouble, unless it is that one.
            let waits = is_deleting(pod)
                || (!self.is_available(pod) && first_unavailable != Some(pod.uid()));
            if !parallel && waits {
                return Flow::Wait;
            }
            if !is_deleting(pod) {
                steps.push(Step::DeletePod(pod.clone()));
            }
            if !parallel {
                return Flow::Wait;
            }
        }
        Flow::On
    }

    /// Ends members that do not have the present template, from the last one down.
    fn roll(&self, members: &Members, steps: &mut Vec<Step>, status: &mut StatefulSetStatus) {
        let partition = ordinals(self.set).start
            + self
                .rolling()
                .and_then(|rolling| rolling.partition)
                .unwrap_or(0);
        let outdated = |pod: &Pod| revision(pod) != self.update.name && !is_deleting(pod);
        let unavailable =
            |pod: &Option<Arc<Pod>>| !pod.as_ref().is_some_and(|pod| self.is_available(pod));
        let mut room = match self
            .rolling()
            .and_then(|rolling| rolling.max_unavailable.as_ref())
        {
            Some(max) => {
                let total = self.spec().replicas.unwrap_or(1);
                let max = usize::try_from(share(Some(max), total, Round::Down).max(1)).unwrap_or(1);
                max.saturating_sub(members.values().filter(|pod| unavailable(pod)).count())
            }
            None => 1,
        };
        let one_by_one = self
            .rolling()
            .and_then(|rolling| rolling.max_unavailable.as_ref())
            .is_none();
        for (_, pod) in members.range(partition..).rev() {
            if room == 0 {
                return;
            }
            match pod {
                Some(pod) if outdated(pod) => {
                    // One that is to be ended anyway, because it has ended, is not ended twice.
                    if !is_finished(pod) {
                        steps.push(Step::DeletePod(pod.clone()));
                    }
                    let current = status.current_replicas.unwrap_or(0)
                        - i32::from(revision(pod) == self.current.name);
                    status.current_replicas = some(current.max(0));
                    room -= 1;
                }
                pod if one_by_one && unavailable(pod) => return,
                _ => {}
            }
        }
    }

    fn count(&self) -> StatefulSetStatus {
        let count = |holds: &dyn Fn(&Pod) -> bool| {
            let members = self
                .pods
                .iter()
                .filter(|pod| ordinal(self.set, pod).is_some());
            i32::try_from(members.filter(|pod| holds(pod)).count()).unwrap_or(i32::MAX)
        };
        let has = |pod: &Pod, name: &str| !is_deleting(pod) && revision(pod) == name;
        let serves = |pod: &Pod| phase(pod) == Phase::Running && is_ready(pod);
        StatefulSetStatus {
            observed_generation: self.set.metadata.generation,
            replicas: count(&|_| true),
            ready_replicas: some(count(&serves)),
            available_replicas: Some(count(&|pod| {
                serves(pod) && is_available(pod, self.min_ready(), self.now)
            })),
            current_replicas: some(count(&|pod| has(pod, &self.current.name))),
            updated_replicas: some(count(&|pod| has(pod, &self.update.name))),
            current_revision: Some(self.current.name.clone()),
            update_revision: Some(self.update.name.clone()),
            collision_count: Some(
                self.set
                    .status
                    .as_ref()
                    .and_then(|status| status.collision_count)
                    .unwrap_or(0),
            ),
            conditions: self
                .set
                .status
                .as_ref()
                .and_then(|status| status.conditions.clone()),
        }
    }

    /// When every member is updated and ready, the update revision becomes the current one.
    fn complete(&self, status: &mut StatefulSetStatus) {
        let wanted = self.spec().replicas.unwrap_or(1);
        let all = [
            status.updated_replicas.unwrap_or(0),
            status.ready_replicas.unwrap_or(0),
            status.replicas,
        ];
        if self.is_rolling() && all.into_iter().all(|count| count == wanted) {
            status.current_replicas = status.updated_replicas;
            status.current_revision = status.update_revision.clone();
        }
    }
}

fn some(count: i32) -> Option<i32> {
    (count != 0).then_some(count)
}

#[cfg(test)]
mod tests;
