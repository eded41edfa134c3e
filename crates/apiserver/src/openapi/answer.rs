//! Serves OpenAPI requests.
//! Guarantees: a document requested by its hash never changes; a request with an old hash is
//! redirected to the new one.

use std::{collections::BTreeMap, sync::Arc};

use http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use serde::Serialize;

use super::{OpenApi, entries::Encoding, written::Written};
use crate::{
    http::{
        body::Body,
        negotiate,
        response::{empty_response, json_response},
    },
    registry::Catalog,
};

const JSON: &str = "application/json";
const SWAGGER_PROTOBUF: &str = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf";
/// How clients wrote it before media types had to be valid ones; kubectl up to 1.28 does.
const SWAGGER_PROTOBUF_OLD: &str = "application/com.github.proto-openapi.spec.v2@v1.0+protobuf";

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
pub(crate) fn index(
    openapi: &OpenApi,
    catalog: &Arc<Catalog>,
    headers: &HeaderMap,
) -> Response<Body> {
    let documents = openapi.documents(catalog);
    let own = documents.iter().map(|(path, document)| {
        let url = url(path, &document.written);
        (path.as_str(), Entry { url })
    });
    let remotes: Vec<_> = catalog
        .remotes()
        .filter_map(|remote| Some((remote.root(), remote.openapi_url.clone()?)))
        .collect();
    let remotes = remotes.iter().map(|(root, url)| {
        let url = url.clone();
        (root.trim_start_matches('/'), Entry { url })
    });
    let paths = own.chain(remotes).collect();
    let text = serde_json::to_vec(&Index { paths }).expect("an index has string keys");
    known_or_sent(&Written::new(text.into()), JSON, headers)
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
    let Some(document) = documents.get(path).map(|document| &*document.written) else {
        return empty_response(StatusCode::NOT_FOUND);
    };
    let accepted =
        negotiate::ranges(&negotiate::joined(headers, &header::ACCEPT).unwrap_or_default());
    let json = accepted.is_empty()
        || accepted.iter().any(|r| {
            matches!(
                r.type_.as_str(),
                "application/json" | "application/*" | "*/*"
            )
        });
    let mut response = match hash.filter(|hash| !hash.is_empty()) {
        _ if !json => empty_response(StatusCode::NOT_ACCEPTABLE),
        Some(hash) if hash != document.tag() => moved(&url(path, document)),
        Some(_) => {
            let mut response = known_or_sent(document, JSON, headers);
            response.headers_mut().insert(
                header::CACHE_CONTROL,
                HeaderValue::from_static("public, immutable"),
            );
            response
        }
        None => known_or_sent(document, JSON, headers),
    };
    response
        .headers_mut()
        .append(header::VARY, HeaderValue::from_static("Accept"));
    response
}

/// `/openapi/v2`.
pub(crate) fn swagger_document(
    openapi: &OpenApi,
    catalog: &Arc<Catalog>,
    headers: &HeaderMap,
) -> Response<Body> {
    let mut response = match swagger_encoding(headers) {
        Some(Encoding::Json) => known_or_sent(&openapi.json.of(catalog), JSON, headers),
        Some(Encoding::Protobuf) => {
            known_or_sent(&openapi.protobuf.of(catalog), SWAGGER_PROTOBUF, headers)
        }
        None => empty_response(StatusCode::NOT_ACCEPTABLE),
    };
    response
        .headers_mut()
        .insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
    response
        .headers_mut()
        .append(header::VARY, HeaderValue::from_static("Accept"));
    response
}

/// The first of what the client accepts that there is.
fn swagger_encoding(headers: &HeaderMap) -> Option<Encoding> {
    let accepted = negotiate::joined(headers, &header::ACCEPT).unwrap_or_default();
    if accepted.is_empty() {
        return Some(Encoding::Json);
    }
    negotiate::ranges(&accepted)
        .iter()
        .find_map(|range| match range.type_.as_str() {
            JSON | "application/*" | "*/*" => Some(Encoding::Json),
            SWAGGER_PROTOBUF | SWAGGER_PROTOBUF_OLD => Some(Encoding::Protobuf),
            _ => None,
        })
}

/// The address under which a document never changes.
fn url(path: &str, document: &Written) -> String {
    format!("/openapi/v3/{path}?hash={}", document.tag())
}

fn moved(to: &str) -> Response<Body> {
    let mut response = empty_response(StatusCode::MOVED_PERMANENTLY);
    response.headers_mut().insert(
        header::LOCATION,
        HeaderValue::try_from(to).expect("paths of served groups are plain text"),
    );
    response
}

/// The document, or nothing when the client has it already.
fn known_or_sent(
    document: &Written,
    content_type: &'static str,
    headers: &HeaderMap,
) -> Response<Body> {
    let mut response = if is_known(document.tag(), headers) {
        empty_response(StatusCode::NOT_MODIFIED)
    } else {
        let unpacks = negotiate::joined(headers, &header::ACCEPT_ENCODING)
            .is_some_and(|e| e.contains("gzip"));
        let packed = if unpacks { document.packed() } else { None };
        let mut response =
            json_response(StatusCode::OK, packed.unwrap_or(document.bytes()).clone());
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(content_type));
        if packed.is_some() {
            headers.insert(header::CONTENT_ENCODING, HeaderValue::from_static("gzip"));
            headers.insert(header::VARY, HeaderValue::from_static("Accept-Encoding"));
        }
        response
    };
    response
        .headers_mut()
        .insert(header::ETAG, document.header());
    response
}

