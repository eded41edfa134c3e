//! API aggregation: versions of groups that other servers serve.
//! In: APIServices with a `spec.service`, Services and EndpointSlices. Out: proxied requests, the
//! condition `Available`, and the discovery and OpenAPI documents of those servers.
//!
//! Guarantees: a request is passed on from the moment the write of its APIService is answered;
//! while the APIService is not available, it is answered 503. The client is authenticated and
//! authorized here; the server behind the Service gets its identity in the headers of a front
//! proxy, on a connection with the client certificate of the front proxy.

mod availability; // the condition of an APIService
mod controller; // checks that are repeated
mod documents; // discovery and OpenAPI of other servers
pub(crate) mod front_proxy;
mod swagger; // their OpenAPI v2 // the identity of this server, and of the users it speaks for

pub(crate) use front_proxy::FrontProxy;

use std::sync::Arc;

use http::{Response, StatusCode};

use crate::{
    api::Api,
    connect::{ConnectRequest, Connector, Location, RequestBody, Scheme},
    http::{body::Body, response::text_response, route::percent_decode},
    json_ext::JsonExt as _,
    object::Object,
    registry::RemoteVersion,
    store::{ObjectKey, Range, Scope},
};

const GROUP: &str = "apiregistration.k8s.io";
const PLURAL: &str = "apiservices";

/// The label that names the Service of an EndpointSlice.
const SERVICE_NAME: &str = "kubernetes.io/service-name";

/// Passes on requests to other API servers.
#[derive(Debug)]
pub(crate) struct Aggregator {
    front_proxy: FrontProxy,
}

impl Aggregator {
    pub(crate) fn new(front_proxy: FrontProxy) -> Self {
        Self { front_proxy }
    }

    /// Passes on a request to the server of a version of a group. Mirrors `proxyHandler.ServeHTTP`.
    pub(crate) async fn proxy(
        &self,
        connector: &Connector,
        request: &ConnectRequest<'_>,
        remote: &RemoteVersion,
        body: RequestBody,
    ) -> Response<Body> {
        let unavailable = |why: &str| {
            let text = format!("{why}\n");
            text_response(StatusCode::SERVICE_UNAVAILABLE, text)
        };
        if !remote.available {
            return unavailable("service unavailable");
        }
        let uri = &request.head.uri;
        let location = match self.location(request.api, remote, uri.path()) {
            Ok(location) => location,
            Err(why) => {
                let api_service = remote.api_service();
                tracing::debug!(%api_service, %why, "cannot resolve the Service");
                return unavailable("service unavailable");
            }
        };
        let location = Location {
            query: uri.query().unwrap_or_default().to_owned(),
            ..location
        };
        let identity = front_proxy::identity_headers(request.user);
        let delegated = connector.delegate(request, &location, identity, body).await;
        delegated.unwrap_or_else(|error| {
            let status = error.to_status();
            unavailable(status["message"].as_str().unwrap_or_default())
        })
    }

    /// A path of the server of a version of a group.
    fn location(&self, api: &Api, remote: &RemoteVersion, path: &str) -> Result<Location, String> {
        let (ip, port) = resolve_endpoint(api, remote)?;
        Ok(Location {
            scheme: Scheme::Https,
            ip,
            port: port.to_string(),
            path: percent_decode(path).unwrap_or_default(),
            query: String::new(),
            tls: Some(self.front_proxy.peer(remote)?),
        })
    }
}

/// A ready endpoint of the Service, chosen at random. Mirrors `ResolveEndpoint`: there is no
/// kube-proxy between this server and cluster IPs.
fn resolve_endpoint(api: &Api, remote: &RemoteVersion) -> Result<(std::net::IpAddr, i64), String> {
    let name = &remote.service;
    let service = service(api, remote).ok_or_else(|| format!("service {name:?} not found"))?;
    let kind = service.str_at("spec.type");
    if !matches!(kind, "ClusterIP" | "LoadBalancer" | "NodePort") {
        return Err(format!("unsupported service type {kind:?}"));
    }
    let missing = || format!("no service port {} found for service {name:?}", remote.port);
    let port_name = port_name(&service, remote.port).ok_or_else(missing)?;
    let endpoints: Vec<_> = endpoint_slices(api, remote)
        .iter()
        .flat_map(|slice| ready_endpoints(slice, &port_name))
        .collect();
    let chosen = api.entropy.below(endpoints.len() as u64) as usize;
    endpoints
        .get(chosen)
        .copied()
        .ok_or_else(|| format!("no endpoints available for service {name:?}"))
}

fn service(api: &Api, remote: &RemoteVersion) -> Option<Object> {
    let key = ObjectKey::new(&remote.namespace, &remote.service);
    let stored = api.store.get("/services", &key)?;
    Some(stored.encoded.decode())
}

/// The name of the port of a Service with this number.
fn port_name(service: &Object, number: i64) -> Option<String> {
    let mut ports = service.body.field("spec").list("ports").iter();
    let port = ports.find(|port| port.number("port") == number)?;
    Some(port.text("name").to_owned())
}

fn endpoint_slices(api: &Api, remote: &RemoteVersion) -> Vec<Object> {
    let range = Range::all_of(Scope::Namespace(remote.namespace.clone()));
    let listing = api
        .store
        .list("discovery.k8s.io/endpointslices", &range, None)
        .expect("the newest state is always kept");
    listing
        .objects
        .iter()
        .filter(|slice| slice.attributes.labels.get(SERVICE_NAME) == Some(&remote.service))
        .map(|slice| slice.encoded.decode())
        .collect()
}

/// The ready endpoints of a slice that serve a port.
fn ready_endpoints(slice: &Object, port_name: &str) -> Vec<(std::net::IpAddr, i64)> {
    let mut ports = slice.body.list("ports").iter();
    let port = ports.find(|port| port.text("name") == port_name && port.has("port"));
    let Some(port) = port.map(|port| port.number("port")) else {
        return Vec::new();
    };
    let endpoints = slice.body.list("endpoints").iter();
    endpoints
        .filter(|endpoint| endpoint.field("conditions").field("ready") != &serde_json::json!(false))
        .filter_map(|endpoint| endpoint.texts("addresses").next()?.parse().ok())
        .map(|ip| (ip, port))
        .collect()
}

/// Serves what APIServices register from now on.
pub(crate) fn register(api: &Api) {
    let collection = format!("{GROUP}/{PLURAL}");
    api.registry.update_remotes(|catalog| {
        // Read under the lock of the catalog, so that the last of several writers reads all
        // writes.
        let listing = api.store.list(&collection, &Range::default(), None);
        let listing = listing.expect("the newest state is always kept");
        let mut registered: Vec<RemoteVersion> = listing
            .objects
            .iter()
            .filter_map(|stored| RemoteVersion::of(&stored.encoded.decode()))
            .map(|remote| {
                let known = catalog.remote(&remote.group, &remote.version);
                remote.with_documents_of(known.map(Arc::as_ref))
            })
            .collect();
        registered.sort_by_key(|remote| (remote.group.clone(), remote.version.clone()));
        registered
    });
    api.api_services_changed.notify_one();
}
