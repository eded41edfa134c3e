//! Resources changed in place: the `resize` subresource of a pod.
//! In: the new and the old Pod of such a write. Out: the Pod to store, and the errors of the
//! change.
//! Mirrors `ValidatePodResize` in `pkg/apis/core/validation`.

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt, same},
};
use bellerophon_codec::object::Object;
use serde_json::{Map, Value};

use super::{keep_metadata, resources::qos_class, spec_value, validate};

const LISTS: [&str; 2] = ["containers", "initContainers"];

/// Restores everything but resources and resize policies, unless containers were added or removed,
/// which is rejected then.
pub fn prepare(new: &mut Object, old: &Object) {
    let spec = spec_value(new);
    let before = spec_value(old);
    if LISTS
        .iter()
        .any(|l| spec.list(l).len() != before.list(l).len())
    {
        return;
    }
    let merged: Vec<(&str, Value)> = LISTS
        .iter()
        .map(|l| (*l, merged(spec.list(l), before.list(l))))
        .collect();
    let own = spec.get_set("resources").cloned();
    keep_metadata(new, old);
    new.body.clone_from(&old.body);
    let spec = new.section("spec");
    for (list, containers) in merged
        .into_iter()
        .filter(|(_, c)| !c.as_array().is_none_or(Vec::is_empty))
    {
        spec.insert(list.to_owned(), containers);
    }
    match own {
        Some(resources) => spec.insert("resources".into(), resources),
        None => spec.remove("resources"),
    };
}

/// The old containers with the resources of the new ones; renamed or reordered ones are kept as
/// sent, to be rejected.
fn merged(new: &[Value], old: &[Value]) -> Value {
    if new
        .iter()
        .zip(old)
        .any(|(new, old)| new.text("name") != old.text("name"))
    {
        return new.to_vec().into();
    }
    let mut containers = old.to_vec();
    for (container, new) in containers
        .iter_mut()
        .filter_map(Value::as_object_mut)
        .zip(new)
    {
        for field in ["resources", "resizePolicy"] {
            match new.get(field) {
                Some(value) => container.insert(field.to_owned(), value.clone()),
                None => container.remove(field),
            };
        }
    }
    containers.into()
}

/// The errors of the prepared pod and the change.
pub fn validate_resize(new: &Object, old: &Object, out: &mut Vec<FieldError>) {
    let before = spec_value(old);
    let at = Path::field("spec");
    let spec = spec_value(new);
    for (held, detail) in [
        (
            old.meta.annotations.contains_key(super::spec::MIRROR),
            "static pods cannot be resized",
        ),
        (
            before.field("os").text("name") == "windows",
            "windows pods cannot be resized",
        ),
    ] {
        if held {
            out.push(FieldError::forbidden("", detail));
            return;
        }
    }
    validate(new, out);
    let class = new.body.field("status").text("qosClass");
    let old_class = old.body.field("status").text("qosClass");
    if qos_class(spec)
        != if old_class.is_empty() {
            qos_class(before)
        } else {
            old_class
        }
    {
        out.push(FieldError::invalid(
            at,
            class,
            "Pod QOS Class may not change as a result of resizing",
        ));
    }
    let running = old
        .body
        .field("status")
        .list("containerStatuses")
        .iter()
        .find(|c| c.field("state").has("running"));
    if running.is_some_and(|c| !c.has("resources")) {
        out.push(FieldError::forbidden(
            at,
            "Pod running on node without support for resize",
        ));
    }
    validate_pod_level(spec, before, &at, out);
    if !validate_order(spec, before, &at, out) {
        return;
    }
    for list in ["initContainers", "containers"] {
        validate_containers(spec.list(list), before.list(list), &at.child(list), out);
    }
    if out.is_empty() && !same(&without_resources(spec), &without_resources(before)) {
        out.push(FieldError::forbidden(
            at,
            "only cpu and memory resources are mutable",
        ));
    }
}

/// The names and order of containers are immutable; returns whether they are unchanged.
fn validate_order(new: &Value, old: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) -> bool {
    let before = out.len();
    for list in LISTS {
        let list_at = at.child(list);
        if new.list(list).len() != old.list(list).len() {
            out.push(FieldError::forbidden(
                list_at,
                &format!("{list} may not be added or removed on resize"),
            ));
            continue;
        }
        for (i, (new, old)) in new.list(list).iter().zip(old.list(list)).enumerate() {
            if new.text("name") != old.text("name") {
                let detail = format!("{list} may not be renamed or reordered on resize");
                out.push(FieldError::forbidden(
                    list_at.index(i).child("name"),
                    &detail,
                ));
            }
        }
    }
    out.len() == before
}

fn validate_containers(new: &[Value], old: &[Value], at: &Path<'_>, out: &mut Vec<FieldError>) {
    for (i, (new, old)) in new.iter().zip(old).enumerate() {
        let item = at.index(i);
        let resources_at = item.child("resources");
        for list in ["requests", "limits"] {
            if removed(new.field("resources"), old.field("resources"), list) {
                out.push(FieldError::forbidden(
                    resources_at.child(list),
                    &format!("resource {list} cannot be removed"),
                ));
            }
        }
        if !same(
            &rigid(new.field("resources")),
            &rigid(old.field("resources")),
        ) {
            out.push(FieldError::forbidden(
                "spec",
                "only cpu and memory resources are mutable",
            ));
        }
    }
}

fn validate_pod_level(new: &Value, old: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let at = at.child("resources");
    let (Some(before), after) = (old.get_set("resources"), new.get_set("resources")) else {
        return;
    };
    let Some(after) = after else {
        out.push(FieldError::forbidden(
            at,
            "pod-level resources cannot be removed",
        ));
        return;
    };
    for list in ["requests", "limits"] {
        if removed(after, before, list) {
            out.push(FieldError::forbidden(
                at.child(list),
                &format!("pod-level resource {list} cannot be removed"),
            ));
        }
    }
    if !same(&rigid(after), &rigid(before)) {
        out.push(FieldError::forbidden(
            "spec",
            "only cpu and memory resources are mutable at pod-level",
        ));
    }
}

fn removed(new: &Value, old: &Value, list: &str) -> bool {
    old.entries(list)
        .any(|(name, _)| !new.field(list).has(name))
}

/// The resources that cannot be resized.
fn rigid(resources: &Value) -> Value {
    let mut rest = Map::new();
    for list in ["limits", "requests"] {
        let amounts = resources
            .entries(list)
            .filter(|(n, _)| !matches!(n.as_str(), "cpu" | "memory"));
        rest.insert(
            list.to_owned(),
            Value::Object(amounts.map(|(n, a)| (n.clone(), a.clone())).collect()),
        );
    }
    rest.insert("claims".to_owned(), resources.field("claims").clone());
    Value::Object(rest)
}

fn without_resources(spec: &Value) -> Value {
    let mut spec = spec.as_object().cloned().unwrap_or_default();
    spec.remove("resources");
    for list in LISTS {
        spec.maps_mut(list).for_each(|container| {
            container.remove("resources");
        });
    }
    Value::Object(spec)
}
