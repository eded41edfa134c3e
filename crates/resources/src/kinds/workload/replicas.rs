//! ReplicaSets and ReplicationControllers: a number of pods from a template.
//! Mirrors `ValidateReplicaSet` in `pkg/apis/apps/validation` and `ValidateReplicationController`.

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt},
};
use bellerophon_codec::object::Object;
use serde_json::{Value, json};

use super::{
    super::{Strategy, pod::defaults::default_template, selector::Selector, validation},
    deployment,
    rollout::Counts,
    template,
};

/// A ReplicaSet.
pub const REPLICA_SET: Strategy = Strategy {
    default: |object| {
        let spec = object.section("spec");
        default_template(spec.map_at("template"));
        spec.default_to("replicas", 1);
    },
    prepare_create: |object| {
        object.body.insert("status".into(), json!({"replicas": 0}));
    },
    validate: |object, out| {
        let at = Path::field("spec");
        let spec = object.body.field("spec");
        validation::not_negative(&at.child("replicas"), spec.number("replicas"), out);
        validation::not_negative(
            &at.child("minReadySeconds"),
            spec.number("minReadySeconds"),
            out,
        );
        deployment::validate_pods(spec, &at, out);
    },
    validate_update: template::validate_same_selector,
    validate_status: |new, old, out| {
        COUNTS.validate(new.body.field("status"), old.body.field("status"), out)
    },
    warnings: template::warnings_of,
    ..Strategy::WITH_STATUS
};

/// A ReplicationController, the older form with a plain map as selector.
pub const REPLICATION_CONTROLLER: Strategy = Strategy {
    default: default_controller,
    prepare_create: REPLICA_SET.prepare_create,
    validate: validate_controller,
    validate_status: REPLICA_SET.validate_status,
    warnings: template::warnings_of,
    orphans: true,
    ..Strategy::WITH_STATUS
};

const COUNTS: Counts = Counts {
    all: &[
        "replicas",
        "fullyLabeledReplicas",
        "readyReplicas",
        "availableReplicas",
        "observedGeneration",
        "terminatingReplicas",
    ],
    parts: &["fullyLabeledReplicas", "readyReplicas", "availableReplicas"],
    ready: "readyReplicas",
};

/// Selector and labels of a controller are those of its template when it has none.
fn default_controller(object: &mut Object) {
    let spec = object.section("spec");
    spec.default_to("replicas", 1);
    let Some(template) = spec.map_mut("template") else {
        return;
    };
    default_template(template);
    let Some(labels) = template
        .field("metadata")
        .field("labels")
        .as_object()
        .cloned()
    else {
        return;
    };
    if spec.is_empty_at("selector") {
        spec.insert("selector".into(), Value::Object(labels.clone()));
    }
    if object.meta.labels.is_empty() {
        let text = |v: &Value| v.as_str().unwrap_or_default().to_owned();
        object.meta.labels = labels.iter().map(|(k, v)| (k.clone(), text(v))).collect();
    }
}

fn validate_controller(object: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("spec");
    let spec = object.body.field("spec");
    validation::not_negative(
        &at.child("minReadySeconds"),
        spec.number("minReadySeconds"),
        out,
    );
    let selector = Selector::of_labels(spec.field("selector").as_object());
    if selector.is_empty() {
        out.push(FieldError::required(at.child("selector"), ""));
    }
    validation::not_negative(&at.child("replicas"), spec.number("replicas"), out);
    let at = at.child("template");
    match spec.get_set("template") {
        None => out.push(FieldError::required(at, "")),
        Some(template) => {
            template::validate_fits(&selector, template, &at, out);
            template::validate_lasting(template, "ReplicationController", &at, out);
        }
    }
}
