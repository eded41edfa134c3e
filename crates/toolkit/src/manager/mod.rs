//! Manager: starts everything in order, stops everything in order, and owns every task.
//!
//! In: informers, controllers, background work. Out: one call that returns when all of it has ended.
//! Holds: nothing works before its caches are synced and the lease is held; nothing outlives [`Manager::run`].
//!
//! Start: pages (health, metrics) → caches → leader election → controllers and background work.
//! Stop: controllers and background work → lease → caches → pages.

mod health; // what the pages say
mod pages; // the pages over HTTP
mod signal; // Ctrl-C and SIGTERM

use std::fmt;
use std::future::Future;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use kube::{Client, Resource};
use thiserror::Error;
use tokio::net::TcpListener;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{
    Controller, ControllerError, Entropy, LeaderElector, LeaderError, LeaderOptions, Metrics,
    SharedInformer, SharedInformerFactory, SyncError, WallClock,
};
pub use health::{Check, Health};
use signal::Signals;

/// How long controllers may take to end what they began, as in controller-runtime.
const GRACE: Duration = Duration::from_secs(30);

/// How long caches and pages may take to stop; they have nothing to finish.
const CLOSING_MAX: Duration = Duration::from_secs(5);

/// Settings of a manager.
#[derive(Clone, Debug)]
pub struct ManagerOptions {
    /// Where `/healthz`, `/readyz` and `/metrics` are served; nowhere unless set.
    pub pages: Option<SocketAddr>,
    /// Which lease to hold before working; none unless set. Caches fill before, so that a standby is warm.
    pub leader: Option<LeaderOptions>,
    /// How long controllers may take to end what they began.
    pub grace: Duration,
    /// Where metrics go; give the same to the controllers.
    pub metrics: Metrics,
    /// Where jitter comes from.
    pub entropy: Entropy,
    /// The time written into the lease.
    pub clock: WallClock,
}

impl Default for ManagerOptions {
    fn default() -> Self {
        Self {
            pages: None,
            leader: None,
            grace: GRACE,
            metrics: Metrics::new(),
            entropy: Entropy::from_os(),
            clock: WallClock::system(),
        }
    }
}

