//! A server in a few maps, with faults on request.
//! In: writes and faults of a test. Out: a source that answers like a Kubernetes API.
//! Holds: versions only grow; a watch tells every change after its version in order, or that the version is forgotten.

use std::{
    collections::{BTreeMap, VecDeque},
    sync::{Arc, Mutex, MutexGuard},
};

use bytes::Bytes;
use futures_util::{FutureExt, StreamExt, future::BoxFuture, stream};
use k8s_openapi::api::core::v1::ConfigMap;
use tokio::sync::watch;

use super::{
    ListPage, ListRequest, ListWatch, ListWatchError, WatchEvent, WatchFrom, WatchRequest,
    WatchStream,
};
use crate::{clock::Rng, key::ObjectKey};

/// How all open watches end, or fail to.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Cut {
    /// The stream ends.
    Ended,
    /// The stream fails.
    Failed(ListWatchError),
    /// The stream stays open and says nothing more.
    Frozen,
}

struct State {
    namespace: String,
    version: u64,
    uids: u64,
    objects: BTreeMap<ObjectKey, ConfigMap>,
    log: Vec<(u64, WatchEvent)>,
    /// Versions below this one are forgotten.
    compacted: u64,
    /// The last cut and its number; streams opened before it suffer it.
    cut: (u64, Cut),
    /// Answers to the next lists and watches, before any real one.
    list_errors: VecDeque<ListWatchError>,
    watch_errors: VecDeque<ListWatchError>,
    /// Watches never say that the initial events ended.
    endless_initial_events: bool,
    /// While set, requests fail at random.
    chaos: Option<Rng>,
    requests: Vec<String>,
}

fn json(object: &ConfigMap) -> Bytes {
    serde_json::to_vec(object)
        .expect("a config map is valid JSON")
        .into()
}

#[derive(Clone)]
pub(crate) struct Scripted {
    state: Arc<Mutex<State>>,
    changed: watch::Sender<()>,
}

