//! Services, and connections between pods.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::MetadataExt;

use bellerophon_process_runtime::Tier;
use bellerophon_testkit::wait_until;
use k8s_openapi::api::apps::v1::{Deployment, StatefulSet};
use k8s_openapi::api::core::v1::{Pod, Service};
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, ResourceExt};
use serde_json::{Value, json};

use crate::support::*;

/// Three pods that listen on the same port, and two Services of them.
async fn start_web(cluster: &ProcessCluster, service_type: &str) -> Vec<Pod> {
    let container = json!({
        "name": "web",
        "image": "helper",
        "args": ["http", "8080"],
        "ports": [{"containerPort": 8080}],
        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
    });
    let deployment = json!({
        "metadata": {"name": "web"},
        "spec": {
            "replicas": 3,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"automountServiceAccountToken": false, "containers": [container]},
            },
        },
    });
    let deployments: Api<Deployment> = Api::namespaced(cluster.client.clone(), "default");
    let deployment = serde_json::from_value(deployment).unwrap();
    let created = deployments
        .create(&PostParams::default(), &deployment)
        .await;
    created.unwrap();
    create_service(cluster, "web", json!({"type": service_type})).await;
    create_service(cluster, "sticky", json!({"sessionAffinity": "ClientIP"})).await;
    let is_ready = |pods: &[Pod]| {
        let ready = pods.iter().filter(|pod| has_condition(pod, "Ready"));
        ready.count() == 3
    };
    wait_until(&cluster.pods(), "three pods are ready", is_ready).await
}

pub(crate) async fn create_service(cluster: &ProcessCluster, name: &str, mut spec: Value) {
    spec["selector"] = json!({"app": "web"});
    if spec["ports"].is_null() {
        spec["ports"] = json!([{"port": 8080}]);
    }
    let service = json!({"metadata": {"name": name}, "spec": spec});
    let service = serde_json::from_value(service).unwrap();
    let created = services(cluster)
        .create(&PostParams::default(), &service)
        .await;
    created.unwrap();
}

fn services(cluster: &ProcessCluster) -> Api<Service> {
    Api::namespaced(cluster.client.clone(), "default")
}

/// The host names that answer requests of a pod.
pub(crate) async fn request(
    cluster: &ProcessCluster,
    name: &str,
    address: &str,
    count: usize,
) -> Vec<String> {
    let container = json!({
        "name": "get",
        "image": "helper",
        "args": ["get", address, count.to_string()],
    });
    let spec = json!({"restartPolicy": "Never", "containers": [container]});
    cluster.create(name, spec).await;
    let pod = cluster.until_phase(name, "Succeeded").await;
    cluster.until_logged(&pod, "get", 0, count).await
}

/// How a pod names a Service.
pub(crate) fn service_address(cluster: &ProcessCluster, name: &str, variable: &str) -> String {
    match cluster.tier {
        Tier::A => format!("{name}.default.svc.cluster.local:8080"),
        Tier::B => format!("$({variable}_SERVICE_HOST):$({variable}_SERVICE_PORT)"),
    }
}

#[tokio::test]
async fn services_reach_pods_that_listen_on_the_same_port() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let pods = start_web(&cluster, "NodePort").await;
        let names: BTreeSet<String> = pods.iter().map(ResourceExt::name_any).collect();

        let address = service_address(&cluster, "web", "WEB");
        let answers = request(&cluster, "many", &address, 100).await;
        let reached: BTreeSet<String> = answers.into_iter().collect();
        assert!(reached.len() >= 2, "{tier:?} {reached:?}");
        assert!(reached.is_subset(&names), "{tier:?} {reached:?}");

        let address = service_address(&cluster, "sticky", "STICKY");
        let answers = request(&cluster, "few", &address, 10).await;
        let reached: BTreeSet<String> = answers.into_iter().collect();
        assert_eq!(reached.len(), 1, "{tier:?} {reached:?}");

        let service = services(&cluster).get("web").await.unwrap();
        let ports = service.spec.unwrap().ports.unwrap();
        let node_port = u16::try_from(ports[0].node_port.unwrap()).unwrap();
        let answer = tokio::task::spawn_blocking(move || get_hostname(node_port)).await;
        let answer = answer.unwrap();
        assert!(names.contains(&answer), "{tier:?} {answer}");
        if tier == Tier::A {
            let host_ip = pods[0].status.as_ref().and_then(|it| it.host_ip.clone());
            let address = format!("{}:{node_port}", host_ip.unwrap());
            let answers = request(&cluster, "at-node", &address, 1).await;
            assert!(names.contains(&answers[0]), "{answers:?}");
        }
        cluster.stop().await;
    }
}

