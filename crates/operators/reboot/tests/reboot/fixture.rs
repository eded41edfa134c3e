//! A cluster with simulated nodes, the accounts of controller and agents, and a monitor of all
//! revisions.

use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
};

use bellerophon::{
    clock::Clock,
    manager::{Manager, ManagerOptions},
};
use bellerophon_cluster::Nodes;
use bellerophon_operator::{Switches, manager, permissions_of};
use bellerophon_reboot::{
    AGENT, AnnotationPrefix, IN_PROGRESS, NEEDED, NOW, OPERATOR, RebootLedger, agents,
    simulated_agents,
};
use bellerophon_testkit::{Account, TestCluster, wait_until};
use futures_util::{StreamExt as _, pin_mut};
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
    /// The simulated nodes of the test's cluster, which agents reboot. Each test has one thread.
    static NODES: RefCell<Option<Nodes>> = const { RefCell::new(None) };

    /// The node and boot ID of every reboot by an agent.
    static REBOOTS: RefCell<BTreeSet<(String, Option<String>)>> =
        const { RefCell::new(BTreeSet::new()) };

    /// The clock of agents. Default: that of the cluster.
    static AGENT_CLOCK: Cell<Option<Clock>> = const { Cell::new(None) };
}

/// The number of boots in which an agent rebooted the node.
pub(crate) fn reboots_of(node: &str) -> usize {
    REBOOTS.with_borrow(|reboots| reboots.iter().filter(|(name, _)| name == node).count())
}

/// Sets the clock skew of agents that are started from now on.
pub(crate) fn set_agent_clock_skew(cluster: &TestCluster, seconds: i64) {
    let skewed = cluster.clock.now() + SignedDuration::from_secs(seconds);
    AGENT_CLOCK.set(Some(Clock::starting_at(skewed)));
}

/// A cluster with the CRDs, and the accounts of controller and agents.
pub(crate) struct RebootFixture {
    pub(crate) cluster: TestCluster,
    pub(crate) controller: Account,
    pub(crate) agents: Account,
}

impl RebootFixture {
    pub(crate) async fn new(nodes: usize) -> Self {
        let cluster = TestCluster::with_nodes(nodes).await;
        cluster.install_crds((OPERATOR.crds)()).await;
        NODES.with_borrow_mut(|nodes| *nodes = cluster.cluster().nodes().cloned());
        REBOOTS.with_borrow_mut(BTreeSet::clear);
        AGENT_CLOCK.set(None);
        let controller = cluster
            .service_account("reboot", &permissions_of(&OPERATOR))
            .await;
        let agents = cluster
            .service_account("reboot-agent", &permissions_of(&AGENT))
            .await;
        Self {
            cluster,
            controller,
            agents,
        }
    }

    pub(crate) fn nodes(&self) -> &Nodes {
        let nodes = self.cluster.cluster().nodes();
        nodes.expect("the cluster has nodes")
    }

    pub(crate) async fn wait_until_available(&self, name: &str, replicas: i32) {
        let deployments = self.cluster.namespaced::<Deployment>("default");
        wait_until(&deployments, "all pods are available", |all| {
            all.iter().any(|deployment| {
                let status = deployment.status.as_ref();
                deployment.name_any() == name
                    && status.and_then(|status| status.available_replicas) == Some(replicas)
            })
        })
        .await;
    }

    /// Whether no node waits or reboots, and no slot is taken.
    pub(crate) async fn is_idle(&self) -> bool {
        let nodes = self.cluster.all::<Node>();
        let nodes = nodes.list(&Default::default()).await.expect("a list");
        let ledgers = self.cluster.all::<RebootLedger>();
        let ledgers = ledgers.list(&Default::default()).await.expect("a list");
        nodes.items.iter().all(is_idle) && ledgers.items.iter().all(has_no_grants)
    }

    /// Waits until no node waits or reboots, and no slot is taken.
    pub(crate) async fn wait_until_idle(&self) {
        wait_until_idle(&self.cluster).await;
    }
}

