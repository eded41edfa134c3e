//! Container of a pod: its instances, restarts and back-off.
//!
//! In: the status of its instance, whether it should run. Out: starts and stops of instances,
//! events.
//! Guarantees: at most one instance at a time; the restart count increases when the restarted
//! container is running.

use std::borrow::Cow;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::super::runtime::{
    ContainerConfig, ContainerType, Exit, InstanceState, ProbeType, Runtime,
};
use super::super::time::after;
use super::backoff::{Backoff, MAX_DELAY};
use super::ephemeral;
use super::events::{self, PodEvent};
use super::pod_worker::SyncResult;
use super::restart_policy;

/// The default of `terminationGracePeriodSeconds`.
pub(super) const DEFAULT_GRACE_PERIOD: Duration = Duration::from_secs(30);

/// How long a failed pull is shown as `ErrImagePull` before it is shown as `ImagePullBackOff`.
pub(super) const PULL_ERROR_SHOWN: Duration = Duration::from_secs(2);

/// Exit code and reason of containers that were lost with their node.
const LOST_EXIT_CODE: i32 = 255;
const LOST_REASON: &str = "Unknown";

/// The reason of containers whose program could not be started, as container runtimes report it.
const START_ERROR: &str = "StartError";

/// Exit code, reason and message of containers that were removed because all containers of their
/// pod are restarted.
const REMOVED_EXIT_CODE: i32 = 137;
const REMOVED_REASON: &str = "RestartingAllContainers";
const REMOVED_MESSAGE: &str = "The container is removed because RestartAllContainers in place";

/// The reason of a start that failed because of the image.
const IMAGE_PULL_FAILED: &str = "ErrImagePull";

/// One container of a pod.
pub(crate) struct PodContainer<I> {
    pub(crate) container_type: ContainerType,
    position: Position,
    pub(crate) phase: ContainerPhase<I>,
    /// How the previous instance ended.
    pub(crate) last_exit: Option<Exit>,
    pub(crate) restart_count: i32,
    failures: i32,
    backoff: Backoff,
    /// The longest back-off of its node.
    pub(super) backoff_max: Duration,
}

/// Where a container is in the spec of its pod.
#[derive(Clone, Debug)]
enum Position {
    /// The index in `spec.initContainers` or `spec.containers`, which do not change.
    Index(usize),
    /// The name in `spec.ephemeralContainers`, in which others are inserted.
    Name(String),
}

/// The phase of a container.
pub(crate) enum ContainerPhase<I> {
    /// Not started since the pod sandbox was created.
    Waiting,
    /// It has an instance; `observed` is its last observed state.
    Active {
        instance: I,
        observed: InstanceState,
        stopping: bool,
    },
    /// It could not be started and is tried again after the back-off.
    StartFailed {
        at: Timestamp,
        reason: &'static str,
        message: String,
    },
    /// Its instance has ended. It may be restarted after the back-off.
    Terminated(Exit),
}

/// The containers of a pod with their types and indexes, in start order.
pub(crate) fn containers(pod: &Pod) -> impl Iterator<Item = (ContainerType, usize, &Container)> {
    let init_containers = pod
        .spec
        .iter()
        .flat_map(|spec| spec.init_containers.iter().flatten())
        .enumerate();
    let init_containers = init_containers.map(|(index, container)| {
        let container_type = if container.restart_policy.as_deref() == Some("Always") {
            ContainerType::Sidecar
        } else {
            ContainerType::Init
        };
        (container_type, index, container)
    });
    let app_containers = pod
        .spec
        .iter()
        .flat_map(|spec| &spec.containers)
        .enumerate();
    init_containers
        .chain(app_containers.map(|(index, container)| (ContainerType::App, index, container)))
}

