//! Simulated nodes: the state of the machines behind the Node objects.
//!
//! In: operations such as a power loss. Out: which nodes can reach the API server, their boot IDs
//! and addresses.
//! Guarantees: a node that is powered off or partitioned neither reads nor writes the API; every
//! boot has its own boot ID; a pod IP belongs to at most one pod of a node.

use std::collections::{BTreeMap, BTreeSet};
use std::net::{IpAddr, Ipv4Addr};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bellerophon::clock::Rng;
use jiff::Timestamp;
use tokio::sync::watch;

use super::node_simulation::{NodeSimulation, Operation, RESTART_PERIOD_MAX};
use super::node_status::{KUBELET_PORT, RuntimeInfo};
use super::time::after;

/// How long a reboot takes.
pub(crate) const BOOT_TIME: Duration = Duration::from_secs(10);

/// The last octets of pod IPs in a node's pod CIDR; the first address is the gateway.
const POD_IP_OCTETS: std::ops::RangeInclusive<u8> = 2..=254;

/// Whether a node is running.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Power {
    On,
    Off,
    Booting { until: Timestamp },
}

/// The state of a simulated node.
#[derive(Clone, Debug)]
pub(crate) struct SimulatedNode {
    pub(crate) name: String,
    number: u32,
    pub(crate) power: Power,
    /// Its containers run, but it cannot reach the API server.
    pub(crate) partitioned: bool,
    /// The annotations that were applied last; `None` until its Node object was read.
    simulation: Option<NodeSimulation>,
    pub(crate) boot_id: String,
    /// When it booted last; [`Timestamp::MIN`] if it booted before this process started.
    pub(crate) booted_at: Timestamp,
    /// Its kubelet has found or created its Node object since the last boot.
    pub(crate) registered: bool,
    pub(crate) lease_renewed_at: Option<Timestamp>,
    pub(crate) status_reported_at: Option<Timestamp>,
    /// `spec.unschedulable` at the last status report.
    pub(crate) unschedulable: bool,
    pub(crate) runtime: Arc<RuntimeInfo>,
    /// The port of its kubelet's HTTP server.
    pub(crate) kubelet_port: u16,
}

impl SimulatedNode {
    /// Whether it can reach the API server.
    pub(crate) fn is_reachable(&self) -> bool {
        self.power == Power::On && !self.partitioned
    }

    fn operate(&mut self, operation: Operation, now: Timestamp) {
        match operation {
            Operation::PowerOff => self.power = Power::Off,
            Operation::PowerOn if self.power == Power::Off => {
                self.power = Power::Booting { until: now };
            }
            Operation::PowerOn => {}
            Operation::Reboot => {
                self.power = Power::Booting {
                    until: after(now, BOOT_TIME),
                };
            }
            Operation::Partition => self.partitioned = true,
            Operation::Reconnect if !self.partitioned => {}
            Operation::Reconnect => {
                self.partitioned = false;
                // Both are due as soon as the node reconnects.
                self.lease_renewed_at = None;
                self.status_reported_at = None;
            }
        }
    }

    /// The longest restart back-off of its containers. Mirrors `maxContainerRestartPeriod` of the
    /// kubelet's configuration.
    pub(crate) fn backoff_max(&self) -> Duration {
        let annotated = self.simulation.as_ref();
        annotated
            .and_then(|simulation| simulation.max_container_restart_period)
            .unwrap_or(RESTART_PERIOD_MAX)
    }

    pub(crate) fn host_ip(&self) -> Ipv4Addr {
        // 172.16.0.0/12 is large enough for a million nodes.
        let [_, b, c, d] = self.number.to_be_bytes();
        Ipv4Addr::new(172, 16 + b, c, d)
    }

    pub(crate) fn pod_cidr(&self) -> String {
        format!("{}/24", self.pod_ip(0))
    }

