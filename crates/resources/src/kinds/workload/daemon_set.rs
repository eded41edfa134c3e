//! DaemonSets: a pod on every node.
//! Mirrors `ValidateDaemonSet` in `pkg/apis/apps/validation`.

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt, same},
};
use bellerophon_codec::{object::Object, types::Internal};
use serde_json::{Value, json};

use super::{
    super::{
        Strategy,
        pod::defaults::default_template,
        selector::{self, Selector},
        strategy::keep_status,
        validation,
    },
    rollout::{self, Counts},
    template,
};

/// A DaemonSet.
pub const DAEMON_SET: Strategy = Strategy {
    default,
    prepare_create: |object| {
        let generation = template_generation(object).max(1);
        set_template_generation(object, generation);
        let status = json!({"currentNumberScheduled": 0, "numberMisscheduled": 0, "desiredNumberScheduled": 0, "numberReady": 0});
        object.body.insert("status".into(), status);
    },
    prepare_update,
    validate,
    validate_update: template::validate_same_selector,
    validate_status: |new, old, out| {
        COUNTS.validate(new.body.field("status"), old.body.field("status"), out)
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
    let template = |object: &Object| object.body.field("spec").field("template").clone();
    let changed = !same(&template(new), &template(old));
    set_template_generation(new, template_generation(old) + i64::from(changed));
}

fn default(object: &mut Object) {
    // kube-apiserver keeps it as a field, so that every object it reads has one, and the manager
    // that wrote the object owns it.
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
    let at = Path::field("spec");
    let spec = object.body.field("spec");
    let selector_at = at.child("selector");
    let selector = spec.field("selector");
    let pods = spec.field("template");
    let template_at = at.child("template");
    validation::label_selector(&selector_at, selector, out);
    if let Some(selector) = Selector::read(spec.get_set("selector")) {
        template::validate_fits(&selector, pods, &template_at, out);
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
    template::validate_lasting(pods, "DaemonSet", &template_at, out);
    validation::not_negative(
        &at.child("minReadySeconds"),
        spec.number("minReadySeconds"),
        out,
    );
    validate_strategy(
        spec.field("updateStrategy"),
        &at.child("updateStrategy"),
        out,
    );
    validation::not_negative(
        &at.child("revisionHistoryLimit"),
        spec.number("revisionHistoryLimit"),
        out,
    );
}

fn validate_strategy(strategy: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    match strategy.text("type") {
        "OnDelete" => {}
        "RollingUpdate" => validate_rolling(
            strategy.field("rollingUpdate"),
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

fn validate_rolling(rolling: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let unavailable = rolling.field("maxUnavailable");
    let surge = rolling.field("maxSurge");
    let unavailable_at = at.child("maxUnavailable");
    let surge_at = at.child("maxSurge");
    rollout::validate_count(unavailable, &unavailable_at, out);
    rollout::validate_count(surge, &surge_at, out);
    rollout::validate_partial_count(unavailable, &unavailable_at, out);
    rollout::validate_partial_count(surge, &surge_at, out);
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
