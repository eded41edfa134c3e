//! Life: one pod on its node.
//!
//! In: the pod, how its runs are doing, the time. Out: orders to the runtime, notes for people, when to look again.
//! Holds: init containers run one after the other, sidecars begin among them and stop last; nothing starts in a pod that
//! is to end.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::core::v1::Pod;

use super::super::runtime::{Role, Runtime, State};
use super::super::simulated::after;
use super::notes::{self, Told};
use super::slot::{Phase, Slot, containers, grace};

/// A pod on its node, as long as somebody must look after it.
pub(crate) struct Life<Run> {
    /// When the kubelet took it on.
    pub(crate) started: Timestamp,
    /// Init containers and sidecars as the spec has them, then the others.
    pub(crate) slots: Vec<Slot<Run>>,
    /// Why nothing is started any more.
    pub(crate) ending: Option<Ending>,
}

/// Why a pod ends, and how long its containers may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Ending {
    pub(crate) why: Why,
    deadline: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Why {
    /// Somebody deleted it.
    Deleted,
    /// It was active longer than it may be.
    DeadlineExceeded,
    /// Its containers have ended, and none is to be restarted.
    Completed,
}

/// What came of looking after a pod.
#[derive(Debug, Default)]
pub(crate) struct Advance {
    pub(crate) told: Vec<Told>,
    /// When something changes next by itself.
    pub(crate) again: Option<Timestamp>,
}

impl Advance {
    pub(super) fn look_at(&mut self, at: Timestamp) {
        self.again = Some(self.again.map_or(at, |known| known.min(at)));
    }
}

impl<Run: Send + 'static> Life<Run> {
    /// A pod that comes to its node, or that an earlier kubelet looked after. Of its containers those are alive that began
    /// after the node booted.
    pub(crate) fn recover<R: Runtime<Run = Run>>(
        runtime: &R,
        pod: &Pod,
        booted: Timestamp,
        now: Timestamp,
    ) -> Self {
        let status = pod.status.as_ref();
        let known = |role: Role, name: &str| {
            let list = status.and_then(|status| match role {
                Role::Main => status.container_statuses.as_ref(),
                Role::Init | Role::Sidecar => status.init_container_statuses.as_ref(),
            });
            list.into_iter()
                .flatten()
                .find(|status| status.name == name)
        };
        let slots =
            containers(pod).map(
                |(role, index, container)| match known(role, &container.name) {
                    Some(status) => {
                        Slot::new(role, index).recovered(runtime, pod, status, booted, now)
                    }
                    None => Slot::new(role, index),
                },
            );
        let started = status
            .and_then(|status| status.start_time.as_ref())
            .map_or(now, |time| time.0);
        Self {
            started,
            slots: slots.collect(),
            ending: None,
        }
    }

    /// Brings the pod to where it should be now.
    pub(crate) fn advance<R: Runtime<Run = Run>>(
        &mut self,
        runtime: &R,
        pod: &Pod,
        now: Timestamp,
    ) -> Advance {
        let mut advance = Advance::default();
        loop {
            advance.again = None;
            self.decide(pod, now, &mut advance);
            let mut moved = match self.ending {
                Some(ending) => self.stop(runtime, pod, ending, now, &mut advance),
                None => self.run(runtime, pod, now, &mut advance),
            };
            for slot in &mut self.slots {
                moved |= slot.observe(runtime, pod, now, &mut advance);
            }
            if !moved {
                return advance;
            }
        }
    }

    /// Whether no container runs any more, nor will.
    pub(crate) fn is_over(&self) -> bool {
        self.ending.is_some() && !self.slots.iter().any(Slot::is_running)
    }

    /// Whether every init container is through, or was once.
    pub(crate) fn is_initialized(&self) -> bool {
        self.mains_begun() || self.slots.iter().all(Slot::lets_others_begin)
    }

    /// Whether the pod's network is there: some container got beyond being created.
    pub(crate) fn has_sandbox(&self) -> bool {
        self.slots.iter().any(|slot| match &slot.phase {
            Phase::Waiting => false,
            Phase::Run { seen, .. } => *seen != State::Creating,
            Phase::Refused { .. } | Phase::Ended(_) => true,
        })
    }

    pub(crate) fn mains(&self) -> impl Iterator<Item = &Slot<Run>> {
        self.slots.iter().filter(|slot| slot.role == Role::Main)
    }

    fn mains_begun(&self) -> bool {
        self.mains().any(Slot::has_begun)
    }

    /// Decides whether the pod is to end.
    fn decide(&mut self, pod: &Pod, now: Timestamp, advance: &mut Advance) {
        if let Some(deadline) = &pod.metadata.deletion_timestamp {
            self.ending = Some(Ending {
                why: Why::Deleted,
                deadline: deadline.0,
            });
            return;
        }
        if self.ending.is_some() {
            return;
        }
        let end = |why| {
            Some(Ending {
                why,
                deadline: after(now, grace(pod)),
            })
        };
        if let Some(seconds) = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.active_deadline_seconds)
        {
            let until = after(
                self.started,
                Duration::from_secs(u64::try_from(seconds).unwrap_or_default()),
            );
            if until <= now {
                advance.told.push(notes::deadline_exceeded());
                self.ending = end(Why::DeadlineExceeded);
                return;
            }
            advance.look_at(until);
        }
        let broken = |slot: &Slot<Run>| {
            slot.role == Role::Init && slot.is_over_for(pod) && !slot.succeeded()
        };
        if self.mains().all(|slot| slot.is_over_for(pod)) || self.slots.iter().any(broken) {
            self.ending = end(Why::Completed);
        }
    }

    /// Starts what is to be started, in order.
    fn run<R: Runtime<Run = Run>>(
        &mut self,
        runtime: &R,
        pod: &Pod,
        now: Timestamp,
        advance: &mut Advance,
    ) -> bool {
        let mains_begun = self.mains_begun();
        let mut moved = false;
        for slot in &mut self.slots {
            if slot.role == Role::Init && (mains_begun || slot.succeeded()) {
                continue;
            }
            moved |= slot.want(runtime, pod, now, advance);
            if !mains_begun && !slot.lets_others_begin() {
                break;
            }
        }
        moved
    }

    /// Stops what runs: first what the pod is for, then its sidecars, the last one first.
    fn stop<R: Runtime<Run = Run>>(
        &mut self,
        runtime: &R,
        pod: &Pod,
        ending: Ending,
        now: Timestamp,
        advance: &mut Advance,
    ) -> bool {
        let left = Duration::try_from(
            ending
                .deadline
                .duration_since(now)
                .max(SignedDuration::ZERO),
        )
        .unwrap_or_default();
        let (mut running, mut moved) = (false, false);
        for slot in self
            .slots
            .iter_mut()
            .filter(|slot| slot.role != Role::Sidecar)
        {
            moved |= slot.stop(runtime, pod, now, left, advance);
            running |= slot.is_running();
        }
        if let Some(sidecar) = self
            .slots
            .iter_mut()
            .rev()
            .find(|slot| slot.role == Role::Sidecar && slot.is_running())
            && !running
        {
            moved |= sidecar.stop(runtime, pod, now, left, advance);
        }
        moved
    }
}
