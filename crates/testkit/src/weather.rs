//! Faults between an operator and its server, as switches.
//!
//! In: requests of an account. Out: the same requests, later, refused, or not at all.
//! Holds: the server never notices; in fair weather nothing is changed.

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

use crate::record::Seen;

/// An answer as it reaches an account.
pub(crate) type Answer = Response<UnsyncBoxBody<Bytes, BoxError>>;

/// What can go wrong between an operator and its server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// Watch events come late, so that caches are old.
    StaleCache,
    /// Every watch is cut after each write.
    WatchLoss,
    /// The first try of each change is answered with a conflict, and has no effect.
    Conflicts,
    /// After each write the server cannot be reached for a while, and its watches are cut.
    Restarts,
}

impl Fault {
    /// All of them.
    pub const ALL: [Self; 4] = [
        Self::StaleCache,
        Self::WatchLoss,
        Self::Conflicts,
        Self::Restarts,
    ];
}

/// How late events are with [`Fault::StaleCache`]: longer than a controller takes to decide, shorter than it waits for its own write.
const LAG: Duration = Duration::from_secs(2);

/// How many frames of a watch are on their way at most; more wait on the server's side.
const FRAMES_MAX: usize = 1024;

/// How long a server is away with [`Fault::Restarts`].
const AWAY: Duration = Duration::from_secs(20);

/// The faults of one account. Clones are the same weather.
#[derive(Clone, Debug, Default)]
pub(crate) struct Weather(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    fault: Option<Fault>,
    /// Cuts the watches that run now.
    cut: CancellationToken,
    /// The server cannot be reached before.
    away_until: Option<Instant>,
    /// Changes that were answered with a conflict and will be let through next.
    refused: HashSet<String>,
}

impl Weather {
    pub(crate) fn set(&self, fault: Option<Fault>) {
        *self.state() = State {
            fault,
            ..State::default()
        };
    }

    /// Whether a request gets through; otherwise what its sender sees.
    pub(crate) fn meet(&self, asked: Option<&Seen>) -> Option<Result<Answer, BoxError>> {
        let mut state = self.state();
        if state.away_until.is_some_and(|until| Instant::now() < until) {
            return Some(Err("connection refused".into()));
        }
        let asked = asked.filter(|asked| {
            state.fault == Some(Fault::Conflicts) && matches!(asked.verb, "update" | "patch")
        })?;
        let change = format!(
            "{} {}/{} {}/{}",
            asked.verb, asked.group, asked.resource, asked.namespace, asked.name
        );
        let had_its_turn = state.refused.remove(&change);
        (!had_its_turn).then(|| {
            state.refused.insert(change);
            Ok(conflict(asked))
        })
    }

    /// What comes of a write that succeeded.
    pub(crate) fn wrote(&self) {
        let mut state = self.state();
        if matches!(state.fault, Some(Fault::WatchLoss | Fault::Restarts)) {
            std::mem::take(&mut state.cut).cancel();
        }
        if state.fault == Some(Fault::Restarts) {
            state.away_until = Some(Instant::now() + AWAY);
        }
    }

    /// Nothing gets through for so long.
    pub(crate) fn lose_server(&self, time: Duration) {
        let mut state = self.state();
        std::mem::take(&mut state.cut).cancel();
        state.away_until = Some(Instant::now() + time);
    }

    /// An answer of the server, as it reaches the account.
    pub(crate) fn answered(&self, asked: Option<&Seen>, answer: Response<Body>) -> Answer {
        let answer = answer.map(|body| body.map_err(BoxError::from));
        if asked.is_none_or(|asked| asked.verb != "watch") {
            return answer.map(|body| body.boxed_unsync());
        }
        let (cut, late) = {
            let state = self.state();
            (state.cut.clone(), state.fault == Some(Fault::StaleCache))
        };
        answer.map(|body| {
            let frames = body
                .into_data_stream()
                .map_ok(http_body::Frame::data)
                .take_until(cut.cancelled_owned());
            if late {
                StreamBody::new(frames.map(delayed).buffered(FRAMES_MAX)).boxed_unsync()
            } else {
                StreamBody::new(frames).boxed_unsync()
            }
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

async fn delayed<T>(value: T) -> T {
    sleep(LAG).await;
    value
}

fn conflict(asked: &Seen) -> Answer {
    let message = format!(
        "Operation cannot be fulfilled on {} {:?}: the object has been modified; please apply your changes to the latest version and try again",
        asked.resource, asked.name
    );
    let status = json!({"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure", "message": message, "reason": "Conflict", "code": 409});
    let body = Full::from(status.to_string()).map_err(|never| match never {});
    let mut answer = Response::new(body.boxed_unsync());
    *answer.status_mut() = StatusCode::CONFLICT;
    answer
}
