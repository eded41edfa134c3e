//! Clients of the simulated cluster: reads, writes and watches, recorded as a history.
//!
//! In: running members. Out: a history.
//! Guarantees: a client has one operation at a time; values are unique; an operation whose member
//! crashed has an unknown outcome.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex},
};

use bellerophon_linearizability::{
    Consistency as Checked, Event, History, KeyState, Operation, OperationId, Outcome, Recorder,
    Request, Watch, WatchRecord,
};
use bellerophon_store::{
    Member, WatchItem, Write,
    api::{self, Consistency, Item, Key, Reason, StoreError},
};
use rand::{RngExt, rngs::StdRng};

use crate::{cluster::Cluster, network::Slot};

/// Few keys, so that clients meet.
const KEYS: u64 = 4;

/// A client waits up to this long between operations.
const THINK_MS: u64 = 120;

pub(crate) struct Clients {
    shared: Arc<Shared>,
    clients: Vec<Client>,
    watchers: Vec<Watcher>,
    values: u64,
}

struct Shared {
    recorder: Recorder,
    /// Clients whose operation finished, and the revision that each saw of its key.
    finished: Mutex<Vec<(usize, String, Option<u64>)>>,
    watches: Mutex<Vec<Watch>>,
    /// Watchers whose stream ended, with the revision to resume after.
    ended: Mutex<Vec<(usize, u64)>>,
}

struct Client {
    /// Where its operation runs, if it has one.
    at: Option<Slot>,
    next: u64,
    /// The last revision that it saw of each key, for conditional writes.
    seen: BTreeMap<String, u64>,
}

struct Watcher {
    at: Option<Slot>,
    next: u64,
}

impl Clients {
    pub(crate) fn new(clients: usize, watchers: usize) -> Self {
        let watch = |_| Watch {
            prefix: "k".to_owned(),
            records: Vec::new(),
        };
        Self {
            shared: Arc::new(Shared {
                recorder: Recorder::default(),
                finished: Mutex::default(),
                watches: Mutex::new((0..watchers).map(watch).collect()),
                ended: Mutex::default(),
            }),
            clients: (0..clients)
                .map(|_| Client {
                    at: None,
                    next: 0,
                    seen: BTreeMap::new(),
                })
                .collect(),
            watchers: (0..watchers)
                .map(|_| Watcher { at: None, next: 0 })
                .collect(),
            values: 0,
        }
    }

    /// Begins operations of clients that have none.
    pub(crate) fn step(&mut self, cluster: &Cluster, rng: &mut StdRng) {
        self.collect(cluster.now, rng);
        let running = cluster.running();
        if running.is_empty() {
            return;
        }
        for number in 0..self.clients.len() {
            let client = &self.clients[number];
            if client.at.is_none() && client.next <= cluster.now {
                let slot = running[rng.random_range(0..running.len())];
                self.begin(number, slot, cluster, rng);
            }
        }
        for number in 0..self.watchers.len() {
            let watcher = &mut self.watchers[number];
            if watcher.at.is_none() && watcher.next <= cluster.now {
                let slot = running[rng.random_range(0..running.len())];
                watcher.at = Some(slot);
                watch(cluster, slot, number, &self.shared);
            }
        }
    }

