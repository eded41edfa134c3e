//! Histories that must be accepted.

use bellerophon_linearizability::{History, ListRead, Options, Outcome, check};

use crate::builders::{
    With, delete, delete_nothing, deleted, event, failed, get, list, open_delete, open_put,
    operations, progress, put, put_if, stale_get, started, three_puts, watch, written,
};

fn cases() -> Vec<(&'static str, History)> {
    let a = ("a", ("3", 1, 3, 2));
    let b = ("b", ("2", 2, 2, 1));
    vec![
        ("nothing", History::default()),
        ("one after the other", three_puts().ended(3, &[a, b])),
        (
            "concurrent read sees the old state",
            operations(vec![
                put([1, 10], "a", "1", 1),
                get([2, 3], "a", None, 0),
                get([4, 5], "a", Some(("1", 1, 1, 1)), 1),
            ]),
        ),
        (
            "open write happens late",
            operations(vec![
                put([1, 2], "a", "1", 1),
                open_put(3, "a", "2"),
                get([4, 5], "a", Some(("1", 1, 1, 1)), 1),
                get([6, 7], "a", Some(("2", 1, 2, 2)), 2),
            ]),
        ),
        (
            "open write never happens",
            operations(vec![
                open_put(1, "a", "1"),
                get([2, 3], "a", None, 0),
                put([4, 5], "a", "2", 1),
            ])
            .ended(1, &[("a", ("2", 1, 1, 1))]),
        ),
        (
            "open write is seen by its successor only",
            operations(vec![
                open_put(1, "a", "1"),
                put([2, 3], "a", "2", 2),
                get([4, 5], "a", Some(("2", 1, 2, 2)), 2),
            ]),
        ),
        (
            "open delete explains an absent key",
            operations(vec![
                put([1, 2], "a", "1", 1),
                open_delete(3, "a"),
                get([4, 5], "a", None, 2),
                delete_nothing([6, 7], "a", 2),
            ])
            .ended(2, &[]),
        ),
        (
            "open write explains a failed condition",
            operations(vec![
                put([1, 2], "a", "1", 1),
                open_put(3, "a", "2"),
                put_if([4, 5], "a", "3", 1, failed(2)),
            ]),
        ),
        (
            "one of two conditional writes wins",
            operations(vec![
                put_if([1, 10], "a", "1", 0, written(1)),
                put_if([1, 10], "a", "2", 0, failed(1)),
            ]),
        ),
        (
            "open conditional write lost its race",
            operations(vec![
                put([1, 2], "a", "1", 1),
                put_if([3, 4], "a", "2", 1, Outcome::Unknown),
                put_if([3, 9], "a", "3", 1, written(2)),
                get([10, 11], "a", Some(("3", 1, 2, 2)), 2),
            ]),
        ),
        (
            "refused write has no effect",
            operations(vec![
                put_if([1, 2], "a", "1", 0, Outcome::Refused),
                get([3, 4], "a", None, 0),
            ]),
        ),
        (
            "stale read",
            operations(vec![
                put([1, 2], "a", "1", 1),
                put([3, 4], "a", "2", 2),
                stale_get([5, 6], "a", Some(("1", 1, 1, 1)), 1),
                stale_get([7, 8], "a", None, 0),
            ]),
        ),
        (
            "lists",
            three_puts()
                .listed(list([7, 8], "", 3, &[a, b]))
                .listed(list([7, 8], "b", 3, &[b]))
                .listed(ListRead {
                    is_truncated: true,
                    ..list([7, 8], "", 3, &[a])
                })
                .listed(ListRead {
                    start: "b".to_owned(),
                    ..list([7, 8], "", 3, &[b])
                }),
        ),
        (
            "watch with a resume",
            three_puts()
                .watched(watch(
                    "",
                    &[
                        started(0),
                        event("a", ("1", 1, 1, 1)),
                        progress(1),
                        started(1),
                        event("b", ("2", 2, 2, 1)),
                        event("a", ("3", 1, 3, 2)),
                        progress(3),
                    ],
                ))
                .watched(watch("a", &[started(1), event("a", ("3", 1, 3, 2))]))
                .watched(watch(
                    "b",
                    &[
                        started(0),
                        progress(1),
                        event("b", ("2", 2, 2, 1)),
                        progress(3),
                    ],
                )),
        ),
        (
            "watch of a deletion",
            operations(vec![
                put([1, 2], "a", "1", 1),
                delete([3, 4], "a", 2),
                put([5, 6], "a", "3", 3),
            ])
            .watched(watch(
                "",
                &[
                    started(0),
                    event("a", ("1", 1, 1, 1)),
                    deleted("a", 2),
                    event("a", ("3", 3, 3, 1)),
                ],
            )),
        ),
    ]
}

#[test]
fn legal_histories_are_accepted() {
    for (name, history) in cases() {
        if let Err(violation) = check(&history, &Options::default()) {
            panic!("{name}: {violation}");
        }
    }
}

/// Without bounds by the known changes, 60 open writes have 2^60 combinations.
#[test]
fn open_writes_without_effect_are_left_out() {
    let mut writes = Vec::new();
    for index in 0..60 {
        writes.push(open_put(index, "a", &format!("open {index}")));
    }
    writes.push(put([100, 101], "a", "1", 1));
    for time in 0..200 {
        let times = [200 + 2 * time, 201 + 2 * time];
        writes.push(get(times, "a", Some(("1", 1, 1, 1)), 1));
    }
    let history = operations(writes).ended(1, &[("a", ("1", 1, 1, 1))]);
    let report = check(&history, &Options::default()).unwrap();
    assert_eq!(report.steps, 201);
}

#[test]
fn reads_beyond_known_changes_are_reported() {
    let history = operations(vec![
        put([1, 2], "a", "1", 1),
        put([3, 4], "a", "3", 3),
        get([5, 6], "a", Some(("3", 1, 3, 2)), 3),
        stale_get([7, 8], "a", Some(("1", 1, 1, 1)), 1),
    ]);
    let report = check(&history, &Options::default()).unwrap();
    assert_eq!(report.reads, 1);
    assert_eq!(report.unchecked_reads, 1);
}
