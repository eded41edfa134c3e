//! A Node as the operator sees it, and every patch of the protocol.
//!
//! Input: a Node. Outputs: its relevant state, and patches of it.
//!
//! Guarantees: each write is one patch of one resource version, so that of two concurrent writers
//! one gets a conflict and reads again; a grant that ended on a Node cannot be used there again; a
//! node is uncordoned only if the agent cordoned it; the commit of a reboot is in the status, which
//! permission to annotate Nodes does not reach.
//!
//! ```text
//! needed ─ announce → now ─ claim → in progress (Draining) ─ commit → in progress (Rebooting)
//!                      │                  │                                  │ new boot ID
//!                      └──────────────────┴── end → last-reboot ─────────────┘
//! ```

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::{api::core::v1::Node, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::ResourceExt as _;
use serde_json::{Value, json};

use crate::{
    annotations::{
        self, AnnotationPrefix, COMMITTED, CORDONED, GrantId, IN_PROGRESS, InvalidAnnotation, LAST,
        LastReboot, NEEDED, NOW, PAUSED, RebootOrder, RebootProgress, RebootResult, Stage, WAITING,
        Waiting,
    },
    ledger::Grant,
};

/// The relevant state of a Node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeState {
    pub(crate) name: String,
    pub(crate) uid: String,
    /// The resource version that patches are made from.
    pub(crate) version: String,
    pub(crate) labels: BTreeMap<String, String>,
    /// The boot ID in the status, as the kubelet reports it.
    pub(crate) boot_id: Option<String>,
    /// Whether the `Ready` condition is `True`; `False` and `Unknown` are both not ready.
    pub(crate) ready: bool,
    pub(crate) unschedulable: bool,
    /// The grant of the last commit, which was not withdrawn.
    pub(crate) committed: Option<GrantId>,
    /// Whether the Node has a deletion timestamp.
    pub(crate) is_terminating: bool,
    pub(crate) annotations: NodeAnnotations,
    /// The prefix of the annotations.
    pub(crate) prefix: AnnotationPrefix,
}

/// The operator's annotations of a Node, parsed once.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodeAnnotations {
    needed: Option<String>,
    now: Option<Result<RebootOrder, InvalidAnnotation>>,
    in_progress: Option<Result<RebootProgress, InvalidAnnotation>>,
    cordoned: Option<String>,
    last: Option<Result<LastReboot, InvalidAnnotation>>,
    waiting: Option<Result<Waiting, InvalidAnnotation>>,
    paused: Option<String>,
}

impl NodeAnnotations {
    /// Sets one annotation; `None` removes it.
    fn set(&mut self, annotation: &str, value: Option<String>) {
        match annotation {
            // Any user may write the reason, and commands and events print it.
            NEEDED => self.needed = value.map(|reason| annotations::sanitize_reason(&reason)),
            NOW => self.now = value.map(|value| value.parse()),
            IN_PROGRESS => self.in_progress = value.map(|value| value.parse()),
            CORDONED => self.cordoned = value,
            LAST => self.last = value.map(|value| value.parse()),
            WAITING => self.waiting = value.map(|value| value.parse()),
            PAUSED => self.paused = value,
            _ => {}
        }
    }
}

impl NodeState {
    pub(crate) fn new(node: &Node, prefix: &AnnotationPrefix) -> Self {
        let mut parsed = NodeAnnotations::default();
        for (annotation, value) in annotations::annotations_of(node, prefix) {
            parsed.set(annotation, Some(value));
        }
        let conditions = node
            .status
            .iter()
            .flat_map(|status| status.conditions.iter().flatten());
        let mut true_conditions = conditions.filter(|condition| condition.status == "True");
        let committed_type = prefix.key(COMMITTED);
        let committed = true_conditions
            .clone()
            .find(|condition| condition.type_ == committed_type);
        Self {
            name: node.name_any(),
            uid: node.uid().unwrap_or_default(),
            version: node.resource_version().unwrap_or_default(),
            labels: node.labels().clone(),
            boot_id: annotations::boot_id_of(node),
            ready: true_conditions.any(|condition| condition.type_ == "Ready"),
            committed: committed
                .and_then(|condition| GrantId::parse(condition.message.as_deref()?)),
            unschedulable: node
                .spec
                .as_ref()
                .and_then(|spec| spec.unschedulable)
                .unwrap_or_default(),
            is_terminating: node.metadata.deletion_timestamp.is_some(),
            annotations: parsed,
            prefix: prefix.clone(),
        }
    }

