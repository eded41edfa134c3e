//! Compares the linearizability checker with porcupine-rs on random histories, legal and mutated.
//!
//! Output: the number of histories and of illegal ones. Exit code: 1 if a verdict differs.

#[path = "../../../crates/linearizability/tests/checker/histories.rs"]
mod histories;
#[path = "../../../crates/linearizability/tests/checker/model.rs"]
mod model;

use std::{collections::BTreeSet, process::ExitCode};

use bellerophon_linearizability::{Key, Operation, Options, Outcome, check_linearizability};
use porcupine_rs::{Model, check_operations};

const HISTORIES: u64 = 10_000;

/// The number of operations of the shortest and the longest history.
const OPERATIONS: [u64; 2] = [5, 45];

#[derive(Clone, Debug)]
struct KeyModel;

impl Model for KeyModel {
    type State = BTreeSet<model::State>;
    type Op = Operation;
    type Metadata = ();

    fn init() -> Self::State {
        model::initial()
    }

    fn step(state: &Self::State, operation: &Operation) -> (bool, Self::State) {
        let after = model::step(state, operation);
        (!after.is_empty(), after)
    }
}

fn porcupine(operations: &[Operation]) -> bool {
    ["a", "b"].map(Key::from).iter().all(|key| {
        let operations = model::operations_of(operations, key);
        let history: Vec<_> = operations.into_iter().map(converted).collect();
        check_operations(&history)
    })
}

fn converted(operation: Operation) -> porcupine_rs::Operation<KeyModel> {
    let return_time = match operation.outcome {
        Outcome::Unknown => i64::MAX,
        _ => operation.finished as i64,
    };
    porcupine_rs::Operation {
        client_id: None,
        call_time: operation.invoked as i64,
        return_time,
        op: operation,
        metadata: None,
    }
}

fn main() -> ExitCode {
    let mut illegal = 0;
    for seed in 0..HISTORIES {
        let count = OPERATIONS[0] + seed % (OPERATIONS[1] - OPERATIONS[0]);
        let mut operations = histories::random_history(seed, count as usize);
        for round in 0..seed % 3 {
            histories::mutate(&mut operations, seed * 3 + round);
        }
        let expected = porcupine(&operations);
        let verdict = check_linearizability(&operations, &Options::default());
        if verdict.is_ok() != expected {
            eprintln!("seed {seed}: porcupine-rs: {expected}, ours: {verdict:?}");
            for operation in &operations {
                eprintln!("  {operation}");
            }
            return ExitCode::FAILURE;
        }
        illegal += u64::from(!expected);
    }
    println!("{HISTORIES} histories, {illegal} of them illegal: equal verdicts");
    ExitCode::SUCCESS
}
