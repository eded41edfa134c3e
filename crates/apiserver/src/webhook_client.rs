//! Requests to webhooks: their address and body, without the transport.
//! In: the `clientConfig` of a webhook configuration or of a conversion. Out: requests that a
//! [`WebhookTransport`] sends. Mirrors `hookClientConfig` of `apiserver/pkg/util/webhook`.

use std::{net::SocketAddr, sync::Arc};

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use futures_util::future::BoxFuture;
use http::{Method, Response};
use serde_json::Value;

use bellerophon_apimachinery::json_ext::JsonExt as _;

/// The port of a webhook that names none.
const DEFAULT_PORT: u16 = 443;

/// Where a webhook is, and which certificate it has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WebhookClient {
    pub(crate) destination: Destination,
    /// As URLs and the header `Host` have it: `hook.team-a.svc:443`.
    host: String,
    /// The name that the certificate must be for.
    server_name: String,
    /// Cleaned, with a slash in front.
    path: String,
    /// PEM. Empty to trust the roots of the system.
    ca_bundle: Arc<[u8]>,
}

/// The dialed destination.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Destination {
    /// A ready endpoint of a Service.
    Service {
        namespace: String,
        name: String,
        port: i64,
    },
    /// A host, by name or address.
    Host { host: String, port: u16 },
}

impl WebhookClient {
    /// Reads a `clientConfig`; `None` if it is not valid.
    pub(crate) fn of(config: &Value) -> Option<Self> {
        let ca_bundle = STANDARD.decode(config.text("caBundle")).ok()?.into();
        if let Some(service) = config.get_set("service") {
            let namespace = service.text("namespace");
            let name = service.text("name");
            let port = service.int("port").unwrap_or(DEFAULT_PORT.into());
            let server_name = format!("{name}.{namespace}.svc");
            return Some(Self {
                destination: Destination::Service {
                    namespace: namespace.to_owned(),
                    name: name.to_owned(),
                    port,
                },
                host: format!("{server_name}:{port}"),
                server_name,
                path: clean_path(service.text("path")),
                ca_bundle,
            });
        }
        let (authority, path) = split_url(config.text("url"))?;
        let (host, port) = split_authority(authority, DEFAULT_PORT)?;
        Some(Self {
            destination: Destination::Host {
                host: host.to_owned(),
                port,
            },
            host: authority.to_owned(),
            server_name: host.to_owned(),
            path: clean_path(path),
            ca_bundle,
        })
    }

    /// The URL without a query, as handlers in the process are registered under it.
    pub(crate) fn location(&self) -> String {
        format!("https://{}{}", self.host, self.path)
    }

    /// A POST of a JSON document. `timeout_seconds` is how long the server waits;
    /// conversions have none.
    pub(crate) fn post(
        &self,
        address: WebhookAddress,
        timeout_seconds: Option<u64>,
        body: Bytes,
    ) -> WebhookRequest {
        let path_and_query = match timeout_seconds {
            Some(seconds) => format!("{}?timeout={seconds}s", self.path),
            None => self.path.clone(),
        };
        WebhookRequest {
            location: self.location(),
            url: format!("https://{}{path_and_query}", self.host),
            host: self.host.clone(),
            scheme: Scheme::Https,
            server_name: self.server_name.clone(),
            is_service: matches!(self.destination, Destination::Service { .. }),
            ca_bundle: self.ca_bundle.clone(),
            address,
            method: Method::POST,
            path_and_query,
            referer: None,
            body,
        }
    }
}

/// The address that a webhook is dialed at.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WebhookAddress {
    Socket(SocketAddr),
    /// A host whose name is resolved.
    Name(String, u16),
    /// None, with the reason. Only handlers in the process can be called.
    Unresolved(String),
}

impl WebhookAddress {
    /// That of a host, by name or address.
    pub(crate) fn of_host(host: &str, port: u16) -> Self {
        match host.parse() {
            Ok(ip) => Self::Socket(SocketAddr::new(ip, port)),
            Err(_) => Self::Name(host.to_owned(), port),
        }
    }
}

/// The scheme of a webhook URL. Configurations have HTTPS only; redirects may have HTTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Scheme {
    Https,
    Http,
}

