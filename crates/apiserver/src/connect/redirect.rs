//! Redirects of webhooks, as Go's HTTP client follows them.
//! In: a request and its response. Out: the next request, if there is one.
//! Mirrors `redirectBehavior` and `defaultCheckRedirect` of `net/http`.

use bytes::Bytes;
use http::{Method, Response, header};

use crate::webhook_client::{Scheme, WebhookAddress, WebhookRequest, clean_path, split_authority};

/// Requests that are sent for one call, the first included.
pub(super) const REQUESTS_MAX: usize = 10;

/// The error of a call that is redirected once more.
pub(super) const TOO_MANY: &str = "stopped after 10 redirects";

/// The request that a response redirects to; `None` if the response is the last one.
///
/// # Errors
/// A `Location` that is no URL of a server.
pub(super) fn next(
    request: &WebhookRequest,
    response: &Response<Bytes>,
) -> Result<Option<WebhookRequest>, String> {
    let keeps_body = match response.status().as_u16() {
        301..=303 => false,
        307 | 308 => true,
        _ => return Ok(None),
    };
    let Some(location) = response.headers().get(header::LOCATION) else {
        return Ok(None);
    };
    let location = String::from_utf8_lossy(location.as_bytes());
    let target = Target::of(request, &location)
        .ok_or_else(|| format!("failed to parse Location header {location:?}"))?;
    let is_same_host = target.authority == request.host && target.scheme == request.scheme;
    let (address, server_name) = if is_same_host {
        (request.address.clone(), request.server_name.clone())
    } else {
        let default = target.scheme.default_port();
        let (host, port) = split_authority(&target.authority, default)
            .ok_or_else(|| format!("failed to parse Location header {location:?}"))?;
        let address = WebhookAddress::of_host(host, port);
        // The name of a Service is that of all certificates, wherever the Service redirects to.
        let server_name = match request.is_service {
            true => request.server_name.clone(),
            false => host.to_owned(),
        };
        (address, server_name)
    };
    let prefix = format!("{}://{}", target.scheme.as_str(), target.authority);
    let path = target.path_and_query.split('?').next().unwrap_or_default();
    let is_downgrade = request.scheme == Scheme::Https && target.scheme == Scheme::Http;
    Ok(Some(WebhookRequest {
        location: format!("{prefix}{}", clean_path(path)),
        url: format!("{prefix}{}", target.path_and_query),
        host: target.authority,
        scheme: target.scheme,
        server_name,
        is_service: request.is_service,
        ca_bundle: request.ca_bundle.clone(),
        address,
        method: match keeps_body || request.method == Method::GET {
            true => request.method.clone(),
            false => Method::GET,
        },
        path_and_query: target.path_and_query,
        referer: (!is_downgrade).then(|| request.url.clone()),
        body: match keeps_body {
            true => request.body.clone(),
            false => Bytes::new(),
        },
    }))
}

/// The target of a `Location`.
struct Target {
    scheme: Scheme,
    authority: String,
    path_and_query: String,
}

impl Target {
    fn of(request: &WebhookRequest, location: &str) -> Option<Self> {
        let location = location.split('#').next().unwrap_or_default();
        let (scheme, rest) = match location.split_once("://") {
            Some(("https", rest)) => (Scheme::Https, Some(rest)),
            Some(("http", rest)) => (Scheme::Http, Some(rest)),
            Some((scheme, _)) if scheme.chars().all(|c| c.is_ascii_alphanumeric()) => return None,
            _ => (request.scheme, location.strip_prefix("//")),
        };
        if let Some(rest) = rest {
            let end = rest.find(['/', '?']).unwrap_or(rest.len());
            let (authority, path) = rest.split_at(end);
            let slash = if path.starts_with('/') { "" } else { "/" };
            return (!authority.is_empty()).then(|| Self {
                scheme,
                authority: authority.to_owned(),
                path_and_query: format!("{slash}{path}"),
            });
        }
        let own = request.path_and_query.split('?').next().unwrap_or_default();
        let path_and_query = match location.chars().next() {
            Some('/') => location.to_owned(),
            None | Some('?') => format!("{own}{location}"),
            Some(_) => {
                let (path, query) = match location.split_once('?') {
                    Some((path, query)) => (path, format!("?{query}")),
                    None => (location, String::new()),
                };
                let folder = own.rsplit_once('/').map_or("", |(folder, _)| folder);
                format!("{}{query}", clean_path(&format!("{folder}/{path}")))
            }
        };
        Some(Self {
            scheme,
            authority: request.host.clone(),
            path_and_query,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::webhook_client::WebhookClient;

    fn redirected(code: u16, location: &str) -> Option<(Method, String, bool)> {
        let client = WebhookClient::of(&json!({"url": "https://127.0.0.1:9443/a/b"}));
        let address = WebhookAddress::Unresolved(String::new());
        let request = client
            .expect("a URL")
            .post(address, Some(10), Bytes::from_static(b"{}"));
        let response = Response::builder()
            .status(code)
            .header("location", location);
        let response = response.body(Bytes::new()).expect("a response");
        let next = next(&request, &response).expect("a location");
        next.map(|next| (next.method, next.url, !next.body.is_empty()))
    }

    #[test]
    fn redirects_are_followed_as_in_go() {
        for (code, location, expected) in [
            (302, "/c", Some(("GET", "https://127.0.0.1:9443/c", false))),
            (
                303,
                "c?x=1",
                Some(("GET", "https://127.0.0.1:9443/a/c?x=1", false)),
            ),
            (307, "/c", Some(("POST", "https://127.0.0.1:9443/c", true))),
            (
                308,
                "?y",
                Some(("POST", "https://127.0.0.1:9443/a/b?y", true)),
            ),
            (301, "https://[::1]", Some(("GET", "https://[::1]/", false))),
            (307, "//h:1/x", Some(("POST", "https://h:1/x", true))),
            (307, "http://h/x#y", Some(("POST", "http://h/x", true))),
            (304, "/c", None),
            (200, "/c", None),
        ] {
            let expected = expected.map(|(method, url, body): (&str, &str, bool)| {
                (method.parse().expect("a method"), url.to_owned(), body)
            });
            assert_eq!(redirected(code, location), expected, "{code} {location}");
        }
    }
}
