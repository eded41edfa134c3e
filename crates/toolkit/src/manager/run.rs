//! The order of start and stop.
//!
//! Start: servers → caches → `Always` runnables → lease → controllers and `LeaderElection`
//! runnables. Stop: controllers and `LeaderElection` runnables → lease → `Always` runnables → event
//! writers → caches → servers.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::future::BoxFuture;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{sleep, timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::runnable::{BoxRunnable, RunnableGroup};
use super::{Manager, ManagerError, endpoints};
use crate::cluster::Cluster;
use crate::informer::InformerHandle;
use crate::leader::{LeaderElectionOptions, LeaderElector, unique_identity};
#[cfg(feature = "webhooks")]
use crate::webhook::{LeadingWebhooks, WebhookServer};

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
        #[cfg_attr(not(feature = "webhooks"), expect(unused_mut))] mut self,
        stop: CancellationToken,
        ready: Option<oneshot::Sender<()>>,
    ) -> Result<(), ManagerError> {
        // All mistakes are returned together, before any request is sent.
        let errors = self.cluster.errors.take();
        if !errors.is_empty() {
            return Err(ManagerError::setup(&errors));
        }
        let cache_sync_timeout = self.controllers.cache_sync_timeout();
        #[cfg(feature = "webhooks")]
        let (webhook_server, webhooks) = self.bind_webhooks().await?.unzip();
        let Self {
            cluster,
            options,
            controllers,
            runnables,
            health,
            synced,
            leadership,
            leadership_sender,
            ..
        } = self;
        let Cluster {
            client,
            factory,
            informers,
            writers,
            ..
        } = cluster;

        // A failure anywhere stops the rest as a stop from outside does.
        let stop = stop.child_token();
        let failure = FirstFailure::new(stop.clone());
        let election = options.leader_election.clone();
        let elector = election.map(|election| {
            let unique = || unique_identity(options.identity.as_deref(), &options.rng);
            let election = LeaderElectionOptions {
                identity: Some(election.identity.clone().unwrap_or_else(unique)),
                ..election
            };
            LeaderElector::new(
                client,
                election,
                options.clock,
                options.rng.clone(),
                options.metrics.clone(),
            )
        });
        // Contradicting options of the election are found before anything is started.
        let elector = elector.transpose()?;
        let servers_closing = CancellationToken::new();
        let mut servers = Tasks::new();
        for (address, endpoint) in endpoints::addresses(&options) {
            // Bound here and not in the task: an address in use is an error of the start.
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
        #[cfg(feature = "webhooks")]
        if let Some(server) = webhook_server {
            let closing = servers_closing.clone();
            servers.spawn(async move {
                server.run(closing).await;
                Ok(())
            });
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
            // A standby is ready as well: its caches are filled, and a rolling update must not wait
            // for its election.
            synced.store(true, Ordering::SeqCst);
            for work in always {
                always_tasks.spawn(work(always_stop.clone(), tracker.clone()));
            }
            let lead = |term| async {
                drop(term);
                // Before any controller writes what the webhooks are for.
                #[cfg(feature = "webhooks")]
                if let Some(webhooks) = webhooks {
                    match stop.run_until_cancelled(webhooks.register()).await {
                        Some(Ok(())) => leading.push(Box::new(|stop, _| {
                            Box::pin(async move {
                                webhooks.run(stop).await;
                                Ok(())
                            })
                        })),
                        Some(Err(error)) => {
                            failure.record(Ok(Err(error.into())));
                            return;
                        }
                        None => return,
                    }
                }
                if let Some(ready) = ready {
                    // The receiver may not be interested.
                    _ = ready.send(());
                }
                run_all(leading, &mut leading_tasks, &tracker, &stop, &failure).await;
            };
            let led = async {
                match elector {
                    None => {
                        leadership_sender.lead(None);
                        lead(None).await;
                    }
                    Some(elector) => {
                        let elector = elector.with_sender(leadership_sender, leadership);
                        elector.run(stop.clone(), |term| lead(Some(term))).await?;
                    }
                }
                Ok(())
            };
            let ended = tokio::select! {
                biased;
                // Never completes by itself; a failure cancels `stop`, which ends the other branch
                // in order.
                () = failure.watch(&mut always_tasks) => Ok(()),
                led = led => led,
            };
            // After the leading work has ended, which may depend on them.
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
            () = failure.watch(&mut servers) => Ok(()),
            ended = working => ended,
            () = late => Err(ManagerError::GracefulShutdown(grace)),
        };
        stop.cancel();
        // The first failure is the cause; what ended afterwards is its consequence.
        let ended = failure.take().map_or(ended, Err);

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
        // After controllers and runnables, so that the events of their last reconciles are written.
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
        // The handles stop their informers, so they are kept until the factory has ended.
        drop(informers);
        servers_closing.cancel();
        let servers_closed = timeout(CLOSE_TIMEOUT, join_all(&mut servers)).await;
        ended.and(aborted)?;
        for closed in [caches_closed, servers_closed] {
            closed.unwrap_or(Err(ManagerError::GracefulShutdown(CLOSE_TIMEOUT)))?;
        }
        Ok(())
    }

    /// Binds the server of the declared webhooks; `None` if there are none.
    #[cfg(feature = "webhooks")]
    async fn bind_webhooks(
        &mut self,
    ) -> Result<Option<(WebhookServer, LeadingWebhooks)>, ManagerError> {
        let webhooks = std::mem::take(&mut self.webhooks);
        let options = self.options.webhooks.clone();
        let bound = webhooks.bind(options, &mut self.cluster).await?;
        if let Some((server, _)) = &bound {
            self.readyz_check("webhook", server.readiness());
        }
        Ok(bound)
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

/// Runs all work until it has ended and the Manager is stopped.
async fn run_all(
    work: Vec<Work>,
    tasks: &mut Tasks,
    tracker: &TaskTracker,
    stop: &CancellationToken,
    failure: &FirstFailure,
) {
    for work in work {
        tasks.spawn(work(stop.clone(), tracker.clone()));
    }
    while let Some(ended) = tasks.join_next().await {
        failure.record(ended);
    }
    stop.cancelled().await;
}

/// The first failure of a part. It stops the Manager, which returns it once the rest has ended.
struct FirstFailure {
    stop: CancellationToken,
    error: Mutex<Option<ManagerError>>,
}

impl FirstFailure {
    fn new(stop: CancellationToken) -> Self {
        Self {
            stop,
            error: Mutex::default(),
        }
    }

    fn record(&self, ended: Result<Result<(), ManagerError>, JoinError>) {
        if let Err(error) = ended.map_err(ManagerError::from).and_then(|ended| ended) {
            self.lock().get_or_insert(error);
            self.stop.cancel();
        }
    }

    /// Records the failures of tasks that run for as long as the Manager does. Never returns.
    async fn watch(&self, tasks: &mut Tasks) {
        while let Some(ended) = tasks.join_next().await {
            self.record(ended);
        }
        std::future::pending().await
    }

    fn take(&self) -> Option<ManagerError> {
        self.lock().take()
    }

    fn lock(&self) -> MutexGuard<'_, Option<ManagerError>> {
        self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }
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
