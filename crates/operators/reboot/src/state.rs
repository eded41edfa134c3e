//! State: a Node as this operator sees it, and every write of the protocol.
//!
//! In: a Node. Out: what matters of it, and changes to it.
//! Holds: each write is one change to one version of the Node, so that of two who decide at once one has to look again; a
//! grant that ended on a Node never starts there again; a node is uncordoned only by whom it was cordoned.
//!
//! ```text
//! needed ─ announce → now ─ claim → in progress (Draining) ─ commit → in progress (Rebooting)
//!                      │                  │                                  │ another boot id
//!                      └──────────────────┴────────── end ───────────────────┘→ last-reboot, schedulable as before
//! ```

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::{
    ledger::Grant,
    notes::{
        self, CORDONED, Ended, Fate, GrantId, IN_PROGRESS, LAST, NEEDED, NOW, Order, PAUSED,
        Prefix, Progress, Stage, Unreadable, WAITING, Waiting,
    },
};

/// What matters of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeState {
    pub(crate) name: String,
    pub(crate) uid: String,
    /// The version that a change is made to.
    pub(crate) version: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// What its kubelet tells.
    pub(crate) boot_id: Option<String>,
    /// `False` and `Unknown` are both not ready: a dead node says nothing any more.
    pub(crate) ready: bool,
    pub(crate) unschedulable: bool,
    /// Somebody deleted it.
    pub(crate) going: bool,
    pub(crate) notes: Notes,
    /// Under which our notes are.
    pub(crate) prefix: Prefix,
}

/// Our notes on a Node, each read once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Notes {
    needed: Option<String>,
    now: Option<Result<Order, Unreadable>>,
    in_progress: Option<Result<Progress, Unreadable>>,
    cordoned: Option<String>,
    last: Option<Result<Ended, Unreadable>>,
    waiting: Option<Result<Waiting, Unreadable>>,
    paused: Option<String>,
}

impl Notes {
    /// Writes one; `None` takes it off.
    fn put(&mut self, note: &str, text: Option<String>) {
        match note {
            NEEDED => self.needed = text,
            NOW => self.now = text.map(|text| text.parse()),
            IN_PROGRESS => self.in_progress = text.map(|text| text.parse()),
            CORDONED => self.cordoned = text,
            LAST => self.last = text.map(|text| text.parse()),
            WAITING => self.waiting = text.map(|text| text.parse()),
            PAUSED => self.paused = text,
            _ => {}
        }
    }
}

impl NodeState {
    pub(crate) fn of(node: &Node, prefix: &Prefix) -> Self {
        let conditions = node
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten());
        let mut notes = Notes::default();
        notes::of(node, prefix).for_each(|(note, text)| notes.put(note, Some(text)));
        Self {
            name: node.name_any(),
            uid: node.uid().unwrap_or_default(),
            version: node.resource_version().unwrap_or_default(),
            labels: node.labels().clone(),
            boot_id: notes::boot_id_of(node),
            ready: conditions
                .into_iter()
                .any(|condition| condition.type_ == "Ready" && condition.status == "True"),
            unschedulable: node
                .spec
                .as_ref()
                .and_then(|spec| spec.unschedulable)
                .unwrap_or_default(),
            going: node.metadata.deletion_timestamp.is_some(),
            notes,
            prefix: prefix.clone(),
        }
    }

    /// Whether one version of a Node means something else than another.
    pub(crate) fn changed(old: &Node, new: &Node, prefix: &Prefix) -> bool {
        Self::of(old, prefix).differs(&Self::of(new, prefix))
    }

    /// Whether anything but the version differs.
    fn differs(mut self, other: &Self) -> bool {
        self.version.clone_from(&other.version);
        self != *other
    }

    /// Why somebody wants it to reboot.
    pub(crate) fn needed(&self) -> Option<&str> {
        self.notes.needed.as_deref()
    }

    /// The order on it, if it can be read.
    pub(crate) fn now(&self) -> Option<&Order> {
        self.notes.now.as_ref()?.as_ref().ok()
    }

    /// Whether an order is on it, readable or not.
    pub(crate) fn has_order(&self) -> bool {
        self.notes.now.is_some()
    }

    /// What its agent is doing, if that can be read.
    pub(crate) fn in_progress(&self) -> Option<&Progress> {
        self.notes.in_progress.as_ref()?.as_ref().ok()
    }

    /// Whether its agent is at it, readable or not.
    pub(crate) fn is_busy(&self) -> bool {
        self.notes.in_progress.is_some()
    }

    /// Whether the agent cordoned it.
    pub(crate) fn is_cordoned_by_us(&self) -> bool {
        self.notes.cordoned.is_some()
    }

    pub(crate) fn last(&self) -> Option<&Ended> {
        self.notes.last.as_ref()?.as_ref().ok()
    }

    pub(crate) fn waiting(&self) -> Option<&Waiting> {
        self.notes.waiting.as_ref()?.as_ref().ok()
    }

    /// Whether something is said of waiting, readable or not.
    pub(crate) fn has_waiting(&self) -> bool {
        self.notes.waiting.is_some()
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.notes.paused.is_some()
    }

    pub(crate) fn is_control_plane(&self) -> bool {
        let role = |role: &str| {
            self.labels
                .contains_key(&format!("node-role.kubernetes.io/{role}"))
        };
        role("control-plane") || role("master")
    }

    /// Whether this grant ended here.
    pub(crate) fn has_ended(&self, id: &GrantId) -> bool {
        self.last().is_some_and(|last| last.id == *id)
    }

    /// Makes a change, as a server would.
    #[cfg(test)]
    pub(crate) fn apply(&mut self, edit: &Edit) {
        edit.notes
            .iter()
            .for_each(|(note, text)| self.notes.put(note, text.clone()));
        self.unschedulable = edit.unschedulable.unwrap_or(self.unschedulable);
    }

    /// The same with a note that anybody might have written.
    #[cfg(test)]
    pub(crate) fn with_note(mut self, note: &str, text: impl ToString) -> Self {
        self.notes.put(note, Some(text.to_string()));
        self
    }
}

