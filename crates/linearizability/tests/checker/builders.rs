//! Operations, lists and watches in one line each.

use std::collections::BTreeMap;

use bellerophon_linearizability::{
    Consistency, EndState, Event, History, KeyState, ListRead, Operation, Outcome, Request,
    Revision, Time, Watch, WatchRecord,
};

use crate::histories::{operation, put_request, state};

/// A key of a read: value, created, modified, version.
pub(crate) type Entry = (&'static str, Revision, Revision, u64);

pub(crate) fn entry(entry: Entry) -> KeyState {
    state(entry.0, entry.1, entry.2, entry.3)
}

pub(crate) fn put(times: [Time; 2], key: &str, value: &str, revision: Revision) -> Operation {
    let outcome = Outcome::Written { revision };
    operation(times, key, put_request(value, None), outcome)
}

pub(crate) fn put_if(
    times: [Time; 2],
    key: &str,
    value: &str,
    condition: Revision,
    outcome: Outcome,
) -> Operation {
    operation(times, key, put_request(value, Some(condition)), outcome)
}

pub(crate) fn open_put(start: Time, key: &str, value: &str) -> Operation {
    let request = put_request(value, None);
    operation([start, Time::MAX], key, request, Outcome::Unknown)
}

pub(crate) fn open_delete(start: Time, key: &str) -> Operation {
    let request = Request::Delete { if_revision: None };
    operation([start, Time::MAX], key, request, Outcome::Unknown)
}

pub(crate) fn delete(times: [Time; 2], key: &str, revision: Revision) -> Operation {
    let request = Request::Delete { if_revision: None };
    operation(times, key, request, Outcome::Written { revision })
}

pub(crate) fn delete_nothing(times: [Time; 2], key: &str, revision: Revision) -> Operation {
    let request = Request::Delete { if_revision: None };
    operation(times, key, request, Outcome::NothingDeleted { revision })
}

pub(crate) fn get(
    times: [Time; 2],
    key: &str,
    found: Option<Entry>,
    revision: Revision,
) -> Operation {
    let outcome = Outcome::Read {
        state: found.map(entry),
        revision,
    };
    operation(times, key, Request::Get(Consistency::Linearizable), outcome)
}

pub(crate) fn stale_get(
    times: [Time; 2],
    key: &str,
    found: Option<Entry>,
    revision: Revision,
) -> Operation {
    let request = Request::Get(Consistency::Stale);
    Operation {
        request,
        ..get(times, key, found, revision)
    }
}

pub(crate) fn written(revision: Revision) -> Outcome {
    Outcome::Written { revision }
}

pub(crate) fn failed(mod_revision: Revision) -> Outcome {
    Outcome::ConditionFailed { mod_revision }
}

pub(crate) fn list(
    times: [Time; 2],
    prefix: &str,
    revision: Revision,
    items: &[(&str, Entry)],
) -> ListRead {
    ListRead {
        prefix: prefix.to_owned(),
        start: String::new(),
        revision,
        consistency: Consistency::Linearizable,
        items: items
            .iter()
            .map(|(key, found)| ((*key).into(), entry(*found)))
            .collect(),
        is_truncated: false,
        invoked: times[0],
        finished: times[1],
    }
}

pub(crate) fn started(after: Revision) -> WatchRecord {
    WatchRecord::Started { after }
}

pub(crate) fn progress(revision: Revision) -> WatchRecord {
    WatchRecord::Progress { revision }
}

/// A put event, received at the time of its revision times 100.
pub(crate) fn event(key: &str, found: Entry) -> WatchRecord {
    WatchRecord::Event(Event {
        key: key.into(),
        state: Some(entry(found)),
        revision: found.2,
        received: found.2 * 100,
    })
}

pub(crate) fn deleted(key: &str, revision: Revision) -> WatchRecord {
    WatchRecord::Event(Event {
        key: key.into(),
        state: None,
        revision,
        received: revision * 100,
    })
}

pub(crate) fn watch(prefix: &str, records: &[WatchRecord]) -> Watch {
    Watch {
        prefix: prefix.to_owned(),
        records: records.to_vec(),
    }
}

pub(crate) fn operations(operations: Vec<Operation>) -> History {
    History {
        operations,
        ..History::default()
    }
}

/// Three puts, one after the other: a = 1, b = 2, a = 3.
pub(crate) fn three_puts() -> History {
    operations(vec![
        put([1, 2], "a", "1", 1),
        put([3, 4], "b", "2", 2),
        put([5, 6], "a", "3", 3),
    ])
}

pub(crate) trait With {
    fn watched(self, watch: Watch) -> Self;
    fn listed(self, list: ListRead) -> Self;
    fn ended(self, revision: Revision, keys: &[(&str, Entry)]) -> Self;
}

impl With for History {
    fn watched(mut self, watch: Watch) -> Self {
        self.watches.push(watch);
        self
    }

    fn listed(mut self, list: ListRead) -> Self {
        self.lists.push(list);
        self
    }

    fn ended(mut self, revision: Revision, keys: &[(&str, Entry)]) -> Self {
        let keys: BTreeMap<_, _> = keys
            .iter()
            .map(|(key, found)| ((*key).into(), entry(*found)))
            .collect();
        self.end = Some(EndState { revision, keys });
        self
    }
}
