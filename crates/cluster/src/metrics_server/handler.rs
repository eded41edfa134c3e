//! Responses of the metrics server.
//!
//! In: requests that the API server has authorized. Out: discovery, metrics as JSON or tables, and
//! `Status` objects. Mirrors `pkg/api` of metrics-server.

use std::sync::Arc;

use bellerophon::ObjectKey;
use bellerophon::clock::Clock;
use bellerophon::index::Index;
use bellerophon::informer::Lister;
use bytes::Bytes;
use http::header::{ACCEPT, CONTENT_TYPE};
use http::{HeaderValue, Method, Request, Response, StatusCode};
use http_body_util::Full;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube::ResourceExt;
use kube::core::{Selector, SelectorExt};
use serde_json::{Value, json};

use super::api::{
    ContainerMetrics, GROUP, Interval, NodeMetrics, PodMetrics, VERSION, resource_usage,
};
use super::table::{IncludeObject, Metrics, object, table};
use crate::label_selector;
use crate::nodes::{Kubelets, Sample};

/// Responds to requests.
pub(super) struct Handler {
    pub(super) pods: Lister<Pod>,
    pub(super) by_node_name: Index<Pod>,
    pub(super) nodes: Lister<Node>,
    pub(super) kubelets: Kubelets,
    pub(super) clock: Clock,
}

/// The response to a request that fails.
#[derive(Debug)]
struct Failure {
    code: StatusCode,
    reason: &'static str,
    message: String,
}

impl Failure {
    fn not_found(resource: &str, name: &str) -> Self {
        Self {
            code: StatusCode::NOT_FOUND,
            reason: "NotFound",
            message: format!("{resource}.{GROUP} {name:?} not found"),
        }
    }

    fn no_such_path() -> Self {
        Self {
            code: StatusCode::NOT_FOUND,
            reason: "NotFound",
            message: "the server could not find the requested resource".to_owned(),
        }
    }

    fn method_not_allowed() -> Self {
        Self {
            code: StatusCode::METHOD_NOT_ALLOWED,
            reason: "MethodNotAllowed",
            message: "the server does not allow this method on the requested resource".to_owned(),
        }
    }

    fn bad_request(message: String) -> Self {
        Self {
            code: StatusCode::BAD_REQUEST,
            reason: "BadRequest",
            message,
        }
    }
}

impl From<serde_json::Error> for Failure {
    fn from(error: serde_json::Error) -> Self {
        Self {
            code: StatusCode::INTERNAL_SERVER_ERROR,
            reason: "InternalError",
            message: error.to_string(),
        }
    }
}

/// The parameters of a request.
#[derive(Debug, Default)]
struct Options {
    labels: Selector,
    /// Field, value, and whether they must be equal.
    fields: Vec<(String, String, bool)>,
    watch: bool,
    /// `None` for JSON objects.
    table: Option<IncludeObject>,
}

impl Options {
    fn parse<B>(request: &Request<B>) -> Result<Self, Failure> {
        let mut options = Self::default();
        let mut include = IncludeObject::default();
        let query = request.uri().query().unwrap_or_default();
        for (name, value) in form_urlencoded::parse(query.as_bytes()) {
            match &*name {
                "labelSelector" => {
                    options.labels = label_selector::parse(&value).map_err(Failure::bad_request)?;
                }
                "fieldSelector" => options.fields = parse_fields(&value)?,
                "watch" => options.watch = matches!(&*value, "true" | "1"),
                "includeObject" => {
                    include = match &*value {
                        "None" => IncludeObject::None,
                        "Object" => IncludeObject::Object,
                        _ => IncludeObject::Metadata,
                    }
                }
                _ => {}
            }
        }
        options.table = wants_table(request).then_some(include);
        Ok(options)
    }

    /// Whether an object is selected.
    fn select(&self, metadata: &ObjectMeta) -> bool {
        let empty = Default::default();
        let labels = metadata.labels.as_ref().unwrap_or(&empty);
        let value = |field: &str| match field {
            "metadata.name" => metadata.name.as_deref().unwrap_or_default(),
            "metadata.namespace" => metadata.namespace.as_deref().unwrap_or_default(),
            _ => "",
        };
        let mut fields = self.fields.iter();
        self.labels.matches(labels)
            && fields.all(|(field, expected, equal)| (value(field) == expected) == *equal)
    }
}

