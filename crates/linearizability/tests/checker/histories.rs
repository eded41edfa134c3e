//! Random histories of one simulated store with mutations.
//!
//! Guarantees: equal seeds result in equal histories. A history without mutation is legal.

use std::{collections::BTreeMap, sync::Arc};

use bellerophon_linearizability::{
    Consistency, KeyState, Operation, Outcome, Request, Revision, Time,
};
use rand::{RngExt as _, SeedableRng as _, rngs::StdRng};

/// The keys of random histories.
const KEYS: [&str; 2] = ["a", "b"];

/// An operation on a key within a time.
pub(crate) fn operation(
    times: [Time; 2],
    key: &str,
    request: Request,
    outcome: Outcome,
) -> Operation {
    Operation {
        key: key.into(),
        request,
        outcome,
        invoked: times[0],
        finished: times[1],
    }
}

/// The request to write a value.
pub(crate) fn put_request(value: &str, if_revision: Option<Revision>) -> Request {
    Request::Put {
        value: Arc::from(value.as_bytes()),
        if_revision,
    }
}

/// A key that exists: value, created, modified, version.
pub(crate) fn state(value: &str, created: Revision, modified: Revision, version: u64) -> KeyState {
    KeyState {
        value: Arc::from(value.as_bytes()),
        create_revision: created,
        mod_revision: modified,
        version,
    }
}

/// A random legal history of `count` operations, of which some are concurrent.
pub(crate) fn random_history(seed: u64, count: usize) -> Vec<Operation> {
    let mut random = StdRng::seed_from_u64(seed);
    let mut store = SimulatedStore::default();
    let mut operations = Vec::new();
    for index in 0..count {
        // Operations take effect at multiples of 10, and last up to three of these.
        let effect = 10 * (index as Time + 4);
        let times = [
            effect - random.random_range(1..30),
            effect + random.random_range(1..30),
        ];
        let key = KEYS[random.random_range(0..KEYS.len())];
        let request = random_request(&mut random, &store, key, index);
        let is_lost = random.random_bool(0.15);
        let is_executed = !is_lost || random.random_bool(0.5);
        let mut outcome = Outcome::Unknown;
        if is_executed {
            outcome = store.execute(key, &request);
        }
        if is_lost {
            outcome = Outcome::Unknown;
        }
        operations.push(operation(times, key, request, outcome));
    }
    operations
}

fn random_request(random: &mut StdRng, store: &SimulatedStore, key: &str, index: usize) -> Request {
    let current = store.keys.get(key).map_or(0, |state| state.mod_revision);
    let condition = match random.random_range(0..4) {
        0 => Some(current),
        1 => Some(random.random_range(0..=store.revision)),
        _ => None,
    };
    match random.random_range(0..10) {
        0..4 => Request::Get(Consistency::Linearizable),
        4..8 => put_request(&format!("v{index}"), condition),
        _ => Request::Delete {
            if_revision: condition.filter(|revision| *revision > 0),
        },
    }
}

/// Changes one operation so that the history may be illegal.
pub(crate) fn mutate(operations: &mut [Operation], seed: u64) {
    let mut random = StdRng::seed_from_u64(seed);
    let outcomes: Vec<Outcome> = operations.iter().map(|o| o.outcome.clone()).collect();
    let index = random.random_range(0..operations.len());
    let shift = random.random_range(1..60);
    let operation = &mut operations[index];
    match (random.random_range(0..4), &mut operation.outcome) {
        (0, _) => {
            operation.invoked += shift;
            operation.finished += shift;
        }
        (1, Outcome::Read { state, .. }) => {
            *state = outcomes
                .iter()
                .rev()
                .find_map(|outcome| match outcome {
                    Outcome::Read { state, .. } if random.random_bool(0.5) => Some(state.clone()),
                    _ => None,
                })
                .flatten();
        }
        (
            _,
            Outcome::Read {
                state: Some(state), ..
            },
        ) => state.version += 1,
        (_, Outcome::Read { revision, .. } | Outcome::Written { revision }) => {
            *revision = (*revision + random.random_range(0..4)).saturating_sub(2);
        }
        (_, Outcome::ConditionFailed { mod_revision }) => {
            *mod_revision = random.random_range(0..=*mod_revision + 1);
        }
        (_, outcome @ (Outcome::NothingDeleted { .. } | Outcome::Refused)) => {
            *outcome = Outcome::Written {
                revision: random.random_range(1..10),
            };
        }
        (_, Outcome::Unknown) => operation.invoked += shift,
    }
}

/// A correct store.
#[derive(Default)]
struct SimulatedStore {
    keys: BTreeMap<String, KeyState>,
    revision: Revision,
}

impl SimulatedStore {
    fn execute(&mut self, key: &str, request: &Request) -> Outcome {
        let current = self.keys.get(key).cloned();
        let modified = current.as_ref().map_or(0, |state| state.mod_revision);
        match request {
            Request::Get(_) => Outcome::Read {
                state: current,
                revision: self.revision,
            },
            Request::Put { if_revision, .. } | Request::Delete { if_revision }
                if if_revision.is_some_and(|revision| revision != modified) =>
            {
                Outcome::ConditionFailed {
                    mod_revision: modified,
                }
            }
            Request::Put { value, .. } => {
                self.revision += 1;
                let state = KeyState {
                    value: value.clone(),
                    create_revision: current
                        .as_ref()
                        .map_or(self.revision, |s| s.create_revision),
                    mod_revision: self.revision,
                    version: current.map_or(1, |state| state.version + 1),
                };
                self.keys.insert(key.to_owned(), state);
                Outcome::Written {
                    revision: self.revision,
                }
            }
            Request::Delete { .. } if current.is_none() => Outcome::NothingDeleted {
                revision: self.revision,
            },
            Request::Delete { .. } => {
                self.revision += 1;
                self.keys.remove(key);
                Outcome::Written {
                    revision: self.revision,
                }
            }
        }
    }
}
