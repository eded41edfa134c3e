//! HorizontalPodAutoscalers and the metrics API.

use std::time::Duration;

use http::Request;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerCondition,
};
use k8s_openapi::api::core::v1::Event;
use kube::Api;
use kube::api::{ApiResource, DynamicObject, ListParams, Patch, PatchParams};
use kube::core::GroupVersionKind;
use serde_json::{Value, json};

use crate::pods::test_cluster;
use bellerophon_testkit::{TestCluster, wait_until};

const CPU_USAGE: &str = "sim.bellerophon.io/cpu-usage";

/// A Deployment `web` whose pods request 100m and use as much CPU as stated.
fn web(replicas: i32, usage: &str) -> Value {
    let resources = json!({"requests": {"cpu": "100m", "memory": "64Mi"}});
    json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}, "annotations": {CPU_USAGE: usage}},
                "spec": {"containers": [{"name": "web", "image": "i", "resources": resources}]},
            },
        },
    })
}

/// An autoscaler of `web` with a target of 50 % of the CPU requests.
fn autoscaler(name: &str, more: Value) -> Value {
    let target = json!({"type": "Utilization", "averageUtilization": 50});
    let mut spec = json!({
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "minReplicas": 1, "maxReplicas": 10,
        "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
    });
    for (key, value) in more.as_object().unwrap() {
        spec[key] = value.clone();
    }
    json!({
        "apiVersion": "autoscaling/v2", "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": name}, "spec": spec,
    })
}

async fn get(cluster: &TestCluster, path: &str) -> Value {
    let request = Request::get(path).body(Vec::new()).unwrap();
    cluster.client.request(request).await.unwrap()
}

/// Changes the CPU usage of the pods that run.
async fn set_usage(cluster: &TestCluster, usage: &str) {
    let pods: Api<k8s_openapi::api::core::v1::Pod> = cluster.namespaced("default");
    let list = pods.list(&ListParams::default().labels("app=web")).await;
    for pod in list.unwrap() {
        let patch = json!({"metadata": {"annotations": {CPU_USAGE: usage}}});
        let name = pod.metadata.name.unwrap();
        let params = PatchParams::default();
        pods.patch(&name, &params, &Patch::Merge(&patch))
            .await
            .unwrap();
    }
}

async fn replicas(cluster: &TestCluster) -> i32 {
    let deployments: Api<Deployment> = cluster.namespaced("default");
    let web = deployments.get("web").await.unwrap();
    web.spec.unwrap().replicas.unwrap()
}

async fn until_replicas(cluster: &TestCluster, expected: i32) {
    let deployments: Api<Deployment> = cluster.namespaced("default");
    let description = format!("the Deployment has {expected} ready replicas");
    wait_until(&deployments, &description, |deployments| {
        let web = deployments.first();
        web.is_some_and(|web| {
            let spec = web.spec.as_ref().and_then(|spec| spec.replicas);
            let status = web.status.as_ref();
            let ready = status.and_then(|status| status.ready_replicas);
            spec == Some(expected) && ready == Some(expected)
        })
    })
    .await;
}

/// Waits for the reason of a condition of an autoscaler.
async fn until_condition(
    cluster: &TestCluster,
    name: &str,
    type_: &str,
    reason: &str,
) -> HorizontalPodAutoscalerCondition {
    let autoscalers: Api<HorizontalPodAutoscaler> = cluster.namespaced("default");
    let find = |hpa: &HorizontalPodAutoscaler| {
        let conditions = hpa.status.iter().flat_map(|status| &status.conditions);
        let mut conditions = conditions.flatten();
        conditions
            .find(|it| it.type_ == type_ && it.reason.as_deref() == Some(reason))
            .cloned()
    };
    let description = format!("{name} has {type_} with the reason {reason}");
    wait_until(&autoscalers, &description, |all| {
        let mut all = all.iter();
        all.any(|hpa| hpa.metadata.name.as_deref() == Some(name) && find(hpa).is_some())
    })
    .await;
    find(&autoscalers.get(name).await.unwrap()).expect("it has the condition")
}

