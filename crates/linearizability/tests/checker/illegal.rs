//! Histories that must be rejected, each for its reason.

use bellerophon_linearizability::{History, Options, Violated, check};

use crate::{
    builders::{
        With, delete, delete_nothing, deleted, entry, event, failed, get, list, open_delete,
        open_put, operations, progress, put, put_if, stale_get, started, three_puts, watch,
        written,
    },
    histories::random_history,
};

fn single_key() -> Vec<(&'static str, Violated, History)> {
    use Violated::{Linearizability, RevisionOrder};
    vec![
        (
            "stale read after a write",
            RevisionOrder,
            operations(vec![put([1, 2], "a", "1", 1), get([3, 4], "a", None, 0)]),
        ),
        (
            "stale value with a new revision",
            Linearizability,
            operations(vec![
                put([1, 2], "a", "1", 1),
                put([3, 4], "a", "2", 2),
                get([5, 6], "a", Some(("1", 1, 1, 1)), 2),
            ]),
        ),
        (
            "new value, then old value",
            Linearizability,
            operations(vec![
                put([1, 2], "a", "1", 1),
                put([3, 20], "a", "2", 2),
                get([5, 6], "a", Some(("2", 1, 2, 2)), 2),
                get([7, 8], "a", Some(("1", 1, 1, 1)), 2),
            ]),
        ),
        (
            "acknowledged write vanishes",
            Linearizability,
            operations(vec![put([1, 2], "a", "1", 1), get([3, 4], "a", None, 1)]),
        ),
        (
            "deleted key returns",
            Linearizability,
            operations(vec![
                put([1, 2], "a", "1", 1),
                delete([3, 4], "a", 2),
                get([5, 6], "a", Some(("1", 1, 1, 1)), 2),
            ]),
        ),
        (
            "two conditional writes win",
            Linearizability,
            operations(vec![
                put([1, 2], "a", "1", 1),
                put_if([3, 10], "a", "2", 1, written(2)),
                put_if([3, 10], "a", "3", 1, written(3)),
            ]),
        ),
        (
            "two creations win",
            Linearizability,
            operations(vec![
                put_if([1, 10], "a", "1", 0, written(1)),
                put_if([1, 10], "a", "2", 0, written(2)),
            ]),
        ),
        (
            "condition fails with its own revision",
            Linearizability,
            operations(vec![
                put([1, 2], "a", "1", 1),
                put_if([3, 4], "a", "2", 1, failed(1)),
            ]),
        ),
        (
            "condition fails with an old revision",
            Linearizability,
            operations(vec![
                put([1, 2], "a", "1", 1),
                put([3, 4], "a", "2", 2),
                put_if([5, 6], "a", "3", 7, failed(1)),
            ]),
        ),
        (
            "delete finds nothing after a put",
            Linearizability,
            operations(vec![
                put([1, 2], "a", "1", 1),
                delete_nothing([3, 4], "a", 1),
            ]),
        ),
        (
            "delete of a key that never existed",
            Linearizability,
            operations(vec![delete([1, 2], "a", 1)]),
        ),
        (
            "version skips a write",
            Linearizability,
            operations(vec![
                put([1, 2], "a", "1", 1),
                get([3, 4], "a", Some(("1", 1, 1, 2)), 1),
            ]),
        ),
        (
            "creation revision of an earlier life",
            Linearizability,
            operations(vec![
                put([1, 2], "a", "1", 1),
                delete([3, 4], "a", 2),
                put([5, 6], "a", "3", 3),
                get([7, 8], "a", Some(("3", 1, 3, 1)), 3),
            ]),
        ),
        (
            "open write is seen, then unseen",
            Linearizability,
            operations(vec![
                put([1, 2], "a", "1", 1),
                open_put(3, "a", "2"),
                get([5, 6], "a", Some(("2", 1, 2, 2)), 2),
                get([7, 8], "a", Some(("1", 1, 1, 1)), 2),
            ]),
        ),
        (
            "value is read before it is written",
            Linearizability,
            operations(vec![
                get([1, 2], "a", Some(("1", 1, 1, 1)), 1),
                open_put(3, "a", "1"),
            ]),
        ),
        (
            "later write gets a lower revision",
            RevisionOrder,
            operations(vec![put([1, 2], "a", "1", 2), put([3, 4], "b", "2", 1)]),
        ),
        (
            "read of another key is older",
            RevisionOrder,
            operations(vec![put([1, 2], "a", "1", 1), get([3, 4], "b", None, 0)]),
        ),
    ]
}

