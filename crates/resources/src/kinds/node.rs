//! Nodes: a create may set the status; pod CIDRs and provider ID are set once.
//! Mirrors `ValidateNode` and `ValidateNodeUpdate` in `pkg/apis/core/validation`.

use std::collections::BTreeSet;

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt},
    names,
};
use bellerophon_codec::{object::Object, types::Internal};
use serde_json::{Map, Value, json};

use super::{
    Generation, ProxyTarget, Strategy,
    strategy::keep_status,
    validation::{self, duplicate_because},
};

/// The strategy of Nodes. Mirrors `pkg/registry/core/node`.
pub const NODE: Strategy = Strategy {
    proxy: Some(ProxyTarget::Node),
    default,
    prepare_create,
    prepare_update: |new, old| {
        keep_status(new, old);
        drop_config_source(new, old);
    },
    validate,
    validate_update,
    validate_status: |new, old, out| {
        validate(new, out);
        validate_update(new, old, out);
    },
    warnings,
    generation: Generation::None,
    ..Strategy::WITH_STATUS
};

const ZERO_INFO: &[&str] = &[
    "machineID",
    "systemUUID",
    "bootID",
    "kernelVersion",
    "osImage",
    "containerRuntimeVersion",
    "kubeletVersion",
    "kubeProxyVersion",
    "operatingSystem",
    "architecture",
];

fn default(node: &mut Object) {
    let spec = node.section("spec");
    // The single range is an older name for the first of the list; the list wins.
    if let Some(first) = spec.list("podCIDRs").first().cloned() {
        spec.insert("podCIDR".into(), first);
    } else if !spec.text("podCIDR").is_empty() {
        let only = spec.field("podCIDR").clone();
        spec.insert("podCIDRs".into(), json!([only]));
    }
    let status = node.section("status");
    if let Some(capacity) = status.get_set("capacity").cloned() {
        status.default_to("allocatable", capacity);
    }
    status.default_to("daemonEndpoints", json!({"kubeletEndpoint": {"Port": 0}}));
    status.default_to("nodeInfo", Map::new());
    let info = status.map_mut("nodeInfo").into_iter();
    info.for_each(|info| ZERO_INFO.iter().for_each(|name| info.default_to(name, "")));
}

fn prepare_create(node: &mut Object) {
    node.section("spec").remove("configSource");
    node.section("status").remove("config");
}

/// A removed feature: the field is kept only where an old object has it.
fn drop_config_source(new: &mut Object, old: &Object) {
    if old.at("spec.configSource").is_none() {
        new.section("spec").remove("configSource");
    }
}

