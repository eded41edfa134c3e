//! Prometheus metrics of a member.
//!
//! In: requests as they end, and the status of the member when metrics are read. Out: the text of
//! `/metrics`.
//! Guarantees: labels have a bounded set of values; no label is a key or an address.

use std::sync::atomic::AtomicU64;

use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};
use tokio::time::Instant;

use crate::api::{MemberState, Role, Status};

/// Bounds of durations in seconds: from a read of memory to an election.
const DURATION_BUCKETS: [f64; 12] = [
    0.0005, 0.001, 0.002, 0.004, 0.008, 0.016, 0.032, 0.064, 0.128, 0.512, 2.048, 8.192,
];

/// A request of the API, as a label.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Operation {
    Get,
    Put,
    Delete,
    List,
    Watch,
    Admin,
}

impl Operation {
    fn label(self) -> &'static str {
        match self {
            Self::Get => "get",
            Self::Put => "put",
            Self::Delete => "delete",
            Self::List => "list",
            Self::Watch => "watch",
            Self::Admin => "admin",
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    operation: &'static str,
    code: u16,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OperationLabel {
    operation: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct MemberLabel {
    member: u64,
}

type Number = Gauge<u64, AtomicU64>;

/// The metrics of a member.
pub(crate) struct Metrics {
    registry: Registry,
    requests: Family<RequestLabels, Counter>,
    durations: Family<OperationLabel, Histogram, fn() -> Histogram>,
    watches: Gauge,
    status: StatusGauges,
}

/// Gauges that are set from the status.
#[derive(Default)]
struct StatusGauges {
    is_running: Number,
    is_leader: Number,
    has_leader: Number,
    term: Number,
    last_log_index: Number,
    committed_index: Number,
    applied_index: Number,
    revision: Number,
    compacted_revision: Number,
    data_bytes: Number,
    log_bytes: Number,
    lag: Family<MemberLabel, Number>,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("store");
        let requests = Family::default();
        registry.register(
            "requests",
            "Requests of the client API and the admin API, by operation and status code",
            requests.clone(),
        );
        let durations =
            Family::<OperationLabel, Histogram, fn() -> Histogram>::new_with_constructor(|| {
                Histogram::new(DURATION_BUCKETS)
            });
        registry.register_with_unit(
            "request_duration",
            "From the headers of a request to those of its response",
            Unit::Seconds,
            durations.clone(),
        );
        let watches = Gauge::default();
        registry.register("watches", "Open watch streams", watches.clone());
        let status = StatusGauges::default();
        status.register(&mut registry);
        Self {
            registry,
            requests,
            durations,
            watches,
            status,
        }
    }

    /// Counts a request.
    pub(crate) fn observe(&self, operation: Operation, code: u16, started: Instant) {
        let operation = operation.label();
        let labels = RequestLabels { operation, code };
        self.requests.get_or_create(&labels).inc();
        let durations = self.durations.get_or_create(&OperationLabel { operation });
        durations.observe(started.elapsed().as_secs_f64());
    }

    /// The number of open watch streams.
    pub(crate) fn watches(&self) -> &Gauge {
        &self.watches
    }

    /// The registry, for metrics of other modules. Only before the member serves.
    pub(crate) fn registry(&mut self) -> &mut Registry {
        &mut self.registry
    }

    /// The text of all metrics.
    pub(crate) fn encode(&self, status: &Status) -> String {
        self.status.set(status);
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("writing to a string does not fail");
        text
    }
}

impl StatusGauges {
    fn register(&self, registry: &mut Registry) {
        let mut gauge = |name: &str, help: &str, gauge: &Number| {
            registry.register(name, help, gauge.clone());
        };
        gauge(
            "member_running",
            "1 if the member is part of the membership",
            &self.is_running,
        );
        gauge(
            "raft_is_leader",
            "1 if the member is the leader",
            &self.is_leader,
        );
        gauge(
            "raft_has_leader",
            "1 if the member knows a leader",
            &self.has_leader,
        );
        gauge("raft_term", "The current term", &self.term);
        gauge(
            "raft_last_log_index",
            "The last entry in the log",
            &self.last_log_index,
        );
        gauge(
            "raft_committed_index",
            "The last committed entry",
            &self.committed_index,
        );
        gauge(
            "raft_applied_index",
            "The last entry in the state",
            &self.applied_index,
        );
        gauge("revision", "The revision of the state", &self.revision);
        gauge(
            "compacted_revision",
            "Watches can begin after this revision",
            &self.compacted_revision,
        );
        gauge(
            "db_size_bytes",
            "Bytes of keys and values",
            &self.data_bytes,
        );
        gauge(
            "log_size_bytes",
            "Bytes of the log on disk",
            &self.log_bytes,
        );
        registry.register(
            "raft_lag_entries",
            "Entries that a member does not have yet; on the leader only",
            self.lag.clone(),
        );
    }

    fn set(&self, status: &Status) {
        self.is_running
            .set(u64::from(status.state == MemberState::Running));
        self.is_leader
            .set(u64::from(status.role == Some(Role::Leader)));
        self.has_leader.set(u64::from(status.leader.is_some()));
        self.term.set(status.term);
        self.last_log_index.set(status.last_log_index);
        self.committed_index.set(status.committed_index);
        self.applied_index.set(status.applied_index);
        self.revision.set(status.revision);
        self.compacted_revision.set(status.compacted_revision);
        self.data_bytes.set(status.data_bytes);
        self.log_bytes.set(status.log_bytes);
        self.lag.clear();
        for (member, replication) in &status.replication {
            let label = MemberLabel { member: *member };
            self.lag.get_or_create(&label).set(replication.lag);
        }
    }
}