    /// A Node of this name, as the target of a patch.
    pub(crate) fn target(&self) -> Node {
        Node {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                ..ObjectMeta::default()
            },
            ..Node::default()
        }
    }

    /// Whether the relevant state of two versions of a Node differs.
    pub(crate) fn is_changed(old: &Node, new: &Node, prefix: &AnnotationPrefix) -> bool {
        let mut old = Self::new(old, prefix);
        let new = Self::new(new, prefix);
        // Status updates of the kubelet change the version, and often nothing that matters here.
        old.version.clone_from(&new.version);
        old != new
    }

    /// The reason of the request, if there is one.
    pub(crate) fn needed(&self) -> Option<&str> {
        self.annotations.needed.as_deref()
    }

    /// The reboot order, if it is valid.
    pub(crate) fn order(&self) -> Option<&RebootOrder> {
        self.annotations.now.as_ref()?.as_ref().ok()
    }

    /// Whether there is a reboot order, valid or not.
    pub(crate) fn has_order(&self) -> bool {
        self.annotations.now.is_some()
    }

    /// The agent's progress, if it is valid.
    pub(crate) fn progress(&self) -> Option<&RebootProgress> {
        self.annotations.in_progress.as_ref()?.as_ref().ok()
    }

    /// Whether the agent reports progress, valid or not.
    pub(crate) fn is_in_progress(&self) -> bool {
        self.annotations.in_progress.is_some()
    }

    /// Whether the agent cordoned it.
    pub(crate) fn is_cordoned_by_us(&self) -> bool {
        self.annotations.cordoned.is_some()
    }

    pub(crate) fn last(&self) -> Option<&LastReboot> {
        self.annotations.last.as_ref()?.as_ref().ok()
    }

    pub(crate) fn waiting(&self) -> Option<&Waiting> {
        self.annotations.waiting.as_ref()?.as_ref().ok()
    }

    /// Whether there is a waiting annotation, valid or not.
    pub(crate) fn has_waiting(&self) -> bool {
        self.annotations.waiting.is_some()
    }

    pub(crate) fn is_paused(&self) -> bool {
        self.annotations.paused.is_some()
    }

    pub(crate) fn is_control_plane(&self) -> bool {
        let has_role = |role: &str| {
            let label = format!("node-role.kubernetes.io/{role}");
            self.labels.contains_key(&label)
        };
        has_role("control-plane") || has_role("master")
    }

    /// Whether this grant ended here.
    pub(crate) fn has_ended(&self, id: &GrantId) -> bool {
        self.last().is_some_and(|last| last.id == *id)
    }

    /// Whether the agent committed itself to the reboot of this grant. The machine is rebooted or
    /// is about to be.
    pub(crate) fn has_committed(&self, id: &GrantId) -> bool {
        self.committed.as_ref() == Some(id)
    }

    /// Applies a patch, as a server does.
    #[cfg(test)]
    pub(crate) fn apply(&mut self, patch: &NodePatch) {
        if let Some(commitment) = &patch.commitment {
            let is_made = commitment.status == CommitStatus::Made;
            self.committed = is_made.then(|| commitment.id.clone());
        }
        for (annotation, value) in &patch.annotations {
            self.annotations.set(annotation, value.clone());
        }
        self.unschedulable = patch.unschedulable.unwrap_or(self.unschedulable);
    }

    /// The same Node with another annotation.
    #[cfg(test)]
    pub(crate) fn with_annotation(mut self, annotation: &str, value: impl ToString) -> Self {
        self.annotations.set(annotation, Some(value.to_string()));
        self
    }
}

/// A patch of a Node: annotations, and either whether it is schedulable or its commit condition.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct NodePatch {
    /// `None` removes the annotation.
    annotations: BTreeMap<&'static str, Option<String>>,
    unschedulable: Option<bool>,
    /// Part of the status. Invariant: `unschedulable`, which is not, is `None` if this is set.
    commitment: Option<Commitment>,
}

