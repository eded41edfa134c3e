//! Webhooks behind a Service: endpoints, certificates, connections and bounds.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bellerophon_apiserver::{ApiServer, ByteStream, Dialer, Dialing};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use kube::Client;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{
    ServerConfig,
    crypto::ring,
    pki_types::{PrivateKeyDer, PrivatePkcs8KeyDer},
};
use serde_json::{Value, json};
use tokio_rustls::TlsAcceptor;

use super::{CONFIG_MAPS, VALIDATING, config_map, configuration, create, send};

/// A webhook with TLS behind a dialer, at the endpoint of a Service.
#[derive(Clone)]
struct Webhook {
    tls: TlsAcceptor,
    ca_pem: String,
    connections: Arc<AtomicUsize>,
    /// What it answers instead of a review.
    body: Option<Bytes>,
}

impl std::fmt::Debug for Webhook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Webhook")
    }
}

impl Webhook {
    /// A webhook whose certificate has this name.
    fn named(name: &str) -> Self {
        Self::signed_by(KeyPair::generate().expect("a key"), name)
    }

    /// A webhook whose certificate has this name, of the authority with this key.
    fn signed_by(key: KeyPair, name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let ca = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let params = CertificateParams::new([name.to_owned()]).expect("a name");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &ca).expect("a certificate");
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let config = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
            .with_safe_default_protocol_versions()
            .expect("protocols")
            .with_no_client_auth()
            .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(key))
            .expect("a configuration");
        Self {
            tls: TlsAcceptor::from(Arc::new(config)),
            ca_pem: ca.pem(),
            connections: Arc::default(),
            body: None,
        }
    }

    async fn answer(&self, request: Request<Incoming>) -> Response<Full<Bytes>> {
        assert_eq!(request.version(), http::Version::HTTP_11);
        assert_eq!(request.uri(), "/check?timeout=5s");
        assert_eq!(request.headers()["host"], "hook.default.svc:443");
        let body = request
            .into_body()
            .collect()
            .await
            .expect("a body")
            .to_bytes();
        let review: Value = serde_json::from_slice(&body).expect("a review");
        let response = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
            "response": {"uid": review["request"]["uid"], "allowed": true}});
        let body = self.body.clone();
        Response::new(Full::new(
            body.unwrap_or_else(|| response.to_string().into()),
        ))
    }
}

impl Dialer for Webhook {
    fn dial(&self, address: SocketAddr) -> Dialing<'_> {
        assert_eq!(address.to_string(), "10.1.0.9:8443");
        self.connections.fetch_add(1, Ordering::Relaxed);
        let (near, far) = tokio::io::duplex(16 << 10);
        let webhook = self.clone();
        tokio::spawn(async move {
            // A handshake that fails is what some tests are about.
            let Ok(stream) = webhook.tls.accept(far).await else {
                return;
            };
            let service = service_fn(move |request| {
                let webhook = webhook.clone();
                async move { Ok::<_, Infallible>(webhook.answer(request).await) }
            });
            let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            let _cut = serving.await;
        });
        Box::pin(std::future::ready(
            Ok(Box::new(near) as Box<dyn ByteStream>),
        ))
    }
}

/// A server that calls a webhook for each ConfigMap.
async fn start(webhook: &Webhook, ca_pem: &str) -> (ApiServer, Client) {
    let server = ApiServer::builder()
        .dialer(webhook.clone())
        .start()
        .await
        .expect("a server");
    let client = server.client();
    let service = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "hook"},
        "spec": {"ports": [{"name": "https", "port": 443}]}});
    create(&client, "/api/v1/namespaces/default/services", service).await;
    let slice = json!({"apiVersion": "discovery.k8s.io/v1", "kind": "EndpointSlice",
    "metadata": {"name": "hook", "labels": {"kubernetes.io/service-name": "hook"}},
    "addressType": "IPv4", "ports": [{"name": "https", "port": 8443}],
    "endpoints": [
        {"addresses": ["10.1.0.8"], "conditions": {"ready": false}},
        {"addresses": ["10.1.0.9"], "conditions": {"ready": true}},
    ]});
    let slices = "/apis/discovery.k8s.io/v1/namespaces/default/endpointslices";
    create(&client, slices, slice).await;
    let config = json!({"caBundle": BASE64_STANDARD.encode(ca_pem),
        "service": {"namespace": "default", "name": "hook", "path": "/check"}});
    let configured = configuration("ValidatingWebhookConfiguration", config, json!({}));
    create(&client, VALIDATING, configured).await;
    (server, client)
}

