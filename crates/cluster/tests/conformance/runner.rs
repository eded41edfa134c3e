//! Runs scenarios on a cluster with simulated nodes.
//!
//! Input: scenarios. Output: the normalized state after each of their rounds.

use std::{collections::BTreeMap, time::Duration};

use bellerophon_cluster::{Cluster, Level, Nodes};
use bellerophon_testkit::TestCluster;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};

use crate::{
    States,
    normalize::normalize,
    scenario::{Action, Change, Deletion, Name, Operation, Scenario},
};

/// Three untainted nodes, one with taint `special`, one that is powered off.
pub(crate) const NODES: usize = 5;
const TAINTED: [(&str, &str); 2] = [("node-4", "special"), ("node-5", "lost")];

/// A round has ended when no object changed for this time, which exceeds every initial back-off.
const QUIET_PERIOD: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_secs(10);
/// Timeout of a round.
const ROUND_TIMEOUT: Duration = Duration::from_secs(30 * 60);

/// `apiVersion`, kind and whether it is namespaced.
const KINDS: [(&str, &str, bool); 19] = [
    ("v1", "Namespace", false),
    ("v1", "Node", false),
    ("v1", "PersistentVolume", false),
    ("v1", "ConfigMap", true),
    ("v1", "Secret", true),
    ("v1", "ServiceAccount", true),
    ("v1", "Service", true),
    ("v1", "Endpoints", true),
    ("discovery.k8s.io/v1", "EndpointSlice", true),
    ("policy/v1", "PodDisruptionBudget", true),
    ("apps/v1", "Deployment", true),
    ("apps/v1", "ReplicaSet", true),
    ("apps/v1", "StatefulSet", true),
    ("apps/v1", "DaemonSet", true),
    ("apps/v1", "ControllerRevision", true),
    ("batch/v1", "Job", true),
    ("batch/v1", "CronJob", true),
    ("v1", "PersistentVolumeClaim", true),
    ("v1", "Pod", true),
];

/// A cluster that runs scenarios.
pub(crate) struct Runner {
    client: Client,
    nodes: Nodes,
    /// The simulated nodes of an external cluster, kept running.
    _external_nodes: Option<Cluster>,
}

impl Runner {
    /// Runs on the embedded server with the controllers of this crate.
    pub(crate) async fn embedded(test_cluster: &TestCluster) -> Self {
        let nodes = test_cluster
            .cluster()
            .nodes()
            .expect("the test cluster has nodes")
            .clone();
        Self::new(test_cluster.client.clone(), nodes, None).await
    }

    /// Runs on an external cluster, to which simulated nodes are added.
    pub(crate) async fn external(client: Client) -> Self {
        let mut cluster = Cluster::builder(client.clone())
            .level(Level::Nodes)
            .nodes(NODES)
            .start();
        cluster.ready().await.expect("the nodes become ready");
        let nodes = cluster.nodes().expect("the cluster has nodes").clone();
        Self::new(client, nodes, Some(cluster)).await
    }

    async fn new(client: Client, nodes: Nodes, external_nodes: Option<Cluster>) -> Self {
        let runner = Self {
            client,
            nodes,
            _external_nodes: external_nodes,
        };
        for (node, value) in TAINTED {
            let taint = json!({
                "spec": {
                    "taints": [{ "key": "dedicated", "value": value, "effect": "NoSchedule" }],
                },
            });
            runner
                .api("Node", "")
                .patch(node, &PatchParams::default(), &Patch::Merge(taint))
                .await
                .expect("a node is tainted");
        }
        runner
    }

