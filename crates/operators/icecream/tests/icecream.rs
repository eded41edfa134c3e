//! The Icecream operator on a test cluster, with exactly its permissions, in virtual time.

use std::{collections::BTreeSet, time::Duration};

use bellerophon::{
    conditions::is_status_condition_true,
    manager::{Manager, ManagerOptions},
    webhook::WebhookOptions,
};
use bellerophon_icecream::{Icecream, OPERATOR};
use bellerophon_operator::{WEBHOOKS, manager};
use bellerophon_testkit::{
    Account, Fault, OperatorFixture, TestCluster, converges_after_any_crash,
    converges_after_failover, converges_under_any_fault, wait_until,
};
use k8s_openapi::api::{apps::v1::Deployment, core::v1::Pod, events::v1::Event};
use kube::{
    Client, ResourceExt as _,
    api::{DeleteParams, Patch, PatchParams},
};
use serde_json::{Value, json};

const FIXTURE: OperatorFixture = OperatorFixture::new(OPERATOR);

fn operator(client: Client, options: ManagerOptions) -> Manager {
    FIXTURE.manager(client, options)
}

/// A cluster with three nodes, the CRD and the operator's account.
async fn cluster_with_operator() -> (TestCluster, Account) {
    let cluster = TestCluster::with_nodes(3).await;
    let account = FIXTURE.install(&cluster).await;
    (cluster, account)
}

fn icecream(name: &str, deployment: &str, replicas: i32) -> Value {
    json!({
        "apiVersion": "controller.nicoleh.io/v1alpha1", "kind": "Icecream",
        "metadata": {"name": name},
        "spec": {"deploymentName": deployment, "replicas": replicas},
    })
}

fn is_ready(icecream: &Icecream) -> bool {
    let status = icecream.status.clone().unwrap_or_default();
    status.observed_generation == icecream.metadata.generation
        && is_status_condition_true(&status.conditions, "Ready")
        && !is_status_condition_true(&status.conditions, "Progressing")
}

async fn wait_until_ready(cluster: &TestCluster, replicas: i32) -> Icecream {
    let icecreams = cluster.namespaced::<Icecream>("default");
    let mut all = wait_until(&icecreams, "the Icecream is ready", |all| {
        let [icecream] = all else {
            return false;
        };
        let status = icecream.status.as_ref();
        is_ready(icecream) && status.is_some_and(|status| status.available_replicas == replicas)
    })
    .await;
    all.remove(0)
}

/// The type, reason and note of every Event that the operator recorded.
async fn recorded_events(cluster: &TestCluster) -> BTreeSet<String> {
    let events = cluster
        .namespaced::<Event>("default")
        .list(&Default::default())
        .await
        .expect("a list");
    let recorded = events
        .items
        .iter()
        .filter(|event| event.reporting_controller.as_deref() == Some("icecream"));
    let text = |field: &Option<String>| field.clone().unwrap_or_default();
    recorded
        .map(|event| {
            let type_ = text(&event.type_);
            let reason = text(&event.reason);
            let note = text(&event.note);
            format!("{type_} {reason} {note}")
        })
        .collect()
}

