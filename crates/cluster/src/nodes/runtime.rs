//! Runtime: what runs containers, and the only thing a kubelet does not decide.
//!
//! In: orders to start and to stop. Out: how each run of each container is doing.
//! Holds: a runtime never restarts anything; whether and when is the kubelet's business.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Container, Pod};

/// What a container is for in its pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Runs to its end before the next one.
    Init,
    /// Begins like an init container and stays.
    Sidecar,
    /// What the pod is for.
    Main,
}

/// One start of one container.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Task<'a> {
    pub(crate) pod: &'a Pod,
    pub(crate) container: &'a Container,
    pub(crate) role: Role,
    /// How often it was restarted before.
    pub(crate) attempt: i32,
    /// How many starts and runs of it failed before.
    pub(crate) failures: i32,
}

/// How a run is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum State {
    /// Being prepared.
    Creating,
    /// It cannot be started. The run is over.
    Refused {
        at: Timestamp,
        reason: &'static str,
        message: String,
    },
    /// Running since then.
    Running {
        since: Timestamp,
        started: bool,
        ready: bool,
    },
    /// Its liveness probe fails. It runs until it is stopped.
    Unhealthy { since: Timestamp },
    /// The run is over.
    Exited(Exit),
}

/// The end of a run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Exit {
    /// `None` when it ended before it ran.
    pub(crate) started: Option<Timestamp>,
    pub(crate) finished: Timestamp,
    pub(crate) code: i32,
    pub(crate) reason: String,
}

/// How a run is doing, and when to look again even if nobody says so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Look {
    pub(crate) state: State,
    pub(crate) again: Option<Timestamp>,
}

/// Runs containers. Calls return at once; what takes time is seen by looking.
///
/// The simulated runtime follows a pod's annotations. One of local processes keeps a child in its `Run` and has the
/// kubelet look again, through its trigger, when the child ends.
pub(crate) trait Runtime: Send + Sync + 'static {
    /// One run of one container. Dropping it ends the run without a trace, as a power loss does.
    type Run: Send + 'static;

    /// Begins to run a container.
    fn start(&self, task: &Task<'_>, now: Timestamp) -> Self::Run;

    /// Finds a container that runs since then, begun by an earlier process; `None` if it did not survive.
    fn find(&self, task: &Task<'_>, since: Timestamp) -> Option<Self::Run>;

    /// Asks a run to end, and ends it after the grace period. Asking again can only shorten it.
    fn stop(&self, run: &mut Self::Run, now: Timestamp, grace: Duration);

    /// How a run is doing.
    fn look(&self, task: &Task<'_>, run: &Self::Run, now: Timestamp) -> Look;
}
