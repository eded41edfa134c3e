//! Revisions in real time: an operation sees at least the revision of every operation that
//! finished before it was invoked, and a write gets a larger one.
//!
//! In: a history. Out: the first operation with a revision that is too low.

use crate::{
    history::{Consistency, History, Outcome, Request, Revision, Time},
    report::{Violated, Violation},
};

/// A revision that a client saw.
struct Seen {
    invoked: Time,
    finished: Time,
    revision: Revision,
    /// The lowest allowed distance to earlier revisions: 1 for a write; none if the response does
    /// not carry the newest revision.
    distance: Option<Revision>,
    description: String,
}

/// Checks the revisions of all operations and lists.
pub(crate) fn check(history: &History) -> Result<(), Violation> {
    let mut seen = seen(history);
    seen.sort_by_key(|seen| seen.invoked);
    let mut finished: Vec<(Time, Revision)> = seen
        .iter()
        .map(|seen| (seen.finished, seen.revision))
        .collect();
    finished.sort_unstable();
    let mut finished = finished.into_iter().peekable();
    let mut newest = 0;
    for seen in &seen {
        while let Some((_, revision)) = finished.next_if(|(time, _)| *time < seen.invoked) {
            newest = newest.max(revision);
        }
        let Some(distance) = seen.distance else {
            continue;
        };
        if seen.revision < newest + distance {
            return Err(Violation::new(
                Violated::RevisionOrder,
                format!(
                    "{}: revision {newest} was seen before it was invoked",
                    seen.description
                ),
            ));
        }
    }
    Ok(())
}

fn seen(history: &History) -> Vec<Seen> {
    let operations = history.operations.iter().filter_map(|operation| {
        let (revision, distance) = match (&operation.request, &operation.outcome) {
            (_, Outcome::Written { revision }) => (*revision, Some(1)),
            (Request::Get(Consistency::Stale), Outcome::Read { revision, .. }) => (*revision, None),
            (_, Outcome::Read { revision, .. } | Outcome::NothingDeleted { revision }) => {
                (*revision, Some(0))
            }
            (_, Outcome::ConditionFailed { mod_revision }) => (*mod_revision, None),
            (_, Outcome::Refused | Outcome::Unknown) => return None,
        };
        Some(Seen {
            invoked: operation.invoked,
            finished: operation.finished,
            revision,
            distance,
            description: operation.to_string(),
        })
    });
    let lists = history.lists.iter().map(|list| Seen {
        invoked: list.invoked,
        finished: list.finished,
        revision: list.revision,
        distance: (list.consistency == Consistency::Linearizable).then_some(0),
        description: format!("list of {:?} at revision {}", list.prefix, list.revision),
    });
    operations.chain(lists).collect()
}