/// A change of the condition [`COMMITTED`].
#[derive(Clone, Debug, PartialEq, Eq)]
struct Commitment {
    status: CommitStatus,
    id: GrantId,
    at: Timestamp,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CommitStatus {
    /// The machine is about to be rebooted.
    Made,
    /// The machine refused to reboot.
    Withdrawn,
}

impl Commitment {
    fn new(status: CommitStatus, id: &GrantId, now: Timestamp) -> Self {
        Self {
            status,
            id: id.clone(),
            at: annotations::truncate_to_seconds(now),
        }
    }

    fn to_condition(&self, prefix: &AnnotationPrefix) -> Value {
        let status = match self.status {
            CommitStatus::Made => "True",
            CommitStatus::Withdrawn => "False",
        };
        let reason = match self.status {
            CommitStatus::Made => "Rebooting",
            CommitStatus::Withdrawn => RebootResult::Refused.as_str(),
        };
        json!({
            "type": prefix.key(COMMITTED),
            "status": status,
            "reason": reason,
            "message": self.id.as_str(),
            "lastHeartbeatTime": self.at.to_string(),
            "lastTransitionTime": self.at.to_string(),
        })
    }
}

impl NodePatch {
    fn set(mut self, annotation: &'static str, value: impl ToString) -> Self {
        self.annotations.insert(annotation, Some(value.to_string()));
        self
    }

    fn remove(mut self, annotation: &'static str) -> Self {
        self.annotations.insert(annotation, None);
        self
    }

    /// Replaces the request by an order, in one write.
    pub(crate) fn announce(grant: &Grant) -> Option<Self> {
        let order = RebootOrder {
            id: grant.id()?,
            expires: grant.expires_at.0,
        };
        let patch = Self::default().remove(NEEDED).remove(WAITING);
        Some(patch.set(NOW, order))
    }

    /// Claims the order and cordons the node in one write, so that the former value of
    /// `unschedulable` is always known.
    pub(crate) fn claim(node: &NodeState, id: &GrantId, boot: &str, now: Timestamp) -> Self {
        let progress = RebootProgress {
            id: id.clone(),
            boot: boot.to_owned(),
            since: annotations::truncate_to_seconds(now),
            stage: Stage::Draining,
        };
        let patch = Self::default().remove(NOW).set(IN_PROGRESS, progress);
        // Another client cordoned it, and it stays cordoned after the reboot.
        if node.unschedulable {
            return patch;
        }
        Self {
            unschedulable: Some(true),
            ..patch.set(CORDONED, id)
        }
    }

    /// The last write before the machine reboots. From here on, the grant does not expire.
    pub(crate) fn commit(progress: &RebootProgress, now: Timestamp) -> Self {
        let commitment = Commitment::new(CommitStatus::Made, &progress.id, now);
        let progress = RebootProgress {
            stage: Stage::Rebooting,
            ..progress.clone()
        };
        Self {
            commitment: Some(commitment),
            ..Self::default().remove(WAITING).set(IN_PROGRESS, progress)
        }
    }

    /// Ends a grant after the commit, because the machine refuses to reboot. The node is uncordoned
    /// by [`clean_up`](Self::clean_up), since a patch of the status cannot do both.
    pub(crate) fn refuse(node: &NodeState, id: &GrantId, request: &str, now: Timestamp) -> Self {
        let commitment = Commitment::new(CommitStatus::Withdrawn, id, now);
        Self {
            commitment: Some(commitment),
            ..Self::set_result(node, id, RebootResult::Refused, request, now)
        }
    }

    /// Ends a grant: restores `unschedulable`, and repeats the request after a failure.
    pub(crate) fn end(
        node: &NodeState,
        id: &GrantId,
        result: RebootResult,
        request: &str,
        now: Timestamp,
    ) -> Self {
        Self::set_result(node, id, result, request, now).uncordon(node)
    }