fn across_keys() -> Vec<(&'static str, Violated, History)> {
    use Violated::{AcknowledgedWrites, EndState, Origin, ReadAtRevision, UniqueRevisions};
    vec![
        (
            "one revision for two writes",
            UniqueRevisions,
            operations(vec![put([1, 10], "a", "1", 1), put([1, 10], "b", "2", 1)]),
        ),
        (
            "value that was never written",
            Origin,
            operations(vec![get([1, 2], "a", Some(("x", 1, 1, 1)), 1)]),
        ),
        (
            "list misses a key",
            ReadAtRevision,
            three_puts().listed(list([7, 8], "", 3, &[("a", ("3", 1, 3, 2))])),
        ),
        (
            "list mixes two revisions",
            ReadAtRevision,
            three_puts().listed(list(
                [7, 8],
                "",
                3,
                &[("a", ("1", 1, 1, 1)), ("b", ("2", 2, 2, 1))],
            )),
        ),
        (
            "list with keys out of order",
            ReadAtRevision,
            three_puts().listed(list(
                [7, 8],
                "",
                3,
                &[("b", ("2", 2, 2, 1)), ("a", ("3", 1, 3, 2))],
            )),
        ),
        (
            "stale read of a state that never was",
            ReadAtRevision,
            operations(vec![
                put([1, 2], "a", "1", 1),
                put([3, 4], "a", "2", 2),
                stale_get([5, 6], "a", Some(("2", 1, 2, 2)), 1),
            ]),
        ),
        (
            "acknowledged write is lost at the end",
            AcknowledgedWrites,
            three_puts().ended(3, &[("a", ("3", 1, 3, 2))]),
        ),
        (
            "revision is lower at the end",
            AcknowledgedWrites,
            three_puts().ended(2, &[("a", ("1", 1, 1, 1)), ("b", ("2", 2, 2, 1))]),
        ),
        (
            "old value at the end",
            AcknowledgedWrites,
            three_puts().ended(3, &[("a", ("1", 1, 1, 1)), ("b", ("2", 2, 2, 1))]),
        ),
        (
            "deleted key at the end",
            AcknowledgedWrites,
            operations(vec![put([1, 2], "a", "1", 1), delete([3, 4], "a", 2)])
                .ended(2, &[("a", ("1", 1, 1, 1))]),
        ),
        (
            "key with a wrong version at the end",
            EndState,
            three_puts().ended(3, &[("a", ("3", 1, 3, 3)), ("b", ("2", 2, 2, 1))]),
        ),
    ]
}

fn watches() -> Vec<(&'static str, Violated, History)> {
    use Violated::{WatchFilter, WatchGap, WatchOrder, WatchState};
    let first = || event("a", ("1", 1, 1, 1));
    let second = || event("b", ("2", 2, 2, 1));
    let third = || event("a", ("3", 1, 3, 2));
    let case = |name, violated, prefix: &str, records: &[_]| {
        (name, violated, three_puts().watched(watch(prefix, records)))
    };
    vec![
        case(
            "event is missing",
            WatchGap,
            "",
            &[started(0), first(), third()],
        ),
        case(
            "event is missing at the start",
            WatchGap,
            "",
            &[started(0), second()],
        ),
        case(
            "event is repeated",
            WatchOrder,
            "",
            &[started(0), first(), first()],
        ),
        case(
            "events out of order",
            WatchOrder,
            "",
            &[started(0), first(), second(), first()],
        ),
        case(
            "progress overtakes an event",
            WatchGap,
            "",
            &[started(0), first(), progress(3), second(), third()],
        ),
        case(
            "progress goes back",
            WatchOrder,
            "",
            &[started(0), first(), second(), progress(1)],
        ),
        case(
            "event after its progress",
            WatchGap,
            "",
            &[started(2), progress(3), third()],
        ),
        case(
            "resume skips an event",
            WatchGap,
            "",
            &[started(0), first(), started(1), third()],
        ),
        case(
            "resume repeats an event",
            WatchOrder,
            "",
            &[started(0), first(), started(1), first(), second()],
        ),
        case(
            "event of another prefix",
            WatchFilter,
            "a",
            &[started(0), first(), second()],
        ),
        case(
            "event with a wrong version",
            WatchState,
            "",
            &[started(0), first(), second(), event("a", ("3", 1, 3, 1))],
        ),
        case(
            "deletion instead of a put",
            Violated::UniqueRevisions,
            "",
            &[started(0), first(), second(), deleted("a", 3)],
        ),
    ]
}

#[test]
fn illegal_histories_are_rejected_for_their_reason() {
    let cases: Vec<_> = [single_key(), across_keys(), watches()].concat();
    assert!(cases.len() >= 40, "{}", cases.len());
    for (name, violated, history) in cases {
        let violation = match check(&history, &Options::default()) {
            Ok(report) => panic!("{name}: accepted with {report:?}"),
            Err(violation) => violation,
        };
        assert_eq!(violation.violated, violated, "{name}: {violation}");
    }
}

#[test]
fn search_beyond_its_limit_is_rejected() {
    let history = operations(random_history(1, 100));
    let violation = check(&history, &Options { steps_max: 10 }).unwrap_err();
    assert_eq!(violation.violated, Violated::SearchLimit, "{violation}");
}

#[test]
fn evidence_leaves_out_what_is_not_needed() {
    let history = operations(vec![
        put([1, 2], "a", "1", 1),
        get([3, 4], "a", Some(("1", 1, 1, 1)), 1),
        get([5, 6], "a", Some(("1", 1, 1, 1)), 1),
        put([7, 8], "a", "2", 2),
        get([9, 10], "a", Some(("2", 1, 2, 2)), 2),
        get([11, 12], "a", Some(("1", 1, 1, 1)), 2),
        open_delete(13, "a"),
        put([14, 15], "a", "3", 3),
    ]);
    let violation = check(&history, &Options::default()).unwrap_err();
    let message = violation.to_string();
    assert_eq!(violation.operations.len(), 3, "{message}");
    let last = &violation.operations[2];
    assert_eq!(last.invoked, 11, "{message}");
    assert!(
        message.contains(&format!("{:?}", entry(("1", 1, 1, 1)))),
        "{message}"
    );
}
