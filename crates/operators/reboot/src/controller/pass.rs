//! Pass: one look at the whole cluster, and what follows from it.
//!
//! In: caches, and from the server itself whatever a slot is spent or freed by. Out: the ledger, then the nodes.
//! Holds: no order is written before its grant stands in the ledger; a slot is freed only on a Node read after the ledger
//! was; whoever is too late is refused by the server and looks again.

use std::{
    collections::BTreeMap,
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
    asked, held,
    metrics::Figures,
    plan::{Back, Deed, Nodes, Plan, Told, View, free, plan},
    report,
};
use crate::{
    ledger::{LEDGER, RebootLedger, RebootLedgerSpec},
    notes::Prefix,
    policy::RebootPolicy,
    rules::Rules,
    state::NodeState,
};

/// How many nodes are read or written at once.
const FAN_OUT: usize = 16;

/// Passes are at least so far apart: what changes meanwhile is looked at together.
const APART: Duration = Duration::from_secs(1);

/// While anything is under way or waits, time alone may change the plan.
const LOOK_EVERY: Duration = Duration::from_secs(10);

/// How often Prometheus is asked which nodes need a reboot.
const ASK_EVERY: Duration = Duration::from_secs(60);

/// How soon to look again when somebody else was faster.
const SOON: Duration = Duration::from_secs(1);

/// Looks at the whole cluster.
pub(crate) struct Watchman {
    pub(crate) client: Client,
    pub(crate) clock: WallClock,
    pub(crate) events: EventRecorder,
    pub(crate) nodes: Lister<Node>,
    pub(crate) policies: Lister<RebootPolicy>,
    /// The node this controller runs on, if it knows.
    pub(crate) own_node: Option<String>,
    /// Under which notes are written.
    pub(crate) prefix: Prefix,
    pub(crate) figures: Figures,
    pub(crate) memory: Mutex<Memory>,
}

/// What is remembered from one pass to the next. All of it can be lost.
#[derive(Default)]
pub(crate) struct Memory {
    /// Nodes as they were read, to be read again only when they changed.
    nodes: Nodes,
    back: Back,
    last: Option<Instant>,
    /// When Prometheus was last asked who needs a reboot.
    asked: Option<Instant>,
}

impl Watchman {
    pub(crate) async fn reconcile(
        self: Arc<Self>,
        request: Request<RebootLedger>,
    ) -> ReconcileResult {
        if request.key.name() != LEDGER {
            return Ok(Outcome::Done);
        }
        let last = self.memory().last;
        if let Some(last) = last {
            sleep_until(last + APART).await;
        }
        self.memory().last = Some(Instant::now());
        let Some(ledger) = request.object.clone() else {
            return self.open(request.writes()).await;
        };
        self.take_requests(request.writes()).await?;
        let plan = self.look(&ledger).await?;
        self.apply(request.writes(), plan).await
    }

    /// Makes the ledger, once in the life of a cluster.
    async fn open(&self, writes: &Writes) -> ReconcileResult {
        match self
            .ledgers()
            .create(
                &PostParams::default(),
                &RebootLedger::new(LEDGER, RebootLedgerSpec::default()),
            )
            .await
        {
            Ok(made) => writes.wrote(&made),
            Err(error) if is_conflict(&error) => {}
            Err(error) => return Err(error.into()),
        }
        Ok(Outcome::RequeueAfter(SOON))
    }

    /// Writes the requests of alerts. The nodes are looked at again when they have changed.
    async fn take_requests(&self, writes: &Writes) -> Result<(), Failure> {
        let rules = Rules::of_all(self.policies.list().iter().map(|policy| &**policy));
        let asked = self.memory().asked;
        if !rules.iter().any(Rules::asks) || asked.is_some_and(|asked| asked.elapsed() < ASK_EVERY)
        {
            return Ok(());
        }
        self.memory().asked = Some(Instant::now());
        let nodes = self.nodes();
        let requests = asked::by_alerts(&rules, &nodes, self.clock.now()).await;
        self.do_all(writes, &nodes, requests).await.map(drop)
    }

    /// Reads and plans.
    async fn look(&self, ledger: &RebootLedger) -> Result<(Nodes, Plan), Failure> {
        let mut nodes = self.nodes();
        let back = self.memory().back.clone();
        let cached = Rules::of_all(self.policies.list().iter().map(|policy| &**policy));
        let held = Default::default();
        let view = View {
            now: self.clock.now(),
            nodes: &nodes,
            ledger,
            rules: &cached,
            own_node: self.own_node.as_deref(),
            held: &held,
            back: &back,
        };
        let maybe_free = free(&view);
        let fresh: Vec<(String, Option<Node>)> = stream::iter(maybe_free)
            .map(|grant| async move {
                self.all_nodes()
                    .get_opt(&grant.node)
                    .await
                    .map(|node| (grant.node, node))
            })
            .buffer_unordered(FAN_OUT)
            .try_collect()
            .await?;
        for (name, node) in fresh {
            match node {
                Some(node) => _ = nodes.insert(name, Arc::new(NodeState::of(&node, &self.prefix))),
                None => _ = nodes.remove(&name),
            }
        }
        // Who lowers a limit or pauses a pool is not to see one more grant because a cache was late.
        let wanted = nodes.values().any(|node| node.needed().is_some());
        let rules = if wanted {
            Rules::of_all(&self.policies_now().await?)
        } else {
            cached
        };
        let held = if wanted {
            held::ask(&self.client, &rules, &nodes).await?
        } else {
            held
        };
        let view = View {
            now: self.clock.now(),
            nodes: &nodes,
            ledger,
            rules: &rules,
            own_node: self.own_node.as_deref(),
            held: &held,
            back: &back,
        };
        let plan = plan(&view);
        Ok((nodes, plan))
    }