    fn set_result(
        node: &NodeState,
        id: &GrantId,
        result: RebootResult,
        request: &str,
        now: Timestamp,
    ) -> Self {
        let failures = if result.is_failure() {
            let former = node.last().map_or(0, |last| last.failures);
            former.saturating_add(1)
        } else {
            0
        };
        let last = LastReboot {
            id: id.clone(),
            result,
            at: annotations::truncate_to_seconds(now),
            failures,
        };
        let patch = Self::default()
            .remove(NOW)
            .remove(IN_PROGRESS)
            .remove(WAITING)
            .set(LAST, last);
        // A request that was made since then has its own reason, which stays.
        if result.is_failure() && node.needed().is_none() {
            patch.set(NEEDED, request)
        } else {
            patch
        }
    }

    /// Removes an order without a grant.
    pub(crate) fn remove_order() -> Self {
        Self::default().remove(NOW)
    }

    /// Removes what is left of a reboot whose annotations are invalid or incomplete.
    pub(crate) fn clean_up(node: &NodeState) -> Self {
        Self::default().remove(IN_PROGRESS).uncordon(node)
    }

    pub(crate) fn set_waiting(waiting: &Waiting) -> Self {
        Self::default().set(WAITING, waiting)
    }

    pub(crate) fn remove_waiting() -> Self {
        Self::default().remove(WAITING)
    }

    /// Requests a reboot.
    pub(crate) fn request(reason: &str) -> Self {
        Self::default().set(NEEDED, annotations::sanitize_reason(reason))
    }

    fn uncordon(self, node: &NodeState) -> Self {
        if !node.is_cordoned_by_us() {
            return self;
        }
        Self {
            // An administrator may have uncordoned it by now; then only the annotation is removed.
            unschedulable: node.unschedulable.then_some(false),
            ..self.remove(CORDONED)
        }
    }

    /// Whether it is a patch of the `status` subresource, which is a strategic merge patch.
    pub(crate) fn is_status(&self) -> bool {
        self.commitment.is_some()
    }

    /// The JSON of the patch. It has the resource version it was made from, so that the server
    /// rejects it with a conflict after another write.
    pub(crate) fn to_json(&self, node: &NodeState) -> Value {
        let annotations: BTreeMap<String, &Option<String>> = self
            .annotations
            .iter()
            .map(|(annotation, value)| (node.prefix.key(annotation), value))
            .collect();
        let mut patch = json!({"metadata": {
            "uid": node.uid,
            "resourceVersion": node.version,
            "annotations": annotations,
        }});
        if let Some(unschedulable) = self.unschedulable {
            // A schedulable node has no such field.
            let value = if unschedulable {
                json!(true)
            } else {
                Value::Null
            };
            patch["spec"] = json!({"unschedulable": value});
        }
        if let Some(commitment) = &self.commitment {
            patch["status"] = json!({"conditions": [commitment.to_condition(&node.prefix)]});
        }
        patch
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(unschedulable: bool, annotations: &[(&str, &str)]) -> Node {
        let annotations: BTreeMap<_, _> = annotations
            .iter()
            .chain([&("others", "stay")])
            .copied()
            .collect();
        serde_json::from_value(json!({
            "metadata": {
                "name": "a", "uid": "u", "resourceVersion": "7", "annotations": annotations,
            },
            "spec": {"unschedulable": unschedulable},
            "status": {
                "nodeInfo": {
                    "bootID": "b-1",
                    "architecture": "", "containerRuntimeVersion": "", "kernelVersion": "",
                    "kubeProxyVersion": "", "kubeletVersion": "", "machineID": "",
                    "operatingSystem": "", "osImage": "", "systemUUID": "",
                },
                "conditions": [{"type": "Ready", "status": "True"}],
            },
        }))
        .expect("a Node")
    }

    fn state(node: &Node) -> NodeState {
        NodeState::new(node, &AnnotationPrefix::default())
    }

    #[test]
    fn reason_of_a_request_has_no_control_characters() {
        let requested = state(&node(false, &[(NEEDED, "kernel\u{1b}[2J\nIdle")]));
        assert_eq!(requested.needed(), Some("kernel [2J Idle"));
    }

    fn id() -> GrantId {
        GrantId::parse("g-1").expect("an ID")
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
            // The conditions are the only list.
            Value::Array(items) if value.is_array() => {
                let conditions = value.as_array_mut().expect("it is an array");
                conditions.retain(|old| items.iter().all(|new| new["type"] != old["type"]));
                conditions.extend(items.iter().cloned());
            }
            _ => *value = patch.clone(),
        }
    }