#[tokio::test(start_paused = true)]
async fn metrics_api_shows_the_usage_of_nodes_and_pods() {
    let cluster = test_cluster(2).await;
    cluster.apply(web(2, "250m")).await;
    until_replicas(&cluster, 2).await;
    cluster.advance(Duration::from_secs(20)).await;
    let root = "/apis/metrics.k8s.io/v1beta1";
    let pods = get(
        &cluster,
        &format!("{root}/namespaces/default/pods?labelSelector=app%3Dweb"),
    )
    .await;
    assert_eq!(pods["kind"], "PodMetricsList");
    let items = pods["items"].as_array().unwrap();
    assert_eq!(items.len(), 2);
    for pod in items {
        assert_eq!(pod["metadata"]["labels"]["app"], "web");
        assert_eq!(pod["window"], "15s");
        let usage = json!({"cpu": "250m", "memory": "64Mi"});
        assert_eq!(pod["containers"], json!([{"name": "web", "usage": usage}]));
    }
    let name = items[0]["metadata"]["name"].as_str().unwrap();
    let pod = get(&cluster, &format!("{root}/namespaces/default/pods/{name}")).await;
    assert_eq!(pod["kind"], "PodMetrics");
    assert_eq!(pod["apiVersion"], "metrics.k8s.io/v1beta1");
    for selector in [
        "labelSelector=app%3Dother",
        "fieldSelector=metadata.name%3Dx",
    ] {
        let none = get(&cluster, &format!("{root}/pods?{selector}")).await;
        assert_eq!(none["items"], json!([]), "{selector}");
    }
    let nodes = get(&cluster, &format!("{root}/nodes")).await;
    let names: Vec<&str> = nodes["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|node| node["metadata"]["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["node-1", "node-2"]);
    let memory = nodes["items"].as_array().unwrap().iter();
    let memory: Vec<&str> = memory
        .map(|node| node["usage"]["memory"].as_str().unwrap())
        .collect();
    assert_eq!(memory, ["64Mi", "64Mi"]);
    let table = Request::get(format!("{root}/namespaces/default/pods"))
        .header("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")
        .body(Vec::new())
        .unwrap();
    let table: Value = cluster.client.request(table).await.unwrap();
    assert_eq!(table["kind"], "Table");
    assert_eq!(
        table["rows"][0]["cells"],
        json!([name, "250m", "64Mi", "15s"])
    );
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn metrics_api_is_available_also_after_a_restart() {
    let mut cluster = test_cluster(1).await;
    for _ in 0..2 {
        cluster.advance(Duration::from_secs(1)).await;
        let path = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io";
        let api_service = get(&cluster, path).await;
        let condition = &api_service["status"]["conditions"][0];
        assert_eq!(condition["status"], "True", "{condition}");
        let nodes = get(&cluster, "/apis/metrics.k8s.io/v1beta1/nodes").await;
        assert_eq!(nodes["items"][0]["usage"]["cpu"], "0");
        cluster.restart_controllers().await;
    }
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn node_that_is_off_has_no_metrics() {
    let cluster = test_cluster(2).await;
    let nodes = cluster.cluster().nodes().unwrap();
    nodes.partition("node-1").unwrap();
    let metrics = get(&cluster, "/apis/metrics.k8s.io/v1beta1/nodes").await;
    assert_eq!(metrics["items"].as_array().unwrap().len(), 1);
    assert_eq!(metrics["items"][0]["metadata"]["name"], "node-2");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn deployment_is_scaled_up_and_down_by_its_cpu_usage() {
    let cluster = test_cluster(2).await;
    cluster.apply(web(2, "100m")).await;
    until_replicas(&cluster, 2).await;
    cluster.apply(autoscaler("web", json!({}))).await;
    // 2 replicas use 100 % of their requests: twice the target.
    until_replicas(&cluster, 4).await;
    let rescaled = tokio::time::Instant::now();
    set_usage(&cluster, "10m").await;
    cluster.advance(Duration::from_secs(240)).await;
    assert_eq!(replicas(&cluster).await, 4);
    until_condition(&cluster, "web", "AbleToScale", "ScaleDownStabilized").await;
    until_replicas(&cluster, 1).await;
    let stabilized = rescaled.elapsed().as_secs();
    assert!((290..=345).contains(&stabilized), "{stabilized} s");
    let autoscalers: Api<HorizontalPodAutoscaler> = cluster.namespaced("default");
    cluster.advance(Duration::from_secs(30)).await;
    let hpa = autoscalers.get("web").await.unwrap();
    let status = hpa.status.unwrap();
    assert_eq!(status.current_replicas, Some(1));
    assert_eq!(status.desired_replicas, 1);
    assert!(status.last_scale_time.is_some());
    let metrics = status.current_metrics.unwrap();
    let current = &metrics[0].resource.as_ref().unwrap().current;
    assert_eq!(current.average_utilization, Some(10));
    assert_eq!(current.average_value.as_ref().unwrap().0, "10m");
    until_condition(&cluster, "web", "ScalingActive", "ValidMetricFound").await;
    let events: Api<Event> = cluster.namespaced("default");
    let messages: Vec<String> = events
        .list(&ListParams::default())
        .await
        .unwrap()
        .into_iter()
        .filter(|event| event.reason.as_deref() == Some("SuccessfulRescale"))
        .filter_map(|event| event.message)
        .collect();
    let up = "New size: 4; reason: cpu resource utilization (percentage of request) above target";
    let down = "New size: 1; reason: All metrics below target";
    assert_eq!(messages.len(), 2, "{messages:?}");
    assert!(messages.contains(&up.to_owned()), "{messages:?}");
    assert!(messages.contains(&down.to_owned()), "{messages:?}");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn replicas_are_kept_within_the_bounds() {
    let cluster = test_cluster(1).await;
    cluster.apply(web(1, "1")).await;
    until_replicas(&cluster, 1).await;
    let bounds = json!({"minReplicas": 3, "maxReplicas": 5});
    cluster.apply(autoscaler("web", bounds)).await;
    until_replicas(&cluster, 3).await;
    until_replicas(&cluster, 5).await;
    let limited = until_condition(&cluster, "web", "ScalingLimited", "TooManyReplicas").await;
    assert_eq!(limited.status, "True");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn policies_limit_the_rate_of_changes() {
    let cluster = test_cluster(1).await;
    cluster.apply(web(1, "1")).await;
    until_replicas(&cluster, 1).await;
    let policy = json!({"type": "Pods", "value": 1, "periodSeconds": 60});
    let behavior = json!({"behavior": {"scaleUp": {"policies": [policy]}}});
    cluster.apply(autoscaler("web", behavior)).await;
    until_replicas(&cluster, 2).await;
    let second = tokio::time::Instant::now();
    until_condition(&cluster, "web", "ScalingLimited", "ScaleUpLimit").await;
    until_replicas(&cluster, 3).await;
    let seconds = second.elapsed().as_secs();
    assert!((55..=80).contains(&seconds), "{seconds} s");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn failures_are_in_the_conditions() {
    let cluster = test_cluster(1).await;
    let mut without_requests = web(1, "1");
    without_requests["spec"]["template"]["spec"]["containers"][0]["resources"] = json!({});
    cluster.apply(without_requests).await;
    until_replicas(&cluster, 1).await;
    let pods = json!({"metric": {"name": "hits"}, "target": {"type": "AverageValue", "averageValue": "5"}});
    let cases = [
        (
            "requests",
            json!({}),
            "ScalingActive",
            "FailedGetResourceMetric",
            "the HPA was unable to compute the replica count: failed to get cpu utilization: \
             missing request for cpu in container web of Pod web-",
        ),
        (
            "custom",
            json!({"metrics": [{"type": "Pods", "pods": pods}]}),
            "ScalingActive",
            "FailedGetPodsMetric",
            "the HPA was unable to compute the replica count: unable to get metric hits: unable \
             to fetch metrics from custom metrics API: no custom metrics API \
             (custom.metrics.k8s.io) registered",
        ),
        (
            "kind",
            json!({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Other", "name": "web"}}),
            "AbleToScale",
            "FailedGetScale",
            "the HPA controller was unable to get the target's current scale: no matches for \
             kind \"Other\" in group \"apps\"",
        ),
        (
            "target",
            json!({"scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "x"}}),
            "AbleToScale",
            "FailedGetScale",
            "the HPA controller was unable to get the target's current scale: \
             deployments.apps \"x\" not found",
        ),
    ];
    for (name, spec, type_, reason, message) in cases {
        let hpa = autoscaler(name, spec);
        cluster.apply(hpa.clone()).await;
        let condition = until_condition(&cluster, name, type_, reason).await;
        assert_eq!(condition.status, "False", "{name}");
        let actual = condition.message.unwrap();
        assert!(actual.starts_with(message), "{actual}");
        cluster.delete(hpa).await;
        cluster.advance(Duration::from_secs(1)).await;
    }
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn autoscalers_of_the_same_pods_are_ambiguous() {
    let cluster = test_cluster(1).await;
    cluster.apply(web(2, "50m")).await;
    until_replicas(&cluster, 2).await;
    cluster.apply(autoscaler("a", json!({}))).await;
    cluster.apply(autoscaler("b", json!({}))).await;
    let condition = until_condition(&cluster, "a", "ScalingActive", "AmbiguousSelector").await;
    let expected = "pods by selector app=web are controlled by multiple HPAs: \
                    [{a default} {b default}]";
    assert_eq!(condition.message.as_deref(), Some(expected));
    cluster.delete(autoscaler("b", json!({}))).await;
    until_condition(&cluster, "a", "ScalingActive", "ValidMetricFound").await;
    cluster.stop().await;
}

/// A custom resource `Fleet` with a scale subresource.
fn fleets() -> Value {
    let schema = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    let scale = json!({
        "specReplicasPath": ".spec.replicas", "statusReplicasPath": ".status.replicas",
        "labelSelectorPath": ".status.selector",
    });
    json!({
        "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
        "metadata": {"name": "fleets.example.com"},
        "spec": {
            "group": "example.com", "scope": "Namespaced",
            "names": {"plural": "fleets", "kind": "Fleet"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema},
                "subresources": {"status": {}, "scale": scale},
            }],
        },
    })
}

#[tokio::test(start_paused = true)]
async fn custom_resource_is_scaled_by_the_usage_of_a_container() {
    let cluster = test_cluster(1).await;
    cluster.apply(fleets()).await;
    cluster.advance(Duration::from_secs(5)).await;
    let fleet = json!({
        "apiVersion": "example.com/v1", "kind": "Fleet", "metadata": {"name": "blue"},
        "spec": {"replicas": 1},
    });
    cluster.apply(fleet).await;
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Fleet"));
    let fleets: Api<DynamicObject> =
        Api::namespaced_with(cluster.client.clone(), "default", &resource);
    let status = Patch::Merge(json!({"status": {"replicas": 1, "selector": "fleet=blue"}}));
    let params = PatchParams::default();
    fleets.patch_status("blue", &params, &status).await.unwrap();
    let usage = json!({
        "sim.bellerophon.io/memory-usage.ship": "300Mi",
        "sim.bellerophon.io/memory-usage.log": "9Gi",
    });
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "ship", "labels": {"fleet": "blue"}, "annotations": usage},
        "spec": {"containers": [{"name": "ship", "image": "i"}, {"name": "log", "image": "i"}]},
    });
    cluster.apply(pod).await;
    let target = json!({"type": "AverageValue", "averageValue": "100Mi"});
    let metric = json!({"name": "memory", "container": "ship", "target": target});
    let spec = json!({
        "scaleTargetRef": {"apiVersion": "example.com/v1", "kind": "Fleet", "name": "blue"},
        "metrics": [{"type": "ContainerResource", "containerResource": metric}],
    });
    cluster.apply(autoscaler("blue", spec)).await;
    let rescaled = until_condition(&cluster, "blue", "AbleToScale", "SucceededRescale").await;
    let expected = "the HPA controller was able to update the target scale to 3";
    assert_eq!(rescaled.message.as_deref(), Some(expected));
    let blue = fleets.get("blue").await.unwrap();
    assert_eq!(blue.data["spec"]["replicas"], 3);
    let autoscalers: Api<HorizontalPodAutoscaler> = cluster.namespaced("default");
    let status = autoscalers.get("blue").await.unwrap().status.unwrap();
    let metrics = status.current_metrics.unwrap();
    let current = &metrics[0].container_resource.as_ref().unwrap().current;
    assert_eq!(current.average_value.as_ref().unwrap().0, "300Mi");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn pods_without_metrics_prevent_a_scale_down() {
    let cluster = test_cluster(2).await;
    cluster.apply(web(2, "10m")).await;
    until_replicas(&cluster, 2).await;
    let nodes = cluster.cluster().nodes().unwrap();
    nodes.partition("node-1").unwrap();
    cluster.advance(Duration::from_secs(1)).await;
    let down = json!({"stabilizationWindowSeconds": 0});
    let behavior = json!({"behavior": {"scaleDown": down}});
    cluster.apply(autoscaler("web", behavior)).await;
    until_condition(&cluster, "web", "ScalingActive", "ValidMetricFound").await;
    cluster.advance(Duration::from_secs(30)).await;
    // A pod without metrics is assumed to use all of its request: 110m of 200m are above 50 %.
    assert_eq!(replicas(&cluster).await, 2);
    nodes.partition("node-2").unwrap();
    let failed = until_condition(&cluster, "web", "ScalingActive", "FailedGetResourceMetric");
    let message = failed.await.message.unwrap();
    let expected = "no metrics returned from resource metrics API";
    assert!(message.ends_with(expected), "{message}");
    nodes.restore("node-1").unwrap();
    nodes.restore("node-2").unwrap();
    until_replicas(&cluster, 1).await;
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn target_without_replicas_is_not_scaled() {
    let cluster = test_cluster(1).await;
    cluster.apply(web(0, "1")).await;
    cluster.apply(autoscaler("web", json!({}))).await;
    until_condition(&cluster, "web", "ScalingActive", "ScalingDisabled").await;
    cluster.advance(Duration::from_secs(60)).await;
    assert_eq!(replicas(&cluster).await, 0);
    cluster.stop().await;
}
