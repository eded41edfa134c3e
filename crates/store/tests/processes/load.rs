//! Concurrent clients that record what they request and receive.
//!
//! Out: a history of operations, lists, watches and the state at the end.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use bellerophon_linearizability::{
    Consistency, EndState, Event, History, Key, KeyState, ListRead, Outcome, Recorder, Request,
    Watch, WatchRecord,
};
use bellerophon_store::api::{self, Reason};
use bellerophon_store_client::{Client, ClientError, ClientOptions, Found, ListOptions, WatchItem};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};
use tokio::{sync::watch, task::JoinSet};

/// The keys of the load. Fewer keys have more concurrent operations each.
const KEYS: u64 = 12;
const PREFIX: &str = "load/";

/// A client gives an attempt up after this time: a write of unknown outcome.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(3);

/// Clients under load, until they are stopped.
pub(crate) struct Load {
    recorder: Arc<Recorder>,
    shared: Arc<Shared>,
    stop: watch::Sender<bool>,
    clients: JoinSet<()>,
    watchers: JoinSet<Watch>,
    options: ClientOptions,
}

#[derive(Default)]
struct Shared {
    lists: Mutex<Vec<ListRead>>,
    acknowledged: AtomicU64,
    next_value: AtomicU64,
}

impl Load {
    /// Starts clients with a seed, and two watchers.
    pub(crate) fn start(mut options: ClientOptions, clients: u64, seed: u64) -> Self {
        options.attempt_timeout = ATTEMPT_TIMEOUT;
        options.request_timeout = Duration::from_secs(20);
        let (stop, stopped) = watch::channel(false);
        let mut load = Self {
            recorder: Arc::default(),
            shared: Arc::default(),
            stop,
            clients: JoinSet::new(),
            watchers: JoinSet::new(),
            options,
        };
        for index in 0..clients {
            let client = LoadClient {
                client: Client::new(load.rotated(index)),
                recorder: load.recorder.clone(),
                shared: load.shared.clone(),
                random: StdRng::seed_from_u64(seed * 1000 + index),
            };
            load.clients.spawn(client.run(stopped.clone()));
        }
        for prefix in ["", "load/1"] {
            let client = Client::new(load.rotated(1));
            let recorder = load.recorder.clone();
            load.watchers
                .spawn(watch_all(client, prefix, recorder, stopped.clone()));
        }
        load
    }

    /// The options with another endpoint first, so that clients use all members.
    fn rotated(&self, index: u64) -> ClientOptions {
        let mut options = self.options.clone();
        let count = options.endpoints.len() as u64;
        options.endpoints.rotate_left((index % count) as usize);
        options
    }

    /// Acknowledged writes so far.
    pub(crate) fn acknowledged(&self) -> u64 {
        self.shared.acknowledged.load(Ordering::Relaxed)
    }

    /// Stops the clients and returns all that they did and saw.
    pub(crate) async fn stop(mut self) -> History {
        self.stop.send_replace(true);
        while let Some(ended) = self.clients.join_next().await {
            ended.expect("a client does not panic");
        }
        let end = end_state(&Client::new(self.options.clone())).await;
        let mut watches = Vec::new();
        while let Some(ended) = self.watchers.join_next().await {
            watches.push(ended.expect("a watcher does not panic"));
        }
        let client = Client::new(self.options.clone());
        watches.push(complete_watch(&client, end.revision, &self.recorder).await);
        let lists = std::mem::take(&mut *self.shared.lists.lock().expect("no client panicked"));
        History {
            operations: self.recorder.operations(),
            lists,
            watches,
            end: Some(end),
        }
    }
}

struct LoadClient {
    client: Client,
    recorder: Arc<Recorder>,
    shared: Arc<Shared>,
    random: StdRng,
}

impl LoadClient {
    async fn run(mut self, stopped: watch::Receiver<bool>) {
        let mut last_revisions: BTreeMap<u64, u64> = BTreeMap::new();
        while !*stopped.borrow() {
            let number = self.random.random_range(0..KEYS);
            if self.random.random_range(0..40) == 0 {
                self.list().await;
                continue;
            }
            let request = self.request(last_revisions.get(&number).copied());
            let outcome = self.execute(number, request).await;
            if let Some(revision) = revision_of(&outcome) {
                last_revisions.insert(number, revision);
            }
        }
    }

    fn request(&mut self, last_revision: Option<u64>) -> Request {
        let condition = match self.random.random_range(0..3) {
            0 => last_revision,
            _ => None,
        };
        match self.random.random_range(0..20) {
            0..6 => Request::Get(Consistency::Linearizable),
            6 => Request::Get(Consistency::Stale),
            7 => Request::Delete {
                if_revision: condition.filter(|revision| *revision > 0),
            },
            _ => {
                let value = self.shared.next_value.fetch_add(1, Ordering::Relaxed);
                Request::Put {
                    value: format!("value {value}").into_bytes().into(),
                    if_revision: condition,
                }
            }
        }
    }

