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

use bellerophon::{
    EventRecorder, EventType, Failure, Lister, Note, ObjectKey, Outcome, ReconcileResult, Request,
    WallClock, Writes,
};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::{Node, ObjectReference};
use kube::{
    Api, Client,
    api::{ListParams, Patch, PatchParams, PostParams},
};
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

/// Reconciles the ledger, which stands for the whole cluster.
pub(crate) struct RebootReconciler {
    pub(crate) client: Client,
    pub(crate) clock: WallClock,
    pub(crate) events: EventRecorder,
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

impl RebootReconciler {
    pub(crate) async fn reconcile(
        self: Arc<Self>,
        request: Request<RebootLedger>,
    ) -> ReconcileResult {
        if request.key.name() != LEDGER {
            return Ok(Outcome::Done);
        }
        let last_reconcile = self.state().last_reconcile;
        if let Some(last) = last_reconcile {
            sleep_until(last + RECONCILE_INTERVAL_MIN).await;
        }
        self.state().last_reconcile = Some(Instant::now());
        let Some(ledger) = request.object.clone() else {
            return self.create_ledger(request.writes()).await;
        };
        self.write_alert_requests(request.writes()).await?;
        let (nodes, plan) = self.plan(&ledger).await?;
        self.apply(request.writes(), &nodes, plan).await
    }

