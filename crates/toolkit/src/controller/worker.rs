//! Worker: takes a key, calls the reconciler, acts on the result.
//!
//! In: keys. Out: reconciles, counted, timed and traced.
//! Guarantees: a panic or a timeout is an error of that key only; a worker that is stopped finishes
//! the reconcile it has begun and takes no other key.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures_util::FutureExt;
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;
use tracing::{Instrument, Span, field, info_span};

use super::action::{Action, Error, Retry};
use super::request::{ReconcileFn, RequestParts};
use crate::ObjectKey;
use crate::client::ClientConfig;
use crate::clock::Clock;
use crate::events::EventRecorder;
use crate::gate::Core;
use crate::informer::InformerHandle;
use crate::leader::Leadership;
use crate::queue::{AddOpts, Cause, CauseEvent, Item};
use crate::trace::{ERROR_MAX_BYTES, TraceEvent};

/// How soon a key that waits for its own writes is checked again, if no event of them enqueues it.
const GATE_CHECK_PERIOD: Duration = Duration::from_secs(1);

/// The longest back-off of a key whose reconcile failed because the API server did not respond: it
/// may respond again at any time, and no event enqueues the key then.
const UNREACHABLE_BACKOFF_MAX: Duration = Duration::from_secs(5);

pub(super) struct Worker {
    pub(super) core: Arc<Core>,
    pub(super) kind: Arc<str>,
    pub(super) reconciler: ReconcileFn,
    /// The cache of the reconciled kind.
    pub(super) primary: Arc<InformerHandle>,
    pub(super) client: Arc<ClientConfig>,
    pub(super) recorder: EventRecorder,
    pub(super) clock: Clock,
    pub(super) leadership: Leadership,
    pub(super) timeout: Option<Duration>,
}

