//! APIServices of other servers: availability, requests, discovery and OpenAPI.

use std::{
    convert::Infallible,
    net::SocketAddr,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use bellerophon_apiserver::{ByteStream, Dialer, Dialing};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::Full;
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use kube::{Client, client::Body};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::{
    HandshakeKind, RootCertStore, ServerConfig,
    crypto::ring,
    pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer, pem::PemObject as _},
    server::WebPkiClientVerifier,
};
use serde_json::{Value, json};
use tokio_rustls::TlsAcceptor;

use crate::connect::backend::{Cluster, get, send, within};

const API_SERVICE: &str = "/apis/apiregistration.k8s.io/v1/apiservices/v1.ext.example.com";
const SLICES: &str = "/apis/discovery.k8s.io/v1/namespaces/ns/endpointslices";
const ROOT: &str = "/apis/ext.example.com/v1";

/// An API server with TLS behind a dialer, which trusts the front proxy of another.
#[derive(Clone, Default)]
struct Extension {
    tls: Arc<OnceLock<TlsAcceptor>>,
    requests: Arc<Mutex<Vec<(SocketAddr, http::request::Parts)>>>,
    /// The number of connections that resumed a session.
    resumed: Arc<AtomicUsize>,
}

impl std::fmt::Debug for Extension {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Extension")
    }
}

impl Extension {
    /// Starts to serve, for clients with a certificate of this authority. Returns its own
    /// authority.
    fn trust(&self, front_proxy_ca: &str) -> String {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        let ca = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let params = CertificateParams::new(["ext.ns.svc".to_owned()]).expect("a name");
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &ca).expect("a certificate");
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        let trusted = CertificateDer::from_pem_slice(front_proxy_ca.as_bytes());
        roots
            .add(trusted.expect("a certificate"))
            .expect("an authority");
        let clients = WebPkiClientVerifier::builder_with_provider(roots.into(), provider.clone());
        let key = PrivatePkcs8KeyDer::from(key.serialize_der());
        let config = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("protocols")
            .with_client_cert_verifier(clients.build().expect("a verifier"))
            .with_single_cert(vec![certificate.der().clone()], PrivateKeyDer::Pkcs8(key))
            .expect("a configuration");
        let acceptor = TlsAcceptor::from(Arc::new(config));
        assert!(self.tls.set(acceptor).is_ok());
        ca.pem()
    }

    fn answer(&self, address: SocketAddr, request: Request<Incoming>) -> Response<Full<Bytes>> {
        let (head, _) = request.into_parts();
        let document = match head.uri.path() {
            ROOT => json!({
                "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": "ext.example.com/v1",
                "resources": [{"name": "things", "singularName": "thing", "namespaced": true, "kind": "Thing", "verbs": ["get", "list"]}],
            }),
            "/openapi/v3" => json!({"paths": {
                "apis/ext.example.com/v1": {"serverRelativeURL": "/openapi/v3/apis/ext.example.com/v1?hash=1"},
            }}),
            "/openapi/v2" => json!({
                "paths": {
                    format!("{ROOT}/things"): {"get": {"operationId": "listThings", "responses": {
                        "200": {"schema": {"$ref": "#/definitions/com.example.ext.v1.Thing"}},
                    }}},
                    "/version": {"get": {"operationId": "getOtherVersion"}},
                },
                "definitions": {"com.example.ext.v1.Thing": {"type": "object"}},
            }),
            path => json!({"path": path}),
        };
        self.requests
            .lock()
            .expect("no panic")
            .push((address, head));
        Response::new(Full::from(document.to_string()))
    }

    /// The headers of the last request to a path.
    fn headers_of(&self, path: &str) -> http::HeaderMap {
        let requests = self.requests.lock().expect("no panic");
        let mut newest = requests.iter().rev();
        let (address, head) = newest
            .find(|(_, head)| head.uri.path() == path)
            .expect("a request");
        assert_eq!(address.to_string(), "10.1.0.9:8443");
        head.headers.clone()
    }
}

impl Dialer for Extension {
    fn dial(&self, address: SocketAddr) -> Dialing<'_> {
        let (near, far) = tokio::io::duplex(16 << 10);
        let extension = self.clone();
        tokio::spawn(async move {
            let tls = extension.tls.get().expect("it serves").clone();
            // A handshake that fails is what some tests are about.
            let Ok(stream) = tls.accept(far).await else {
                return;
            };
            if stream.get_ref().1.handshake_kind() == Some(HandshakeKind::Resumed) {
                extension.resumed.fetch_add(1, Ordering::Relaxed);
            }
            let service = service_fn(move |request| {
                let response = extension.answer(address, request);
                async { Ok::<_, Infallible>(response) }
            });
            let serving = http1::Builder::new().serve_connection(TokioIo::new(stream), service);
            let _cut = serving.await;
        });
        Box::pin(async { Ok(Box::new(near) as Box<dyn ByteStream>) })
    }
}

