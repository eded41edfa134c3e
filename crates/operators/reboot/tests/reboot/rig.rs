//! A cluster with simulated nodes, the controller's account and that of the agents, and somebody who watches.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
};

use bellerophon::{Entropy, ManagerOptions, WallClock};
use bellerophon_cluster::Nodes;
use bellerophon_operator::{RunOptions, manager_of, rights_of, run_until};
use bellerophon_reboot::{
    AGENT, IN_PROGRESS, NEEDED, NOW, OPERATOR, Prefix, RebootLedger, agents, simulated,
};
use bellerophon_testkit::{Account, World, until};
use futures_util::{FutureExt as _, StreamExt as _, future::BoxFuture, pin_mut};
use jiff::SignedDuration;
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Node, policy::v1::PodDisruptionBudget};
use kube::{
    Api, Client, ResourceExt as _,
    api::{Patch, WatchEvent, WatchParams},
};
use serde_json::{Value, json};
use tokio::{sync::watch, task::JoinHandle};
use tokio_util::sync::CancellationToken;

thread_local! {
    /// The simulated nodes of the world that this test runs: what agents reboot. Tests run on one thread each.
    static NODES: RefCell<Option<Nodes>> = const { RefCell::new(None) };

    /// Which nodes were told to reboot, in which of their boots.
    static TOLD: RefCell<BTreeSet<(String, Option<String>)>> = const { RefCell::new(BTreeSet::new()) };

    /// The cluster's clock, and that of agents. A clock read from the system when a process starts would be behind by all the time that has
    /// passed virtually.
    static CLOCKS: Cell<Option<(WallClock, WallClock)>> = const { Cell::new(None) };
}

/// In how many of its boots a node was told to reboot.
pub(crate) fn told(node: &str) -> usize {
    TOLD.with_borrow(|told| told.iter().filter(|(name, _)| name == node).count())
}

/// Agents that are started from now on have clocks that are so many seconds fast.
pub(crate) fn set_clocks_off(world: &World, seconds: i64) {
    let fast = WallClock::starting_at(world.clock.now() + SignedDuration::from_secs(seconds));
    CLOCKS.set(Some((world.clock, fast)));
}

/// A cluster that knows reboots, and the two accounts.
pub(crate) struct Rig {
    pub(crate) world: World,
    pub(crate) controller: Account,
    pub(crate) agents: Account,
}

impl Rig {
    pub(crate) async fn new(nodes: usize) -> Self {
        let world = World::with_nodes(nodes).await;
        world.define((OPERATOR.definitions)()).await;
        NODES.with_borrow_mut(|known| *known = world.cluster().nodes().cloned());
        TOLD.with_borrow_mut(BTreeSet::clear);
        CLOCKS.set(Some((world.clock, world.clock)));
        let controller = world.account("reboot", &rights_of(&OPERATOR)).await;
        let agents = world.account("reboot-agent", &rights_of(&AGENT)).await;
        Self {
            world,
            controller,
            agents,
        }
    }

    pub(crate) fn nodes(&self) -> &Nodes {
        self.world.cluster().nodes().expect("a cluster with nodes")
    }

    pub(crate) async fn until_available(&self, name: &str, replicas: i32) {
        until(
            &self.world.within::<Deployment>("default"),
            "its pods are available",
            |all| {
                all.iter().any(|deployment| {
                    deployment.name_any() == name
                        && deployment
                            .status
                            .as_ref()
                            .and_then(|status| status.available_replicas)
                            == Some(replicas)
                })
            },
        )
        .await;
    }

    /// Whether every node has what it asked for, and every slot is free.
    pub(crate) async fn is_idle(&self) -> bool {
        let nodes = self
            .world
            .all::<Node>()
            .list(&Default::default())
            .await
            .expect("nodes")
            .items;
        let ledgers = self
            .world
            .all::<RebootLedger>()
            .list(&Default::default())
            .await
            .expect("ledgers")
            .items;
        nodes.iter().all(is_idle) && ledgers.iter().all(|ledger| ledger.spec.grants.is_empty())
    }