impl Worker {
    /// Works until it is stopped, or until the queue is shut down and empty.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        while let Some(Some(item)) = stop.run_until_cancelled(self.core.queue.get()).await {
            self.handle(item, &stop).await;
        }
    }

    async fn handle(&self, item: Item<'_, ObjectKey>, stop: &CancellationToken) {
        let now = Instant::now();
        let controller = &self.core.name;
        // Before the object is read: what is read afterwards contains the own writes.
        if let Some(until) = self.core.held_until(item.key(), now) {
            tracing::debug!(%controller, object = %item.key(), "the cache is older than the last write, waiting");
            return self
                .core
                .put_back(&item, (until - now).min(GATE_CHECK_PERIOD));
        }
        let span = info_span!(
            "reconcile",
            %controller,
            object = %item.key(),
            causes = %item.causes(),
            attempt = item.failures() + 1,
            result = field::Empty
        );
        let reconcile = async {
            self.core.metrics.active_workers.inc();
            let result = self.call(&item, stop).await;
            self.core.metrics.active_workers.dec();
            let FollowUp {
                result: name,
                requeue_after,
                error,
            } = self.follow_up(&item, result);
            Span::current().record("result", name);
            let took = now.elapsed();
            self.core.metrics.time.observe(took.as_secs_f64());
            self.core.metrics.result(name).inc();
            self.core.trace.record(|| TraceEvent::Finished {
                controller: controller.clone(),
                key: item.key().clone(),
                result: name,
                took,
                requeue_after,
                error,
            });
        };
        reconcile.instrument(span).await;
    }

    async fn call(
        &self,
        item: &Item<'_, ObjectKey>,
        stop: &CancellationToken,
    ) -> Result<Action, Error> {
        let attempt = item.failures() + 1;
        self.core.trace.record(|| TraceEvent::Started {
            controller: self.core.name.clone(),
            key: item.key().clone(),
            causes: item.causes().clone(),
            attempt,
            waited: item.waited(),
        });
        // Read here and not taken from an event: the cache may be newer than the change that
        // enqueued the key.
        let object = self.primary.core().get(item.key());
        let request = RequestParts {
            key: item.key().clone(),
            causes: item.causes().clone(),
            attempt,
            client: self
                .client
                .for_reconcile(self.core.clone(), item.key().clone()),
            recorder: self.recorder.clone(),
            clock: self.clock,
            term: self.leadership.term(),
            stop: stop.clone(),
        };
        // Unwind safety is the responsibility of the reconciler; the toolkit shares no state with
        // it that a panic could leave half changed.
        let call = AssertUnwindSafe(async { (self.reconciler)(request, object).await });
        let call = call.catch_unwind();
        let result = match self.timeout {
            Some(limit) => timeout(limit, call).await.map_err(|_| limit),
            None => Ok(call.await),
        };
        match result {
            Ok(Ok(result)) => result,
            Ok(Err(panic)) => {
                self.core.metrics.panics.inc();
                let text = panic.downcast_ref::<&str>().copied();
                let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
                let message = text.unwrap_or("no message");
                Err(Error::retry(format!("the reconcile panicked: {message}")))
            }
            Err(limit) => {
                self.core.metrics.timeouts.inc();
                Err(Error::retry(format!(
                    "the reconcile took longer than {limit:?}"
                )))
            }
        }
    }

    /// Acts on the result of a reconcile.
    fn follow_up(&self, item: &Item<'_, ObjectKey>, result: Result<Action, Error>) -> FollowUp {
        let queue = &self.core.queue;
        let error = match result {
            Ok(Action {
                requeue_after: None,
                ..
            }) => {
                queue.forget(item.key());
                return FollowUp::default();
            }
            Ok(Action {
                requeue_after,
                reason,
            }) => {
                queue.forget(item.key());
                let opts = self.retry(item, reason);
                self.core.add(
                    item.key().clone(),
                    AddOpts {
                        after: requeue_after,
                        ..opts
                    },
                );
                return FollowUp {
                    result: "requeue_after",
                    requeue_after,
                    error: None,
                };
            }
            Err(error) => error,
        };
        let failed = |result| FollowUp {
            result,
            requeue_after: None,
            error: Some(bounded(&error)),
        };
        let opts = self.retry(item, None);
        let opts = match error.when_retried() {
            Retry::Never => {
                queue.forget(item.key());
                self.core.metrics.errors.inc();
                self.core.metrics.terminal_errors.inc();
                tracing::error!(%error, "reconcile failed, not retried until the object changes");
                return failed("error");
            }
            Retry::BackOff => AddOpts {
                rate_limited: true,
                backoff_max: error.is_unreachable().then_some(UNREACHABLE_BACKOFF_MAX),
                ..opts
            },
            Retry::After(delay) => AddOpts {
                after: Some(delay),
                ..opts
            },
        };
        self.core.add(item.key().clone(), opts);
        // A conflict is the normal result of an old cache, so no error is logged or counted for it.
        if error.is_conflict() {
            tracing::debug!(%error, "the object changed since it was read, retrying");
            return failed("requeue");
        }
        self.core.metrics.errors.inc();
        tracing::error!(%error, "reconcile failed, retrying");
        failed("error")
    }

    fn retry(&self, item: &Item<'_, ObjectKey>, reason: Option<Arc<str>>) -> AddOpts {
        let cause = Cause {
            kind: self.kind.clone(),
            key: item.key().clone(),
            resource_version: None,
            event: CauseEvent::Retry,
            reason,
            at: Instant::now(),
        };
        AddOpts {
            // A retry keeps the priority: an object of the initial list does not overtake new
            // changes by failing.
            priority: item.priority(),
            cause: Some(cause),
            ..AddOpts::default()
        }
    }
}

/// How a reconcile ended.
struct FollowUp {
    /// The result, as controller-runtime's metrics name it.
    result: &'static str,
    /// The delay that the reconciler requested.
    requeue_after: Option<Duration>,
    /// Why it failed.
    error: Option<Arc<str>>,
}

impl Default for FollowUp {
    fn default() -> Self {
        Self {
            result: "success",
            requeue_after: None,
            error: None,
        }
    }
}

/// The text of an error, cut to the length that the trace keeps.
fn bounded(error: &Error) -> Arc<str> {
    let text = error.to_string();
    let end = (0..=text.len().min(ERROR_MAX_BYTES))
        .rev()
        .find(|end| text.is_char_boundary(*end));
    text[..end.unwrap_or_default()].into()
}
