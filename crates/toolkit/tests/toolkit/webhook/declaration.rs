//! What declarations register.

use std::time::Duration;

use bellerophon::prelude::*;
use bellerophon::testing;
use bellerophon::webhook::{
    Certificates, Endpoint, FailurePolicy, Operation, Rejection, Review, WebhookOptions,
};
use k8s_openapi::api::core::v1::{ConfigMap, Node};
use kube::core::{Expression, Selector};
use serde_json::{Value, json};

use super::unconnected_manager;

fn admit<K>(_: &Review<K>, _: &K) -> Result<(), Rejection> {
    Ok(())
}

fn unchanged<K>(_: &Review<K>, _: &mut K) -> Result<(), Rejection> {
    Ok(())
}

/// A Manager with these options of webhooks, whose client has no server.
fn manager(webhooks: WebhookOptions) -> Manager {
    let client = unconnected_manager().client().clone();
    let options = ManagerOptions {
        webhooks,
        ..testing::options(1)
    };
    Manager::new(client, options)
}

#[tokio::test(start_paused = true)]
async fn a_declaration_is_a_configuration() {
    let mut mgr = manager(WebhookOptions {
        endpoint: Some(Endpoint::service("heroes", "operator")),
        ..WebhookOptions::default()
    });
    mgr.webhook::<ConfigMap>()
        .mutate(FailurePolicy::Ignore, unchanged)
        .operations([Operation::Delete])
        .object_selector(Selector::from(Expression::Exists("team".into())))
        .match_condition("not-me", "request.userInfo.username != 'me'")
        .timeout(Duration::from_secs(3))
        .validate(FailurePolicy::Fail, admit);
    mgr.webhook::<Node>()
        .subresource("status")
        .validate(FailurePolicy::Fail, admit);
    let service = |path: &str| json!({"service": {"namespace": "heroes", "name": "operator", "port": 443, "path": path}});
    let rule = |operations: Value, resource: &str, scope: &str| {
        json!({
            "apiGroups": [""], "apiVersions": ["v1"], "operations": operations,
            "resources": [resource], "scope": scope,
        })
    };
    let not_system = json!({"matchExpressions": [{
        "key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["kube-system", "heroes"],
    }]});
    let mutating = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "operator"},
        "webhooks": [{
            "name": "mutate.configmaps.core",
            "admissionReviewVersions": ["v1"],
            "clientConfig": service("/mutate--v1-configmap"),
            "failurePolicy": "Ignore", "matchPolicy": "Equivalent", "sideEffects": "None",
            "timeoutSeconds": 10,
            "namespaceSelector": not_system,
            "rules": [rule(json!(["CREATE", "UPDATE"]), "configmaps", "Namespaced")],
        }],
    });
    let validating = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
        "metadata": {"name": "operator"},
        "webhooks": [{
            "name": "validate.configmaps.core",
            "admissionReviewVersions": ["v1"],
            "clientConfig": service("/validate--v1-configmap"),
            "failurePolicy": "Fail", "matchPolicy": "Equivalent", "sideEffects": "None",
            "timeoutSeconds": 3,
            "namespaceSelector": not_system,
            "objectSelector": {"matchExpressions": [{"key": "team", "operator": "Exists"}]},
            "matchConditions": [
                {"name": "not-me", "expression": "request.userInfo.username != 'me'"},
            ],
            "rules": [rule(json!(["DELETE"]), "configmaps", "Namespaced")],
        }, {
            "name": "validate.nodes.core",
            "admissionReviewVersions": ["v1"],
            "clientConfig": service("/validate--v1-node"),
            "failurePolicy": "Fail", "matchPolicy": "Equivalent", "sideEffects": "None",
            "timeoutSeconds": 10,
            "rules": [rule(json!(["CREATE", "UPDATE"]), "nodes/status", "Cluster")],
        }],
    });
    assert_eq!(mgr.webhook_manifests(), [mutating, validating]);
}

#[tokio::test(start_paused = true)]
async fn system_namespaces_are_included_on_request_only() {
    let mut mgr = manager(WebhookOptions::default());
    mgr.webhook::<ConfigMap>()
        .system_namespaces()
        .validate(FailurePolicy::Fail, admit);
    let configuration = &mgr.webhook_manifests()[0];
    let webhook = &configuration["webhooks"][0];
    assert_eq!(webhook["namespaceSelector"], Value::Null);
    let url = &webhook["clientConfig"]["url"];
    assert_eq!(url, "https://127.0.0.1:9443/validate--v1-configmap");
    assert_eq!(configuration["metadata"]["name"], "bellerophon-webhooks");
}

#[tokio::test(start_paused = true)]
async fn cert_manager_is_asked_for_the_bundle() {
    let mut mgr = manager(WebhookOptions {
        endpoint: Some(Endpoint::service("heroes", "operator")),
        certificates: Certificates::CertManager {
            directory: "/certs".into(),
            certificate: "heroes/serving-cert".into(),
        },
        ..WebhookOptions::default()
    });
    mgr.webhook::<ConfigMap>()
        .validate(FailurePolicy::Fail, admit);
    let annotations = &mgr.webhook_manifests()[0]["metadata"]["annotations"];
    let expected = json!({"cert-manager.io/inject-ca-from": "heroes/serving-cert"});
    assert_eq!(*annotations, expected);
}

#[tokio::test(start_paused = true)]
async fn mistakes_of_declarations_are_found_before_the_start() {
    let mut mgr = unconnected_manager();
    mgr.webhook::<ConfigMap>()
        .validate(FailurePolicy::Fail, admit)
        .validate(FailurePolicy::Fail, admit)
        .name("second")
        .validate(FailurePolicy::Fail, admit)
        .operations([Operation::Delete])
        .mutate(FailurePolicy::Fail, unchanged);
    let error = mgr.run_until(std::future::pending()).await.unwrap_err();
    let text = error.to_string();
    assert!(
        text.contains("two webhooks are named validate.configmaps.core"),
        "{text}"
    );
    assert!(text.contains("cannot be mutated"), "{text}");
    assert!(text.contains("declaration.rs"), "{text}");
    assert!(!text.contains("second"), "{text}");
}
