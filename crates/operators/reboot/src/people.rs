//! People: what somebody at a terminal asks of reboots.
//!
//! In: names of nodes. Out: the same writes that controller and agents make, under the same conditions.
//! Holds: nothing here can spend a slot; a release ends the grant on its Node first, so that an agent that has not told its
//! machine yet will not.

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
};
use serde_json::json;
use thiserror::Error;

use crate::{
    controller::{is_conflict, is_gone},
    ledger::{LEDGER, RebootLedger},
    notes::{Fate, NEEDED, PAUSED, Prefix, Stage},
    state::{Edit, NodeState},
};

/// How often a write is tried that others are faster with.
const TRIES_MAX: usize = 20;

/// Why something asked by a person was not done.
#[derive(Debug, Error)]
pub enum PeopleError {
    /// There is no such node.
    #[error("there is no node {0}")]
    NoNode(String),
    /// It holds no slot.
    #[error("node {0} holds no slot")]
    NoGrant(String),
    /// Others kept changing the same object.
    #[error("node {0} keeps changing; try again")]
    Busy(String),
    /// The server refuses.
    #[error(transparent)]
    Server(#[from] kube::Error),
}

/// How a node stands.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Row {
    /// The node.
    pub node: String,
    /// `Idle`, `Waiting`, `Granted`, `Draining`, `Rebooting`, or `Settling` while it shows that it is back.
    pub state: &'static str,
    /// Why it waits, or why somebody wants it to reboot.
    pub reason: String,
    /// Since when.
    pub since: Option<Timestamp>,
    /// Whether it was paused.
    pub paused: bool,
    /// Whether it holds a slot.
    pub holds_slot: bool,
    /// How the last reboot ended, and when.
    pub last: Option<(String, Timestamp)>,
}

/// Somebody who looks at reboots and steers them.
pub struct People {
    client: Client,
    prefix: Prefix,
}

impl People {
    /// Speaks to a cluster whose controller and agents use this prefix.
    pub fn new(client: Client, prefix: Prefix) -> Self {
        Self { client, prefix }
    }

    /// How every node stands.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn status(&self) -> Result<Vec<Row>, PeopleError> {
        let ledger = self.ledgers().get_opt(LEDGER).await.or_else(|error| {
            if is_gone(&error) {
                Ok(None)
            } else {
                Err(error)
            }
        })?;
        let nodes = self.nodes().list(&ListParams::default()).await?;
        Ok(nodes
            .items
            .iter()
            .map(|node| row(&self.read(node), ledger.as_ref()))
            .collect())
    }

    /// Asks for a reboot.
    ///
    /// # Errors
    /// There is no such node, or the server refuses.
    pub async fn request(&self, node: &str, reason: &str) -> Result<(), PeopleError> {
        self.annotate(node, NEEDED, Some(&crate::notes::reason(reason)))
            .await
    }

    /// Keeps a node from rebooting. One that is at it goes on.
    ///
    /// # Errors
    /// There is no such node, or the server refuses.
    pub async fn pause(&self, node: &str) -> Result<(), PeopleError> {
        self.annotate(node, PAUSED, Some("")).await
    }

    /// Lets a paused node reboot again.
    ///
    /// # Errors
    /// There is no such node, or the server refuses.
    pub async fn resume(&self, node: &str) -> Result<(), PeopleError> {
        self.annotate(node, PAUSED, None).await
    }

    /// Ends a node's grant, whatever became of the node, and frees its slot. A machine that was told already may still reboot.
    ///
    /// # Errors
    /// The node holds no slot, or the server refuses.
    pub async fn release(&self, node: &str, now: Timestamp) -> Result<(), PeopleError> {
        for tried in 0..TRIES_MAX {
            let ledger = self.ledgers().get_opt(LEDGER).await?;
            let grant = ledger.as_ref().and_then(|ledger| {
                ledger
                    .spec
                    .grants
                    .iter()
                    .find(|grant| grant.node == node)
                    .cloned()
            });
            let Some((mut ledger, grant)) = ledger.zip(grant) else {
                // Once its Node says that it ended, the controller may be the one who frees it.
                return if tried == 0 {
                    Err(PeopleError::NoGrant(node.to_owned()))
                } else {
                    Ok(())
                };
            };
            let found = self
                .nodes()
                .get_opt(node)
                .await?
                .map(|node| self.read(&node))
                .filter(|found| found.uid == grant.node_uid);
            if let Some((found, id)) = found.zip(grant.id())
                && !found.has_ended(&id)
            {
                let patch = Edit::end(&found, &id, Fate::Released, "", now).patch(&found);
                match self
                    .nodes()
                    .patch(node, &PatchParams::default(), &Patch::Merge(patch))
                    .await
                {
                    Err(error) if is_conflict(&error) || is_gone(&error) => continue,
                    written => _ = written?,
                }
            }
            ledger.free(&grant.id, now);
            match self
                .ledgers()
                .replace(LEDGER, &PostParams::default(), &ledger)
                .await
            {
                Err(error) if is_conflict(&error) => continue,
                written => return written.map(drop).map_err(PeopleError::from),
            }
        }
        Err(PeopleError::Busy(node.to_owned()))
    }

    async fn annotate(
        &self,
        node: &str,
        note: &str,
        text: Option<&str>,
    ) -> Result<(), PeopleError> {
        let patch = json!({"metadata": {"annotations": {self.prefix.key(note): text}}});
        match self
            .nodes()
            .patch(node, &PatchParams::default(), &Patch::Merge(patch))
            .await
        {
            Err(error) if is_gone(&error) => Err(PeopleError::NoNode(node.to_owned())),
            written => written.map(drop).map_err(PeopleError::from),
        }
    }

    fn read(&self, node: &Node) -> NodeState {
        NodeState::of(node, &self.prefix)
    }

    fn nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    fn ledgers(&self) -> Api<RebootLedger> {
        Api::all(self.client.clone())
    }
}

fn row(node: &NodeState, ledger: Option<&RebootLedger>) -> Row {
    let grant = ledger.and_then(|ledger| {
        ledger
            .spec
            .grants
            .iter()
            .find(|grant| grant.node == node.name)
    });
    let (progress, waiting) = (node.in_progress(), node.waiting());
    let state = match &progress {
        Some(progress) if progress.stage == Stage::Rebooting => "Rebooting",
        Some(_) => "Draining",
        None if grant.is_some_and(|grant| grant.id().is_some_and(|id| node.has_ended(&id))) => {
            "Settling"
        }
        None if grant.is_some() => "Granted",
        None if node.needed().is_some() => "Waiting",
        None => "Idle",
    };
    let wanted = node
        .needed()
        .map(str::to_owned)
        .or_else(|| grant.map(|grant| grant.reason.clone()))
        .unwrap_or_default();
    Row {
        node: node.name.clone(),
        state,
        reason: waiting
            .as_ref()
            .map_or(wanted, |waiting| waiting.reason.as_str().to_owned()),
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
