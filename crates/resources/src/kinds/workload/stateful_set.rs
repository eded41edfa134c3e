//! StatefulSets: replicas with stable names and claims.
//! Mirrors `ValidateStatefulSet` in `pkg/apis/apps/validation`.

use std::collections::BTreeSet;

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt, same},
    names,
};
use bellerophon_codec::{object::Object, types::Internal};
use serde_json::{Map, Value, json};

use super::{
    super::{
        Strategy,
        pod::{claim, defaults::default_template, volume_defaults::default_claim_spec},
        selector::{self, Selector},
        strategy::keep_status,
        validation,
    },
    rollout::{self, Counts},
    template,
};

/// A StatefulSet.
pub const STATEFUL_SET: Strategy = Strategy {
    default,
    prepare_create: |object| {
        drop_max_unavailable(object);
        object.body.insert(
            "status".into(),
            json!({"replicas": 0, "availableReplicas": 0}),
        );
    },
    prepare_update: |new, old| {
        if !rolling_of(old).has("maxUnavailable") {
            drop_max_unavailable(new);
        }
        keep_status(new, old);
    },
    validate,
    validate_update,
    validate_status: |new, old, out| {
        COUNTS.validate(new.body.field("status"), old.body.field("status"), out)
    },
    warnings,
    name: names::dns_label,
    ..Strategy::WITH_STATUS
};

const COUNTS: Counts = Counts {
    all: &[
        "replicas",
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
        "observedGeneration",
        "collisionCount",
    ],
    parts: &[
        "readyReplicas",
        "currentReplicas",
        "updatedReplicas",
        "availableReplicas",
    ],
    ready: "status.readyReplicas",
};

fn default(object: &mut Object) {
    let spec = object.section("spec");
    default_template(spec.map_at("template"));
    spec.default_text("podManagementPolicy", "OrderedReady");
    spec.default_to("serviceName", "");
    spec.default_to("replicas", 1);
    spec.default_to("revisionHistoryLimit", 10);
    let strategy = spec.map_at("updateStrategy");
    if strategy.text("type").is_empty() {
        strategy.insert("type".into(), "RollingUpdate".into());
        strategy.map_at("rollingUpdate");
    }
    if strategy.text("type") == "RollingUpdate"
        && let Some(rolling) = strategy.map_mut("rollingUpdate")
    {
        rolling.default_to("partition", 0);
    }
    let retention = spec.map_at("persistentVolumeClaimRetentionPolicy");
    retention.default_text("whenDeleted", "Retain");
    retention.default_text("whenScaled", "Retain");
    for claim in spec.maps_mut("volumeClaimTemplates") {
        claim.insert("apiVersion".into(), "v1".into());
        claim.insert("kind".into(), "PersistentVolumeClaim".into());
        default_claim_spec(claim.map_at("spec"));
        claim.map_at("status").default_text("phase", "Pending");
    }
}

fn rolling_of(object: &Object) -> &Value {
    object
        .body
        .field("spec")
        .field("updateStrategy")
        .field("rollingUpdate")
}

/// Replacing several pods at a time is not served yet.
fn drop_max_unavailable(object: &mut Object) {
    if let Some(rolling) = object
        .section("spec")
        .map_mut("updateStrategy")
        .and_then(|s| s.map_mut("rollingUpdate"))
    {
        rolling.remove("maxUnavailable");
    }
}

fn validate(object: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("spec");
    let spec = object.body.field("spec");
    validate_strategies(spec, &at, out);
    let retention_at = at.child("persistentVolumeClaimRetentionPolicy");
    for field in ["whenDeleted", "whenScaled"] {
        let policy = spec
            .field("persistentVolumeClaimRetentionPolicy")
            .text(field);
        validation::one_of(
            &retention_at.child(field),
            policy,
            &["Retain", "Delete"],
            out,
        );
    }
    let claims_at = at.child("volumeClaimTemplates");
    for (i, template) in spec.list("volumeClaimTemplates").iter().enumerate() {
        let item = claims_at.index(i);
        claim::validate_spec(template.field("spec"), &item.child("spec"), out);
    }
    for field in ["replicas", "minReadySeconds"] {
        validation::not_negative(&at.child(field), spec.number(field), out);
    }
    validation::not_negative(
        &at.child("ordinals.start"),
        spec.field("ordinals").number("start"),
        out,
    );
    let service = spec.text("serviceName");
    if !service.is_empty() {
        validation::named(
            &at.child("serviceName"),
            service,
            names::dns_label(service),
            out,
        );
    }
    template::validate_selector(spec, "statefulset", &at, out);
    let template_at = at.child("template");
    match Selector::read(spec.get_set("selector")) {
        None => out.push(selector::invalid(
            spec.get_set("selector"),
            at.child("selector"),
            "",
        )),
        Some(selector) => {
            let pods = with_claims(spec);
            template::validate_fits(&selector, &pods, &template_at, out);
            template::validate(&pods, &template_at, out);
        }
    }
    template::validate_lasting_spec(spec.field("template"), "StatefulSet", &template_at, out);
}

