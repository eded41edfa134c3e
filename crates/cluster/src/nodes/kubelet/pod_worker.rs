//! Pod worker: the sync of one pod on its node.
//!
//! In: the pod, the status of its container instances, the time. Out: starts and stops of
//! containers, events, the time of the next sync.
//! Guarantees: init containers run one after the other; sidecars start among them and are stopped
//! last, in reverse order; no container is started once the pod terminates.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{ContainerStatus, EphemeralContainer, Pod};

use super::super::runtime::{ContainerType, InstanceState, Runtime};
use super::super::time::{after, remaining};
use super::backoff::MAX_DELAY;
use super::container::{ContainerPhase, PodContainer, containers, termination_grace_period};
use super::events::{self, PodEvent};

/// A pod on its node.
pub(crate) struct PodWorker<I> {
    /// The `startTime` of the pod.
    pub(crate) start_time: Timestamp,
    /// Init containers and sidecars in the order of the spec, then app containers, then ephemeral
    /// containers that the runtime runs.
    pub(crate) containers: Vec<PodContainer<I>>,
    /// Set once the pod terminates.
    pub(crate) termination: Option<Termination>,
    /// Whether a container has ended whose restart policy rules restart all containers, and others
    /// have not been stopped yet.
    pub(crate) restarting_all: bool,
    /// The longest restart back-off on the node.
    pub(crate) backoff_max: Duration,
}

/// Why a pod terminates, and until when its containers may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Termination {
    pub(crate) reason: TerminationReason,
    /// The `deletionGracePeriodSeconds` of the pod.
    grace_seconds: Option<i64>,
    /// The end of the grace period.
    deadline: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TerminationReason {
    /// It has a deletion timestamp.
    Deleted,
    /// It exceeded its `activeDeadlineSeconds`.
    DeadlineExceeded,
    /// Its app containers have ended, or an init container failed, and none is restarted.
    Completed,
}

/// The result of a sync.
#[derive(Debug, Default)]
pub(crate) struct SyncResult {
    pub(crate) events: Vec<PodEvent>,
    /// When the next change is due without an update of the pod.
    pub(crate) next_sync: Option<Timestamp>,
}

impl SyncResult {
    /// Requests a sync at that time, or earlier.
    pub(super) fn sync_at(&mut self, at: Timestamp) {
        self.next_sync = Some(self.next_sync.map_or(at, |known| known.min(at)));
    }
}