    /// A process ended: operations there have no outcome, watches there end.
    pub(crate) fn lose(&mut self, slot: Slot, now: u64) {
        for client in &mut self.clients {
            if client.at == Some(slot) {
                client.at = None;
                client.next = now + THINK_MS;
            }
        }
        for watcher in &mut self.watchers {
            if watcher.at == Some(slot) {
                watcher.at = None;
                watcher.next = now + THINK_MS;
            }
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        let finished = self.shared.finished.lock().unwrap();
        let running = self.clients.iter().filter(|client| client.at.is_some());
        running.count() == finished.len()
    }

    pub(crate) fn history(&self) -> History {
        History {
            operations: self.shared.recorder.operations(),
            watches: self.shared.watches.lock().unwrap().clone(),
            ..History::default()
        }
    }

    fn collect(&mut self, now: u64, rng: &mut StdRng) {
        for (number, key, revision) in self.shared.finished.lock().unwrap().drain(..) {
            let client = &mut self.clients[number];
            client.at = None;
            client.next = now + rng.random_range(0..THINK_MS);
            if let Some(revision) = revision {
                client.seen.insert(key, revision);
            }
        }
        for (number, _) in self.shared.ended.lock().unwrap().drain(..) {
            let watcher = &mut self.watchers[number];
            watcher.at = None;
            watcher.next = now + rng.random_range(0..THINK_MS);
        }
    }

    fn begin(&mut self, number: usize, slot: Slot, cluster: &Cluster, rng: &mut StdRng) {
        let key = format!("k{}", rng.random_range(0..KEYS));
        let client = &mut self.clients[number];
        client.at = Some(slot);
        let seen = client.seen.get(&key).copied();
        self.values += 1;
        let value = format!("v{}", self.values);
        let request = match rng.random_range(0..10) {
            0..3 => Request::Get(Checked::Linearizable),
            3 => Request::Get(Checked::Stale),
            4..7 => put(&value, None),
            7..9 => put(&value, seen.or(Some(0))),
            _ => Request::Delete {
                if_revision: if rng.random() { seen } else { None },
            },
        };
        let recorded = self
            .shared
            .recorder
            .invoke(key.as_str().into(), request.clone());
        let trace = Arc::clone(&cluster.trace);
        trace.record(format_args!("invoke {number} at {slot} {key} {request:?}"));
        let shared = Arc::clone(&self.shared);
        cluster.spawn(slot, |member| async move {
            let outcome = perform(&member, &key, &request).await;
            trace.record(format_args!("finish {number} {outcome:?}"));
            let revision = revision(&outcome);
            shared.finish(recorded, outcome);
            shared
                .finished
                .lock()
                .unwrap()
                .push((number, key, revision));
        });
    }
}

impl Shared {
    fn finish(&self, id: OperationId, outcome: Outcome) {
        self.recorder.finish(id, outcome);
    }
}

fn put(value: &str, if_revision: Option<u64>) -> Request {
    Request::Put {
        value: value.as_bytes().into(),
        if_revision,
    }
}

fn revision(outcome: &Outcome) -> Option<u64> {
    match outcome {
        Outcome::Read { state, .. } => Some(state.as_ref().map_or(0, |state| state.mod_revision)),
        Outcome::Written { revision } => Some(*revision),
        Outcome::ConditionFailed { mod_revision } => Some(*mod_revision),
        Outcome::NothingDeleted { .. } => Some(0),
        Outcome::Refused | Outcome::Unknown => None,
    }
}

async fn perform(member: &Member, key: &str, request: &Request) -> Outcome {
    let key: Key = key.parse().unwrap();
    let write = match request {
        Request::Get(consistency) => {
            let consistency = match consistency {
                Checked::Linearizable => Consistency::Linearizable,
                Checked::Stale => Consistency::Stale,
            };
            return match member.read(&key, consistency).await {
                Ok(read) => Outcome::Read {
                    state: read.item.map(state),
                    revision: read.revision,
                },
                Err(error) => failed(&error),
            };
        }
        Request::Put { value, if_revision } => Write::Put {
            key,
            value: value.to_vec().into(),
            if_revision: *if_revision,
        },
        Request::Delete { if_revision } => Write::Delete {
            key,
            if_revision: *if_revision,
        },
    };
    let is_delete = matches!(request, Request::Delete { .. });
    match member.write(write).await {
        Ok(result) if is_delete && !result.deleted => Outcome::NothingDeleted {
            revision: result.revision,
        },
        Ok(result) => Outcome::Written {
            revision: result.revision,
        },
        Err(error) => failed(&error),
    }
}

fn failed(error: &StoreError) -> Outcome {
    match error.reason() {
        Reason::ConditionFailed => Outcome::ConditionFailed {
            mod_revision: error.0.current.unwrap(),
        },
        Reason::NoLeader | Reason::NotReady | Reason::Unformatted => Outcome::Refused,
        _ => Outcome::Unknown,
    }
}

pub(crate) fn state(item: Item) -> KeyState {
    KeyState {
        value: item.value.into(),
        create_revision: item.create_revision,
        mod_revision: item.mod_revision,
        version: item.version,
    }
}

/// Watches from where the watcher was, until the history is compacted or the process ends.
fn watch(cluster: &Cluster, slot: Slot, number: usize, shared: &Arc<Shared>) {
    let after = shared.position(number);
    let shared = Arc::clone(shared);
    cluster.spawn(slot, |member| async move {
        let mut stream = match member.watch("k", Some(after + 1)) {
            Ok(stream) => stream,
            Err(error) => return shared.end_watch(number, &error),
        };
        shared.record(number, WatchRecord::Started { after });
        loop {
            match stream.next().await {
                Err(error) => return shared.end_watch(number, &error),
                Ok(WatchItem::Progress(revision)) => {
                    shared.record(number, WatchRecord::Progress { revision });
                }
                Ok(WatchItem::Events(events)) => {
                    for event in events {
                        let event = checked_event(event, shared.recorder.now());
                        shared.record(number, WatchRecord::Event(event));
                    }
                }
            }
        }
    });
}

impl Shared {
    fn record(&self, number: usize, record: WatchRecord) {
        self.watches.lock().unwrap()[number].records.push(record);
    }

    /// Where a watcher is.
    fn position(&self, number: usize) -> u64 {
        let watches = self.watches.lock().unwrap();
        match watches[number].records.last() {
            None => 0,
            Some(WatchRecord::Started { after }) => *after,
            Some(WatchRecord::Progress { revision }) => *revision,
            Some(WatchRecord::Event(event)) => event.revision,
        }
    }

    fn end_watch(&self, number: usize, error: &StoreError) {
        if let (Reason::Compacted, Some(after)) = (error.reason(), error.0.current) {
            self.record(number, WatchRecord::Started { after });
        }
        self.ended.lock().unwrap().push((number, 0));
    }
}

fn checked_event(event: api::Event, received: u64) -> Event {
    let revision = event.revision();
    let key = event.key().as_str().into();
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
    Event {
        key,
        state,
        revision,
        received,
    }
}

/// The number of operations with each kind of outcome, for reports.
pub(crate) fn acknowledged(operations: &[Operation]) -> usize {
    let is_written = |operation: &&Operation| matches!(operation.outcome, Outcome::Written { .. });
    operations.iter().filter(is_written).count()
}
