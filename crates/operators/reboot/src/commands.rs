//! The operations of `bellerophon reboot`.
//!
//! Inputs: names of nodes. Outputs: the same writes that controller and agents make, with the same
//! preconditions.
//!
//! Guarantees: no command takes a slot; a release ends the grant on its Node first, so that an
//! agent that has not rebooted its machine yet does not.

use std::sync::Arc;

use bellerophon::{
    ObjectKey,
    client::{ReconcileClient, WriteError},
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Client,
    api::{ListParams, Patch},
};
use serde_json::json;
use thiserror::Error;

use crate::{
    annotations::{AnnotationPrefix, NEEDED, PAUSED, RebootResult, Stage, sanitize_reason},
    controller::{is_conflict, is_not_found},
    ledger::{Grant, LEDGER, RebootLedger},
    state::{NodePatch, NodeState},
};

/// The field manager of the commands.
const FIELD_MANAGER: &str = "bellerophon-reboot";

/// The maximum number of attempts of a write that conflicts with others.
const ATTEMPTS_MAX: usize = 20;

/// Why a command failed.
#[derive(Debug, Error)]
pub enum CommandError {
    /// The node does not exist.
    #[error("node {0} not found")]
    NodeNotFound(String),
    /// The node holds no slot.
    #[error("node {0} holds no slot")]
    NoSlot(String),
    /// Every attempt conflicted with another write.
    #[error("node {0} keeps changing; try again")]
    Conflict(String),
    /// The request failed.
    #[error(transparent)]
    Api(#[from] WriteError),
}

/// The reboot status of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeRebootStatus {
    /// The name of the node.
    pub node: String,
    /// `Idle`, `Waiting`, `Granted`, `Draining`, `Rebooting`, or `Settling` until its slot is
    /// released.
    pub state: &'static str,
    /// Why the node waits, or the reason of the request.
    pub reason: String,
    /// The start of the state.
    pub since: Option<Timestamp>,
    /// Whether it has the annotation [`PAUSED`].
    pub paused: bool,
    /// Whether it holds a slot.
    pub holds_slot: bool,
    /// The result and time of the last reboot.
    pub last: Option<(String, Timestamp)>,
}

/// Shows and controls the reboots of a cluster.
pub struct RebootCommands {
    client: ReconcileClient,
    prefix: AnnotationPrefix,
}

impl RebootCommands {
    /// The commands for a cluster whose controller and agents use this prefix.
    pub fn new(client: Client, prefix: AnnotationPrefix) -> Self {
        Self {
            client: ReconcileClient::new(client, FIELD_MANAGER),
            prefix,
        }
    }

    /// The status of every node.
    ///
    /// # Errors
    /// A request fails.
    pub async fn status(&self) -> Result<Vec<NodeRebootStatus>, CommandError> {
        let ledger = match self.ledger().await {
            // The CRD does not exist either.
            Err(error) if is_not_found(&error) => None,
            response => response?,
        };
        let nodes = self
            .client
            .list::<Node>(None, &ListParams::default())
            .await?;
        Ok(nodes
            .iter()
            .map(|node| status_of(&self.state_of(node), ledger.as_deref()))
            .collect())
    }

    /// Requests a reboot.
    ///
    /// # Errors
    /// The node does not exist, or the request fails.
    pub async fn request(&self, node: &str, reason: &str) -> Result<(), CommandError> {
        let reason = sanitize_reason(reason);
        self.annotate(node, NEEDED, Some(&reason)).await
    }

    /// Excludes a node from reboots. A reboot in progress continues.
    ///
    /// # Errors
    /// The node does not exist, or the request fails.
    pub async fn pause(&self, node: &str) -> Result<(), CommandError> {
        self.annotate(node, PAUSED, Some("")).await
    }

    /// Allows a paused node to reboot again.
    ///
    /// # Errors
    /// The node does not exist, or the request fails.
    pub async fn resume(&self, node: &str) -> Result<(), CommandError> {
        self.annotate(node, PAUSED, None).await
    }

