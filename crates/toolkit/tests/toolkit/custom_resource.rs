//! A custom resource with an owned Deployment and status conditions.

use std::time::Duration;

use bellerophon::conditions::{
    ConditionStatus, ConditionUpdate, find_status_condition, is_status_condition_true,
    set_status_condition,
};
use bellerophon::prelude::*;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use kube::{Client, CustomResource, ResourceExt};
use serde::{Deserialize, Serialize};
use serde_json::json;
use tokio::time::sleep;

use crate::harness::{TestServer, manager, run, sample, server};

#[derive(CustomResource, Clone, Debug, Deserialize, Serialize)]
#[kube(
    group = "example.org",
    version = "v1",
    kind = "Hero",
    plural = "heroes",
    namespaced,
    status = "HeroStatus",
    schema = "disabled",
    derive = "Kind"
)]
struct HeroSpec {
    replicas: i32,
}

#[derive(Clone, Debug, Default, Deserialize, Serialize)]
struct HeroStatus {
    #[serde(default)]
    conditions: Vec<Condition>,
}

async fn install(client: &Client) {
    let preserved = json!({ "type": "object", "x-kubernetes-preserve-unknown-fields": true });
    let version = json!({
        "name": "v1",
        "served": true,
        "storage": true,
        "subresources": { "status": {} },
        "schema": { "openAPIV3Schema": preserved },
    });
    let names = json!({ "kind": "Hero", "plural": "heroes", "singular": "hero" });
    let definition: CustomResourceDefinition = serde_json::from_value(json!({
        "metadata": { "name": "heroes.example.org" },
        "spec": {
            "group": "example.org",
            "names": names,
            "scope": "Namespaced",
            "versions": [version],
        },
    }))
    .unwrap();
    let definitions = Api::all(client.clone());
    let created = definitions
        .create(&PostParams::default(), &definition)
        .await;
    created.unwrap();
}

fn deployment_for(hero: &Hero) -> Deployment {
    let labels = json!({ "hero": hero.name_any() });
    serde_json::from_value(json!({
        "metadata": { "name": hero.name_any(), "namespace": hero.namespace() },
        "spec": {
            "replicas": hero.spec.replicas,
            "selector": { "matchLabels": labels },
            "template": {
                "metadata": { "labels": labels },
                "spec": { "containers": [{ "name": "c", "image": "i" }] },
            },
        },
    }))
    .unwrap()
}

struct Heroes {
    deployments: Lister<Deployment>,
}

impl Reconciler<Hero> for Heroes {
    async fn reconcile(&self, req: Request<Hero>) -> Result<Action, Error> {
        let Some(hero) = req.object() else {
            return Ok(Action::await_change());
        };
        let mut deployment = deployment_for(hero);
        set_controller_reference(hero, &mut deployment)?;
        req.client().apply(&deployment).await?;
        let current = self.deployments.get(req.key());
        let is_ready = current
            .and_then(|deployment| deployment.status.as_ref()?.ready_replicas)
            .is_some_and(|ready| ready == hero.spec.replicas);
        let (status, reason) = match is_ready {
            true => (ConditionStatus::True, "AllReady"),
            false => (ConditionStatus::False, "NotReady"),
        };
        let mut conditions = hero.status.clone().unwrap_or_default().conditions;
        let ready = ConditionUpdate::new("Ready", status, reason).observed(hero);
        set_status_condition(&mut conditions, ready, req.now());
        let status = HeroStatus { conditions };
        req.client().apply_status(hero, &status).await?;
        Ok(Action::await_change())
    }
}

/// The kubelets of this test: all pods become ready. Without controllers there are no pods, and the
/// status of the Deployment is that of the controllers, too.
async fn set_ready(server: &TestServer, replicas: i32) {
    let client = &server.client();
    if !server.has_virtual_time() {
        return set_pods_ready(client, replicas).await;
    }
    let deployments: Api<Deployment> = Api::namespaced(client.clone(), "default");
    let status = json!({ "replicas": replicas, "readyReplicas": replicas });
    let patch = Patch::Merge(json!({ "status": status }));
    let patched = deployments
        .patch_status("icarus", &PatchParams::default(), &patch)
        .await;
    patched.unwrap();
}

/// The Deployment controller counts ready pods, also those that no scheduler has assigned.
async fn set_pods_ready(client: &Client, replicas: i32) {
    let pods: Api<Pod> = Api::namespaced(client.clone(), "default");
    let found = pods
        .list(&ListParams::default().labels("hero=icarus"))
        .await;
    let found = found.unwrap().items;
    assert_eq!(found.len(), usize::try_from(replicas).unwrap());
    let ready = json!({ "type": "Ready", "status": "True" });
    let patch = Patch::Merge(json!({ "status": { "conditions": [ready] } }));
    for pod in found {
        let name = pod.name_any();
        let patched = pods
            .patch_status(&name, &PatchParams::default(), &patch)
            .await;
        patched.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn deployment_and_conditions_follow_the_hero() {
    let server = server().await;
    let client = server.client();
    install(&client).await;
    server
        .wait_until_served("/apis/example.org/v1/heroes")
        .await;
    let mut mgr = manager(&client);
    let metrics = mgr.metrics().clone();
    let heroes = mgr.lister::<Hero>();
    let deployments = mgr.lister::<Deployment>();
    let reconciler = Heroes {
        deployments: deployments.clone(),
    };
    let handle = mgr
        .controller::<Hero>()
        .owns::<Deployment>()
        .concurrency(4)
        .reconcile(reconciler);
    assert_eq!(handle.name(), "hero");
    let api: Api<Hero> = Api::namespaced(client.clone(), "default");
    run(mgr, async {
        let hero = Hero::new("icarus", HeroSpec { replicas: 2 });
        api.create(&PostParams::default(), &hero).await.unwrap();
        let key = ObjectKey::namespaced("default", "icarus");
        let deployment = deployments
            .await_condition(&key, |deployment| deployment.is_some())
            .await;
        let replicas = deployment.and_then(|deployment| deployment.spec.as_ref()?.replicas);
        assert_eq!(replicas, Some(2));
        let conditions = |hero: Option<&Hero>| -> Vec<Condition> {
            let status = hero.and_then(|hero| hero.status.clone());
            status.unwrap_or_default().conditions
        };
        let is_unready = |hero: Option<&Hero>| {
            let conditions = conditions(hero);
            let ready = find_status_condition(&conditions, "Ready");
            ready.is_some_and(|ready| ready.reason == "NotReady")
        };
        let unready = heroes.await_condition(&key, is_unready).await;
        let before = conditions(unready.as_deref());
        sleep(Duration::from_secs(60)).await;
        set_ready(&server, 2).await;
        let is_ready = |hero: Option<&Hero>| is_status_condition_true(&conditions(hero), "Ready");
        let ready = heroes.await_condition(&key, is_ready).await;
        let after = conditions(ready.as_deref());
        let waited = after[0].last_transition_time.0 - before[0].last_transition_time.0;
        match server.has_virtual_time() {
            true => assert_eq!(waited.get_seconds(), 60),
            // Controllers take some time until they have counted the pods.
            false => assert!((60..90).contains(&waited.get_seconds()), "{waited}"),
        }
        assert_eq!(after[0].observed_generation, Some(1));
        sleep(Duration::from_secs(60)).await;
        let text = metrics.encode();
        assert_eq!(
            sample(&text, "controller_runtime_reconcile_errors_total", ""),
            0.0
        );
    })
    .await;
}
