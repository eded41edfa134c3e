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

use bellerophon_storage::Range;
use http::{Response, StatusCode};

use crate::{
    api::Api,
    connect::{ConnectRequest, Connector, Location, RequestBody, Scheme},
    endpoints::ready_endpoint,
    http::{body::Body, response::text_response, route::percent_decode},
    registry::RemoteVersion,
};

const GROUP: &str = "apiregistration.k8s.io";
const PLURAL: &str = "apiservices";

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
        let (ip, port) = ready_endpoint(api, &remote.namespace, &remote.service, remote.port)?;
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
