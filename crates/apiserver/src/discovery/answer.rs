//! Serves discovery requests.
//! Guarantees: `/api` and versions take GET only; `/apis` and groups take any method, as in
//! kube-apiserver.

use std::sync::Arc;

use bellerophon_apimachinery::error::ApiError;
use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Method, Response, StatusCode, header};

use super::{
    Discovery,
    documents::{Tagged, json},
    legacy::ApiVersions,
};
use crate::{
    http::{
        body::Body,
        negotiate::{self, Format, OBJECT_TYPES},
        response::{empty_response, written_response},
        route,
    },
    registry::Catalog,
};

/// The `as`, `g` and `v` of aggregated discovery, as they stand in a media type.
const AGGREGATED: &str = ";g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

/// A discovery request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DiscoveryRequest<'a> {
    pub(crate) route: &'a route::Discovery,
    pub(crate) method: &'a Method,
    pub(crate) headers: &'a HeaderMap,
    /// The `host:port` under which clients reach the server.
    pub(crate) address: &'a str,
    /// Whether the aggregated form is offered.
    pub(crate) aggregated: bool,
}

/// The form of the answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Shape {
    Plain(Format),
    Aggregated(Format),
}

/// Which forms a path offers, and how it refuses others.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Offer {
    aggregated: bool,
    /// The path is served by kube-apiserver's router, which compares media types first.
    routed: bool,
}

/// Answers a discovery request.
///
/// # Errors
/// No such group or version, a method the path does not take, or no form that the client accepts.
pub(crate) fn answer(
    discovery: &Discovery,
    catalog: &Arc<Catalog>,
    discovery_request: &DiscoveryRequest<'_>,
) -> Result<Response<Body>, ApiError> {
    let documents = discovery.documents(catalog);
    let accept = negotiate::joined(discovery_request.headers, &header::ACCEPT).unwrap_or_default();
    match discovery_request.route {
        route::Discovery::Core => {
            only_get(discovery_request.method)?;
            match shape(
                &accept,
                Offer {
                    aggregated: discovery_request.aggregated,
                    routed: true,
                },
            )? {
                Shape::Aggregated(format) => {
                    Ok(tagged(&documents.core, format, discovery_request.headers))
                }
                Shape::Plain(format) => Ok(plain(
                    &json(&ApiVersions::at(discovery_request.address)),
                    format,
                )),
            }
        }
        route::Discovery::Groups => match shape(
            &accept,
            Offer {
                aggregated: discovery_request.aggregated,
                routed: false,
            },
        )? {
            Shape::Aggregated(format) => {
                Ok(tagged(&documents.named, format, discovery_request.headers))
            }
            Shape::Plain(format) => Ok(plain(&documents.groups, format)),
        },
        route::Discovery::Group(group) => {
            let document = documents.group.get(group).ok_or(ApiError::NoSuchPath)?;
            document_of(
                document,
                &accept,
                Offer {
                    aggregated: false,
                    routed: false,
                },
            )
        }
        route::Discovery::Version { group, version } => {
            let Some(document) = documents.versions.get(&(group.clone(), version.clone())) else {
                let known = group.is_empty() || catalog.has_built_in_group(group);
                return Err(if known {
                    ApiError::NoSuchResource
                } else {
                    ApiError::NoSuchPath
                });
            };
            only_get(discovery_request.method)?;
            document_of(
                document,
                &accept,
                Offer {
                    aggregated: false,
                    routed: true,
                },
            )
        }
    }
}

fn only_get(method: &Method) -> Result<(), ApiError> {
    if method == Method::GET {
        Ok(())
    } else {
        Err(ApiError::MethodNotAllowed)
    }
}

fn document_of(document: &Bytes, accept: &str, offer: Offer) -> Result<Response<Body>, ApiError> {
    match shape(accept, offer)? {
        Shape::Plain(format) | Shape::Aggregated(format) => Ok(plain(document, format)),
    }
}

fn plain(document: &Bytes, format: Format) -> Response<Body> {
    written_response(StatusCode::OK, document, format)
}

fn tagged(document: &Tagged, format: Format, headers: &HeaderMap) -> Response<Body> {
    let tag = document.header();
    let mut response = if headers.get(header::IF_NONE_MATCH) == Some(&tag) {
        empty_response(StatusCode::NOT_MODIFIED)
    } else {
        let mut response = plain(&document.bytes, format);
        let media_type = format!("{}{AGGREGATED}", format.content_type());
        response.headers_mut().insert(
            header::CONTENT_TYPE,
            HeaderValue::try_from(media_type).expect("a media type is plain text"),
        );
        response
    };
    let headers = response.headers_mut();
    headers.insert(header::ETAG, tag);
    headers.insert(header::VARY, HeaderValue::from_static("Accept"));
    headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("public"));
    response
}