    /// One of three zones, assigned round-robin.
    pub(crate) fn zone(&self) -> &'static str {
        ["zone-a", "zone-b", "zone-c"][(self.number as usize + 2) % 3]
    }

    fn pod_ip(&self, last_octet: u8) -> Ipv4Addr {
        // One /24 of 10.128.0.0/9 per node.
        let [_, _, c, d] = self.number.to_be_bytes();
        Ipv4Addr::new(10, 128 | c, d, last_octet)
    }
}

struct Entry {
    node: SimulatedNode,
    /// The uid of the pod that has a pod IP, by last octet.
    pod_ips: BTreeMap<u8, String>,
}

/// All simulated nodes of a cluster.
pub(crate) struct SimulatedNodes {
    entries: Mutex<BTreeMap<String, Entry>>,
    rng: Rng,
    /// Nodes that have not been Ready since the start.
    not_ready: Mutex<BTreeSet<String>>,
    all_ready: watch::Sender<bool>,
}

impl SimulatedNodes {
    /// Creates `count` nodes that are powered on and connected. `all_ready` becomes `true` once
    /// every node has been Ready.
    pub(crate) fn new(
        count: usize,
        rng: Rng,
        all_ready: watch::Sender<bool>,
        runtime: RuntimeInfo,
    ) -> Self {
        let runtime = Arc::new(runtime);
        let node = |number: u32| SimulatedNode {
            name: node_name(number),
            number,
            power: Power::On,
            partitioned: false,
            simulation: None,
            boot_id: uuid(&rng),
            booted_at: Timestamp::MIN,
            registered: false,
            lease_renewed_at: None,
            status_reported_at: None,
            unschedulable: false,
            runtime: runtime.clone(),
            kubelet_port: KUBELET_PORT,
        };
        let nodes = (1..=u32::try_from(count).unwrap_or(u32::MAX)).map(node);
        let entries: BTreeMap<_, _> = nodes
            .map(|node| {
                let entry = Entry {
                    pod_ips: BTreeMap::new(),
                    node,
                };
                (entry.node.name.clone(), entry)
            })
            .collect();
        let not_ready: BTreeSet<_> = entries.keys().cloned().collect();
        all_ready.send_replace(not_ready.is_empty());
        Self {
            entries: Mutex::new(entries),
            rng,
            not_ready: Mutex::new(not_ready),
            all_ready,
        }
    }

    pub(crate) fn names(&self) -> Vec<String> {
        self.lock().keys().cloned().collect()
    }

    /// The addresses of all nodes.
    pub(crate) fn host_ips(&self) -> Vec<IpAddr> {
        let entries = self.lock();
        let ips = entries.values().map(|entry| entry.node.host_ip().into());
        ips.collect()
    }

    pub(crate) fn contains(&self, name: &str) -> bool {
        self.lock().contains_key(name)
    }

    pub(crate) fn get(&self, name: &str) -> Option<SimulatedNode> {
        self.lock().get(name).map(|entry| entry.node.clone())
    }

    /// The node with that host IP.
    pub(crate) fn with_host_ip(&self, ip: IpAddr) -> Option<SimulatedNode> {
        let IpAddr::V4(ip) = ip.to_canonical() else {
            return None;
        };
        let [_, b, c, d] = ip.octets();
        let number = u32::from_be_bytes([0, b.checked_sub(16)?, c, d]);
        let node = self.get(&node_name(number))?;
        (node.host_ip() == ip).then_some(node)
    }

    /// The names, in the order of the numbers of the nodes.
    pub(crate) fn names_by_number(&self) -> Vec<String> {
        let entries = self.lock();
        let mut nodes: Vec<&SimulatedNode> = entries.values().map(|entry| &entry.node).collect();
        nodes.sort_by_key(|node| node.number);
        nodes.into_iter().map(|node| node.name.clone()).collect()
    }

