//! The reconciler: observes the whole cluster, plans, and writes.
//!
//! Inputs: caches, and reads from the server for everything that takes or releases a slot.
//! Outputs: the ledger, then the Nodes.
//!
//! Guarantees: no order is written before its grant is in the ledger; a slot is released only after
//! its Node was read later than the ledger; a write from a stale read is rejected with a conflict
//! and planned again.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use bellerophon::{client::WriteError, prelude::*};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::api::{ListParams, Patch};
use tokio::time::{Instant, sleep_until};
use tracing::info;

use super::{
    alert_requests::alert_requests,
    blockers,
    metrics::RebootMetrics,
    plan::{
        ActiveBlockers, NodeEvent, NodeUpdate, Nodes, ObservedState, Plan, ReadySince,
        completed_grants, plan,
    },
    policy_status,
};
use crate::{
    annotations::AnnotationPrefix,
    ledger::{LEDGER, RebootLedger, RebootLedgerSpec},
    parsed_policy::ParsedPolicy,
    policy::RebootPolicy,
    state::NodeState,
};

/// The maximum number of concurrent requests.
const CONCURRENCY_MAX: usize = 16;

/// The minimum time between two reconciles, so that events of this time are handled together.
const RECONCILE_INTERVAL_MIN: Duration = Duration::from_secs(1);

/// The requeue interval while a node has a grant or waits, since time alone can change the plan.
const PENDING_INTERVAL: Duration = Duration::from_secs(10);

/// The interval of Prometheus queries for nodes that need a reboot.
const ALERT_INTERVAL: Duration = Duration::from_secs(60);

/// The requeue delay after a conflict.
const CONFLICT_DELAY: Duration = Duration::from_secs(1);

/// Reconciles the ledger, which represents the whole cluster.
pub(crate) struct RebootReconciler {
    pub(crate) nodes: Lister<Node>,
    pub(crate) policies: Lister<RebootPolicy>,
    /// The node that this controller runs on, if known.
    pub(crate) own_node: Option<String>,
    pub(crate) prefix: AnnotationPrefix,
    pub(crate) metrics: RebootMetrics,
    pub(crate) state: Mutex<ReconcilerState>,
}

/// The state between two reconciles. All of it can be lost.
#[derive(Default)]
pub(crate) struct ReconcilerState {
    /// The parsed Nodes, which are parsed again only after a change.
    nodes: Nodes,
    ready_since: ReadySince,
    last_reconcile: Option<Instant>,
    last_alert_query: Option<Instant>,
}

impl Reconciler<RebootLedger> for RebootReconciler {
    async fn reconcile(&self, req: Request<RebootLedger>) -> Result<Action, Error> {
        // A ledger of another name, which only users create, has no part in the protocol.
        if req.key().name() != LEDGER {
            return Ok(Action::await_change());
        }
        let last_reconcile = self.state().last_reconcile;
        if let Some(last) = last_reconcile {
            // Events during the sleep are in the caches by its end: one plan for all of them writes
            // the ledger once.
            sleep_until(last + RECONCILE_INTERVAL_MIN).await;
        }
        self.state().last_reconcile = Some(Instant::now());
        let Some(ledger) = req.object() else {
            return create_ledger(&req).await;
        };
        self.write_alert_requests(&req).await?;
        let (nodes, plan) = self.plan(&req, ledger).await?;
        self.apply(&req, &nodes, plan).await
    }
}

/// Creates the ledger of a new cluster.
async fn create_ledger(req: &Request<RebootLedger>) -> Result<Action, Error> {
    let ledger = RebootLedger::new(LEDGER, RebootLedgerSpec::default());
    match req.client().create(&ledger).await {
        Ok(_) => {}
        // Another controller created it.
        Err(error) if is_conflict(&error) => {}
        Err(error) => return Err(error.into()),
    }
    Ok(Action::requeue_after(CONFLICT_DELAY))
}

