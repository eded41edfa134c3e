//! Slot: one container of a pod, from run to run.
//!
//! In: how its run is doing, and whether it is wanted. Out: orders to the runtime, notes for people.
//! Holds: at most one run at a time; the count of restarts grows when a restarted container runs.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, ContainerStateTerminated, ContainerStatus, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

use super::super::runtime::{Exit, Role, Runtime, State, Task};
use super::super::simulated::after;
use super::backoff::Backoff;
use super::life::Advance;
use super::notes;

/// How long a pod has to end when nothing says so.
pub(super) const GRACE_DEFAULT: Duration = Duration::from_secs(30);

/// How long a failed pull is shown as such, before it is shown as waiting for the next try.
pub(super) const PULL_ERROR_SHOWN: Duration = Duration::from_secs(2);

/// What is seen of containers that were lost with their node.
const LOST: (i32, &str) = (255, "Unknown");

/// One container of a pod.
pub(crate) struct Slot<Run> {
    pub(crate) role: Role,
    /// Where it is in the spec's list of init containers, or of containers.
    index: usize,
    pub(crate) phase: Phase<Run>,
    /// How the run before this one ended.
    pub(crate) last: Option<Exit>,
    pub(crate) restarts: i32,
    failures: i32,
    backoff: Backoff,
}

/// Where a container is in its life.
pub(crate) enum Phase<Run> {
    /// Never started, or to be started as if it never was.
    Waiting,
    /// There is a run; `seen` is what was seen of it last.
    Run {
        run: Run,
        seen: State,
        stopping: bool,
    },
    /// It cannot be started, and is tried again.
    Refused {
        since: Timestamp,
        reason: &'static str,
        message: String,
    },
    /// Its run is over. It stays so, or is restarted.
    Ended(Exit),
}

/// The containers of a pod in the order of its slots, with their place in the spec.
pub(crate) fn containers(pod: &Pod) -> impl Iterator<Item = (Role, usize, &Container)> {
    let inits = pod
        .spec
        .iter()
        .flat_map(|spec| spec.init_containers.iter().flatten())
        .enumerate();
    let inits = inits.map(|(index, container)| {
        let role = if container.restart_policy.as_deref() == Some("Always") {
            Role::Sidecar
        } else {
            Role::Init
        };
        (role, index, container)
    });
    let mains = pod
        .spec
        .iter()
        .flat_map(|spec| &spec.containers)
        .enumerate();
    inits.chain(mains.map(|(index, container)| (Role::Main, index, container)))
}

