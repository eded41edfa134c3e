//! The limits of a server that its embedder chooses.

/// The number of requests that a server executes concurrently.
///
/// The sum of both is divided among the priority levels by API Priority and Fairness, as
/// kube-apiserver does with `--max-requests-inflight` and `--max-mutating-requests-inflight`, whose
/// defaults these are. Requests beyond that wait in the queues of their PriorityLevelConfiguration,
/// or are rejected with 429 and `Retry-After`. Requests of `system:masters` are exempt.
///
/// Every request may hold a body of up to 3 MiB while it waits. Watches count only until they are
/// started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Seats for reads.
    pub reads_max: usize,
    /// Seats for writes.
    pub writes_max: usize,
}

impl Default for RequestLimits {
    fn default() -> Self {
        Self {
            reads_max: 400,
            writes_max: 200,
        }
    }
}
