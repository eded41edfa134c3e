//! The agent: drains and reboots its node when the controller grants it, and reports the result.
//!
//! Inputs: its own Node, the ledger, the boot ID of the kernel. Outputs: the steps of the protocol,
//! evictions, a reboot.
//!
//! Guarantee: every step is one write to the resource version that it was planned from, so that the
//! agent may crash between any two of them.

mod drain; // one attempt to evict pods
mod logind; // reboots over D-Bus
mod machine; // the machine of an agent
mod metrics; // Prometheus metrics
pub(crate) mod plan; // the next step
#[cfg(test)]
mod tests; // table tests of the next step

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

use self::{
    drain::{DrainStatus, evict_pods},
    metrics::AgentMetrics,
    plan::{AgentStep, DrainDecision, after_drain, needs_ledger, next_step},
};
pub use self::{
    logind::Logind,
    machine::{Command, Machine, MachineError},
};
use crate::{
    annotations::{AnnotationPrefix, GrantId, RebootProgress, RebootResult, WaitReason, Waiting},
    controller::{is_conflict, is_not_found},
    ledger::{Grant, LEDGER, RebootLedger},
    policy::DrainMode,
    state::{NodePatch, NodeState},
};

/// The interval of attempts to drain the node.
const DRAIN_INTERVAL: Duration = Duration::from_secs(5);

/// The delay before a machine that still runs is rebooted again.
const REBOOT_RETRY: Duration = Duration::from_secs(60);

/// The interval of checks without events: a machine that does not run, a kubelet, a sentinel file.
const POLL_INTERVAL: Duration = Duration::from_secs(10);

/// The requeue delay after a conflict.
const CONFLICT_DELAY: Duration = Duration::from_secs(1);

/// The maximum number of steps of one reconcile; the protocol has six.
const STEPS_MAX: usize = 10;

/// The options of an agent.
pub struct AgentOptions {
    /// The name of its Node.
    pub node: String,
    /// The machine to reboot.
    pub machine: Arc<dyn Machine>,
    /// A file that requests a reboot while it exists.
    pub sentinel: Option<PathBuf>,
}

/// The controllers of agents, one for each node. Each watches only its own Node.
pub fn agents(
    setup: &Setup,
    prefix: &AnnotationPrefix,
    agents: Vec<AgentOptions>,
) -> Vec<Controller> {
    let events = setup.recorder(crate::AGENT.name);
    let options = setup.options(crate::AGENT.name);
    let metrics = AgentMetrics::new();
    metrics.register(&options.metrics);
    let controller = |agent: AgentOptions| {
        let nodes = setup.cluster_informer_with::<Node>(InformerOptions {
            fields: Some(format!("metadata.name={}", agent.node)),
            ..InformerOptions::default()
        });
        let reconciler = Arc::new(AgentReconciler {
            client: setup.client.clone(),
            clock: setup.clock,
            events: events.clone(),
            metrics: metrics.clone(),
            prefix: prefix.clone(),
            options: agent,
        });
        let prefix = prefix.clone();
        Controller::of(&nodes)
            .with_predicate(Predicate::changed(move |old, new| {
                NodeState::is_changed(old, new, &prefix)
            }))
            .with_options(ControllerOptions {
                workers: 1,
                ..options.clone()
            })
            .reconcile_with(move |request| reconciler.clone().reconcile(request))
    };
    agents.into_iter().map(controller).collect()
}

/// Reconciles one Node.
struct AgentReconciler {
    client: Client,
    clock: WallClock,
    events: EventRecorder,
    metrics: AgentMetrics,
    prefix: AnnotationPrefix,
    options: AgentOptions,
}

/// What follows a step.
enum Next {
    /// Write this patch, record this event, and take the next step.
    Write(NodePatch, Option<Note>),
    /// End the reconcile.
    Return(Outcome),
}

impl AgentReconciler {
    async fn reconcile(self: Arc<Self>, request: Request<Node>) -> ReconcileResult {
        let Some(object) = request
            .object
            .as_deref()
            .filter(|_| request.key.name() == self.options.node)
        else {
            return Ok(Outcome::Done);
        };
        let Some(boot) = self.options.machine.boot_id()? else {
            return Ok(Outcome::RequeueAfter(POLL_INTERVAL));
        };
        let nodes = Api::<Node>::all(self.client.clone());
        let mut node = NodeState::new(object, &self.prefix);
        for _ in 0..STEPS_MAX {
            let (patch, event) = match self.step(&node, &boot).await? {
                Next::Return(outcome) => return Ok(outcome),
                Next::Write(patch, event) => (patch, event),
            };
            let patch = Patch::Merge(patch.to_merge_patch(&node));
            let written = nodes
                .patch(&node.name, &PatchParams::default(), &patch)
                .await;
            let written = match written {
                Ok(written) => written,
                Err(error) if is_conflict(&error) || is_not_found(&error) => {
                    return Ok(Outcome::RequeueAfter(CONFLICT_DELAY));
                }
                Err(error) => return Err(error.into()),
            };
            request.writes().wrote(&written);
            if let Some(event) = event {
                info!(
                    node = node.name,
                    reason = event.reason,
                    note = event.note,
                    "recorded an event"
                );
                self.events.event(object, event);
            }
            node = NodeState::new(&written, &self.prefix);
        }
        Ok(Outcome::RequeueAfter(CONFLICT_DELAY))
    }

