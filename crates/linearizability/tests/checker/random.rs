//! Random histories: legal ones are accepted; for mutated ones the result is that of a search of
//! all orders.

use bellerophon_linearizability::{History, Key, Operation, Options, check, check_linearizability};

use crate::{
    histories::{mutate, random_history},
    model::{has_order, operations_of},
};

/// Short, since the second checker tries all orders.
const OPERATIONS: usize = 9;
const HISTORIES: u64 = 10_000;

fn all_orders(operations: &[Operation]) -> bool {
    let keys = ["a", "b"].map(Key::from);
    keys.iter()
        .all(|key| has_order(&operations_of(operations, key)))
}

fn show(operations: &[Operation]) -> String {
    let lines: Vec<String> = operations.iter().map(ToString::to_string).collect();
    lines.join("\n")
}

#[test]
fn verdicts_agree_with_a_search_of_all_orders() {
    let mut illegal = 0;
    for seed in 0..HISTORIES {
        let mut operations = random_history(seed, OPERATIONS);
        for round in 0..seed % 3 {
            mutate(&mut operations, seed * 3 + round);
        }
        let verdict = check_linearizability(&operations, &Options::default());
        let expected = all_orders(&operations);
        assert_eq!(
            verdict.is_ok(),
            expected,
            "seed {seed}: {verdict:?}\n{}",
            show(&operations)
        );
        illegal += u64::from(!expected);
    }
    assert!(illegal > HISTORIES / 4, "only {illegal} are illegal");
    assert!(illegal < HISTORIES * 3 / 4, "{illegal} are illegal");
}

#[test]
fn long_legal_histories_pass_all_checks() {
    for seed in 0..20 {
        let history = History {
            operations: random_history(seed, 2_000),
            ..History::default()
        };
        let report = check(&history, &Options::default());
        let report = report.unwrap_or_else(|violation| panic!("seed {seed}: {violation}"));
        assert_eq!(report.operations, 2_000);
        assert_eq!(report.keys, 2);
    }
}

#[test]
fn evidence_of_illegal_histories_is_illegal() {
    let mut shorter = 0;
    for seed in 0..2_000 {
        let mut operations = random_history(seed, 40);
        mutate(&mut operations, seed);
        let Err(violation) = check_linearizability(&operations, &Options::default()) else {
            continue;
        };
        let evidence = &violation.operations;
        assert!(
            check_linearizability(evidence, &Options::default()).is_err(),
            "seed {seed}: {violation}"
        );
        shorter += u32::from(evidence.len() * 2 < operations.len());
    }
    assert!(shorter > 100, "only {shorter} are short");
}