impl RebootReconciler {
    /// Writes the requests of alerts. The events of the Nodes enqueue the next reconcile.
    async fn write_alert_requests(&self, req: &Request<RebootLedger>) -> Result<(), Error> {
        let policies = self.cached_policies();
        let last_query = self.state().last_alert_query;
        let is_recent = last_query.is_some_and(|last| last.elapsed() < ALERT_INTERVAL);
        if is_recent || !policies.iter().any(ParsedPolicy::has_alert_requests) {
            return Ok(());
        }
        // Before the query, so that a Prometheus that fails is not queried by each reconcile.
        self.state().last_alert_query = Some(Instant::now());
        let nodes = self.cached_nodes();
        let requests = alert_requests(&policies, &nodes, req.now()).await;
        self.update_nodes(req, &nodes, requests).await?;
        Ok(())
    }

    /// Observes the cluster and plans.
    async fn plan(
        &self,
        req: &Request<RebootLedger>,
        ledger: &RebootLedger,
    ) -> Result<(Nodes, Plan), Error> {
        let mut nodes = self.cached_nodes();
        let mut policies = self.cached_policies();
        let mut blockers = ActiveBlockers::default();
        let ready_since = self.state().ready_since.clone();
        let completed = completed_grants(&ObservedState {
            now: req.now(),
            nodes: &nodes,
            ledger,
            policies: &policies,
            own_node: self.own_node.as_deref(),
            blockers: &blockers,
            ready_since: &ready_since,
        });
        // A slot is released only on a Node that is newer than the ledger.
        let reads = stream::iter(completed).map(|grant| async move {
            let key = ObjectKey::cluster(&grant.node);
            let node = req.client().get::<Node>(&key).await?;
            Ok::<_, WriteError>((grant.node, node))
        });
        let reads: Vec<_> = reads
            .buffer_unordered(CONCURRENCY_MAX)
            .try_collect()
            .await?;
        for (name, node) in reads {
            match node {
                Some(node) => {
                    nodes.insert(name, Arc::new(NodeState::new(&node, &self.prefix)));
                }
                None => {
                    nodes.remove(&name);
                }
            }
        }
        // A lowered limit or a paused pool must apply even if the cache is stale.
        if nodes.values().any(|node| node.needed().is_some()) {
            let listed = req.client().list(None, &ListParams::default()).await?;
            policies = ParsedPolicy::parse_all(listed.iter().map(|policy| &**policy));
            blockers = blockers::evaluate(req.client(), &policies, &nodes).await?;
        }
        let plan = plan(&ObservedState {
            now: req.now(),
            nodes: &nodes,
            ledger,
            policies: &policies,
            own_node: self.own_node.as_deref(),
            blockers: &blockers,
            ready_since: &ready_since,
        });
        Ok((nodes, plan))
    }

    async fn apply(
        &self,
        req: &Request<RebootLedger>,
        nodes: &Nodes,
        plan: Plan,
    ) -> Result<Action, Error> {
        let is_pending = plan.is_pending();
        let cached = self.policies.list();
        let has_alert_requests = cached
            .iter()
            .any(|policy| policy.spec.requests.alerts.is_some());
        // Ends of grants come before the ledger, which in this order never frees a slot whose grant
        // is still usable on the Node.
        let mut is_complete = self.update_nodes(req, nodes, plan.updates).await?;
        if let Some(desired) = &plan.ledger {
            match req.client().update(desired).await {
                Ok(_) => {}
                // Another controller wrote the ledger: no grant of this plan exists.
                Err(error) if is_conflict(&error) => {
                    return Ok(Action::requeue_after(CONFLICT_DELAY));
                }
                Err(error) => return Err(error.into()),
            }
        }
        // Orders come after the ledger: an order without a grant is worth nothing, and a grant
        // without an order is announced by the next reconcile.
        is_complete &= self.update_nodes(req, nodes, plan.announcements).await?;
        self.state().ready_since = plan.ready_since;
        self.metrics.set_reports(&plan.reports);
        let now = req.now();
        policy_status::write(req.client(), &self.policies, &plan.reports, now).await?;
        Ok(if !is_complete {
            Action::requeue_after(CONFLICT_DELAY)
        } else if is_pending {
            Action::requeue_after(PENDING_INTERVAL)
        } else if has_alert_requests {
            Action::requeue_after(ALERT_INTERVAL)
        } else {
            Action::await_change()
        })
    }