#[tokio::test]
async fn pods_reach_each_other_at_their_addresses() {
    let tiers = tiers().await;
    let Some(tier) = tiers.into_iter().find(|tier| *tier == Tier::A) else {
        return;
    };
    let cluster = ProcessCluster::start(tier).await;
    // The node ports of two clusters on one machine would conflict.
    let pods = start_web(&cluster, "ClusterIP").await;
    let status = pods[0].status.as_ref();
    let ip = status.and_then(|status| status.pod_ip.clone()).unwrap();
    let answers = request(&cluster, "direct", &format!("{ip}:8080"), 3).await;
    assert_eq!(answers, vec![pods[0].name_any(); 3]);
    cluster.stop().await;
}

/// A container need not name the port on which its program listens.
#[tokio::test]
async fn pods_reach_each_other_at_ports_that_nobody_names() {
    let tiers = tiers().await;
    let Some(tier) = tiers.into_iter().find(|tier| *tier == Tier::A) else {
        return;
    };
    let cluster = ProcessCluster::start(tier).await;
    let container = json!({
        "name": "web",
        "image": "helper",
        "args": ["http", "8765"],
        "readinessProbe": {"tcpSocket": {"port": 8765}, "periodSeconds": 1},
    });
    cluster
        .create("web", json!({"containers": [container]}))
        .await;
    let is_ready = |pods: &[Pod]| pods.iter().any(|pod| has_condition(pod, "Ready"));
    let pods = wait_until(&cluster.pods(), "the pod is ready", is_ready).await;
    let status = pods[0].status.as_ref();
    let ip = status.and_then(|status| status.pod_ip.clone()).unwrap();
    let answers = request(&cluster, "direct", &format!("{ip}:8765"), 1).await;
    assert_eq!(answers, ["web"]);
    cluster.stop().await;
}

/// A StatefulSet whose pods are never ready, and their headless Service.
async fn start_stateful(cluster: &ProcessCluster) {
    // No container port: the Service alone makes it reachable.
    let container = json!({
        "name": "db",
        "image": "helper",
        "args": ["http", "8080"],
        "readinessProbe": {"exec": {"command": ["false"]}},
    });
    let spec = json!({
        "serviceName": "db",
        "replicas": 3,
        "podManagementPolicy": "Parallel",
        "selector": {"matchLabels": {"app": "db"}},
        "template": {
            "metadata": {"labels": {"app": "db"}},
            "spec": {
                "automountServiceAccountToken": false,
                "terminationGracePeriodSeconds": 0,
                "containers": [container],
            },
        },
    });
    let set = json!({"metadata": {"name": "db"}, "spec": spec});
    let set = serde_json::from_value(set).unwrap();
    let created = stateful_sets(cluster)
        .create(&PostParams::default(), &set)
        .await;
    created.unwrap();
    let service = json!({
        "metadata": {"name": "db"},
        "spec": {
            "clusterIP": "None",
            "publishNotReadyAddresses": true,
            "selector": {"app": "db"},
            "ports": [{"port": 8080}],
        },
    });
    let service = serde_json::from_value(service).unwrap();
    let created = services(cluster)
        .create(&PostParams::default(), &service)
        .await;
    created.unwrap();
}

fn stateful_sets(cluster: &ProcessCluster) -> Api<StatefulSet> {
    Api::namespaced(cluster.client.clone(), "default")
}

#[tokio::test]
async fn running_pods_resolve_names_of_stateful_pods() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        // In tier B, programs read the hosts file themselves.
        let find = match tier {
            Tier::A => "address=db-$n.db.default.svc".to_owned(),
            Tier::B => "until address=$(grep -w db-$n.db.default.svc $KUBERNETES_MOUNT_HOSTS); \
                        do sleep 0.05; done; address=$(echo $address | cut -d ' ' -f 1)"
                .to_owned(),
        };
        let script = format!("for n in 0 1 2; do {find}; {HELPER} get $address:8080 1; done");
        let spec = json!({"restartPolicy": "Never", "containers": [sh("get", &script, json!({}))]});
        cluster.create("client", spec).await;
        cluster.until_ready("client").await;
        start_stateful(&cluster).await;
        let client = cluster.until_phase("client", "Succeeded").await;
        let answers = cluster.until_logged(&client, "get", 0, 3).await;
        assert_eq!(answers, ["db-0", "db-1", "db-2"], "{tier:?}");

        let pod = cluster.pods().get("db-0").await.unwrap();
        let hosts = cluster.pod_dir(&pod).join("etc-hosts");
        let inode = std::fs::metadata(&hosts).unwrap().ino();
        let read = || std::fs::read_to_string(&hosts).unwrap();
        assert!(read().contains("db-2.db.default.svc"), "{tier:?}");
        let patch = Patch::Merge(json!({"spec": {"replicas": 2}}));
        let scaled = stateful_sets(&cluster)
            .patch("db", &PatchParams::default(), &patch)
            .await;
        scaled.unwrap();
        cluster
            .until_true("the name of the deleted pod is removed", || {
                !read().contains("db-2.db.default.svc")
            })
            .await;
        assert_eq!(std::fs::metadata(&hosts).unwrap().ino(), inode, "{tier:?}");
        cluster.stop().await;
    }
}

