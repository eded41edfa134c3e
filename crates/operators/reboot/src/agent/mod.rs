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

use std::{collections::BTreeMap, path::PathBuf, sync::Arc, time::Duration};

use bellerophon::{
    client::{WriteError, Written},
    informer::InformerOptions,
    prelude::*,
};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::{ResourceExt as _, api::Patch};
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

/// The action of every Event.
const ACTION: &str = "Reboot";

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

/// Adds a controller with these agents to a Manager. Each agent reconciles only its own Node; one
/// agent watches only that.
pub fn agents(mgr: &mut Manager, prefix: &AnnotationPrefix, agents: Vec<AgentOptions>) {
    let concurrency = agents.len();
    // With a field selector, the memory of an agent and the load of the server do not grow with the
    // square of the number of nodes.
    let nodes = match agents.as_slice() {
        [agent] => mgr.informer(InformerOptions::fields(format!(
            "metadata.name={}",
            agent.node
        ))),
        _ => mgr.informer(InformerOptions::default()),
    };
    let metrics = AgentMetrics::new();
    metrics.register(mgr.metrics());
    let by_node = agents.into_iter().map(|agent| (agent.node.clone(), agent));
    let agents: Arc<BTreeMap<String, AgentOptions>> = Arc::new(by_node.collect());
    let reconciler = AgentReconciler {
        agents: agents.clone(),
        metrics,
        prefix: prefix.clone(),
    };
    let has_agent = Predicate::filter(move |node: &Node| agents.contains_key(&node.name_any()));
    let prefix = prefix.clone();
    let is_changed = Predicate::on_update(move |old: &Node, new: &Node| {
        NodeState::is_changed(old, new, &prefix)
    });
    mgr.controller::<Node>()
        .informer(&nodes)
        .predicate(has_agent)
        .predicate(is_changed)
        .name(crate::AGENT.name)
        .with_options(crate::controller_options())
        .concurrency(concurrency)
        .reconcile(reconciler);
}

/// Reconciles the Nodes that have an agent in this process.
struct AgentReconciler {
    /// The agents by the name of their Node.
    agents: Arc<BTreeMap<String, AgentOptions>>,
    metrics: AgentMetrics,
    prefix: AnnotationPrefix,
}

impl Reconciler<Node> for AgentReconciler {
    async fn reconcile(&self, req: Request<Node>) -> Result<Action, Error> {
        let agent = self.agents.get(req.key().name());
        let Some((node, agent)) = req.object().zip(agent) else {
            return Ok(Action::await_change());
        };
        let run = AgentRun {
            req: &req,
            agent,
            metrics: &self.metrics,
        };
        run.take_steps(node, &self.prefix).await
    }
}

/// One reconcile of one agent.
struct AgentRun<'a> {
    req: &'a Request<Node>,
    agent: &'a AgentOptions,
    metrics: &'a AgentMetrics,
}

/// What follows a step.
enum Next {
    /// Write this patch, record this event, and take the next step.
    Write(NodePatch, Option<Event>),
    /// End the reconcile.
    Return(Action),
}