impl Scripted {
    /// An empty namespace.
    pub(crate) fn new(namespace: &str) -> Self {
        let state = State {
            namespace: namespace.into(),
            version: 1,
            uids: 0,
            objects: BTreeMap::new(),
            log: Vec::new(),
            compacted: 0,
            cut: (0, Cut::Ended),
            list_errors: VecDeque::new(),
            watch_errors: VecDeque::new(),
            endless_initial_events: false,
            chaos: None,
            requests: Vec::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            changed: watch::Sender::new(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no test panics inside")
    }

    fn write(&self, change: impl FnOnce(&mut State) -> WatchEvent) {
        let mut state = self.lock();
        state.version += 1;
        let event = change(&mut state);
        let version = state.version;
        state.log.push((version, event));
        drop(state);
        self.changed.send_replace(());
    }

    /// Creates or updates.
    pub(crate) fn apply(&self, name: &str) {
        self.write(|state| {
            let key = ObjectKey::namespaced(&*state.namespace, name);
            let mut object = state.objects.get(&key).cloned().unwrap_or_default();
            object.metadata.namespace = key.namespace().map(str::to_owned);
            object.metadata.name = Some(name.into());
            if object.metadata.uid.is_none() {
                state.uids += 1;
                object.metadata.uid = Some(format!("uid-{}", state.uids));
            }
            object.metadata.resource_version = Some(state.version.to_string());
            object.metadata.managed_fields = Some(vec![Default::default()]);
            state.objects.insert(key, object.clone());
            WatchEvent::Applied(json(&object))
        });
    }

    pub(crate) fn delete(&self, name: &str) {
        let key = ObjectKey::namespaced(&*self.lock().namespace, name);
        if !self.lock().objects.contains_key(&key) {
            return;
        }
        self.write(|state| {
            let mut object = state.objects.remove(&key).expect("it was there");
            let version = state.version.to_string();
            object.metadata.resource_version = Some(version);
            WatchEvent::Deleted(json(&object))
        });
    }

    /// Sends something that is no object of the kind.
    pub(crate) fn garble(&self, name: &str) {
        self.write(|state| {
            let object = serde_json::json!({
                "metadata": {
                    "namespace": state.namespace,
                    "name": name,
                    "resourceVersion": state.version.to_string(),
                },
                "data": "garbled",
            });
            WatchEvent::Applied(object.to_string().into())
        });
    }

    pub(crate) fn bookmark(&self) {
        self.write(|state| WatchEvent::Bookmark {
            resource_version: state.version.to_string(),
            ends_initial_events: false,
        });
    }

    /// Ends, breaks or freezes every watch that is open now.
    pub(crate) fn cut(&self, cut: Cut) {
        let mut state = self.lock();
        state.cut = (state.cut.0 + 1, cut);
        drop(state);
        self.changed.send_replace(());
    }

    /// Forgets every version before the newest.
    pub(crate) fn compact(&self) {
        let mut state = self.lock();
        state.compacted = state.version;
    }

    pub(crate) fn fail_lists(&self, errors: impl IntoIterator<Item = ListWatchError>) {
        self.lock().list_errors.extend(errors);
    }

    pub(crate) fn fail_watches(&self, errors: impl IntoIterator<Item = ListWatchError>) {
        self.lock().watch_errors.extend(errors);
    }

    pub(crate) fn never_end_initial_events(&self) {
        self.lock().endless_initial_events = true;
    }

    /// Makes requests fail at random, or with `None` no longer.
    pub(crate) fn chaos(&self, rng: Option<Rng>) {
        self.lock().chaos = rng;
    }

    pub(crate) fn requests(&self) -> Vec<String> {
        self.lock().requests.clone()
    }

    /// Names and versions.
    pub(crate) fn content(&self) -> BTreeMap<ObjectKey, String> {
        let state = self.lock();
        state
            .objects
            .iter()
            .map(|(key, object)| {
                (
                    key.clone(),
                    object.metadata.resource_version.clone().unwrap_or_default(),
                )
            })
            .collect()
    }

    fn next_event(&self, cursor: &mut Cursor) -> Step {
        let state = self.lock();
        if state.cut.0 > cursor.cuts {
            return match &state.cut.1 {
                Cut::Ended => Step::End,
                Cut::Failed(error) => Step::Yield(Box::new(Err(error.clone()))),
                Cut::Frozen => Step::Freeze,
            };
        }
        if let Some(event) = cursor.first.pop_front() {
            return Step::Yield(Box::new(Ok(event)));
        }
        if cursor.version < state.compacted {
            return Step::Yield(Box::new(Err(ListWatchError::Expired("compacted".into()))));
        }
        match state
            .log
            .iter()
            .find(|(version, _)| *version > cursor.version)
        {
            None => Step::Wait,
            Some((version, event)) => {
                cursor.version = *version;
                Step::Yield(Box::new(Ok(event.clone())))
            }
        }
    }
}

impl State {
    fn random_error(&self, kind: u64) -> Option<ListWatchError> {
        let rng = self.chaos.as_ref()?;
        Some(match rng.below(kind) {
            0 => ListWatchError::Unreachable("refused".into()),
            1 => ListWatchError::Busy {
                message: "slow down".into(),
                retry_after: None,
            },
            2 => ListWatchError::TooLarge("from the future".into()),
            3 => ListWatchError::Expired("too old".into()),
            4 => ListWatchError::Other("what?".into()),
            5 => ListWatchError::Rejected("cannot do that".into()),
            6 => ListWatchError::Forbidden("not now".into()),
            _ => return None,
        })
    }

    /// Everything there is, in no order a client may count on, ended by a bookmark.
    fn initial_events(&self) -> VecDeque<WatchEvent> {
        let mut events: VecDeque<_> = self
            .objects
            .values()
            .map(|object| WatchEvent::Applied(json(object)))
            .collect();
        if let Some(rng) = &self.chaos {
            let turns = usize::try_from(rng.below(events.len() as u64)).expect("small");
            events.rotate_left(turns);
        }
        if !self.endless_initial_events {
            events.push_back(WatchEvent::Bookmark {
                resource_version: self.version.to_string(),
                ends_initial_events: true,
            });
        }
        events
    }

    /// A server may tell the last event once more after a reconnect.
    fn repeated(&self, since: u64) -> VecDeque<WatchEvent> {
        let last = self.log.iter().find(|(version, _)| *version == since);
        let wanted = self.chaos.as_ref().is_some_and(|rng| rng.below(2) == 0);
        last.filter(|_| wanted)
            .map(|(_, event)| event.clone())
            .into_iter()
            .collect()
    }
}

struct Cursor {
    version: u64,
    cuts: u64,
    first: VecDeque<WatchEvent>,
}

enum Step {
    Yield(Box<Result<WatchEvent, ListWatchError>>),
    Wait,
    Freeze,
    End,
}

impl ListWatch for Scripted {
    fn list(&self, request: ListRequest) -> BoxFuture<'static, Result<ListPage, ListWatchError>> {
        let mut state = self.lock();
        state.requests.push(format!(
            "list{}",
            request
                .continue_token
                .as_deref()
                .map(|token| format!("+{token}"))
                .unwrap_or_default()
        ));
        let failure = state
            .list_errors
            .pop_front()
            .or_else(|| state.random_error(20));
        let answer = match failure {
            Some(error) => Err(error),
            None => {
                let start: usize = request
                    .continue_token
                    .map_or(0, |token| token.parse().expect("our own token"));
                let limit = request.limit.map_or(usize::MAX, |limit| limit as usize);
                let items: Vec<_> = state
                    .objects
                    .values()
                    .skip(start)
                    .take(limit)
                    .map(json)
                    .collect();
                let end = start + items.len();
                let continue_token = (end < state.objects.len()).then(|| end.to_string());
                Ok(ListPage {
                    items,
                    resource_version: state.version.to_string(),
                    continue_token,
                })
            }
        };
        std::future::ready(answer).boxed()
    }

    fn watch(
        &self,
        request: WatchRequest,
    ) -> BoxFuture<'static, Result<WatchStream, ListWatchError>> {
        let mut state = self.lock();
        let name = match &request.from {
            WatchFrom::InitialEvents => "stream".to_owned(),
            WatchFrom::Version(version) => format!("watch@{version}"),
        };
        state.requests.push(name);
        let failure = state
            .watch_errors
            .pop_front()
            .or_else(|| state.random_error(14));
        let cursor = match (failure, &request.from) {
            (Some(error), _) => Err(error),
            (None, WatchFrom::InitialEvents) => Ok(Cursor {
                version: state.version,
                cuts: state.cut.0,
                first: state.initial_events(),
            }),
            (None, WatchFrom::Version(since)) => match since.parse().expect("our own version") {
                since if since < state.compacted => {
                    Err(ListWatchError::Expired("compacted".into()))
                }
                since => Ok(Cursor {
                    version: since,
                    cuts: state.cut.0,
                    first: state.repeated(since),
                }),
            },
        };
        let (server, changed) = (self.clone(), self.changed.subscribe());
        let events =
            cursor.map(|cursor| stream::unfold((server, changed, Some(cursor)), advance).boxed());
        std::future::ready(events).boxed()
    }
}

type Open = (Scripted, watch::Receiver<()>, Option<Cursor>);

async fn advance(
    (server, mut changed, cursor): Open,
) -> Option<(Result<WatchEvent, ListWatchError>, Open)> {
    let mut cursor = cursor?;
    loop {
        changed.borrow_and_update();
        match server.next_event(&mut cursor) {
            Step::Yield(event) => {
                let cursor = event.is_ok().then_some(cursor);
                return Some((*event, (server, changed, cursor)));
            }
            Step::Wait => changed
                .changed()
                .await
                .expect("the server outlives its watches"),
            Step::Freeze => std::future::pending().await,
            Step::End => return None,
        }
    }
}