#[tokio::test(start_paused = true)]
async fn status_lists_the_nodes_of_the_pods() {
    let (cluster, account) = cluster_with_operator().await;
    let operator = FIXTURE.start(&account);
    cluster.apply(icecream("example", "shop", 3)).await;
    let ready = wait_until_ready(&cluster, 3).await;
    let pods = cluster
        .namespaced::<Pod>("default")
        .list(&Default::default())
        .await
        .expect("a list");
    let nodes: BTreeSet<String> = pods
        .items
        .iter()
        .filter_map(|pod| pod.spec.as_ref()?.node_name.clone())
        .collect();
    let status = ready.status.expect("a status");
    assert_eq!(status.nodes, nodes.into_iter().collect::<Vec<_>>());
    cluster.advance(Duration::from_secs(60)).await;
    assert_eq!(
        recorded_events(&cluster).await,
        BTreeSet::from(["Normal Synced Icecream synced successfully".to_owned()])
    );
    operator.stop().await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn drift_of_the_deployment_is_repaired() {
    let (cluster, account) = cluster_with_operator().await;
    let operator = FIXTURE.start(&account);
    cluster.apply(icecream("example", "shop", 2)).await;
    wait_until_ready(&cluster, 2).await;
    let deployments = cluster.namespaced::<Deployment>("default");
    let stale_image = json!([{"name": "nginx", "image": "nginx:stale"}]);
    for drift in [
        json!({"spec": {"replicas": 5}}),
        json!({"spec": {"template": {"spec": {"containers": stale_image}}}}),
        json!({"metadata": {"labels": {"app": "other"}}}),
    ] {
        deployments
            .patch("shop", &PatchParams::default(), &Patch::Strategic(&drift))
            .await
            .expect("the patch is accepted");
        wait_until(&deployments, "the drift is repaired", |all| {
            let value = json!(all[0]);
            let container = &value["spec"]["template"]["spec"]["containers"][0];
            value["spec"]["replicas"] == 2
                && container["image"] == "nginx:latest"
                && value["metadata"]["labels"]["app"] == "nginx"
        })
        .await;
    }
    wait_until_ready(&cluster, 2).await;
    deployments
        .delete("shop", &DeleteParams::default())
        .await
        .expect("the Deployment is deleted");
    wait_until(&deployments, "the Deployment is recreated", |all| {
        all.len() == 1 && all[0].metadata.deletion_timestamp.is_none()
    })
    .await;
    wait_until_ready(&cluster, 2).await;
    operator.stop().await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn deployment_of_another_owner_is_not_written() {
    let (cluster, account) = cluster_with_operator().await;
    let operator = FIXTURE.start(&account);
    let labels = json!({"a": "b"});
    let foreign = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "shop"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        },
    });
    cluster.apply(foreign).await;
    cluster.apply(icecream("example", "shop", 3)).await;
    let icecreams = cluster.namespaced::<Icecream>("default");
    wait_until(&icecreams, "the condition names the conflict", |all| {
        let status = all[0].status.clone().unwrap_or_default();
        let mut conditions = status.conditions.iter();
        conditions.any(|condition| condition.reason == "ErrResourceExists")
    })
    .await;
    cluster.advance(Duration::from_secs(600)).await;
    let deployments = cluster.namespaced::<Deployment>("default");
    let found = deployments.get("shop").await.expect("it still exists");
    assert_eq!(found.owner_references(), []);
    assert_eq!(found.spec.and_then(|spec| spec.replicas), Some(1));
    let events = recorded_events(&cluster).await;
    let message = r#"Resource "shop" already exists and is not managed by Icecream"#;
    let expected = format!("Warning ErrResourceExists {message}");
    assert!(events.contains(&expected), "{events:?}");
    deployments
        .delete("shop", &DeleteParams::default())
        .await
        .expect("the Deployment is deleted");
    wait_until_ready(&cluster, 3).await;
    operator.stop().await;
    cluster.stop().await;
}

