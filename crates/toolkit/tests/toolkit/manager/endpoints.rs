//! `/healthz`, `/readyz` and `/metrics`, over real sockets.

use std::net::SocketAddr;
use std::time::Duration;

use bellerophon::manager::{ManagerOptions, Runnable, RunnableGroup};
use bellerophon::prelude::*;
use bellerophon::testing;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Client;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_util::sync::CancellationToken;

use super::logging_manager;
use crate::harness::{Log, server};

/// The status line, headers and body of a GET.
async fn get(address: SocketAddr, path: &str) -> std::io::Result<String> {
    let mut stream = TcpStream::connect(address).await?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n");
    stream.write_all(request.as_bytes()).await?;
    let mut response = String::new();
    stream.read_to_string(&mut response).await?;
    Ok(response)
}

async fn free_address() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap()
}

#[tokio::test]
async fn probes_are_served_before_the_caches_are_synced() {
    let address = free_address().await;
    let silent = tower::service_fn(|_: http::Request<kube::client::Body>| {
        std::future::pending::<Result<http::Response<String>, std::convert::Infallible>>()
    });
    let mut mgr = Manager::new(
        Client::new(silent, "default"),
        ManagerOptions {
            health_probe_bind_address: Some(address),
            ..testing::options(1)
        },
    );
    let _maps = mgr.lister::<ConfigMap>();
    // Runnables of this group start once the addresses are bound.
    let (sender, bound) = oneshot::channel();
    let notify = async move |stop: CancellationToken| {
        sender.send(()).expect("the test waits for it");
        stop.cancelled().await;
        Ok(())
    };
    mgr.add("notify", notify.in_group(RunnableGroup::Servers));
    let running = mgr.start();
    bound.await.unwrap();
    let ready = get(address, "/readyz").await.unwrap();
    assert!(ready.contains("500 Internal Server Error"), "{ready}");
    assert!(ready.contains("failed: not synced"), "{ready}");
    let healthy = get(address, "/healthz").await.unwrap();
    assert!(healthy.contains("200 OK"), "{healthy}");
    running.stop().await.unwrap();
}

#[tokio::test]
async fn metrics_and_probes_are_served_on_one_address() {
    let server = server().await;
    let address = free_address().await;
    let options = ManagerOptions {
        metrics_bind_address: Some(address),
        health_probe_bind_address: Some(address),
        ..testing::options(1)
    };
    let mgr = logging_manager(&server, options, "one", &Log::default(), Duration::ZERO);
    let health = mgr.health();
    let mut running = mgr.start();
    running.ready().await.unwrap();
    assert!(health.is_ready());
    for (path, part) in [
        ("/healthz", "200 OK"),
        ("/readyz", "readyz check passed"),
        ("/metrics", "workqueue_depth"),
    ] {
        let response = get(address, path).await.unwrap();
        assert!(response.contains(part), "{path}: {response}");
    }
    running.stop().await.unwrap();
}

#[tokio::test]
async fn metrics_and_probes_have_their_own_addresses() {
    let server = server().await;
    let metrics = free_address().await;
    let probes = free_address().await;
    let options = ManagerOptions {
        metrics_bind_address: Some(metrics),
        health_probe_bind_address: Some(probes),
        ..testing::options(1)
    };
    let mut mgr = logging_manager(&server, options, "one", &Log::default(), Duration::ZERO);
    mgr.readyz_check("upstream", || Err("connection refused".into()));
    mgr.healthz_check("deadlock", || Ok(()));
    let mut running = mgr.start();
    running.ready().await.unwrap();
    for (address, path, part) in [
        (metrics, "/metrics", "workqueue_depth"),
        (metrics, "/healthz", "404 Not Found"),
        (probes, "/metrics", "404 Not Found"),
        (probes, "/healthz", "[+]deadlock ok"),
        (probes, "/readyz", "[-]upstream failed: connection refused"),
    ] {
        let response = get(address, path).await.unwrap();
        assert!(response.contains(part), "{path}: {response}");
    }
    running.stop().await.unwrap();
}

#[tokio::test]
async fn address_in_use_is_returned_before_anything_starts() {
    let server = server().await;
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let options = ManagerOptions {
        metrics_bind_address: Some(address),
        ..testing::options(1)
    };
    let mgr = logging_manager(&server, options, "one", &Log::default(), Duration::ZERO);
    let metrics = mgr.metrics().clone();
    let error = mgr.run_until(std::future::pending()).await.unwrap_err();
    assert!(
        matches!(&error, ManagerError::Bind { address: found, .. } if *found == address),
        "{error}"
    );
    assert!(!metrics.encode().contains("rest_client_requests_total{"));
}