/// Chooses the form by the first entry of `Accept` that is on offer.
fn shape(accept: &str, offer: Offer) -> Result<Shape, ApiError> {
    let list = negotiate::ranges(accept);
    if list.is_empty() {
        return Ok(Shape::Plain(Format::Json));
    }
    let mut routed = !offer.routed;
    for range in &list {
        let format = match range.type_.as_str() {
            "application/json" | "*/*" => Format::Json,
            "application/*" if !offer.routed => Format::Json,
            "application/yaml" => Format::Yaml,
            "application/vnd.kubernetes.protobuf" => {
                routed = true;
                continue;
            }
            _ => continue,
        };
        routed = true;
        if range.parameter("as").is_empty() {
            return Ok(Shape::Plain(format));
        }
        let form = ["as", "g", "v"].map(|p| range.parameter(p));
        if offer.aggregated && form == ["APIGroupDiscoveryList", "apidiscovery.k8s.io", "v2"] {
            return Ok(Shape::Aggregated(format));
        }
    }
    if !routed {
        return Err(ApiError::NotAcceptable(OBJECT_TYPES.to_vec()));
    }
    Err(ApiError::NotAcceptableForm(format!(
        "only the following media types are accepted: {}",
        OBJECT_TYPES.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn request(
        path: &str,
        method: Method,
        headers: &[(&'static str, &str)],
    ) -> Result<Response<Body>, ApiError> {
        let route::Route::Discovery(route) = route::Route::parse(path) else {
            panic!("{path} is no discovery")
        };
        let headers: HeaderMap = headers
            .iter()
            .map(|(k, v)| {
                (
                    header::HeaderName::from_static(k),
                    HeaderValue::from_str(v).expect("sound"),
                )
            })
            .collect();
        let discovery_request = DiscoveryRequest {
            route: &route,
            method: &method,
            headers: &headers,
            address: "127.0.0.1:6443",
            aggregated: true,
        };
        answer(
            &Discovery::default(),
            &Arc::new(Catalog::default()),
            &discovery_request,
        )
    }

    fn body(response: &Response<Body>) -> Value {
        serde_json::from_slice(response.body().bytes().expect("it is known")).expect("it is JSON")
    }

    const AGGREGATED_JSON: &str =
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";

    #[test]
    fn plain_documents_name_what_is_served() {
        let group = body(&request("/apis/autoscaling", Method::PUT, &[]).expect("served"));
        assert_eq!(group["preferredVersion"]["version"], "v2");
        assert_eq!(&group["kind"], &Value::from("APIGroup"));
        assert_eq!(group["versions"].as_array().map(Vec::len), Some(2));
        let core = body(&request("/api/v1", Method::GET, &[]).expect("served"));
        assert_eq!(core.get("apiVersion"), None);
        let eviction = core["resources"]
            .as_array()
            .expect("a list")
            .iter()
            .find(|r| r["name"] == "pods/eviction")
            .expect("served");
        assert_eq!(&eviction["group"], &Value::from("policy"));
        assert_eq!(&eviction["kind"], &Value::from("Eviction"));
        assert_eq!(
            body(&request("/apis", Method::GET, &[]).expect("served"))["groups"][1]["name"],
            "apps"
        );
    }

    #[test]
    fn same_tag_is_answered_without_a_body() {
        let first = request("/apis", Method::GET, &[("accept", AGGREGATED_JSON)]).expect("served");
        assert_eq!(first.headers()["content-type"], AGGREGATED_JSON);
        assert_eq!(first.headers()["cache-control"], "public");
        assert_eq!(body(&first)["items"][1]["metadata"]["name"], "apps");
        let tag = first.headers()["etag"].to_str().expect("text");
        assert!(tag.len() == 130 && tag.starts_with('"'));
        let second = request(
            "/apis",
            Method::GET,
            &[("accept", AGGREGATED_JSON), ("if-none-match", tag)],
        )
        .expect("served");
        assert_eq!(second.status(), StatusCode::NOT_MODIFIED);
        assert_eq!(second.body().bytes(), None);
    }

    #[test]
    fn forms_are_chosen_or_refused_as_the_real_server_does() {
        let api = Offer {
            aggregated: true,
            routed: true,
        };
        let apis = Offer {
            aggregated: true,
            routed: false,
        };
        let json = Some(Shape::Plain(Format::Json));
        let beta = "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList";
        for (accept, offer, expected) in [
            ("", api, json),
            ("*/*", api, json),
            (AGGREGATED_JSON, api, Some(Shape::Aggregated(Format::Json))),
            (
                "application/json;q=0.5,application/yaml",
                apis,
                Some(Shape::Plain(Format::Yaml)),
            ),
            (beta, api, None),
            (&format!("{beta},application/json"), api, json),
            ("application/*", api, None),
            ("application/*", apis, json),
            ("text/html", api, None),
        ] {
            assert_eq!(shape(accept, offer).ok(), expected, "{accept}");
        }
        assert_eq!(
            shape("text/html", api),
            Err(ApiError::NotAcceptable(OBJECT_TYPES.to_vec()))
        );
        assert!(matches!(
            shape(beta, api),
            Err(ApiError::NotAcceptableForm(_))
        ));
        assert!(matches!(
            shape("text/html", apis),
            Err(ApiError::NotAcceptableForm(_))
        ));
    }

    #[test]
    fn unknown_groups_and_methods_are_refused() {
        for (path, method, error) in [
            (
                "/apis/nosuch.example.com",
                Method::GET,
                ApiError::NoSuchPath,
            ),
            (
                "/apis/nosuch.example.com/v1",
                Method::GET,
                ApiError::NoSuchPath,
            ),
            ("/apis/apps/v1beta1", Method::GET, ApiError::NoSuchResource),
            ("/api/v2", Method::GET, ApiError::NoSuchResource),
            ("/api", Method::POST, ApiError::MethodNotAllowed),
            ("/apis/apps/v1", Method::POST, ApiError::MethodNotAllowed),
        ] {
            assert_eq!(request(path, method, &[]).err(), Some(error), "{path}");
        }
    }
}
