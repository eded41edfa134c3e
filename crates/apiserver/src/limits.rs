//! The limits of a server that its embedder chooses.

/// How many requests a server executes concurrently.
///
/// The sum of both is shared out among the priority levels by API Priority and Fairness, as
/// kube-apiserver does with `--max-requests-inflight` and `--max-mutating-requests-inflight`, whose
/// defaults these are. Requests beyond that wait in the queues that the PriorityLevelConfigurations
/// configure, or are answered 429 with `Retry-After`. Requests of `system:masters` are exempt.
///
/// Every request may hold a body of up to 3 MiB while it waits. Watches count only until they are
/// started.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    /// Seats that requests which read add.
    pub reads_max: usize,
    /// Seats that requests which write add.
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
