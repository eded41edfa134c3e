//! Who can read metrics: clients of an API server with a metrics server, and clients that connect
//! to the metrics server itself.

use std::sync::Arc;

use bellerophon_apiserver::{ApiServer, InProcessDialer};
use http::{Request, StatusCode};
use kube::client::Body;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio_rustls::TlsConnector;

use super::registration::ADDRESS;
use crate::{Cluster, Kubelets};

const NODES: &str = "/apis/metrics.k8s.io/v1beta1/nodes";
const API_SERVICE: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1beta1.metrics.k8s.io";

struct Fixture {
    server: ApiServer,
    cluster: Cluster,
    kubelets: Kubelets,
}

impl Fixture {
    async fn start() -> Self {
        let kubelets = Kubelets::default();
        let dialed = kubelets.clone();
        let server = ApiServer::builder()
            .dialer(InProcessDialer::new(move |address| dialed.connect(address)))
            .start()
            .await
            .unwrap();
        let mut cluster = Cluster::builder(server.client())
            .nodes(1)
            .kubelets(kubelets.clone())
            .start();
        cluster.ready().await.unwrap();
        // The API server checks the APIService.
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        Self {
            server,
            cluster,
            kubelets,
        }
    }

    async fn get(&self, path: &str) -> Value {
        let request = Request::get(path).body(Vec::new()).unwrap();
        self.server.client().request(request).await.unwrap()
    }

    /// The status code of the response to a user.
    async fn status(&self, user: &str, path: &str) -> StatusCode {
        let service = self
            .server
            .service()
            .as_user(user, ["system:authenticated"]);
        let client = kube::Client::new(service, "default");
        let request = Request::get(path).body(Body::empty()).unwrap();
        client.send(request).await.unwrap().status()
    }

    async fn create(&self, path: &str, object: Value) {
        let request = Request::post(path)
            .header("content-type", "application/json")
            .body(object.to_string().into_bytes())
            .unwrap();
        let _: Value = self.server.client().request(request).await.unwrap();
    }

    async fn stop(self) {
        self.cluster.stop().await.unwrap();
        self.server.shutdown().await;
    }
}

/// The response of a server to a client that requests node metrics.
async fn response(mut stream: impl AsyncRead + AsyncWrite + Unpin) -> String {
    let request = format!(
        "GET {NODES} HTTP/1.1\r\nhost: x\r\nx-remote-user: admin\r\n\
         x-remote-group: system:masters\r\nconnection: close\r\n\r\n"
    );
    // The server may have closed the connection before.
    let _ = stream.write_all(request.as_bytes()).await;
    let mut response = Vec::new();
    let _ = stream.read_to_end(&mut response).await;
    String::from_utf8_lossy(&response).into_owned()
}

#[tokio::test(start_paused = true)]
async fn metrics_need_the_permission_to_read_them() {
    let fixture = Fixture::start().await;
    assert_eq!(fixture.status("eve", NODES).await, StatusCode::FORBIDDEN);
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": "metrics"},
        "rules": [{"verbs": ["list"], "apiGroups": ["metrics.k8s.io"], "resources": ["nodes"]}],
    });
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": "metrics"},
        "roleRef": {
            "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "metrics",
        },
        "subjects": [{"kind": "User", "apiGroup": "rbac.authorization.k8s.io", "name": "ann"}],
    });
    let rbac = "/apis/rbac.authorization.k8s.io/v1";
    fixture.create(&format!("{rbac}/clusterroles"), role).await;
    let bindings = format!("{rbac}/clusterrolebindings");
    fixture.create(&bindings, binding).await;
    assert_eq!(fixture.status("ann", NODES).await, StatusCode::OK);
    let pods = "/apis/metrics.k8s.io/v1beta1/pods";
    assert_eq!(fixture.status("ann", pods).await, StatusCode::FORBIDDEN);
    let node = format!("{NODES}/node-1");
    assert_eq!(fixture.status("ann", &node).await, StatusCode::FORBIDDEN);
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn connection_without_the_front_proxy_certificate_reads_nothing() {
    let fixture = Fixture::start().await;
    let connect = || fixture.kubelets.connect(ADDRESS).unwrap().unwrap();
    let plain = response(connect()).await;
    assert!(!plain.contains("HTTP/"), "{plain}");
    let api_service = fixture.get(API_SERVICE).await;
    let ca_bundle = api_service["spec"]["caBundle"].as_str().unwrap();
    let ca_bundle = base64::Engine::decode(&base64::prelude::BASE64_STANDARD, ca_bundle).unwrap();
    let mut roots = RootCertStore::empty();
    let certificate = CertificateDer::from_pem_slice(&ca_bundle).unwrap();
    roots.add(certificate).unwrap();
    let config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let connector = TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from("metrics-server.kube-system.svc").unwrap();
    // The client completes the handshake before the server has verified it.
    let stream = connector.connect(name, connect()).await.unwrap();
    assert_eq!(response(stream).await, "");
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn other_requests_are_refused() {
    let fixture = Fixture::start().await;
    let root = "/apis/metrics.k8s.io/v1beta1";
    for (method, path, expected) in [
        ("GET", "/nodes/other", 404),
        ("GET", "/things", 404),
        ("GET", "/namespaces/default/pods/other", 404),
        ("GET", "/nodes?watch=true", 405),
        ("GET", "/pods?labelSelector=%3Da", 400),
        ("GET", "/pods?fieldSelector=a", 400),
        ("DELETE", "/nodes/node-1", 405),
    ] {
        let request = Request::builder().method(method);
        let request = request.uri(format!("{root}{path}"));
        let request = request.body(Body::empty()).unwrap();
        let response = fixture.server.client().send(request).await.unwrap();
        assert_eq!(response.status().as_u16(), expected, "{method} {path}");
    }
    fixture.stop().await;
}

#[tokio::test(start_paused = true)]
async fn stopped_cluster_has_no_metrics_api() {
    let fixture = Fixture::start().await;
    assert!(fixture.kubelets.connect(ADDRESS).is_some());
    fixture.cluster.stop().await.unwrap();
    assert!(fixture.kubelets.connect(ADDRESS).is_none());
    fixture.server.shutdown().await;
}
