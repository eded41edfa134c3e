//! The embedded API server of a thread: started by the first input, and reset after a finding.
//!
//! Guarantee: a request of [`Server::dry_run`] leaves the stored objects as they are, so that an
//! input behaves the same whatever ran before it.

use std::cell::RefCell;

use bellerophon_apiserver::{ApiServer, ApiService};
use bytes::Bytes;
use http::{HeaderMap, Method, Request, StatusCode, Uri, header};
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tokio::runtime::Runtime;
use tower::ServiceExt as _;

use super::Outcome;

pub(super) const JSON: &str = "application/json";
pub(super) const PROTOBUF: &str = "application/vnd.kubernetes.protobuf";

/// The service account without permissions.
pub(super) const ACCOUNT: &str = "system:serviceaccount:default:unprivileged";

thread_local! {
    static SERVER: RefCell<Option<Server>> = const { RefCell::new(None) };
}

/// An embedded server with a few objects.
pub(super) struct Server {
    pub(super) runtime: Runtime,
    pub(super) server: ApiServer,
    service: ApiService,
    /// A token of [`ACCOUNT`].
    pub(super) token: String,
}

/// A response.
pub(super) struct Response {
    pub(super) status: StatusCode,
    pub(super) headers: HeaderMap,
    pub(super) body: Bytes,
}

/// Calls a function with the server of this thread.
pub(super) fn with_server(call: impl FnOnce(&Server) -> Outcome) -> Outcome {
    SERVER.with_borrow_mut(|server| call(server.get_or_insert_with(Server::start)))
}

/// Discards the server of this thread: a panic may have left it in any state.
pub fn reset() {
    SERVER.set(None);
}

impl Server {
    fn start() -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .expect("a runtime starts");
        let server = runtime
            .block_on(ApiServer::builder().seed(1).start())
            .expect("a server without a socket starts");
        let mut started = Self {
            service: server.service(),
            runtime,
            server,
            token: String::new(),
        };
        for (path, object) in objects() {
            started.create(path, &object);
        }
        let path = "/api/v1/namespaces/default/serviceaccounts/unprivileged/token";
        let token = started.create(path, &json!({"spec": {}}));
        started.token = token["status"]["token"]
            .as_str()
            .expect("a token")
            .to_owned();
        started
    }

    /// Creates an object of the server's initial state.
    pub(super) fn create(&self, path: &str, object: &Value) -> Value {
        let response = self
            .send(&Method::POST, path, &HeaderMap::new(), object.to_string())
            .expect("a valid request");
        assert_eq!(response.status, 201, "{path}: {:?}", response.body);
        response.json()
    }

    /// Sends a request. Returns `None` if it is not a valid HTTP request.
    pub(super) fn send(
        &self,
        method: &Method,
        path: &str,
        headers: &HeaderMap,
        body: impl Into<Bytes>,
    ) -> Option<Response> {
        let uri = Uri::try_from(path).ok()?;
        let mut request = Request::new(Full::new(body.into()));
        *request.method_mut() = method.clone();
        *request.uri_mut() = uri;
        *request.headers_mut() = headers.clone();
        request
            .headers_mut()
            .entry(header::CONTENT_TYPE)
            .or_insert(http::HeaderValue::from_static(JSON));
        Some(self.runtime.block_on(async {
            let response = self.service.clone().oneshot(request).await;
            let (head, body) = response.expect("the service does not fail").into_parts();
            let body = body
                .collect()
                .await
                .expect("a body of a response is complete");
            Response {
                status: head.status,
                headers: head.headers,
                body: body.to_bytes(),
            }
        }))
    }

    /// Sends a write with `dryRun=All` and a content type. A query in the path is cut off.
    pub(super) fn dry_run(
        &self,
        method: &Method,
        path: &str,
        options: &str,
        content_type: &'static str,
        body: impl Into<Bytes>,
    ) -> Option<Response> {
        let path = path.split(['?', '#']).next()?;
        let path = format!("{path}?dryRun=All{options}");
        let mut headers = HeaderMap::new();
        headers.insert(
            header::CONTENT_TYPE,
            http::HeaderValue::from_static(content_type),
        );
        self.send(method, &path, &headers, body)
    }
}

