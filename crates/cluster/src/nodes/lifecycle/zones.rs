//! Zones: how fast `NoExecute` taints are added to unhealthy nodes.
//!
//! In: the readiness of the nodes of each zone. Out: the [`NoExecutePolicy`] for a node.
//! Guarantees: one node every 10 seconds per zone. In a zone with ready nodes of which at least 55
//! %, and at least 3 nodes, are not ready, one every 100 seconds, or none if the zone has at most
//! 50 nodes: the network is then the more likely cause. None anywhere while no node is ready.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

use super::super::time::after;
use super::health::{NoExecutePolicy, ready_status};

/// The interval of upstream `nodeEvictionRate` (0.1 per second).
const EVICTION_INTERVAL: Duration = Duration::from_secs(10);
/// The interval of upstream `secondaryNodeEvictionRate` (0.01 per second).
const SECONDARY_EVICTION_INTERVAL: Duration = Duration::from_secs(100);
/// Zones up to this size are not tainted at all while disrupted (upstream
/// `largeClusterSizeThreshold`).
const LARGE_CLUSTER_SIZE_THRESHOLD: usize = 50;
/// The percentage of not ready nodes from which a zone is disrupted (upstream
/// `unhealthyZoneThreshold`).
const UNHEALTHY_ZONE_THRESHOLD_PERCENT: usize = 55;
/// A zone with at most this many not ready nodes is not disrupted.
const NOT_READY_MIN: usize = 2;

#[derive(Clone, Copy, Debug, Default)]
struct Zone {
    ready: usize,
    not_ready: usize,
}

impl Zone {
    /// The interval between two nodes; `None` if no node is tainted. Mirrors `ComputeZoneState`,
    /// `HealthyQPSFunc` and `ReducedQPSFunc`: a zone without any ready node keeps the full rate.
    fn eviction_interval(self) -> Option<Duration> {
        let size = self.ready + self.not_ready;
        // A zone without any ready node is not slowed down: upstream counts on other zones to run
        // its pods.
        let is_partially_disrupted = self.ready > 0
            && self.not_ready > NOT_READY_MIN
            && self.not_ready * 100 >= size * UNHEALTHY_ZONE_THRESHOLD_PERCENT;
        if !is_partially_disrupted {
            Some(EVICTION_INTERVAL)
        } else if size > LARGE_CLUSTER_SIZE_THRESHOLD {
            Some(SECONDARY_EVICTION_INTERVAL)
        } else {
            None
        }
    }
}

/// The state of all zones at the last count.
#[derive(Debug, Default)]
pub(crate) struct Zones {
    zones: BTreeMap<String, Zone>,
    /// When a node of each zone was last allowed to be tainted.
    last_eviction: BTreeMap<String, Timestamp>,
    pub(crate) counted_at: Option<Timestamp>,
}

impl Zones {
    /// Counts the nodes of each zone.
    pub(crate) fn count<'a>(&mut self, nodes: impl Iterator<Item = &'a Node>, now: Timestamp) {
        self.zones.clear();
        for node in nodes {
            let zone = self.zones.entry(zone_key(node)).or_default();
            if ready_status(node) == "True" {
                zone.ready += 1;
            } else {
                zone.not_ready += 1;
            }
        }
        // Zones without nodes are forgotten.
        self.last_eviction
            .retain(|zone, _| self.zones.contains_key(zone));
        self.counted_at = Some(now);
    }

    /// Whether an unhealthy node may be tainted now; if so, the interval of its zone starts again.
    pub(crate) fn try_evict(&mut self, node: &Node, now: Timestamp) -> NoExecutePolicy {
        if self.is_fully_disrupted() {
            return NoExecutePolicy::Remove;
        }
        let key = zone_key(node);
        let zone = self.zones.get(&key).copied().unwrap_or_default();
        match (zone.eviction_interval(), self.last_eviction.get(&key)) {
            (Some(interval), Some(last)) if after(*last, interval) > now => NoExecutePolicy::Keep,
            (Some(_), _) => {
                self.last_eviction.insert(key, now);
                NoExecutePolicy::Add
            }
            (None, _) => NoExecutePolicy::Keep,
        }
    }

    /// Whether no node of any zone is ready. Mirrors `handleDisruption`: then all evictions stop.
    pub(crate) fn is_fully_disrupted(&self) -> bool {
        self.zones.values().all(|zone| zone.ready == 0)
    }
}

/// Region and zone of a node. Mirrors `GetZoneKey`.
fn zone_key(node: &Node) -> String {
    let label = |name: &str| {
        node.metadata
            .labels
            .as_ref()
            .and_then(|labels| labels.get(name))
            .map_or("", String::as_str)
    };
    format!(
        "{}/{}",
        label("topology.kubernetes.io/region"),
        label("topology.kubernetes.io/zone")
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn nodes(zone: &str, ready: usize, not_ready: usize) -> Vec<Node> {
        let node = |status: &str| {
            let node = json!({
                "metadata": {"labels": {"topology.kubernetes.io/zone": zone}},
                "status": {"conditions": [{"type": "Ready", "status": status}]},
            });
            serde_json::from_value::<Node>(node).unwrap()
        };
        (0..not_ready)
            .map(|_| node("Unknown"))
            .chain((0..ready).map(|_| node("True")))
            .collect()
    }

    #[test]
    fn eviction_rate_depends_on_the_disruption_of_the_zone() {
        let at = |second| Timestamp::from_second(second).unwrap();
        // Ready and not ready nodes of the zone and of another zone; the seconds of 0, 5, 10, 50
        // and 100 at which a node may be tainted.
        let cases: [(&str, (usize, usize), (usize, usize), &[i64]); 7] = [
            ("one of three nodes", (2, 1), (0, 0), &[0, 10, 50, 100]),
            ("two of three nodes", (1, 2), (0, 0), &[0, 10, 50, 100]),
            ("three of four nodes", (1, 3), (3, 0), &[]),
            ("80 of 100 nodes", (20, 80), (3, 0), &[0, 100]),
            ("50 of 100 nodes", (50, 50), (3, 0), &[0, 10, 50, 100]),
            ("a whole zone", (0, 3), (3, 0), &[0, 10, 50, 100]),
            ("all zones", (0, 3), (0, 3), &[]),
        ];
        for (case, (ready, not_ready), (other_ready, other_not_ready), expected) in cases {
            let zone = nodes("a", ready, not_ready);
            let other_zone = nodes("b", other_ready, other_not_ready);
            let mut zones = Zones::default();
            zones.count(zone.iter().chain(&other_zone), at(0));
            let allowed: Vec<_> = [0, 5, 10, 50, 100]
                .into_iter()
                .filter(|second| zones.try_evict(&zone[0], at(*second)) == NoExecutePolicy::Add)
                .collect();
            assert_eq!(allowed, expected, "{case}");
        }
    }
}