impl<I: Send + 'static> PodWorker<I> {
    /// A worker for a pod that was bound to the node, or that an earlier kubelet synced. Container
    /// instances that started before the node booted are lost.
    pub(crate) fn recover<R: Runtime<Instance = I>>(
        runtime: &R,
        pod: &Pod,
        node_booted_at: Timestamp,
        now: Timestamp,
    ) -> Self {
        let status = pod.status.as_ref();
        let recover = |container: PodContainer<I>, name: &str| match container_status(
            pod,
            container.container_type,
            name,
        ) {
            Some(status) => container.recover(runtime, pod, status, node_booted_at, now),
            None => container,
        };
        let containers = containers(pod).map(|(container_type, index, container)| {
            recover(PodContainer::new(container_type, index), &container.name)
        });
        let ephemeral = ephemeral_containers(runtime, pod).iter();
        let ephemeral = ephemeral
            .map(|container| recover(PodContainer::ephemeral(&container.name), &container.name));
        let containers = containers.chain(ephemeral);
        let start_time = status
            .and_then(|status| status.start_time.as_ref())
            .map_or(now, |time| time.0);
        Self {
            start_time,
            containers: containers.collect(),
            termination: None,
            restarting_all: false,
            backoff_max: MAX_DELAY,
        }
    }

    /// Starts and stops containers until nothing changes at this point in time.
    pub(crate) fn sync<R: Runtime<Instance = I>>(
        &mut self,
        runtime: &R,
        pod: &Pod,
        now: Timestamp,
    ) -> SyncResult {
        // A change may allow the next one without any time passing, such as an init container that
        // has completed. The loop ends because instances only move forward.
        let mut result = SyncResult::default();
        loop {
            // Times requested by an earlier pass are outdated.
            result.next_sync = None;
            self.add_ephemeral_containers(runtime, pod);
            for container in &mut self.containers {
                container.backoff_max = self.backoff_max;
            }
            self.check_termination(pod, now, &mut result);
            let mut changed = match self.termination {
                Some(termination) => {
                    self.stop_containers(runtime, pod, termination, now, &mut result)
                }
                None if self.restarting_all => {
                    self.reset_containers(runtime, pod, now, &mut result)
                }
                None => self.start_containers(runtime, pod, now, &mut result),
            };
            for container in &mut self.containers {
                changed |= container.observe(runtime, pod, now, &mut result);
            }
            if !changed {
                return result;
            }
        }
    }

    /// Whether the pod terminates and no container is running.
    pub(crate) fn is_terminated(&self) -> bool {
        self.termination.is_some() && !self.containers.iter().any(PodContainer::is_running)
    }

    /// Whether all init containers have completed and all sidecars have started, now or before the
    /// app containers started.
    pub(crate) fn is_initialized(&self) -> bool {
        self.has_started_app_containers()
            || self
                .containers
                .iter()
                .all(PodContainer::allows_next_container)
    }

    /// Whether the pod sandbox with its network exists: some container is past its creation.
    pub(crate) fn has_sandbox(&self) -> bool {
        self.containers
            .iter()
            .any(|container| match &container.phase {
                ContainerPhase::Waiting => false,
                ContainerPhase::Active { observed, .. } => *observed != InstanceState::Creating,
                ContainerPhase::StartFailed { .. } | ContainerPhase::Terminated(_) => true,
            })
    }

    pub(crate) fn app_containers(&self) -> impl Iterator<Item = &PodContainer<I>> {
        self.containers
            .iter()
            .filter(|container| container.container_type == ContainerType::App)
    }

    fn has_started_app_containers(&self) -> bool {
        self.app_containers().any(PodContainer::has_started)
    }

    /// Adds the ephemeral containers that the pod has got since the last sync.
    fn add_ephemeral_containers<R: Runtime<Instance = I>>(&mut self, runtime: &R, pod: &Pod) {
        for container in ephemeral_containers(runtime, pod) {
            let name = &container.name;
            if !self.containers.iter().any(|it| it.is_ephemeral(name)) {
                self.containers.push(PodContainer::ephemeral(name));
            }
        }
    }

    /// Decides whether the pod terminates.
    fn check_termination(&mut self, pod: &Pod, now: Timestamp, result: &mut SyncResult) {
        if let Some(deletion_timestamp) = &pod.metadata.deletion_timestamp {
            let grace_seconds = pod.metadata.deletion_grace_period_seconds;
            let is_known = self.termination.is_some_and(|termination| {
                termination.reason == TerminationReason::Deleted
                    && termination.grace_seconds == grace_seconds
            });
            // Another delete may have shortened the grace period.
            if !is_known {
                // Mirrors killContainer: the grace period begins when the kubelet observes the
                // deletion. The deletion timestamp has whole seconds only.
                let deadline = grace_seconds.map_or(deletion_timestamp.0, |seconds| {
                    let seconds = u64::try_from(seconds).unwrap_or_default();
                    after(now, Duration::from_secs(seconds))
                });
                self.termination = Some(Termination {
                    reason: TerminationReason::Deleted,
                    grace_seconds,
                    deadline,
                });
            }
            return;
        }
        if self.termination.is_some() {
            return;
        }
        let terminate = |reason| {
            Some(Termination {
                reason,
                grace_seconds: None,
                deadline: after(now, termination_grace_period(pod)),
            })
        };
        if let Some(seconds) = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.active_deadline_seconds)
        {
            let active_deadline = after(
                self.start_time,
                Duration::from_secs(u64::try_from(seconds).unwrap_or_default()),
            );
            if active_deadline <= now {
                result.events.push(events::deadline_exceeded());
                self.termination = terminate(TerminationReason::DeadlineExceeded);
                return;
            }
            result.sync_at(active_deadline);
        }
        self.restarting_all |= self
            .containers
            .iter()
            .any(|container| container.restarts_all_containers(pod));
        if self.restarting_all {
            return;
        }
        let has_failed_init = self.containers.iter().any(|container| {
            container.container_type == ContainerType::Init
                && container.will_not_restart(pod)
                && !container.succeeded()
        });
        let has_completed = self
            .app_containers()
            .all(|container| container.will_not_restart(pod));
        if has_completed || has_failed_init {
            self.termination = terminate(TerminationReason::Completed);
        }
    }

    /// Starts the containers that should run, in order. Mirrors `computePodActions`; returns
    /// whether a container was started.
    fn start_containers<R: Runtime<Instance = I>>(
        &mut self,
        runtime: &R,
        pod: &Pod,
        now: Timestamp,
        result: &mut SyncResult,
    ) -> bool {
        let has_started_app_containers = self.has_started_app_containers();
        let has_sandbox = self.has_sandbox();
        let (ephemeral, others): (Vec<_>, Vec<_>) = self
            .containers
            .iter_mut()
            .partition(|container| container.container_type == ContainerType::Ephemeral);
        let mut changed = false;
        // Mirrors computePodActions: ephemeral containers do not wait for init containers.
        for container in ephemeral.into_iter().filter(|_| has_sandbox) {
            changed |= container.ensure_started(runtime, pod, now, result);
        }
        for container in others {
            // Init containers do not run again once the app containers have started.
            if container.container_type == ContainerType::Init
                && (has_started_app_containers || container.succeeded())
            {
                continue;
            }
            changed |= container.ensure_started(runtime, pod, now, result);
            // Later containers wait for this one.
            if !has_started_app_containers && !container.allows_next_container() {
                break;
            }
        }
        changed
    }

    /// Stops all containers and removes them, so that the pod starts again in its sandbox; returns
    /// whether something changed. Mirrors the `ContainersToReset` of `computePodActions`.
    fn reset_containers<R: Runtime<Instance = I>>(
        &mut self,
        runtime: &R,
        pod: &Pod,
        now: Timestamp,
        result: &mut SyncResult,
    ) -> bool {
        let mut changed = false;
        // Ephemeral containers are not restarted.
        let restarted =
            |container: &&mut PodContainer<I>| container.container_type != ContainerType::Ephemeral;
        for container in self.containers.iter_mut().rev().filter(restarted) {
            changed |= container.stop_for_restart(runtime, now, result);
        }
        if self
            .containers
            .iter_mut()
            .filter(restarted)
            .any(|it| it.is_running())
        {
            return changed;
        }
        for container in self.containers.iter_mut().filter(restarted) {
            container.remove(pod);
        }
        self.restarting_all = false;
        true
    }

    /// Stops running containers: first init and app containers, then the sidecars in reverse order;
    /// returns whether a container was stopped. The preStop hooks of all run concurrently, and the
    /// sidecars do not wait for each other after the grace period. Mirrors `terminationOrdering`.
    fn stop_containers<R: Runtime<Instance = I>>(
        &mut self,
        runtime: &R,
        pod: &Pod,
        termination: Termination,
        now: Timestamp,
        result: &mut SyncResult,
    ) -> bool {
        let grace_period = remaining(now, termination.deadline);
        let has_ended = grace_period.is_zero();
        let mut any_running = false;
        let mut changed = false;
        for container in self
            .containers
            .iter_mut()
            .filter(|container| container.container_type != ContainerType::Sidecar)
        {
            changed |= container.stop(runtime, pod, now, grace_period, result);
            any_running |= container.is_running();
        }
        let sidecars = self.containers.iter_mut().rev().filter(|container| {
            container.container_type == ContainerType::Sidecar && container.is_running()
        });
        for sidecar in sidecars {
            if any_running && !has_ended {
                changed |= sidecar.pre_stop(runtime, pod, now, grace_period, result);
                result.sync_at(termination.deadline);
            } else {
                changed |= sidecar.stop(runtime, pod, now, grace_period, result);
            }
            any_running = true;
        }
        changed
    }
}

/// The ephemeral containers that the runtime starts.
fn ephemeral_containers<'a, R: Runtime>(runtime: &R, pod: &'a Pod) -> &'a [EphemeralContainer] {
    let containers = pod
        .spec
        .as_ref()
        .filter(|_| runtime.runs_ephemeral_containers(pod));
    let containers = containers.and_then(|spec| spec.ephemeral_containers.as_deref());
    containers.unwrap_or_default()
}

/// The current status of a container.
fn container_status<'a>(
    pod: &'a Pod,
    container_type: ContainerType,
    name: &str,
) -> Option<&'a ContainerStatus> {
    let status = pod.status.as_ref()?;
    let statuses = match container_type {
        ContainerType::App => &status.container_statuses,
        ContainerType::Init | ContainerType::Sidecar => &status.init_container_statuses,
        ContainerType::Ephemeral => &status.ephemeral_container_statuses,
    };
    let mut statuses = statuses.iter().flatten();
    statuses.find(|status| status.name == name)
}