/// Whether the first media type that the client accepts is a Table.
fn wants_table<B>(request: &Request<B>) -> bool {
    let accept = request.headers().get(ACCEPT);
    let accept = accept.and_then(|accept| accept.to_str().ok());
    let first = accept.and_then(|accept| accept.split(',').next());
    first.is_some_and(|media_type| media_type.contains("as=Table"))
}

fn parse_fields(text: &str) -> Result<Vec<(String, String, bool)>, Failure> {
    let requirements = text.split(',').filter(|it| !it.trim().is_empty());
    requirements
        .map(|requirement| {
            let (field, value, equal) = match requirement.split_once("!=") {
                Some((field, value)) => (field, value, false),
                None => {
                    let (field, value) = requirement.split_once('=').ok_or_else(|| {
                        let message =
                            format!("invalid selector: {text:?}; can't understand {requirement:?}");
                        Failure::bad_request(message)
                    })?;
                    (field, value.strip_prefix('=').unwrap_or(value), true)
                }
            };
            Ok((field.trim().to_owned(), value.trim().to_owned(), equal))
        })
        .collect()
}

impl Handler {
    pub(super) async fn respond<B>(&self, request: &Request<B>) -> Response<Full<Bytes>> {
        match self.document(request).await {
            Ok(document) => json_response(StatusCode::OK, &document),
            Err(failure) => {
                let status = json!({
                    "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
                    "message": failure.message, "reason": failure.reason,
                    "code": failure.code.as_u16(),
                });
                json_response(failure.code, &status)
            }
        }
    }

    async fn document<B>(&self, request: &Request<B>) -> Result<Value, Failure> {
        let path = request.uri().path().trim_matches('/');
        let segments: Vec<&str> = path.split('/').collect();
        let resource = match segments.as_slice() {
            ["apis"] => return Ok(aggregated_discovery()),
            ["apis", GROUP, VERSION] => return Ok(discovery()),
            ["apis", GROUP, VERSION, resource @ ..] => resource,
            _ => return Err(Failure::no_such_path()),
        };
        if request.method() != Method::GET {
            return Err(Failure::method_not_allowed());
        }
        let options = Options::parse(request)?;
        if options.watch {
            return Err(Failure::method_not_allowed());
        }
        match resource {
            ["nodes"] => list(&self.node_metrics_list(&options).await, &options),
            ["nodes", name] => single(self.node_metrics(name).await?, &options),
            ["pods"] => list(
                &self.pod_metrics_list(self.pods.list(), &options).await,
                &options,
            ),
            ["namespaces", namespace, "pods"] => {
                let pods = self.pods.in_namespace(namespace);
                list(&self.pod_metrics_list(pods, &options).await, &options)
            }
            ["namespaces", namespace, "pods", name] => {
                single(self.pod_metrics(namespace, name).await?, &options)
            }
            _ => Err(Failure::no_such_path()),
        }
    }

    async fn node_metrics_list(&self, options: &Options) -> Vec<NodeMetrics> {
        let mut nodes = self.nodes.list();
        nodes.retain(|node| options.select(&node.metadata));
        nodes.sort_by_key(|node| node.name_any());
        let mut list = Vec::with_capacity(nodes.len());
        for node in nodes {
            list.extend(self.metrics_of_node(&node).await);
        }
        list
    }

    async fn node_metrics(&self, name: &str) -> Result<NodeMetrics, Failure> {
        let missing = || Failure::not_found("nodes", name);
        let node = self.nodes.get(&ObjectKey::cluster(name));
        let node = node.ok_or_else(missing)?;
        self.metrics_of_node(&node).await.ok_or_else(missing)
    }

    /// The sum of the containers of a node; `None` if its kubelet cannot be reached.
    async fn metrics_of_node(&self, node: &Node) -> Option<NodeMetrics> {
        let name = node.name_any();
        let kubelet = self.kubelets.reachable(&name)?;
        let mut samples = vec![kubelet.idle_sample()];
        for pod in self.by_node_name.get(&name) {
            let containers = kubelet.container_usage(&pod).await;
            samples.extend(containers.into_iter().filter_map(|usage| usage.sample));
        }
        let sum = Sample::sum(samples.into_iter())?;
        Some(NodeMetrics {
            metadata: self.metadata(&node.metadata),
            interval: Interval::of(&sum),
            usage: resource_usage(&sum),
        })
    }

