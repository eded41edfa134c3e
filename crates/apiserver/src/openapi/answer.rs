//! From a request to an OpenAPI document.
//! Holds: a document asked for by its hash never changes, and one asked for by an old hash is found under its new one.

use std::{collections::BTreeMap, sync::Arc};

use bytes::Bytes;
use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde::Serialize;

use super::{OpenApi, swagger};
use crate::{
    discovery::Tagged,
    http::{
        answer::{compress, empty_response, json_response},
        body::Body,
        negotiate,
    },
    registry::Catalog,
};

const SWAGGER_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";

/// `/openapi/v3`: where the documents are.
#[derive(Serialize)]
struct Index<'a> {
    paths: BTreeMap<&'a str, Entry>,
}

#[derive(Serialize)]
struct Entry {
    #[serde(rename = "serverRelativeURL")]
    url: String,
}

/// The list of documents.
pub(crate) fn index(openapi: &OpenApi, catalog: &Arc<Catalog>, headers: &HeaderMap) -> Response<Body> {
    let documents = openapi.documents(catalog);
    let paths = documents.iter().map(|(path, document)| (path.as_str(), Entry { url: url(path, &document.text) })).collect();
    let text = serde_json::to_vec(&Index { paths }).expect("an index has string keys");
    known_or_sent(&Tagged::new(text.into()), headers)
}

/// One document; `hash` is the one its address carried.
pub(crate) fn group_version(
    openapi: &OpenApi,
    catalog: &Arc<Catalog>,
    path: &str,
    hash: Option<&str>,
    headers: &HeaderMap,
) -> Response<Body> {
    let documents = openapi.documents(catalog);
    let Some(document) = documents.get(path) else { return empty_response(StatusCode::NOT_FOUND) };
    let accepted = negotiate::ranges(&negotiate::joined(headers, &header::ACCEPT).unwrap_or_default());
    let json = accepted.is_empty() || accepted.iter().any(|r| matches!(r.type_.as_str(), "application/json" | "application/*" | "*/*"));
    let mut response = match hash.filter(|hash| !hash.is_empty()) {
        _ if !json => empty_response(StatusCode::NOT_ACCEPTABLE),
        Some(hash) if hash != document.text.tag => moved(&url(path, &document.text)),
        Some(_) => {
            let mut response = known_or_sent(&document.text, headers);
            response.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("public, immutable"));
            response
        }
        None => known_or_sent(&document.text, headers),
    };
    response.headers_mut().append(header::VARY, HeaderValue::from_static("Accept"));
    response
}

/// `/openapi/v2`.
pub(crate) fn swagger_page(headers: &HeaderMap) -> Response<Body> {
    let accepted = negotiate::ranges(&negotiate::joined(headers, &header::ACCEPT).unwrap_or_default());
    let protobuf = accepted.first().is_some_and(|r| r.type_.starts_with("application/com.github.proto-openapi.spec.v2"));
    let mut response = if protobuf {
        let mut response = json_response(StatusCode::OK, swagger::protobuf().into());
        response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(SWAGGER_PROTOBUF));
        response
    } else {
        json_response(StatusCode::OK, swagger::json().into())
    };
    for value in ["Accept-Encoding", "Accept"] {
        response.headers_mut().append(header::VARY, HeaderValue::from_static(value));
    }
    response
}

/// The address under which a document never changes.
fn url(path: &str, document: &Tagged) -> String {
    format!("/openapi/v3/{path}?hash={}", document.tag)
}

fn moved(to: &str) -> Response<Body> {
    let mut response = empty_response(StatusCode::MOVED_PERMANENTLY);
    response.headers_mut().insert(header::LOCATION, HeaderValue::try_from(to).expect("paths of served groups are plain text"));
    response
}

/// The document, or nothing when the client has it already.
fn known_or_sent(document: &Tagged, headers: &HeaderMap) -> Response<Body> {
    let tag = document.header();
    let mut response = if headers.get(header::IF_NONE_MATCH) == Some(&tag) {
        empty_response(StatusCode::NOT_MODIFIED)
    } else {
        let mut response = json_response(StatusCode::OK, Bytes::clone(&document.bytes));
        if negotiate::joined(headers, &header::ACCEPT_ENCODING).is_some_and(|e| e.contains("gzip")) {
            compress(&mut response);
        }
        response
    };
    response.headers_mut().insert(header::ETAG, tag);
    response
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn ask(path: &str, hash: Option<&str>, headers: &HeaderMap) -> Response<Body> {
        group_version(&OpenApi::default(), &Arc::default(), path, hash, headers)
    }

    #[test]
    fn index_leads_to_documents_that_never_change() {
        let openapi = OpenApi::default();
        let catalog = Arc::default();
        let index = index(&openapi, &catalog, &HeaderMap::new());
        let index: Value = serde_json::from_slice(index.body().bytes().expect("it is known")).expect("it is JSON");
        let url = index["paths"]["apis/policy/v1"]["serverRelativeURL"].as_str().expect("it is served");
        let hash = url.strip_prefix("/openapi/v3/apis/policy/v1?hash=").expect("it carries its hash");
        let right = group_version(&openapi, &catalog, "apis/policy/v1", Some(hash), &HeaderMap::new());
        assert_eq!((right.status(), &right.headers()["cache-control"]), (StatusCode::OK, &HeaderValue::from_static("public, immutable")));
        let wrong = group_version(&openapi, &catalog, "apis/policy/v1", Some("0"), &HeaderMap::new());
        assert_eq!((wrong.status(), wrong.headers()["location"].to_str().ok()), (StatusCode::MOVED_PERMANENTLY, Some(url)));
        let known = HeaderMap::from_iter([(header::IF_NONE_MATCH, right.headers()["etag"].clone())]);
        assert_eq!(group_version(&openapi, &catalog, "apis/policy/v1", None, &known).status(), StatusCode::NOT_MODIFIED);
    }

    #[test]
    fn unknown_documents_and_forms_have_no_body() {
        let protobuf = HeaderMap::from_iter([(header::ACCEPT, HeaderValue::from_static("application/protobuf"))]);
        for (path, headers, status) in
            [("apis/nosuch/v1", HeaderMap::new(), StatusCode::NOT_FOUND), ("apis/policy/v1", protobuf, StatusCode::NOT_ACCEPTABLE)]
        {
            let response = ask(path, None, &headers);
            assert_eq!((response.status(), response.body().bytes()), (status, None), "{path}");
            assert!(!response.headers().contains_key("content-type"));
        }
    }
}
