//! Deployments: replicas of a template with rolling updates.
//! Mirrors `ValidateDeployment` in `pkg/apis/apps/validation`.

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt},
};
use bellerophon_codec::{object::Object, types::Internal};
use serde_json::{Value, json};

use super::{
    super::{
        Generation, Strategy,
        pod::{defaults::default_template, status_keeping_labels},
        selector::{self, Selector},
        validation,
    },
    rollout::{self, Counts},
    template,
};

/// A Deployment.
pub const DEPLOYMENT: Strategy = Strategy {
    reset_fields: &[("status", &[&["spec"], &["metadata", "labels"]])],
    default,
    prepare_create: |object| {
        object.body.insert("status".into(), json!({}));
    },
    prepare_status: status_keeping_labels,
    validate,
    validate_update: template::validate_same_selector,
    validate_status: |new, old, out| {
        COUNTS.validate(new.body.field("status"), old.body.field("status"), out)
    },
    warnings: template::warnings_of,
    generation: Generation::SpecAndAnnotations,
    ..Strategy::WITH_STATUS
};

const COUNTS: Counts = Counts {
    all: &[
        "observedGeneration",
        "replicas",
        "updatedReplicas",
        "readyReplicas",
        "availableReplicas",
        "unavailableReplicas",
        "terminatingReplicas",
        "collisionCount",
    ],
    parts: &["updatedReplicas", "readyReplicas", "availableReplicas"],
    ready: "readyReplicas",
};

fn default(object: &mut Object) {
    let spec = object.section("spec");
    default_template(spec.map_at("template"));
    spec.default_to("replicas", 1);
    spec.default_to("revisionHistoryLimit", 10);
    spec.default_to("progressDeadlineSeconds", 600);
    let strategy = spec.map_at("strategy");
    strategy.default_text("type", "RollingUpdate");
    if strategy.text("type") == "RollingUpdate" {
        let rolling = strategy.map_at("rollingUpdate");
        rolling.default_to("maxUnavailable", "25%");
        rolling.default_to("maxSurge", "25%");
    }
}

fn validate(object: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("spec");
    let spec = object.body.field("spec");
    validation::not_negative(&at.child("replicas"), spec.number("replicas"), out);
    validate_pods(spec, &at, out);
    validate_strategy(spec.field("strategy"), &at.child("strategy"), out);
    validation::not_negative(
        &at.child("minReadySeconds"),
        spec.number("minReadySeconds"),
        out,
    );
    validation::not_negative(
        &at.child("revisionHistoryLimit"),
        spec.number("revisionHistoryLimit"),
        out,
    );
    if let Some(seconds) = spec.int("progressDeadlineSeconds") {
        let at = at.child("progressDeadlineSeconds");
        validation::not_negative(&at, seconds, out);
        if seconds <= spec.number("minReadySeconds") {
            out.push(FieldError::invalid(
                at,
                seconds,
                "must be greater than minReadySeconds",
            ));
        }
    }
}

/// The selector and the template it must fit, as Deployments and ReplicaSets have them.
pub(super) fn validate_pods(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    template::validate_selector(spec, "deployment", at, out);
    let pods = spec.field("template");
    let template_at = at.child("template");
    match Selector::read(spec.get_set("selector")) {
        None => out.push(selector::invalid(
            spec.get_set("selector"),
            at.child("selector"),
            "invalid label selector",
        )),
        Some(selector) => {
            template::validate_fits(&selector, pods, &template_at, out);
            template::validate_lasting(pods, "ReplicaSet", &template_at, out);
        }
    }
}

fn validate_strategy(strategy: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let rolling_at = at.child("rollingUpdate");
    match strategy.text("type") {
        "Recreate" => {
            if strategy.has("rollingUpdate") {
                out.push(FieldError::forbidden(
                    rolling_at,
                    "may not be specified when strategy `type` is 'Recreate'",
                ));
            }
        }
        "RollingUpdate" => {
            let rolling = strategy.field("rollingUpdate");
            let unavailable = rolling.field("maxUnavailable");
            let surge = rolling.field("maxSurge");
            let unavailable_at = rolling_at.child("maxUnavailable");
            rollout::validate_count(unavailable, &unavailable_at, out);
            rollout::validate_count(surge, &rolling_at.child("maxSurge"), out);
            if rollout::is_zero(unavailable) && rollout::is_zero(surge) {
                out.push(FieldError::invalid(
                    unavailable_at,
                    unavailable,
                    "may not be 0 when `maxSurge` is 0",
                ));
            }
            rollout::validate_partial_count(unavailable, &unavailable_at, out);
        }
        _ => out.push(FieldError::not_supported(
            at,
            Internal::one("apps.DeploymentStrategy", strategy),
            &["Recreate", "RollingUpdate"],
        )),
    }
}
