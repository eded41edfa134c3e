//! The objects that install the webhooks of an operator.
//!
//! Inputs: an operator that declares webhooks, and its namespace. Outputs: webhook configurations,
//! a Service, and the permissions of the service account.
//!
//! Guarantee: the service account may change the operator's own configurations, definitions and
//! Secret, and no others.

use bellerophon::manager::{Manager, ManagerOptions};
use bellerophon::webhook::{Endpoint, WebhookOptions};
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

/// What an operator declares, as objects; empty if it has no webhooks.
pub(crate) fn declared(operator: &Operator, namespace: &str) -> Vec<Value> {
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
