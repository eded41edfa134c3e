//! The webhooks of a project: served by the operator on the loopback address.
//!
//! In: the manifests that the operator prints. Out: the address that it is given, the permissions to
//! register its webhooks with it, and whether they are registered.
//!
//! Guarantee: an operator is given a port that is free.

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, TcpListener},
};

use serde_json::{Value, json};

use crate::error::CliError;

/// The ports that are tried in order. The first is the default of the toolkit.
const PORTS: std::ops::Range<u16> = 9443..9543;

/// The role of an operator that registers its webhooks, and its binding.
const ROLE_NAME: &str = "bellerophon-dev-webhooks";

/// The kinds of webhook configurations.
pub(super) const CONFIGURATION_KINDS: [&str; 2] = [
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
];

pub(super) fn is_configuration(object: &Value) -> bool {
    let kind = object["kind"].as_str().unwrap_or_default();
    CONFIGURATION_KINDS.contains(&kind)
}

/// Whether an object is a webhook configuration that names a Service.
pub(super) fn calls_a_service(object: &Value) -> bool {
    let webhooks = object["webhooks"].as_array();
    let mut webhooks = webhooks.into_iter().flatten();
    is_configuration(object)
        && webhooks.any(|webhook| webhook["clientConfig"]["service"].is_object())
}

/// Where webhooks of an object are called: of a webhook configuration, or of the conversion of a CRD.
pub(super) fn client_configs(object: &mut Value) -> Vec<&mut Value> {
    let is_crd = object["kind"] == "CustomResourceDefinition";
    if is_configuration(object) {
        let webhooks = object["webhooks"].as_array_mut();
        let webhooks = webhooks.into_iter().flatten();
        let configs = webhooks.filter_map(|webhook| webhook.get_mut("clientConfig"));
        configs.collect()
    } else if is_crd {
        let config = object.pointer_mut("/spec/conversion/webhook/clientConfig");
        config.into_iter().collect()
    } else {
        Vec::new()
    }
}

/// Whether the operator of these manifests serves webhooks: its container has the option.
pub(super) fn are_served(manifests: &[Value]) -> bool {
    let arguments = manifests.iter().filter_map(|object| {
        let arguments = object.pointer("/spec/template/spec/containers/0/args");
        arguments.and_then(Value::as_array)
    });
    let mut arguments = arguments.flatten().filter_map(Value::as_str);
    arguments.any(|argument| argument.starts_with("--webhooks="))
}

/// A loopback address whose port is free.
///
/// # Errors
/// All ports that are tried are in use.
pub(super) fn free_address() -> Result<SocketAddr, CliError> {
    first_free(PORTS).map_err(|error| {
        let step = "cannot find a free port for the webhooks";
        let hint = format!(
            "{} to {} are tried; end a program that listens on one of them",
            PORTS.start,
            PORTS.end - 1
        );
        CliError::context(step)(error).with_hint(&hint)
    })
}

fn first_free(ports: impl IntoIterator<Item = u16>) -> io::Result<SocketAddr> {
    let mut result = Err(io::ErrorKind::AddrInUse.into());
    for port in ports {
        // On all addresses: a server that listens on all has the port on the loopback address, too.
        let listener = TcpListener::bind((Ipv4Addr::UNSPECIFIED, port));
        result = listener.map(|_| (Ipv4Addr::LOCALHOST, port).into());
        if result.is_ok() {
            break;
        }
    }
    result
}

/// The permissions to register webhooks. In a cluster, the manifests register them, and the operator
/// may change its own configurations only.
pub(super) fn permissions(account: &Value) -> [Value; 2] {
    let resources = [
        "mutatingwebhookconfigurations",
        "validatingwebhookconfigurations",
    ];
    let role = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
        "metadata": {"name": ROLE_NAME},
        "rules": [{
            "apiGroups": ["admissionregistration.k8s.io"], "resources": resources,
            "verbs": ["get", "create", "patch", "delete"],
        }],
    });
    let metadata = &account["metadata"];
    let subject = json!({
        "kind": "ServiceAccount", "name": metadata["name"], "namespace": metadata["namespace"],
    });
    let role_ref =
        json!({"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": ROLE_NAME});
    let binding = json!({
        "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
        "metadata": {"name": ROLE_NAME},
        "roleRef": role_ref,
        "subjects": [subject],
    });
    [role, binding]
}

/// Whether all webhooks of a stored configuration are registered with an address.
pub(super) fn is_registered(configuration: &Value, address: SocketAddr) -> bool {
    let url = format!("https://{address}/");
    let is_registered = |webhook: &Value| {
        let config = &webhook["clientConfig"];
        let has_url = config["url"]
            .as_str()
            .is_some_and(|of| of.starts_with(&url));
        has_url && config["caBundle"].is_string()
    };
    let webhooks = configuration["webhooks"].as_array();
    webhooks.is_some_and(|webhooks| webhooks.iter().all(is_registered))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn port_in_use_is_not_given_to_an_operator() {
        let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let port = |listener: &TcpListener| listener.local_addr().expect("bound").port();
        let taken = listen();
        let free = listen();
        let ports = [port(&taken), port(&free)];
        assert!(first_free(ports).is_err());
        drop(free);
        let address = first_free(ports).expect("a free port");
        assert_eq!(address, (Ipv4Addr::LOCALHOST, ports[1]).into());
    }

    #[test]
    fn configurations_of_services_are_recognized() {
        let configuration = |kind: &str, config: Value| json!({"kind": kind, "webhooks": [{"clientConfig": config}]});
        let service = json!({"service": {"name": "hero", "namespace": "hero-system"}});
        let url = json!({"url": "https://127.0.0.1:9443/validate"});
        for kind in CONFIGURATION_KINDS {
            assert!(calls_a_service(&configuration(kind, service.clone())));
            assert!(!calls_a_service(&configuration(kind, url.clone())));
        }
        assert!(!calls_a_service(&configuration("Hero", service)));
    }

    #[test]
    fn operators_with_the_option_serve_webhooks() {
        let deployment = |arguments: Value| {
            let containers = json!([{"args": arguments}]);
            json!({"kind": "Deployment", "spec": {"template": {"spec": {"containers": containers}}}})
        };
        let without = deployment(json!(["run", "hero"]));
        let with = deployment(json!(["run", "hero", "--webhooks=hero-system/hero"]));
        assert!(!are_served(std::slice::from_ref(&without)));
        assert!(are_served(&[without, with]));
    }
}
