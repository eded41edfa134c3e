//! Answers of a webhook with controller-runtime 0.24.1, recorded, and those of one with the same
//! logic here: equal to the byte.

use bellerophon::webhook::{FailurePolicy, FieldError, Operation, Rejection, Review};
use http::Request;
use http_body_util::BodyExt as _;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt as _;
use serde_json::Value;
use tower::ServiceExt as _;

/// Reviews in the form of kube-apiserver, with the answers of `admission.StandaloneWebhook` for a
/// `Defaulter` and a `Validator` of ConfigMaps that do what the functions below do.
const RECORDED: &str = include_str!("controller_runtime.json");

fn default_team(_: &Review<ConfigMap>, map: &mut ConfigMap) -> Result<(), Rejection> {
    let team = map.labels_mut().entry("team".into());
    team.or_insert_with(|| "none".into());
    Ok(())
}

fn check_team(review: &Review<ConfigMap>, map: &ConfigMap) -> Result<(), Rejection> {
    let team = map.labels().get("team").map_or("", String::as_str);
    match (review.operation(), team) {
        (Operation::Delete, "kept") => {
            Err(Rejection::denied("ConfigMaps of team \"kept\" are kept"))
        }
        (Operation::Delete, _) => Ok(()),
        (_, "denied") => Err(Rejection::denied("team \"denied\" works no longer")),
        (_, "") => {
            let error = FieldError::required("metadata.labels[team]", "every ConfigMap has a team");
            Err(Rejection::invalid([error]))
        }
        (_, "none") => {
            review.warn("nobody is responsible");
            Ok(())
        }
        _ => Ok(()),
    }
}

#[tokio::test]
async fn answers_are_those_of_controller_runtime() {
    let mut mgr = super::unconnected_manager();
    mgr.webhook::<ConfigMap>()
        .mutate(FailurePolicy::Fail, default_team)
        .operations([Operation::Create, Operation::Update, Operation::Delete])
        .validate(FailurePolicy::Fail, check_team);
    let service = mgr.webhook_service();
    let recorded: Vec<Value> = serde_json::from_str(RECORDED).unwrap();
    assert!(recorded.len() >= 15, "{}", recorded.len());
    for case in recorded {
        let verb = case["verb"].as_str().unwrap();
        let request = Request::post(format!("/{verb}--v1-configmap?timeout=10s"))
            .header("content-type", "application/json")
            .body(case["review"].to_string())
            .unwrap();
        let response = service.clone().oneshot(request).await.unwrap();
        assert_eq!(response.status(), 200, "{}", case["name"]);
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let answer = std::str::from_utf8(&body).unwrap();
        assert_eq!(Some(answer), case["answer"].as_str(), "{}", case["name"]);
    }
}
