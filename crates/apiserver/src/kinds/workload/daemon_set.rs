//! DaemonSets: a pod on every node.

use serde_json::{Value, json};

use super::{
    super::{
        Strategy, checks,
        look::{Fill, Look, same},
        pod::defaults::default_template,
        selector::{self, Selector},
        strategy::keep_status,
    },
    rollout::{self, Counts},
    template,
};
use crate::{
    field::{FieldError, Path},
    object::Object,
    types::Internal,
};

/// A DaemonSet.
pub(crate) const DAEMON_SET: Strategy = Strategy {
    default,
    prepare_create: |object| {
        let generation = template_generation(object).max(1);
        set_template_generation(object, generation);
        let status = json!({"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0});
        object.body.insert("status".into(), status);
    },
    prepare_update,
    validate,
    validate_update: template::check_same_selector,
    validate_status: |new, old, out| {
        COUNTS.check(new.body.part("status"), old.body.part("status"), out)
    },
    warnings: template::template_warnings,
    field_annotations: &[TEMPLATE_GENERATION],
    ..Strategy::WITH_STATUS
};

const COUNTS: Counts = Counts {
    all: &[
        "currentNumberScheduled",
        "numberMisscheduled",
        "desiredNumberScheduled",
        "numberReady",
        "observedGeneration",
        "updatedNumberScheduled",
        "numberAvailable",
        "numberUnavailable",
        "collisionCount",
    ],
    parts: &[],
    ready: "",
};

/// How often the template changed; a field once, an annotation since.
const TEMPLATE_GENERATION: &str = "deprecated.daemonset.template.generation";

fn template_generation(object: &Object) -> i64 {
    object
        .meta
        .annotations
        .get(TEMPLATE_GENERATION)
        .and_then(|v| v.parse().ok())
        .unwrap_or_default()
}

fn set_template_generation(object: &mut Object, generation: i64) {
    object
        .meta
        .annotations
        .insert(TEMPLATE_GENERATION.into(), generation.to_string());
}

fn prepare_update(new: &mut Object, old: &Object) {
    keep_status(new, old);
    let template = |object: &Object| object.body.part("spec").part("template").clone();
    let changed = !same(&template(new), &template(old));
    set_template_generation(new, template_generation(old) + i64::from(changed));
}

fn default(object: &mut Object) {
    // The real server keeps it as a field, so that every object it reads has one, and whoever wrote the object owns it.
    let generation = template_generation(object);
    set_template_generation(object, generation);
    let spec = object.section("spec");
    default_template(spec.map_at("template"));
    spec.default_to("revisionHistoryLimit", 10);
    let strategy = spec.map_at("updateStrategy");
    strategy.default_text("type", "RollingUpdate");
    if strategy.text("type") == "RollingUpdate" {
        let rolling = strategy.map_at("rollingUpdate");
        rolling.default_to("maxUnavailable", 1);
        rolling.default_to("maxSurge", 0);
    }
}

fn validate(object: &Object, out: &mut Vec<FieldError>) {
    let (spec, at) = (object.body.part("spec"), Path::field("spec"));
    let (selector, selector_at) = (spec.part("selector"), at.child("selector"));
    let (pods, template_at) = (spec.part("template"), at.child("template"));
    checks::label_selector(&selector_at, selector, out);
    if let Some(selector) = Selector::read(spec.get_set("selector")) {
        template::check_fits(&selector, pods, &template_at, out);
    }
    if !selector.is_null()
        && selector.is_empty_at("matchLabels")
        && selector.is_empty_at("matchExpressions")
    {
        out.push(selector::invalid(
            Some(selector),
            selector_at,
            "empty selector is invalid for daemonset",
        ));
    }
    template::check_lasting(pods, "DaemonSet", &template_at, out);
    checks::not_negative(
        &at.child("minReadySeconds"),
        spec.number("minReadySeconds"),
        out,
    );
    check_strategy(
        spec.part("updateStrategy"),
        &at.child("updateStrategy"),
        out,
    );
    checks::not_negative(
        &at.child("revisionHistoryLimit"),
        spec.number("revisionHistoryLimit"),
        out,
    );
}

fn check_strategy(strategy: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    match strategy.text("type") {
        "OnDelete" => {}
        "RollingUpdate" => check_rolling(
            strategy.part("rollingUpdate"),
            &at.child("rollingUpdate"),
            out,
        ),
        _ => out.push(FieldError::not_supported(
            at,
            Internal::one("apps.DaemonSetUpdateStrategy", strategy),
            &["RollingUpdate", "OnDelete"],
        )),
    }
}

fn check_rolling(rolling: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let (unavailable, surge) = (rolling.part("maxUnavailable"), rolling.part("maxSurge"));
    let (unavailable_at, surge_at) = (at.child("maxUnavailable"), at.child("maxSurge"));
    rollout::check_count(unavailable, &unavailable_at, out);
    rollout::check_count(surge, &surge_at, out);
    rollout::check_part(unavailable, &unavailable_at, out);
    rollout::check_part(surge, &surge_at, out);
    match (rollout::is_zero(unavailable), rollout::is_zero(surge)) {
        (false, false) => out.push(FieldError::invalid(
            surge_at,
            surge,
            "may not be set when maxUnavailable is non-zero",
        )),
        (true, true) => out.push(FieldError::required(
            unavailable_at,
            "cannot be 0 when maxSurge is 0",
        )),
        _ => {}
    }
}