/// Waits until no node waits or reboots, and no slot is taken.
pub(crate) async fn wait_until_idle(cluster: &TestCluster) {
    wait_until(&cluster.all::<Node>(), "every request is served", |nodes| {
        nodes.iter().all(is_idle)
    })
    .await;
    let ledgers = cluster.all::<RebootLedger>();
    wait_until(&ledgers, "all slots are released", |ledgers| {
        ledgers.iter().all(has_no_grants)
    })
    .await;
}

fn is_idle(node: &Node) -> bool {
    [NEEDED, NOW, IN_PROGRESS]
        .iter()
        .all(|annotation| !node.annotations().contains_key(*annotation))
}

pub(crate) fn has_no_grants(ledger: &RebootLedger) -> bool {
    ledger.spec.grants.is_empty()
}

/// The value of a node's annotation; empty if it has none.
pub(crate) fn annotation<'a>(node: &'a Node, name: &str) -> &'a str {
    node.annotations().get(name).map_or("", String::as_str)
}

pub(crate) fn is_cordoned(node: &Node) -> bool {
    let spec = node.spec.as_ref();
    spec.and_then(|spec| spec.unschedulable) == Some(true)
}

/// A Manager that runs the controller.
pub(crate) fn reboot_controller(client: Client, options: ManagerOptions) -> Manager {
    manager(client, &[OPERATOR], &Switches::default(), options)
}

/// The simulated nodes of the test's cluster.
pub(crate) fn simulated_nodes() -> Nodes {
    let nodes = NODES.with_borrow(Clone::clone);
    nodes.expect("the test has a cluster")
}

/// A Manager that runs an agent for each node.
pub(crate) fn reboot_agents(client: Client, options: ManagerOptions) -> Manager {
    reboot_agents_with_prefix(&AnnotationPrefix::default(), client, options)
}

/// As [`reboot_agents`], with an annotation prefix.
pub(crate) fn reboot_agents_with_prefix(
    prefix: &AnnotationPrefix,
    client: Client,
    options: ManagerOptions,
) -> Manager {
    let nodes = simulated_nodes();
    let boot_ids = nodes.clone();
    let machines = nodes.clone();
    let boot_id = move |node: &str| boot_ids.boot_id(node);
    let reboot = move |node: &str| {
        let boot_id = machines.boot_id(node)?;
        REBOOTS.with_borrow_mut(|reboots| reboots.insert((node.to_owned(), boot_id)));
        machines.reboot(node)
    };
    let agent_options = simulated_agents(nodes.names(), boot_id, reboot);
    let options = ManagerOptions {
        clock: AGENT_CLOCK.get().unwrap_or(options.clock),
        ..options
    };
    let mut mgr = Manager::new(client, options);
    agents(&mut mgr, prefix, agent_options);
    mgr
}

/// A Manager that runs controller and agents as one program, each with its own caches.
pub(crate) fn reboot_controller_and_agents(client: Client, options: ManagerOptions) -> Manager {
    let agents = reboot_agents(client.clone(), options.clone());
    let mut mgr = reboot_controller(client, options);
    mgr.add("agents", async move |stop: CancellationToken| {
        Ok(agents.run_until(stop.cancelled_owned()).await?)
    });
    mgr
}

pub(crate) fn policy(spec: Value) -> Value {
    json!({
        "apiVersion": "reboot.bellerophon.io/v1alpha1", "kind": "RebootPolicy",
        "metadata": {"name": "all"},
        "spec": spec,
    })
}

pub(crate) fn deployment(name: &str, replicas: i32) -> Value {
    let labels = json!({"app": name});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        },
    })
}

/// A PodDisruptionBudget for the pods of a workload.
pub(crate) fn budget(workload: &str, mut spec: Value) -> Value {
    spec["selector"] = json!({"matchLabels": {"app": workload}});
    json!({
        "apiVersion": "policy/v1", "kind": "PodDisruptionBudget",
        "metadata": {"name": workload},
        "spec": spec,
    })
}

/// Requests a reboot of one node.
pub(crate) async fn request(cluster: &TestCluster, node: &str) {
    annotate(cluster, node, NEEDED, Some("kernel")).await;
}

/// Requests a reboot of every node.
pub(crate) async fn request_all(cluster: &TestCluster) {
    let nodes = cluster.all::<Node>();
    let nodes = nodes.list(&Default::default()).await.expect("a list");
    for node in nodes.items {
        request(cluster, &node.name_any()).await;
    }
}