async fn failure(client: &Client) -> String {
    let (code, failed) = send(client, "POST", CONFIG_MAPS, config_map("a")).await;
    assert_eq!(code, 500, "{failed}");
    failed["message"].as_str().unwrap_or_default().to_owned()
}

#[tokio::test]
async fn ready_endpoint_of_the_service_is_called_and_its_connection_reused() {
    let webhook = Webhook::named("hook.default.svc");
    let (server, client) = start(&webhook, &webhook.ca_pem).await;
    for number in 0..20 {
        create(&client, CONFIG_MAPS, config_map(&format!("a{number}"))).await;
    }
    assert_eq!(webhook.connections.load(Ordering::Relaxed), 1);
    server.shutdown().await;
}

#[tokio::test]
async fn certificate_of_another_authority_is_refused() {
    let webhook = Webhook::named("hook.default.svc");
    let (server, client) = start(&webhook, &Webhook::named("x").ca_pem).await;
    let message = failure(&client).await;
    let expected =
        "tls: failed to verify certificate: x509: certificate signed by unknown authority";
    assert!(message.ends_with(expected), "{message}");
    server.shutdown().await;
}

#[tokio::test]
async fn certificate_of_another_name_is_refused() {
    let webhook = Webhook::named("other.default.svc");
    let (server, client) = start(&webhook, &webhook.ca_pem).await;
    let message = failure(&client).await;
    let expected = "x509: certificate is valid for other.default.svc, not hook.default.svc";
    assert!(message.ends_with(expected), "{message}");
    server.shutdown().await;
}

#[tokio::test]
async fn response_of_100_megabytes_is_refused_while_it_is_read() {
    let mut webhook = Webhook::named("hook.default.svc");
    webhook.body = Some(Bytes::from(vec![b' '; 100 << 20]));
    let (server, client) = start(&webhook, &webhook.ca_pem).await;
    let message = failure(&client).await;
    assert!(
        message.ends_with("the response exceeds 8388608 bytes"),
        "{message}"
    );
    server.shutdown().await;
}

/// Names the folder with the authority that is a root of the system in the second run of the test.
const ROOTS_VARIABLE: &str = "BELLEROPHON_TEST_ROOTS";

/// The roots of the system are a setting of the process, so the test runs itself again.
#[tokio::test]
async fn webhook_without_a_bundle_is_trusted_by_roots_of_the_system() {
    let Some(folder) = std::env::var_os(ROOTS_VARIABLE) else {
        let folder = tempfile::tempdir().expect("a folder");
        let key = KeyPair::generate().expect("a key");
        std::fs::write(folder.path().join("key.pem"), key.serialize_pem()).expect("a file");
        let root = folder.path().join("ca.pem");
        std::fs::write(&root, Webhook::signed_by(key, "x").ca_pem).expect("a file");
        let again = std::process::Command::new(std::env::current_exe().expect("a program"))
            .arg("webhook_without_a_bundle_is_trusted_by_roots_of_the_system")
            .env(ROOTS_VARIABLE, folder.path())
            .env("SSL_CERT_FILE", root)
            .output();
        let again = again.expect("the test runs again");
        let output = String::from_utf8_lossy(&again.stdout);
        assert!(again.status.success(), "{output}");
        assert!(output.contains("1 passed"), "{output}");
        return;
    };
    let key = std::path::Path::new(&folder).join("key.pem");
    let key = std::fs::read_to_string(key).expect("a file");
    let key = KeyPair::from_pem(&key).expect("a key");
    let webhook = Webhook::signed_by(key, "hook.default.svc");
    let (server, client) = start(&webhook, "").await;
    create(&client, CONFIG_MAPS, config_map("a")).await;
    server.shutdown().await;

    let unknown = Webhook::named("hook.default.svc");
    let (server, client) = start(&unknown, "").await;
    let message = failure(&client).await;
    assert!(
        message.ends_with("signed by unknown authority"),
        "{message}"
    );
    server.shutdown().await;
}