/// Adds the not-ready taint to every new node: no pod is scheduled there until the node is ready.
/// Mirrors the plugin TaintNodesByCondition.
pub fn taint_not_ready(node: &mut Object) {
    let spec = node.section("spec");
    let mut taints = spec.list("taints").to_vec();
    let not_ready = |t: &Value| {
        t.text("key") == "node.kubernetes.io/not-ready" && t.text("effect") == "NoSchedule"
    };
    if !taints.iter().any(not_ready) {
        taints.push(json!({"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}));
        spec.insert("taints".into(), taints.into());
    }
}

fn validate(node: &Object, out: &mut Vec<FieldError>) {
    taints(node.body.field("spec").list("taints"), out);
    resources(node.body.field("status"), out);
    features(node.body.field("status").list("declaredFeatures"), out);
    pod_ranges(node.body.field("spec").field("podCIDRs"), out);
}

fn taints(taints: &[Value], out: &mut Vec<FieldError>) {
    let all = Path::field("metadata.taints");
    let mut seen = BTreeSet::new();
    for (i, taint) in taints.iter().enumerate() {
        let at = all.index(i);
        let key = taint.text("key");
        let value = taint.text("value");
        let effect = taint.text("effect");
        validation::named(&at.child("key"), key, names::qualified_name(key), out);
        let errors = names::label_value(value);
        if !errors.is_empty() {
            out.push(FieldError::invalid(
                at.child("value"),
                value,
                &errors.join(";"),
            ));
        }
        match effect {
            "" => out.push(FieldError::required(at.child("effect"), "")),
            _ => validation::one_of(
                &at.child("effect"),
                effect,
                &["NoSchedule", "PreferNoSchedule", "NoExecute"],
                out,
            ),
        }
        if !seen.insert((effect, key)) {
            out.push(duplicate_because(
                &at,
                Internal::one("core.Taint", taint),
                "taints must be unique by key and effect pair",
            ));
        }
    }
}

fn resources(status: &Value, out: &mut Vec<FieldError>) {
    let root = Path::field("status");
    for section in ["capacity", "allocatable"] {
        for (resource, amount) in status.entries(section) {
            validation::resource_amount(
                &root.child(section).child(resource),
                resource,
                amount,
                out,
            );
        }
    }
}

fn features(features: &[Value], out: &mut Vec<FieldError>) {
    let all = Path::field("status.declaredFeatures");
    let names: Vec<&str> = features.iter().filter_map(Value::as_str).collect();
    for (i, name) in names.iter().enumerate() {
        if !is_feature(name) {
            let why = format!(
                "invalid feature name {name:?}: must start with an UpperCamelCase segment, with subsequent segments separated by '/' (e.g., MyFeature or MyFeature/mySubFeature), and contain only alphanumeric characters and slashes"
            );
            out.push(FieldError::invalid(all.index(i), *name, &why));
        }
        let Some(next) = names.get(i + 1) else {
            continue;
        };
        if name == next {
            out.push(FieldError::duplicate(all.index(i + 1), *next));
        } else if name > next {
            out.push(FieldError::invalid(
                all.index(i + 1),
                *next,
                "list must be sorted alphabetically",
            ));
        }
    }
}

fn is_feature(name: &str) -> bool {
    let word = |s: &str| !s.is_empty() && s.chars().all(|c| c.is_ascii_alphanumeric());
    name.len() <= 253
        && name.starts_with(|c: char| c.is_ascii_uppercase())
        && name.split('/').all(word)
}

fn pod_ranges(ranges: &Value, out: &mut Vec<FieldError>) {
    let all = Path::field("spec.podCIDRs");
    let texts: Vec<&str> = ranges
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    for (i, text) in texts.iter().enumerate() {
        validation::cidr(&all.index(i), text, out);
    }
    if texts.len() > 1 {
        let v4: Vec<bool> = texts
            .iter()
            .filter_map(|t| validation::parse_cidr(t))
            .map(|(ip, _)| ip.is_ipv4())
            .collect();
        let one_of_each = texts.len() == 2 && v4.contains(&true) && v4.contains(&false);
        if !one_of_each {
            out.push(FieldError::invalid(
                all,
                ranges,
                "may specify no more than one CIDR for each IP family",
            ));
        }
    }
}

fn validate_update(new: &Object, old: &Object, out: &mut Vec<FieldError>) {
    let mut seen = BTreeSet::new();
    let all = Path::field("status.addresses");
    for (i, address) in new
        .body
        .field("status")
        .list("addresses")
        .iter()
        .enumerate()
    {
        if !seen.insert((address.text("type"), address.text("address"))) {
            out.push(FieldError::duplicate(
                all.index(i),
                Internal::one("core.NodeAddress", address),
            ));
        }
    }
    let before = old.body.field("spec");
    let spec = new.body.field("spec");
    if !before.is_empty_at("podCIDRs") && spec.field("podCIDRs") != before.field("podCIDRs") {
        let why = "node updates may not change podCIDR except from \"\" to valid";
        let changed = spec
            .list("podCIDRs")
            .iter()
            .zip(before.list("podCIDRs"))
            .filter(|(a, b)| a != b)
            .count();
        let times = if spec.list("podCIDRs").len() == before.list("podCIDRs").len() {
            changed
        } else {
            1
        };
        out.extend((0..times).map(|_| FieldError::forbidden("spec.podCIDRs", why)));
    }
    if !before.is_empty_at("providerID") && spec.text("providerID") != before.text("providerID") {
        out.push(FieldError::forbidden(
            "spec.providerID",
            "node updates may not change providerID except from \"\" to valid",
        ));
    }
    if spec.text("externalID") != before.text("externalID") {
        out.push(FieldError::forbidden(
            "spec.externalID",
            "may not be updated",
        ));
    }
}

fn warnings(node: &Object, _: Option<&Object>) -> Vec<String> {
    let spec = node.body.field("spec");
    let mut all = Vec::new();
    if spec.get_set("configSource").is_some() {
        all.push("spec.configSource: the feature is removed".into());
    }
    if !spec.is_empty_at("externalID") {
        all.push("spec.externalID: this field is deprecated, and is unused by Kubernetes".into());
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::test_support::{create, refused, update};

    #[test]
    fn node_keeps_its_status_on_create() {
        let (mut node, errors) = create(
            &NODE,
            json!({"metadata": {"name": "n"}, "spec": {"podCIDR": "192.0.2.0/24"}, "status": {"capacity": {"pods": "110"}}}),
        );
        taint_not_ready(&mut node);
        taint_not_ready(&mut node);
        assert!(errors.is_empty());
        assert_eq!(node.at("spec.podCIDRs"), Some(&json!(["192.0.2.0/24"])));
        assert_eq!(
            node.at("spec.taints"),
            Some(&json!([{"key": "node.kubernetes.io/not-ready", "effect": "NoSchedule"}]))
        );
        assert_eq!(node.at("status.allocatable.pods"), Some(&json!("110")));
        assert_eq!(
            node.at("status.daemonEndpoints.kubeletEndpoint.Port"),
            Some(&json!(0))
        );
    }

    #[test]
    fn taints_amounts_and_ranges_are_checked() {
        refused(
            &NODE,
            json!({"metadata": {"name": "n"}, "spec": {"podCIDR": "192.0.2.0", "taints": [{"key": "a", "effect": "NoSchedule"}, {"key": "a", "effect": "NoSchedule"}, {"key": "", "effect": "Sometimes"}]}, "status": {"capacity": {"pods": "-1"}}}),
            &[
                r#"metadata.taints[1]: Duplicate value: {"Key":"a","Value":"","Effect":"NoSchedule","TimeAdded":null}: taints must be unique by key and effect pair"#,
                r#"metadata.taints[2].key: Invalid value: "": name part must be non-empty"#,
                r#"metadata.taints[2].key: Invalid value: "": name part must consist of…"#,
                r#"metadata.taints[2].effect: Unsupported value: "Sometimes": supported values: "NoSchedule", "PreferNoSchedule", "NoExecute""#,
                r#"status.capacity.pods: Invalid value: "-1": must be greater than or equal to 0"#,
                r#"status.allocatable.pods: Invalid value: "-1": must be greater than or equal to 0"#,
                r#"spec.podCIDRs[0]: Invalid value: "192.0.2.0": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"#,
            ],
        );
    }

    #[test]
    fn range_and_provider_are_set_once() {
        let (node, _) = create(
            &NODE,
            json!({"metadata": {"name": "n"}, "spec": {"podCIDR": "192.0.2.0/24", "providerID": "a"}}),
        );
        let (_, errors) = update(
            &NODE,
            &node,
            json!({"metadata": {"name": "n"}, "spec": {"podCIDR": "198.51.100.0/24", "podCIDRs": ["198.51.100.0/24"], "providerID": "b"}}),
        );
        assert_eq!(
            errors,
            [
                "spec.podCIDRs: Forbidden: node updates may not change podCIDR except from \"\" to valid",
                "spec.providerID: Forbidden: node updates may not change providerID except from \"\" to valid"
            ]
        );
    }
}
