//! Pods with `hostNetwork`.

use bellerophon_process_runtime::Tier;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::network::{create_service, free_port, get_hostname, request, service_address};
use crate::support::*;

/// A pod `web` on the host network that serves HTTP on a port of this machine.
async fn start_web(cluster: &ProcessCluster, port: u16) -> Pod {
    let container = json!({
        "name": "web",
        "image": "helper",
        "args": ["http", port.to_string()],
        "ports": [{"containerPort": port}],
        "readinessProbe": {"httpGet": {"path": "/hostname", "port": port}, "periodSeconds": 1},
    });
    let spec = json!({"hostNetwork": true, "containers": [container]});
    cluster.create("web", spec).await;
    cluster.until_ready("web").await
}

#[tokio::test]
async fn pod_on_the_host_network_has_the_address_and_ports_of_its_node() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let port = free_port();
        let pod = start_web(&cluster, port).await;
        let status = pod.status.as_ref().unwrap();
        assert!(status.pod_ip.is_some(), "{tier:?}");
        assert_eq!(status.pod_ip, status.host_ip, "{tier:?}");
        let spec = pod.spec.as_ref().unwrap();
        let ports = spec.containers[0].ports.as_ref().unwrap();
        assert_eq!(ports[0].host_port, Some(i32::from(port)), "{tier:?}");

        let node = spec.node_name.clone().unwrap();
        let answer = tokio::task::spawn_blocking(move || get_hostname(port)).await;
        assert_eq!(answer.unwrap(), node, "{tier:?}");
        let forwarded = cluster.pods().portforward(&pod.name_any(), &[port]).await;
        let mut forwarded = forwarded.unwrap();
        let mut stream = forwarded.take_stream(port).unwrap();
        let get = b"GET /hostname HTTP/1.0\r\n\r\n";
        stream.write_all(get).await.unwrap();
        let mut response = String::new();
        stream.read_to_string(&mut response).await.unwrap();
        assert!(response.ends_with(&node), "{tier:?}: {response}");
        cluster.delete("web", 0).await;
        cluster.until_no_process(&pod).await;
        cluster.stop().await;
    }
}

#[tokio::test]
async fn services_and_pods_reach_a_pod_on_the_host_network() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let port = free_port();
        let pod = start_web(&cluster, port).await;
        let node = pod.spec.as_ref().unwrap().node_name.clone().unwrap();
        let ports = json!([{"port": 8080, "targetPort": port}]);
        create_service(&cluster, "web", json!({"ports": ports})).await;
        let address = service_address(&cluster, "web", "WEB");
        let answers = request(&cluster, "by-service", &address, 3).await;
        assert_eq!(answers, vec![node.clone(); 3], "{tier:?}");
        if tier == Tier::A {
            let host_ip = pod.status.and_then(|status| status.host_ip).unwrap();
            let address = format!("{host_ip}:{port}");
            let answers = request(&cluster, "by-node", &address, 1).await;
            assert_eq!(answers, [node]);
        }
        cluster.stop().await;
    }
}

#[tokio::test]
async fn pod_on_the_host_network_reaches_services() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        create_service(&cluster, "web", json!({})).await;
        let server = json!({
            "name": "web",
            "image": "helper",
            "args": ["http", "8080"],
            "ports": [{"containerPort": 8080}],
            "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
        });
        cluster.create("web", json!({"containers": [server]})).await;
        cluster.until_ready("web").await;
        let address = "$(WEB_SERVICE_HOST):$(WEB_SERVICE_PORT)";
        let client = json!({"name": "get", "image": "helper", "args": ["get", address, "2"]});
        let spec = json!({"hostNetwork": true, "restartPolicy": "Never", "containers": [client]});
        cluster.create("client", spec).await;
        let pod = cluster.until_phase("client", "Succeeded").await;
        let answers = cluster.until_logged(&pod, "get", 0, 2).await;
        assert_eq!(answers, ["web", "web"], "{tier:?}");
        cluster.stop().await;
    }
}

#[tokio::test]
async fn pod_with_its_own_network_does_not_reach_other_ports_of_the_machine() {
    let tiers = tiers().await;
    let Some(tier) = tiers.into_iter().find(|tier| *tier == Tier::A) else {
        return;
    };
    let cluster = ProcessCluster::start(tier).await;
    let pod = start_web(&cluster, free_port()).await;
    let secret = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let port = secret.local_addr().unwrap().port();
    // A Service makes the port one on which pods connect.
    create_service(&cluster, "web", json!({"ports": [{"port": port}]})).await;
    let host_ip = pod.status.and_then(|status| status.host_ip).unwrap();
    let address = format!("{host_ip}:{port}");
    let client = json!({"name": "get", "image": "helper", "args": ["get-once", address]});
    let spec = json!({"restartPolicy": "Never", "containers": [client]});
    cluster.create("client", spec).await;
    let pod = cluster.until_phase("client", "Failed").await;
    let (code, _) = terminated(&pod, "get");
    assert_eq!(code, 1);
    secret.set_nonblocking(true).unwrap();
    let accepted = secret.accept().map_err(|error| error.kind());
    assert_eq!(accepted.unwrap_err(), std::io::ErrorKind::WouldBlock);
    cluster.stop().await;
}