impl AgentRun<'_> {
    async fn take_steps(&self, object: &Node, prefix: &AnnotationPrefix) -> Result<Action, Error> {
        // Read once: a reboot ends the reconcile, so that all steps belong to one boot.
        let Some(boot) = self.agent.machine.boot_id()? else {
            return Ok(Action::requeue_after(POLL_INTERVAL));
        };
        let mut node = NodeState::new(object, prefix);
        for _ in 0..STEPS_MAX {
            let (patch, event) = match self.step(&node, &boot).await? {
                Next::Return(action) => return Ok(action),
                Next::Write(patch, event) => (patch, event),
            };
            let written = match self.write(&node, &patch).await {
                Ok(written) => written.object()?,
                Err(error) if is_conflict(&error) || is_not_found(&error) => {
                    return Ok(Action::requeue_after(CONFLICT_DELAY));
                }
                Err(error) => return Err(error.into()),
            };
            if let Some(event) = event {
                info!(
                    node = node.name,
                    reason = event.reason,
                    note = event.note,
                    "recorded an event"
                );
                self.req.recorder().event(object, event);
            }
            // From the response, not from the cache: the next patch needs the resource version of
            // this one, which the cache gets later.
            node = NodeState::new(&written, prefix);
        }
        Ok(Action::requeue_after(CONFLICT_DELAY))
    }

    async fn write(
        &self,
        node: &NodeState,
        patch: &NodePatch,
    ) -> Result<Written<Node>, WriteError> {
        let client = self.req.client();
        let body = patch.to_json(node);
        if patch.is_status() {
            let statuses = client.subresource("status");
            return statuses
                .patch(&node.target(), &Patch::Strategic(body))
                .await;
        }
        client.patch(&node.target(), &Patch::Merge(body)).await
    }

    async fn step(&self, node: &NodeState, boot: &str) -> Result<Next, Error> {
        // Read from the server after the Node, so that a grant that was released since then is not
        // used. Idle agents, which are most, do not read it.
        let ledger = if needs_ledger(node) {
            let key = ObjectKey::cluster(LEDGER);
            self.req.client().get::<RebootLedger>(&key).await?
        } else {
            None
        };
        let now = self.req.now();
        Ok(match next_step(node, boot, ledger.as_deref(), now) {
            AgentStep::Idle => self.check_sentinel(node),
            AgentStep::AwaitKubelet => Next::Return(Action::requeue_after(POLL_INTERVAL)),
            AgentStep::RemoveOrder => {
                let note = "A reboot order without a grant was removed".to_owned();
                let event = Event::warning("RebootOrderDiscarded", ACTION, note);
                Next::Write(NodePatch::remove_order(), Some(event))
            }
            AgentStep::CleanUp => Next::Write(NodePatch::clean_up(node), None),
            AgentStep::Claim(id) => {
                let note = format!("Node {} is drained, then rebooted", node.name);
                let event = Event::normal("RebootStarted", ACTION, note);
                Next::Write(NodePatch::claim(node, &id, boot, now), Some(event))
            }
            AgentStep::Drain { progress, grant } => self.drain(node, &progress, &grant).await?,
            AgentStep::Reboot(id) => self.reboot(node, &id, ledger.as_deref()).await?,
            AgentStep::End {
                id,
                result,
                request,
            } => self.end(node, &id, result, &request, now),
        })
    }

    /// Requests a reboot if the sentinel file exists.
    fn check_sentinel(&self, node: &NodeState) -> Next {
        let Some(sentinel) = &self.agent.sentinel else {
            return Next::Return(Action::await_change());
        };
        if node.needed().is_none() && sentinel.exists() {
            let reason = format!("{} exists", sentinel.display());
            let patch = NodePatch::request(&reason);
            let event = Event::normal("RebootRequired", ACTION, reason);
            return Next::Write(patch, Some(event));
        }
        Next::Return(Action::requeue_after(POLL_INTERVAL))
    }

    async fn drain(
        &self,
        node: &NodeState,
        progress: &RebootProgress,
        grant: &Grant,
    ) -> Result<Next, Error> {
        let status = match grant.drain.mode {
            DrainMode::None => DrainStatus::default(),
            DrainMode::Evict => {
                evict_pods(self.req.client(), &node.name, &grant.drain, self.metrics).await?
            }
        };
        // Read again: evictions can take longer than the rest of the timeout.
        let now = self.req.now();
        Ok(match after_drain(progress, grant, status.remaining, now) {
            DrainDecision::Commit => {
                let elapsed = now.duration_since(progress.since);
                self.metrics.observe_drain(elapsed.as_secs_f64());
                let note = format!("Node {} reboots", node.name);
                let event = Event::normal("Rebooting", ACTION, note);
                Next::Write(NodePatch::commit(progress, now), Some(event))
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
        id: &GrantId,
        ledger: Option<&RebootLedger>,
    ) -> Result<Next, Error> {
        match self.agent.machine.reboot().await {
            // Not the end of the grant: only a new boot ID proves the reboot. If the machine still
            // runs by then, the stored stage makes the agent reboot it again.
            Ok(()) => Ok(Next::Return(Action::requeue_after(REBOOT_RETRY))),
            Err(MachineError::Refused(error)) => {
                warn!(node = node.name, error, "the machine does not reboot");
                let request = ledger
                    .and_then(|ledger| ledger.grant(id))
                    .map(|grant| grant.reason.clone())
                    .unwrap_or_default();
                let now = self.req.now();
                let event = self.ended(node, RebootResult::Refused, now);
                let patch = NodePatch::refuse(node, id, &request, now);
                Ok(Next::Write(patch, Some(event)))
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
        let event = self.ended(node, result, now);
        Next::Write(NodePatch::end(node, id, result, request, now), Some(event))
    }

    /// Counts the end of a grant, and returns its Event.
    fn ended(&self, node: &NodeState, result: RebootResult, now: Timestamp) -> Event {
        let elapsed = node
            .progress()
            .map(|progress| now.duration_since(progress.since).as_secs_f64());
        self.metrics.observe_end(result, elapsed);
        let name = &node.name;
        if result == RebootResult::Done {
            let note = format!("Node {name} has rebooted");
            Event::normal("RebootDone", ACTION, note)
        } else {
            let note = format!("Node {name} does not reboot: {}", result.as_str());
            Event::warning("RebootGivenUp", ACTION, note)
        }
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
            let event = Event::warning(reason.as_str(), ACTION, note);
            Next::Write(NodePatch::set_waiting(&waiting), Some(event))
        }
        _ => Next::Return(Action::requeue_after(DRAIN_INTERVAL)),
    }
}