impl<I: Send + 'static> PodContainer<I> {
    /// A container or init container.
    pub(super) fn new(container_type: ContainerType, index: usize) -> Self {
        Self::at(container_type, Position::Index(index))
    }

    pub(super) fn ephemeral(name: &str) -> Self {
        Self::at(ContainerType::Ephemeral, Position::Name(name.to_owned()))
    }

    fn at(container_type: ContainerType, position: Position) -> Self {
        Self {
            container_type,
            position,
            phase: ContainerPhase::Waiting,
            last_exit: None,
            restart_count: 0,
            failures: 0,
            backoff: Backoff::default(),
            backoff_max: MAX_DELAY,
        }
    }

    /// Recovers the container from its status. An instance that started before the node booted is
    /// lost.
    pub(super) fn recover<R: Runtime<Instance = I>>(
        mut self,
        runtime: &R,
        pod: &Pod,
        status: &ContainerStatus,
        node_booted_at: Timestamp,
        now: Timestamp,
    ) -> Self {
        let state = status.state.as_ref();
        let last_terminated = status
            .last_state
            .as_ref()
            .and_then(|state| state.terminated.as_ref());
        self.restart_count = status.restart_count;
        // Every restart counts as a failure, because the status has only their sum.
        self.failures = status.restart_count;
        self.last_exit = last_terminated.map(|terminated| exit_of(terminated, now));
        if let Some(running) = state.and_then(|state| state.running.as_ref()) {
            let since = running.started_at.as_ref().map_or(now, |time| time.0);
            let spec = self.spec(pod);
            self.phase = match runtime
                .find(&self.config(pod, &spec), since)
                .filter(|_| since >= node_booted_at)
            {
                Some(instance) => ContainerPhase::Active {
                    instance,
                    observed: InstanceState::Running {
                        since,
                        started: false,
                        ready: false,
                    },
                    stopping: false,
                },
                None => ContainerPhase::Terminated(Exit {
                    started_at: Some(since),
                    finished_at: now,
                    exit_code: LOST_EXIT_CODE,
                    reason: LOST_REASON.into(),
                    message: None,
                }),
            };
        } else if let Some(terminated) = state.and_then(|state| state.terminated.as_ref()) {
            self.phase = ContainerPhase::Terminated(exit_of(terminated, now));
        } else if let Some(exit) = self.last_exit.take() {
            // It waits in CrashLoopBackOff.
            self.backoff = Backoff::after_restarts(self.restart_count, exit.finished_at);
            self.phase = ContainerPhase::Terminated(exit);
        }
        self.reset_after_reboot(pod, node_booted_at);
        self
    }

    /// A reboot destroys the pod sandbox, so lost containers start again without back-off, and init
    /// containers run again.
    fn reset_after_reboot(&mut self, pod: &Pod, node_booted_at: Timestamp) {
        let ContainerPhase::Terminated(exit) = &self.phase else {
            return;
        };
        // The exit code alone is not enough: a container may exit with 255 by itself.
        let is_lost = exit.exit_code == LOST_EXIT_CODE && exit.reason == LOST_REASON;
        let starts_again = match self.container_type {
            ContainerType::Init => is_lost || exit.finished_at < node_booted_at,
            ContainerType::Sidecar | ContainerType::App | ContainerType::Ephemeral => {
                is_lost && self.should_restart_after(exit, pod)
            }
        };
        if starts_again {
            self.last_exit = Some(exit.clone());
            self.phase = ContainerPhase::Waiting;
        }
    }

    /// The container in the pod's spec.
    pub(crate) fn spec<'a>(&self, pod: &'a Pod) -> Cow<'a, Container> {
        let spec = pod.spec.as_ref().expect("a synced pod has a spec");
        let in_list = "the container was read from this list, of which nothing is removed";
        match (&self.position, self.container_type) {
            (Position::Index(index), ContainerType::App) => Cow::Borrowed(&spec.containers[*index]),
            (Position::Index(index), _) => {
                let init_containers = spec.init_containers.as_ref().expect(in_list);
                Cow::Borrowed(&init_containers[*index])
            }
            (Position::Name(name), _) => {
                let mut containers = spec.ephemeral_containers.iter().flatten();
                let found = containers.find(|it| it.name == *name).expect(in_list);
                Cow::Owned(ephemeral::container(found))
            }
        }
    }

    /// Whether it is the ephemeral container of that name.
    pub(super) fn is_ephemeral(&self, name: &str) -> bool {
        matches!(&self.position, Position::Name(it) if it == name)
    }

    /// How its instance ended, if it has ended.
    pub(crate) fn exit(&self) -> Option<&Exit> {
        match &self.phase {
            ContainerPhase::Terminated(exit) => Some(exit),
            _ => None,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.phase, ContainerPhase::Active { .. })
    }

    pub(crate) fn succeeded(&self) -> bool {
        self.exit().is_some_and(|exit| exit.exit_code == 0)
    }

    /// Whether it was started since the last boot of its node.
    pub(crate) fn has_started(&self) -> bool {
        !matches!(self.phase, ContainerPhase::Waiting)
    }

    /// Whether an instance of it has been running.
    pub(crate) fn has_run(&self) -> bool {
        let is_past_creation = matches!(
            &self.phase,
            ContainerPhase::Active { observed, .. } if *observed != InstanceState::Creating
        );
        is_past_creation
            || self.last_exit.is_some()
            || self.exit().is_some_and(|exit| exit.started_at.is_some())
    }

    /// Whether the next container in start order may start.
    pub(crate) fn allows_next_container(&self) -> bool {
        match self.container_type {
            ContainerType::Init => self.succeeded(),
            ContainerType::Sidecar => matches!(
                self.phase,
                ContainerPhase::Active {
                    observed: InstanceState::Running { started: true, .. },
                    ..
                }
            ),
            ContainerType::App | ContainerType::Ephemeral => true,
        }
    }

    /// Whether its instance has ended and the restart policy starts no other.
    pub(crate) fn will_not_restart(&self, pod: &Pod) -> bool {
        self.exit()
            .is_some_and(|exit| !self.should_restart_after(exit, pod))
    }

    /// When the terminated container is restarted, if it is, and its back-off.
    pub(crate) fn next_restart(&self, pod: &Pod) -> Option<(Timestamp, Duration)> {
        let exit = self
            .exit()
            .filter(|exit| self.should_restart_after(exit, pod))?;
        Some((
            self.backoff.due(exit.finished_at, self.backoff_max),
            self.backoff.delay(exit.finished_at, self.backoff_max),
        ))
    }

    /// Applies the restart policy. Mirrors `ShouldContainerBeRestarted`.
    fn should_restart_after(&self, exit: &Exit, pod: &Pod) -> bool {
        let container = self.spec(pod);
        restart_policy::should_restart(self.container_type, &container, pod, exit.exit_code)
    }

    /// Whether its end restarts all containers of the pod.
    pub(super) fn restarts_all_containers(&self, pod: &Pod) -> bool {
        self.exit().is_some_and(|exit| {
            restart_policy::restarts_all_containers(&self.spec(pod), exit.exit_code)
        })
    }

    /// Removes its instance, which has ended, so that it starts again without back-off.
    pub(super) fn remove(&mut self, pod: &Pod) {
        let is_source = self.restarts_all_containers(pod);
        let phase = std::mem::replace(&mut self.phase, ContainerPhase::Waiting);
        if let ContainerPhase::Terminated(exit) = phase {
            let removed = Exit {
                exit_code: REMOVED_EXIT_CODE,
                reason: REMOVED_REASON.into(),
                message: Some(REMOVED_MESSAGE.into()),
                ..exit.clone()
            };
            self.last_exit = Some(if is_source { exit } else { removed });
        }
        self.backoff = Backoff::default();
    }

    fn config<'a>(&self, pod: &'a Pod, container: &'a Container) -> ContainerConfig<'a> {
        // The restart count increases only once the restarted container is running.
        let is_starting = matches!(
            self.phase,
            ContainerPhase::Waiting
                | ContainerPhase::Active {
                    observed: InstanceState::Creating,
                    ..
                }
        );
        let is_restart = is_starting && self.last_exit.is_some();
        ContainerConfig {
            pod,
            container,
            container_type: self.container_type,
            attempt: self.restart_count + i32::from(is_restart),
            failures: self.failures,
        }
    }

    /// Reads the status of its instance; returns whether it changed.
    pub(super) fn observe<R: Runtime<Instance = I>>(
        &mut self,
        runtime: &R,
        pod: &Pod,
        now: Timestamp,
        result: &mut SyncResult,
    ) -> bool {
        let spec = self.spec(pod);
        let config = self.config(pod, &spec);
        let container = config.container;
        let ContainerPhase::Active {
            instance,
            observed,
            stopping,
        } = &mut self.phase
        else {
            return false;
        };
        let status = runtime.status(&config, instance, now);
        if let Some(next_change) = status.next_change {
            result.sync_at(next_change);
        }
        match status.state {
            InstanceState::Exited(exit) => {
                let was_stopped = *stopping;
                // It ended before it was observed running.
                if *observed == InstanceState::Creating && exit.started_at.is_some() {
                    result.events.extend(start_events(container, &exit));
                    self.restart_count += i32::from(self.last_exit.is_some());
                }
                // A container that was stopped on request did not fail.
                self.failures += i32::from(exit.exit_code != 0 && !was_stopped);
                if !was_stopped
                    && self.should_restart_after(&exit, pod)
                    && !self.backoff.delay(exit.finished_at, MAX_DELAY).is_zero()
                {
                    result.events.push(events::back_off(container, pod));
                }
                self.phase = ContainerPhase::Terminated(exit);
                true
            }
            InstanceState::StartFailed {
                at,
                reason,
                message,
            } => {
                self.failures += 1;
                result
                    .events
                    .extend(events::start_failed(container, reason, &message));
                // The back-off of failed starts begins with the first failure.
                self.backoff.next(at, at);
                self.phase = ContainerPhase::StartFailed {
                    at,
                    reason,
                    message,
                };
                true
            }
            InstanceState::Unhealthy {
                probe, ref message, ..
            } if !*stopping => {
                let unhealthy = events::unhealthy(container, probe, message);
                result.events.extend(unhealthy);
                // Mirrors killContainer with the grace period of the probe or the pod.
                let grace_period = probe_grace_period(container, probe);
                let grace_period = grace_period.unwrap_or_else(|| termination_grace_period(pod));
                runtime.stop(instance, now, grace_period);
                *observed = status.state;
                *stopping = true;
                true
            }
            state => {
                let changed = *observed != state;
                if *observed == InstanceState::Creating && changed {
                    result.events.extend([
                        events::pulled(container),
                        events::created(),
                        events::started(),
                    ]);
                    self.restart_count += i32::from(self.last_exit.is_some());
                }
                *observed = state;
                changed
            }
        }
    }

    /// Starts the container if it should run and its back-off has ended; returns whether it was
    /// started.
    pub(super) fn ensure_started<R: Runtime<Instance = I>>(
        &mut self,
        runtime: &R,
        pod: &Pod,
        now: Timestamp,
        result: &mut SyncResult,
    ) -> bool {
        let due = match &self.phase {
            ContainerPhase::Active { .. } => return false,
            ContainerPhase::Waiting => now,
            ContainerPhase::StartFailed { at, reason, .. } => {
                let shown_until = after(*at, PULL_ERROR_SHOWN);
                if shown_until > now {
                    result.sync_at(shown_until);
                }
                // The back-off of image pulls has no other maximum.
                let max = match *reason {
                    IMAGE_PULL_FAILED => MAX_DELAY,
                    _ => self.backoff_max,
                };
                self.backoff.due(*at, max)
            }
            ContainerPhase::Terminated(exit) if self.should_restart_after(exit, pod) => {
                self.backoff.due(exit.finished_at, self.backoff_max)
            }
            ContainerPhase::Terminated(_) => return false,
        };
        if due > now {
            result.sync_at(due);
            return false;
        }
        let phase = std::mem::replace(&mut self.phase, ContainerPhase::Waiting);
        if let ContainerPhase::Terminated(exit) = phase {
            // Mirrors doBackOff: the delay grows when the container is started, not when it ends.
            self.backoff.next(exit.finished_at, now);
            self.last_exit = Some(exit);
        }
        let instance = runtime.start(&self.config(pod, &self.spec(pod)), now);
        self.phase = ContainerPhase::Active {
            instance,
            observed: InstanceState::Creating,
            stopping: false,
        };
        true
    }

    /// Stops its instance; returns whether this is the first stop request.
    pub(super) fn stop<R: Runtime<Instance = I>>(
        &mut self,
        runtime: &R,
        pod: &Pod,
        now: Timestamp,
        grace_period: Duration,
        result: &mut SyncResult,
    ) -> bool {
        if let ContainerPhase::Active { instance, .. } = &mut self.phase {
            runtime.stop(instance, now, grace_period);
        }
        self.mark_stopping(events::stopping(&self.spec(pod)), result)
    }

    /// Runs the preStop hook of a sidecar that is stopped when its turn comes; returns whether this
    /// is the first stop request.
    pub(super) fn pre_stop<R: Runtime<Instance = I>>(
        &mut self,
        runtime: &R,
        pod: &Pod,
        now: Timestamp,
        grace_period: Duration,
        result: &mut SyncResult,
    ) -> bool {
        if let ContainerPhase::Active { instance, .. } = &mut self.phase {
            runtime.pre_stop(instance, now, grace_period);
        }
        self.mark_stopping(events::stopping(&self.spec(pod)), result)
    }

    /// Stops its instance without a grace period, because all containers of the pod are restarted;
    /// returns whether this is the first stop request.
    pub(super) fn stop_for_restart<R: Runtime<Instance = I>>(
        &mut self,
        runtime: &R,
        now: Timestamp,
        result: &mut SyncResult,
    ) -> bool {
        if let ContainerPhase::Active { instance, .. } = &mut self.phase {
            runtime.stop(instance, now, Duration::ZERO);
        }
        self.mark_stopping(events::killing_for_restart(), result)
    }

    fn mark_stopping(&mut self, event: PodEvent, result: &mut SyncResult) -> bool {
        let ContainerPhase::Active { stopping, .. } = &mut self.phase else {
            return false;
        };
        let is_first = !std::mem::replace(stopping, true);
        if is_first {
            result.events.push(event);
        }
        is_first
    }
}