    /// Runs all scenarios concurrently, round by round.
    pub(crate) async fn run(&self, scenarios: &[Scenario]) -> BTreeMap<String, States> {
        for scenario in scenarios {
            for namespace in [scenario.name.clone(), other_namespace(&scenario.name)] {
                self.apply(
                    &namespace,
                    &json!({
                        "apiVersion": "v1",
                        "kind": "Namespace",
                        "metadata": { "name": namespace },
                    }),
                )
                .await;
            }
        }
        self.wait_until_quiet(Duration::ZERO).await;
        let mut states: BTreeMap<String, States> = BTreeMap::new();
        for round in 0..scenarios
            .iter()
            .map(|scenario| scenario.rounds.len())
            .max()
            .unwrap_or(0)
        {
            let running: Vec<&Scenario> = scenarios
                .iter()
                .filter(|scenario| scenario.rounds.len() > round)
                .collect();
            let mut minimum = Duration::ZERO;
            for scenario in &running {
                for action in &scenario.rounds[round] {
                    minimum = minimum.max(self.execute(&scenario.name, action).await);
                }
            }
            self.wait_until_quiet(minimum).await;
            let objects = self.list_all().await;
            for scenario in running {
                let namespaces = [&*scenario.name, &other_namespace(&scenario.name)];
                let state = normalize(&objects, &namespaces);
                states.entry(scenario.name.clone()).or_default().push(state);
            }
        }
        states
    }

    /// Executes one action. Returns the minimum duration of the round.
    async fn execute(&self, namespace: &str, action: &Action) -> Duration {
        match action {
            Action::Apply(object) => self.apply(namespace, object).await,
            Action::Patch(Change { kind, name, with }) => {
                let api = self.api(kind, namespace);
                let name = self.resolve_name(kind, namespace, name).await;
                let patched = api
                    .patch(&name, &PatchParams::default(), &Patch::Merge(with))
                    .await;
                patched.unwrap_or_else(|error| {
                    panic!("cannot patch {kind} {namespace}/{name}: {error}")
                });
            }
            Action::Delete(Deletion {
                kind,
                name,
                cascade,
                grace,
            }) => {
                let api = self.api(kind, namespace);
                let name = self.resolve_name(kind, namespace, name).await;
                let params = DeleteParams {
                    propagation_policy: cascade.map(Into::into),
                    grace_period_seconds: *grace,
                    ..DeleteParams::default()
                };
                let deleted = api.delete(&name, &params).await;
                deleted.unwrap_or_else(|error| {
                    panic!("cannot delete {kind} {namespace}/{name}: {error}")
                });
            }
            Action::Node(Operation::PowerOff(node)) => {
                self.nodes.power_off(node).expect("a simulated node")
            }
            Action::Node(Operation::Restore(node)) => {
                self.nodes.restore(node).expect("a simulated node")
            }
            Action::Pass(seconds) => return Duration::from_secs(*seconds),
        }
        Duration::ZERO
    }

    async fn apply(&self, namespace: &str, object: &Value) {
        let kind = object["kind"]
            .as_str()
            .unwrap_or_else(|| panic!("no kind in {object}"));
        let name = object["metadata"]["name"]
            .as_str()
            .unwrap_or_else(|| panic!("no name in {object}"));
        let mut object = object.clone();
        let namespace = match object.pointer_mut("/metadata/namespace") {
            Some(field) => {
                let other = other_namespace(namespace);
                *field = json!(other);
                other
            }
            None => namespace.to_owned(),
        };
        self.resolve_owners(&namespace, &mut object).await;
        let applied = self
            .api(kind, &namespace)
            .patch(
                name,
                &PatchParams::apply("test").force(),
                &Patch::Apply(&object),
            )
            .await;
        applied.unwrap_or_else(|error| panic!("cannot apply {object}: {error}"));
    }

    /// Sets the uids of owner references, which scenarios leave out.
    async fn resolve_owners(&self, namespace: &str, object: &mut Value) {
        let Some(owners) = object
            .pointer_mut("/metadata/ownerReferences")
            .and_then(Value::as_array_mut)
        else {
            return;
        };
        for owner in owners.iter_mut().filter(|owner| owner.get("uid").is_none()) {
            let kind = owner["kind"].as_str().expect("a kind").to_owned();
            let name = owner["name"].as_str().expect("a name").to_owned();
            let object = self
                .api(&kind, namespace.trim_end_matches("-other"))
                .get(&name)
                .await
                .expect("the owner");
            owner["uid"] = json!(object.uid());
        }
    }

