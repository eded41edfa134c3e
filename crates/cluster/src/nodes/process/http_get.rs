//! HTTP requests of probes and hooks.
//!
//! In: an `httpGet` action. Out: the response.
//! Guarantees: redirects are followed to the same host only, 10 times at most; certificates are not
//! verified. Mirrors `NewRequestForHTTPGetAction` and `RedirectChecker` of `pkg/probe/http`.

use std::net::{IpAddr, SocketAddr};

use bellerophon_process_runtime::{Runtime, Sandbox};
use bytes::Bytes;
use http::header::{ACCEPT, AUTHORIZATION, CONNECTION, HOST, LOCATION, USER_AGENT};
use http::{HeaderMap, HeaderName, HeaderValue, Request, StatusCode, Uri};
use http_body_util::{BodyExt, Empty, LengthLimitError, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use k8s_openapi::api::core::v1::{Container, HTTPGetAction};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::tls::{self, TlsError};

/// The maximum length of a body that is kept; mirrors `maxRespBodyLength`.
const BODY_MAX: usize = 10 << 10;
/// The redirects that are followed.
const REDIRECTS_MAX: usize = 10;
/// The message of Go's HTTP client if the server of an `https` URL does not speak TLS.
const NOT_TLS: &str = "http: server gave HTTP response to HTTPS client";

/// Connects to addresses as the kubelet of a pod's node does.
#[derive(Clone, Copy)]
pub(super) struct PodDialer<'a> {
    pub(super) runtime: &'a Runtime,
    pub(super) sandbox: &'a Sandbox,
}

impl PodDialer<'_> {
    /// Connects to a port of a host; default: the pod. Loopback addresses are those of the pod.
    pub(super) async fn dial(&self, host: &str, port: u16) -> Result<TcpStream, String> {
        let ip = self.resolve(host).await?;
        let address = SocketAddr::new(ip, port);
        let connected = if ip.is_loopback() || ip == self.sandbox.ip() {
            self.sandbox.dial(address, None).await
        } else {
            self.runtime.dial(address).await
        };
        connected.map_err(|error| format!("dial tcp {address}: {error}"))
    }

    async fn resolve(&self, host: &str) -> Result<IpAddr, String> {
        if let Ok(ip) = host.parse() {
            return Ok(ip);
        }
        let addresses = tokio::net::lookup_host((host, 0)).await;
        let addresses = addresses.map_err(|error| format!("dial tcp: lookup {host}: {error}"))?;
        let mut ips = addresses.map(|address| address.ip());
        // The names of pods and Services are those of their hosts files; those of the node have
        // IPv4 addresses in general.
        let first = ips.next();
        let ip = first.filter(IpAddr::is_ipv4).or(ips.find(IpAddr::is_ipv4));
        ip.or(first)
            .ok_or_else(|| format!("dial tcp: lookup {host}: no such host"))
    }
}

/// The response to a request.
#[derive(Debug)]
pub(super) struct Response {
    pub(super) status: StatusCode,
    pub(super) body: String,
    location: Option<String>,
}

/// Why there is no response.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum GetError {
    /// The request cannot be sent.
    Invalid(String),
    /// The server of an `https` URL does not speak TLS.
    NotTls(String),
    /// The request failed.
    Failed(String),
}

impl GetError {
    pub(super) fn into_message(self) -> String {
        match self {
            Self::Invalid(message) | Self::NotTls(message) | Self::Failed(message) => message,
        }
    }
}

/// The port number of a port that may be a name. Mirrors `ResolveContainerPort`.
pub(super) fn port(container: &Container, port: &IntOrString) -> Result<u16, String> {
    let number = match port {
        IntOrString::Int(number) => *number,
        IntOrString::String(name) => {
            let mut ports = container.ports.iter().flatten();
            let named = ports.find(|port| port.name.as_ref() == Some(name));
            match named {
                Some(port) => port.container_port,
                None => name
                    .parse()
                    .map_err(|_| format!("couldn't find port by name {name}"))?,
            }
        }
    };
    u16::try_from(number)
        .ok()
        .filter(|number| *number > 0)
        .ok_or_else(|| format!("invalid port number: {number}"))
}

