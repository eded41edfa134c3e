//! Answers of webhooks with controller-runtime 0.24.1, recorded, and those of webhooks with the same
//! logic here: equal to the byte.

use bellerophon::webhook::{
    FailurePolicy, FieldError, Operation, Rejection, Review, WebhookService,
};
use http::Request;
use http_body_util::BodyExt as _;
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use serde::Deserialize;
use serde_json::Value;
use tower::ServiceExt as _;

/// Reviews that kube-apiserver cannot send or does not send alone, such as one with an unknown field,
/// with the answers of a `Defaulter` and a `Validator` of ConfigMaps.
const WRITTEN: &str = include_str!("controller_runtime.json");

/// Reviews that kube-apiserver 1.36.4 sent, with the answers that it got. Recorded by
/// `cargo xtask real --record-reviews`.
const RECORDED: &str = include_str!("kube_apiserver.json");

/// A review of [`RECORDED`], and what was answered.
#[derive(Deserialize)]
struct Recorded {
    /// The request of the client.
    name: String,
    path: String,
    review: String,
    answer: String,
}

fn default_team<K: ResourceExt>(_: &Review<K>, object: &mut K) -> Result<(), Rejection> {
    let team = object.labels_mut().entry("team".into());
    team.or_insert_with(|| "none".into());
    Ok(())
}

fn check_team<K>(review: &Review<K>, object: &K) -> Result<(), Rejection>
where
    K: ResourceExt<DynamicType = ()>,
{
    let kind = K::kind(&());
    let team = object.labels().get("team").map_or("", String::as_str);
    match (review.operation(), team) {
        (Operation::Delete, "kept") => Err(Rejection::denied(format!(
            "{kind}s of team \"kept\" are kept"
        ))),
        (Operation::Delete, _) => Ok(()),
        (_, "denied") => Err(Rejection::denied("team \"denied\" works no longer")),
        (_, "") => {
            let detail = format!("every {kind} has a team");
            let error = FieldError::required("metadata.labels[team]", &detail);
            Err(Rejection::invalid([error]))
        }
        (_, "none") => {
            review.warn("nobody is responsible");
            Ok(())
        }
        _ => Ok(()),
    }
}

fn webhooks() -> WebhookService {
    let mut mgr = super::unconnected_manager();
    let operations = [Operation::Create, Operation::Update, Operation::Delete];
    mgr.webhook::<ConfigMap>()
        .mutate(FailurePolicy::Fail, default_team)
        .operations(operations)
        .validate(FailurePolicy::Fail, check_team);
    mgr.webhook::<Deployment>()
        .mutate(FailurePolicy::Fail, default_team)
        .operations(operations)
        .validate(FailurePolicy::Fail, check_team);
    mgr.webhook::<Deployment>()
        .name("status")
        .subresource("status")
        .mutate(FailurePolicy::Fail, default_team)
        .validate(FailurePolicy::Fail, check_team);
    mgr.webhook_service()
}

/// The body of the answer to a review.
async fn answer(service: &WebhookService, path: &str, review: String) -> String {
    let request = Request::post(format!("{path}?timeout=10s"))
        .header("content-type", "application/json")
        .body(review)
        .unwrap();
    let response = service.clone().oneshot(request).await.unwrap();
    assert_eq!(response.status(), 200, "{path}");
    let body = response.into_body().collect().await.unwrap().to_bytes();
    String::from_utf8(body.to_vec()).unwrap()
}

#[tokio::test]
async fn answers_are_those_of_controller_runtime() {
    let service = webhooks();
    let written: Vec<Value> = serde_json::from_str(WRITTEN).unwrap();
    assert!(written.len() >= 15, "{}", written.len());
    for case in written {
        let verb = case["verb"].as_str().unwrap();
        let path = format!("/{verb}--v1-configmap");
        let answer = answer(&service, &path, case["review"].to_string()).await;
        assert_eq!(
            Some(answer.as_str()),
            case["answer"].as_str(),
            "{}",
            case["name"]
        );
    }
}

#[tokio::test]
async fn reviews_of_kube_apiserver_are_answered_as_by_controller_runtime() {
    let service = webhooks();
    let recorded: Vec<Recorded> = serde_json::from_str(RECORDED).unwrap();
    for part in [
        "\"operation\":\"CREATE\"",
        "\"operation\":\"UPDATE\"",
        "\"operation\":\"DELETE\"",
        "\"subResource\":\"status\"",
        "\"dryRun\":true",
        "\"kind\":\"DeleteOptions\"",
    ] {
        let is_recorded = recorded.iter().any(|case| case.review.contains(part));
        assert!(is_recorded, "no review has {part}");
    }
    for case in recorded {
        let answer = answer(&service, &case.path, case.review).await;
        assert_eq!(answer, case.answer, "{}: {}", case.path, case.name);
    }
}