pub(crate) async fn annotate(
    cluster: &TestCluster,
    node: &str,
    annotation: &str,
    value: Option<&str>,
) {
    let patch = json!({"metadata": {"annotations": {annotation: value}}});
    cluster
        .all::<Node>()
        .patch(node, &Default::default(), &Patch::Merge(&patch))
        .await
        .expect("the patch is accepted");
}

pub(crate) async fn cordon(cluster: &TestCluster, node: &str) {
    let patch = json!({"spec": {"unschedulable": true}});
    cluster
        .all::<Node>()
        .patch(node, &Default::default(), &Patch::Merge(&patch))
        .await
        .expect("the patch is accepted");
}

/// The boot ID of every node.
pub(crate) async fn boot_ids(cluster: &TestCluster) -> BTreeMap<String, String> {
    let nodes = cluster.all::<Node>();
    let nodes = nodes.list(&Default::default()).await.expect("a list");
    nodes
        .items
        .iter()
        .map(|node| (node.name_any(), boot_id_of(node)))
        .collect()
}

fn boot_id_of(node: &Node) -> String {
    node.status
        .as_ref()
        .and_then(|status| status.node_info.as_ref())
        .map(|info| info.boot_id.clone())
        .unwrap_or_default()
}

/// What a monitor has observed.
#[derive(Clone, Debug, Default)]
pub(crate) struct Observations {
    /// The maximum number of nodes with an order or a reboot in progress in one revision.
    pub(crate) concurrent_max: usize,
    pub(crate) reboots: usize,
    /// The minimum number of healthy pods of any PodDisruptionBudget.
    pub(crate) healthy_min: i32,
}

/// Observes every revision of Nodes and PodDisruptionBudgets.
pub(crate) struct Monitor {
    observations: watch::Receiver<Observations>,
    task: JoinHandle<()>,
}

impl Monitor {
    /// Starts to observe. More than `limit` nodes with an order or a reboot in progress in one
    /// revision are a failure.
    pub(crate) fn start(cluster: &TestCluster, limit: usize) -> Self {
        let (sender, observations) = watch::channel(Observations {
            healthy_min: i32::MAX,
            ..Observations::default()
        });
        let nodes = cluster.all::<Node>();
        let budgets = cluster.all::<PodDisruptionBudget>();
        let task = tokio::spawn(async move {
            tokio::join!(
                watch_nodes(&nodes, &sender, limit),
                watch_budgets(&budgets, &sender)
            );
        });
        Self { observations, task }
    }

    /// Stops, and returns the observations.
    pub(crate) fn stop(self) -> Observations {
        assert!(!self.task.is_finished(), "the monitor failed");
        self.task.abort();
        self.observations.borrow().clone()
    }
}

async fn watch_nodes(nodes: &Api<Node>, sender: &watch::Sender<Observations>, limit: usize) {
    let listed = nodes.list(&Default::default()).await.expect("a list");
    let mut boot_ids: BTreeMap<String, String> = listed
        .items
        .iter()
        .map(|node| (node.name_any(), boot_id_of(node)))
        .collect();
    let mut active: BTreeSet<String> = BTreeSet::new();
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
                active.remove(&name);
                continue;
            }
            let is_active = [NOW, IN_PROGRESS]
                .iter()
                .any(|annotation| node.annotations().contains_key(*annotation));
            if is_active {
                active.insert(name.clone());
            } else {
                active.remove(&name);
            }
            assert!(active.len() <= limit, "{active:?} are more than {limit}");
            let boot_id = boot_id_of(node);
            let former = boot_ids.insert(name, boot_id.clone());
            let has_rebooted = former.is_some_and(|former| former != boot_id);
            sender.send_modify(|observations| {
                observations.concurrent_max = observations.concurrent_max.max(active.len());
                observations.reboots += usize::from(has_rebooted);
            });
        }
    }
}

async fn watch_budgets(budgets: &Api<PodDisruptionBudget>, sender: &watch::Sender<Observations>) {
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
                let healthy = status.current_healthy.unwrap_or_default();
                sender.send_modify(|observations| {
                    observations.healthy_min = observations.healthy_min.min(healthy);
                });
            }
        }
    }
}
