//! The end of the process that started this one.
//!
//! A test that is killed stops nothing: without this, its control plane runs until the machine is
//! restarted.
//!
//! Guarantee: a process whose parent ends returns within [`INTERVAL`], whatever thread of the parent
//! started it. `PR_SET_PDEATHSIG` follows that thread, and Go ends threads.

use std::time::Duration;

use tokio::time::interval;

/// How often the parent is looked at.
const INTERVAL: Duration = Duration::from_millis(500);

/// The parent of this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Parent(#[cfg(unix)] Option<rustix::process::Pid>);

impl Parent {
    /// The parent at this moment.
    pub(super) fn current() -> Self {
        Self(
            #[cfg(unix)]
            rustix::process::getppid(),
        )
    }

    /// Resolves when the parent ended.
    pub(super) async fn ended(self) {
        let mut ticks = interval(INTERVAL);
        while Self::current() == self {
            ticks.tick().await;
        }
    }
}
