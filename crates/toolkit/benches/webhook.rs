//! Webhooks: reviews of a 4 KB pod, in process on one core, and over TLS at a constant rate.
//!
//! Run: `cargo bench -p bellerophon --bench webhook`. In process, the HTTP service of the webhooks is
//! called on one thread; the figure is the best of five. Over TLS, eight kept connections send
//! requests at fixed times. Latency counts from the time at which a request was due, if the former
//! response of the connection came later than that.
#![expect(
    clippy::print_stdout,
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a benchmark prints, panics on errors, and measures real time"
)]

use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bellerophon::prelude::*;
use bellerophon::webhook::{FailurePolicy, Rejection, Review, WebhookOptions};
use bellerophon_apiserver::ApiServer;
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::Pod;
use kube::ResourceExt;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tower::ServiceExt;

const REVIEWS: usize = 20_000;
const ROUNDS: usize = 5;
const CONNECTIONS: usize = 8;
const RATE_PER_SECOND: u32 = 1_000;
const SECONDS: u32 = 20;

/// As sidecar injectors do: a label and a container.
fn inject(_: &Review<Pod>, pod: &mut Pod) -> Result<(), Rejection> {
    pod.labels_mut().insert("injected".into(), "true".into());
    if let Some(spec) = &mut pod.spec {
        let mut sidecar = spec.containers[0].clone();
        sidecar.name = "sidecar".into();
        spec.containers.push(sidecar);
    }
    Ok(())
}

fn check(_: &Review<Pod>, pod: &Pod) -> Result<(), Rejection> {
    match pod.labels().contains_key("forbidden") {
        true => Err(Rejection::denied("forbidden")),
        false => Ok(()),
    }
}

/// A review of a pod of about 4 KB, as kube-apiserver sends it.
fn review() -> String {
    let variables: Vec<Value> = (0..48)
        .map(|i| json!({"name": format!("VARIABLE_{i}"), "value": format!("value-{i}-{}", "x".repeat(30))}))
        .collect();
    let pod = json!({
        "apiVersion": "v1", "kind": "Pod",
        "metadata": {
            "name": "web", "namespace": "team-a", "labels": {"app": "web"},
            "creationTimestamp": null, "uid": "a3f0b1f4-1111-4222-8333-444455556666",
        },
        "spec": {
            "containers": [{
                "name": "web", "image": "nginx:1", "env": variables,
                "ports": [{"containerPort": 80, "protocol": "TCP"}],
                "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
                "volumeMounts": [{"name": "data", "mountPath": "/data"}],
            }],
            "volumes": [{"name": "data", "emptyDir": {}}],
            "restartPolicy": "Always", "serviceAccountName": "default",
        },
        "status": {},
    });
    let length = pod.to_string().len();
    assert!((3_500..4_500).contains(&length), "{length} bytes");
    let review = json!({
        "kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1",
        "request": {
            "uid": "0df28fbd-5f5f-11e8-bc74-36e6bb280816",
            "kind": {"group": "", "version": "v1", "kind": "Pod"},
            "resource": {"group": "", "version": "v1", "resource": "pods"},
            "name": "web", "namespace": "team-a", "operation": "CREATE",
            "userInfo": {"username": "admin", "groups": ["system:authenticated"]},
            "object": pod, "oldObject": null, "dryRun": false,
            "options": {"kind": "CreateOptions", "apiVersion": "meta.k8s.io/v1"},
        },
    });
    review.to_string()
}

fn declare(mgr: &mut Manager) {
    mgr.webhook::<Pod>()
        .mutate(FailurePolicy::Fail, inject)
        .validate(FailurePolicy::Fail, check);
}

fn request(path: &str, body: &Bytes) -> Request<Full<Bytes>> {
    Request::post(path)
        .header("host", "webhook")
        .header("content-type", "application/json")
        .body(Full::new(body.clone()))
        .unwrap()
}

fn main() {
    println!("| measure | reviews/s | µs a review |\n|---|---|---|");
    let single = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let single = single.unwrap();
    for verb in ["validate", "mutate"] {
        single.block_on(in_process(verb));
    }
    let threads = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    threads.unwrap().block_on(over_tls());
}