    #[test]
    fn json_patch_and_in_memory_patch_agree() {
        let now = Timestamp::UNIX_EPOCH;
        let progress = RebootProgress {
            id: id(),
            boot: "b-1".into(),
            since: now,
            stage: Stage::Draining,
        };
        let annotations = [
            (NEEDED, "kernel"),
            (NOW, "id=g-1 expires=1970-01-01T00:01:39Z"),
            (CORDONED, "g-1"),
            (IN_PROGRESS, &progress.to_string()),
        ];
        for unschedulable in [true, false] {
            for count in 0..=annotations.len() {
                let before = node(unschedulable, &annotations[..count]);
                let before_state = state(&before);
                let end = |result| NodePatch::end(&before_state, &id(), result, "kernel", now);
                for patch in [
                    NodePatch::claim(&before_state, &id(), "b-1", now),
                    NodePatch::commit(&progress, now),
                    NodePatch::refuse(&before_state, &id(), "kernel", now),
                    end(RebootResult::Done),
                    end(RebootResult::DrainTimedOut),
                    NodePatch::remove_order(),
                    NodePatch::clean_up(&before_state),
                ] {
                    let mut value = json!(before);
                    merge(&mut value, &patch.to_json(&before_state));
                    assert_eq!(value["metadata"]["annotations"]["others"], "stay");
                    let patched = state(&serde_json::from_value(value).expect("a Node"));
                    let mut applied = before_state.clone();
                    applied.apply(&patch);
                    assert_eq!(patched, applied, "{patch:?}");
                }
            }
        }
    }

    #[test]
    fn node_is_uncordoned_only_if_the_agent_cordoned_it() {
        let now = Timestamp::UNIX_EPOCH;
        for was_unschedulable in [false, true] {
            let mut state = state(&node(was_unschedulable, &[]));
            state.apply(&NodePatch::claim(&state, &id(), "b-1", now));
            assert!(state.unschedulable);
            state.apply(&NodePatch::end(&state, &id(), RebootResult::Done, "", now));
            assert_eq!(state.unschedulable, was_unschedulable);
            assert!(!state.is_cordoned_by_us());
        }
    }

    #[test]
    fn refused_node_is_uncordoned_by_the_next_step() {
        let now = Timestamp::UNIX_EPOCH;
        let mut state = state(&node(false, &[]));
        state.apply(&NodePatch::claim(&state, &id(), "b-1", now));
        let progress = state.progress().expect("it is claimed").clone();
        state.apply(&NodePatch::commit(&progress, now));
        assert!(state.has_committed(&id()));
        state.apply(&NodePatch::refuse(&state, &id(), "kernel", now));
        assert!(!state.has_committed(&id()));
        assert!(state.has_ended(&id()));
        assert_eq!(state.needed(), Some("kernel"));
        state.apply(&NodePatch::clean_up(&state));
        assert!(!state.unschedulable);
        assert!(!state.is_cordoned_by_us());
    }

    #[test]
    fn request_is_repeated_after_a_failure() {
        let now = Timestamp::UNIX_EPOCH;
        let end = |state: &mut NodeState, result| {
            state.apply(&NodePatch::end(state, &id(), result, "kernel", now));
        };
        let failures = |state: &NodeState| state.last().map(|last| last.failures);
        let mut failed = state(&node(false, &[]));
        end(&mut failed, RebootResult::DrainTimedOut);
        assert_eq!(failed.needed(), Some("kernel"));
        assert_eq!(failures(&failed), Some(1));
        end(&mut failed, RebootResult::NotClaimed);
        assert_eq!(failures(&failed), Some(2));
        let mut with_new_request = state(&node(false, &[(NEEDED, "another")]));
        end(&mut with_new_request, RebootResult::Expired);
        assert_eq!(with_new_request.needed(), Some("another"));
        let mut done = state(&node(false, &[]));
        end(&mut done, RebootResult::Done);
        assert_eq!(done.needed(), None);
        assert_eq!(failures(&done), Some(0));
    }
}
