//! The upgrade-aware reverse proxy. Mirrors `UpgradeAwareHandler`.

use bellerophon_apimachinery::error::ApiError;
use http::{HeaderMap, HeaderName, HeaderValue, Method, Response, StatusCode, header};
use hyper::upgrade::OnUpgrade;

use super::{
    ConnectRequest, Connector, Location, RequestBody,
    backend::{BackendBody, Unreachable},
    bridge::bridge,
    headers, html,
    kubelet::host,
    rewrite::Links,
    url,
};
use crate::http::{
    body::Body,
    response::{empty_response, no_cache},
    route::percent_decode,
};

const X_FORWARDED_URI: HeaderName = HeaderName::from_static("x-forwarded-uri");

impl Connector {
    /// Passes on a request to a pod, a service or a node. The path behind `proxy` is the path of
    /// the backend.
    pub(super) async fn proxy(
        &self,
        request: &ConnectRequest<'_>,
        location: Location,
        body: RequestBody,
    ) -> Result<Response<Body>, ApiError> {
        let head = request.head;
        let location = Location {
            path: url::proxied_path(&request.path.proxied),
            query: head.uri.query().unwrap_or_default().to_owned(),
            ..location
        };
        let mut passed = passed_headers(request, &location);
        if headers::is_upgrade(&head.headers) {
            return self.upgrade(request, &location, passed, body).await;
        }
        let requested_path = percent_decode(head.uri.path()).unwrap_or_default();
        if location.path.is_empty() && matches!(head.method, Method::GET | Method::HEAD) {
            return Ok(redirect_to_slash(&requested_path, &location.query));
        }
        let prefix = requested_path
            .strip_suffix(&location.path)
            .unwrap_or(&requested_path);
        if let Ok(uri) = HeaderValue::try_from(forwarded_uri(prefix, &location.path)) {
            passed.insert(X_FORWARDED_URI, uri);
        }
        self.forward(request, &location, prefix, passed, body).await
    }

    /// Passes on a request to a server that serves it under the same path, with headers that state
    /// its user.
    ///
    /// # Errors
    /// The server cannot be reached, or does not upgrade the connection.
    pub(crate) async fn delegate(
        &self,
        request: &ConnectRequest<'_>,
        location: &Location,
        identity: HeaderMap,
        body: RequestBody,
    ) -> Result<Response<Body>, ApiError> {
        let mut passed = passed_headers(request, location);
        passed.insert(header::HOST, host(location));
        for name in identity.keys() {
            passed.remove(name);
        }
        for (name, value) in &identity {
            passed.append(name, value.clone());
        }
        if headers::is_upgrade(&request.head.headers) {
            return self.upgrade(request, location, passed, body).await;
        }
        if let Ok(uri) = HeaderValue::try_from(forwarded_uri("", &location.path)) {
            passed.insert(X_FORWARDED_URI, uri);
        }
        self.forward(request, location, "", passed, body).await
    }

    /// Passes on a request whose connection is not upgraded.
    async fn forward(
        &self,
        request: &ConnectRequest<'_>,
        location: &Location,
        prefix: &str,
        mut passed: HeaderMap,
        body: RequestBody,
    ) -> Result<Response<Body>, ApiError> {
        headers::remove_hop_by_hop(&mut passed);
        let host = passed
            .get(header::HOST)
            .map_or(&b""[..], |host| host.as_bytes());
        let links = Links {
            prefix: prefix.to_owned(),
            hosts: [location.host(), String::from_utf8_lossy(host).into_owned()],
        };
        let forwarded = request.forwarded(passed, body);
        let sent = self
            .backends
            .send(location, forwarded, request.counted.clone())
            .await;
        let response = sent.map_err(|unreachable| match unreachable {
            Unreachable::Dial(why) | Unreachable::Exchange(why) => {
                ApiError::Unavailable(format!("error trying to reach service: {why}"))
            }
        })?;
        let (mut parts, body) = response.into_parts();
        headers::remove_hop_by_hop(&mut parts.headers);
        headers::remove_cors(&mut parts.headers);
        let body = if let Some(target) = parts.headers.get(header::LOCATION) {
            let target = links.rewrite(&String::from_utf8_lossy(target.as_bytes()));
            if let Ok(target) = HeaderValue::try_from(target) {
                parts.headers.insert(header::LOCATION, target);
            }
            response_body(body)
        } else if let Some(encoding) = html::rewritable(&parts.headers) {
            parts.headers.remove(header::CONTENT_LENGTH);
            Body::fallible(html::rewrite(body, encoding, links))
        } else {
            response_body(body)
        };
        Ok(passed_on(parts.status, parts.headers, body))
    }