    /// Sets the ports of the kubelets, in the order of the numbers of the nodes.
    pub(crate) fn set_kubelet_ports(&self, ports: &[u16]) {
        for (name, port) in self.names_by_number().iter().zip(ports) {
            self.update(name, |node| node.kubelet_port = *port);
        }
    }

    /// Changes the state of a node; `None` if there is no such node.
    pub(crate) fn update<T>(
        &self,
        name: &str,
        update: impl FnOnce(&mut SimulatedNode) -> T,
    ) -> Option<T> {
        self.lock()
            .get_mut(name)
            .map(|entry| update(&mut entry.node))
    }

    /// Performs an operation on a node; `None` if there is no such node.
    pub(crate) fn operate(&self, name: &str, operation: Operation, now: Timestamp) -> Option<()> {
        self.update(name, |node| node.operate(operation, now))
    }

    /// Applies annotations, and performs the operations that follow from their change; returns
    /// whether they have changed.
    pub(crate) fn apply_annotations(
        &self,
        name: &str,
        simulation: &NodeSimulation,
        now: Timestamp,
    ) -> bool {
        let changed = self.update(name, |node| {
            if node.simulation.as_ref() == Some(simulation) {
                return false;
            }
            for operation in simulation.operations_since(node.simulation.as_ref()) {
                node.operate(operation, now);
            }
            node.simulation = Some(simulation.clone());
            true
        });
        changed.unwrap_or_default()
    }

    /// Ends the boot of a node: it has a new boot ID, and its kubelet starts without state.
    pub(crate) fn finish_boot(&self, name: &str, now: Timestamp) {
        let boot_id = uuid(&self.rng);
        self.update(name, |node| {
            node.power = Power::On;
            node.booted_at = now;
            node.boot_id = boot_id;
            node.registered = false;
            node.lease_renewed_at = None;
            node.status_reported_at = None;
        });
    }

    /// Records that the node's Node object is Ready.
    pub(crate) fn mark_ready(&self, name: &str) {
        // The guard ends before the watchers are notified.
        let was_last = {
            let mut not_ready = self
                .not_ready
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            not_ready.remove(name) && not_ready.is_empty()
        };
        if was_last {
            self.all_ready.send_replace(true);
        }
    }

    /// Allocates a pod IP: the one the pod has, the one in its status, or a free one; `None` if
    /// all are in use.
    pub(crate) fn allocate_pod_ip(
        &self,
        name: &str,
        uid: &str,
        status_ip: Option<&str>,
    ) -> Option<String> {
        let mut entries = self.lock();
        let entry = entries.get_mut(name)?;
        let allocated = entry
            .pod_ips
            .iter()
            .find(|(_, owner)| *owner == uid)
            .map(|(octet, _)| *octet);
        // The status has the IP that an earlier process allocated.
        let from_status = status_ip
            .and_then(|ip| ip.parse::<Ipv4Addr>().ok())
            .map(|ip| ip.octets()[3])
            .filter(|octet| entry.node.pod_ip(*octet).to_string() == status_ip.unwrap_or_default());
        let is_free = |octet: &u8| !entry.pod_ips.contains_key(octet);
        let octet = allocated
            .or(from_status.filter(is_free))
            .or_else(|| POD_IP_OCTETS.into_iter().find(is_free))?;
        entry.pod_ips.insert(octet, uid.to_owned());
        Some(entry.node.pod_ip(octet).to_string())
    }