async fn read(client: &Client, path: &str) -> Value {
    let answer = send(client, get(path)).await;
    serde_json::from_str(&answer.text).unwrap_or_default()
}

/// Waits until the condition `Available` has this reason, and returns its message.
async fn available(cluster: &Cluster, reason: &str) -> String {
    within(async {
        loop {
            let found = read(&cluster.in_process, API_SERVICE).await;
            let condition = &found["status"]["conditions"][0];
            if condition["reason"] == reason {
                return condition["message"].as_str().unwrap_or_default().to_owned();
            }
            tokio::task::yield_now().await;
        }
    })
    .await
}

/// The authority of the front proxy, as other servers find it.
async fn front_proxy_ca(cluster: &Cluster) -> String {
    let path = "/api/v1/namespaces/kube-system/configmaps/extension-apiserver-authentication";
    let map = read(&cluster.in_process, path).await;
    assert_eq!(
        map["data"]["requestheader-username-headers"],
        "[\"X-Remote-User\"]"
    );
    let ca = map["data"]["requestheader-client-ca-file"].as_str();
    ca.expect("an authority").to_owned()
}

async fn register(cluster: &Cluster, spec: Value) {
    let mut spec = spec;
    spec["group"] = "ext.example.com".into();
    spec["version"] = "v1".into();
    spec["groupPriorityMinimum"] = 2000.into();
    spec["versionPriority"] = 10.into();
    spec["service"] = json!({"namespace": "ns", "name": "ext"});
    let api_service = json!({"metadata": {"name": "v1.ext.example.com"}, "spec": spec});
    let collection = API_SERVICE.trim_end_matches("/v1.ext.example.com");
    cluster.make(collection, api_service).await;
}

async fn make_service(cluster: &Cluster, port: u16) {
    let service = json!({
        "metadata": {"name": "ext"},
        "spec": {"ports": [{"name": "https", "port": port}]},
    });
    cluster
        .make("/api/v1/namespaces/ns/services", service)
        .await;
}

async fn make_endpoints(cluster: &Cluster, ready: bool) {
    let slice = json!({
        "metadata": {"name": "ext", "labels": {"kubernetes.io/service-name": "ext"}},
        "addressType": "IPv4",
        "endpoints": [{"addresses": ["10.1.0.9"], "conditions": {"ready": ready}}],
        "ports": [{"name": "https", "port": 8443}],
    });
    cluster.make(SLICES, slice).await;
}

async fn delete(cluster: &Cluster, path: &str) {
    let request = Request::delete(path).body(Body::empty());
    let answer = send(&cluster.in_process, request.expect("a request")).await;
    assert_eq!(answer.code, 200, "{path}: {}", answer.text);
}

