//! What webhooks and policies add to audit events, in the words of kube-apiserver.

use bellerophon_apiserver::{ApiServer, AuditOptions, AuditRotation};
use bytes::Bytes;
use http::Response;
use serde_json::{Value, json};

use super::{CONFIG_MAPS, MUTATING, config_map, configuration, create};

const URL: &str = "https://hook.default.svc:443/check";

const POLICIES: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies";
const BINDINGS: &str = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings";

/// Sets a label, and annotates the event.
fn labelled(review: &[u8]) -> Response<Bytes> {
    let review: Value = serde_json::from_slice(review).expect("a review");
    let label = json!([{"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}}]);
    // A patch is also read as an array of numbers, without base64.
    let patch = label.to_string().into_bytes();
    let response = json!({"uid": review["request"]["uid"], "allowed": true, "patch": patch,
        "patchType": "JSONPatch", "auditAnnotations": {"team": "heroes"}});
    let review = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview",
        "response": response});
    Response::new(Bytes::from(review.to_string()))
}

/// A policy of ConfigMaps that no ConfigMap meets, and that is audited only.
fn policy() -> [(&'static str, Value); 2] {
    let policy = json!({"apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "never"},
        "spec": {"validations": [{"expression": "false", "message": "never"}],
            "auditAnnotations": [{"key": "name", "valueExpression": "string(object.metadata.name)"}],
            "matchConstraints": {"resourceRules": [{"apiGroups": [""], "apiVersions": ["v1"],
                "operations": ["CREATE"], "resources": ["configmaps"]}]}}});
    let binding = json!({"apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "audited"},
        "spec": {"policyName": "never", "validationActions": ["Audit"]}});
    [(POLICIES, policy), (BINDINGS, binding)]
}

/// The annotations of the creation of a ConfigMap at an audit level, without those of authorization.
async fn annotations(level: &str) -> Value {
    let directory = tempfile::tempdir().expect("a directory");
    let log_path = directory.path().join("audit.log");
    let rules = format!(
        "[{{level: {level}, verbs: [create], resources: [{{group: '', resources: [configmaps]}}]}}]"
    );
    let policy_file = format!(
        "{{apiVersion: audit.k8s.io/v1, kind: Policy, omitStages: [RequestReceived], rules: {rules}}}"
    );
    let server = ApiServer::builder()
        .audit(AuditOptions {
            log_path: log_path.clone(),
            policy: policy_file,
            rotation: AuditRotation::default(),
        })
        .webhook(URL, |request| async move { labelled(request.body()) })
        .start()
        .await
        .expect("a server");
    let client = server.client();
    let service = json!({"service": {"namespace": "default", "name": "hook", "path": "/check"}});
    let webhook = configuration("MutatingWebhookConfiguration", service, json!({}));
    create(&client, MUTATING, webhook).await;
    for (path, object) in policy() {
        create(&client, path, object).await;
    }
    create(&client, CONFIG_MAPS, config_map("a")).await;
    server.shutdown().await;
    let text = std::fs::read_to_string(&log_path).expect("a log");
    let mut event: Value = serde_json::from_str(&text).expect("one event");
    let annotations = event["annotations"].as_object_mut().expect("annotations");
    annotations.retain(|key, _| !key.starts_with("authorization.k8s.io/"));
    event["annotations"].take()
}

#[tokio::test]
async fn webhooks_and_policies_annotate_the_event_of_a_request() {
    let failure = r#"[{"message":"never","policy":"never","binding":"audited","expressionIndex":0,"validationActions":["Audit"]}]"#;
    let mutation = r#"{"configuration":"checks","webhook":"check.example.com","mutated":true}"#;
    let mut expected = json!({
        "check.example.com/team": "heroes",
        "mutation.webhook.admission.k8s.io/round_0_index_0": mutation,
        "never/name": "a",
        "validation.policy.admission.k8s.io/validation_failure": failure,
    });
    assert_eq!(annotations("Metadata").await, expected);
    // The patch is part of the request, so it is recorded from the level Request on.
    let patch = r#"{"configuration":"checks","webhook":"check.example.com","patch":[{"op":"add","path":"/metadata/labels","value":{"seen":"yes"}}],"patchType":"JSONPatch"}"#;
    expected["patch.webhook.admission.k8s.io/round_0_index_0"] = patch.into();
    assert_eq!(annotations("Request").await, expected);
}