    pub(crate) fn release_pod_ip(&self, name: &str, uid: &str) {
        if let Some(entry) = self.lock().get_mut(name) {
            entry.pod_ips.retain(|_, owner| owner != uid);
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<String, Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn node_name(number: u32) -> String {
    format!("node-{number}")
}

/// A random UUID, version 4.
pub(crate) fn uuid(rng: &Rng) -> String {
    let high = rng.below(u64::MAX);
    let low = rng.below(u64::MAX);
    let time_low = high >> 32;
    let time_mid = (high >> 16) & 0xffff;
    let time_high = high & 0xfff;
    let variant = (low >> 48) & 0x3fff | 0x8000;
    let node = low & 0xffff_ffff_ffff;
    format!("{time_low:08x}-{time_mid:04x}-4{time_high:03x}-{variant:04x}-{node:012x}")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn nodes(count: usize) -> SimulatedNodes {
        let all_ready = watch::Sender::new(false);
        SimulatedNodes::new(count, Rng::seeded(7), all_ready, RuntimeInfo::simulated())
    }

    #[test]
    fn pod_ips_are_kept_and_allocated_to_one_pod() {
        let nodes = nodes(300);
        for (uid, status_ip, expected) in [
            ("a", None, Some("10.129.43.2")),
            ("b", None, Some("10.129.43.3")),
            ("a", None, Some("10.129.43.2")),
            ("c", Some("10.129.43.9"), Some("10.129.43.9")),
            ("d", Some("10.129.43.9"), Some("10.129.43.4")),
            ("e", Some("10.1.1.9"), Some("10.129.43.5")),
        ] {
            assert_eq!(
                nodes.allocate_pod_ip("node-299", uid, status_ip).as_deref(),
                expected,
                "{uid} {status_ip:?}"
            );
        }
        nodes.release_pod_ip("node-299", "a");
        assert_eq!(
            nodes.allocate_pod_ip("node-299", "f", None).as_deref(),
            Some("10.129.43.2")
        );
        assert_eq!(nodes.allocate_pod_ip("unknown", "f", None), None);
        (0..300).for_each(|uid| _ = nodes.allocate_pod_ip("node-1", &uid.to_string(), None));
        assert_eq!(nodes.allocate_pod_ip("node-1", "300", None), None);
    }

    #[test]
    fn node_is_found_by_its_host_ip() {
        let nodes = nodes(300);
        for (ip, expected) in [
            ("172.16.0.1", Some("node-1")),
            ("172.16.1.44", Some("node-300")),
            ("::ffff:172.16.0.2", Some("node-2")),
            ("172.16.1.45", None),
            ("172.15.0.1", None),
            ("10.16.0.1", None),
            ("fd00::1", None),
        ] {
            let node = nodes.with_host_ip(ip.parse().unwrap());
            let name = node.map(|node| node.name);
            assert_eq!(name.as_deref(), expected, "{ip}");
        }
    }

    #[test]
    fn boot_does_not_end_a_partition() {
        let nodes = nodes(1);
        let is_reachable = || nodes.get("node-1").unwrap().is_reachable();
        for (operation, expected) in [
            (Operation::PowerOn, true),
            (Operation::Partition, false),
            (Operation::PowerOff, false),
            (Operation::Reconnect, false),
            (Operation::Partition, false),
            (Operation::PowerOn, false),
            (Operation::Reboot, false),
            (Operation::Reconnect, true),
        ] {
            nodes.operate("node-1", operation, Timestamp::UNIX_EPOCH);
            if matches!(nodes.get("node-1").unwrap().power, Power::Booting { .. }) {
                nodes.finish_boot("node-1", Timestamp::UNIX_EPOCH);
            }
            assert_eq!(is_reachable(), expected, "{operation:?}");
        }
        assert_eq!(
            nodes.operate("node-2", Operation::Reboot, Timestamp::UNIX_EPOCH),
            None
        );
    }

    #[test]
    fn every_boot_has_a_new_boot_id() {
        let nodes = nodes(1);
        let before = nodes.get("node-1").unwrap();
        assert_eq!(before.boot_id.len(), 36);
        nodes.finish_boot("node-1", Timestamp::UNIX_EPOCH);
        let after = nodes.get("node-1").unwrap();
        assert_ne!(before.boot_id, after.boot_id);
        assert_eq!(after.power, Power::On);
        assert!(!after.registered);
    }
}