#[tokio::test]
async fn registered_server_serves_its_group() {
    let extension = Extension::default();
    let cluster = Cluster::start(extension.clone()).await;
    let ca = extension.trust(&front_proxy_ca(&cluster).await);
    make_service(&cluster, 443).await;
    make_endpoints(&cluster, true).await;
    register(&cluster, json!({"caBundle": BASE64_STANDARD.encode(ca)})).await;
    assert_eq!(available(&cluster, "Passed").await, "all checks passed");
    for client in cluster.both() {
        let path = format!("{ROOT}/namespaces/ns/things/a");
        let answer = send(client, get(&path)).await;
        assert_eq!(answer.text, json!({"path": path}).to_string());
        let headers = extension.headers_of(&path);
        assert_eq!(headers["x-remote-user"], "admin");
        let mut groups = headers.get_all("x-remote-group").iter();
        assert!(groups.any(|group| group == "system:masters"));
        assert!(!headers.contains_key("authorization"));
        assert_eq!(headers["host"], "10.1.0.9:8443");

        let list = read(client, ROOT).await;
        assert_eq!(list["resources"][0]["name"], "things");
        let groups = read(client, "/apis").await;
        let mut groups = groups["groups"].as_array().expect("a list").iter();
        assert!(groups.any(|group| group["name"] == "ext.example.com"));
        let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
        let request = Request::get("/apis").header("accept", accept);
        let all = send(client, request.body(Body::empty()).expect("a request")).await;
        let all: Value = serde_json::from_str(&all.text).expect("JSON");
        let mut groups = all["items"].as_array().expect("a list").iter();
        let group = groups.find(|group| group["metadata"]["name"] == "ext.example.com");
        let version = &group.expect("it is listed")["versions"][0];
        assert_eq!(version["freshness"], "Current");
        assert_eq!(version["resources"][0]["resource"], "things");
        let index = read(client, "/openapi/v3").await;
        let url = &index["paths"]["apis/ext.example.com/v1"]["serverRelativeURL"];
        assert_eq!(url, "/openapi/v3/apis/ext.example.com/v1?hash=1");
        let document = read(client, url.as_str().expect("a URL")).await;
        assert_eq!(document["path"], "/openapi/v3/apis/ext.example.com/v1");
        let document = read(client, "/openapi/v2").await;
        let operation = &document["paths"][format!("{ROOT}/things")]["get"];
        assert_eq!(operation["operationId"], "listThings");
        let definition = &document["definitions"]["com.example.ext.v1.Thing"];
        assert_eq!(*definition, json!({"type": "object"}));
        let version = &document["paths"]["/version/"]["get"]["operationId"];
        assert_eq!(version, "getCodeVersion");
    }
    let ann = cluster.client_of("ann");
    let answer = send(&ann, get(&format!("{ROOT}/namespaces/ns/things/a"))).await;
    assert_eq!(answer.code, 403);
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn session_of_a_server_is_resumed() {
    let extension = Extension::default();
    let cluster = Cluster::start(extension.clone()).await;
    let ca = extension.trust(&front_proxy_ca(&cluster).await);
    make_service(&cluster, 443).await;
    make_endpoints(&cluster, true).await;
    register(&cluster, json!({"caBundle": BASE64_STANDARD.encode(ca)})).await;
    available(&cluster, "Passed").await;
    let before = extension.resumed.load(Ordering::Relaxed);
    let answer = send(&cluster.in_process, get(ROOT)).await;
    assert_eq!(answer.code, 200);
    assert!(extension.resumed.load(Ordering::Relaxed) > before);
    cluster.server.shutdown().await;
}

#[tokio::test(start_paused = true)]
async fn documents_are_read_every_minute_and_checks_made_twice() {
    let extension = Extension::default();
    let cluster = Cluster::start(extension.clone()).await;
    let ca = extension.trust(&front_proxy_ca(&cluster).await);
    make_service(&cluster, 443).await;
    make_endpoints(&cluster, true).await;
    register(&cluster, json!({"caBundle": BASE64_STANDARD.encode(ca)})).await;
    available(&cluster, "Passed").await;
    tokio::time::sleep(Duration::from_secs(10)).await;
    extension.requests.lock().expect("no panic").clear();
    tokio::time::sleep(Duration::from_secs(600)).await;
    let count = |path: &str| {
        let requests = extension.requests.lock().expect("no panic");
        let of_path = requests.iter().filter(|(_, head)| head.uri.path() == path);
        of_path.count()
    };
    // The server has no aggregated discovery, so every reading includes the root.
    assert_eq!(count("/openapi/v3"), 10);
    assert_eq!(count(ROOT), 30);
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn condition_states_what_is_missing() {
    let extension = Extension::default();
    let cluster = Cluster::start(extension.clone()).await;
    extension.trust(&front_proxy_ca(&cluster).await);
    register(&cluster, json!({"insecureSkipTLSVerify": true})).await;
    let message = available(&cluster, "ServiceNotFound").await;
    assert_eq!(message, "service/ext in \"ns\" is not present");
    let answer = send(&cluster.in_process, get(ROOT)).await;
    assert_eq!(answer.code, 503);
    assert_eq!(answer.text, "service unavailable\n");
    make_service(&cluster, 80).await;
    let message = available(&cluster, "ServicePortError").await;
    assert_eq!(
        message,
        "service/ext in \"ns\" is not listening on port 443"
    );
    delete(&cluster, "/api/v1/namespaces/ns/services/ext").await;
    make_service(&cluster, 443).await;
    let message = available(&cluster, "EndpointsNotFound").await;
    assert_eq!(
        message,
        "cannot find endpointslices for service/ext in \"ns\""
    );
    make_endpoints(&cluster, false).await;
    let message = available(&cluster, "MissingEndpoints").await;
    let expected =
        "endpointslices for service/ext in \"ns\" have no addresses with port name \"https\"";
    assert_eq!(message, expected);
    delete(&cluster, &format!("{SLICES}/ext")).await;
    make_endpoints(&cluster, true).await;
    available(&cluster, "Passed").await;
    delete(&cluster, API_SERVICE).await;
    let answer = send(&cluster.in_process, get(ROOT)).await;
    assert_eq!(answer.code, 404);
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn certificate_of_an_unknown_authority_is_refused() {
    let extension = Extension::default();
    let cluster = Cluster::start(extension.clone()).await;
    let front_proxy = front_proxy_ca(&cluster).await;
    extension.trust(&front_proxy);
    make_service(&cluster, 443).await;
    make_endpoints(&cluster, true).await;
    let bundle = BASE64_STANDARD.encode(front_proxy);
    register(&cluster, json!({"caBundle": bundle})).await;
    let message = available(&cluster, "FailedDiscoveryCheck").await;
    let begin = format!("failing or missing response from https://10.1.0.9:8443{ROOT}: ");
    assert!(message.starts_with(&begin), "{message}");
    assert!(message.contains("invalid peer certificate"), "{message}");
    cluster.server.shutdown().await;
}
