//! Updates of the status of a pod.
//! In: the new and the old Pod. Out: the new one with all fields but the status restored, and the
//! errors of its status.
//! Mirrors `ValidatePodStatusUpdate` in `pkg/apis/core/validation`.

use std::collections::BTreeMap;

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt},
    names,
};
use bellerophon_codec::object::Object;
use serde_json::Value;

use super::{
    super::{strategy::keep_all_but_status, validation},
    annotations, spec_value,
};

/// Restores the fields that a status write may not change; observed generations are kept.
pub(super) fn prepare(new: &mut Object, old: &Object) {
    keep_all_but_status(new, old);
    new.meta
        .owner_references
        .clone_from(&old.meta.owner_references);
    let before = old.body.field("status");
    let status = new.section("status");
    if let Some(class) = before.get_set("qosClass") {
        status.default_text("qosClass", class.as_str().unwrap_or_default());
    }
    if before.number("observedGeneration") != 0 {
        status.default_number("observedGeneration", before.number("observedGeneration"));
    }
    let mut observed: BTreeMap<&str, i64> = BTreeMap::new();
    for condition in before.list("conditions").iter().rev() {
        observed.insert(
            condition.text("type"),
            condition.number("observedGeneration"),
        );
    }
    for condition in status.maps_mut("conditions") {
        let kind = condition.text("type").to_owned();
        if let Some(generation) = observed.remove(kind.as_str()).filter(|g| *g != 0) {
            condition.default_number("observedGeneration", generation);
        }
    }
}

/// The errors of the new status.
pub(super) fn validate(new: &Object, old: &Object, out: &mut Vec<FieldError>) {
    annotations::validate_update(
        &new.meta.annotations,
        &old.meta.annotations,
        &Path::field("metadata.annotations"),
        out,
    );
    let before = old.body.field("status");
    let at = Path::field("status");
    let status = new.body.field("status");
    validate_conditions(status, &at.child("conditions"), out);
    validate_nomination(
        status,
        before,
        spec_value(old),
        &at.child("nominatedNodeName"),
        out,
    );
    if status.number("observedGeneration") < 0 {
        let generation = status.number("observedGeneration");
        out.push(FieldError::invalid(
            at.child("observedGeneration"),
            generation,
            "must be a non-negative integer",
        ));
    }
    validation::immutable(
        &at.child("qosClass"),
        status.field("qosClass"),
        before.field("qosClass"),
        out,
    );
    for list in [
        "containerStatuses",
        "initContainerStatuses",
        "ephemeralContainerStatuses",
    ] {
        validate_transitions(list, status, before, spec_value(old), &at.child(list), out);
    }
    validate_addresses(status, "podIPs", &at.child("podIPs"), out);
    validate_host_addresses(status, &at.child("hostIPs"), out);
}

fn validate_conditions(status: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    for (i, condition) in status.list("conditions").iter().enumerate() {
        let at = at.index(i);
        let kind = condition.text("type");
        let generation = condition.number("observedGeneration");
        if generation < 0 {
            out.push(FieldError::invalid(
                at.child("observedGeneration"),
                generation,
                "must be a non-negative integer",
            ));
        }
        if !matches!(kind, "PodScheduled" | "Ready" | "Initialized") {
            validation::named(&at.child("Type"), kind, names::qualified_name(kind), out);
        }
    }
}

fn validate_nomination(
    status: &Value,
    before: &Value,
    spec: &Value,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let name = status.text("nominatedNodeName");
    if name.is_empty() || name == before.text("nominatedNodeName") {
        return;
    }
    validation::named(at, name, names::dns_subdomain(name), out);
    if !spec.text("nodeName").is_empty() {
        out.push(FieldError::forbidden(
            at,
            "may not be set on pods that are already bound to a node",
        ));
    }
}

/// A terminated container that is not restarted may not be reported as running.
fn validate_transitions(
    list: &str,
    status: &Value,
    before: &Value,
    spec: &Value,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let containers = match list {
        "containerStatuses" => spec.list("containers"),
        "initContainerStatuses" => spec.list("initContainers"),
        _ => &[],
    };
    if !containers.is_empty() && all_may_restart(spec) {
        return;
    }
    let statuses = by_name(status.list(list));
    let containers = by_name(containers);
    for (i, old) in before.list(list).iter().enumerate() {
        let Some(ended) = old.field("state").get_set("terminated") else {
            continue;
        };
        let name = old.text("name");
        let Some(now) = statuses.get(name) else {
            continue;
        };
        let restarts = containers
            .get(name)
            .is_some_and(|c| restarts(c, spec, ended.number("exitCode")));
        if !now.field("state").has("terminated") && !restarts {
            out.push(FieldError::forbidden(
                at.index(i).child("state"),
                "may not be transitioned to non-terminated state",
            ));
        }
    }
}

/// Items by their names; of equal ones the first counts.
fn by_name(items: &[Value]) -> BTreeMap<&str, &Value> {
    let mut named = BTreeMap::new();
    for item in items {
        named.entry(item.text("name")).or_insert(item);
    }
    named
}

/// Whether some rule of the pod restarts all of its containers.
fn all_may_restart(spec: &Value) -> bool {
    ["containers", "initContainers"]
        .iter()
        .flat_map(|l| spec.list(l))
        .flat_map(|c| c.list("restartPolicyRules"))
        .any(|r| r.text("action") == "RestartAllContainers")
}

/// Whether a container that ended with this code is started again: by its rules, its own policy, or
/// the pod's.
fn restarts(container: &Value, spec: &Value, code: i64) -> bool {
    for rule in container.list("restartPolicyRules") {
        let codes = rule.field("exitCodes");
        let among = codes
            .list("values")
            .iter()
            .any(|v| v.as_i64() == Some(code));
        if matches!(
            (codes.text("operator"), among),
            ("In", true) | ("NotIn", false)
        ) {
            return rule.text("action") == "Restart";
        }
    }
    let own = container.text("restartPolicy");
    match if own.is_empty() {
        spec.text("restartPolicy")
    } else {
        own
    } {
        "Always" => true,
        "OnFailure" => code != 0,
        _ => false,
    }
}

fn validate_addresses(status: &Value, field: &str, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let addresses: Vec<&str> = status.list(field).iter().map(|a| a.text("ip")).collect();
    for (i, address) in addresses.iter().enumerate() {
        validation::ip(&at.index(i), address, out);
    }
    let families: Vec<bool> = addresses
        .iter()
        .filter_map(|a| validation::parse_ip(a))
        .map(|a| a.is_ipv4())
        .collect();
    if addresses.len() > 2 || (families.len() == 2 && families[0] == families[1]) {
        out.push(FieldError::invalid(
            at,
            status.field(field),
            "may specify no more than one IP for each IP family",
        ));
    }
}

fn validate_host_addresses(status: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if let Some(first) = status.list("hostIPs").first()
        && first.text("ip") != status.text("hostIP")
    {
        out.push(FieldError::invalid(
            at.index(0).child("ip"),
            first.text("ip"),
            "must be equal to `hostIP`",
        ));
    }
    validate_addresses(status, "hostIPs", at, out);
}
