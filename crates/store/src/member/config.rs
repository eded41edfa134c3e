//! Settings of a member.

use std::time::Duration;

use crate::{log::LogOptions, raft::NodeOptions, state::StateOptions};

/// Heartbeats and timeouts of Raft.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How often a leader contacts the others.
    pub heartbeat: Duration,
    /// A follower without contact begins an election after a random time between this …
    pub election_min: Duration,
    /// … and this. Also how long a leader without a quorum accepts writes.
    pub election_max: Duration,
    /// How long a request of a client may take.
    pub request: Duration,
}

impl Default for Timing {
    /// The values of etcd: 100 ms heartbeats, elections after one second.
    fn default() -> Self {
        Self {
            heartbeat: Duration::from_millis(100),
            election_min: Duration::from_millis(700),
            election_max: Duration::from_millis(1400),
            request: Duration::from_secs(5),
        }
    }
}

/// Settings of a member.
#[derive(Clone, Debug)]
pub struct MemberConfig {
    /// Heartbeats and timeouts.
    pub timing: Timing,
    /// The size of a log segment.
    pub segment_bytes: u64,
    /// The state is made durable, and the log before it may be purged, after this many bytes of
    /// entries.
    pub snapshot_log_bytes: u64,
    /// Bytes of entries that are kept for members that lag; others receive a snapshot. They are
    /// kept in memory too.
    pub keep_log_bytes: usize,
    /// Events that are kept for watches at most.
    pub history_revisions: u64,
    /// Bytes of events that are kept for watches at most.
    pub history_bytes: u64,
    /// Memory for pages of the state.
    pub cache_bytes: usize,
    /// How many entries a learner may lag to become a voter.
    pub promotion_lag_max: u64,
    /// The seed of election timeouts: random in a program, fixed in a simulation.
    pub seed: u64,
}

const MIB: u64 = 1024 * 1024;

impl MemberConfig {
    /// The defaults, with a seed.
    pub fn new(seed: u64) -> Self {
        Self {
            timing: Timing::default(),
            // Long enough that a rotation is rare, short enough that a purge frees space soon.
            segment_bytes: 16 * MIB,
            snapshot_log_bytes: 64 * MIB,
            keep_log_bytes: 64 << 20,
            history_revisions: 100_000,
            history_bytes: 64 * MIB,
            cache_bytes: 256 << 20,
            promotion_lag_max: 1000,
            seed,
        }
    }

    pub(super) fn log_options(&self) -> LogOptions {
        LogOptions {
            segment_bytes: self.segment_bytes,
        }
    }

    pub(super) fn state_options(&self) -> StateOptions {
        StateOptions {
            history_revisions: self.history_revisions,
            history_bytes: self.history_bytes,
            cache_bytes: self.cache_bytes,
        }
    }

    pub(super) fn node_options(&self) -> NodeOptions {
        NodeOptions {
            heartbeat: self.timing.heartbeat,
            election_min: self.timing.election_min,
            election_max: self.timing.election_max,
            request_timeout: self.timing.request,
            snapshot_log_bytes: self.snapshot_log_bytes,
            keep_log_bytes: self.keep_log_bytes,
            promotion_lag_max: self.promotion_lag_max,
            seed: self.seed,
        }
    }
}
