//! Agent: empties and reboots the node it runs on when the controller lets it, and reports that it is back.
//!
//! In: its own Node, the ledger, the kernel's boot id. Out: the protocol's steps, evictions, a reboot.
//! Holds: every step is one write to the version of the Node it was decided on; between any two of them the agent may die.

mod drain; // one pass over the pods
mod logind; // rebooting over D-Bus
mod machine; // what reboots
mod metrics; // what a scrape tells
pub(crate) mod plan; // what comes next
#[cfg(test)]
mod tests; // steps, as tables

use std::{path::PathBuf, sync::Arc, time::Duration};

use bellerophon::{
    Controller, ControllerOptions, EventRecorder, EventType, Failure, InformerOptions, Note,
    Outcome, Predicate, ReconcileResult, Request, WallClock,
};
use bellerophon_operator::Setup;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{
    Api, Client,
    api::{Patch, PatchParams},
};
use tracing::{info, warn};

pub use self::{
    logind::Logind,
    machine::{Command, Machine, MachineError},
};
use self::{
    metrics::Figures,
    plan::{AfterDrain, Step, after_drain, needs_ledger, step},
};
use crate::{
    controller::{is_conflict, is_gone},
    ledger::{Grant, LEDGER, RebootLedger},
    notes::{Fate, GrantId, Prefix, Progress, Reason, Waiting},
    state::{Edit, NodeState},
};

/// How soon a drain looks at its pods again.
const DRAIN_EVERY: Duration = Duration::from_secs(5);

/// How soon a machine that was told, and still runs, is told again.
const ASK_AGAIN: Duration = Duration::from_secs(60);

/// How soon to look again at what nobody tells of: a machine that does not run, a sentinel.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// How soon to look again when somebody else was faster.
const SOON: Duration = Duration::from_secs(1);

/// How many steps one reconcile takes at most; the protocol has six.
const STEPS_MAX: usize = 10;

/// An agent.
pub struct AgentOptions {
    /// The name of its Node.
    pub node: String,
    /// What it reboots.
    pub machine: Arc<dyn Machine>,
    /// While this file is there, the node wants to reboot.
    pub sentinel: Option<PathBuf>,
}

/// The controllers of these agents, one for each node. Each watches its own Node and nothing else.
pub fn agents(setup: &Setup, prefix: &Prefix, agents: Vec<AgentOptions>) -> Vec<Controller> {
    let (events, options, figures) = (
        setup.recorder(crate::AGENT.name),
        setup.options(crate::AGENT.name),
        Figures::new(),
    );
    figures.register(&options.metrics);
    let controller = |agent: AgentOptions| {
        let fields = Some(format!("metadata.name={}", agent.node));
        let nodes = setup.cluster_informer_with::<Node>(InformerOptions {
            fields,
            ..InformerOptions::default()
        });
        let (client, clock, events, figures) = (
            setup.client.clone(),
            setup.clock,
            events.clone(),
            figures.clone(),
        );
        let agent = Arc::new(Agent {
            client,
            clock,
            events,
            figures,
            prefix: prefix.clone(),
            options: agent,
        });
        let prefix = prefix.clone();
        Controller::of(&nodes)
            .with_predicate(Predicate::changed(move |old, new| {
                NodeState::changed(old, new, &prefix)
            }))
            .with_options(ControllerOptions {
                workers: 1,
                ..options.clone()
            })
            .reconcile_with(move |request| agent.clone().reconcile(request))
    };
    agents.into_iter().map(controller).collect()
}

struct Agent {
    client: Client,
    clock: WallClock,
    events: EventRecorder,
    figures: Figures,
    prefix: Prefix,
    options: AgentOptions,
}

/// What one step leads to.
enum Next {
    /// Write this, tell this, and go on.
    Write(Edit, Option<Note>),
    /// Nothing more for now.
    Stop(Outcome),
}

impl Agent {
    async fn reconcile(self: Arc<Self>, request: Request<Node>) -> ReconcileResult {
        let Some(object) = request
            .object
            .as_deref()
            .filter(|_| request.key.name() == self.options.node)
        else {
            return Ok(Outcome::Done);
        };
        let Some(boot) = self.options.machine.boot_id()? else {
            return Ok(Outcome::RequeueAfter(LOOK_EVERY));
        };
        let (nodes, mut node) = (
            Api::<Node>::all(self.client.clone()),
            NodeState::of(object, &self.prefix),
        );
        for _ in 0..STEPS_MAX {
            let (edit, note) = match self.step(&node, &boot).await? {
                Next::Stop(outcome) => return Ok(outcome),
                Next::Write(edit, note) => (edit, note),
            };
            let written = match nodes
                .patch(
                    &node.name,
                    &PatchParams::default(),
                    &Patch::Merge(edit.patch(&node)),
                )
                .await
            {
                Ok(written) => written,
                Err(error) if is_conflict(&error) || is_gone(&error) => {
                    return Ok(Outcome::RequeueAfter(SOON));
                }
                Err(error) => return Err(error.into()),
            };
            request.writes().wrote(&written);
            if let Some(note) = note {
                info!(node = node.name, reason = note.reason, "{}", note.note);
                self.events.event(object, note);
            }
            node = NodeState::of(&written, &self.prefix);
        }
        Ok(Outcome::RequeueAfter(SOON))
    }