impl Scheme {
    pub(crate) fn as_str(self) -> &'static str {
        match self {
            Self::Https => "https",
            Self::Http => "http",
        }
    }

    pub(crate) fn default_port(self) -> u16 {
        match self {
            Self::Https => DEFAULT_PORT,
            Self::Http => 80,
        }
    }
}

/// A request to a webhook: a POST, or a GET after a redirect.
#[derive(Clone, Debug)]
pub(crate) struct WebhookRequest {
    /// The URL without its query.
    pub(crate) location: String,
    pub(crate) url: String,
    pub(crate) host: String,
    pub(crate) scheme: Scheme,
    pub(crate) server_name: String,
    /// Whether the configuration names a Service: its name is the server name of all certificates.
    pub(crate) is_service: bool,
    pub(crate) ca_bundle: Arc<[u8]>,
    pub(crate) address: WebhookAddress,
    pub(crate) method: Method,
    pub(crate) path_and_query: String,
    /// The URL that redirected here.
    pub(crate) referer: Option<String>,
    pub(crate) body: Bytes,
}

/// Sends requests to webhooks.
pub(crate) trait WebhookTransport: Send + Sync + 'static {
    /// Sends a request, follows redirects and reads the whole response.
    ///
    /// # Errors
    /// Why there is no response, with the message of Go's HTTP client: `Post "URL": …`.
    fn post(&self, request: WebhookRequest) -> BoxFuture<'_, Result<Response<Bytes>, String>>;
}

fn split_url(url: &str) -> Option<(&str, &str)> {
    let rest = url.strip_prefix("https://")?;
    let rest = rest.split(['?', '#']).next().unwrap_or_default();
    let end = rest.find('/').unwrap_or(rest.len());
    let (authority, path) = rest.split_at(end);
    (!authority.is_empty()).then_some((authority, path))
}

pub(crate) fn split_authority(authority: &str, default_port: u16) -> Option<(&str, u16)> {
    let (host, port) = match authority.strip_prefix('[') {
        Some(rest) => {
            let (host, rest) = rest.split_once(']')?;
            (host, rest.strip_prefix(':'))
        }
        None => match authority.rsplit_once(':') {
            Some((host, port)) => (host, Some(port)),
            None => (authority, None),
        },
    };
    let port = port.map_or(Some(default_port), |port| port.parse().ok())?;
    Some((host, port))
}

/// Mirrors `path.Join("/", path)` of Go, which the REST client applies: no empty and dot segments,
/// no slash at the end.
pub(crate) fn clean_path(path: &str) -> String {
    let mut segments = Vec::new();
    for segment in path.split('/') {
        match segment {
            "" | "." => {}
            ".." => {
                segments.pop();
            }
            segment => segments.push(segment),
        }
    }
    format!("/{}", segments.join("/"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn urls_are_cleaned_as_the_rest_client_does() {
        for (url, expected) in [
            (
                "https://127.0.0.1:9443//mutate",
                "https://127.0.0.1:9443/mutate",
            ),
            ("https://hook.example.com", "https://hook.example.com/"),
            ("https://[::1]:8443/a/./b/../c/", "https://[::1]:8443/a/c"),
        ] {
            let client = WebhookClient::of(&json!({ "url": url })).expect("a URL");
            assert_eq!(client.location(), expected);
        }
        let request = WebhookClient::of(
            &json!({"service": {"namespace": "n", "name": "hook", "path": "/check"}}),
        )
        .expect("a service")
        .post(
            WebhookAddress::Unresolved(String::new()),
            Some(10),
            Bytes::new(),
        );
        assert_eq!(request.url, "https://hook.n.svc:443/check?timeout=10s");
        assert_eq!(request.server_name, "hook.n.svc");
        assert_eq!(WebhookClient::of(&json!({"url": "https://"})), None);
    }

    #[test]
    fn host_and_port_are_taken_from_the_url() {
        for (authority, expected) in [
            ("a.example.com", ("a.example.com", 443)),
            ("a.example.com:8443", ("a.example.com", 8443)),
            ("[::1]", ("::1", 443)),
            ("[::1]:9", ("::1", 9)),
        ] {
            assert_eq!(split_authority(authority, DEFAULT_PORT), Some(expected));
        }
        assert_eq!(split_authority("a:b", DEFAULT_PORT), None);
    }
}
