//! AdmissionReviews and their answers.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bellerophon::webhook::{
    FailurePolicy, FieldError, Mutator, OnDryRun, Operation, Rejection, Review, SideEffects,
    Validator,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use serde_json::{Value, json};

use super::{post, review, unconnected_manager};

const VALIDATE: &str = "/validate--v1-configmap?timeout=10s";
const MUTATE: &str = "/mutate--v1-configmap?timeout=10s";

fn check(review: &Review<ConfigMap>, map: &ConfigMap) -> Result<(), Rejection> {
    let data = map.data.clone().unwrap_or_default();
    match data.get("verdict").map_or("", String::as_str) {
        "deny" => Err(Rejection::denied("not today")),
        "invalid" => Err(Rejection::invalid([FieldError::invalid(
            "data.verdict",
            "invalid",
            "must be better",
        )])),
        "fail" => Err(std::fmt::Error)?,
        "panic" => panic!("out of luck"),
        "warn" => {
            review.warn("mind the gap");
            review.annotate("gap", "minded");
            Ok(())
        }
        _ => Ok(()),
    }
}

fn with_verdict(verdict: &str) -> String {
    let object = json!({"metadata": {"name": "settings"}, "data": {"verdict": verdict}});
    review(json!({"object": object})).to_string()
}

