//! Warnings about pods.
//! In: a defaulted pod or template. Out: messages for the `Warning` headers, in the order of
//! Kubernetes.
//! Mirrors `GetWarningsForPod` and `GetWarningsForPodTemplate` in `pkg/api/pod`.

use std::collections::{BTreeMap, BTreeSet};

use bellerophon_apimachinery::{field::Path, json_ext::JsonExt, names, quantity::Quantity};
use bellerophon_codec::object::Object;
use serde_json::Value;

use super::{spec::visit, spec_value};

/// Labels of nodes that got a better name.
const OLD_NODE_LABELS: [(&str, &str, &str); 5] = [
    ("beta.kubernetes.io/arch", "v1.14", "kubernetes.io/arch"),
    ("beta.kubernetes.io/os", "v1.14", "kubernetes.io/os"),
    (
        "failure-domain.beta.kubernetes.io/region",
        "v1.17",
        "topology.kubernetes.io/region",
    ),
    (
        "failure-domain.beta.kubernetes.io/zone",
        "v1.17",
        "topology.kubernetes.io/zone",
    ),
    (
        "beta.kubernetes.io/instance-type",
        "v1.17",
        "node.kubernetes.io/instance-type",
    ),
];
/// Annotations that became fields.
const OLD_ANNOTATIONS: [(&str, &str); 3] = [
    (
        "scheduler.alpha.kubernetes.io/critical-pod",
        "non-functional in v1.16+; use the \"priorityClassName\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
    (
        "security.alpha.kubernetes.io/unsafe-sysctls",
        "non-functional in v1.11+; use the \"sysctls\" field instead",
    ),
];
/// Sources of volumes that are no longer supported, with the name in the warning.
const OLD_SOURCES: [(&str, &str, &str); 9] = [
    (
        "photonPersistentDisk",
        "photonPersistentDisk",
        "deprecated in v1.11, non-functional in v1.16+",
    ),
    (
        "gitRepo",
        "gitRepo",
        "deprecated in v1.11, and disabled by default in v1.33+",
    ),
    (
        "scaleIO",
        "scaleIO",
        "deprecated in v1.16, non-functional in v1.22+",
    ),
    (
        "flocker",
        "flocker",
        "deprecated in v1.22, non-functional in v1.25+",
    ),
    (
        "storageos",
        "storageOS",
        "deprecated in v1.22, non-functional in v1.25+",
    ),
    (
        "quobyte",
        "quobyte",
        "deprecated in v1.22, non-functional in v1.25+",
    ),
    (
        "glusterfs",
        "glusterfs",
        "deprecated in v1.25, non-functional in v1.26+",
    ),
    (
        "cephfs",
        "cephfs",
        "deprecated in v1.28, non-functional in v1.31+",
    ),
    (
        "rbd",
        "rbd",
        "deprecated in v1.28, non-functional in v1.31+",
    ),
];
const REQUIRED: &str = "requiredDuringSchedulingIgnoredDuringExecution";
const PREFERRED: &str = "preferredDuringSchedulingIgnoredDuringExecution";

/// The warnings about a new pod.
pub(super) fn of_new_pod(pod: &Object) -> Vec<String> {
    let mut out = Vec::new();
    let errors = names::dns_label(&pod.meta.name);
    if !errors.is_empty() {
        out.push(format!(
            "metadata.name: this is used in the Pod's hostname, which can result in surprising behavior; a DNS label is recommended: [{}]",
            errors.join(" ")
        ));
    }
    let annotations = pod.meta.annotations.keys().map(String::as_str).collect();
    of_spec(spec_value(pod), &annotations, &Path::ROOT, &mut out);
    out
}

/// A name that ends up in the names of pods.
pub(crate) fn of_name(object: &Object, out: &mut Vec<String>) {
    let errors = names::dns_label(&object.meta.name);
    if !errors.is_empty() {
        out.push(format!(
            "metadata.name: this is used in Pod names and hostnames, which can result in surprising behavior; a DNS label is recommended: [{}]",
            errors.join(" ")
        ));
    }
}

/// The warnings about a template.
pub(crate) fn of_template(template: &Value, at: &Path<'_>, out: &mut Vec<String>) {
    let annotations = template
        .field("metadata")
        .entries("annotations")
        .map(|(k, _)| k.as_str())
        .collect();
    of_spec(template.field("spec"), &annotations, at, out);
}

fn of_spec(spec: &Value, annotations: &BTreeSet<&str>, root: &Path<'_>, out: &mut Vec<String>) {
    let at = root.child("spec");
    of_node_labels(spec, &at, out);
    of_spread(spec, &at, out);
    let annotations_at = root.child("metadata.annotations");
    for (key, why) in OLD_ANNOTATIONS
        .iter()
        .filter(|(key, _)| annotations.contains(key))
    {
        out.push(format!("{}: {why}", annotations_at.key(key)));
    }
    of_volumes(spec, &at, out);
    of_repeats(spec, "hostAliases", "ip", &at, out);
    of_repeats(spec, "imagePullSecrets", "name", &at, out);
    let secrets_at = at.child("imagePullSecrets");
    for (i, _) in spec
        .list("imagePullSecrets")
        .iter()
        .enumerate()
        .filter(|(_, s)| s.text("name").is_empty())
    {
        out.push(format!(
            "{}: invalid empty name \"\"",
            secrets_at.index(i).child("name")
        ));
    }
    of_fractions(spec.field("overhead"), &at.child("overhead"), out);
    visit(spec, &at, |container, at| {
        let resources_at = at.child("resources");
        for list in ["limits", "requests"] {
            of_fractions(
                container.field("resources").field(list),
                &resources_at.child(list),
                out,
            );
        }
        of_variables(container, &at.child("env"), out);
    });
    of_ports(spec, &at, out);
    if spec.number("terminationGracePeriodSeconds") < 0 {
        let seconds_at = at.child("terminationGracePeriodSeconds");
        out.push(format!(
            "{seconds_at}: must be >= 0; negative values are invalid and will be treated as 1"
        ));
    }
    of_neighbours(spec.field("affinity"), &at.child("affinity"), out);
}

fn old_label(key: &str) -> Option<String> {
    let (_, since, better) = OLD_NODE_LABELS.iter().find(|(old, ..)| *old == key)?;
    Some(format!("deprecated since {since}; use {better:?} instead"))
}

fn of_node_labels(spec: &Value, at: &Path<'_>, out: &mut Vec<String>) {
    let selector_at = at.child("nodeSelector");
    for (key, _) in spec.entries("nodeSelector") {
        out.extend(old_label(key).map(|why| format!("{}: {why}", selector_at.key(key))));
    }
    let affinity = spec.field("affinity").field("nodeAffinity");
    let affinity_at = at.child("affinity.nodeAffinity");
    let required_at = affinity_at.child(REQUIRED);
    let terms_at = required_at.child("nodeSelectorTerms");
    for (i, term) in affinity
        .field(REQUIRED)
        .list("nodeSelectorTerms")
        .iter()
        .enumerate()
    {
        of_term(term, &terms_at.index(i), out);
    }
    let preferred_at = affinity_at.child(PREFERRED);
    for (i, weighted) in affinity.list(PREFERRED).iter().enumerate() {
        let item = preferred_at.index(i);
        of_term(weighted.field("preference"), &item.child("preference"), out);
    }
}

fn of_term(term: &Value, at: &Path<'_>, out: &mut Vec<String>) {
    let expressions_at = at.child("matchExpressions");
    for (i, expression) in term.list("matchExpressions").iter().enumerate() {
        let key = expression.text("key");
        out.extend(
            old_label(key)
                .map(|why| format!("{}: {key} is {why}", expressions_at.index(i).child("key"))),
        );
    }
}

const NO_SELECTOR: &str = "a null labelSelector results in matching no pod";

fn of_spread(spec: &Value, at: &Path<'_>, out: &mut Vec<String>) {
    let list_at = at.child("topologySpreadConstraints");
    for (i, constraint) in spec.list("topologySpreadConstraints").iter().enumerate() {
        let at = list_at.index(i);
        let key = constraint.text("topologyKey");
        out.extend(
            old_label(key).map(|why| format!("{}: {key} is {why}", at.child("topologyKey"))),
        );
        if !constraint.has("labelSelector") {
            out.push(format!("{}: {NO_SELECTOR}", at.child("labelSelector")));
        }
    }
}

fn of_neighbours(affinity: &Value, at: &Path<'_>, out: &mut Vec<String>) {
    for kind in ["podAffinity", "podAntiAffinity"] {
        let affinity = affinity.field(kind);
        let at = at.child(kind);
        let required_at = at.child(REQUIRED);
        for (i, _) in affinity
            .list(REQUIRED)
            .iter()
            .enumerate()
            .filter(|(_, t)| !t.has("labelSelector"))
        {
            out.push(format!(
                "{}: {NO_SELECTOR}",
                required_at.index(i).child("labelSelector")
            ));
        }
        let preferred_at = at.child(PREFERRED);
        let unselective =
            |(_, t): &(usize, &Value)| !t.field("podAffinityTerm").has("labelSelector");
        for (i, _) in affinity
            .list(PREFERRED)
            .iter()
            .enumerate()
            .filter(unselective)
        {
            out.push(format!(
                "{}: {NO_SELECTOR}",
                preferred_at.index(i).child("podAffinityTerm.labelSelector")
            ));
        }
    }
}

fn of_volumes(spec: &Value, at: &Path<'_>, out: &mut Vec<String>) {
    let list_at = at.child("volumes");
    for (i, volume) in spec.list("volumes").iter().enumerate() {
        for (_, shown, why) in OLD_SOURCES.iter().filter(|(source, ..)| volume.has(source)) {
            out.push(format!("{}: {why}", list_at.index(i).child(shown)));
        }
    }
}

fn of_repeats(spec: &Value, list: &str, field: &str, at: &Path<'_>, out: &mut Vec<String>) {
    let list_at = at.child(list);
    let mut seen = BTreeSet::new();
    for (i, item) in spec.list(list).iter().enumerate() {
        let value = item.text(field);
        if !seen.insert(value) {
            out.push(format!(
                "{}: duplicate {field} {value:?}",
                list_at.index(i).child(field)
            ));
        }
    }
}

/// Bytes cannot be fractional.
fn of_fractions(amounts: &Value, at: &Path<'_>, out: &mut Vec<String>) {
    for name in ["memory", "ephemeral-storage"] {
        if let Some(amount) = Quantity::of(amounts.field(name)).filter(|a| !a.is_whole()) {
            out.push(format!(
                "{}: fractional byte value \"{amount}\" is invalid, must be an integer",
                at.key(name)
            ));
        }
    }
}

/// A variable that is given twice and does not build on its first value.
fn of_variables(container: &Value, at: &Path<'_>, out: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for (i, variable) in container.list("env").iter().enumerate() {
        let name = variable.text("name");
        let value = variable.text("value");
        let reference = format!("$({name})");
        let builds_on =
            !variable.has("valueFrom") && value != reference && value.contains(&reference);
        if !seen.insert(name) && !builds_on {
            out.push(format!(
                "{}: hides previous definition of {name:?}, which may be dropped when using apply",
                at.index(i)
            ));
        }
    }
}