impl<Run: Send + 'static> Slot<Run> {
    pub(super) fn new(role: Role, index: usize) -> Self {
        Self {
            role,
            index,
            phase: Phase::Waiting,
            last: None,
            restarts: 0,
            failures: 0,
            backoff: Backoff::default(),
        }
    }

    /// The container as its status tells. What ran before the node booted is lost.
    pub(super) fn recovered<R: Runtime<Run = Run>>(
        mut self,
        runtime: &R,
        pod: &Pod,
        status: &ContainerStatus,
        booted: Timestamp,
        now: Timestamp,
    ) -> Self {
        let state = status.state.as_ref();
        let last = status
            .last_state
            .as_ref()
            .and_then(|state| state.terminated.as_ref());
        self.restarts = status.restart_count;
        self.failures = status.restart_count;
        self.last = last.map(|last| exit_of(last, now));
        if let Some(running) = state.and_then(|state| state.running.as_ref()) {
            let since = running.started_at.as_ref().map_or(now, |time| time.0);
            self.phase = match runtime
                .find(&self.task(pod), since)
                .filter(|_| since >= booted)
            {
                Some(run) => Phase::Run {
                    run,
                    seen: State::Running {
                        since,
                        started: false,
                        ready: false,
                    },
                    stopping: false,
                },
                None => Phase::Ended(Exit {
                    started: Some(since),
                    finished: now,
                    code: LOST.0,
                    reason: LOST.1.into(),
                }),
            };
        } else if let Some(terminated) = state.and_then(|state| state.terminated.as_ref()) {
            self.phase = Phase::Ended(exit_of(terminated, now));
        } else if let Some(exit) = self.last.take() {
            self.backoff = Backoff::after_restarts(self.restarts, exit.finished);
            self.phase = Phase::Ended(exit);
        }
        self.reset_if_lost(pod, booted);
        self
    }

    /// A booted node makes the sandboxes of its pods anew: what ran there starts afresh, and so does what prepares it.
    fn reset_if_lost(&mut self, pod: &Pod, booted: Timestamp) {
        let Phase::Ended(exit) = &self.phase else {
            return;
        };
        let lost = exit.code == LOST.0 && exit.reason == LOST.1;
        let again = match self.role {
            Role::Init => lost || exit.finished < booted,
            Role::Sidecar | Role::Main => lost && self.restarts_after(exit, pod),
        };
        if again {
            self.last = Some(exit.clone());
            self.phase = Phase::Waiting;
        }
    }

    /// Its container in the spec.
    pub(crate) fn container<'a>(&self, pod: &'a Pod) -> &'a Container {
        let spec = pod
            .spec
            .as_ref()
            .expect("a pod that is looked after has a spec");
        match self.role {
            Role::Main => &spec.containers[self.index],
            Role::Init | Role::Sidecar => &spec
                .init_containers
                .as_ref()
                .expect("its role comes from this list")[self.index],
        }
    }

    /// How its run ended, if that is over.
    pub(crate) fn ended(&self) -> Option<&Exit> {
        match &self.phase {
            Phase::Ended(exit) => Some(exit),
            _ => None,
        }
    }

    pub(crate) fn is_running(&self) -> bool {
        matches!(self.phase, Phase::Run { .. })
    }

    pub(crate) fn succeeded(&self) -> bool {
        self.ended().is_some_and(|exit| exit.code == 0)
    }

    /// Whether it was started on this boot of its node.
    pub(crate) fn has_begun(&self) -> bool {
        !matches!(self.phase, Phase::Waiting)
    }

    /// Whether it ran at least once.
    pub(crate) fn has_run(&self) -> bool {
        let runs = matches!(&self.phase, Phase::Run { seen, .. } if *seen != State::Creating);
        runs || self.last.is_some() || self.ended().is_some_and(|exit| exit.started.is_some())
    }

    /// Whether containers after it may begin.
    pub(crate) fn lets_others_begin(&self) -> bool {
        match self.role {
            Role::Init => self.succeeded(),
            Role::Sidecar => matches!(
                self.phase,
                Phase::Run {
                    seen: State::Running { started: true, .. },
                    ..
                }
            ),
            Role::Main => true,
        }
    }

    /// Whether its run is over and no other follows, by the policy.
    pub(crate) fn is_over_for(&self, pod: &Pod) -> bool {
        self.ended()
            .is_some_and(|exit| !self.restarts_after(exit, pod))
    }

    /// When it is started again, if it is, and how long it waits for that in all.
    pub(crate) fn restart(&self, pod: &Pod) -> Option<(Timestamp, Duration)> {
        let exit = self.ended().filter(|exit| self.restarts_after(exit, pod))?;
        Some((
            self.backoff.due(exit.finished),
            self.backoff.delay(exit.finished),
        ))
    }

    fn restarts_after(&self, exit: &Exit, pod: &Pod) -> bool {
        let policy = pod
            .spec
            .as_ref()
            .and_then(|spec| spec.restart_policy.as_deref())
            .unwrap_or("Always");
        match (self.role, policy) {
            (Role::Sidecar, _) => true,
            // An init container is through when it succeeded, whatever the policy.
            (Role::Init, "Always") | (_, "OnFailure") => exit.code != 0,
            (_, "Never") => false,
            _ => true,
        }
    }

    fn task<'a>(&self, pod: &'a Pod) -> Task<'a> {
        // A run keeps its number from the order to start it to its end.
        let attempt = if self.last.is_some() {
            self.restarts.max(1)
        } else {
            0
        };
        Task {
            pod,
            container: self.container(pod),
            role: self.role,
            attempt,
            failures: self.failures,
        }
    }

    /// Looks at its run; says whether it is doing otherwise than before.
    pub(super) fn observe<R: Runtime<Run = Run>>(
        &mut self,
        runtime: &R,
        pod: &Pod,
        now: Timestamp,
        advance: &mut Advance,
    ) -> bool {
        let (task, container) = (self.task(pod), self.container(pod));
        let Phase::Run {
            run,
            seen,
            stopping,
        } = &mut self.phase
        else {
            return false;
        };
        let look = runtime.look(&task, run, now);
        if let Some(again) = look.again {
            advance.look_at(again);
        }
        match look.state {
            State::Exited(exit) => {
                let by_itself = !*stopping;
                self.failures += i32::from(exit.code != 0 && by_itself);
                if by_itself
                    && self.restarts_after(&exit, pod)
                    && !self.backoff.delay(exit.finished).is_zero()
                {
                    advance.told.push(notes::back_off(container, pod));
                }
                self.phase = Phase::Ended(exit);
                true
            }
            State::Refused {
                at,
                reason,
                message,
            } => {
                self.failures += 1;
                advance
                    .told
                    .extend(notes::refused(container, reason, &message));
                self.backoff.next(at, at);
                self.phase = Phase::Refused {
                    since: at,
                    reason,
                    message,
                };
                true
            }
            State::Unhealthy { .. } if !*stopping => {
                advance.told.extend(notes::unhealthy(container));
                runtime.stop(run, now, grace(pod));
                (*seen, *stopping) = (look.state, true);
                true
            }
            state => {
                let moved = *seen != state;
                if *seen == State::Creating && moved {
                    advance.told.extend([
                        notes::pulled(container),
                        notes::created(),
                        notes::started(),
                    ]);
                    self.restarts += i32::from(self.last.is_some());
                }
                *seen = state;
                moved
            }
        }
    }

    /// Sees to it that it runs, now or when its back-off is over; says whether it was started.
    pub(super) fn want<R: Runtime<Run = Run>>(
        &mut self,
        runtime: &R,
        pod: &Pod,
        now: Timestamp,
        advance: &mut Advance,
    ) -> bool {
        let due = match &self.phase {
            Phase::Run { .. } => return false,
            Phase::Waiting => now,
            Phase::Refused { since, .. } => {
                let shown = after(*since, PULL_ERROR_SHOWN);
                if shown > now {
                    advance.look_at(shown);
                }
                self.backoff.due(*since)
            }
            Phase::Ended(exit) if self.restarts_after(exit, pod) => self.backoff.due(exit.finished),
            Phase::Ended(_) => return false,
        };
        if due > now {
            advance.look_at(due);
            return false;
        }
        if let Phase::Ended(exit) = &self.phase {
            self.backoff.next(exit.finished, now);
            self.last = Some(exit.clone());
        }
        let run = runtime.start(&self.task(pod), now);
        self.phase = Phase::Run {
            run,
            seen: State::Creating,
            stopping: false,
        };
        true
    }

    /// Asks its run to end; says whether it was not asked before.
    pub(super) fn stop<R: Runtime<Run = Run>>(
        &mut self,
        runtime: &R,
        pod: &Pod,
        now: Timestamp,
        grace: Duration,
        advance: &mut Advance,
    ) -> bool {
        let container = self.container(pod);
        let Phase::Run { run, stopping, .. } = &mut self.phase else {
            return false;
        };
        runtime.stop(run, now, grace);
        let first = !std::mem::replace(stopping, true);
        if first {
            advance.told.push(notes::stopping(container));
        }
        first
    }
}

/// How long the pod's containers may take to end.
pub(super) fn grace(pod: &Pod) -> Duration {
    let seconds = pod
        .spec
        .as_ref()
        .and_then(|spec| spec.termination_grace_period_seconds);
    seconds.map_or(GRACE_DEFAULT, |seconds| {
        Duration::from_secs(u64::try_from(seconds).unwrap_or_default())
    })
}

fn exit_of(terminated: &ContainerStateTerminated, now: Timestamp) -> Exit {
    let time = |time: &Option<Time>| time.as_ref().map(|time| time.0);
    Exit {
        started: time(&terminated.started_at),
        finished: time(&terminated.finished_at).unwrap_or(now),
        code: terminated.exit_code,
        reason: terminated.reason.clone().unwrap_or_default(),
    }
}