    /// Waits until every node has what it asked for, and every slot is free.
    pub(crate) async fn until_idle(&self) {
        until(
            &self.world.all::<Node>(),
            "all that were asked have rebooted",
            |nodes| nodes.iter().all(is_idle),
        )
        .await;
        until(
            &self.world.all::<RebootLedger>(),
            "all slots are free",
            |ledgers| ledgers.iter().all(|ledger| ledger.spec.grants.is_empty()),
        )
        .await;
    }
}

pub(crate) fn is_idle(node: &Node) -> bool {
    [NEEDED, NOW, IN_PROGRESS]
        .iter()
        .all(|note| !node.annotations().contains_key(*note))
}

pub(crate) fn options() -> RunOptions {
    options_at(CLOCKS.get().expect("a world was made on this thread").0)
}

fn options_at(clock: WallClock) -> RunOptions {
    RunOptions {
        manager: ManagerOptions {
            entropy: Entropy::seeded(3),
            clock,
            ..Default::default()
        },
        ..Default::default()
    }
}

/// The controller.
pub(crate) fn run(
    client: Client,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), String>> {
    async move {
        run_until(stop, client, &[OPERATOR], options())
            .await
            .map_err(|error| error.to_string())
    }
    .boxed()
}

/// The simulated nodes of the world that this test made.
pub(crate) fn simulated_nodes() -> Nodes {
    NODES
        .with_borrow(Clone::clone)
        .expect("a world was made on this thread")
}

/// An agent for each node.
pub(crate) fn run_agents(
    client: Client,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), String>> {
    run_agents_under(Prefix::default(), client, stop)
}

/// An agent for each node that speaks under a prefix.
pub(crate) fn run_agents_under(
    prefix: Prefix,
    client: Client,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), String>> {
    let nodes = simulated_nodes();
    async move {
        let (ask, tell) = (nodes.clone(), nodes.clone());
        let reboot = move |node: &str| {
            let boot = tell.boot_id(node)?;
            TOLD.with_borrow_mut(|told| told.insert((node.to_owned(), boot)));
            tell.reboot(node)
        };
        let each = simulated(nodes.names(), move |node| ask.boot_id(node), reboot);
        let clock = CLOCKS.get().expect("a world was made on this thread").1;
        let manager = manager_of(client, options_at(clock), |setup| {
            Ok(agents(setup, &prefix, each))
        })
        .map_err(|error| error.to_string())?;
        manager.run(stop).await.map_err(|error| error.to_string())
    }
    .boxed()
}

/// Both, as one program that can be killed.
pub(crate) fn run_both(
    client: Client,
    stop: CancellationToken,
) -> BoxFuture<'static, Result<(), String>> {
    let (controller, agents) = (run(client.clone(), stop.clone()), run_agents(client, stop));
    async move { tokio::try_join!(controller, agents).map(|_| ()) }.boxed()
}

pub(crate) fn policy(spec: Value) -> Value {
    json!({"apiVersion": "reboot.bellerophon.io/v1alpha1", "kind": "RebootPolicy", "metadata": {"name": "all"}, "spec": spec})
}

pub(crate) fn deployment(name: &str, replicas: i32) -> Value {
    let labels = json!({"app": name});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {"replicas": replicas, "selector": {"matchLabels": labels}, "template": {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c", "image": "i"}]}}},
    })
}

/// A disruption budget for the pods of a deployment.
pub(crate) fn budget(deployment: &str, mut spec: Value) -> Value {
    spec["selector"] = json!({"matchLabels": {"app": deployment}});
    json!({"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": deployment}, "spec": spec})
}

/// Asks for a reboot of one node, or of all.
pub(crate) async fn request(world: &World, node: Option<&str>) {
    let names = match node {
        Some(node) => vec![node.to_owned()],
        None => world
            .all::<Node>()
            .list(&Default::default())
            .await
            .expect("nodes")
            .items
            .iter()
            .map(Node::name_any)
            .collect::<Vec<String>>(),
    };
    for name in names {
        annotate(world, &name, NEEDED, Some("kernel")).await;
    }
}

pub(crate) async fn annotate(world: &World, node: &str, note: &str, text: Option<&str>) {
    let patch = json!({"metadata": {"annotations": {note: text}}});
    world
        .all::<Node>()
        .patch(node, &Default::default(), &Patch::Merge(&patch))
        .await
        .expect("it is annotated");
}

