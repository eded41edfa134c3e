//! Heard: when each node was last heard of.
//!
//! In: leases and node statuses as they change. Out: times by this machine's clock, so that clocks of nodes may be wrong.
//! Holds: one entry for each lease or node there is; a control plane that starts has just heard of everybody.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use bellerophon::{EventHandler, Tombstone, WallClock};
use jiff::Timestamp;
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Node;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;

use super::super::node_status::{LEASE_NAMESPACE, condition};

#[derive(Clone, Debug)]
struct Entry {
    heartbeat: Option<Time>,
    at: Timestamp,
}

/// When nodes were last heard of, by name. Clones are the same.
#[derive(Clone)]
pub(crate) struct Heard {
    clock: WallClock,
    entries: Arc<Mutex<HashMap<String, Entry>>>,
}

impl Heard {
    pub(crate) fn new(clock: WallClock) -> Self {
        Self {
            clock,
            entries: Arc::default(),
        }
    }

    /// When the node was last heard of, its status as it is now included.
    pub(crate) fn of(&self, node: &Node) -> Timestamp {
        let now = self.clock.now();
        let ready = node
            .status
            .as_ref()
            .and_then(|status| condition(status, "Ready"));
        let heartbeat = ready.and_then(|ready| ready.last_heartbeat_time.clone());
        let mut entries = self.lock();
        let entry = entries.entry(node.name_any()).or_insert_with(|| Entry {
            heartbeat: heartbeat.clone(),
            at: now,
        });
        if entry.heartbeat != heartbeat {
            *entry = Entry { heartbeat, at: now };
        }
        entry.at
    }

    /// The node is gone.
    pub(crate) fn forget(&self, node: &str) {
        self.lock().remove(node);
    }

    fn renewed(&self, node: String) {
        let at = self.clock.now();
        self.lock()
            .entry(node)
            .and_modify(|entry| entry.at = at)
            .or_insert(Entry {
                heartbeat: None,
                at,
            });
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl EventHandler<Lease> for Heard {
    fn on_add(&self, lease: &Arc<Lease>, _: bool) {
        if lease.metadata.namespace.as_deref() == Some(LEASE_NAMESPACE) {
            self.renewed(lease.name_any());
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