/// A change to a Node: our notes, and whether it takes pods.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Edit {
    notes: BTreeMap<&'static str, Option<String>>,
    unschedulable: Option<bool>,
}

impl Edit {
    fn set(mut self, note: &'static str, text: impl ToString) -> Self {
        self.notes.insert(note, Some(text.to_string()));
        self
    }

    fn clear(mut self, note: &'static str) -> Self {
        self.notes.insert(note, None);
        self
    }

    /// The request becomes an order, in one write.
    pub(crate) fn announce(grant: &Grant) -> Option<Self> {
        let order = Order {
            id: grant.id()?,
            expires: grant.expires_at.0,
        };
        Some(Self::default().clear(NEEDED).clear(WAITING).set(NOW, order))
    }

    /// The agent takes the order and cordons the node, in one write: what was before is never in doubt.
    pub(crate) fn claim(node: &NodeState, id: &GrantId, boot: &str, now: Timestamp) -> Self {
        let since = notes::whole_seconds(now);
        let progress = Progress {
            id: id.clone(),
            boot: boot.to_owned(),
            since,
            stage: Stage::Draining,
        };
        let edit = Self::default().clear(NOW).set(IN_PROGRESS, progress);
        if node.unschedulable {
            edit
        } else {
            Self {
                unschedulable: Some(true),
                ..edit.set(CORDONED, id)
            }
        }
    }

    /// The last write before the machine is told: from now on the slot is not given back.
    pub(crate) fn commit(progress: &Progress) -> Self {
        Self::default().clear(WAITING).set(
            IN_PROGRESS,
            Progress {
                stage: Stage::Rebooting,
                ..progress.clone()
            },
        )
    }

    /// The grant is over. The node is as it was before, and asks again if it got nothing of it.
    pub(crate) fn end(
        node: &NodeState,
        id: &GrantId,
        fate: Fate,
        request: &str,
        now: Timestamp,
    ) -> Self {
        let before = node.last().map_or(0, |last| last.failures);
        let failures = if fate.is_failure() {
            before.saturating_add(1)
        } else {
            0
        };
        let last = Ended {
            id: id.clone(),
            result: fate,
            at: notes::whole_seconds(now),
            failures,
        };
        let edit = Self::default()
            .clear(NOW)
            .clear(IN_PROGRESS)
            .clear(WAITING)
            .set(LAST, last)
            .uncordon(node);
        if fate.is_failure() && node.needed().is_none() {
            edit.set(NEEDED, request)
        } else {
            edit
        }
    }

    /// An order that no grant stands behind is taken off.
    pub(crate) fn discard() -> Self {
        Self::default().clear(NOW)
    }

    /// What is left of a reboot whose notes somebody took or spoiled.
    pub(crate) fn tidy(node: &NodeState) -> Self {
        Self::default().clear(IN_PROGRESS).uncordon(node)
    }

    pub(crate) fn wait(waiting: &Waiting) -> Self {
        Self::default().set(WAITING, waiting)
    }

    pub(crate) fn stop_waiting() -> Self {
        Self::default().clear(WAITING)
    }

    /// Asks for a reboot.
    pub(crate) fn request(why: &str) -> Self {
        Self::default().set(NEEDED, notes::reason(why))
    }

    fn uncordon(self, node: &NodeState) -> Self {
        if !node.is_cordoned_by_us() {
            return self;
        }
        Self {
            unschedulable: node.unschedulable.then_some(false),
            ..self.clear(CORDONED)
        }
    }