    async fn pod_metrics_list(
        &self,
        mut pods: Vec<Arc<Pod>>,
        options: &Options,
    ) -> Vec<PodMetrics> {
        pods.retain(|pod| options.select(&pod.metadata));
        pods.sort_by_key(|pod| (pod.namespace(), pod.name_any()));
        let mut list = Vec::with_capacity(pods.len());
        for pod in pods {
            list.extend(self.metrics_of_pod(&pod).await);
        }
        list
    }

    async fn pod_metrics(&self, namespace: &str, name: &str) -> Result<PodMetrics, Failure> {
        let key = ObjectKey::namespaced(namespace, name);
        let Some(pod) = self.pods.get(&key) else {
            return Err(Failure {
                message: format!("pods {name:?} not found"),
                ..Failure::not_found("pods", name)
            });
        };
        let missing = || Failure::not_found("pods", &format!("{namespace}/{name}"));
        self.metrics_of_pod(&pod).await.ok_or_else(missing)
    }

    /// The usage of a pod; `None` unless every running container has a sample.
    async fn metrics_of_pod(&self, pod: &Pod) -> Option<PodMetrics> {
        let node = pod.spec.as_ref()?.node_name.as_ref()?;
        let kubelet = self.kubelets.reachable(node)?;
        let running = kubelet.container_usage(pod).await;
        let mut containers = Vec::with_capacity(running.len());
        let mut samples = Vec::with_capacity(running.len());
        for usage in running {
            let sample = usage.sample?;
            samples.push(sample);
            containers.push(ContainerMetrics {
                name: usage.container.name.clone(),
                usage: resource_usage(&sample),
            });
        }
        let sum = Sample::sum(samples.into_iter())?;
        Some(PodMetrics {
            metadata: self.metadata(&pod.metadata),
            interval: Interval::of(&sum),
            containers,
        })
    }

    /// The metadata of the metrics of an object. They are as old as the response.
    fn metadata(&self, object: &ObjectMeta) -> ObjectMeta {
        ObjectMeta {
            name: object.name.clone(),
            namespace: object.namespace.clone(),
            labels: object.labels.clone(),
            creation_timestamp: Some(Time(self.clock.now())),
            ..ObjectMeta::default()
        }
    }
}

fn single<M: Metrics>(metrics: M, options: &Options) -> Result<Value, Failure> {
    Ok(match options.table {
        Some(include) => table(&[metrics], include)?,
        None => object(&metrics)?,
    })
}

fn list<M: Metrics>(metrics: &[M], options: &Options) -> Result<Value, Failure> {
    Ok(match options.table {
        Some(include) => table(metrics, include)?,
        None => json!({
            "kind": format!("{}List", M::KIND), "apiVersion": format!("{GROUP}/{VERSION}"),
            "metadata": {}, "items": serde_json::to_value(metrics)?,
        }),
    })
}

/// Name, kind and whether it is namespaced.
const RESOURCES: [(&str, &str, bool); 2] = [
    ("nodes", NodeMetrics::KIND, false),
    ("pods", PodMetrics::KIND, true),
];

const VERBS: [&str; 2] = ["get", "list"];

/// The aggregated discovery document, which the API server prefers.
fn aggregated_discovery() -> Value {
    let resources = RESOURCES.map(|(name, kind, namespaced)| {
        let scope = if namespaced { "Namespaced" } else { "Cluster" };
        json!({
            "resource": name, "singularResource": "", "scope": scope, "verbs": VERBS,
            "responseKind": {"group": GROUP, "version": VERSION, "kind": kind},
        })
    });
    let version = json!({"version": VERSION, "resources": resources, "freshness": "Current"});
    json!({
        "kind": "APIGroupDiscoveryList", "apiVersion": "apidiscovery.k8s.io/v2", "metadata": {},
        "items": [{"metadata": {"name": GROUP}, "versions": [version]}],
    })
}

fn discovery() -> Value {
    let resources = RESOURCES.map(|(name, kind, namespaced)| {
        json!({
            "name": name, "singularName": "", "namespaced": namespaced, "kind": kind,
            "verbs": VERBS,
        })
    });
    json!({
        "kind": "APIResourceList", "apiVersion": "v1",
        "groupVersion": format!("{GROUP}/{VERSION}"),
        "resources": resources,
    })
}

fn json_response(status: StatusCode, document: &Value) -> Response<Full<Bytes>> {
    let mut response = Response::new(Full::from(document.to_string()));
    *response.status_mut() = status;
    let json = HeaderValue::from_static("application/json");
    response.headers_mut().insert(CONTENT_TYPE, json);
    response
}
