//! Faults between a client and the API server.
//!
//! Input: the requests of one account and the server's responses. Output: the same requests and
//! responses, delayed, refused or cut.
//!
//! Guarantee: the server is not affected, and without a fault nothing is changed.

use std::{
    collections::HashSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _};
use http::{Response, StatusCode};
use http_body_util::{BodyExt as _, Full, StreamBody, combinators::UnsyncBoxBody};
use kube::client::Body;
use serde_json::json;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;
use tower::BoxError;

use crate::request_log::RecordedRequest;

/// A response as an account receives it.
pub(crate) type FaultyResponse = Response<UnsyncBoxBody<Bytes, BoxError>>;

/// A fault between an operator and the API server.
///
/// # Example
/// ```
/// use bellerophon_testkit::{Fault, TestCluster};
///
/// # #[tokio::main(flavor = "current_thread", start_paused = true)]
/// # async fn main() {
/// let cluster = TestCluster::api_server_only().await;
/// let account = cluster.service_account("operator", &[]).await;
/// for fault in Fault::ALL {
///     account.inject(Some(fault));
/// }
/// account.inject(None);
/// cluster.stop().await;
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Watch events arrive two seconds late, so that caches are stale.
    StaleCache,
    /// Every watch is closed after each write.
    WatchLoss,
    /// The first attempt of each update and patch has no effect and returns 409 Conflict.
    Conflicts,
    /// After each write the server is unreachable for 20 seconds, and every watch is closed.
    Restarts,
}

impl Fault {
    /// All faults.
    pub const ALL: [Self; 4] = [
        Self::StaleCache,
        Self::WatchLoss,
        Self::Conflicts,
        Self::Restarts,
    ];
}

/// The delay of watch events with [`Fault::StaleCache`]: longer than a reconcile takes, shorter
/// than a controller waits to observe its own write.
const WATCH_DELAY: Duration = Duration::from_secs(2);

/// The maximum number of delayed watch frames; more wait in the server.
const FRAMES_MAX: usize = 1024;

/// How long the server is unreachable with [`Fault::Restarts`].
const RESTART_TIME: Duration = Duration::from_secs(20);

/// The faults of one account. Clones share their state.
#[derive(Clone, Debug, Default)]
pub(crate) struct FaultInjector(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    fault: Option<Fault>,
    /// Closes the open watches.
    close_watches: CancellationToken,
    /// Requests before this time are refused.
    unreachable_until: Option<Instant>,
    /// Writes that were answered with a conflict; their next attempt passes.
    conflicted: HashSet<String>,
}

impl FaultInjector {
    /// Replaces the current fault, and resets the state of the former one.
    pub(crate) fn set(&self, fault: Option<Fault>) {
        // The old token is dropped without being cancelled, so open watches stay open.
        *self.state() = State {
            fault,
            ..State::default()
        };
    }

    /// The response or error that a request receives instead of reaching the server.
    pub(crate) fn intercept(
        &self,
        request: Option<&RecordedRequest>,
    ) -> Option<Result<FaultyResponse, BoxError>> {
        let mut state = self.state();
        if state
            .unreachable_until
            .is_some_and(|until| Instant::now() < until)
        {
            return Some(Err("connection refused".into()));
        }
        let request = request.filter(|request| {
            state.fault == Some(Fault::Conflicts) && matches!(request.verb, "update" | "patch")
        })?;
        let RecordedRequest {
            verb,
            group,
            resource,
            namespace,
            name,
            ..
        } = request;
        // By object and verb, not by body: a controller computes its change again after a conflict.
        let write = format!("{verb} {group}/{resource} {namespace}/{name}");
        let is_retry = state.conflicted.remove(&write);
        (!is_retry).then(|| {
            state.conflicted.insert(write);
            Ok(conflict(request))
        })
    }

    /// Applies the faults that follow a successful write.
    pub(crate) fn after_write(&self) {
        let mut state = self.state();
        if matches!(state.fault, Some(Fault::WatchLoss | Fault::Restarts)) {
            std::mem::take(&mut state.close_watches).cancel();
        }
        if state.fault == Some(Fault::Restarts) {
            state.unreachable_until = Some(Instant::now() + RESTART_TIME);
        }
    }

    /// Closes the open watches and refuses requests for a time.
    pub(crate) fn disconnect(&self, time: Duration) {
        let mut state = self.state();
        std::mem::take(&mut state.close_watches).cancel();
        state.unreachable_until = Some(Instant::now() + time);
    }

    /// A response of the server as the account receives it: watches can be delayed and closed.
    pub(crate) fn response(
        &self,
        request: Option<&RecordedRequest>,
        response: Response<Body>,
    ) -> FaultyResponse {
        let response = response.map(|body| body.map_err(BoxError::from));
        if request.is_none_or(|request| request.verb != "watch") {
            return response.map(|body| body.boxed_unsync());
        }
        let state = self.state();
        let close = state.close_watches.clone();
        let is_delayed = state.fault == Some(Fault::StaleCache);
        // The body outlives this call and must not hold the lock.
        drop(state);
        response.map(|body| {
            let frames = body
                .into_data_stream()
                .map_ok(http_body::Frame::data)
                .take_until(close.cancelled_owned());
            if is_delayed {
                // `buffered` keeps the order of events and lets their delays overlap.
                StreamBody::new(frames.map(delay).buffered(FRAMES_MAX)).boxed_unsync()
            } else {
                StreamBody::new(frames).boxed_unsync()
            }
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn delay<T>(value: T) -> T {
    sleep(WATCH_DELAY).await;
    value
}

/// The Status that kube-apiserver returns when a resource version is no longer current.
fn conflict(request: &RecordedRequest) -> FaultyResponse {
    let message = format!(
        "Operation cannot be fulfilled on {} {:?}: the object has been modified; \
         please apply your changes to the latest version and try again",
        request.resource, request.name
    );
    let status = json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": "Conflict",
        "code": 409,
    });
    let body = Full::from(status.to_string()).map_err(|never| match never {});
    let mut response = Response::new(body.boxed_unsync());
    *response.status_mut() = StatusCode::CONFLICT;
    response
}