    /// Creates the ledger of a new cluster.
    async fn create_ledger(&self, writes: &Writes) -> ReconcileResult {
        let ledger = RebootLedger::new(LEDGER, RebootLedgerSpec::default());
        match self.ledgers().create(&PostParams::default(), &ledger).await {
            Ok(created) => writes.wrote(&created),
            // Another controller created it.
            Err(error) if is_conflict(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Outcome::RequeueAfter(CONFLICT_DELAY))
    }

    /// Writes the requests of alerts. The events of the Nodes enqueue the next reconcile.
    async fn write_alert_requests(&self, writes: &Writes) -> Result<(), Failure> {
        let policies = self.cached_policies();
        let last_query = self.state().last_alert_query;
        let is_recent = last_query.is_some_and(|last| last.elapsed() < ALERT_INTERVAL);
        if is_recent || !policies.iter().any(ParsedPolicy::has_alert_requests) {
            return Ok(());
        }
        self.state().last_alert_query = Some(Instant::now());
        let nodes = self.cached_nodes();
        let requests = alert_requests(&policies, &nodes, self.clock.now()).await;
        self.update_nodes(writes, &nodes, requests).await?;
        Ok(())
    }

    /// Observes the cluster and plans.
    async fn plan(&self, ledger: &RebootLedger) -> Result<(Nodes, Plan), Failure> {
        let mut nodes = self.cached_nodes();
        let mut policies = self.cached_policies();
        let mut blockers = ActiveBlockers::default();
        let ready_since = self.state().ready_since.clone();
        let completed = completed_grants(&ObservedState {
            now: self.clock.now(),
            nodes: &nodes,
            ledger,
            policies: &policies,
            own_node: self.own_node.as_deref(),
            blockers: &blockers,
            ready_since: &ready_since,
        });
        // A slot is released only on a Node that is newer than the ledger.
        let reads = stream::iter(completed).map(|grant| async move {
            let node = self.api_nodes().get_opt(&grant.node).await?;
            Ok::<_, kube::Error>((grant.node, node))
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
            let listed = self.api_policies().list(&ListParams::default()).await?;
            policies = ParsedPolicy::parse_all(&listed.items);
            blockers = blockers::evaluate(&self.client, &policies, &nodes).await?;
        }
        let plan = plan(&ObservedState {
            now: self.clock.now(),
            nodes: &nodes,
            ledger,
            policies: &policies,
            own_node: self.own_node.as_deref(),
            blockers: &blockers,
            ready_since: &ready_since,
        });
        Ok((nodes, plan))
    }

    async fn apply(&self, writes: &Writes, nodes: &Nodes, plan: Plan) -> ReconcileResult {
        let is_pending = plan.is_pending();
        let cached = self.policies.list();
        let has_alert_requests = cached
            .iter()
            .any(|policy| policy.spec.requests.alerts.is_some());
        let mut is_complete = self.update_nodes(writes, nodes, plan.updates).await?;
        if let Some(desired) = &plan.ledger {
            let params = PostParams::default();
            match self.ledgers().replace(LEDGER, &params, desired).await {
                Ok(written) => writes.wrote(&written),
                // Another controller wrote the ledger: no grant of this plan exists.
                Err(error) if is_conflict(&error) => {
                    return Ok(Outcome::RequeueAfter(CONFLICT_DELAY));
                }
                Err(error) => return Err(error.into()),
            }
        }
        is_complete &= self.update_nodes(writes, nodes, plan.announcements).await?;
        self.state().ready_since = plan.ready_since;
        self.metrics.set_reports(&plan.reports);
        let now = self.clock.now();
        policy_status::write(&self.client, writes, &self.policies, &plan.reports, now).await?;
        Ok(if !is_complete {
            Outcome::RequeueAfter(CONFLICT_DELAY)
        } else if is_pending {
            Outcome::RequeueAfter(PENDING_INTERVAL)
        } else if has_alert_requests {
            Outcome::RequeueAfter(ALERT_INTERVAL)
        } else {
            Outcome::Done
        })
    }

    /// Patches Nodes. Returns `false` if one of them had changed or was deleted.
    async fn update_nodes(
        &self,
        writes: &Writes,
        nodes: &Nodes,
        updates: Vec<NodeUpdate>,
    ) -> Result<bool, Failure> {
        let results = stream::iter(updates).map(|update| async move {
            let Some(node) = nodes.get(&update.node) else {
                return Ok(true);
            };
            let patch = Patch::Merge(update.patch.to_merge_patch(node));
            let patched = self
                .api_nodes()
                .patch(&node.name, &PatchParams::default(), &patch)
                .await;
            match patched {
                Ok(patched) => {
                    writes.wrote(&patched);
                    self.record(node, update.event);
                    Ok(true)
                }
                Err(error) if is_conflict(&error) || is_not_found(&error) => Ok(false),
                Err(error) => Err(Failure::from(error)),
            }
        });
        results
            .buffer_unordered(CONCURRENCY_MAX)
            .try_fold(true, |all, one| async move { Ok(all && one) })
            .await
    }

    fn record(&self, node: &NodeState, event: Option<NodeEvent>) {
        let name = &node.name;
        let (type_, reason, action, note) = match event {
            None => return,
            Some(NodeEvent::Granted { id }) => {
                info!(node = name, grant = id, "reboot granted");
                let request = node.needed().unwrap_or_default();
                let note = format!("Node {name} may reboot: {request}");
                (EventType::Normal, "RebootGranted", "Grant", note)
            }
            Some(NodeEvent::Ended { result }) => {
                self.metrics.count_ended(result);
                let note = format!("Node {name} did not reboot, and its slot is released");
                (EventType::Warning, result.as_str(), "TakeBack", note)
            }
            Some(NodeEvent::Requested { reason }) => {
                (EventType::Normal, "RebootRequired", "Request", reason)
            }
            Some(NodeEvent::Waiting { reason }) => {
                let note = format!("{}: {}", reason.as_str(), reason.message());
                (EventType::Normal, "RebootWaiting", "Wait", note)
            }
        };
        let regarding = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            name: Some(name.clone()),
            uid: Some(node.uid.clone()),
            ..ObjectReference::default()
        };
        let event = Note {
            type_,
            reason: reason.into(),
            action: action.into(),
            note,
        };
        self.events.event_about(regarding, event);
    }

    /// All nodes of the cache. Those with an unchanged resource version are not parsed again.
    fn cached_nodes(&self) -> Nodes {
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

    fn api_policies(&self) -> Api<RebootPolicy> {
        Api::all(self.client.clone())
    }

    fn api_nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    fn ledgers(&self) -> Api<RebootLedger> {
        Api::all(self.client.clone())
    }

    fn state(&self) -> std::sync::MutexGuard<'_, ReconcilerState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Whether a write was rejected because of a concurrent one.
pub(crate) fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

pub(crate) fn is_not_found(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}