async fn in_process(verb: &str) {
    let server = ApiServer::builder().start().await.unwrap();
    let mut mgr = Manager::new(server.client(), ManagerOptions::default());
    declare(&mut mgr);
    let service = mgr.webhook_service();
    let body = Bytes::from(review());
    let path = format!("/{verb}--v1-pod?timeout=10s");
    let mut best = Duration::MAX;
    for _ in 0..ROUNDS {
        let started = Instant::now();
        for _ in 0..REVIEWS {
            let response = service
                .clone()
                .oneshot(request(&path, &body))
                .await
                .unwrap();
            assert_eq!(response.status(), 200);
        }
        best = best.min(started.elapsed());
    }
    let each = best / u32::try_from(REVIEWS).unwrap();
    let rate = 1.0 / each.as_secs_f64();
    println!(
        "| in process, {verb}, one core | {rate:.0} | {:.1} |",
        each.as_secs_f64() * 1e6
    );
}

/// A connection to the webhook that a configuration registers.
async fn connect(config: &Value) -> SendRequest<Full<Bytes>> {
    let bundle = BASE64_STANDARD.decode(config["caBundle"].as_str().unwrap());
    let bundle = bundle.unwrap();
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&bundle) {
        roots.add(certificate.unwrap()).unwrap();
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let url: http::Uri = config["url"].as_str().unwrap().parse().unwrap();
    let stream = TcpStream::connect(url.authority().unwrap().as_str()).await;
    let stream = stream.unwrap();
    stream.set_nodelay(true).unwrap();
    let name = ServerName::try_from(url.host().unwrap().to_owned()).unwrap();
    let stream = TlsConnector::from(Arc::new(tls))
        .connect(name, stream)
        .await;
    let handshake = hyper::client::conn::http1::handshake(TokioIo::new(stream.unwrap()));
    let (sender, connection) = handshake.await.unwrap();
    tokio::spawn(connection);
    sender
}

async fn over_tls() {
    let server = ApiServer::builder().start().await.unwrap();
    let client = server.client();
    let options = ManagerOptions {
        webhooks: WebhookOptions {
            bind_address: ([127, 0, 0, 1], 0).into(),
            ..WebhookOptions::default()
        },
        ..ManagerOptions::default()
    };
    let mut mgr = Manager::new(client.clone(), options);
    declare(&mut mgr);
    let mut running = mgr.start();
    running.ready().await.unwrap();
    let path = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/\
                bellerophon-webhooks";
    let configuration: Value = client
        .request(Request::get(path).body(Vec::new()).unwrap())
        .await
        .unwrap();
    let config = &configuration["webhooks"][0]["clientConfig"];
    let body = Bytes::from(review());
    let started = Instant::now() + Duration::from_millis(100);
    let period = Duration::from_secs(1) / RATE_PER_SECOND;
    let count = RATE_PER_SECOND * SECONDS;
    let mut clients = Vec::new();
    for first in 0..CONNECTIONS {
        let mut sender = connect(config).await;
        let body = body.clone();
        clients.push(tokio::spawn(async move {
            let mut latencies = Vec::new();
            let first = u32::try_from(first).unwrap();
            for number in (first..count).step_by(CONNECTIONS) {
                let due = started + period * number;
                let is_late = Instant::now() > due;
                tokio::time::sleep_until(due.into()).await;
                // The timer has a resolution of a millisecond, which is not the server's latency.
                let begun = if is_late { due } else { Instant::now() };
                let sent = sender.send_request(request("/mutate--v1-pod?timeout=10s", &body));
                let response = sent.await.unwrap();
                assert_eq!(response.status(), 200);
                response.into_body().collect().await.unwrap();
                latencies.push(begun.elapsed());
            }
            latencies
        }));
    }
    let mut latencies = Vec::new();
    for client in clients {
        latencies.append(&mut client.await.unwrap());
    }
    latencies.sort_unstable();
    let at = |part: usize| latencies[latencies.len() * part / 1000].as_secs_f64() * 1e3;
    println!("\n| measure | p50 | p99 | p99.9 |\n|---|---|---|---|");
    println!(
        "| over TLS, mutate, {RATE_PER_SECOND}/s | {:.2} ms | {:.2} ms | {:.2} ms |",
        at(500),
        at(990),
        at(999)
    );
    running.stop().await.unwrap();
}