#[tokio::test(start_paused = true)]
async fn every_verdict_has_the_answer_that_the_api_server_expects() {
    let mut mgr = unconnected_manager();
    mgr.webhook::<ConfigMap>()
        .validate(FailurePolicy::Fail, check);
    let service = mgr.webhook_service();
    let uid = "705ab4f5-6393-11e8-b7cc-42010a800002";
    for (verdict, status, response) in [
        (
            "admit",
            200,
            json!({"uid": uid, "allowed": true, "status": {"metadata": {}, "code": 200}}),
        ),
        (
            "deny",
            200,
            json!({"uid": uid, "allowed": false, "status": {
                "metadata": {}, "message": "not today", "reason": "Forbidden", "code": 403,
            }}),
        ),
        (
            "invalid",
            200,
            json!({"uid": uid, "allowed": false, "status": {
                "metadata": {}, "status": "Failure",
                "message": "ConfigMap \"settings\" is invalid: data.verdict: Invalid value: \
                            \"invalid\": must be better",
                "reason": "Invalid",
                "details": {"name": "settings", "kind": "ConfigMap", "causes": [{
                    "reason": "FieldValueInvalid",
                    "message": "Invalid value: \"invalid\": must be better",
                    "field": "data.verdict",
                }]},
                "code": 422,
            }}),
        ),
        (
            "warn",
            200,
            json!({
                "uid": uid, "allowed": true, "status": {"metadata": {}, "code": 200},
                "auditAnnotations": {"gap": "minded"}, "warnings": ["mind the gap"],
            }),
        ),
    ] {
        let (code, answer) = post(&service, VALIDATE, with_verdict(verdict)).await;
        assert_eq!(code, status, "{verdict}");
        assert_eq!(answer["response"], response, "{verdict}");
        assert_eq!(answer["kind"], "AdmissionReview");
        assert_eq!(answer["apiVersion"], "admission.k8s.io/v1");
    }
    // Errors of the call, to which the failure policy applies: the body is what a client sees.
    for (verdict, message) in [
        ("panic", "panic: out of luck [recovered]"),
        ("fail", "an error occurred when formatting an argument"),
    ] {
        let (code, status) = post(&service, VALIDATE, with_verdict(verdict)).await;
        assert_eq!(code, 500, "{verdict}");
        assert_eq!(status["kind"], "Status");
        assert_eq!(status["message"], message);
        assert_eq!(status["details"]["uid"], uid);
    }
    let metrics = mgr.metrics().encode();
    for line in [
        "controller_runtime_webhook_panics_total 1",
        "controller_runtime_webhook_requests_total{webhook=\"/validate--v1-configmap\",code=\"200\"} 4",
        "controller_runtime_webhook_requests_total{webhook=\"/validate--v1-configmap\",code=\"500\"} 2",
        "controller_runtime_webhook_requests_in_flight{webhook=\"/validate--v1-configmap\"} 0",
        "controller_runtime_webhook_latency_seconds_count{webhook=\"/validate--v1-configmap\"} 6",
    ] {
        assert!(metrics.contains(line), "{line} is missing in {metrics}");
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_no_review_is_refused() {
    let mut mgr = unconnected_manager();
    mgr.webhook::<ConfigMap>()
        .validate(FailurePolicy::Fail, check);
    let service = mgr.webhook_service();
    let pod = json!({"group": "", "version": "v1", "kind": "Pod"});
    let other_version =
        json!({"apiVersion": "admission.k8s.io/v1beta1", "kind": "AdmissionReview"});
    let no_request = json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview"});
    for (path, body, code, message) in [
        (VALIDATE, "{".to_owned(), 400, "this is no AdmissionReview"),
        (
            VALIDATE,
            other_version.to_string(),
            400,
            "admission.k8s.io/v1beta1",
        ),
        (VALIDATE, no_request.to_string(), 400, "has no request"),
        (
            VALIDATE,
            review(json!({"kind": pod})).to_string(),
            400,
            "this webhook is for v1 ConfigMap, not v1 Pod",
        ),
        (
            VALIDATE,
            "x".repeat(7 * 1024 * 1024 + 1),
            413,
            "7340032 bytes at most",
        ),
        (
            "/validate-v2",
            review(json!({})).to_string(),
            404,
            "no webhook at /validate-v2",
        ),
        (
            "//validate--v1-configmap",
            "[]".to_owned(),
            400,
            "this is no AdmissionReview",
        ),
    ] {
        let (status, answer) = post(&service, path, body).await;
        assert_eq!(status, code, "{message}");
        let found = answer["message"].as_str().unwrap();
        assert!(found.contains(message), "{found}");
    }
    // As controller-runtime, an object that the type cannot decode is denied.
    let undecodable = json!({"metadata": {"name": "settings"}, "data": "text"});
    let (status, answer) = post(
        &service,
        VALIDATE,
        review(json!({"object": undecodable})).to_string(),
    )
    .await;
    assert_eq!(status, 200);
    assert_eq!(answer["response"]["allowed"], false);
    assert_eq!(answer["response"]["status"]["code"], 400);
}

/// Answers after a minute.
struct Slow;

impl Validator<ConfigMap> for Slow {
    async fn validate(&self, _: &Review<ConfigMap>, _: &ConfigMap) -> Result<(), Rejection> {
        tokio::time::sleep(Duration::from_secs(60)).await;
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn a_slow_handler_is_cut_off_before_the_api_server_gives_up() {
    let mut mgr = unconnected_manager();
    mgr.webhook::<ConfigMap>()
        .validate(FailurePolicy::Fail, Slow);
    let service = mgr.webhook_service();
    let started = tokio::time::Instant::now();
    let (code, status) = post(&service, VALIDATE, review(json!({})).to_string()).await;
    assert_eq!(code, 504);
    assert_eq!(status["message"], "the handler did not answer within 9.5s");
    let took = started.elapsed().as_millis();
    assert!((9_500..9_510).contains(&took), "{took} ms");
}

#[tokio::test(start_paused = true)]
async fn a_deletion_gives_the_object_that_is_deleted() {
    let mut mgr = unconnected_manager();
    let check = |review: &Review<ConfigMap>, map: &ConfigMap| {
        assert_eq!(review.operation(), Operation::Delete);
        assert_eq!(map.name_any(), "old");
        assert_eq!(
            review.old_object().map(ResourceExt::name_any).as_deref(),
            Some("old")
        );
        assert_eq!(review.user().username.as_deref(), Some("alice"));
        assert_eq!(review.namespace(), Some("team-a"));
        assert_eq!(review.subresource(), None);
        assert_eq!(review.options()["kind"], "CreateOptions");
        Ok(())
    };
    mgr.webhook::<ConfigMap>()
        .operations([Operation::Delete])
        .validate(FailurePolicy::Fail, check);
    let old = json!({"metadata": {"name": "old"}});
    let fields = json!({"operation": "DELETE", "object": null, "oldObject": old});
    let (code, answer) = post(&mgr.webhook_service(), VALIDATE, review(fields).to_string()).await;
    assert_eq!(code, 200);
    assert_eq!(answer["response"]["allowed"], true);
}

fn label(_: &Review<ConfigMap>, map: &mut ConfigMap) -> Result<(), Rejection> {
    map.labels_mut().insert("team".into(), "heroes".into());
    Ok(())
}

/// The JSON patch of an answer.
fn patch_of(answer: &Value) -> Option<Value> {
    let patch = answer["response"].get("patch")?.as_str().unwrap();
    assert_eq!(answer["response"]["patchType"], "JSONPatch");
    Some(serde_json::from_slice(&BASE64_STANDARD.decode(patch).unwrap()).unwrap())
}

#[tokio::test(start_paused = true)]
async fn a_mutation_is_answered_by_the_smallest_patch() {
    let mut mgr = unconnected_manager();
    mgr.webhook::<ConfigMap>()
        .mutate(FailurePolicy::Fail, label);
    let service = mgr.webhook_service();
    let (_, answer) = post(&service, MUTATE, review(json!({})).to_string()).await;
    let expected = json!([{"op": "add", "path": "/metadata/labels", "value": {"team": "heroes"}}]);
    assert_eq!(patch_of(&answer), Some(expected));
    // A field that the type does not know, and a value that is there already.
    let object = json!({
        "metadata": {"name": "settings", "labels": {"team": "heroes"}, "future": 1},
        "future": {"field": true},
    });
    let (_, answer) = post(
        &service,
        MUTATE,
        review(json!({"object": object})).to_string(),
    )
    .await;
    assert_eq!(patch_of(&answer), None);
    assert_eq!(answer["response"]["patchType"], Value::Null);
}

/// Counts its calls.
#[derive(Clone, Default)]
struct Counting(Arc<AtomicUsize>);

impl Mutator<ConfigMap> for Counting {
    async fn mutate(&self, _: &Review<ConfigMap>, _: &mut ConfigMap) -> Result<(), Rejection> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn side_effects_happen_on_no_dry_run_unless_the_handler_takes_it() {
    for (on_dry_run, calls, is_allowed) in [
        (OnDryRun::Handle, 1, true),
        (OnDryRun::Admit, 0, true),
        (OnDryRun::Deny, 0, false),
    ] {
        let mut mgr = unconnected_manager();
        let counting = Counting::default();
        let handler = SideEffects::new(counting.clone(), on_dry_run);
        mgr.webhook::<ConfigMap>()
            .mutate(FailurePolicy::Fail, handler);
        let dry_run = review(json!({"dryRun": true})).to_string();
        let (code, answer) = post(&mgr.webhook_service(), MUTATE, dry_run).await;
        assert_eq!(code, 200);
        assert_eq!(answer["response"]["allowed"], is_allowed, "{on_dry_run:?}");
        assert_eq!(counting.0.load(Ordering::SeqCst), calls, "{on_dry_run:?}");
        let (_, answer) = post(
            &mgr.webhook_service(),
            MUTATE,
            review(json!({})).to_string(),
        )
        .await;
        assert_eq!(answer["response"]["allowed"], true);
        assert_eq!(
            counting.0.load(Ordering::SeqCst),
            calls + 1,
            "{on_dry_run:?}"
        );
        let configurations = mgr.webhook_manifests();
        let webhook = &configurations[0]["webhooks"][0];
        assert_eq!(webhook["sideEffects"], "NoneOnDryRun");
    }
}
