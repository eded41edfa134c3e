//! Order and completeness of watches.
//!
//! In: the records of each watch and the known changes. Out: the first record that is wrong.
//! Guarantees: checks that events are ordered and unique, that none is missing (between events,
//! before a progress record, after a resume), that they match the prefix, and that they carry the
//! state of the key at their revision.

use crate::{
    event_log::{EventLog, Replay},
    history::{Event, History, Revision, Watch, WatchRecord},
    report::{Report, Violated, Violation},
};

/// Checks all watches.
pub(crate) fn check(
    history: &History,
    log: &EventLog,
    report: &mut Report,
) -> Result<(), Violation> {
    for watch in &history.watches {
        check_order(watch, log, report)?;
    }
    check_states(history, log)
}

fn check_order(watch: &Watch, log: &EventLog, report: &mut Report) -> Result<(), Violation> {
    let mut position = 0;
    for record in &watch.records {
        match record {
            WatchRecord::Started { after } => position = *after,
            WatchRecord::Event(event) => {
                report.events += 1;
                check_event(watch, event, position)?;
                check_gap(watch, log, position, event.revision - 1)?;
                position = event.revision;
            }
            WatchRecord::Progress { revision } => {
                if *revision < position {
                    return Err(violation(
                        watch,
                        Violated::WatchOrder,
                        format!("progress at {revision} follows revision {position}"),
                    ));
                }
                check_gap(watch, log, position, *revision)?;
                position = *revision;
            }
        }
    }
    Ok(())
}

fn check_event(watch: &Watch, event: &Event, position: Revision) -> Result<(), Violation> {
    if event.revision <= position {
        return Err(violation(
            watch,
            Violated::WatchOrder,
            format!("event {event:?} follows revision {position}"),
        ));
    }
    if !event.key.starts_with(&watch.prefix) {
        return Err(violation(
            watch,
            Violated::WatchFilter,
            format!("event {event:?} does not match"),
        ));
    }
    Ok(())
}

/// No change between two records may be missing.
fn check_gap(
    watch: &Watch,
    log: &EventLog,
    after: Revision,
    through: Revision,
) -> Result<(), Violation> {
    let mut missing = log
        .between(after, through)
        .filter(|(_, change)| change.key.starts_with(&watch.prefix));
    missing.next().map_or(Ok(()), |(revision, change)| {
        Err(violation(
            watch,
            Violated::WatchGap,
            format!("{change:?} at revision {revision} was not delivered"),
        ))
    })
}

/// Each event carries the state of its key.
fn check_states(history: &History, log: &EventLog) -> Result<(), Violation> {
    let complete_through = log.complete_through();
    let mut events: Vec<(&Watch, &Event)> = Vec::new();
    for watch in &history.watches {
        for record in &watch.records {
            if let WatchRecord::Event(event) = record {
                events.push((watch, event));
            }
        }
    }
    events.sort_by_key(|(_, event)| event.revision);
    let mut replay = Replay::default();
    for (watch, event) in events {
        if event.revision > complete_through {
            break;
        }
        replay.advance(log, event.revision);
        let expected = replay.keys.get(&event.key);
        if event.state.as_ref() != expected {
            return Err(violation(
                watch,
                Violated::WatchState,
                format!("event {event:?} differs from the state {expected:?}"),
            ));
        }
    }
    Ok(())
}

fn violation(watch: &Watch, violated: Violated, message: String) -> Violation {
    Violation::new(violated, format!("watch of {:?}: {message}", watch.prefix))
}