impl Response {
    /// The body as JSON.
    pub(super) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).expect("the server responds with JSON")
    }

    /// The status code and, for an error, its message.
    pub(super) fn outcome(&self) -> Outcome {
        if self.status.is_success() {
            return Outcome::of(&[self.status.as_str()]);
        }
        // An error is a Status, whose message is short compared to the object in it.
        let status: Value = serde_json::from_slice(&self.body).unwrap_or_default();
        let message = status["message"].as_str().unwrap_or_default();
        let reason = status["reason"].as_str().unwrap_or_default();
        Outcome::of(&[self.status.as_str(), reason, message])
    }
}

/// The objects that targets write to, with their paths.
fn objects() -> Vec<(&'static str, Value)> {
    let container = json!({
        "name": "c", "image": "i", "env": [{"name": "e", "value": "v"}],
        "ports": [{"containerPort": 80, "protocol": "TCP"}],
        "volumeMounts": [{"name": "v", "mountPath": "/v"}],
    });
    let pod = json!({
        "containers": [container], "volumes": [{"name": "v", "emptyDir": {}}],
        "tolerations": [{"key": "k", "operator": "Exists"}],
    });
    let labels = json!({"app": "a"});
    vec![
        (
            "/api/v1/namespaces/default/serviceaccounts",
            json!({"metadata": {"name": "default"}}),
        ),
        (
            "/api/v1/namespaces/default/serviceaccounts",
            json!({"metadata": {"name": "unprivileged"}}),
        ),
        (
            "/api/v1/namespaces/default/configmaps",
            json!({"metadata": {"name": "a", "labels": labels}, "data": {"k": "v"}}),
        ),
        (
            "/api/v1/namespaces/default/pods",
            json!({"metadata": {"name": "a", "finalizers": ["example.dev/x"]}, "spec": pod}),
        ),
        (
            "/api/v1/namespaces/default/services",
            json!({"metadata": {"name": "a"}, "spec": {
                "selector": labels,
                "ports": [{"name": "h", "port": 80}, {"name": "s", "port": 443}],
            }}),
        ),
        (
            "/apis/apps/v1/namespaces/default/deployments",
            json!({"metadata": {"name": "a"}, "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            }}),
        ),
        (
            "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            crd(),
        ),
        (
            "/apis/example.dev/v1/namespaces/default/things",
            json!({
                "apiVersion": "example.dev/v1", "kind": "Thing", "metadata": {"name": "a"},
                "spec": {"keyed": [{"name": "x", "port": 1}], "set": ["x"], "atomic": [1]},
            }),
        ),
    ]
}

/// A custom resource with a list of each type and with rules.
fn crd() -> Value {
    let item = json!({
        "type": "object", "required": ["name", "port"],
        "properties": {
            "name": {"type": "string", "maxLength": 50}, "port": {"type": "integer"},
            "extra": {"type": "object", "additionalProperties": {"type": "string"}},
        },
    });
    let properties = json!({
        "keyed": {
            "type": "array", "items": item,
            "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name", "port"],
        },
        "set": {
            "type": "array", "x-kubernetes-list-type": "set", "items": {"type": "string"},
        },
        "atomic": {
            "type": "array", "x-kubernetes-list-type": "atomic", "items": {"type": "integer"},
        },
        "text": {"type": "string", "default": "x", "pattern": "^[a-z]*$"},
        "any": {"type": "object", "x-kubernetes-preserve-unknown-fields": true},
        "replicas": {
            "type": "integer", "minimum": 0,
            "x-kubernetes-validations": [{"rule": "self < 100", "message": "too many"}],
        },
    });
    let schema = json!({
        "type": "object", "properties": {"spec": {"type": "object", "properties": properties}},
    });
    json!({
        "metadata": {"name": "things.example.dev"},
        "spec": {
            "group": "example.dev", "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{
                "name": "v1", "served": true, "storage": true,
                "schema": {"openAPIV3Schema": schema},
            }],
        },
    })
}
