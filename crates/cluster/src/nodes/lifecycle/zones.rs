//! Zones: how fast pods are driven out of nodes that are not well.
//!
//! In: which nodes of which zone are well. Out: whether a node's pods may be driven out now.
//! Holds: one node in ten seconds and zone; slower, or not at all, where most nodes are lost, because then the fault is
//! rather the network's; nobody anywhere while no node at all is well.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;

use super::super::time::after;
use super::health::{DriveOut, readiness};

/// Between two nodes of a zone.
const EVERY: Duration = Duration::from_secs(10);
/// Between two nodes of a large zone of which most are lost.
const EVERY_SLOWLY: Duration = Duration::from_secs(100);
/// Zones up to this size stop altogether when most of their nodes are lost.
const SMALL_MAX: usize = 50;
/// The share of lost nodes from which on a zone counts as disrupted, in percent.
const DISRUPTED_PERCENT: usize = 55;
/// So few lost nodes are never a disruption of their zone, unless they are all of it.
const LOST_MIN: usize = 2;

#[derive(Clone, Copy, Debug, Default)]
struct Zone {
    well: usize,
    lost: usize,
}

impl Zone {
    /// How long to wait between two nodes; `None` for ever.
    fn pace(self) -> Option<Duration> {
        let disrupted = self.well > 0
            && self.lost > LOST_MIN
            && self.lost * 100 >= (self.lost + self.well) * DISRUPTED_PERCENT;
        match disrupted {
            false => Some(EVERY),
            true if self.lost + self.well > SMALL_MAX => Some(EVERY_SLOWLY),
            true => None,
        }
    }
}

/// What is known of all zones, as of one moment.
#[derive(Debug, Default)]
pub(crate) struct Zones {
    zones: BTreeMap<String, Zone>,
    /// When each zone's turn was last given.
    given: BTreeMap<String, Timestamp>,
    /// When the nodes were last counted.
    pub(crate) counted: Option<Timestamp>,
}

impl Zones {
    /// Counts the nodes.
    pub(crate) fn count<'a>(&mut self, nodes: impl Iterator<Item = &'a Node>, now: Timestamp) {
        self.zones.clear();
        for node in nodes {
            let zone = self.zones.entry(zone_of(node)).or_default();
            if readiness(node) == "True" {
                zone.well += 1
            } else {
                zone.lost += 1
            }
        }
        self.given.retain(|zone, _| self.zones.contains_key(zone));
        self.counted = Some(now);
    }

    /// Whether the pods of a lost node may be driven out now; if so, the zone's turn is taken.
    pub(crate) fn ask(&mut self, node: &Node, now: Timestamp) -> DriveOut {
        if self.zones.values().all(|zone| zone.well == 0) {
            return DriveOut::Nobody;
        }
        let name = zone_of(node);
        let pace = self.zones.get(&name).copied().unwrap_or_default().pace();
        match (pace, self.given.get(&name)) {
            (Some(pace), Some(given)) if after(*given, pace) > now => DriveOut::NotNow,
            (Some(_), _) => {
                self.given.insert(name, now);
                DriveOut::Yes
            }
            (None, _) => DriveOut::NotNow,
        }
    }

    /// Whether no node at all is well.
    pub(crate) fn all_lost(&self) -> bool {
        self.zones.values().all(|zone| zone.well == 0)
    }
}

fn zone_of(node: &Node) -> String {
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

    fn nodes(zone: &str, well: usize, lost: usize) -> Vec<Node> {
        let node = |ready: &str| {
            let node = json!({
                "metadata": {"labels": {"topology.kubernetes.io/zone": zone}},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            });
            serde_json::from_value::<Node>(node).unwrap()
        };
        (0..lost)
            .map(|_| node("Unknown"))
            .chain((0..well).map(|_| node("True")))
            .collect()
    }

    #[test]
    fn pods_are_driven_out_no_faster_than_is_wise() {
        let at = |second| Timestamp::from_second(second).unwrap();
        // Well and lost nodes of the zone and of another one; at which of the seconds 0, 5, 10, 50, 100 a node's turn comes.
        let cases: [(&str, (usize, usize), (usize, usize), &[i64]); 7] = [
            ("one of three", (2, 1), (0, 0), &[0, 10, 50, 100]),
            ("two of three", (1, 2), (0, 0), &[0, 10, 50, 100]),
            ("most of a small zone", (1, 3), (3, 0), &[]),
            ("most of a large zone", (20, 80), (3, 0), &[0, 100]),
            ("half of a large zone", (50, 50), (3, 0), &[0, 10, 50, 100]),
            ("a whole zone of two", (0, 3), (3, 0), &[0, 10, 50, 100]),
            ("everything", (0, 3), (0, 3), &[]),
        ];
        for (why, (well, lost), (others_well, others_lost), wanted) in cases {
            let (here, there) = (nodes("a", well, lost), nodes("b", others_well, others_lost));
            let mut zones = Zones::default();
            zones.count(here.iter().chain(&there), at(0));
            let turns: Vec<_> = [0, 5, 10, 50, 100]
                .into_iter()
                .filter(|second| zones.ask(&here[0], at(*second)) == DriveOut::Yes)
                .collect();
            assert_eq!(turns, wanted, "{why}");
        }
    }
}