/// The events of a container that was started and has ended.
fn start_events(container: &Container, exit: &Exit) -> [PodEvent; 3] {
    let started = if exit.reason == START_ERROR {
        events::failed(exit.message.as_deref().unwrap_or_default())
    } else {
        events::started()
    };
    [events::pulled(container), events::created(), started]
}

/// The `terminationGracePeriodSeconds` of a probe, which precedes that of the pod.
fn probe_grace_period(container: &Container, probe: ProbeType) -> Option<Duration> {
    let probe = match probe {
        ProbeType::Liveness => container.liveness_probe.as_ref(),
        ProbeType::Startup => container.startup_probe.as_ref(),
    };
    let seconds = probe.and_then(|probe| probe.termination_grace_period_seconds)?;
    u64::try_from(seconds).ok().map(Duration::from_secs)
}

/// The pod's `terminationGracePeriodSeconds`.
pub(crate) fn termination_grace_period(pod: &Pod) -> Duration {
    let seconds = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.termination_grace_period_seconds);
    seconds.map_or(DEFAULT_GRACE_PERIOD, |seconds| {
        Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
    })
}

fn exit_of(terminated: &ContainerStateTerminated, now: Timestamp) -> Exit {
    let timestamp = |time: &Option<Time>| time.as_ref().map(|time| time.0);
    Exit {
        started_at: timestamp(&terminated.started_at),
        finished_at: timestamp(&terminated.finished_at).unwrap_or(now),
        exit_code: terminated.exit_code,
        reason: terminated.reason.clone().unwrap_or_default(),
        message: terminated.message.clone(),
    }
}