    async fn step(&self, node: &NodeState, boot: &str) -> Result<Next, Failure> {
        let ledger = if needs_ledger(node) {
            let ledgers = Api::<RebootLedger>::all(self.client.clone());
            ledgers.get_opt(LEDGER).await?
        } else {
            None
        };
        let now = self.clock.now();
        Ok(match next_step(node, boot, ledger.as_ref(), now) {
            AgentStep::Idle => self.check_sentinel(node),
            AgentStep::AwaitKubelet => Next::Return(Outcome::RequeueAfter(POLL_INTERVAL)),
            AgentStep::RemoveOrder => {
                let note = "A reboot order without a grant was removed".to_owned();
                let event = event(EventType::Warning, "RebootOrderDiscarded", note);
                Next::Write(NodePatch::remove_order(), Some(event))
            }
            AgentStep::CleanUp => Next::Write(NodePatch::clean_up(node), None),
            AgentStep::Claim(id) => {
                let note = format!("Node {} is drained, then rebooted", node.name);
                let event = event(EventType::Normal, "RebootStarted", note);
                Next::Write(NodePatch::claim(node, &id, boot, now), Some(event))
            }
            AgentStep::Drain { progress, grant } => self.drain(node, &progress, &grant).await?,
            AgentStep::Reboot(progress) => self.reboot(node, &progress, ledger.as_ref()).await?,
            AgentStep::End {
                id,
                result,
                request,
            } => self.end(node, &id, result, &request, now),
        })
    }

    /// Requests a reboot if the sentinel file exists.
    fn check_sentinel(&self, node: &NodeState) -> Next {
        let Some(sentinel) = &self.options.sentinel else {
            return Next::Return(Outcome::Done);
        };
        if node.needed().is_none() && sentinel.exists() {
            let reason = format!("{} exists", sentinel.display());
            let patch = NodePatch::request(&reason);
            let event = event(EventType::Normal, "RebootRequired", reason);
            return Next::Write(patch, Some(event));
        }
        Next::Return(Outcome::RequeueAfter(POLL_INTERVAL))
    }

    async fn drain(
        &self,
        node: &NodeState,
        progress: &RebootProgress,
        grant: &Grant,
    ) -> Result<Next, Failure> {
        let status = match grant.drain.mode {
            DrainMode::None => DrainStatus::default(),
            DrainMode::Evict => {
                evict_pods(&self.client, &node.name, &grant.drain, &self.metrics).await?
            }
        };
        let now = self.clock.now();
        Ok(match after_drain(progress, grant, status.remaining, now) {
            DrainDecision::Commit => {
                let elapsed = now.duration_since(progress.since);
                self.metrics.observe_drain(elapsed.as_secs_f64());
                let note = format!("Node {} reboots", node.name);
                let event = event(EventType::Normal, "Rebooting", note);
                Next::Write(NodePatch::commit(progress), Some(event))
            }
            DrainDecision::GiveUp => {
                warn!(
                    node = node.name,
                    remaining = status.remaining,
                    blocked_by = status.blocked_by,
                    "drain timed out"
                );
                let result = RebootResult::DrainTimedOut;
                self.end(node, &progress.id, result, &grant.reason, now)
            }
            DrainDecision::Retry => report_block(node, progress, status.blocked_by),
        })
    }

    async fn reboot(
        &self,
        node: &NodeState,
        progress: &RebootProgress,
        ledger: Option<&RebootLedger>,
    ) -> Result<Next, Failure> {
        match self.options.machine.reboot().await {
            Ok(()) => Ok(Next::Return(Outcome::RequeueAfter(REBOOT_RETRY))),
            Err(MachineError::Refused(error)) => {
                warn!(node = node.name, error, "the machine does not reboot");
                let request = ledger
                    .and_then(|ledger| ledger.grant(&progress.id))
                    .map(|grant| grant.reason.clone())
                    .unwrap_or_default();
                let now = self.clock.now();
                Ok(self.end(node, &progress.id, RebootResult::Refused, &request, now))
            }
            // The machine may still reboot: the grant stays, and the reboot is retried.
            Err(error @ MachineError::Unclear(_)) => Err(error.into()),
        }
    }

    fn end(
        &self,
        node: &NodeState,
        id: &GrantId,
        result: RebootResult,
        request: &str,
        now: Timestamp,
    ) -> Next {
        let elapsed = node
            .progress()
            .map(|progress| now.duration_since(progress.since).as_secs_f64());
        self.metrics.observe_end(result, elapsed);
        let name = &node.name;
        let event = if result == RebootResult::Done {
            let note = format!("Node {name} has rebooted");
            event(EventType::Normal, "RebootDone", note)
        } else {
            let note = format!("Node {name} does not reboot: {}", result.as_str());
            event(EventType::Warning, "RebootGivenUp", note)
        };
        Next::Write(NodePatch::end(node, id, result, request, now), Some(event))
    }
}

/// Reports a blocking PodDisruptionBudget once, then waits for the next attempt.
fn report_block(node: &NodeState, progress: &RebootProgress, blocked_by: Option<String>) -> Next {
    let reason = WaitReason::BlockedByPdb;
    let is_reported = node
        .waiting()
        .is_some_and(|waiting| waiting.reason == reason);
    match blocked_by {
        Some(note) if !is_reported => {
            let waiting = Waiting {
                reason,
                since: progress.since,
            };
            let event = event(EventType::Warning, reason.as_str(), note);
            Next::Write(NodePatch::set_waiting(&waiting), Some(event))
        }
        _ => Next::Return(Outcome::RequeueAfter(DRAIN_INTERVAL)),
    }
}

fn event(type_: EventType, reason: &str, note: String) -> Note {
    Note {
        type_,
        reason: reason.into(),
        action: "Reboot".into(),
        note,
    }
}
