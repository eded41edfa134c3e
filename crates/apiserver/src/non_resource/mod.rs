//! Non-resource endpoints: health, version, metrics, OpenAPI, token keys, and the list of paths.
//! In: a path that is no resource. Out: a document, or 404.
//! Guarantees: every path listed at `/` is served here or by discovery.

pub(crate) mod custom; // pages of the program that runs the server
mod health; // /healthz, /livez, /readyz
mod openid; // how others verify tokens
mod root; // the list of paths

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use bellerophon_apimachinery::error::ApiError;
use custom::CustomEndpoint;
use http::{Method, Response, StatusCode, header};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::{
    api::Api,
    auth::Authenticator,
    discovery::{self, Discovery, DiscoveryRequest},
    flow_control,
    http::{
        body::Body,
        query::Query,
        response::{json_response, text_response},
        route,
    },
    metrics::{self, Metrics},
    openapi::{self, OpenApi},
    registry::Catalog,
    version,
};

/// The name that every cluster has for its API server; sent to clients when there is no socket to
/// name.
const SERVICE_NAME: &str = "kubernetes.default.svc";

/// Where the dumps of flow control are; they are not listed at `/`.
const FLOW_CONTROL_DUMPS: &str = "/debug/api_priority_and_fairness/";

/// The state of the non-resource endpoints.
#[derive(Debug, Default)]
pub(crate) struct NonResourceEndpoints {
    discovery: Discovery,
    pub(crate) metrics: Arc<Metrics>,
    openapi: OpenApi,
    /// Cancelled when the server stops; it is not ready from then on.
    pub(crate) stopping: CancellationToken,
    /// Discovery is served by group and version only.
    pub(crate) without_aggregated_discovery: bool,
    address: OnceLock<String>,
    custom: Vec<CustomEndpoint>,
}

impl NonResourceEndpoints {
    /// With endpoints of others besides its own.
    pub(crate) fn with(custom: Vec<CustomEndpoint>) -> Self {
        Self {
            custom,
            ..Self::default()
        }
    }

    /// Sets the address that is published to clients. The first address is kept.
    pub(crate) fn reached_at(&self, address: SocketAddr) {
        self.address.get_or_init(|| address.to_string());
    }

    fn address(&self) -> &str {
        self.address.get().map_or(SERVICE_NAME, String::as_str)
    }

    /// A discovery document.
    ///
    /// # Errors
    /// No such group or version, or no form that the client accepts.
    pub(crate) fn discover(
        &self,
        catalog: &Arc<Catalog>,
        route: &route::Discovery,
        head: &http::request::Parts,
    ) -> Result<Response<Body>, ApiError> {
        let discovery_request = DiscoveryRequest {
            route,
            method: &head.method,
            headers: &head.headers,
            address: self.address(),
            aggregated: !self.without_aggregated_discovery,
        };
        discovery::answer(&self.discovery, catalog, &discovery_request)
    }
}

/// The state that the endpoints report.
#[derive(Clone, Copy)]
pub(crate) struct ServerState<'a> {
    pub(crate) api: &'a Api,
    pub(crate) authenticator: &'a Authenticator,
    pub(crate) endpoints: &'a NonResourceEndpoints,
}

/// A request to a non-resource endpoint.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EndpointRequest<'a> {
    /// As it was sent.
    pub(crate) path: &'a str,
    pub(crate) query: &'a Query,
    pub(crate) head: &'a http::request::Parts,
}

impl EndpointRequest<'_> {
    fn accept(&self) -> String {
        crate::http::negotiate::joined(&self.head.headers, &header::ACCEPT).unwrap_or_default()
    }

    /// The pages of kube-apiserver's router take GET only.
    fn only_get(&self) -> Result<(), ApiError> {
        if self.head.method == Method::GET {
            Ok(())
        } else {
            Err(ApiError::MethodNotAllowed)
        }
    }
}