/// An apply used to take over a Deployment that the cache did not have yet.
#[tokio::test(start_paused = true)]
async fn deployment_that_the_cache_does_not_have_yet_is_not_taken_over() {
    let (cluster, account) = cluster_with_operator().await;
    account.inject(Some(Fault::StaleCache));
    let operator = FIXTURE.start(&account);
    cluster.advance(Duration::from_secs(10)).await;
    cluster.apply(icecream("example", "shop", 3)).await;
    // The Icecream is reconciled a second before the Deployment is in the cache.
    cluster.advance(Duration::from_secs(1)).await;
    let labels = json!({"app": "nginx", "controller": "example"});
    let theirs = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "shop"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        },
    });
    cluster.apply(theirs).await;
    let deployments = cluster.namespaced::<Deployment>("default");
    let created = deployments.get("shop").await.expect("it exists");
    cluster.advance(Duration::from_secs(600)).await;
    let icecreams = cluster.namespaced::<Icecream>("default");
    wait_until(&icecreams, "the condition names the conflict", |all| {
        let status = all[0].status.clone().unwrap_or_default();
        let mut conditions = status.conditions.iter();
        conditions.any(|condition| condition.reason == "ErrResourceExists")
    })
    .await;
    cluster.delete(icecream("example", "shop", 3)).await;
    cluster.advance(Duration::from_secs(600)).await;
    let found = deployments.get("shop").await.expect("it still exists");
    assert_eq!(found.owner_references(), []);
    assert_eq!(found.metadata.generation, created.metadata.generation);
    operator.stop().await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn renamed_deployment_replaces_the_former_one() {
    let (cluster, account) = cluster_with_operator().await;
    let operator = FIXTURE.start(&account);
    cluster.apply(icecream("example", "old", 2)).await;
    wait_until_ready(&cluster, 2).await;
    cluster.apply(icecream("example", "new", 1)).await;
    let deployments = cluster.namespaced::<Deployment>("default");
    wait_until(&deployments, "only the new Deployment is left", |all| {
        all.len() == 1 && all[0].name_any() == "new"
    })
    .await;
    wait_until_ready(&cluster, 1).await;
    operator.stop().await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn deleted_icecream_takes_deployment_and_pods_along() {
    let (cluster, account) = cluster_with_operator().await;
    let operator = FIXTURE.start(&account);
    cluster.apply(icecream("example", "shop", 2)).await;
    wait_until_ready(&cluster, 2).await;
    cluster.delete(icecream("example", "shop", 2)).await;
    let deployments = cluster.namespaced::<Deployment>("default");
    wait_until(&deployments, "no Deployment is left", |all| all.is_empty()).await;
    let pods = cluster.namespaced::<Pod>("default");
    wait_until(&pods, "no pod is left", |all| all.is_empty()).await;
    assert_eq!(account.requests.forbidden(), []);
    operator.stop().await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn scale_subresource_scales_the_pods() {
    let (cluster, account) = cluster_with_operator().await;
    let operator = FIXTURE.start(&account);
    cluster.apply(icecream("example", "shop", 1)).await;
    wait_until_ready(&cluster, 1).await;
    let icecreams = cluster.namespaced::<Icecream>("default");
    let scale = json!({"spec": {"replicas": 4}});
    icecreams
        .patch_scale("example", &PatchParams::default(), &Patch::Merge(&scale))
        .await
        .expect("the scale is accepted");
    wait_until_ready(&cluster, 4).await;
    let scale = icecreams.get_scale("example").await.expect("a scale");
    let status = scale.status.expect("a status");
    assert_eq!(status.replicas, 4);
    assert_eq!(
        status.selector.as_deref(),
        Some("app=nginx,controller=example")
    );
    operator.stop().await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn every_permission_is_used_and_none_is_missing() {
    let (cluster, account) = cluster_with_operator().await;
    let operator = FIXTURE.start(&account);
    cluster.apply(icecream("example", "shop", 1)).await;
    wait_until_ready(&cluster, 1).await;
    cluster.apply(icecream("example", "shop", 2)).await;
    wait_until_ready(&cluster, 2).await;
    cluster.apply(icecream("example", "other", 1)).await;
    let deployments = cluster.namespaced::<Deployment>("default");
    wait_until(&deployments, "the former Deployment is deleted", |all| {
        all.len() == 1 && all[0].name_any() == "other"
    })
    .await;
    cluster.advance(Duration::from_secs(600)).await;
    assert_eq!(account.requests.forbidden(), []);
    let unused = account.requests.unused_permissions(&FIXTURE.permissions());
    assert!(unused.is_empty(), "{unused:?}");
    operator.stop().await;
    cluster.stop().await;
}

/// A cluster with one node, the operator's account with a Lease, and an Icecream to reconcile.
async fn cluster_with_icecream() -> (TestCluster, Account) {
    let cluster = TestCluster::with_nodes(1).await;
    let account = FIXTURE.install_with_leader_election(&cluster).await;
    cluster.apply(icecream("example", "shop", 2)).await;
    (cluster, account)
}

/// Waits for convergence and describes the state.
async fn settled(cluster: &TestCluster) -> String {
    let ready = wait_until_ready(cluster, 2).await;
    let deployments = cluster
        .namespaced::<Deployment>("default")
        .list(&Default::default())
        .await
        .expect("a list");
    let pods = cluster
        .namespaced::<Pod>("default")
        .list(&Default::default())
        .await
        .expect("a list");
    let status = ready.status.expect("a status");
    format!(
        "{} deployments, {} pods, {} available",
        deployments.items.len(),
        pods.items.len(),
        status.available_replicas
    )
}

#[tokio::test(start_paused = true)]
async fn converges_after_a_crash_at_any_write() {
    let crashes = converges_after_any_crash(operator, cluster_with_icecream, settled).await;
    assert!(
        crashes >= 2,
        "at least a Deployment and a status are written, got {crashes} writes"
    );
}

#[tokio::test(start_paused = true)]
async fn converges_under_every_fault() {
    converges_under_any_fault(operator, cluster_with_icecream, settled).await;
}

#[tokio::test(start_paused = true)]
async fn standby_replica_completes_the_work_of_the_leader() {
    let lease = OPERATOR.name;
    let failovers = converges_after_failover(operator, lease, cluster_with_icecream, settled).await;
    assert!(failovers >= 2, "{failovers} failovers");
}

/// The operator with its webhook, which the server calls over TLS: in real time.
#[tokio::test]
async fn webhook_refuses_the_name_of_a_deployment_of_another_owner() {
    let cluster = TestCluster::api_server_only().await;
    cluster.install_crds((OPERATOR.crds)()).await;
    let foreign = json!({
        "apiVersion": "apps/v1", "kind": "Deployment",
        "metadata": {"name": "taken", "namespace": "default"},
        "spec": {
            "selector": {"matchLabels": {"app": "taken"}},
            "template": {
                "metadata": {"labels": {"app": "taken"}},
                "spec": {"containers": [{"name": "c", "image": "i"}]},
            },
        },
    });
    cluster.apply(foreign).await;
    let options = ManagerOptions {
        webhooks: WebhookOptions {
            bind_address: ([127, 0, 0, 1], 0).into(),
            ..WebhookOptions::default()
        },
        ..ManagerOptions::default()
    };
    let switches = [WEBHOOKS].into_iter().collect();
    let mgr = manager(cluster.client.clone(), &[OPERATOR], &switches, options);
    let mut running = mgr.start();
    running.ready().await.expect("the webhook is registered");

    let icecreams = cluster.namespaced::<Icecream>("default");
    let create = async |name: &str, deployment: &str| {
        let icecream = icecream(name, deployment, 1);
        let icecream = serde_json::from_value(icecream).expect("an Icecream");
        icecreams.create(&Default::default(), &icecream).await
    };
    let refused = create("example", "taken")
        .await
        .expect_err("the name is taken");
    let kube::Error::Api(status) = refused else {
        panic!("{refused}");
    };
    assert_eq!(status.code, 403);
    assert_eq!(
        status.message,
        "admission webhook \"validate.icecreams.controller.nicoleh.io\" denied the request: \
         Resource \"taken\" already exists and is not managed by Icecream"
    );
    create("example", "free").await.expect("the name is free");
    // Neither a change of another field nor the status is checked.
    let patch = |patch: Value| {
        let icecreams = &icecreams;
        async move {
            let params = PatchParams::default();
            let patch = Patch::Merge(patch);
            icecreams.patch("example", &params, &patch).await
        }
    };
    patch(json!({"spec": {"replicas": 2}}))
        .await
        .expect("it is admitted");
    let refused = patch(json!({"spec": {"deploymentName": "taken"}})).await;
    assert!(refused.is_err(), "the name is taken");
    running.stop().await.expect("it stops");
    cluster.stop().await;
}