/// The boot id of every node.
pub(crate) async fn boots(world: &World) -> BTreeMap<String, String> {
    let nodes = world
        .all::<Node>()
        .list(&Default::default())
        .await
        .expect("nodes")
        .items;
    nodes
        .iter()
        .map(|node| (node.name_any(), boot_of(node)))
        .collect()
}

fn boot_of(node: &Node) -> String {
    node.status
        .as_ref()
        .and_then(|status| status.node_info.as_ref())
        .map(|info| info.boot_id.clone())
        .unwrap_or_default()
}

/// What somebody saw who looked at every revision.
#[derive(Clone, Debug, Default)]
pub(crate) struct Seen {
    /// Nodes that might reboot, or were rebooting, at one moment.
    pub(crate) most_at_once: usize,
    pub(crate) reboots: usize,
    /// The fewest healthy pods of any budget.
    pub(crate) least_healthy: i32,
}

/// Watches every revision of nodes and budgets.
pub(crate) struct Witness {
    seen: watch::Receiver<Seen>,
    task: JoinHandle<()>,
}

impl Witness {
    /// Watches from now on; more than `limit` nodes at once are a failure at once.
    pub(crate) fn watch(world: &World, limit: usize) -> Self {
        let (sender, seen) = watch::channel(Seen {
            least_healthy: i32::MAX,
            ..Seen::default()
        });
        let (nodes, budgets) = (world.all::<Node>(), world.all::<PodDisruptionBudget>());
        let task = tokio::spawn(async move {
            tokio::join!(
                watch_nodes(&nodes, &sender, limit),
                watch_budgets(&budgets, &sender)
            )
            .0
        });
        Self { seen, task }
    }

    /// What was seen.
    pub(crate) fn end(self) -> Seen {
        assert!(!self.task.is_finished(), "the witness saw too much");
        self.task.abort();
        self.seen.borrow().clone()
    }
}

async fn watch_nodes(nodes: &Api<Node>, seen: &watch::Sender<Seen>, limit: usize) {
    let listed = nodes.list(&Default::default()).await.expect("nodes");
    let mut boots: BTreeMap<String, String> = listed
        .items
        .iter()
        .map(|node| (node.name_any(), boot_of(node)))
        .collect();
    let mut away: BTreeSet<String> = BTreeSet::new();
    let mut version = listed.metadata.resource_version.unwrap_or_default();
    loop {
        let events = nodes
            .watch(&WatchParams::default(), &version)
            .await
            .expect("a watch");
        pin_mut!(events);
        while let Some(Ok(event)) = events.next().await {
            let (WatchEvent::Added(node) | WatchEvent::Modified(node) | WatchEvent::Deleted(node)) =
                &event
            else {
                continue;
            };
            version = node.resource_version().unwrap_or_default();
            let name = node.name_any();
            if matches!(event, WatchEvent::Deleted(_)) {
                away.remove(&name);
                continue;
            }
            let at_it = [NOW, IN_PROGRESS]
                .iter()
                .any(|note| node.annotations().contains_key(*note));
            // A node whose reboot was reported is away until its kubelet has told of it.
            if at_it {
                away.insert(name.clone())
            } else {
                away.remove(&name)
            };
            assert!(away.len() <= limit, "{away:?} are more than {limit}");
            let boot = boot_of(node);
            let booted = boots
                .insert(name, boot.clone())
                .is_some_and(|before| before != boot);
            seen.send_modify(|seen| {
                seen.most_at_once = seen.most_at_once.max(away.len());
                seen.reboots += usize::from(booted);
            });
        }
    }
}

async fn watch_budgets(budgets: &Api<PodDisruptionBudget>, seen: &watch::Sender<Seen>) {
    loop {
        let events = budgets
            .watch(&WatchParams::default(), "0")
            .await
            .expect("a watch");
        pin_mut!(events);
        while let Some(Ok(event)) = events.next().await {
            if let WatchEvent::Added(budget) | WatchEvent::Modified(budget) = event
                && let Some(status) = budget.status
            {
                seen.send_modify(|seen| {
                    seen.least_healthy = seen
                        .least_healthy
                        .min(status.current_healthy.unwrap_or_default())
                });
            }
        }
    }
}
