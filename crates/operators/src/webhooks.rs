//! The objects that install the webhooks of an operator, and the settings that run them.
//!
//! Inputs: an operator that declares webhooks, and its namespace. Outputs: webhook configurations,
//! a Service, and the permissions of the service account; the settings of `run --webhooks`.
//!
//! Guarantee: the service account may change the operator's own configurations, definitions and
//! Secret, and no others.

use std::net::SocketAddr;

use bellerophon::manager::{Manager, ManagerOptions};
use bellerophon::webhook::{Endpoint, Registration, WebhookOptions};
use k8s_openapi::api::rbac::v1::PolicyRule;
use kube::Client;
use serde_json::{Value, json};

use crate::{Operator, Switches, permissions::allow};

/// The port of the webhook server in the pods.
pub(crate) const WEBHOOK_PORT: u16 = 9443;

/// The name of the Service and of the webhook configurations.
pub(crate) fn webhooks_name(operator: &Operator) -> String {
    format!("{}-webhooks", operator.name)
}

/// The settings of `run --webhooks` and of `run --webhooks=LOCATION`, for operators whose
/// configurations have this name.
///
/// | location | the API server calls | the configurations are applied by |
/// |---|---|---|
/// | `NAMESPACE/SERVICE` | the Service, in the same cluster | a user, from the manifests |
/// | `https://HOST:PORT` | this machine at that address | the operator |
/// | empty | `https://127.0.0.1:9443` | the operator |
///
/// ```
/// use bellerophon_operator::webhook_options;
///
/// let options = webhook_options("hero-webhooks", "https://127.0.0.1:9444")?;
/// assert_eq!(options.bind_address, ([127, 0, 0, 1], 9444).into());
/// assert!(webhook_options("hero-webhooks", "somewhere").is_err());
/// # Ok::<(), String>(())
/// ```
///
/// # Errors
/// The location is none of these; the message is about `--webhooks`.
pub fn webhook_options(name: &str, location: &str) -> Result<WebhookOptions, String> {
    let default = WebhookOptions {
        name: Some(name.to_owned()),
        ..WebhookOptions::default()
    };
    if location.is_empty() {
        return Ok(default);
    }
    if location.starts_with("https://") {
        return at_url(location, default);
    }
    match location.split_once('/') {
        Some((namespace, service)) if !namespace.is_empty() && !service.is_empty() => {
            Ok(WebhookOptions {
                // That of the manifests: the name of the Service.
                name: None,
                endpoint: Some(Endpoint::service(namespace, service)),
                registration: Registration::Manifests,
                ..default
            })
        }
        _ => Err(format!(
            "--webhooks={location} is neither NAMESPACE/SERVICE nor https://HOST:PORT"
        )),
    }
}

/// Listens on the port of a URL: on its address if that is a loopback address, else on all.
fn at_url(url: &str, default: WebhookOptions) -> Result<WebhookOptions, String> {
    let parsed = url.parse::<http::Uri>().ok();
    let authority = parsed.as_ref().and_then(http::Uri::authority);
    let has_no_path = parsed.as_ref().is_some_and(|url| url.path() == "/");
    let port = authority.and_then(http::uri::Authority::port_u16);
    let (Some(authority), Some(port), true) = (authority, port, has_no_path) else {
        return Err(format!("--webhooks={url} is not https://HOST:PORT"));
    };
    let address = authority.as_str().parse::<SocketAddr>().ok();
    let loopback = address.filter(|address| address.ip().is_loopback());
    Ok(WebhookOptions {
        bind_address: loopback.unwrap_or(([0, 0, 0, 0], port).into()),
        endpoint: Some(Endpoint::Url(url.trim_end_matches('/').to_owned())),
        ..default
    })
}

/// The webhook configurations of an operator behind its Service in a namespace, and what it
/// changes in CustomResourceDefinitions, without `caBundle`; empty if it has no webhooks.
///
/// ```
/// use bellerophon_operator::{Operator, declared_webhooks};
///
/// fn configurations(operator: &Operator) -> usize {
///     declared_webhooks(operator, "hero-system").len()
/// }
/// ```
///
/// # Panics
/// The declarations of the operator panic.
pub fn declared_webhooks(operator: &Operator, namespace: &str) -> Vec<Value> {
    let Some(declare) = operator.webhooks else {
        return Vec::new();
    };
    let options = ManagerOptions {
        webhooks: WebhookOptions {
            endpoint: Some(Endpoint::service(namespace, webhooks_name(operator))),
            ..WebhookOptions::default()
        },
        ..ManagerOptions::default()
    };
    // Declarations are made on a Manager, which is not run. Its client needs a runtime, which the
    // thread of the caller may have already.
    let declared = std::thread::scope(|scope| {
        let thread = scope.spawn(|| {
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            let runtime = runtime.expect("a runtime without drivers needs no resources");
            let _guard = runtime.enter();
            let unconnected = tower::service_fn(|_: http::Request<kube::client::Body>| {
                std::future::pending::<Result<http::Response<String>, std::convert::Infallible>>()
            });
            let mut mgr = Manager::new(Client::new(unconnected, "default"), options);
            declare(&mut mgr, &Switches::default());
            mgr.webhook_manifests()
        });
        thread.join()
    });
    declared.expect("declarations do not panic")
}