    /// Patches Nodes. Returns `false` if one of them had changed or was deleted.
    async fn update_nodes(
        &self,
        req: &Request<RebootLedger>,
        nodes: &Nodes,
        updates: Vec<NodeUpdate>,
    ) -> Result<bool, Error> {
        let results = stream::iter(updates).map(|update| async move {
            let Some(node) = nodes.get(&update.node) else {
                return Ok(true);
            };
            let patch = Patch::Merge(update.patch.to_json(node));
            match req.client().patch(&node.target(), &patch).await {
                Ok(_) => {
                    if let Some(event) = update.event {
                        let event = self.event(node, event);
                        req.recorder().event(reference(node), event);
                    }
                    Ok(true)
                }
                Err(error) if is_conflict(&error) || is_not_found(&error) => Ok(false),
                Err(error) => Err(Error::from(error)),
            }
        });
        results
            .buffer_unordered(CONCURRENCY_MAX)
            .try_fold(true, |all, one| async move { Ok(all && one) })
            .await
    }

    /// The Event of a change, which is also counted.
    fn event(&self, node: &NodeState, event: NodeEvent) -> Event {
        let name = &node.name;
        match event {
            NodeEvent::Granted { id } => {
                info!(node = name, grant = id, "reboot granted");
                let request = node.needed().unwrap_or_default();
                let note = format!("Node {name} may reboot: {request}");
                Event::normal("RebootGranted", "Grant", note)
            }
            NodeEvent::Ended { result } => {
                self.metrics.count_ended(result);
                let note = format!("Node {name} did not reboot, and its slot is released");
                Event::warning(result.as_str(), "TakeBack", note)
            }
            NodeEvent::Requested { reason } => Event::normal("RebootRequired", "Request", reason),
            NodeEvent::Waiting { reason } => {
                let note = format!("{}: {}", reason.as_str(), reason.message());
                Event::normal("RebootWaiting", "Wait", note)
            }
        }
    }

    /// All nodes of the cache. Those with an unchanged resource version are not parsed again.
    fn cached_nodes(&self) -> Nodes {
        // Taken out, so that the lock is not held while Nodes are parsed.
        let former = std::mem::take(&mut self.state().nodes);
        let parse = |key: ObjectKey| {
            let version = self.nodes.resource_version_of(&key)?;
            let name = key.name().to_owned();
            if let Some(node) = former.get(&name).filter(|node| node.version == version) {
                return Some((name, node.clone()));
            }
            let node = self.nodes.get(&key)?;
            Some((name, Arc::new(NodeState::new(&node, &self.prefix))))
        };
        let nodes: Nodes = self.nodes.keys().into_iter().filter_map(parse).collect();
        self.state().nodes.clone_from(&nodes);
        nodes
    }

    fn cached_policies(&self) -> Vec<ParsedPolicy> {
        let policies = self.policies.list();
        ParsedPolicy::parse_all(policies.iter().map(|policy| &**policy))
    }

    fn state(&self) -> std::sync::MutexGuard<'_, ReconcilerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A Node as the subject of an Event.
fn reference(node: &NodeState) -> ObjectReference {
    ObjectReference {
        api_version: Some("v1".into()),
        kind: Some("Node".into()),
        name: Some(node.name.clone()),
        uid: Some(node.uid.clone()),
        ..ObjectReference::default()
    }
}

/// Whether a write was rejected because of a concurrent one.
pub(crate) fn is_conflict(error: &WriteError) -> bool {
    error.status().is_some_and(|status| status.code == 409)
}

/// Whether the object, or the resource itself, does not exist.
pub(crate) fn is_not_found(error: &WriteError) -> bool {
    error.status().is_some_and(|status| status.code == 404)
}
