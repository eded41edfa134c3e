//! Heartbeats: when each node last renewed its lease or reported its status.
//!
//! In: leases and node statuses from informers. Out: times of this process's clock, so the clocks
//! of nodes do not matter (upstream `nodeHealthMap`).
//! Guarantees: one entry per lease or node; a controller that starts counts all existing nodes as
//! healthy at that time.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bellerophon::clock::Clock;
use bellerophon::informer::{EventHandler, Tombstone};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::super::node_status::{LEASE_NAMESPACE, condition};

#[derive(Clone, Debug)]
struct Entry {
    /// The last `lastHeartbeatTime` of the Ready condition.
    heartbeat_time: Option<Time>,
    /// When the last heartbeat was observed.
    observed_at: Timestamp,
}

/// The last heartbeats, by node name. Clones share their state.
#[derive(Clone)]
pub(crate) struct Heartbeats {
    clock: Clock,
    entries: Arc<Mutex<HashMap<String, Entry>>>,
}

impl Heartbeats {
    pub(crate) fn new(clock: Clock) -> Self {
        Self {
            clock,
            entries: Arc::default(),
        }
    }

    /// When the last heartbeat of the node was observed; records a new heartbeat in its status.
    pub(crate) fn last_observed(&self, node: &Node) -> Timestamp {
        let now = self.clock.now();
        let ready = node
            .status
            .as_ref()
            .and_then(|status| condition(status, "Ready"));
        let heartbeat_time = ready.and_then(|ready| ready.last_heartbeat_time.clone());
        let mut entries = self.lock();
        let entry = entries.entry(node.name_any()).or_insert_with(|| Entry {
            heartbeat_time: heartbeat_time.clone(),
            observed_at: now,
        });
        // Times of the node are compared with each other only, never with this clock.
        if entry.heartbeat_time != heartbeat_time {
            *entry = Entry {
                heartbeat_time,
                observed_at: now,
            };
        }
        entry.observed_at
    }

    /// Removes a node that was deleted.
    pub(crate) fn remove(&self, node: &str) {
        self.lock().remove(node);
    }

    fn record_renewal(&self, node: String) {
        let observed_at = self.clock.now();
        self.lock()
            .entry(node)
            .and_modify(|entry| entry.observed_at = observed_at)
            .or_insert(Entry {
                heartbeat_time: None,
                observed_at,
            });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventHandler<Lease> for Heartbeats {
    fn on_add(&self, lease: &Arc<Lease>, _: bool) {
        if lease.metadata.namespace.as_deref() == Some(LEASE_NAMESPACE) {
            self.record_renewal(lease.name_any());
        }
    }

    fn on_update(&self, old: &Arc<Lease>, new: &Arc<Lease>) {
        let renew_time =
            |lease: &Lease| lease.spec.as_ref().and_then(|spec| spec.renew_time.clone());
        if renew_time(old) != renew_time(new) {
            self.on_add(new, false);
        }
    }

    fn on_delete(&self, _: Tombstone<Lease>) {}
}
