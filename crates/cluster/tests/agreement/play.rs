//! A list of scenarios, played on any cluster with simulated nodes.
//!
//! In: scenarios. Out: the states in which each came to rest.

use std::{collections::BTreeMap, time::Duration};

use bellerophon_cluster::{Cluster, Level, Nodes};
use bellerophon_testkit::World;
use kube::{
    Api, Client, ResourceExt as _,
    api::{ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams},
    core::GroupVersionKind,
};
use serde_json::{Value, json};

use crate::{
    Looks,
    normal::normal,
    scenario::{Action, Change, Deletion, Name, Operation, Scenario},
};

/// Three nodes for everybody, one for pods that tolerate `special`, one that is lost.
pub(crate) const NODES: usize = 5;
const TAINTED: [(&str, &str); 2] = [("node-4", "special"), ("node-5", "lost")];

/// At rest is what did not change for so long: longer than the first back-off of anything.
const REST: Duration = Duration::from_secs(30);
/// How often that is looked at.
const LOOK_EVERY: Duration = Duration::from_secs(10);
/// Rounds that come to no rest within this are in error.
const PATIENCE: Duration = Duration::from_secs(30 * 60);

/// Kinds of the objects in scenarios, and whether they are in namespaces.
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

/// A cluster on which scenarios are played.
pub(crate) struct Stage {
    client: Client,
    nodes: Nodes,
    /// The simulated nodes of a cluster whose loops run elsewhere.
    _own: Option<Cluster>,
}

impl Stage {
    /// The embedded server with our own loops.
    pub(crate) async fn here(world: &World) -> Self {
        Self::new(
            world.client.clone(),
            world
                .cluster()
                .nodes()
                .expect("this world has nodes")
                .clone(),
            None,
        )
        .await
    }

    /// A real server with real controllers, to which simulated nodes are added.
    pub(crate) async fn elsewhere(client: Client) -> Self {
        let mut cluster = Cluster::builder(client.clone())
            .level(Level::Nodes)
            .nodes(NODES)
            .start();
        cluster.ready().await.expect("the nodes get ready");
        let nodes = cluster.nodes().expect("there are nodes").clone();
        Self::new(client, nodes, Some(cluster)).await
    }

    async fn new(client: Client, nodes: Nodes, own: Option<Cluster>) -> Self {
        let stage = Self {
            client,
            nodes,
            _own: own,
        };
        for (node, purpose) in TAINTED {
            let taint = json!({ "spec": { "taints": [{ "key": "dedicated", "value": purpose, "effect": "NoSchedule" }] } });
            stage
                .api("Node", "")
                .patch(node, &PatchParams::default(), &Patch::Merge(taint))
                .await
                .expect("a node is tainted");
        }
        stage
    }

    /// Plays all of them side by side.
    pub(crate) async fn play(&self, scenarios: &[Scenario]) -> BTreeMap<String, Looks> {
        for scenario in scenarios {
            for namespace in [scenario.name.clone(), other(&scenario.name)] {
                self.apply(&namespace, &json!({ "apiVersion": "v1", "kind": "Namespace", "metadata": { "name": namespace } })).await;
            }
        }
        self.rest(Duration::ZERO).await;
        let mut looks: BTreeMap<String, Looks> = BTreeMap::new();
        for round in 0..scenarios
            .iter()
            .map(|scenario| scenario.rounds.len())
            .max()
            .unwrap_or(0)
        {
            let playing: Vec<&Scenario> = scenarios
                .iter()
                .filter(|scenario| scenario.rounds.len() > round)
                .collect();
            let mut at_least = Duration::ZERO;
            for scenario in &playing {
                for action in &scenario.rounds[round] {
                    at_least = at_least.max(self.act(&scenario.name, action).await);
                }
            }
            self.rest(at_least).await;
            let seen = self.look().await;
            for scenario in playing {
                let look = normal(&seen, &[&scenario.name, &other(&scenario.name)]);
                looks.entry(scenario.name.clone()).or_default().push(look);
            }
        }
        looks
    }

    /// Does one thing; says how much time must pass at least.
    async fn act(&self, namespace: &str, action: &Action) -> Duration {
        match action {
            Action::Apply(object) => self.apply(namespace, object).await,
            Action::Patch(Change { kind, name, with }) => {
                let api = self.api(kind, namespace);
                let name = self.find(kind, namespace, name).await;
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
                let name = self.find(kind, namespace, name).await;
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
            .unwrap_or_else(|| panic!("the kind of {object}"));
        let name = object["metadata"]["name"]
            .as_str()
            .unwrap_or_else(|| panic!("the name of {object}"));
        let mut object = object.clone();
        let namespace = match object.pointer_mut("/metadata/namespace") {
            Some(there) => {
                let other = other(namespace);
                *there = json!(other);
                other
            }
            None => namespace.to_owned(),
        };
        self.refer(&namespace, &mut object).await;
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

    /// Owners are named in scenarios; their uids are looked up.
    async fn refer(&self, namespace: &str, object: &mut Value) {
        let Some(owners) = object
            .pointer_mut("/metadata/ownerReferences")
            .and_then(Value::as_array_mut)
        else {
            return;
        };
        for owner in owners.iter_mut().filter(|owner| owner.get("uid").is_none()) {
            let kind = owner["kind"].as_str().expect("a kind").to_owned();
            let name = owner["name"].as_str().expect("a name").to_owned();
            let there = self
                .api(&kind, namespace.trim_end_matches("-other"))
                .get(&name)
                .await
                .expect("the owner");
            owner["uid"] = json!(there.uid());
        }
    }

    async fn find(&self, kind: &str, namespace: &str, name: &Name) -> String {
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
                    .unwrap_or_else(|| panic!("there is no {kind} {first} in {namespace}"))
            }
        }
    }

    /// Waits until nothing changes any more. Returns at once then: a little later it may be the next minute of a cron job.
    async fn rest(&self, at_least: Duration) {
        tokio::time::sleep(at_least).await;
        let mut before = self.versions().await;
        let mut since = Duration::ZERO;
        let mut waited = Duration::ZERO;
        while since < REST {
            assert!(waited < PATIENCE, "this round comes to no rest");
            tokio::time::sleep(LOOK_EVERY).await;
            let now = self.versions().await;
            since = if now == before {
                since + LOOK_EVERY
            } else {
                Duration::ZERO
            };
            waited = waited + LOOK_EVERY;
            before = now;
        }
    }

    /// Uids and versions of everything but heartbeats.
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

    /// Everything there is, with its kind.
    async fn look(&self) -> Vec<DynamicObject> {
        let mut seen = Vec::new();
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
            seen.extend(listed.items.into_iter().map(|object| DynamicObject {
                types: Some(types.clone()),
                ..object
            }));
        }
        seen
    }

    fn api(&self, kind: &str, namespace: &str) -> Api<DynamicObject> {
        let (api_version, _, namespaced) = KINDS
            .iter()
            .find(|(_, known, _)| *known == kind)
            .unwrap_or_else(|| panic!("what is a {kind}?"));
        match namespaced {
            true => {
                Api::namespaced_with(self.client.clone(), namespace, &resource(api_version, kind))
            }
            false => Api::all_with(self.client.clone(), &resource(api_version, kind)),
        }
    }
}

/// The second namespace of a scenario.
fn other(scenario: &str) -> String {
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
