//! Settings of webhooks.

use std::fmt;
use std::net::{Ipv6Addr, SocketAddr};
use std::path::PathBuf;

/// What the API server does with a request if the webhook cannot be called, answers an error or
/// misses its deadline.
///
/// There is no default: each choice is wrong for some webhooks.
///
/// ```
/// use bellerophon::webhook::FailurePolicy;
///
/// assert_eq!(FailurePolicy::Fail.to_string(), "Fail");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FailurePolicy {
    /// The request is rejected: nothing gets past the webhook, and nothing can be written while it
    /// is down.
    Fail,
    /// The request is admitted: the webhook never blocks anybody, and nothing may rely on it.
    Ignore,
}

impl fmt::Display for FailurePolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Fail => "Fail",
            Self::Ignore => "Ignore",
        })
    }
}

/// How the API server reaches the webhooks.
///
/// ```
/// use bellerophon::webhook::Endpoint;
///
/// let in_a_cluster = Endpoint::service("heroes", "hero-operator");
/// let on_a_kind_cluster = Endpoint::Url("https://172.18.0.1:9443".into());
/// assert_ne!(in_a_cluster, on_a_kind_cluster);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Endpoint {
    /// A Service, whose pods are replicas of this process.
    Service {
        /// Its namespace. Webhooks are not called for objects in it.
        namespace: String,
        /// Its name.
        name: String,
        /// Its port; default: 443.
        port: u16,
    },
    /// The scheme, host and port of a URL, for an operator that runs outside of the cluster.
    Url(String),
}

impl Endpoint {
    /// Port 443 of a Service.
    pub fn service(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self::Service {
            namespace: namespace.into(),
            name: name.into(),
            port: 443,
        }
    }
}

/// Where the certificates of the webhook server come from.
///
/// ```
/// use bellerophon::webhook::Certificates;
///
/// let mounted = Certificates::Files("/certs".into());
/// assert_ne!(mounted, Certificates::default());
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Certificates {
    /// A certificate authority in a Secret, which the first replica creates, and short-lived
    /// certificates in memory, which each replica signs with it. It is rotated without downtime.
    #[default]
    Automatic,
    /// The files `tls.crt` and `tls.key` of a directory, such as a mounted Secret. They are read
    /// again every 5 seconds; a pair that does not match is not used. If there is a `ca.crt`, it is
    /// the `caBundle` of the registration.
    Files(PathBuf),
    /// The same files, written by cert-manager, whose CA injector sets the `caBundle`.
    CertManager {
        /// The directory of the mounted Secret.
        directory: PathBuf,
        /// The Certificate, as `NAMESPACE/NAME`.
        certificate: String,
    },
}

/// Who writes the webhook configurations.
///
/// ```
/// use bellerophon::webhook::Registration;
///
/// assert_eq!(Registration::default(), Registration::Apply);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Registration {
    /// The leader applies them from the declarations, by server-side apply.
    #[default]
    Apply,
    /// A user applies the [manifests](crate::manager::Manager::webhook_manifests); the leader
    /// sets the `caBundle` in them, and the conversion of CustomResourceDefinitions.
    Manifests,
}

/// Settings of the webhooks of a Manager: [`ManagerOptions::webhooks`]. They have an effect only if
/// a webhook is declared.
///
/// ```
/// use bellerophon::prelude::*;
/// use bellerophon::webhook::{Endpoint, WebhookOptions};
///
/// let options = ManagerOptions {
///     webhooks: WebhookOptions {
///         endpoint: Some(Endpoint::service("heroes", "hero-operator")),
///         ..WebhookOptions::default()
///     },
///     ..ManagerOptions::default()
/// };
/// # let _ = options;
/// ```
///
/// [`ManagerOptions::webhooks`]: crate::manager::ManagerOptions::webhooks
#[derive(Clone, Debug)]
pub struct WebhookOptions {
    /// The name of the webhook configurations, and the beginning of that of the Secret; default:
    /// the name of the Service, or `bellerophon-webhooks`.
    pub name: Option<String>,
    /// Where the HTTPS server listens; default: port 9443 on all addresses.
    pub bind_address: SocketAddr,
    /// How the API server reaches it; default: by the URL of the address it listens on, or of the
    /// loopback address, for an API server on this machine. In a pod it must be set.
    pub endpoint: Option<Endpoint>,
    /// Where certificates come from; default: they need no set-up.
    pub certificates: Certificates,
    /// Who writes the webhook configurations; default: the leader.
    pub registration: Registration,
}

impl Default for WebhookOptions {
    fn default() -> Self {
        Self {
            name: None,
            bind_address: ([0, 0, 0, 0], 9443).into(),
            endpoint: None,
            certificates: Certificates::default(),
            registration: Registration::default(),
        }
    }
}

impl WebhookOptions {
    /// The name of the webhook configurations.
    pub(crate) fn name(&self) -> &str {
        match (&self.name, &self.endpoint) {
            (Some(name), _) | (None, Some(Endpoint::Service { name, .. })) => name,
            _ => "bellerophon-webhooks",
        }
    }

    /// How the API server reaches the server that listens on `address`.
    pub(crate) fn endpoint_at(&self, address: SocketAddr) -> Endpoint {
        if let Some(endpoint) = &self.endpoint {
            return endpoint.clone();
        }
        let port = address.port();
        let reachable = match address {
            SocketAddr::V4(v4) if v4.ip().is_unspecified() => ([127, 0, 0, 1], port).into(),
            SocketAddr::V6(v6) if v6.ip().is_unspecified() => (Ipv6Addr::LOCALHOST, port).into(),
            address => address,
        };
        Endpoint::Url(format!("https://{reachable}"))
    }
}