    /// A merge patch that only the version it was made from takes.
    pub(crate) fn patch(&self, node: &NodeState) -> Value {
        let notes: BTreeMap<String, &Option<String>> = self
            .notes
            .iter()
            .map(|(note, text)| (node.prefix.key(note), text))
            .collect();
        let mut patch = json!({"metadata": {"uid": node.uid, "resourceVersion": node.version, "annotations": notes}});
        if let Some(unschedulable) = self.unschedulable {
            // Absent is how a schedulable node reads.
            patch["spec"] =
                json!({"unschedulable": if unschedulable { json!(true) } else { Value::Null }});
        }
        patch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(unschedulable: bool, notes: &[(&str, &str)]) -> Node {
        let annotations: BTreeMap<_, _> =
            notes.iter().chain([&("others", "stay")]).copied().collect();
        serde_json::from_value(json!({
            "metadata": {"name": "a", "uid": "u", "resourceVersion": "7", "annotations": annotations},
            "spec": {"unschedulable": unschedulable},
            "status": {"nodeInfo": {"bootID": "b-1", "architecture": "", "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "",
                "kubeletVersion": "", "machineID": "", "operatingSystem": "", "osImage": "", "systemUUID": ""},
                "conditions": [{"type": "Ready", "status": "True"}]},
        }))
        .expect("a node")
    }

    fn read(node: &Node) -> NodeState {
        NodeState::of(node, &Prefix::default())
    }

    fn merge(value: &mut Value, patch: &Value) {
        match patch {
            Value::Object(fields) => {
                for (name, patch) in fields {
                    match patch {
                        Value::Null => {
                            _ = value.as_object_mut().and_then(|object| object.remove(name))
                        }
                        patch => merge(&mut value[name], patch),
                    }
                }
            }
            _ => *value = patch.clone(),
        }
    }

    #[test]
    fn a_patch_does_to_a_node_what_its_edit_does_to_the_state() {
        let id = GrantId::read("g-1").expect("an id");
        let now = Timestamp::UNIX_EPOCH;
        let progress = Progress {
            id: id.clone(),
            boot: "b-1".into(),
            since: now,
            stage: Stage::Draining,
        };
        let notes = [
            (NEEDED, "kernel"),
            (NOW, "id=g-1 expires=1970-01-01T00:01:39Z"),
            (CORDONED, "g-1"),
            (IN_PROGRESS, &progress.to_string()),
        ];
        for unschedulable in [true, false] {
            for cut in 0..=notes.len() {
                let before = node(unschedulable, &notes[..cut]);
                let state = read(&before);
                for edit in [
                    Edit::claim(&state, &id, "b-1", now),
                    Edit::commit(&progress),
                    Edit::end(&state, &id, Fate::Done, "kernel", now),
                    Edit::end(&state, &id, Fate::DrainTimedOut, "kernel", now),
                    Edit::discard(),
                    Edit::tidy(&state),
                ] {
                    let mut value = json!(before);
                    merge(&mut value, &edit.patch(&state));
                    let patched = read(&serde_json::from_value(value.clone()).expect("a node"));
                    let mut edited = state.clone();
                    edited.apply(&edit);
                    assert_eq!(patched, edited, "{edit:?}");
                    assert_eq!(value["metadata"]["annotations"]["others"], "stay");
                }
            }
        }
    }

    #[test]
    fn only_what_we_cordoned_is_uncordoned() {
        let id = GrantId::read("g-1").expect("an id");
        for (before, after) in [(false, false), (true, true)] {
            let mut state = read(&node(before, &[]));
            state.apply(&Edit::claim(&state, &id, "b-1", Timestamp::UNIX_EPOCH));
            assert!(state.unschedulable);
            state.apply(&Edit::end(
                &state,
                &id,
                Fate::Done,
                "",
                Timestamp::UNIX_EPOCH,
            ));
            assert_eq!(
                (state.unschedulable, state.is_cordoned_by_us()),
                (after, false),
                "cordoned before: {before}"
            );
        }
    }

    #[test]
    fn request_comes_back_when_its_grant_came_to_nothing() {
        let id = GrantId::read("g-1").expect("an id");
        let end = |state: &mut NodeState, fate| {
            state.apply(&Edit::end(
                state,
                &id,
                fate,
                "kernel",
                Timestamp::UNIX_EPOCH,
            ))
        };
        let mut state = read(&node(false, &[]));
        end(&mut state, Fate::DrainTimedOut);
        assert_eq!(
            (state.needed(), state.last().map(|last| last.failures)),
            (Some("kernel"), Some(1))
        );
        end(&mut state, Fate::NotClaimed);
        assert_eq!(state.last().map(|last| last.failures), Some(2));
        let mut state = read(&node(false, &[(NEEDED, "another")]));
        end(&mut state, Fate::Expired);
        assert_eq!(
            state.needed(),
            Some("another"),
            "what was asked meanwhile stays"
        );
        let mut state = read(&node(false, &[]));
        end(&mut state, Fate::Done);
        assert_eq!(
            (state.needed(), state.last().map(|last| last.failures)),
            (None, Some(0))
        );
    }
}