/// Answers a request for a page.
///
/// # Errors
/// There is no such page, or not in this form.
pub(crate) fn answer(
    server: &ServerState<'_>,
    request: &EndpointRequest<'_>,
) -> Result<Response<Body>, ApiError> {
    if let Some(response) = health::answer(server, request) {
        return response;
    }
    let catalog = server.api.registry.catalog();
    let headers = &request.head.headers;
    match request.path {
        "/" | "/index.html" => Ok(pretty(&root::paths(&catalog))),
        "/version" | "/version/" => request.only_get().map(|()| pretty(&version::info())),
        "/metrics" => Ok(metrics::scrape(
            server.api,
            &server.endpoints.metrics,
            &request.accept(),
        )),
        path if path.starts_with(FLOW_CONTROL_DUMPS) => flow_control_dump(server, request),
        openid::CONFIGURATION => openid::configuration(server, request),
        openid::KEYS => openid::keys(server, request),
        "/openapi/v2" => Ok(openapi::swagger_document(
            &server.endpoints.openapi,
            &catalog,
            headers,
        )),
        "/openapi/v3" => Ok(openapi::index(&server.endpoints.openapi, &catalog, headers)),
        path => match path.strip_prefix("/openapi/v3/") {
            Some(path) => Ok(openapi::group_version(
                &server.endpoints.openapi,
                &catalog,
                path,
                request.query.get("hash"),
                headers,
            )),
            None => match server
                .endpoints
                .custom
                .iter()
                .find(|endpoint| endpoint.is_at(path))
            {
                Some(endpoint) => request.only_get().map(|()| {
                    endpoint.answer(
                        request.head.uri.query().unwrap_or_default(),
                        server.endpoints.stopping.clone(),
                    )
                }),
                None => Err(unknown_path(&catalog, path)),
            },
        },
    }
}

/// The state of flow control, as text.
fn flow_control_dump(
    server: &ServerState<'_>,
    request: &EndpointRequest<'_>,
) -> Result<Response<Body>, ApiError> {
    let name = &request.path[FLOW_CONTROL_DUMPS.len()..];
    let details = request
        .query
        .get("includeRequestDetails")
        .is_some_and(|value| !value.is_empty());
    let now = server.api.clock.timestamp();
    flow_control::dump(&server.api.flow_control, name, details, now)
        .map(|text| text_response(StatusCode::OK, text))
        .ok_or(ApiError::NoSuchPath)
}

/// These documents are indented, as in kube-apiserver.
fn pretty(document: &impl Serialize) -> Response<Body> {
    json_response(
        StatusCode::OK,
        serde_json::to_vec_pretty(document)
            .expect("a document has string keys")
            .into(),
    )
}

/// The error for a path that is not served: below a built-in group a `Status`, elsewhere plain
/// text.
fn unknown_path(catalog: &Catalog, path: &str) -> ApiError {
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    let below = match segments.as_slice() {
        ["api", rest @ ..] => rest,
        ["apis", group, rest @ ..] if catalog.has_built_in_group(group) => rest,
        _ => return ApiError::NoSuchPath,
    };
    match below {
        [_, "namespaces", "", _, ..] => {
            ApiError::BadRequest("Namespace parameter required.".into())
        }
        _ => ApiError::NoSuchResource,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn broken_paths_are_answered_by_where_they_start() {
        let catalog = Catalog::default();
        for (path, expected) in [
            ("/nosuch", ApiError::NoSuchPath),
            ("//api/v1/pods", ApiError::NoSuchPath),
            ("/apis/example.com//v1", ApiError::NoSuchPath),
            ("/api//v1/pods", ApiError::NoSuchResource),
            ("/apis/apps/v1//deployments", ApiError::NoSuchResource),
            (
                "/api/v1/namespaces//configmaps/a",
                ApiError::BadRequest("Namespace parameter required.".into()),
            ),
        ] {
            assert_eq!(unknown_path(&catalog, path), expected, "{path}");
        }
    }
}
