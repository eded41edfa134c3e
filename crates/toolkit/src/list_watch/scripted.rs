//! A scripted API server of one namespace, for tests.
//! In: writes and faults of a test. Out: lists and watches as a Kubernetes API server responds to
//! them.
//! Guarantees: versions only grow; a watch sends every change after its version in order, or that
//! the version was compacted.

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

/// A fault of all open watches.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum WatchFault {
    /// The stream ends.
    Ended,
    /// The stream fails.
    Failed(ListWatchError),
    /// The stream stays open and sends nothing more.
    Frozen,
}

struct State {
    namespace: String,
    version: u64,
    uids: u64,
    objects: BTreeMap<ObjectKey, ConfigMap>,
    log: Vec<(u64, WatchEvent)>,
    /// Versions below this one are compacted.
    compacted: u64,
    /// The last fault. It affects the watches that were opened before it.
    watch_fault: WatchFault,
    /// The number of faults so far.
    watch_faults: u64,
    /// Responses to the next lists and watches.
    list_errors: VecDeque<ListWatchError>,
    watch_errors: VecDeque<ListWatchError>,
    /// Watches never send the end of the initial events.
    endless_initial_events: bool,
    /// While set, requests fail at random.
    random_faults: Option<Rng>,
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
            watch_fault: WatchFault::Ended,
            watch_faults: 0,
            list_errors: VecDeque::new(),
            watch_errors: VecDeque::new(),
            endless_initial_events: false,
            random_faults: None,
            requests: Vec::new(),
        };
        Self {
            state: Arc::new(Mutex::new(state)),
            changed: watch::Sender::new(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state
            .lock()
            .expect("nothing panics while it is locked")
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
            let mut object = state.objects.remove(&key).expect("it was found above");
            let version = state.version.to_string();
            object.metadata.resource_version = Some(version);
            WatchEvent::Deleted(json(&object))
        });
    }

    /// Sends an object that cannot be decoded.
    pub(crate) fn send_undecodable(&self, name: &str) {
        self.write(|state| {
            let object = serde_json::json!({
                "metadata": {
                    "namespace": state.namespace,
                    "name": name,
                    "resourceVersion": state.version.to_string(),
                },
                "data": "not a map",
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

    /// Ends, fails or freezes every watch that is open now.
    pub(crate) fn inject(&self, fault: WatchFault) {
        let mut state = self.lock();
        state.watch_fault = fault;
        state.watch_faults += 1;
        drop(state);
        self.changed.send_replace(());
    }

    /// Compacts every version before the newest.
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
    pub(crate) fn inject_random_faults(&self, rng: Option<Rng>) {
        self.lock().random_faults = rng;
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
        if state.watch_faults > cursor.faults {
            return match &state.watch_fault {
                WatchFault::Ended => Step::End,
                WatchFault::Failed(error) => Step::Yield(Box::new(Err(error.clone()))),
                WatchFault::Frozen => Step::Freeze,
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
        let rng = self.random_faults.as_ref()?;
        Some(match rng.below(kind) {
            0 => ListWatchError::Unreachable("refused".into()),
            1 => ListWatchError::Busy {
                message: "too many requests".into(),
                retry_after: None,
            },
            2 => ListWatchError::TooLarge("too large resource version".into()),
            3 => ListWatchError::Expired("too old".into()),
            4 => ListWatchError::Other("internal error".into()),
            5 => ListWatchError::Rejected("unsupported".into()),
            6 => ListWatchError::Forbidden("forbidden".into()),
            _ => return None,
        })
    }

    /// All objects, in an order that clients must not rely on, and the bookmark that ends them.
    fn initial_events(&self) -> VecDeque<WatchEvent> {
        let mut events: VecDeque<_> = self
            .objects
            .values()
            .map(|object| WatchEvent::Applied(json(object)))
            .collect();
        if let Some(rng) = &self.random_faults {
            let positions = usize::try_from(rng.below(events.len() as u64)).expect("small");
            events.rotate_left(positions);
        }
        if !self.endless_initial_events {
            events.push_back(WatchEvent::Bookmark {
                resource_version: self.version.to_string(),
                ends_initial_events: true,
            });
        }
        events
    }

    /// A server may send the last event once more after a reconnect.
    fn repeated(&self, since: u64) -> VecDeque<WatchEvent> {
        let last = self.log.iter().find(|(version, _)| *version == since);
        let rng = self.random_faults.as_ref();
        let repeats = rng.is_some_and(|rng| rng.below(2) == 0);
        last.filter(|_| repeats)
            .map(|(_, event)| event.clone())
            .into_iter()
            .collect()
    }
}

struct Cursor {
    version: u64,
    /// The number of faults when it was opened.
    faults: u64,
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
        let response = match failure {
            Some(error) => Err(error),
            None => {
                let start: usize = request
                    .continue_token
                    .map_or(0, |token| token.parse().expect("a token of this server"));
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
        std::future::ready(response).boxed()
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
                faults: state.watch_faults,
                first: state.initial_events(),
            }),
            (None, WatchFrom::Version(since)) => {
                match since.parse().expect("a version of this server") {
                    since if since < state.compacted => {
                        Err(ListWatchError::Expired("compacted".into()))
                    }
                    since => Ok(Cursor {
                        version: since,
                        faults: state.watch_faults,
                        first: state.repeated(since),
                    }),
                }
            }
        };
        let server = self.clone();
        let changed = self.changed.subscribe();
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
