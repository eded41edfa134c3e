//! Acknowledged writes are in the state at the end, or superseded by later ones.
//!
//! In: a history with its end state. Out: the first write that was lost.

use std::collections::HashMap;

use crate::{
    event_log::{EventLog, Replay},
    history::{EndState, History, Key, Operation, Outcome, Request, Revision, Value},
    report::{Violated, Violation},
};

/// Checks the state at the end.
pub(crate) fn check(history: &History, log: &EventLog) -> Result<(), Violation> {
    let Some(end) = &history.end else {
        return Ok(());
    };
    for operation in last_writes(&history.operations).into_values() {
        check_write(operation, end, history)?;
    }
    if log.complete_through() < end.revision {
        return Ok(());
    }
    let mut replay = Replay::default();
    replay.advance(log, end.revision);
    if replay.keys == end.keys {
        return Ok(());
    }
    Err(Violation::new(
        Violated::EndState,
        format!(
            "the state at the end is {:?}, but the changes result in {:?}",
            end.keys, replay.keys
        ),
    ))
}

/// The acknowledged write with the largest revision of each key.
fn last_writes(operations: &[Operation]) -> HashMap<&Key, &Operation> {
    let mut last: HashMap<&Key, &Operation> = HashMap::new();
    for operation in operations {
        if written(operation) > 0 {
            let entry = last.entry(&operation.key).or_insert(operation);
            if written(operation) > written(entry) {
                *entry = operation;
            }
        }
    }
    last
}

fn written(operation: &Operation) -> Revision {
    match operation.outcome {
        Outcome::Written { revision } => revision,
        _ => 0,
    }
}

fn check_write(operation: &Operation, end: &EndState, history: &History) -> Result<(), Violation> {
    let revision = written(operation);
    let state = end.keys.get(&operation.key);
    let value = match &operation.request {
        Request::Put { value, .. } => Some(value),
        _ => None,
    };
    let is_kept = end.revision >= revision
        && match state {
            Some(state) if state.mod_revision == revision => Some(&state.value) == value,
            Some(state) => {
                state.mod_revision > revision
                    && has_open(history, &operation.key, Some(&state.value))
            }
            None => value.is_none() || has_open(history, &operation.key, None),
        };
    if is_kept {
        return Ok(());
    }
    Err(Violation::with_operations(
        Violated::AcknowledgedWrites,
        format!(
            "key {}: an acknowledged write is lost; at the end, the key is {state:?} at revision {}",
            operation.key, end.revision
        ),
        vec![operation.clone()],
    ))
}

/// Whether a write of unknown outcome may have replaced an acknowledged one.
fn has_open(history: &History, key: &Key, value: Option<&Value>) -> bool {
    let mut open = history
        .operations
        .iter()
        .filter(|operation| operation.key == *key && operation.is_open_write());
    open.any(|operation| match &operation.request {
        Request::Put { value: put, .. } => Some(put) == value,
        _ => value.is_none(),
    })
}