/// The URL of an action. Mirrors `formatURL`.
pub(super) fn url(
    action: &HTTPGetAction,
    container: &Container,
    pod_ip: IpAddr,
) -> Result<Uri, String> {
    let scheme = action.scheme.as_deref().filter(|scheme| !scheme.is_empty());
    let scheme = scheme.unwrap_or("http").to_ascii_lowercase();
    let host = action.host.as_deref().filter(|host| !host.is_empty());
    let host = host.map_or_else(|| pod_ip.to_string(), str::to_owned);
    let port = port(container, &action.port)?;
    let authority = match host.parse() {
        Ok(ip) => SocketAddr::new(ip, port).to_string(),
        Err(_) => format!("{host}:{port}"),
    };
    let path = escape(action.path.as_deref().unwrap_or_default());
    let slash = if path.starts_with('/') { "" } else { "/" };
    let built = Uri::builder()
        .scheme(scheme.as_str())
        .authority(authority)
        .path_and_query(format!("{slash}{path}"))
        .build();
    built.map_err(|error| error.to_string())
}

/// Escapes bytes that are not allowed in a URL, and drops its fragment.
fn escape(path: &str) -> String {
    let mut escaped = String::with_capacity(path.len());
    for byte in path.bytes().take_while(|byte| *byte != b'#') {
        match byte {
            b'!'..=b'~' if !b"\"<>\\^`{|}".contains(&byte) => escaped.push(char::from(byte)),
            _ => escaped.push_str(&format!("%{byte:02X}")),
        }
    }
    escaped
}

/// The headers of an action. Mirrors `newProbeRequest`.
fn headers(action: &HTTPGetAction, user_agent: &str) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    for header in action.http_headers.iter().flatten() {
        let name: Result<HeaderName, _> = header.name.parse();
        let name = name.map_err(|_| format!("invalid header field name {:?}", header.name))?;
        let value: Result<HeaderValue, _> = header.value.parse();
        let value = value.map_err(|_| format!("invalid header field value for {name:?}"))?;
        headers.append(name, value);
    }
    if !headers.contains_key(USER_AGENT) {
        let user_agent = user_agent.parse().map_err(|_| "invalid user agent")?;
        headers.insert(USER_AGENT, user_agent);
    }
    match headers.get(ACCEPT) {
        None => _ = headers.insert(ACCEPT, HeaderValue::from_static("*/*")),
        // An empty header removes the default.
        Some(accept) if accept.is_empty() => _ = headers.remove(ACCEPT),
        Some(_) => {}
    }
    // Probes do not keep connections.
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    Ok(headers)
}

/// Sends a GET request and follows redirects to the same host.
pub(super) async fn get(
    dialer: PodDialer<'_>,
    url: &Uri,
    action: &HTTPGetAction,
    user_agent: &str,
) -> Result<Response, GetError> {
    let headers = headers(action, user_agent).map_err(GetError::Invalid)?;
    let mut current = url.clone();
    for _ in 0..=REDIRECTS_MAX {
        let response = get_once(dialer, &current, headers.clone()).await?;
        match redirect(&response, &current) {
            Some(next) if next.host() == url.host() => current = next,
            // As Go's ErrUseLastResponse: a redirect to another host is the response.
            _ => return Ok(response),
        }
    }
    let message = format!("Get \"{current}\": stopped after {REDIRECTS_MAX} redirects");
    Err(GetError::Failed(message))
}

/// The same request over HTTP, for a server that does not speak TLS. Mirrors `runHTTPHandler`.
pub(super) async fn get_without_tls(
    dialer: PodDialer<'_>,
    url: &Uri,
    action: &HTTPGetAction,
    user_agent: &str,
) -> Result<Response, GetError> {
    let mut parts = url.clone().into_parts();
    parts.scheme = Some(http::uri::Scheme::HTTP);
    let invalid = |error: http::uri::InvalidUriParts| GetError::Invalid(error.to_string());
    let url = Uri::from_parts(parts).map_err(invalid)?;
    let mut headers = headers(action, user_agent).map_err(GetError::Invalid)?;
    headers.remove(AUTHORIZATION);
    get_once(dialer, &url, headers).await
}

