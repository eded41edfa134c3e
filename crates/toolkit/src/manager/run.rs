//! The order of start and stop.
//!
//! Start: servers → caches → `Always` runnables → lease → controllers and `LeaderElection` runnables.
//! Stop: controllers and `LeaderElection` runnables → lease → `Always` runnables → event writers →
//! caches → servers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::runnable::{BoxRunnable, RunnableGroup};
use super::{Manager, ManagerError, endpoints};
use crate::informer::InformerHandle;
use crate::leader::LeaderElector;

/// How long caches, event writers and servers may take to stop; they have little to finish.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(5);

/// Work of one group. Its own tasks are tracked, so that they can be awaited after it was aborted.
type Work = Box<
    dyn FnOnce(CancellationToken, TaskTracker) -> BoxFuture<'static, Result<(), ManagerError>>
        + Send,
>;

type Tasks = JoinSet<Result<(), ManagerError>>;

impl Manager {
    /// Runs until stopped; `ready` is sent once controllers run.
    pub(super) fn run_with(
        self,
        stop: CancellationToken,
        ready: Option<oneshot::Sender<()>>,
    ) -> BoxFuture<'static, Result<(), ManagerError>> {
        Box::pin(self.run_in_order(stop, ready))
    }

    async fn run_in_order(
        self,
        stop: CancellationToken,
        ready: Option<oneshot::Sender<()>>,
    ) -> Result<(), ManagerError> {
        let errors = self.errors.take();
        if !errors.is_empty() {
            return Err(ManagerError::setup(&errors));
        }
        let cache_sync_timeout = self.cache_sync_timeout();
        let synced = Arc::new(AtomicBool::new(false));
        self.add_cache_check(synced.clone());
        let Self {
            client,
            options,
            factory,
            informers,
            controllers,
            writers,
            runnables,
            health,
            leadership,
            leadership_sender,
            ..
        } = self;

        // A failure anywhere stops the rest as a stop from outside does.
        let stop = stop.child_token();
        let servers_closing = CancellationToken::new();
        let mut servers = Tasks::new();
        for (address, endpoint) in endpoints::addresses(&options) {
            let listener = TcpListener::bind(address).await;
            let listener = listener.map_err(|source| ManagerError::Bind { address, source })?;
            let metrics = options.metrics.clone();
            let closing = servers_closing.clone();
            servers.spawn(endpoints::serve(
                listener,
                endpoint,
                health.clone(),
                metrics,
                closing,
            ));
        }
        let mut always: Vec<Work> = Vec::new();
        let mut leading: Vec<Work> = Vec::new();
        for (name, group, runnable) in runnables {
            match group {
                RunnableGroup::Servers => {
                    servers.spawn(run_named(name, runnable, servers_closing.clone()));
                }
                RunnableGroup::Always => always.push(work(name, runnable)),
                RunnableGroup::LeaderElection => leading.push(work(name, runnable)),
            }
        }
        for controller in controllers {
            leading.push(Box::new(move |stop, tracker| {
                Box::pin(async move { Ok(controller.run(stop, &tracker).await?) })
            }));
        }

        let caches_closing = factory.stop_token();
        let mut caches = JoinSet::new();
        caches.spawn(factory.clone().run());
        let writers_closing = CancellationToken::new();
        let mut event_writers = JoinSet::new();
        for writer in writers {
            event_writers.spawn(writer.run(writers_closing.clone()));
        }

        let grace = options.graceful_shutdown_timeout;
        let mut always_tasks = Tasks::new();
        let mut leading_tasks = Tasks::new();
        let tracker = TaskTracker::new();
        let always_stop = CancellationToken::new();
        let working = async {
            let waiting = wait_for_caches(&informers, &factory, cache_sync_timeout);
            match stop.run_until_cancelled(waiting).await {
                None => return Ok(()),
                Some(result) => result?,
            }
            synced.store(true, Ordering::SeqCst);
            for work in always {
                always_tasks.spawn(work(always_stop.clone(), tracker.clone()));
            }
            let lead = |term| {
                if let Some(ready) = ready {
                    // The receiver may not be interested.
                    _ = ready.send(());
                }
                drop(term);
                run_all(leading, &mut leading_tasks, &tracker, stop.clone())
            };
            let led = async {
                match options.leader_election {
                    None => {
                        leadership_sender.lead(None);
                        lead(None).await
                    }
                    Some(mut election) => {
                        election.identity = election.identity.or(options.identity);
                        let elector = LeaderElector::new(
                            client,
                            election,
                            options.clock,
                            options.rng,
                            options.metrics,
                        )?;
                        let elector = elector.with_sender(leadership_sender, leadership);
                        let led = elector.run(stop.clone(), |term| lead(Some(term))).await?;
                        led.unwrap_or(Ok(()))
                    }
                }
            };
            let ended = tokio::select! {
                biased;
                Some(ended) = first_failure(&mut always_tasks) => Err(ended),
                led = led => led,
            };
            always_stop.cancel();
            ended.and(join_all(&mut always_tasks).await)
        };
        let late = async {
            stop.cancelled().await;
            sleep(grace).await;
        };
        let ended = tokio::select! {
            biased;
            Some(ended) = caches.join_next() => ended.map_err(ManagerError::from),
            Some(error) = first_failure(&mut servers) => Err(error),
            ended = working => ended,
            () = late => Err(ManagerError::GracefulShutdown(grace)),
        };
        stop.cancel();

        // What was aborted has ended before the caches that it may read.
        let aborted = timeout(CLOSE_TIMEOUT, async {
            leading_tasks.shutdown().await;
            always_tasks.shutdown().await;
            tracker.close();
            tracker.wait().await;
        });
        let aborted = aborted
            .await
            .map_err(|_| ManagerError::GracefulShutdown(CLOSE_TIMEOUT));
        writers_closing.cancel();
        let written = timeout(CLOSE_TIMEOUT, async {
            while event_writers.join_next().await.is_some() {}
        });
        if written.await.is_err() {
            tracing::warn!("events were dropped: they were not written within {CLOSE_TIMEOUT:?}");
        }
        caches_closing.cancel();
        let caches_closed = timeout(CLOSE_TIMEOUT, async {
            while caches.join_next().await.is_some() {}
            Ok(())
        });
        let caches_closed = caches_closed.await;
        drop(informers);
        servers_closing.cancel();
        let servers_closed = timeout(CLOSE_TIMEOUT, join_all(&mut servers)).await;
        ended.and(aborted)?;
        for closed in [caches_closed, servers_closed] {
            closed.unwrap_or(Err(ManagerError::GracefulShutdown(CLOSE_TIMEOUT)))?;
        }
        Ok(())
    }

    /// The longest that any controller waits for its caches.
    fn cache_sync_timeout(&self) -> Option<Duration> {
        self.controllers
            .iter()
            .map(|controller| controller.cache_sync_timeout())
            .max()
    }

    fn add_cache_check(&self, synced: Arc<AtomicBool>) {
        let check = move || match synced.load(Ordering::SeqCst) {
            true => Ok(()),
            false => Err("not synced".to_owned()),
        };
        self.health
            .add_readyz("informer-sync".to_owned(), Arc::new(check));
    }
}