/// A port that was seen: its place, and the address and port of the host it takes.
type Taken = (String, String, i64);

fn of_ports(spec: &Value, at: &Path<'_>, out: &mut Vec<String>) {
    let mut by_number: BTreeMap<(i64, String), Vec<Taken>> = BTreeMap::new();
    let mut by_name: BTreeMap<String, String> = BTreeMap::new();
    let mut repeated_names = Vec::new();
    visit(spec, at, |container, at| {
        let ports_at = at.child("ports");
        for (i, port) in container.list("ports").iter().enumerate() {
            let here = ports_at.index(i).to_string();
            let ip = port.text("hostIP").to_owned();
            let host = port.number("hostPort");
            let others = by_number
                .entry((
                    port.number("containerPort"),
                    port.text("protocol").to_owned(),
                ))
                .or_default();
            for (other, other_ip, other_host) in others.iter() {
                let what = if ip == *other_ip && host == *other_host {
                    "duplicate"
                } else if host == 0 || *other_host == 0 {
                    "overlapping"
                } else if host == *other_host && (ip.is_empty() != other_ip.is_empty()) {
                    "dangerously ambiguous"
                } else {
                    continue;
                };
                out.push(format!("{here}: {what} port definition with {other}"));
            }
            others.push((here.clone(), ip, host));
            let name = port.text("name");
            if name.is_empty() {
                continue;
            }
            match by_name.get(name) {
                Some(other) => repeated_names.push(format!(
                    "{here}: duplicate port name {name:?} with {other}, services and probes that select ports by name will use {other}"
                )),
                None => {
                    by_name.insert(name.to_owned(), here);
                }
            }
        }
    });
    out.append(&mut repeated_names);
}