    async fn step(&self, node: &NodeState, boot: &str) -> Result<Next, Failure> {
        let ledger = if needs_ledger(node) {
            Api::<RebootLedger>::all(self.client.clone())
                .get_opt(LEDGER)
                .await?
        } else {
            None
        };
        let now = self.clock.now();
        Ok(match step(node, boot, ledger.as_ref(), now) {
            Step::Rest => self.rest(node),
            Step::AwaitKubelet => Next::Stop(Outcome::RequeueAfter(LOOK_EVERY)),
            Step::Discard => {
                let why = "An order to reboot has no grant behind it, and was taken off".to_owned();
                Next::Write(
                    Edit::discard(),
                    Some(note(EventType::Warning, "RebootOrderDiscarded", why)),
                )
            }
            Step::Tidy => Next::Write(Edit::tidy(node), None),
            Step::Claim(id) => {
                let told = note(
                    EventType::Normal,
                    "RebootStarted",
                    format!("Node {} is drained, then rebooted", node.name),
                );
                Next::Write(Edit::claim(node, &id, boot, now), Some(told))
            }
            Step::Drain { progress, grant } => self.drain(node, &progress, &grant).await?,
            Step::Reboot(progress) => self.reboot(node, &progress, ledger.as_ref()).await?,
            Step::End { id, fate, request } => self.end(node, &id, fate, &request, now),
        })
    }

    fn rest(&self, node: &NodeState) -> Next {
        let Some(sentinel) = &self.options.sentinel else {
            return Next::Stop(Outcome::Done);
        };
        if node.needed().is_none() && sentinel.exists() {
            let why = format!("{} is there", sentinel.display());
            return Next::Write(
                Edit::request(&why),
                Some(note(EventType::Normal, "RebootRequired", why)),
            );
        }
        Next::Stop(Outcome::RequeueAfter(LOOK_EVERY))
    }

    async fn drain(
        &self,
        node: &NodeState,
        progress: &Progress,
        grant: &Grant,
    ) -> Result<Next, Failure> {
        let left = match grant.drain.mode {
            crate::policy::DrainMode::None => drain::Left::default(),
            crate::policy::DrainMode::Evict => {
                drain::pass(&self.client, &node.name, &grant.drain, &self.figures).await?
            }
        };
        let now = self.clock.now();
        Ok(match after_drain(progress, grant, left.pods, now) {
            AfterDrain::Commit => {
                self.figures
                    .drained(now.duration_since(progress.since).as_secs_f64());
                Next::Write(
                    Edit::commit(progress),
                    Some(note(
                        EventType::Normal,
                        "Rebooting",
                        format!("Node {} reboots", node.name),
                    )),
                )
            }
            AfterDrain::GiveUp => {
                let why = left
                    .blocked
                    .unwrap_or_else(|| format!("{} pods did not go", left.pods));
                warn!(node = node.name, why, "the drain took too long");
                self.end(node, &progress.id, Fate::DrainTimedOut, &grant.reason, now)
            }
            AfterDrain::Again => match left.blocked {
                Some(why)
                    if node
                        .waiting()
                        .is_none_or(|waiting| waiting.reason != Reason::BlockedByPdb) =>
                {
                    let waiting = Waiting {
                        reason: Reason::BlockedByPdb,
                        since: progress.since,
                    };
                    Next::Write(
                        Edit::wait(&waiting),
                        Some(note(EventType::Warning, Reason::BlockedByPdb.as_str(), why)),
                    )
                }
                _ => Next::Stop(Outcome::RequeueAfter(DRAIN_EVERY)),
            },
        })
    }

    async fn reboot(
        &self,
        node: &NodeState,
        progress: &Progress,
        ledger: Option<&RebootLedger>,
    ) -> Result<Next, Failure> {
        match self.options.machine.reboot().await {
            Ok(()) => Ok(Next::Stop(Outcome::RequeueAfter(ASK_AGAIN))),
            Err(MachineError::Refused(why)) => {
                warn!(node = node.name, why, "the machine does not reboot");
                let request = ledger
                    .and_then(|ledger| ledger.grant(&progress.id))
                    .map(|grant| grant.reason.clone());
                Ok(self.end(
                    node,
                    &progress.id,
                    Fate::Refused,
                    &request.unwrap_or_default(),
                    self.clock.now(),
                ))
            }
            // It may still come: the slot stays taken, and the machine is asked again.
            Err(error @ MachineError::Unclear(_)) => Err(error.into()),
        }
    }

    fn end(
        &self,
        node: &NodeState,
        id: &GrantId,
        fate: Fate,
        request: &str,
        now: Timestamp,
    ) -> Next {
        let since = node
            .in_progress()
            .map(|progress| now.duration_since(progress.since).as_secs_f64());
        self.figures.ended(fate, since);
        let (type_, text) = match fate {
            Fate::Done => (
                EventType::Normal,
                format!("Node {} has rebooted", node.name),
            ),
            _ => (
                EventType::Warning,
                format!("Node {} does not reboot: {}", node.name, fate.as_str()),
            ),
        };
        let reason = if fate == Fate::Done {
            "RebootDone"
        } else {
            "RebootGivenUp"
        };
        Next::Write(
            Edit::end(node, id, fate, request, now),
            Some(note(type_, reason, text)),
        )
    }
}

fn note(type_: EventType, reason: &str, note: String) -> Note {
    Note {
        type_,
        reason: reason.into(),
        action: "Reboot".into(),
        note,
    }
}