/// Waits for the informers of the Manager, and for those that were requested of its factory.
async fn wait_for_caches(
    informers: &[Arc<InformerHandle>],
    factory: &crate::informer::SharedInformerFactory,
    limit: Option<Duration>,
) -> Result<(), ManagerError> {
    let synced = factory.wait_for_cache_sync();
    let Some(limit) = limit else {
        return Ok(synced.await?);
    };
    match timeout(limit, synced).await {
        Ok(synced) => Ok(synced?),
        Err(_) => {
            let missing = informers.iter().filter(|informer| !informer.has_synced());
            Err(ManagerError::SyncTimeout {
                resources: missing
                    .map(|informer| informer.core().name.clone())
                    .collect(),
                limit,
            })
        }
    }
}

fn work(name: String, runnable: BoxRunnable) -> Work {
    Box::new(move |stop, _| Box::pin(run_named(name, runnable, stop)))
}

async fn run_named(
    name: String,
    runnable: BoxRunnable,
    stop: CancellationToken,
) -> Result<(), ManagerError> {
    let ended = runnable(stop).await;
    ended.map_err(|source| ManagerError::Runnable { name, source })
}

/// Runs all work until it has ended; the first failure stops the rest.
async fn run_all(
    work: Vec<Work>,
    tasks: &mut Tasks,
    tracker: &TaskTracker,
    stop: CancellationToken,
) -> Result<(), ManagerError> {
    let stop_all = stop.child_token();
    for work in work {
        tasks.spawn(work(stop_all.clone(), tracker.clone()));
    }
    let mut first = Ok(());
    while let Some(ended) = tasks.join_next().await {
        let ended = ended.map_err(ManagerError::from).and_then(|ended| ended);
        if ended.is_err() {
            stop_all.cancel();
        }
        first = first.and(ended);
    }
    // A Manager without controllers, or whose work has ended, runs until it is stopped.
    if first.is_ok() {
        stop.cancelled().await;
    }
    first
}

/// The first failure of tasks that run for as long as the Manager does; never returns without one.
async fn first_failure(tasks: &mut Tasks) -> Option<ManagerError> {
    while let Some(ended) = tasks.join_next().await {
        if let Err(error) = ended.map_err(ManagerError::from).and_then(|ended| ended) {
            return Some(error);
        }
    }
    std::future::pending().await
}

async fn join_all(tasks: &mut Tasks) -> Result<(), ManagerError> {
    let mut first = Ok(());
    while let Some(ended) = tasks.join_next().await {
        first = first.and(ended.map_err(ManagerError::from).and_then(|ended| ended));
    }
    first
}

impl InformerHandle {
    fn has_synced(&self) -> bool {
        self.core().status.borrow().synced
    }
}
