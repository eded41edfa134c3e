//! Logs of simulated pods, and what their kubelets refuse.

use std::time::Duration;

use futures_util::{AsyncBufReadExt, TryStreamExt};
use http::Request;
use k8s_openapi::api::core::v1::Pod;
use kube::api::{AttachParams, LogParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::pods::{is_ready, test_cluster, until_pod};
use bellerophon_testkit::TestCluster;

const LOG: &str = "sim.bellerophon.io/log";

/// A cluster with a ready pod `web` of two containers.
async fn cluster_with_pod(annotations: Value) -> TestCluster {
    let cluster = test_cluster(1).await;
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {"name": "web", "annotations": annotations},
        "spec": {"containers": [
            {"name": "app", "image": "i"},
            {"name": "proxy", "image": "i"},
        ]},
    });
    cluster.apply(pod).await;
    until_pod(&cluster, "web", "the pod is ready", is_ready).await;
    cluster
}

fn of_container(container: &str) -> LogParams {
    LogParams {
        container: Some(container.to_owned()),
        ..LogParams::default()
    }
}

#[tokio::test(start_paused = true)]
async fn simulated_log_is_that_of_the_annotation() {
    let log = "one\ntwo\nthree";
    let annotations = json!({LOG: log, "sim.bellerophon.io/log.proxy": "ready\n"});
    let cluster = cluster_with_pod(annotations).await;
    let pods: Api<Pod> = cluster.namespaced("default");
    let app = || of_container("app");
    cluster.advance(Duration::from_secs(60)).await;
    let started = started_at(&pods).await;
    for (params, expected) in [
        (app(), "one\ntwo\nthree\n".to_owned()),
        (of_container("proxy"), "ready\n".to_owned()),
        (
            LogParams {
                tail_lines: Some(1),
                timestamps: true,
                ..app()
            },
            format!("{started:.9} three\n"),
        ),
        (
            LogParams {
                limit_bytes: Some(5),
                ..app()
            },
            "one\nt".to_owned(),
        ),
        (
            LogParams {
                since_seconds: Some(30),
                ..app()
            },
            String::new(),
        ),
        (
            LogParams {
                since_time: Some(started),
                ..app()
            },
            "one\ntwo\nthree\n".to_owned(),
        ),
    ] {
        let text = pods.logs("web", &params).await.unwrap();
        assert_eq!(text, expected, "{params:?}");
    }
    cluster.stop().await;
}

async fn started_at(pods: &Api<Pod>) -> jiff::Timestamp {
    let pod = pods.get("web").await.unwrap();
    let statuses = pod.status.unwrap().container_statuses.unwrap();
    let status = statuses.into_iter().find(|status| status.name == "app");
    let state = status.unwrap().state.unwrap();
    state.running.unwrap().started_at.unwrap().0
}

#[tokio::test(start_paused = true)]
async fn followed_simulated_log_ends_with_its_container() {
    let annotations = json!({LOG: "one", "sim.bellerophon.io/run-for": "10m"});
    let cluster = cluster_with_pod(annotations).await;
    let pods: Api<Pod> = cluster.namespaced("default");
    let params = LogParams {
        follow: true,
        ..of_container("app")
    };
    let start = tokio::time::Instant::now();
    let mut lines = pods.log_stream("web", &params).await.unwrap().lines();
    assert_eq!(lines.try_next().await.unwrap().as_deref(), Some("one"));
    assert!(start.elapsed() < Duration::from_secs(60));
    assert_eq!(lines.try_next().await.unwrap(), None);
    let minutes = start.elapsed().as_secs() / 60;
    assert!((9..=10).contains(&minutes), "{minutes} minutes");
    let restarted = |pod: &Pod| {
        let status = pod.status.as_ref();
        let containers = status.and_then(|status| status.container_statuses.as_ref());
        let mut containers = containers.into_iter().flatten();
        containers.any(|container| container.name == "app" && container.restart_count > 0)
    };
    until_pod(&cluster, "web", "the container restarts", restarted).await;
    let previous = LogParams {
        previous: true,
        ..of_container("app")
    };
    assert_eq!(pods.logs("web", &previous).await.unwrap(), "one\n");
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn simulated_pods_refuse_what_needs_a_process() {
    let cluster = cluster_with_pod(json!({})).await;
    let pods: Api<Pod> = cluster.namespaced("default");
    let error = pods.logs("web", &of_container("app")).await.unwrap_err();
    let error = error.to_string();
    let reason = "pods on simulated nodes run no processes; set the annotation \
                  sim.bellerophon.io/log of the pod to the text of its log";
    assert!(error.contains(reason), "{error}");
    let container = AttachParams::default().container("app");
    assert!(pods.exec("web", ["true"], &container).await.is_err());
    assert!(pods.attach("web", &container).await.is_err());
    assert!(pods.portforward("web", &[80]).await.is_err());
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn kubelet_is_unreachable_while_its_node_is_off() {
    let mut cluster = cluster_with_pod(json!({LOG: "one"})).await;
    let pods: Api<Pod> = cluster.namespaced("default");
    let app = of_container("app");
    let nodes = cluster.cluster().nodes().unwrap();
    nodes.partition("node-1").unwrap();
    let error = pods.logs("web", &app).await.unwrap_err();
    let error = error.to_string();
    let expected = "dial tcp 172.16.0.1:10250: connect: no route to host";
    assert!(error.contains(expected), "{error}");
    nodes.restore("node-1").unwrap();
    assert_eq!(pods.logs("web", &app).await.unwrap(), "one\n");
    cluster.restart_controllers().await;
    assert_eq!(pods.logs("web", &app).await.unwrap(), "one\n");
    cluster.stop().await;
}

/// The kubelet reads pods as its own user, whose permissions are checked when the cluster stops.
#[tokio::test(start_paused = true)]
async fn kubelet_lists_its_pods() {
    let cluster = cluster_with_pod(json!({})).await;
    let path = "/api/v1/nodes/node-1/proxy/pods";
    let request = Request::get(path).body(Vec::new()).unwrap();
    let list: Value = cluster.client.request(request).await.unwrap();
    assert_eq!(list["items"][0]["metadata"]["name"], "web");
    let pods: Api<Pod> = cluster.namespaced("default");
    let pod = pods.get("web").await.unwrap();
    assert_eq!(list["items"][0]["metadata"]["uid"], pod.uid().unwrap());
    cluster.stop().await;
}
