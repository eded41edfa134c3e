//! Simulation annotations of Nodes: power, network and reboots of simulated nodes with kubectl.
//!
//! Each annotation has the prefix `sim.bellerophon.io/`, as those of pods have.
//!
//! | annotation | value | effect |
//! |---|---|---|
//! | `power` | `off`, `on` | `off` powers the node off; `on` or removal boots it |
//! | `network` | `off`, `on` | `off` partitions the node; `on` or removal ends the partition |
//! | `reboot` | any string | every new value reboots the node once |
//! | `max-container-restart-period` | duration, 1s to 300s | the longest restart back-off of containers |
//!
//! In: annotations, and those that were applied before. Out: operations on the node.
//! Guarantees: only changes of annotations cause operations, so a node can also be operated through
//! the Rust API.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::SignedDuration;

use super::container_simulation::{PREFIX, simulation_annotations};

/// What `maxContainerRestartPeriod` of the kubelet's configuration may be.
const RESTART_PERIOD_MIN: Duration = Duration::from_secs(1);
pub(crate) const RESTART_PERIOD_MAX: Duration = Duration::from_secs(300);

/// An operation on a simulated node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    PowerOff,
    PowerOn,
    Partition,
    Reconnect,
    Reboot,
}

/// The simulation annotations of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeSimulation {
    power_off: bool,
    network_off: bool,
    reboot: Option<String>,
    /// The longest restart back-off of containers on the node.
    pub(crate) max_container_restart_period: Option<Duration>,
    /// Messages about invalid annotations.
    pub(crate) errors: Vec<String>,
}

impl NodeSimulation {
    /// Parses the annotations. Invalid ones count as not set.
    pub(crate) fn of(annotations: Option<&BTreeMap<String, String>>) -> Self {
        let value = |name: &str| {
            annotations
                .and_then(|all| all.get(&format!("{PREFIX}{name}")))
                .map(|value| value.trim())
        };
        Self {
            power_off: value("power") == Some("off"),
            network_off: value("network") == Some("off"),
            reboot: value("reboot").map(str::to_owned),
            max_container_restart_period: value("max-container-restart-period")
                .and_then(restart_period),
            errors: annotations
                .into_iter()
                .flat_map(simulation_annotations)
                .filter_map(validate)
                .collect(),
        }
    }

    /// The operations that lead from the previous annotations to these. Without previous ones
    /// (`None`) a `reboot` annotation has no effect: it may have been applied before this process
    /// started.
    pub(crate) fn operations_since(&self, previous: Option<&Self>) -> Vec<Operation> {
        let initial = Self {
            reboot: self.reboot.clone(),
            ..Self::default()
        };
        let previous = previous.unwrap_or(&initial);
        let transition =
            |was_off: bool, is_off: bool, off: Operation, on: Operation| match (was_off, is_off) {
                (false, true) => Some(off),
                (true, false) => Some(on),
                _ => None,
            };
        // A node that is or was powered off boots anyway.
        let reboots = self.reboot.is_some()
            && self.reboot != previous.reboot
            && !self.power_off
            && !previous.power_off;
        let operations = [
            transition(
                previous.power_off,
                self.power_off,
                Operation::PowerOff,
                Operation::PowerOn,
            ),
            transition(
                previous.network_off,
                self.network_off,
                Operation::Partition,
                Operation::Reconnect,
            ),
            reboots.then_some(Operation::Reboot),
        ];
        operations.into_iter().flatten().collect()
    }
}

/// A valid `maxContainerRestartPeriod`.
fn restart_period(text: &str) -> Option<Duration> {
    let period: SignedDuration = text.parse().ok()?;
    let period = Duration::try_from(period).ok()?;
    (RESTART_PERIOD_MIN..=RESTART_PERIOD_MAX)
        .contains(&period)
        .then_some(period)
}

/// The message about an invalid annotation; `None` if it is valid.
fn validate((key, value): (&String, &String)) -> Option<String> {
    match &key[PREFIX.len()..] {
        "power" | "network" if matches!(value.trim(), "on" | "off") => None,
        "power" | "network" => Some(format!(
            "annotation {key} must be on or off, got {value:?}; it is ignored"
        )),
        "reboot" => None,
        "max-container-restart-period" if restart_period(value.trim()).is_some() => None,
        "max-container-restart-period" => Some(format!(
            "annotation {key} must be a duration from 1s to 300s, got {value:?}; it is ignored"
        )),
        _ => Some(format!(
            "annotation {key} is not a simulation annotation of nodes; it is ignored"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn annotations(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(key, value)| (format!("{PREFIX}{key}"), (*value).to_owned()))
            .collect()
    }

    #[test]
    fn only_changed_annotations_cause_operations() {
        type Pairs = &'static [(&'static str, &'static str)];
        let cases: [(Option<Pairs>, Pairs, &[Operation]); 12] = [
            (None, &[], &[]),
            (None, &[("power", "off")], &[Operation::PowerOff]),
            (None, &[("reboot", "1")], &[]),
            (Some(&[]), &[("reboot", "1")], &[Operation::Reboot]),
            (Some(&[("reboot", "1")]), &[("reboot", "1")], &[]),
            (
                Some(&[("reboot", "1")]),
                &[("reboot", "2")],
                &[Operation::Reboot],
            ),
            (Some(&[("reboot", "1")]), &[], &[]),
            (
                Some(&[("power", "off")]),
                &[("power", "on")],
                &[Operation::PowerOn],
            ),
            (
                Some(&[("power", "off")]),
                &[("reboot", "1")],
                &[Operation::PowerOn],
            ),
            (
                Some(&[("network", "off")]),
                &[("power", "off")],
                &[Operation::PowerOff, Operation::Reconnect],
            ),
            (
                Some(&[("power", "off"), ("network", "off")]),
                &[("network", "off")],
                &[Operation::PowerOn],
            ),
            (
                Some(&[]),
                &[("power", "of"), ("network", "off ")],
                &[Operation::Partition],
            ),
        ];
        for (previous, current, expected) in cases {
            let previous = previous.map(|pairs| NodeSimulation::of(Some(&annotations(pairs))));
            assert_eq!(
                NodeSimulation::of(Some(&annotations(current))).operations_since(previous.as_ref()),
                expected,
                "{previous:?} then {current:?}"
            );
        }
    }

    #[test]
    fn invalid_annotations_are_reported() {
        let annotations = annotations(&[
            ("power", "of"),
            ("network", "on"),
            ("reboot", ""),
            ("fail", "pull"),
            ("max-container-restart-period", "301s"),
        ]);
        let expected = [
            "annotation sim.bellerophon.io/fail is not a simulation annotation of nodes; \
             it is ignored",
            "annotation sim.bellerophon.io/max-container-restart-period must be a duration from \
             1s to 300s, got \"301s\"; it is ignored",
            "annotation sim.bellerophon.io/power must be on or off, got \"of\"; it is ignored",
        ];
        assert_eq!(NodeSimulation::of(Some(&annotations)).errors, expected);
    }
}