/// The target of a redirect.
fn redirect(response: &Response, from: &Uri) -> Option<Uri> {
    if !matches!(response.status.as_u16(), 301 | 302 | 303 | 307 | 308) {
        return None;
    }
    let location = response.location.as_deref().filter(|it| !it.is_empty())?;
    let target: Uri = escape(location).parse().ok()?;
    if target.host().is_some() && target.scheme().is_some() {
        return Some(target);
    }
    let mut parts = from.clone().into_parts();
    let path = if location.starts_with("//") {
        // A location without a scheme.
        let target: Uri = format!("{}:{location}", from.scheme_str()?).parse().ok()?;
        return Some(target);
    } else if location.starts_with('/') {
        escape(location)
    } else {
        let (folder, _) = from.path().rsplit_once('/')?;
        format!("{folder}/{}", escape(location))
    };
    parts.path_and_query = Some(path.parse().ok()?);
    Uri::from_parts(parts).ok()
}

async fn get_once(
    dialer: PodDialer<'_>,
    url: &Uri,
    headers: HeaderMap,
) -> Result<Response, GetError> {
    let failed = |error: String| GetError::Failed(format!("Get \"{url}\": {error}"));
    let host = url.host().unwrap_or_default();
    let host = host.trim_start_matches('[').trim_end_matches(']');
    let is_https = url.scheme_str() == Some("https");
    let port = url.port_u16().unwrap_or(if is_https { 443 } else { 80 });
    let connection = dialer.dial(host, port).await.map_err(failed)?;
    let request = request(url, headers).map_err(GetError::Invalid)?;
    if !is_https {
        return exchange(connection, request).await.map_err(failed);
    }
    match tls::connect(connection, host).await {
        Ok(connection) => exchange(connection, request).await.map_err(failed),
        Err(TlsError::NotTls) => Err(GetError::NotTls(format!("Get \"{url}\": {NOT_TLS}"))),
        Err(TlsError::Other(error)) => Err(failed(error.to_string())),
    }
}

fn request(url: &Uri, headers: HeaderMap) -> Result<Request<Empty<Bytes>>, String> {
    let path = url.path_and_query().map_or("/", |path| path.as_str());
    let authority = url.authority().map_or("", |authority| authority.as_str());
    let host = authority.parse();
    let host: HeaderValue = host.map_err(|_| format!("invalid host {authority:?}"))?;
    let request = Request::get(path).body(Empty::new());
    let mut request = request.map_err(|error| error.to_string())?;
    *request.headers_mut() = headers;
    request.headers_mut().entry(HOST).or_insert(host);
    Ok(request)
}

/// Sends a request on a connection and reads the response.
async fn exchange(
    connection: impl AsyncRead + AsyncWrite + Unpin,
    request: Request<Empty<Bytes>>,
) -> Result<Response, String> {
    let handshake = http1::handshake(TokioIo::new(connection)).await;
    let (mut sender, connection) = handshake.map_err(|error| error.to_string())?;
    let exchange = async {
        let response = sender.send_request(request).await;
        read(response.map_err(|error| error.to_string())?).await
    };
    tokio::pin!(exchange);
    tokio::pin!(connection);
    tokio::select! {
        response = &mut exchange => response,
        ended = &mut connection => match ended {
            Ok(()) => exchange.await,
            Err(error) => Err(error.to_string()),
        },
    }
}