fn validate_strategies(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    match spec.text("podManagementPolicy") {
        "OrderedReady" | "Parallel" => {}
        other => out.push(FieldError::invalid(
            at.child("podManagementPolicy"),
            other,
            "must be 'OrderedReady' or 'Parallel'",
        )),
    }
    let strategy = spec.field("updateStrategy");
    let at = at.child("updateStrategy");
    let rolling = strategy.field("rollingUpdate");
    let rolling_at = at.child("rollingUpdate");
    match strategy.text("type") {
        "OnDelete" if rolling.is_null() => {}
        "OnDelete" => {
            let shown = Internal::one("apps.RollingUpdateStatefulSetStrategy", rolling);
            out.push(FieldError::invalid(
                rolling_at,
                shown,
                "only allowed for updateStrategy 'RollingUpdate'",
            ));
        }
        "RollingUpdate" => {
            validation::not_negative(
                &rolling_at.child("partition"),
                rolling.number("partition"),
                out,
            );
            if let Some(unavailable) = rolling.get_set("maxUnavailable") {
                let at = rolling_at.child("maxUnavailable");
                rollout::validate_count(unavailable, &at, out);
                if rollout::is_zero(unavailable) {
                    out.push(FieldError::invalid(at, unavailable, "cannot be 0"));
                }
                rollout::validate_partial_count(unavailable, &at, out);
            }
        }
        _ => {
            let shown = Internal::one("apps.StatefulSetUpdateStrategy", strategy);
            out.push(FieldError::invalid(
                at,
                shown,
                "must be 'RollingUpdate' or 'OnDelete'",
            ));
        }
    }
}

/// The template of the pods: with the volumes of the claims, and without the names that each pod
/// gets.
fn with_claims(spec: &Value) -> Value {
    let mut template = spec
        .field("template")
        .as_object()
        .cloned()
        .unwrap_or_default();
    let pods = template.map_at("spec");
    pods.remove("hostname");
    pods.remove("subdomain");
    let names: Vec<&str> = spec
        .list("volumeClaimTemplates")
        .iter()
        .map(|c| c.field("metadata").text("name"))
        .collect();
    if !names.is_empty() {
        let claim =
            |name: &&str| json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
        let mut volumes: Vec<Value> = names.iter().map(claim).collect();
        let claimed: BTreeSet<&str> = names.iter().copied().collect();
        volumes.extend(
            pods.field("volumes")
                .as_array()
                .into_iter()
                .flatten()
                .filter(|v| !claimed.contains(v.text("name")))
                .cloned(),
        );
        pods.insert("volumes".into(), volumes.into());
    }
    Value::Object(template)
}

/// The mutable fields of the spec of a StatefulSet.
const MUTABLE: [&str; 7] = [
    "replicas",
    "template",
    "updateStrategy",
    "minReadySeconds",
    "ordinals",
    "revisionHistoryLimit",
    "persistentVolumeClaimRetentionPolicy",
];

fn validate_update(new: &Object, old: &Object, out: &mut Vec<FieldError>) {
    let fixed = |object: &Object| {
        let spec = object.body.field("spec").as_object().into_iter().flatten();
        Value::Object(
            spec.filter(|(k, _)| !MUTABLE.contains(&k.as_str()))
                .map(|(k, v)| (k.clone(), v.clone()))
                .collect::<Map<_, _>>(),
        )
    };
    if !same(&fixed(new), &fixed(old)) {
        out.push(FieldError::forbidden(
            "spec",
            "updates to statefulset spec for fields other than 'replicas', 'ordinals', 'template', 'updateStrategy', 'revisionHistoryLimit', 'persistentVolumeClaimRetentionPolicy' and 'minReadySeconds' are forbidden",
        ));
    }
}

fn warnings(new: &Object, old: Option<&Object>) -> Vec<String> {
    let mut out = template::template_warnings(new, old);
    if new.body.field("spec").number("revisionHistoryLimit") < 0 {
        out.push("spec.revisionHistoryLimit: a negative value retains all historical revisions; a value >= 0 is recommended".into());
    }
    out
}
