//! Tests of writes, conditions, history and durability.

use std::time::Duration;

use super::*;
use crate::{
    api::{Event, WriteResult},
    disk::simulated::SimulatedDisk,
    entry::{Command, Payload},
};

const OPTIONS: StateOptions = StateOptions {
    history_revisions: 4,
    history_bytes: 1 << 20,
    cache_bytes: 1 << 18,
};

fn state() -> State {
    let disk = SimulatedDisk::new(1).attach(Duration::ZERO);
    let meta = Meta::new("a".parse().unwrap(), 1);
    State::create(&*disk, OPTIONS, &meta).unwrap();
    State::open(&*disk, OPTIONS).unwrap()
}

fn put(key: &str, value: &str, if_revision: Option<u64>) -> Command {
    Command::Put {
        key: key.parse().unwrap(),
        value: value.to_owned().into(),
        if_revision,
    }
}

fn delete(key: &str, if_revision: Option<u64>) -> Command {
    Command::Delete {
        key: key.parse().unwrap(),
        if_revision,
    }
}

fn apply(state: &State, commands: impl IntoIterator<Item = Command>) -> Vec<Outcome> {
    let next = state.meta().last_applied.map_or(0, |id| id.index + 1);
    let entries: Vec<Entry> = (next..)
        .zip(commands)
        .map(|(index, command)| Entry {
            log_id: LogId {
                term: 1,
                leader: 1,
                index,
            },
            payload: Payload::Command(command),
        })
        .collect();
    state.apply(&entries).unwrap()
}

fn written(revision: u64, create_revision: u64, version: u64) -> Outcome {
    Outcome::Written(WriteResult {
        revision,
        create_revision,
        mod_revision: revision,
        version,
        deleted: false,
    })
}

fn deleted(revision: u64, is_deleted: bool) -> Outcome {
    Outcome::Written(WriteResult {
        revision,
        create_revision: 0,
        mod_revision: 0,
        version: 0,
        deleted: is_deleted,
    })
}

#[test]
fn writes_follow_conditions_and_count_revisions() {
    let cases = [
        (put("a", "1", None), written(1, 1, 1)),
        (put("a", "2", Some(1)), written(2, 1, 2)),
        (put("a", "3", Some(1)), Outcome::ConditionFailed(2)),
        (put("a", "3", Some(0)), Outcome::ConditionFailed(2)),
        (put("b", "1", Some(0)), written(3, 3, 1)),
        (put("c", "1", Some(9)), Outcome::ConditionFailed(0)),
        (delete("a", Some(1)), Outcome::ConditionFailed(2)),
        (delete("a", Some(2)), deleted(4, true)),
        (delete("a", None), deleted(4, false)),
        (delete("a", Some(0)), deleted(4, false)),
        (put("a", "4", Some(0)), written(5, 5, 1)),
    ];
    let state = state();
    for (command, expected) in cases {
        let name = command.to_string();
        assert_eq!(apply(&state, [command]), [expected], "{name}");
    }
    assert_eq!(state.meta().data_bytes, 4);
    let page = state.list("", "", 10).unwrap();
    let keys: Vec<&str> = page.items.iter().map(|item| item.key.as_str()).collect();
    assert_eq!(keys, ["a", "b"]);
    assert_eq!(page.revision, 5);
}

#[test]
fn list_pages_continue_where_they_end() {
    let state = state();
    let keys = ["p/a", "p/b", "p/c", "q"];
    apply(&state, keys.map(|key| put(key, "", None)));
    let page = state.list("p/", "", 2).unwrap();
    assert_eq!(page.items.len(), 2);
    assert_eq!(page.continue_from.as_deref(), Some("p/c"));
    let page = state.list("p/", "p/c", 2).unwrap();
    assert_eq!(page.items.len(), 1);
    assert_eq!(page.continue_from, None);
}

#[test]
fn history_keeps_the_last_revisions() {
    let state = state();
    apply(
        &state,
        (0..10).map(|number| put("a", &number.to_string(), None)),
    );
    let meta = state.meta();
    assert_eq!(meta.compacted, 6);
    let page = state.events(7, "a").unwrap();
    let revisions: Vec<u64> = page.events.iter().map(Event::revision).collect();
    assert_eq!(revisions, [7, 8, 9, 10]);
    assert_eq!(page.until, 10);
    assert!(state.events(6, "a").unwrap().events.is_empty());
    assert!(state.events(7, "b").unwrap().events.is_empty());
    apply(&state, [Command::Compact(9)]);
    assert_eq!(state.meta().compacted, 9);
    apply(&state, [Command::Compact(u64::MAX)]);
    assert_eq!(state.meta().compacted, 10);
    assert_eq!(state.meta().history_bytes, 0);
}

#[test]
fn crash_returns_to_the_last_sync() {
    let simulated = SimulatedDisk::new(1);
    let disk = simulated.attach(Duration::ZERO);
    let meta = Meta::new("a".parse().unwrap(), 1);
    State::create(&*disk, OPTIONS, &meta).unwrap();
    disk.sync_directory().unwrap();
    let state = State::open(&*disk, OPTIONS).unwrap();
    apply(&state, [put("a", "1", None)]);
    state.sync().unwrap();
    apply(&state, [put("a", "2", None)]);
    simulated.crash();
    drop(state);
    let state = State::open(&*simulated.attach(Duration::ZERO), OPTIONS).unwrap();
    let (item, revision) = state.get(&"a".parse().unwrap()).unwrap();
    assert_eq!(item.unwrap().value, b"1");
    assert_eq!(revision, 1);
}

#[test]
fn newer_format_level_in_the_log_is_refused() {
    let state = state();
    let level = crate::format_level::FORMAT_LEVEL_MAX + 1;
    let entry = Entry {
        log_id: LogId {
            term: 1,
            leader: 1,
            index: 0,
        },
        payload: Payload::Command(Command::RaiseFormatLevel(level)),
    };
    let error = state.apply(&[entry]).unwrap_err();
    assert!(error.to_string().contains("use a newer program"), "{error}");
    assert_eq!(state.meta().last_applied, None);
}
