//! What is served besides resources: health, version, metrics, schemas, keys, and the list of paths itself.
//! In: a path that is no resource. Out: a document, or 404.
//! Holds: every path listed at `/` is served here or by discovery.

pub(crate) mod guest; // pages of the program that runs the server
mod health; // whether the server is well
mod openid; // how others verify tokens
mod root; // the list of paths
pub(crate) mod version; // which Kubernetes this is

use std::{
    net::SocketAddr,
    sync::{Arc, OnceLock},
};

use http::{Method, Response, StatusCode, header};
use serde::Serialize;
use tokio_util::sync::CancellationToken;

use crate::{
    discovery::{self, Discovery, Inquiry},
    error::ApiError,
    flow_control,
    http::{
        answer::{json_response, text_response},
        body::Body,
        query::Query,
        route,
    },
    metrics::{self, Metrics},
    openapi::{self, OpenApi},
    registry::Catalog,
    service::Server,
};
use guest::Page;

/// The name that every cluster has for its API server; told to clients when there is no socket to name.
const HOME: &str = "kubernetes.default.svc";

/// Where the dumps of flow control are; they are not listed at `/`.
const FLOW_CONTROL_DUMPS: &str = "/debug/api_priority_and_fairness/";

/// What the server keeps to tell about itself.
#[derive(Debug, Default)]
pub(crate) struct Site {
    discovery: Discovery,
    pub(crate) metrics: Arc<Metrics>,
    openapi: OpenApi,
    /// Cancelled when the server stops; it is not ready from then on.
    pub(crate) stopping: CancellationToken,
    address: OnceLock<String>,
    guests: Vec<Page>,
}

impl Site {
    /// A site with these pages of others.
    pub(crate) fn with(guests: Vec<Page>) -> Self {
        Self {
            guests,
            ..Self::default()
        }
    }

    /// Tells clients that this is where the server is. The first address stays.
    pub(crate) fn reached_at(&self, address: SocketAddr) {
        self.address.get_or_init(|| address.to_string());
    }

    fn address(&self) -> &str {
        self.address.get().map_or(HOME, String::as_str)
    }

    /// A discovery document.
    ///
    /// # Errors
    /// No such group or version, or no form that the client accepts.
    pub(crate) fn discover(
        &self,
        catalog: &Arc<Catalog>,
        asked: &route::Discovery,
        head: &http::request::Parts,
    ) -> Result<Response<Body>, ApiError> {
        let inquiry = Inquiry {
            asked,
            method: &head.method,
            headers: &head.headers,
            address: self.address(),
        };
        discovery::answer(&self.discovery, catalog, &inquiry)
    }
}

/// A request for a page.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Visit<'a> {
    /// As it was sent.
    pub(crate) path: &'a str,
    pub(crate) query: &'a Query,
    pub(crate) head: &'a http::request::Parts,
}

impl Visit<'_> {
    fn accept(&self) -> String {
        crate::http::negotiate::joined(&self.head.headers, &header::ACCEPT).unwrap_or_default()
    }

    /// The pages of the real server's router take GET only.
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
pub(crate) fn answer(server: &Server, visit: &Visit<'_>) -> Result<Response<Body>, ApiError> {
    if let Some(response) = health::answer(server, visit) {
        return response;
    }
    let (catalog, headers) = (server.api.registry.catalog(), &visit.head.headers);
    match visit.path {
        "/" | "/index.html" => Ok(pretty(&root::paths(&catalog))),
        "/version" | "/version/" => visit.only_get().map(|()| pretty(&version::info())),
        "/metrics" => Ok(metrics::scrape(server, &visit.accept())),
        path if path.starts_with(FLOW_CONTROL_DUMPS) => flow_control_dump(server, visit),
        openid::CONFIGURATION => openid::configuration(server, visit),
        openid::KEYS => openid::keys(server, visit),
        "/openapi/v2" => Ok(openapi::swagger_page(
            &server.site.openapi,
            &catalog,
            headers,
        )),
        "/openapi/v3" => Ok(openapi::index(&server.site.openapi, &catalog, headers)),
        path => match path.strip_prefix("/openapi/v3/") {
            Some(path) => Ok(openapi::group_version(
                &server.site.openapi,
                &catalog,
                path,
                visit.query.get("hash"),
                headers,
            )),
            None => match server.site.guests.iter().find(|page| page.is_at(path)) {
                Some(page) => visit.only_get().map(|()| {
                    page.answer(
                        visit.head.uri.query().unwrap_or_default(),
                        server.site.stopping.clone(),
                    )
                }),
                None => Err(astray(&catalog, path)),
            },
        },
    }
}

/// The state of flow control, as text.
fn flow_control_dump(server: &Server, visit: &Visit<'_>) -> Result<Response<Body>, ApiError> {
    let name = &visit.path[FLOW_CONTROL_DUMPS.len()..];
    let details = visit
        .query
        .get("includeRequestDetails")
        .is_some_and(|value| !value.is_empty());
    let now = server.api.clock.timestamp();
    flow_control::dump(&server.api.flow_control, name, details, now)
        .map(|text| text_response(StatusCode::OK, text))
        .ok_or(ApiError::NoSuchPath)
}

/// These documents are written for people, as in the real server.
fn pretty(document: &impl Serialize) -> Response<Body> {
    json_response(
        StatusCode::OK,
        serde_json::to_vec_pretty(document)
            .expect("a document has string keys")
            .into(),
    )
}

/// What to say about a path that leads nowhere: below a built-in group the answer is a `Status`, elsewhere it is plain text.
fn astray(catalog: &Catalog, path: &str) -> ApiError {
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
            assert_eq!(astray(&catalog, path), expected, "{path}");
        }
    }
}
