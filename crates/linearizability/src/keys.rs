//! Linearizability of each key.
//!
//! In: the operations of a history and the changes that it proves. Out: a violation with the
//! smallest illegal history of a key.
//! Guarantees: a write of unknown outcome may have happened at any time after its invocation, or
//! never. If its value is unique and was seen, it happened before that; if all changes are known
//! and it is not among them, it never happened.

use std::collections::{BTreeMap, HashMap};

use crate::{
    event_log::EventLog,
    evidence,
    history::{History, Key, Operation, Outcome, Request, Value},
    register::{Call, Found, ValueId},
    report::{Options, Report, Violated, Violation},
    search::{self, Interval, Item, search},
};

/// Checks all keys.
pub(crate) fn check(
    history: &History,
    log: &EventLog,
    options: &Options,
    report: &mut Report,
) -> Result<(), Violation> {
    let proof = Proof {
        log,
        knows_all: history
            .end
            .as_ref()
            .is_some_and(|end| log.complete_through() >= end.revision),
    };
    let mut keys: BTreeMap<&Key, Vec<&Operation>> = BTreeMap::new();
    for operation in &history.operations {
        if operation.is_linearizable() {
            keys.entry(&operation.key).or_default().push(operation);
        }
    }
    report.keys = keys.len();
    for (key, mut operations) in keys {
        operations.sort_by_key(|operation| operation.invoked);
        let items = items(&operations, &proof);
        check_key(key, &items, options, report)?;
    }
    Ok(())
}

fn check_key(
    key: &Key,
    items: &[Item<'_>],
    options: &Options,
    report: &mut Report,
) -> Result<(), Violation> {
    let intervals: Vec<Interval> = items.iter().map(|(_, interval)| interval.clone()).collect();
    match search(&intervals, options.steps_max, &mut report.steps) {
        search::Found::Order => Ok(()),
        search::Found::Limit => Err(Violation::new(
            Violated::SearchLimit,
            format!(
                "key {key}: no answer after {} steps for {} operations",
                options.steps_max,
                items.len()
            ),
        )),
        search::Found::NoOrder => {
            let evidence = evidence::minimize(items, options.steps_max);
            Err(Violation::with_operations(
                Violated::Linearizability,
                format!("key {key}: no order of these operations explains their outcomes"),
                evidence,
            ))
        }
    }
}

/// What other clients' reads and watches prove about writes of unknown outcome.
struct Proof<'a> {
    log: &'a EventLog,
    /// Whether every change of the history is in the log.
    knows_all: bool,
}

/// Numbers for the values of one key.
#[derive(Default)]
struct Values<'a> {
    ids: HashMap<&'a Value, ValueId>,
    /// How many puts request a value.
    puts: HashMap<&'a Value, usize>,
}

impl<'a> Values<'a> {
    fn of(operations: &[&'a Operation]) -> Self {
        let mut values = Self::default();
        for operation in operations {
            if let Request::Put { value, .. } = &operation.request {
                values.add(value);
                *values.puts.entry(value).or_default() += 1;
            }
            if let Outcome::Read {
                state: Some(state), ..
            } = &operation.outcome
            {
                values.add(&state.value);
            }
        }
        values
    }

    fn add(&mut self, value: &'a Value) {
        let next = self.ids.len() as ValueId;
        self.ids.entry(value).or_insert(next);
    }

    fn is_unique(&self, value: &Value) -> bool {
        self.puts.get(value) == Some(&1)
    }
}

fn items<'a>(operations: &[&'a Operation], proof: &Proof<'_>) -> Vec<Item<'a>> {
    let values = Values::of(operations);
    let intervals = operations.iter().map(|operation| {
        if operation.is_open_write() {
            proof.open_write(operation, &values)
        } else {
            Some(Interval {
                call: call(operation, &values),
                start: operation.invoked,
                end: Some(operation.finished),
            })
        }
    });
    let pairs = operations.iter().zip(intervals);
    pairs
        .filter_map(|(operation, interval)| Some((*operation, interval?)))
        .collect()
}

impl Proof<'_> {
    /// The interval of a write of unknown outcome; none if it never happened.
    fn open_write(&self, operation: &Operation, values: &Values<'_>) -> Option<Interval> {
        let mut interval = Interval {
            call: call(operation, values),
            start: operation.invoked,
            end: None,
        };
        match &operation.request {
            Request::Put { value, if_revision } if values.is_unique(value) => {
                match self.log.observation(&operation.key, value) {
                    Some((revision, seen)) => {
                        interval.end = Some(seen);
                        interval.call = Call::Put {
                            value: values.ids[value],
                            condition: *if_revision,
                            revision: Some(revision),
                        };
                        Some(interval)
                    }
                    None => (!self.knows_all).then_some(interval),
                }
            }
            Request::Delete { .. } => {
                let may_delete = !self.knows_all || self.log.has_unconfirmed_delete(&operation.key);
                may_delete.then_some(interval)
            }
            _ => Some(interval),
        }
    }
}

/// The call of an operation. Only operations of the linearizable history have one.
fn call(operation: &Operation, values: &Values<'_>) -> Call {
    let revision = match operation.outcome {
        Outcome::Written { revision } => Some(revision),
        _ => None,
    };
    let condition = match &operation.request {
        Request::Get(_) => None,
        Request::Put { if_revision, .. } | Request::Delete { if_revision } => *if_revision,
    };
    match (&operation.request, &operation.outcome) {
        (_, Outcome::Read { state, revision }) => Call::Get {
            found: state.as_ref().map(|state| Found {
                value: values.ids[&state.value],
                created: state.create_revision,
                modified: state.mod_revision,
                version: state.version,
            }),
            revision: *revision,
        },
        (_, Outcome::ConditionFailed { mod_revision }) => Call::ConditionFailed {
            condition,
            mod_revision: *mod_revision,
        },
        (_, Outcome::NothingDeleted { revision }) => Call::DeleteNothing {
            revision: *revision,
        },
        (Request::Put { value, .. }, _) => Call::Put {
            value: values.ids[value],
            condition,
            revision,
        },
        (Request::Delete { .. } | Request::Get(_), _) => Call::Delete {
            condition,
            revision,
        },
    }
}
