//! Settings of a controller.
//! Guarantees: an unset field inherits the Manager's setting.

use std::time::Duration;

use crate::queue::{Fairness, RateLimit};

/// How long a controller waits for its caches, as in controller-runtime.
const CACHE_SYNC_TIMEOUT: Duration = Duration::from_secs(120);

/// Settings of a controller. `None` inherits from
/// [`ManagerOptions::controller`](crate::manager::ManagerOptions), then from the default.
///
/// ```
/// use std::time::Duration;
///
/// use bellerophon::controller::ControllerOptions;
///
/// let hourly = ControllerOptions {
///     resync_period: Some(Duration::from_secs(3600)),
///     ..ControllerOptions::default()
/// };
/// ```
#[derive(Clone, Debug, Default)]
pub struct ControllerOptions {
    /// How many keys are reconciled concurrently; default: 1.
    pub concurrency: Option<usize>,
    /// How keys of one priority are ordered; default: first in, first out.
    pub fairness: Option<Fairness>,
    /// The back-off of failed keys.
    pub rate_limit: Option<RateLimit>,
    /// How long one reconcile may take; default: no limit.
    pub reconcile_timeout: Option<Duration>,
    /// How long the caches may take to sync; default: 120 s.
    pub cache_sync_timeout: Option<Duration>,
    /// Every object is reconciled again once in this time, at low priority; default: never.
    pub resync_period: Option<Duration>,
    /// The field manager of its writes; default: the name of the controller.
    pub field_manager: Option<String>,
    /// The user agent of its requests; default: that of the Manager's client.
    pub user_agent: Option<String>,
}

impl ControllerOptions {
    /// The fields that are set in `self`, else those of `base`.
    pub(crate) fn or(self, base: &Self) -> Self {
        Self {
            concurrency: self.concurrency.or(base.concurrency),
            fairness: self.fairness.or(base.fairness),
            rate_limit: self.rate_limit.or(base.rate_limit),
            reconcile_timeout: self.reconcile_timeout.or(base.reconcile_timeout),
            cache_sync_timeout: self.cache_sync_timeout.or(base.cache_sync_timeout),
            resync_period: self.resync_period.or(base.resync_period),
            field_manager: self.field_manager.or_else(|| base.field_manager.clone()),
            user_agent: self.user_agent.or_else(|| base.user_agent.clone()),
        }
    }

    pub(super) fn concurrency(&self) -> usize {
        self.concurrency.unwrap_or(1).max(1)
    }

    pub(super) fn cache_sync_timeout(&self) -> Duration {
        self.cache_sync_timeout.unwrap_or(CACHE_SYNC_TIMEOUT)
    }
}