    /// Ends a node's grant in any state, and releases its slot. A machine whose agent has already
    /// started the reboot may still reboot.
    ///
    /// # Errors
    /// The node holds no slot, or a request fails.
    pub async fn release(&self, node: &str, now: Timestamp) -> Result<(), CommandError> {
        for attempt in 0..ATTEMPTS_MAX {
            let ledger = self.ledger().await?.map(Arc::unwrap_or_clone);
            let grant = ledger
                .as_ref()
                .and_then(|ledger| grant_of(ledger, node).cloned());
            let Some((mut ledger, grant)) = ledger.zip(grant) else {
                // After the first attempt ended the grant, the controller may have removed it.
                return if attempt == 0 {
                    Err(CommandError::NoSlot(node.to_owned()))
                } else {
                    Ok(())
                };
            };
            // The Node before the ledger: an agent that claims in between gets a conflict. In the
            // other order, the slot would be free while the agent still drains.
            if !self.end_on_node(node, &grant, now).await? {
                continue;
            }
            ledger.release(&grant.id, now);
            match self.client.update(&ledger).await {
                Err(error) if is_conflict(&error) => continue,
                response => return response.map(drop).map_err(CommandError::from),
            }
        }
        Err(CommandError::Conflict(node.to_owned()))
    }

    /// Ends a grant on its Node, if that exists and the grant has not ended. Returns `false` after
    /// a conflict.
    async fn end_on_node(
        &self,
        name: &str,
        grant: &Grant,
        now: Timestamp,
    ) -> Result<bool, CommandError> {
        let node = self.client.get::<Node>(&ObjectKey::cluster(name)).await?;
        let node = node
            .map(|node| self.state_of(&node))
            .filter(|node| node.uid == grant.node_uid);
        // A deleted or recreated Node has nothing to end; only the slot is left.
        let Some((node, id)) = node.zip(grant.id()) else {
            return Ok(true);
        };
        if node.has_ended(&id) {
            return Ok(true);
        }
        let patch = NodePatch::end(&node, &id, RebootResult::Released, "", now);
        let patch = Patch::Merge(patch.to_json(&node));
        match self.client.patch(&node.target(), &patch).await {
            Ok(_) => Ok(true),
            Err(error) if is_conflict(&error) || is_not_found(&error) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    async fn annotate(
        &self,
        node: &str,
        annotation: &str,
        value: Option<&str>,
    ) -> Result<(), CommandError> {
        let key = self.prefix.key(annotation);
        let patch = Patch::Merge(json!({"metadata": {"annotations": {key: value}}}));
        let mut target = Node::default();
        target.metadata.name = Some(node.to_owned());
        match self.client.patch(&target, &patch).await {
            Err(error) if is_not_found(&error) => Err(CommandError::NodeNotFound(node.to_owned())),
            response => response.map(drop).map_err(CommandError::from),
        }
    }

    fn state_of(&self, node: &Node) -> NodeState {
        NodeState::new(node, &self.prefix)
    }

    async fn ledger(&self) -> Result<Option<Arc<RebootLedger>>, WriteError> {
        self.client.get(&ObjectKey::cluster(LEDGER)).await
    }
}

fn grant_of<'a>(ledger: &'a RebootLedger, node: &str) -> Option<&'a Grant> {
    ledger.spec.grants.iter().find(|grant| grant.node == node)
}

fn status_of(node: &NodeState, ledger: Option<&RebootLedger>) -> NodeRebootStatus {
    let grant = ledger.and_then(|ledger| grant_of(ledger, &node.name));
    let has_ended = grant
        .and_then(Grant::id)
        .is_some_and(|id| node.has_ended(&id));
    let progress = node.progress();
    let waiting = node.waiting();
    let state = match progress.map(|progress| progress.stage) {
        Some(Stage::Rebooting) => "Rebooting",
        Some(Stage::Draining) => "Draining",
        None if has_ended => "Settling",
        None if grant.is_some() => "Granted",
        None if node.needed().is_some() => "Waiting",
        None => "Idle",
    };
    let request = node
        .needed()
        .or(grant.map(|grant| grant.reason.as_str()))
        .unwrap_or_default();
    NodeRebootStatus {
        node: node.name.clone(),
        state,
        reason: waiting
            .map_or(request, |waiting| waiting.reason.as_str())
            .to_owned(),
        since: progress
            .map(|progress| progress.since)
            .or(waiting.map(|waiting| waiting.since))
            .or(grant.map(|grant| grant.granted_at.0)),
        paused: node.is_paused(),
        holds_slot: grant.is_some(),
        last: node
            .last()
            .map(|last| (last.result.as_str().to_owned(), last.at)),
    }
}