/// Reads a response and the first 10 KiB of its body.
async fn read(response: http::Response<Incoming>) -> Result<Response, String> {
    let status = response.status();
    let location = response.headers().get(LOCATION);
    let location = location.map(|it| String::from_utf8_lossy(it.as_bytes()).into_owned());
    let mut body = Limited::new(response.into_body(), BODY_MAX);
    let mut kept = Vec::new();
    while let Some(frame) = body.frame().await {
        match frame {
            Ok(frame) => kept.extend(frame.into_data().unwrap_or_default()),
            Err(error) if error.is::<LengthLimitError>() => break,
            Err(error) => return Err(error.to_string()),
        }
    }
    Ok(Response {
        status,
        body: String::from_utf8_lossy(&kept).into_owned(),
        location,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn action(fields: &serde_json::Value) -> HTTPGetAction {
        serde_json::from_value(fields.clone()).unwrap()
    }

    fn container() -> Container {
        let ports = json!([{"name": "web", "containerPort": 8080}]);
        serde_json::from_value(json!({"name": "app", "ports": ports})).unwrap()
    }

    #[test]
    fn urls_are_those_of_the_kubelet() {
        let cases = [
            (json!({"port": 80}), Ok("http://10.0.0.7:80/")),
            (
                json!({"port": "web", "path": "/healthz?full=1#top"}),
                Ok("http://10.0.0.7:8080/healthz?full=1"),
            ),
            (
                json!({"port": 443, "scheme": "HTTPS", "path": "a b"}),
                Ok("https://10.0.0.7:443/a%20b"),
            ),
            (
                json!({"port": "9000", "host": "example.com"}),
                Ok("http://example.com:9000/"),
            ),
            (json!({"port": 80, "host": "::1"}), Ok("http://[::1]:80/")),
            (
                json!({"port": "admin"}),
                Err("couldn't find port by name admin"),
            ),
            (json!({"port": 0}), Err("invalid port number: 0")),
        ];
        let ip = "10.0.0.7".parse().unwrap();
        for (fields, expected) in cases {
            let url = url(&action(&fields), &container(), ip).map(|url| url.to_string());
            assert_eq!(
                url.as_deref(),
                expected.map_err(str::to_owned).as_ref().copied(),
                "{fields}"
            );
        }
    }

    #[test]
    fn headers_replace_the_defaults() {
        let cases = [
            (json!([]), "accept: */* | user-agent: kube-probe/1"),
            (
                json!([{"name": "Accept", "value": ""}, {"name": "X-A", "value": "1"}]),
                "user-agent: kube-probe/1 | x-a: 1",
            ),
            (
                json!([{"name": "User-Agent", "value": "me"}, {"name": "Host", "value": "h"}]),
                "accept: */* | host: h | user-agent: me",
            ),
        ];
        for (fields, expected) in cases {
            let action = action(&json!({"port": 80, "httpHeaders": fields}));
            let mut headers = headers(&action, "kube-probe/1").unwrap();
            headers.remove(CONNECTION);
            let mut lines: Vec<_> = headers
                .iter()
                .map(|(name, value)| format!("{name}: {}", value.to_str().unwrap()))
                .collect();
            lines.sort();
            assert_eq!(lines.join(" | "), expected);
        }
    }

    #[test]
    fn redirects_are_resolved_against_the_url() {
        let from: Uri = "http://10.0.0.7:80/a/b?c=d".parse().unwrap();
        let cases = [
            (302, Some("/e?f"), Some("http://10.0.0.7:80/e?f")),
            (301, Some("e"), Some("http://10.0.0.7:80/a/e")),
            (
                307,
                Some("https://10.0.0.7:8443/"),
                Some("https://10.0.0.7:8443/"),
            ),
            (308, Some("//other/x"), Some("http://other/x")),
            (302, None, None),
            (304, Some("/e"), None),
            (200, Some("/e"), None),
        ];
        for (status, location, expected) in cases {
            let response = Response {
                status: StatusCode::from_u16(status).unwrap(),
                body: String::new(),
                location: location.map(str::to_owned),
            };
            let target = redirect(&response, &from).map(|target| target.to_string());
            assert_eq!(target.as_deref(), expected, "{status} {location:?}");
        }
    }
}