/// Whether `If-None-Match` has the tag of the document.
fn is_known(tag: &str, headers: &HeaderMap) -> bool {
    let known = negotiate::joined(headers, &header::IF_NONE_MATCH).unwrap_or_default();
    known
        .split(',')
        .map(|known| known.trim().trim_start_matches("W/"))
        .any(|known| known == "*" || known.trim_matches('"') == tag)
}

#[cfg(test)]
mod tests {
    use serde_json::Value;

    use super::*;

    fn request(path: &str, hash: Option<&str>, headers: &HeaderMap) -> Response<Body> {
        group_version(&OpenApi::default(), &Arc::default(), path, hash, headers)
    }

    fn with(name: header::HeaderName, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(name, HeaderValue::from_str(value).expect("plain text"))])
    }

    #[test]
    fn index_has_hashes_of_immutable_documents() {
        let openapi = OpenApi::default();
        let catalog = Arc::default();
        let index = index(&openapi, &catalog, &HeaderMap::new());
        let index: Value =
            serde_json::from_slice(index.body().bytes().expect("it is known")).expect("it is JSON");
        let url = index["paths"]["apis/policy/v1"]["serverRelativeURL"]
            .as_str()
            .expect("it is served");
        let hash = url
            .strip_prefix("/openapi/v3/apis/policy/v1?hash=")
            .expect("it carries its hash");
        let right = group_version(
            &openapi,
            &catalog,
            "apis/policy/v1",
            Some(hash),
            &HeaderMap::new(),
        );
        assert_eq!(right.status(), StatusCode::OK);
        assert_eq!(
            &right.headers()["cache-control"],
            &HeaderValue::from_static("public, immutable")
        );
        let response = group_version(
            &openapi,
            &catalog,
            "apis/policy/v1",
            Some("0"),
            &HeaderMap::new(),
        );
        assert_eq!(response.status(), StatusCode::MOVED_PERMANENTLY);
        assert_eq!(response.headers()["location"].to_str().ok(), Some(url));
        let known =
            HeaderMap::from_iter([(header::IF_NONE_MATCH, right.headers()["etag"].clone())]);
        assert_eq!(
            group_version(&openapi, &catalog, "apis/policy/v1", None, &known).status(),
            StatusCode::NOT_MODIFIED
        );
    }

    #[test]
    fn unknown_documents_and_forms_have_no_body() {
        let protobuf = with(header::ACCEPT, "application/protobuf");
        for (path, headers, status) in [
            ("apis/nosuch/v1", HeaderMap::new(), StatusCode::NOT_FOUND),
            ("apis/policy/v1", protobuf, StatusCode::NOT_ACCEPTABLE),
        ] {
            let response = request(path, None, &headers);
            assert_eq!(response.status(), status, "{path}");
            assert_eq!(response.body().bytes(), None, "{path}");
            assert!(!response.headers().contains_key("content-type"));
        }
    }

    #[test]
    fn swagger_is_sent_in_the_first_accepted_form() {
        let openapi = OpenApi::default();
        let catalog = Arc::default();
        for (accept, wanted) in [
            ("", Some(JSON)),
            ("*/*", Some(JSON)),
            ("application/json", Some(JSON)),
            ("text/html,application/*;q=0.5", Some(JSON)),
            (SWAGGER_PROTOBUF, Some(SWAGGER_PROTOBUF)),
            (SWAGGER_PROTOBUF_OLD, Some(SWAGGER_PROTOBUF)),
            (
                "application/json;q=0.5,application/com.github.proto-openapi.spec.v2@v1.0+protobuf",
                Some(SWAGGER_PROTOBUF),
            ),
            ("application/yaml", None),
        ] {
            let response = swagger_document(&openapi, &catalog, &with(header::ACCEPT, accept));
            let content_type = response
                .headers()
                .get("content-type")
                .map(|value| value.to_str().expect("plain text"));
            assert_eq!(content_type, wanted, "{accept}");
            assert_eq!(
                response.status() == StatusCode::OK,
                wanted.is_some(),
                "{accept}"
            );
            assert_eq!(
                response
                    .headers()
                    .get_all("vary")
                    .iter()
                    .collect::<Vec<_>>(),
                ["Accept-Encoding", "Accept"]
            );
        }
    }

    #[test]
    fn client_that_has_the_document_gets_no_other() {
        let openapi = OpenApi::default();
        let catalog = Arc::default();
        let first = swagger_document(&openapi, &catalog, &HeaderMap::new());
        let tag = first.headers()["etag"]
            .to_str()
            .expect("plain text")
            .to_owned();
        for (known, status) in [
            (tag.clone(), StatusCode::NOT_MODIFIED),
            (format!("\"x\", W/{tag}"), StatusCode::NOT_MODIFIED),
            ("*".to_owned(), StatusCode::NOT_MODIFIED),
            ("\"x\"".to_owned(), StatusCode::OK),
        ] {
            assert_eq!(
                swagger_document(&openapi, &catalog, &with(header::IF_NONE_MATCH, &known)).status(),
                status,
                "{known}"
            );
        }
        let packed = swagger_document(&openapi, &catalog, &with(header::ACCEPT_ENCODING, "gzip"));
        assert_eq!(
            packed.headers()["content-encoding"].to_str().ok(),
            Some("gzip")
        );
        assert_eq!(packed.headers()["etag"].to_str().ok(), Some(&*tag));
        let size = |response: &Response<Body>| response.body().bytes().map_or(0, bytes::Bytes::len);
        assert!(
            size(&packed) * 4 < size(&first),
            "{} of {}",
            size(&packed),
            size(&first)
        );
    }
}
