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

/// The ports that are tried in order. The first is the default of the toolkit.
const PORTS: std::ops::Range<u16> = 9443..9543;

/// The role of an operator that registers its webhooks, and its binding.
const ROLE_NAME: &str = "bellerophon-dev-webhooks";

/// The kinds of webhook configurations.
const CONFIGURATION_KINDS: [&str; 2] = [
    "MutatingWebhookConfiguration",
    "ValidatingWebhookConfiguration",
];

pub(super) fn is_configuration(object: &Value) -> bool {
    let kind = object["kind"].as_str().unwrap_or_default();
    CONFIGURATION_KINDS.contains(&kind)
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
pub(super) fn free_address() -> io::Result<SocketAddr> {
    let addresses = PORTS.map(|port| SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
    let mut last = io::Error::from(io::ErrorKind::AddrInUse);
    for address in addresses {
        // All addresses: a server on 0.0.0.0 has the port on the loopback address, too.
        match TcpListener::bind((Ipv4Addr::UNSPECIFIED, address.port())) {
            Ok(_) => return Ok(address),
            Err(error) => last = error,
        }
    }
    Err(last)
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
        let first = free_address().expect("a free port");
        let _taken = TcpListener::bind(first).expect("it is free");
        let second = free_address().expect("another free port");
        assert_ne!(first, second);
        assert!(second.ip().is_loopback());
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
