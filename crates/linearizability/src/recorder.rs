//! Records a history of concurrent clients.
//!
//! In: invocations and responses of any thread or task. Out: operations with times.
//! Guarantees: times are values of one counter, so a seeded simulation records equal histories. An
//! operation without a response is recorded with an unknown outcome.

use std::sync::{
    Mutex, MutexGuard, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use crate::history::{Key, Operation, Outcome, Request, Time};

/// Records operations. Clients share it.
#[derive(Debug, Default)]
pub struct Recorder {
    clock: AtomicU64,
    operations: Mutex<Vec<Operation>>,
}

/// An operation that was invoked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OperationId(usize);

impl Recorder {
    /// The next point in time. Each call returns a larger one.
    pub fn now(&self) -> Time {
        self.clock.fetch_add(1, Ordering::SeqCst)
    }

    /// Records an invocation. To be called before the request is sent.
    pub fn invoke(&self, key: Key, request: Request) -> OperationId {
        let mut operations = self.lock();
        let invoked = self.now();
        operations.push(Operation {
            key,
            request,
            outcome: Outcome::Unknown,
            invoked,
            finished: Time::MAX,
        });
        OperationId(operations.len() - 1)
    }

    /// Records a response. To be called after the response was received.
    pub fn finish(&self, id: OperationId, outcome: Outcome) {
        let mut operations = self.lock();
        let finished = self.now();
        let operation = &mut operations[id.0];
        operation.outcome = outcome;
        operation.finished = finished;
    }

    /// The operations so far.
    pub fn operations(&self) -> Vec<Operation> {
        self.lock().clone()
    }

    /// A panic of another client leaves complete operations behind.
    fn lock(&self) -> MutexGuard<'_, Vec<Operation>> {
        self.operations
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::history::Consistency;

    #[test]
    fn operation_without_response_is_unknown() {
        let recorder = Recorder::default();
        let get = Request::Get(Consistency::Linearizable);
        let first = recorder.invoke("a".into(), get.clone());
        recorder.invoke("b".into(), get);
        recorder.finish(first, Outcome::Refused);
        let operations = recorder.operations();
        assert_eq!(operations[0].outcome, Outcome::Refused);
        assert_eq!(operations[0].invoked, 0);
        assert_eq!(operations[0].finished, 2);
        assert_eq!(operations[1].outcome, Outcome::Unknown);
    }
}
