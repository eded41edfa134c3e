//! Addresses, connections and Services.

use std::collections::HashSet;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use bellerophon_process_runtime::relay::{Backends, Relay};
use bellerophon_process_runtime::{Container, Tier};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use crate::support::*;

/// Starts a server and waits until it listens.
async fn serve(pod: &Pod, address: &str) -> Container {
    let config = container(pod, &[HELPER, "serve", address]);
    let log_path = config.log_path.clone();
    let container = pod.sandbox.start_container(config).await.unwrap();
    wait_for_output(&container, &log_path, "listening").await;
    container
}

async fn get(mut stream: TcpStream) -> String {
    stream.write_all(b"GET / HTTP/1.0\r\n\r\n").await.unwrap();
    let mut response = String::new();
    within(stream.read_to_string(&mut response)).await.unwrap();
    let (_, body) = response.split_once("\r\n\r\n").unwrap();
    body.trim().to_owned()
}

/// A relay that reaches pods through the runtime.
fn relay(node: &Node) -> Relay {
    let runtime = node.runtime.clone();
    Relay::new(move |endpoint: SocketAddr, client: IpAddr| {
        let runtime = runtime.clone();
        let dial = async move {
            let sandbox = runtime.sandbox_by_ip(endpoint.ip());
            let sandbox = sandbox.ok_or(std::io::ErrorKind::ConnectionRefused)?;
            let stream = sandbox.dial(endpoint, Some(client)).await;
            stream.map_err(std::io::Error::other)
        };
        Box::pin(dial) as bellerophon_process_runtime::relay::Dialing
    })
}

#[tokio::test]
async fn wildcard_listeners_of_pods_do_not_conflict() {
    let Some(mut node) = Node::start_in_tier_a().await else {
        return;
    };
    let mut pods = Vec::new();
    for _ in 0..3 {
        let pod = node.pod().await;
        let server = serve(&pod, "0.0.0.0:8080").await;
        pods.push((pod, server));
    }
    for (number, (pod, _)) in pods.iter().enumerate() {
        let ip = pod.sandbox.ip();
        let stream = node.runtime.dial(SocketAddr::new(ip, 8080)).await.unwrap();
        let expected = format!("pod-{} {ip}", number + 1);
        assert_eq!(get(stream).await, expected);
    }
}

#[tokio::test]
async fn pods_of_tier_b_listen_on_their_own_addresses() {
    let mut node = Node::start(Tier::B).await;
    let first = node.pod().await;
    let second = node.pod().await;
    assert_ne!(first.sandbox.ip(), second.sandbox.ip());
    let probe = std::net::TcpListener::bind((first.sandbox.ip(), 0)).unwrap();
    let port = probe.local_addr().unwrap().port();
    drop(probe);
    for pod in [&first, &second] {
        let address = SocketAddr::new(pod.sandbox.ip(), port);
        let _server = serve(pod, &address.to_string()).await;
        let stream = node.runtime.dial(address).await.unwrap();
        assert!(get(stream).await.starts_with("pod-"));
    }
}

#[tokio::test]
async fn local_listeners_of_a_pod_are_dialed() {
    let Some(mut node) = Node::start_in_tier_a().await else {
        return;
    };
    let pod = node.pod().await;
    let _server = serve(&pod, "127.0.0.1:80").await;
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 80));
    let stream = pod.sandbox.dial(address, None).await.unwrap();
    assert_eq!(get(stream).await, "pod-1 127.0.0.1");
    let closed = SocketAddr::from((Ipv4Addr::LOCALHOST, 81));
    let error = pod.sandbox.dial(closed, None).await.err().unwrap();
    assert!(error.to_string().contains("refused"), "{error}");
}

#[tokio::test]
async fn service_is_relayed_to_its_endpoints_with_the_address_of_the_client() {
    let Some(mut node) = Node::start_in_tier_a().await else {
        return;
    };
    let relay = relay(&node);
    // The Service has the port on which the client itself listens.
    let service: SocketAddr = "10.96.0.10:8080".parse().unwrap();
    let any_address = SocketAddr::from((Ipv4Addr::UNSPECIFIED, service.port()));
    let mut pods = Vec::new();
    for _ in 0..3 {
        let pod = node.pod().await;
        let listener = pod.sandbox.listen(any_address).await.unwrap();
        let guard = relay.serve(listener);
        let server = serve(&pod, "0.0.0.0:8080").await;
        pods.push((pod, server, guard));
    }
    let endpoint = |index: usize| SocketAddr::new(pods[index].0.sandbox.ip(), 8080);
    let backends = Backends {
        endpoints: vec![endpoint(1), endpoint(2)],
        affinity: None,
    };
    relay.set_all([(service, backends.clone())].into());
    let client = &pods[0].1;
    let mut reached = HashSet::new();
    for _ in 0..10 {
        let (code, body) = exec(client, &[HELPER, "get", &service.to_string()]).await;
        assert_eq!(code, 0);
        reached.insert(body);
    }
    let expected = ["pod-2 10.1.0.1\n", "pod-3 10.1.0.1\n"].map(str::to_owned);
    assert_eq!(reached, HashSet::from(expected));

    let with_affinity = Backends {
        affinity: Some(TIMEOUT),
        ..backends
    };
    relay.set_all([(service, with_affinity)].into());
    let mut reached = HashSet::new();
    for _ in 0..5 {
        let (_, body) = exec(client, &[HELPER, "get", &service.to_string()]).await;
        reached.insert(body);
    }
    assert_eq!(reached.len(), 1, "{reached:?}");

    // A pod also reaches itself through the Service.
    let itself = Backends {
        endpoints: vec![endpoint(0)],
        affinity: None,
    };
    relay.set_all([(service, itself)].into());
    let (_, body) = exec(client, &[HELPER, "get", &service.to_string()]).await;
    assert!(body.starts_with("pod-1 "), "{body}");

    // Other pods are reached at their own addresses.
    let (_, body) = exec(client, &[HELPER, "get", &endpoint(2).to_string()]).await;
    assert_eq!(body, "pod-3 10.1.0.1\n");

    relay.set_all([(service, Backends::default())].into());
    let (code, body) = exec(client, &[HELPER, "get", &service.to_string()]).await;
    assert_eq!(body, "", "exit code {code}");
}

#[tokio::test]
async fn relay_tries_the_next_endpoint() {
    let server = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let ready = server.local_addr().unwrap();
    let refused = SocketAddr::from((Ipv4Addr::new(127, 0, 0, 99), 1));
    let relay = Relay::new(|endpoint: SocketAddr, _: IpAddr| {
        Box::pin(TcpStream::connect(endpoint)) as bellerophon_process_runtime::relay::Dialing
    });
    let service: SocketAddr = "10.96.0.1:443".parse().unwrap();
    let backends = Backends {
        endpoints: vec![ready, refused],
        affinity: None,
    };
    relay.set_all([(service, backends)].into());
    for _ in 0..4 {
        let stream = relay
            .connect(service, Ipv4Addr::LOCALHOST.into())
            .await
            .unwrap();
        assert_eq!(stream.peer_addr().unwrap(), ready);
    }
    relay.set_all([(service, Backends::default())].into());
    let error = relay
        .connect(service, Ipv4Addr::LOCALHOST.into())
        .await
        .unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
}