    async fn execute(&self, number: u64, request: Request) -> Outcome {
        let name = format!("{PREFIX}{number}");
        let key: api::Key = name.parse().expect("a valid key");
        let id = self.recorder.invoke(name.as_str().into(), request.clone());
        let outcome = match request {
            Request::Get(consistency) => read(self.client.get(&key, converted(consistency)).await),
            Request::Put { value, if_revision } => {
                written(self.client.put(&key, value.to_vec(), if_revision).await)
            }
            Request::Delete { if_revision } => written(self.client.delete(&key, if_revision).await),
        };
        if matches!(outcome, Outcome::Written { .. }) {
            self.shared.acknowledged.fetch_add(1, Ordering::Relaxed);
        }
        self.recorder.finish(id, outcome.clone());
        outcome
    }

    async fn list(&self) {
        let invoked = self.recorder.now();
        let options = ListOptions {
            prefix: PREFIX.to_owned(),
            limit: Some(5),
            ..ListOptions::default()
        };
        let Ok(page) = self.client.list(&options).await else {
            return;
        };
        let list = ListRead {
            prefix: PREFIX.to_owned(),
            start: String::new(),
            revision: page.revision,
            consistency: Consistency::Linearizable,
            is_truncated: page.continue_from.is_some(),
            items: page.items.into_iter().map(item).collect(),
            invoked,
            finished: self.recorder.now(),
        };
        self.shared
            .lists
            .lock()
            .expect("no client panicked")
            .push(list);
    }
}

fn converted(consistency: Consistency) -> api::Consistency {
    match consistency {
        Consistency::Linearizable => api::Consistency::Linearizable,
        Consistency::Stale => api::Consistency::Stale,
    }
}

fn item(item: api::Item) -> (Key, KeyState) {
    let state = KeyState {
        value: item.value.into(),
        create_revision: item.create_revision,
        mod_revision: item.mod_revision,
        version: item.version,
    };
    (item.key.as_str().into(), state)
}

fn read(result: Result<Found, ClientError>) -> Outcome {
    match result {
        Ok(found) => Outcome::Read {
            state: found.item.map(|found| item(found).1),
            revision: found.revision,
        },
        Err(_) => Outcome::Unknown,
    }
}

fn written(result: Result<api::WriteResult, ClientError>) -> Outcome {
    match result {
        // A put has a version, and a delete that found the key is one as well.
        Ok(result) if result.deleted || result.version > 0 => Outcome::Written {
            revision: result.revision,
        },
        Ok(result) => Outcome::NothingDeleted {
            revision: result.revision,
        },
        Err(error) if error.is_outcome_unknown() => Outcome::Unknown,
        Err(ClientError::Store(error)) if error.reason() == Reason::ConditionFailed => {
            let mod_revision = error.0.current.expect("a failed condition has a revision");
            Outcome::ConditionFailed { mod_revision }
        }
        Err(_) => Outcome::Refused,
    }
}

fn revision_of(outcome: &Outcome) -> Option<u64> {
    match outcome {
        Outcome::Written { revision } => Some(*revision),
        Outcome::Read { state, .. } => Some(state.as_ref().map_or(0, |state| state.mod_revision)),
        Outcome::ConditionFailed { mod_revision } => Some(*mod_revision),
        _ => None,
    }
}

/// The state after all operations.
async fn end_state(client: &Client) -> EndState {
    let mut end = EndState::default();
    let mut options = ListOptions::default();
    loop {
        let page = client
            .list(&options)
            .await
            .expect("the store serves at the end");
        end.revision = page.revision;
        end.keys.extend(page.items.into_iter().map(item));
        match page.continue_from {
            Some(start) => options.start = Some(start),
            None => return end,
        }
    }
}

/// Watches until the load stops.
async fn watch_all(
    client: Client,
    prefix: &str,
    recorder: Arc<Recorder>,
    mut stopped: watch::Receiver<bool>,
) -> Watch {
    let mut result = Watch {
        prefix: prefix.to_owned(),
        records: Vec::new(),
    };
    let mut watch = client.watch(prefix, Some(1));
    loop {
        tokio::select! {
            item = watch.next() => {
                let item = item.expect("the history is long enough");
                result.records.push(record(item, &recorder));
            }
            _ = stopped.wait_for(|stopped| *stopped) => return result,
        }
    }
}

/// All changes up to a revision, which the checker replays.
async fn complete_watch(client: &Client, through: u64, recorder: &Recorder) -> Watch {
    let mut result = Watch::default();
    let mut watch = client.watch("", Some(1));
    loop {
        let item = watch.next().await.expect("the history is long enough");
        let position = match &item {
            WatchItem::Event(event) => event.revision(),
            WatchItem::Progress(revision) | WatchItem::Started(revision) => *revision,
        };
        result.records.push(record(item, recorder));
        if position >= through {
            return result;
        }
    }
}

fn record(item: WatchItem, recorder: &Recorder) -> WatchRecord {
    match item {
        WatchItem::Started(after) => WatchRecord::Started { after },
        WatchItem::Progress(revision) => WatchRecord::Progress { revision },
        WatchItem::Event(event) => {
            let received = recorder.now();
            let key = event.key().as_str().into();
            let revision = event.revision();
            let state = match event {
                api::Event::Delete { .. } => None,
                api::Event::Put {
                    value,
                    create_revision,
                    version,
                    ..
                } => Some(KeyState {
                    value: value.into(),
                    create_revision,
                    mod_revision: revision,
                    version,
                }),
            };
            WatchRecord::Event(Event {
                key,
                state,
                revision,
                received,
            })
        }
    }
}