#[tokio::test]
async fn datagrams_to_a_service_are_answered_by_a_pod() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let server = json!({"name": "dns", "image": "helper", "args": ["udp", "5300"]});
        cluster.create("dns", json!({"containers": [server]})).await;
        cluster.until_ready("dns").await;
        let service = json!({
            "metadata": {"name": "dns"},
            "spec": {
                "selector": {"app": "dns"},
                "ports": [{"port": 5353, "targetPort": 5300, "protocol": "UDP"}],
            },
        });
        let service = serde_json::from_value(service).unwrap();
        let created = services(&cluster)
            .create(&PostParams::default(), &service)
            .await;
        created.unwrap();
        let address = match tier {
            Tier::A => "dns.default.svc:5353",
            Tier::B => "$(DNS_SERVICE_HOST):$(DNS_SERVICE_PORT)",
        };
        let client = json!({"name": "client", "image": "helper", "args": ["send", address]});
        let spec = json!({"restartPolicy": "Never", "containers": [client]});
        cluster.create("client", spec).await;
        let pod = cluster.until_phase("client", "Succeeded").await;
        let answers = cluster.until_logged(&pod, "client", 0, 1).await;
        assert_eq!(answers, ["dns"], "{tier:?}");
        cluster.stop().await;
    }
}

#[tokio::test]
async fn host_ports_are_published_on_the_machine_and_on_nodes() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let host_port = free_port();
        let container = json!({
            "name": "web",
            "image": "helper",
            "args": ["http", "8080"],
            "ports": [{"containerPort": 8080, "hostPort": host_port}],
        });
        cluster
            .create("web", json!({"containers": [container]}))
            .await;
        let pod = cluster.until_ready("web").await;
        cluster.until_logged(&pod, "web", 0, 1).await;
        let answer = tokio::task::spawn_blocking(move || get_hostname(host_port)).await;
        assert_eq!(answer.unwrap(), "web", "{tier:?}");
        if tier == Tier::A {
            let host_ip = pod.status.and_then(|status| status.host_ip).unwrap();
            let answers = request(&cluster, "client", &format!("{host_ip}:{host_port}"), 1).await;
            assert_eq!(answers, ["web"]);
        }
        cluster.stop().await;
    }
}

/// A port on which no process listens.
pub(crate) fn free_port() -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    listener.local_addr().unwrap().port()
}

#[tokio::test]
async fn taken_host_port_is_reported() {
    let tier = tiers().await[0];
    let cluster = ProcessCluster::start(tier).await;
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let ports = json!({"ports": [{"containerPort": 8080, "hostPort": port}]});
    let spec = json!({"containers": [sh("web", "sleep 1000; true", ports)]});
    cluster.create("web", spec).await;
    let text = format!("host port {port} is not published");
    cluster.until_event("web", "HostPortTaken", &text).await;
    cluster.delete("web", 0).await;
    cluster.stop().await;
}

#[tokio::test]
async fn listener_on_all_addresses_is_reported_without_namespaces() {
    let cluster = ProcessCluster::start(Tier::B).await;
    let port = free_port();
    // The helper listens on all addresses without $POD_IP.
    let script = format!("unset POD_IP; exec {HELPER} http {port}");
    let spec = json!({"containers": [sh("web", &script, json!({}))]});
    cluster.create("web", spec).await;
    let text = format!("container web listens on port {port} of all addresses");
    let event = cluster.until_event("web", "WildcardListener", &text).await;
    assert!(event.message.unwrap().contains("$POD_IP (127."));
    cluster.delete("web", 0).await;
    cluster.stop().await;
}

/// The host name that answers at a node port.
pub(crate) fn get_hostname(port: u16) -> String {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).unwrap();
    stream.write_all(b"GET /hostname HTTP/1.0\r\n\r\n").unwrap();
    let mut response = String::new();
    stream.read_to_string(&mut response).unwrap();
    let (_, body) = response.split_once("\r\n\r\n").unwrap();
    body.to_owned()
}