    async fn resolve_name(&self, kind: &str, namespace: &str, name: &Name) -> String {
        match name {
            Name::Is(name) => name.clone(),
            Name::First { first } => {
                let all = self
                    .api(kind, namespace)
                    .list(&ListParams::default())
                    .await
                    .expect("a list");
                let names = all
                    .items
                    .iter()
                    .map(|object| object.name_any())
                    .filter(|name| name.starts_with(first));
                names
                    .min()
                    .unwrap_or_else(|| panic!("no {kind} {first} in {namespace}"))
            }
        }
    }

    /// Waits until no object has changed for [`QUIET_PERIOD`], and returns immediately then: later
    /// a CronJob may reach its next minute.
    async fn wait_until_quiet(&self, minimum: Duration) {
        tokio::time::sleep(minimum).await;
        let mut before = self.versions().await;
        let mut quiet = Duration::ZERO;
        let mut waited = Duration::ZERO;
        while quiet < QUIET_PERIOD {
            assert!(
                waited < ROUND_TIMEOUT,
                "objects still change after the round timeout"
            );
            tokio::time::sleep(POLL_INTERVAL).await;
            let now = self.versions().await;
            quiet = if now == before {
                quiet + POLL_INTERVAL
            } else {
                Duration::ZERO
            };
            waited += POLL_INTERVAL;
            before = now;
        }
    }

    /// Uids and resource versions of all objects except nodes, which change with every heartbeat.
    async fn versions(&self) -> Vec<(Option<String>, Option<String>)> {
        let mut versions = Vec::new();
        for (api_version, kind, _) in KINDS.iter().filter(|(_, kind, _)| *kind != "Node") {
            let api: Api<DynamicObject> =
                Api::all_with(self.client.clone(), &resource(api_version, kind));
            let listed = api
                .list_metadata(&ListParams::default())
                .await
                .unwrap_or_else(|error| panic!("cannot list {kind}: {error}"));
            versions.extend(
                listed
                    .items
                    .into_iter()
                    .map(|object| (object.uid(), object.resource_version())),
            );
        }
        versions
    }

    /// All objects, with their types.
    async fn list_all(&self) -> Vec<DynamicObject> {
        let mut objects = Vec::new();
        for (api_version, kind, _) in KINDS {
            let api: Api<DynamicObject> =
                Api::all_with(self.client.clone(), &resource(api_version, kind));
            let listed = api
                .list(&ListParams::default())
                .await
                .unwrap_or_else(|error| panic!("cannot list {kind}: {error}"));
            let types = kube::api::TypeMeta {
                api_version: api_version.to_owned(),
                kind: kind.to_owned(),
            };
            objects.extend(listed.items.into_iter().map(|object| DynamicObject {
                types: Some(types.clone()),
                ..object
            }));
        }
        objects
    }

    fn api(&self, kind: &str, namespace: &str) -> Api<DynamicObject> {
        let (api_version, _, namespaced) = KINDS
            .iter()
            .find(|(_, known, _)| *known == kind)
            .unwrap_or_else(|| panic!("unknown kind {kind}"));
        match namespaced {
            true => {
                Api::namespaced_with(self.client.clone(), namespace, &resource(api_version, kind))
            }
            false => Api::all_with(self.client.clone(), &resource(api_version, kind)),
        }
    }
}

/// The second namespace of a scenario.
fn other_namespace(scenario: &str) -> String {
    format!("{scenario}-other")
}

fn resource(api_version: &str, kind: &str) -> ApiResource {
    let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
    let plural = if kind == "Endpoints" {
        "endpoints".to_owned()
    } else {
        format!("{}s", kind.to_lowercase())
    };
    ApiResource::from_gvk_with_plural(&GroupVersionKind::gvk(group, version, kind), &plural)
}
