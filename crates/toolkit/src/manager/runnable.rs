//! Runnables: servers and background work of a Manager.

use std::future::Future;

use futures_util::future::BoxFuture;
use tokio_util::sync::CancellationToken;

use crate::error::BoxError;

/// When a runnable runs, as in controller-runtime.
///
/// ```
/// use bellerophon::manager::{Runnable, RunnableGroup};
/// use bellerophon::prelude::*;
/// use tokio_util::sync::CancellationToken;
///
/// fn setup(mgr: &mut Manager) {
///     // Every replica warms its caches; only the leader works with them.
///     let warm = async |stop: CancellationToken| Ok(stop.cancelled().await);
///     mgr.add("warm", warm.in_group(RunnableGroup::Always));
/// }
/// assert_eq!(RunnableGroup::default(), RunnableGroup::LeaderElection);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum RunnableGroup {
    /// From the start, before the caches, to the end: webhook servers, pages.
    Servers,
    /// Once the caches are synced, whether this process leads or not.
    Always,
    /// While this process leads, like controllers. This is the default.
    #[default]
    LeaderElection,
}

/// Something that a [`Manager`](super::Manager) runs beside controllers. Every async function or
/// closure from a [`CancellationToken`] is one.
///
/// It ends when the token is cancelled. If it returns an error, the Manager stops and returns it.
///
/// ```
/// use bellerophon::manager::{Runnable, RunnableGroup};
/// use bellerophon::prelude::*;
/// use tokio_util::sync::CancellationToken;
///
/// fn setup(mgr: &mut Manager) {
///     let serve = async |stop: CancellationToken| Ok(stop.cancelled().await);
///     mgr.add("page", serve.in_group(RunnableGroup::Servers));
/// }
/// ```
pub trait Runnable: Send + 'static {
    /// Runs until the token is cancelled.
    fn start(
        self,
        stop: CancellationToken,
    ) -> impl Future<Output = Result<(), BoxError>> + Send + 'static;

    /// When it runs.
    fn group(&self) -> RunnableGroup {
        RunnableGroup::default()
    }

    /// The same in another group.
    fn in_group(self, group: RunnableGroup) -> InGroup<Self>
    where
        Self: Sized,
    {
        InGroup {
            runnable: self,
            group,
        }
    }
}

impl<F, Fut> Runnable for F
where
    F: FnOnce(CancellationToken) -> Fut + Send + 'static,
    Fut: Future<Output = Result<(), BoxError>> + Send + 'static,
{
    fn start(
        self,
        stop: CancellationToken,
    ) -> impl Future<Output = Result<(), BoxError>> + Send + 'static {
        self(stop)
    }
}

/// A runnable in a group of its user's choice; see [`Runnable::in_group`].
///
/// ```
/// use bellerophon::manager::{InGroup, Runnable, RunnableGroup};
/// # use tokio_util::sync::CancellationToken;
///
/// fn server<R: Runnable>(runnable: R) -> InGroup<R> {
///     runnable.in_group(RunnableGroup::Servers)
/// }
/// # let serve = async |stop: CancellationToken| Ok(stop.cancelled().await);
/// assert_eq!(server(serve).group(), RunnableGroup::Servers);
/// ```
#[derive(Clone, Copy, Debug)]
pub struct InGroup<R> {
    runnable: R,
    group: RunnableGroup,
}

impl<R: Runnable> Runnable for InGroup<R> {
    fn start(
        self,
        stop: CancellationToken,
    ) -> impl Future<Output = Result<(), BoxError>> + Send + 'static {
        self.runnable.start(stop)
    }

    fn group(&self) -> RunnableGroup {
        self.group
    }
}

/// A runnable without its type.
pub(super) type BoxRunnable =
    Box<dyn FnOnce(CancellationToken) -> BoxFuture<'static, Result<(), BoxError>> + Send>;