    /// Passes on a request that upgrades its connection.
    pub(super) async fn upgrade(
        &self,
        request: &ConnectRequest<'_>,
        location: &Location,
        passed: HeaderMap,
        body: RequestBody,
    ) -> Result<Response<Body>, ApiError> {
        let head = request.head;
        let forwarded = request.forwarded(passed, body);
        let sent = self
            .backends
            .send(location, forwarded, request.counted.clone())
            .await;
        let response = sent.map_err(|unreachable| {
            ApiError::Unnamed(match unreachable {
                Unreachable::Dial(why) => format!("error dialing backend: {why}"),
                Unreachable::Exchange(why) => why,
            })
        })?;
        let (mut parts, body) = response.into_parts();
        match parts.status {
            StatusCode::SWITCHING_PROTOCOLS => {}
            status if status.as_u16() < 400 => {
                let code = status.as_u16();
                let why = format!("invalid upgrade response: status code {code}");
                return Err(ApiError::Unnamed(why));
            }
            status => {
                headers::remove_hop_by_hop(&mut parts.headers);
                return Ok(passed_on(status, parts.headers, response_body(body)));
            }
        }
        let backend = parts
            .extensions
            .remove::<OnUpgrade>()
            .expect("hyper adds it to every response with this status");
        let mut response = Response::new(Body::default());
        *response.status_mut() = parts.status;
        *response.headers_mut() = parts.headers;
        let client = head.extensions.get::<OnUpgrade>();
        match client.cloned().zip(request.connection().cloned()) {
            None => {
                response.extensions_mut().insert(backend);
            }
            Some((client, connection)) => {
                let stop = self.backends.stop.clone();
                self.backends.tasks.spawn(async move {
                    let bridging = connection.run_upgraded(bridge(client, backend));
                    let ended = stop.run_until_cancelled(bridging).await.flatten();
                    if let Some(Err(error)) = ended {
                        tracing::debug!(%error, "upgraded connection failed");
                    }
                });
            }
        }
        Ok(response)
    }
}

/// A response of a backend to a client.
fn passed_on(status: StatusCode, headers: HeaderMap, body: Body) -> Response<Body> {
    let mut response = Response::new(body);
    *response.status_mut() = status;
    let all = response.headers_mut();
    no_cache(all);
    // Other headers of one name keep their order, behind those of this server.
    for (name, value) in &headers {
        all.append(name, value.clone());
    }
    response
}

fn response_body(body: BackendBody) -> Body {
    if body.is_empty() {
        Body::default()
    } else {
        Body::fallible(body)
    }
}

/// Redirects a proxied page with an empty path, whose relative links would be resolved against its
/// parent. Mirrors `proxyRedirectsforRootPath`.
fn redirect_to_slash(path: &str, query: &str) -> Response<Body> {
    let path = url::encode_path(path);
    let target = match query {
        "" => format!("{path}/"),
        query => format!("{path}/?{query}"),
    };
    let mut response = empty_response(StatusCode::MOVED_PERMANENTLY);
    if let Ok(target) = HeaderValue::try_from(target) {
        response.headers_mut().insert(header::LOCATION, target);
    }
    response
}

/// The path that the client has requested.
fn forwarded_uri(prefix: &str, path: &str) -> String {
    let mut uri = url::clean_path(&format!("{prefix}/{}", url::encode_path(path)));
    if path.ends_with('/') && !uri.ends_with('/') {
        uri.push('/');
    }
    uri
}

/// The headers of a request to a backend.
pub(super) fn passed_headers(request: &ConnectRequest<'_>, location: &Location) -> HeaderMap {
    let mut passed = headers::of_request(&request.head.headers, request.client_ip());
    passed.insert(header::HOST, request_host(request.head, location));
    passed
}

/// The `Host` of the client's request, not the address of the backend.
fn request_host(head: &http::request::Parts, location: &Location) -> HeaderValue {
    let of_header = head.headers.get(header::HOST).cloned();
    let of_uri = || HeaderValue::try_from(head.uri.authority()?.as_str()).ok();
    of_header.or_else(of_uri).unwrap_or_else(|| host(location))
}