    async fn apply(&self, writes: &Writes, (nodes, plan): (Nodes, Plan)) -> ReconcileResult {
        let is_pending = plan.is_pending();
        let asks = self
            .policies
            .list()
            .iter()
            .any(|policy| policy.spec.requests.alerts.is_some());
        let mut all_done = self.do_all(writes, &nodes, plan.deeds).await?;
        if let Some(wanted) = &plan.ledger {
            match self
                .ledgers()
                .replace(LEDGER, &PostParams::default(), wanted)
                .await
            {
                Ok(written) => writes.wrote(&written),
                // Another controller was faster: nothing of this plan may be announced.
                Err(error) if is_conflict(&error) => return Ok(Outcome::RequeueAfter(SOON)),
                Err(error) => return Err(error.into()),
            }
        }
        all_done &= self.do_all(writes, &nodes, plan.announcements).await?;
        self.memory().back = plan.back;
        self.figures.show(&plan.reports);
        report::write(
            &self.client,
            writes,
            &self.policies,
            &plan.reports,
            self.clock.now(),
        )
        .await?;
        Ok(match (all_done, is_pending) {
            (false, _) => Outcome::RequeueAfter(SOON),
            (true, true) => Outcome::RequeueAfter(LOOK_EVERY),
            (true, false) if asks => Outcome::RequeueAfter(ASK_EVERY),
            (true, false) => Outcome::Done,
        })
    }

    /// Changes nodes; whether none of them had changed meanwhile.
    async fn do_all(
        &self,
        writes: &Writes,
        nodes: &Nodes,
        deeds: Vec<Deed>,
    ) -> Result<bool, Failure> {
        let done = stream::iter(deeds).map(|deed| async move {
            let Some(node) = nodes.get(&deed.node) else {
                return Ok(true);
            };
            let patched = self
                .all_nodes()
                .patch(
                    &node.name,
                    &PatchParams::default(),
                    &Patch::Merge(deed.edit.patch(node)),
                )
                .await;
            match patched {
                Ok(patched) => {
                    writes.wrote(&patched);
                    self.tell(node, deed.told);
                    Ok(true)
                }
                Err(error) if is_conflict(&error) || is_gone(&error) => Ok(false),
                Err(error) => Err(Failure::from(error)),
            }
        });
        done.buffer_unordered(FAN_OUT)
            .try_fold(true, |all, one| async move { Ok(all && one) })
            .await
    }

    fn tell(&self, node: &NodeState, told: Option<Told>) {
        let (type_, reason, action, note) = match told {
            None => return,
            Some(Told::Granted { id }) => {
                info!(node = node.name, grant = id, "reboot granted");
                (
                    EventType::Normal,
                    "RebootGranted",
                    "Grant",
                    format!(
                        "Node {} may reboot: {}",
                        node.name,
                        node.needed().unwrap_or_default()
                    ),
                )
            }
            Some(Told::Ended { fate }) => {
                self.figures.ended(fate);
                (
                    EventType::Warning,
                    fate.as_str(),
                    "TakeBack",
                    format!("Node {} did not reboot, and its slot is free", node.name),
                )
            }
            Some(Told::Asked { why }) => (EventType::Normal, "RebootRequired", "Request", why),
            Some(Told::Waits { reason }) => (
                EventType::Normal,
                "RebootWaiting",
                "Wait",
                format!("{}: {}", reason.as_str(), reason.words()),
            ),
        };
        let regarding = ObjectReference {
            api_version: Some("v1".into()),
            kind: Some("Node".into()),
            name: Some(node.name.clone()),
            uid: Some(node.uid.clone()),
            ..ObjectReference::default()
        };
        self.events.event_about(
            regarding,
            Note {
                type_,
                reason: reason.into(),
                action: action.into(),
                note,
            },
        );
    }

    /// All nodes, those that did not change as they were read before.
    fn nodes(&self) -> Nodes {
        let before = std::mem::take(&mut self.memory().nodes);
        let read = |key: ObjectKey| {
            let version = self.nodes.resource_version_of(&key)?;
            let known = before
                .get(key.name())
                .filter(|known| known.version == version)
                .cloned();
            Some((
                key.name().to_owned(),
                known.or_else(|| {
                    self.nodes
                        .get(&key)
                        .map(|node| Arc::new(NodeState::of(&node, &self.prefix)))
                })?,
            ))
        };
        let nodes: Nodes = self
            .nodes
            .keys()
            .into_iter()
            .filter_map(read)
            .collect::<BTreeMap<_, _>>();
        self.memory().nodes.clone_from(&nodes);
        nodes
    }

    async fn policies_now(&self) -> Result<Vec<RebootPolicy>, kube::Error> {
        Ok(Api::all(self.client.clone())
            .list(&ListParams::default())
            .await?
            .items)
    }

    fn all_nodes(&self) -> Api<Node> {
        Api::all(self.client.clone())
    }

    fn ledgers(&self) -> Api<RebootLedger> {
        Api::all(self.client.clone())
    }

    fn memory(&self) -> std::sync::MutexGuard<'_, Memory> {
        self.memory.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Somebody else was faster.
pub(crate) fn is_conflict(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 409)
}

pub(crate) fn is_gone(error: &kube::Error) -> bool {
    matches!(error, kube::Error::Api(status) if status.code == 404)
}
