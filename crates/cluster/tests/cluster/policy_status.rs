//! `status.typeChecking` of ValidatingAdmissionPolicies.

use k8s_openapi::api::admissionregistration::v1::ValidatingAdmissionPolicy;
use kube::{Api, ResourceExt as _};
use serde_json::{Value, json};

use bellerophon_testkit::{TestCluster, wait_until};

fn policy(name: &str, rule: Value, expression: &str) -> Value {
    json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {"matchConstraints": {"resourceRules": [rule]},
            "validations": [{"expression": expression}]}
    })
}

fn rule(group: &str, resource: &str) -> Value {
    json!({"apiGroups": [group], "apiVersions": ["v1"], "operations": ["*"],
        "resources": [resource]})
}

/// The warnings about a policy, once this generation was checked.
async fn warnings(
    policies: &Api<ValidatingAdmissionPolicy>,
    name: &str,
    generation: i64,
) -> Vec<(String, String)> {
    let all = wait_until(policies, "the policy is checked", |all| {
        all.iter().any(|policy| {
            let status = policy.status.as_ref();
            policy.name_any() == name
                && status.and_then(|status| status.observed_generation) == Some(generation)
        })
    })
    .await;
    let found = all.iter().find(|policy| policy.name_any() == name);
    let status = found.and_then(|policy| policy.status.clone());
    let checking = status.and_then(|status| status.type_checking);
    let checking = checking.expect("a checked policy has a result, also without warnings");
    let warnings = checking.expression_warnings.into_iter().flatten();
    warnings
        .map(|warning| (warning.field_ref, warning.warning))
        .collect()
}

#[tokio::test(start_paused = true)]
async fn expressions_that_do_not_fit_a_built_in_kind_are_warned_about() {
    let cluster = TestCluster::with_core_controllers().await;
    let policies: Api<ValidatingAdmissionPolicy> = cluster.all();
    let rule = rule("apps", "deployments");
    cluster
        .apply(policy("p", rule.clone(), "object.replicas > 1"))
        .await;
    let expected = (
        "spec.validations[0].expression".to_owned(),
        "apps/v1, Kind=Deployment: ERROR: <input>:1:7: undefined field 'replicas'\n | object.replicas > 1\n | ......^\n".to_owned(),
    );
    assert_eq!(warnings(&policies, "p", 1).await, [expected]);
    cluster
        .apply(policy("p", rule, "object.spec.replicas > 1"))
        .await;
    assert_eq!(warnings(&policies, "p", 2).await, []);
    // Quantities are texts, and may be compared with nothing else.
    let limits = "object.spec.containers.all(c, c.resources.limits['cpu'] == '1')";
    let pods = json!({"apiGroups": [""], "apiVersions": ["v1"], "operations": ["*"],
        "resources": ["pods"]});
    cluster.apply(policy("q", pods, limits)).await;
    assert_eq!(warnings(&policies, "q", 1).await, []);
    cluster.stop().await;
}

#[tokio::test(start_paused = true)]
async fn expressions_are_checked_with_the_schema_of_a_definition() {
    let cluster = TestCluster::with_core_controllers().await;
    let schema = json!({"type": "object", "properties": {
        "spec": {"type": "object", "properties": {"size": {"type": "integer"}}}}});
    cluster
        .apply(json!({
            "apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
            "metadata": {"name": "widgets.example.com"},
            "spec": {"group": "example.com", "scope": "Namespaced",
                "names": {"plural": "widgets", "kind": "Widget"},
                "versions": [{"name": "v1", "served": true, "storage": true,
                    "schema": {"openAPIV3Schema": schema}}]}
        }))
        .await;
    let policies: Api<ValidatingAdmissionPolicy> = cluster.all();
    let expression = "object.spec.size == 'big' && object.metadata.labels.size() > 0";
    cluster
        .apply(policy("p", rule("example.com", "widgets"), expression))
        .await;
    let found = warnings(&policies, "p", 1).await;
    let expected = (
        "spec.validations[0].expression".to_owned(),
        format!(
            "example.com/v1, Kind=Widget: ERROR: <input>:1:18: found no matching overload for '_==_' applied to '(int, string)'\n | {expression}\n | .................^\n"
        ),
    );
    assert_eq!(found, [expected]);
    cluster.stop().await;
}
