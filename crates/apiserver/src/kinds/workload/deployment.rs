//! Deployments: replicas of a template, rolled out step by step.

use serde_json::{Value, json};

use super::{
    super::{
        Generation, Strategy, checks,
        look::{Fill, Look},
        pod::{defaults::default_template, status_keeping_labels},
        selector::{self, Selector},
    },
    rollout::{self, Counts},
    template,
};
use crate::{
    field::{FieldError, Path},
    object::Object,
    types::Internal,
};

/// A Deployment.
pub(crate) const DEPLOYMENT: Strategy = Strategy {
    default,
    prepare_create: |object| {
        object.body.insert("status".into(), json!({}));
    },
    prepare_status: status_keeping_labels,
    validate,
    validate_update: template::check_same_selector,
    validate_status: |new, old, out| {
        COUNTS.check(new.body.part("status"), old.body.part("status"), out)
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
    let (spec, at) = (object.body.part("spec"), Path::field("spec"));
    checks::not_negative(&at.child("replicas"), spec.number("replicas"), out);
    check_pods(spec, &at, out);
    check_strategy(spec.part("strategy"), &at.child("strategy"), out);
    checks::not_negative(
        &at.child("minReadySeconds"),
        spec.number("minReadySeconds"),
        out,
    );
    checks::not_negative(
        &at.child("revisionHistoryLimit"),
        spec.number("revisionHistoryLimit"),
        out,
    );
    if let Some(seconds) = spec.int("progressDeadlineSeconds") {
        let at = at.child("progressDeadlineSeconds");
        checks::not_negative(&at, seconds, out);
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
pub(super) fn check_pods(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    template::check_selector(spec, "deployment", at, out);
    let (pods, template_at) = (spec.part("template"), at.child("template"));
    match Selector::read(spec.get_set("selector")) {
        None => out.push(selector::invalid(
            spec.get_set("selector"),
            at.child("selector"),
            "invalid label selector",
        )),
        Some(selector) => {
            template::check_fits(&selector, pods, &template_at, out);
            template::check_lasting(pods, "ReplicaSet", &template_at, out);
        }
    }
}

fn check_strategy(strategy: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
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
            let rolling = strategy.part("rollingUpdate");
            let (unavailable, surge) = (rolling.part("maxUnavailable"), rolling.part("maxSurge"));
            let unavailable_at = rolling_at.child("maxUnavailable");
            rollout::check_count(unavailable, &unavailable_at, out);
            rollout::check_count(surge, &rolling_at.child("maxSurge"), out);
            if rollout::is_zero(unavailable) && rollout::is_zero(surge) {
                out.push(FieldError::invalid(
                    unavailable_at,
                    unavailable,
                    "may not be 0 when `maxSurge` is 0",
                ));
            }
            rollout::check_part(unavailable, &unavailable_at, out);
        }
        _ => out.push(FieldError::not_supported(
            at,
            Internal::one("apps.DeploymentStrategy", strategy),
            &["Recreate", "RollingUpdate"],
        )),
    }
}