/// Why a manager ended other than by being stopped.
#[derive(Debug, Error)]
pub enum ManagerError {
    /// The pages cannot be served.
    #[error("cannot serve health and metrics on {address}: {source}; choose another address")]
    Pages {
        /// Where.
        address: SocketAddr,
        /// Why.
        source: std::io::Error,
    },
    /// A cache cannot be filled.
    #[error("a cache cannot be filled: {0}")]
    Sync(#[from] SyncError),
    /// A cache is run by somebody else too.
    #[error(transparent)]
    Cache(#[from] crate::AlreadyRun),
    /// A controller cannot go on.
    #[error(transparent)]
    Controller(#[from] ControllerError),
    /// Background work failed.
    #[error("{name} failed: {source}")]
    Background {
        /// Its name.
        name: String,
        /// Why.
        source: Box<dyn std::error::Error + Send + Sync>,
    },
    /// The lease cannot be held.
    #[error(transparent)]
    Leader(#[from] LeaderError),
    /// Something did not end in time after being told to stop, and was cut off.
    #[error("not everything ended within {0:?} after being told to stop; the rest was cut off")]
    Grace(Duration),
    /// A second signal came before everything had ended.
    #[error("interrupted again before everything had ended")]
    Interrupted,
    /// A task panicked, outside of any reconcile.
    #[error("a task ended unexpectedly: {0}")]
    Task(#[from] JoinError),
}

struct Cache {
    check: Check,
    wait: Box<dyn Fn() -> BoxFuture<'static, Result<(), SyncError>> + Send + Sync>,
    run: Run,
}

type Run =
    Box<dyn FnOnce(CancellationToken) -> BoxFuture<'static, Result<(), ManagerError>> + Send>;

/// Tasks of its own are tracked, so that somebody can wait for them after it was cut off.
type Work = Box<
    dyn FnOnce(CancellationToken, TaskTracker) -> BoxFuture<'static, Result<(), ManagerError>>
        + Send,
>;

/// Runs caches, controllers and background work of one process.
///
/// One token stops it all; every task is joined before [`run`](Self::run) returns, and dropped with it. If one part
/// fails, the others are stopped in order and the failure is returned.
pub struct Manager {
    client: Client,
    options: ManagerOptions,
    health: Health,
    caches: Vec<Cache>,
    work: Vec<Work>,
}

impl Manager {
    /// A manager with nothing to do yet.
    pub fn new(client: Client, options: ManagerOptions) -> Self {
        Self {
            client,
            options,
            health: Health::default(),
            caches: Vec::new(),
            work: Vec::new(),
        }
    }

    /// Runs an informer. The process is ready only once it is synced. Each informer is given once.
    pub fn cache<K: Resource + Send + Sync + 'static>(
        mut self,
        informer: &SharedInformer<K>,
    ) -> Self {
        self.options.metrics.watch_informer(informer);
        let (a, b, c) = (informer.clone(), informer.clone(), informer.clone());
        let check = Check::new(format!("cache {informer:?}"), move || {
            if a.has_synced() {
                Ok(())
            } else {
                Err("not synced".into())
            }
        });
        self.health.require(check.clone());
        self.caches.push(Cache {
            check,
            wait: Box::new(move || {
                let informer = b.clone();
                Box::pin(async move { informer.wait_for_sync().await })
            }),
            run: Box::new(move |stop| Box::pin(async move { Ok(c.run(stop).await?) })),
        });
        self
    }

    /// Runs the informers of a factory, also those asked for later. The process is ready once the first ones are synced.
    pub fn factory(mut self, factory: &SharedInformerFactory) -> Self {
        factory.report_to(&self.options.metrics);
        let (waited, ran, synced) = (
            factory.clone(),
            factory.clone(),
            Arc::new(AtomicBool::new(false)),
        );
        let seen = synced.clone();
        let check = Check::new("caches", move || {
            if seen.load(Ordering::SeqCst) {
                Ok(())
            } else {
                Err("not synced".into())
            }
        });
        self.health.require(check.clone());
        self.caches.push(Cache {
            check,
            wait: Box::new(move || {
                let (factory, synced) = (waited.clone(), synced.clone());
                Box::pin(async move {
                    factory.wait_for_sync().await?;
                    synced.store(true, Ordering::SeqCst);
                    Ok(())
                })
            }),
            run: Box::new(move |stop| Box::pin(async move { Ok(ran.run(stop).await?) })),
        });
        self
    }

    /// Runs a controller while this process leads.
    pub fn controller(mut self, controller: Controller) -> Self {
        self.work.push(Box::new(move |stop, workers| {
            Box::pin(async move { Ok(controller.run_tracked(stop, &workers).await?) })
        }));
        self
    }

    /// Runs anything else while this process leads. It ends by the token; an error stops the manager.
    pub fn background<F>(
        mut self,
        name: impl Into<String>,
        work: impl FnOnce(CancellationToken) -> F + Send + 'static,
    ) -> Self
    where
        F: Future<Output = Result<(), Box<dyn std::error::Error + Send + Sync>>> + Send + 'static,
    {
        let name = name.into();
        self.work.push(Box::new(move |stop, _| {
            Box::pin(async move {
                work(stop)
                    .await
                    .map_err(|source| ManagerError::Background { name, source })
            })
        }));
        self
    }

    /// One more condition of `/readyz`.
    pub fn ready_when(self, check: Check) -> Self {
        self.health.require(check);
        self
    }

    /// What the pages say, also without serving them.
    pub fn health(&self) -> Health {
        self.health.clone()
    }

    /// Runs until Ctrl-C or SIGTERM; a second one ends it at once.
    ///
    /// # Errors
    /// As [`run`](Self::run), or interrupted twice.
    pub async fn run_until_signal(self) -> Result<(), ManagerError> {
        let (stop, mut signals) = (CancellationToken::new(), Signals::listen());
        let twice = async {
            signals.next().await;
            tracing::info!("stopping; once more ends it at once");
            stop.cancel();
            signals.next().await;
        };
        tokio::select! {
            ended = self.run(stop.clone()) => ended,
            () = twice => Err(ManagerError::Interrupted),
        }
    }

    /// Runs until stopped. All tasks have ended when this returns; dropping the future ends them at once.
    ///
    /// # Errors
    /// A part failed or did not end in time. The others were stopped.
    pub async fn run(self, stop: CancellationToken) -> Result<(), ManagerError> {
        let (closing, mut base) = (CancellationToken::new(), JoinSet::new());
        if let Some(address) = self.options.pages {
            let listener = TcpListener::bind(address)
                .await
                .map_err(|source| ManagerError::Pages { address, source })?;
            base.spawn(pages::serve(
                listener,
                self.health.clone(),
                self.options.metrics.clone(),
                closing.clone(),
            ));
        }
        let caches_closing = CancellationToken::new();
        let mut caches = JoinSet::new();
        let mut waits = Vec::new();
        for cache in self.caches {
            caches.spawn((cache.run)(caches_closing.clone()));
            waits.push((cache.check, cache.wait));
        }
        // Failing anywhere stops the rest like a wish from outside does.
        let stop = stop.child_token();
        let (grace, work, options, client) =
            (self.options.grace, self.work, self.options, self.client);
        let (mut tasks, workers) = (JoinSet::new(), TaskTracker::new());
        let working = async {
            for (check, wait) in &waits {
                match stop.run_until_cancelled(wait()).await {
                    None => return Ok(()),
                    Some(synced) => synced?,
                }
                tracing::debug!(check = check.name(), "synced");
            }
            match options.leader {
                None => work_all(work, &mut tasks, &workers, stop.clone()).await,
                Some(leader) => {
                    let elector = LeaderElector::new(
                        client,
                        leader,
                        options.clock,
                        options.entropy,
                        options.metrics,
                    )?;
                    elector
                        .run(stop.clone(), |_| {
                            work_all(work, &mut tasks, &workers, stop.clone())
                        })
                        .await?
                        .unwrap_or(Ok(()))
                }
            }
        };
        let late = async {
            stop.cancelled().await;
            sleep(grace).await;
        };
        let ended = tokio::select! {
            biased;
            Some(ended) = caches.join_next() => ended.map_err(ManagerError::from).and_then(|ended| ended),
            ended = working => ended,
            () = late => Err(ManagerError::Grace(grace)),
        };
        // What was cut off has ended before the caches go that it may read.
        let cut_off = timeout(CLOSING_MAX, async {
            tasks.shutdown().await;
            workers.close();
            workers.wait().await;
        });
        let cut_off = cut_off.await.map_err(|_| ManagerError::Grace(CLOSING_MAX));
        caches_closing.cancel();
        let closed = timeout(CLOSING_MAX, join_all(caches)).await;
        closing.cancel();
        let pages_closed = timeout(CLOSING_MAX, join_all(base)).await;
        ended.and(cut_off)?;
        for closed in [closed, pages_closed] {
            closed.unwrap_or(Err(ManagerError::Grace(CLOSING_MAX)))?;
        }
        Ok(())
    }
}

impl fmt::Debug for Manager {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Manager")
            .field("options", &self.options)
            .field("caches", &self.caches.len())
            .finish_non_exhaustive()
    }
}

/// Runs all work; the first failure stops the rest.
async fn work_all(
    work: Vec<Work>,
    tasks: &mut JoinSet<Result<(), ManagerError>>,
    workers: &TaskTracker,
    stop: CancellationToken,
) -> Result<(), ManagerError> {
    let stop_all = stop.child_token();
    if work.is_empty() {
        stop.cancelled().await;
    }
    for work in work {
        tasks.spawn(work(stop_all.clone(), workers.clone()));
    }
    let mut first = Ok(());
    while let Some(ended) = tasks.join_next().await {
        let ended = ended.map_err(ManagerError::from).and_then(|ended| ended);
        if ended.is_err() {
            stop_all.cancel();
        }
        first = first.and(ended);
    }
    first
}

async fn join_all(mut tasks: JoinSet<Result<(), ManagerError>>) -> Result<(), ManagerError> {
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
