//! Worker: takes a key, calls the reconciler, tells the queue what follows.
//!
//! In: keys. Out: reconciles, counted, timed and traced.
//! Holds: a panic or a time-out is an error of that key only; when told to stop, a worker ends what it began and takes nothing more.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, field, info_span};

use super::core::Core;
use super::outcome::{Failure, Outcome, ReconcileResult};
use super::reconcile::{Reconcile, Request, Writes};
use crate::{AddOpts, Cause, CauseEvent, Item, ObjectKey, TraceEvent};

/// How soon a key that waits for its own writes is looked at again, if no event of them wakes it.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Reads the cache of the reconciled kind.
type Get<K> = Arc<dyn Fn(&ObjectKey) -> Option<Arc<K>> + Send + Sync>;

pub(super) struct Worker<K, R> {
    pub(super) core: Arc<Core>,
    pub(super) kind: Arc<str>,
    pub(super) reconciler: Arc<R>,
    pub(super) get: Get<K>,
    pub(super) time_max: Option<Duration>,
}

impl<K: Send + Sync + 'static, R: Reconcile<K>> Worker<K, R> {
    /// Works until told to stop, or until the queue is shut down and empty.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        while let Some(Some(item)) = stop.run_until_cancelled(self.core.queue.get()).await {
            self.handle(item, &stop).await;
        }
    }

    async fn handle(&self, item: Item<'_, ObjectKey>, stop: &CancellationToken) {
        let now = Instant::now();
        if let Some(until) = self.core.held_until(item.key(), now) {
            tracing::debug!(controller = %self.core.name, object = %item.key(), "the cache is older than the last write, waiting for it");
            return self.core.put_back(&item, (until - now).min(LOOK_AGAIN));
        }
        let span = info_span!("reconcile", controller = %self.core.name, object = %item.key(), causes = %item.causes(), attempt = item.failures() + 1, result = field::Empty);
        async {
            self.core.metrics.active_workers.inc();
            let result = self.call(&item, stop).await;
            self.core.metrics.active_workers.dec();
            let word = self.follow_up(&item, result);
            Span::current().record("result", word);
            let took = now.elapsed();
            self.core.metrics.time.observe(took.as_secs_f64());
            self.core.metrics.result(word).inc();
            self.core.trace.record(|| TraceEvent::Ended {
                controller: self.core.name.clone(),
                key: item.key().clone(),
                result: word,
                took,
            });
        }
        .instrument(span)
        .await;
    }

    async fn call(&self, item: &Item<'_, ObjectKey>, stop: &CancellationToken) -> ReconcileResult {
        let (key, causes, attempt) = (
            item.key().clone(),
            item.causes().clone(),
            item.failures() + 1,
        );
        self.core.trace.record(|| TraceEvent::Started {
            controller: self.core.name.clone(),
            key: key.clone(),
            causes: causes.to_string(),
            attempt,
        });
        let writes = Writes {
            core: self.core.clone(),
            reconciling: key.clone(),
            kind: (),
        };
        let request = Request {
            object: (self.get)(&key),
            key,
            causes,
            attempt,
            stop: stop.clone(),
            writes,
        };
        let call =
            AssertUnwindSafe(async { self.reconciler.reconcile(request).await }).catch_unwind();
        let answer = match self.time_max {
            Some(limit) => timeout(limit, call).await.map_err(|_| limit),
            None => Ok(call.await),
        };
        match answer {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => {
                self.core.metrics.panics.inc();
                let words = panic
                    .downcast_ref::<&str>()
                    .map(ToString::to_string)
                    .or_else(|| panic.downcast_ref::<String>().cloned());
                Err(Failure::retry(format!(
                    "the reconcile panicked: {}",
                    words.as_deref().unwrap_or("no message")
                )))
            }
            Err(limit) => {
                self.core.metrics.timeouts.inc();
                Err(Failure::retry(format!(
                    "the reconcile took longer than {limit:?}"
                )))
            }
        }
    }

    /// Does what follows from the result, and names it as controller-runtime does.
    fn follow_up(&self, item: &Item<'_, ObjectKey>, result: ReconcileResult) -> &'static str {
        let queue = &self.core.queue;
        match result {
            Ok(Outcome::Done) => {
                queue.forget(item.key());
                "success"
            }
            Ok(Outcome::RequeueAfter(delay)) => {
                queue.forget(item.key());
                self.core.add(
                    item.key().clone(),
                    AddOpts {
                        after: Some(delay),
                        ..self.retry(item)
                    },
                );
                "requeue_after"
            }
            Err(failure) => {
                self.core.metrics.errors.inc();
                if failure.is_permanent() {
                    queue.forget(item.key());
                    self.core.metrics.terminal_errors.inc();
                    tracing::error!(%failure, "reconcile failed, not retried until the object changes");
                } else {
                    self.core.add(
                        item.key().clone(),
                        AddOpts {
                            rate_limited: true,
                            ..self.retry(item)
                        },
                    );
                    tracing::error!(%failure, "reconcile failed, retrying");
                }
                "error"
            }
        }
    }

    fn retry(&self, item: &Item<'_, ObjectKey>) -> AddOpts {
        let cause = Cause {
            kind: self.kind.clone(),
            key: item.key().clone(),
            resource_version: None,
            event: CauseEvent::Retry,
            at: Instant::now(),
        };
        AddOpts {
            priority: item.priority(),
            cause: Some(cause),
            ..AddOpts::default()
        }
    }
}
