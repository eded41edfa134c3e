//! Reads and lists return the state of the store at their revision.
//!
//! In: a history and the changes that it proves. Out: the first read that differs.
//! Guarantees: reads beyond the last known change are counted as unchecked, not as legal.

use crate::{
    event_log::{EventLog, Replay},
    history::{History, Key, KeyState, ListRead, Operation, Outcome, Revision},
    report::{Report, Violated, Violation},
};

enum Read<'a> {
    Get(&'a Operation, Option<&'a KeyState>),
    List(&'a ListRead),
}

/// Checks all reads and lists.
pub(crate) fn check(
    history: &History,
    log: &EventLog,
    report: &mut Report,
) -> Result<(), Violation> {
    let mut reads = reads(history);
    reads.sort_by_key(|(revision, _)| *revision);
    let complete_through = log.complete_through();
    let mut replay = Replay::default();
    for (revision, read) in reads {
        if revision > complete_through {
            report.unchecked_reads += 1;
            continue;
        }
        report.reads += 1;
        replay.advance(log, revision);
        match read {
            Read::Get(operation, state) => get(operation, state, &replay)?,
            Read::List(page) => list(page, &replay)?,
        }
    }
    Ok(())
}

fn reads(history: &History) -> Vec<(Revision, Read<'_>)> {
    let gets = history
        .operations
        .iter()
        .filter_map(|operation| match &operation.outcome {
            Outcome::Read { state, revision } => {
                Some((*revision, Read::Get(operation, state.as_ref())))
            }
            _ => None,
        });
    let lists = history
        .lists
        .iter()
        .map(|list| (list.revision, Read::List(list)));
    gets.chain(lists).collect()
}

fn get(operation: &Operation, state: Option<&KeyState>, replay: &Replay) -> Result<(), Violation> {
    let expected = replay.keys.get(&operation.key);
    if state == expected {
        return Ok(());
    }
    Err(Violation::with_operations(
        Violated::ReadAtRevision,
        format!(
            "key {}: read {state:?}, but the state is {expected:?}",
            operation.key
        ),
        vec![operation.clone()],
    ))
}

fn list(page: &ListRead, replay: &Replay) -> Result<(), Violation> {
    let mut matching = replay
        .keys
        .iter()
        .filter(|(key, _)| key.starts_with(&page.prefix) && ***key >= *page.start);
    let expected: Vec<(&Key, &KeyState)> = matching.by_ref().take(page.items.len()).collect();
    let items: Vec<(&Key, &KeyState)> =
        page.items.iter().map(|(key, state)| (key, state)).collect();
    let is_truncated = matching.next().is_some();
    if items == expected && is_truncated == page.is_truncated {
        return Ok(());
    }
    Err(Violation::new(
        Violated::ReadAtRevision,
        format!(
            "list of {:?} from {:?} at revision {} (truncated: {}) is {items:?}, \
             but the state is {expected:?} (truncated: {is_truncated})",
            page.prefix, page.start, page.revision, page.is_truncated
        ),
    ))
}
