//! Orders: what the annotations of a Node do to its machine, for people who have no hand on the machine but kubectl.
//!
//! Each annotation begins with `sim.bellerophon.io/`, as those of pods do.
//!
//! | annotation | value | what it does |
//! |---|---|---|
//! | `power` | `off`, `on` | `off` cuts the machine's power, `on` or taking the annotation away boots it |
//! | `network` | `off`, `on` | `off` cuts the machine off the network, `on` or taking the annotation away joins it again |
//! | `reboot` | any text | every new text reboots the machine once |
//!
//! In: annotations, and those that were obeyed before. Out: operations.
//! Holds: only what changed is an order, so what the annotations do not speak of can be operated otherwise.

use std::collections::BTreeMap;

use super::script::{PREFIX, said};

/// What can be done to a machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Operation {
    PowerOff,
    PowerOn,
    CutOff,
    Join,
    Reboot,
}

/// What the annotations of a Node say about its machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Orders {
    power_off: bool,
    cut_off: bool,
    reboot: Option<String>,
    /// What cannot be understood, in words.
    pub(crate) mistakes: Vec<String>,
}

impl Orders {
    /// What cannot be understood counts as not said.
    pub(crate) fn of(annotations: Option<&BTreeMap<String, String>>) -> Self {
        let text = |name: &str| {
            annotations
                .and_then(|all| all.get(&format!("{PREFIX}{name}")))
                .map(|value| value.trim())
        };
        Self {
            power_off: text("power") == Some("off"),
            cut_off: text("network") == Some("off"),
            reboot: text("reboot").map(str::to_owned),
            mistakes: annotations
                .into_iter()
                .flat_map(said)
                .filter_map(mistake)
                .collect(),
        }
    }

    /// What is to be done, given what was obeyed before; `None` for a machine that was not told anything yet.
    pub(crate) fn since(&self, known: Option<&Self>) -> Vec<Operation> {
        let nothing = Self {
            reboot: self.reboot.clone(),
            ..Self::default()
        };
        let known = known.unwrap_or(&nothing);
        let turned = |before: bool, now: bool, on: Operation, off: Operation| match (before, now) {
            (false, true) => Some(on),
            (true, false) => Some(off),
            _ => None,
        };
        let reboot = self.reboot.is_some()
            && self.reboot != known.reboot
            && !self.power_off
            && !known.power_off;
        let operations = [
            turned(
                known.power_off,
                self.power_off,
                Operation::PowerOff,
                Operation::PowerOn,
            ),
            turned(
                known.cut_off,
                self.cut_off,
                Operation::CutOff,
                Operation::Join,
            ),
            reboot.then_some(Operation::Reboot),
        ];
        operations.into_iter().flatten().collect()
    }
}

fn mistake((key, value): (&String, &String)) -> Option<String> {
    match &key[PREFIX.len()..] {
        "power" | "network" if matches!(value.trim(), "on" | "off") => None,
        "power" | "network" => Some(format!(
            "annotation {key} must be on or off, got {value:?}; it is ignored"
        )),
        "reboot" => None,
        _ => Some(format!("annotation {key} means nothing to the node itself")),
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
    fn only_what_changed_is_an_order() {
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
                &[Operation::PowerOff, Operation::Join],
            ),
            (
                Some(&[("power", "off"), ("network", "off")]),
                &[("network", "off")],
                &[Operation::PowerOn],
            ),
            (
                Some(&[]),
                &[("power", "of"), ("network", "off ")],
                &[Operation::CutOff],
            ),
        ];
        for (known, said, wanted) in cases {
            let known = known.map(|known| Orders::of(Some(&annotations(known))));
            assert_eq!(
                Orders::of(Some(&annotations(said))).since(known.as_ref()),
                wanted,
                "{known:?} then {said:?}"
            );
        }
    }

    #[test]
    fn mistakes_are_named() {
        let said = annotations(&[
            ("power", "of"),
            ("network", "on"),
            ("reboot", ""),
            ("fail", "pull"),
        ]);
        let wanted = [
            "annotation sim.bellerophon.io/fail means nothing to the node itself",
            "annotation sim.bellerophon.io/power must be on or off, got \"of\"; it is ignored",
        ];
        assert_eq!(Orders::of(Some(&said)).mistakes, wanted);
    }
}