/// The Service and the webhook configurations. The conversion of definitions is set by the
/// operator itself.
pub(crate) fn objects(declared: Vec<Value>, service: Value) -> Vec<Value> {
    let configurations = declared
        .into_iter()
        .filter(|object| object["kind"] != "CustomResourceDefinition");
    [service].into_iter().chain(configurations).collect()
}

/// What an operator with webhooks may do in addition, behind its Service in a namespace.
///
/// ```
/// use bellerophon_operator::{Operator, webhook_permissions};
///
/// fn resources(operator: &Operator) -> Vec<String> {
///     let rules = webhook_permissions(operator, "hero-system").into_iter();
///     rules.flat_map(|rule| rule.resources.unwrap_or_default()).collect()
/// }
/// ```
///
/// # Panics
/// The declarations of the operator panic.
pub fn webhook_permissions(operator: &Operator, namespace: &str) -> Vec<PolicyRule> {
    let mut rules = cluster_permissions(&declared_webhooks(operator, namespace));
    rules.extend(secret_permissions(operator));
    rules
}

/// The cluster-wide permissions for webhooks: to set the bundles of what was declared.
pub(crate) fn cluster_permissions(declared: &[Value]) -> Vec<PolicyRule> {
    declared
        .iter()
        .map(|object| {
            let (group, resource) = match object["kind"].as_str() {
                Some("MutatingWebhookConfiguration") => (
                    "admissionregistration.k8s.io",
                    "mutatingwebhookconfigurations",
                ),
                Some("ValidatingWebhookConfiguration") => (
                    "admissionregistration.k8s.io",
                    "validatingwebhookconfigurations",
                ),
                _ => ("apiextensions.k8s.io", "customresourcedefinitions"),
            };
            let name = object["metadata"]["name"].as_str().unwrap_or_default();
            PolicyRule {
                resource_names: Some(vec![name.to_owned()]),
                ..allow(&["get", "patch"], group, resource)
            }
        })
        .collect()
}

/// The permissions in the operator's namespace: for the Secret of the certificate authority.
pub(crate) fn secret_permissions(operator: &Operator) -> Vec<PolicyRule> {
    let secrets = |verbs: &[&str]| allow(verbs, "", "secrets");
    vec![
        // RBAC cannot restrict `create` by resource name.
        secrets(&["create"]),
        PolicyRule {
            resource_names: Some(vec![format!("{}-ca", webhooks_name(operator))]),
            ..secrets(&["get", "list", "watch", "update"])
        },
    ]
}

/// The arguments of the container.
pub(crate) fn arguments(operator: &Operator, namespace: &str) -> Value {
    json!(format!(
        "--webhooks={namespace}/{}",
        webhooks_name(operator)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_decides_who_calls_and_who_registers() {
        let all = |port: u16| SocketAddr::from(([0, 0, 0, 0], port));
        let url = |text: &str| Some(Endpoint::Url(text.to_owned()));
        for (location, address, endpoint, registration) in [
            ("", all(9443), None, Registration::Apply),
            (
                "heroes/hero-webhooks",
                all(9443),
                Some(Endpoint::service("heroes", "hero-webhooks")),
                Registration::Manifests,
            ),
            (
                "https://127.0.0.1:9444",
                ([127, 0, 0, 1], 9444).into(),
                url("https://127.0.0.1:9444"),
                Registration::Apply,
            ),
            (
                "https://172.18.0.1:9443/",
                all(9443),
                url("https://172.18.0.1:9443"),
                Registration::Apply,
            ),
        ] {
            let options = webhook_options("hero-webhooks", location).expect(location);
            assert_eq!(options.bind_address, address, "{location}");
            assert_eq!(options.endpoint, endpoint, "{location}");
            assert_eq!(options.registration, registration, "{location}");
        }
    }

    #[test]
    fn other_locations_are_refused() {
        for location in [
            "heroes",
            "/hero",
            "heroes/",
            "https://",
            "https://localhost",
            "https://127.0.0.1:9443/path",
        ] {
            let error = webhook_options("hero-webhooks", location).expect_err(location);
            assert!(error.starts_with("--webhooks="), "{error}");
        }
    }
}
