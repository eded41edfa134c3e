//! Requests and limits of containers and pods, and their QoS class.
//! In: a pod spec. Out: the errors of its resources, its QoS class, and the resources of the whole
//! pod.
//! Mirrors `validateContainerResourceRequirements` and `validatePodResources` in
//! `pkg/apis/core/validation`.

use std::collections::{BTreeMap, BTreeSet};

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt},
    names,
    quantity::Quantity,
};
use serde_json::{Map, Value};

use super::super::validation;

type Amounts<'a> = BTreeMap<&'a str, Quantity>;

/// The owner of the validated resources.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Container,
    Pod,
}

/// The errors with requests and limits.
pub(super) fn validate(
    resources: &Value,
    level: Level,
    claims: &BTreeSet<&str>,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let limits_at = at.child("limits");
    let requests_at = at.child("requests");
    for (name, amount) in resources.entries("limits") {
        validate_amount(name, amount, level, &limits_at.key(name), out);
    }
    for (name, amount) in resources.entries("requests") {
        validate_amount(name, amount, level, &requests_at.key(name), out);
        validate_limit(
            name,
            amount,
            resources.field("limits"),
            (&limits_at, &requests_at),
            out,
        );
    }
    let named = |wanted: fn(&str) -> bool| {
        ["limits", "requests"]
            .iter()
            .any(|l| resources.entries(l).any(|(name, _)| wanted(name)))
    };
    if named(is_huge_page) && !named(|n| matches!(n, "cpu" | "memory")) {
        out.push(FieldError::forbidden(at, "HugePages require cpu or memory"));
    }
    validate_claims(resources.list("claims"), claims, &at.child("claims"), out);
}

fn validate_amount(
    name: &str,
    amount: &Value,
    level: Level,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    match level {
        Level::Container => validate_container_resource(name, at, out),
        Level::Pod => validate_pod_resource(name, at, out),
    }
    validation::resource_amount(at, name, amount, out);
    if let (Some(page), Some(quantity)) = (huge_page_size(name), Quantity::of(amount))
        && !quantity.is_multiple_of(page)
    {
        out.push(FieldError::invalid(
            at,
            &quantity,
            &format!("{quantity} is not positive integer multiple of {name}"),
        ));
    }
}

fn validate_limit(
    name: &str,
    amount: &Value,
    limits: &Value,
    (limits_at, requests_at): (&Path<'_>, &Path<'_>),
    out: &mut Vec<FieldError>,
) {
    let Some(request) = Quantity::of(amount) else {
        return;
    };
    match Quantity::of(limits.field(name)) {
        Some(limit) if request != limit && !may_overcommit(name) => {
            out.push(FieldError::invalid(
                requests_at,
                &request,
                &format!("must be equal to {name} limit of {limit}"),
            ));
        }
        Some(limit) if request > limit => {
            out.push(FieldError::invalid(
                requests_at,
                &request,
                &format!("must be less than or equal to {name} limit of {limit}"),
            ));
        }
        None if !may_overcommit(name) => {
            out.push(FieldError::required(
                limits_at,
                "Limit must be set for non overcommitable resources",
            ));
        }
        _ => {}
    }
}

/// Resources that exist without a domain in front.
const STANDARD: [&str; 20] = [
    "cpu",
    "memory",
    "ephemeral-storage",
    "requests.cpu",
    "requests.memory",
    "requests.ephemeral-storage",
    "limits.cpu",
    "limits.memory",
    "limits.ephemeral-storage",
    "pods",
    "resourcequotas",
    "services",
    "replicationcontrollers",
    "secrets",
    "configmaps",
    "persistentvolumeclaims",
    "storage",
    "requests.storage",
    "services.nodeports",
    "services.loadbalancers",
];

fn validate_resource_name(name: &str, at: &Path<'_>, out: &mut Vec<FieldError>) -> bool {
    let errors = names::qualified_name(name);
    let standard = name.contains('/')
        || STANDARD.contains(&name)
        || is_huge_page(name)
        || name.starts_with("requests.hugepages-");
    let good = errors.is_empty() && standard;
    if errors.is_empty() && !standard {
        out.push(FieldError::invalid(
            at,
            name,
            "must be a standard resource type or fully qualified",
        ));
    }
    validation::named(at, name, errors, out);
    good
}

fn validate_container_resource(name: &str, at: &Path<'_>, out: &mut Vec<FieldError>) {
    validate_resource_name(name, at, out);
    if !name.contains('/') {
        if !matches!(name, "cpu" | "memory" | "ephemeral-storage") && !is_huge_page(name) {
            out.push(FieldError::invalid(
                at,
                name,
                "must be a standard resource for containers",
            ));
        }
    } else if !is_native(name) && !validation::is_extended_resource(name) {
        out.push(FieldError::invalid(
            at,
            name,
            "doesn't follow extended resource name standard",
        ));
    }
}

fn validate_pod_resource(name: &str, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if validate_resource_name(name, at, out) && !fits_pod(name) {
        out.push(FieldError::not_supported(
            at,
            name,
            &["cpu", "hugepages-", "memory"],
        ));
    }
}

/// Each unknown claim is reported with the names of at most this many known ones.
const CLAIMS_SHOWN_MAX: usize = 32;

fn validate_claims(
    claims: &[Value],
    known: &BTreeSet<&str>,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let mut seen: BTreeSet<(String, String)> = BTreeSet::new();
    let mut seen_names: BTreeSet<&str> = BTreeSet::new();
    for (i, claim) in claims.iter().enumerate() {
        let name = claim.text("name");
        let request = claim.text("request");
        let at = at.index(i);
        if !is_given(&at, name, out) {
            continue;
        }
        let whole = |r: &str| (name.to_owned(), r.to_owned());
        if !request.is_empty() {
            validation::named(
                &at.child("request"),
                request,
                names::dns_label(request),
                out,
            );
        }
        let taken = seen.contains(&whole("")) || seen.contains(&whole(request));
        if taken || (request.is_empty() && seen_names.contains(name)) {
            let shown = if request.is_empty() {
                name.to_owned()
            } else {
                format!("{name}/{request}")
            };
            out.push(FieldError::duplicate(at, &shown));
        }
        seen.insert(whole(request));
        seen_names.insert(name);
        if !known.contains(name) {
            let names: Vec<&str> = known.iter().copied().take(CLAIMS_SHOWN_MAX).collect();
            let more = if known.len() > names.len() {
                ", ..."
            } else {
                ""
            };
            let rest = if names.is_empty() {
                " which is empty".to_owned()
            } else {
                format!(": {}{more}", names.join(", "))
            };
            let plain = FieldError::not_found(at, name);
            let message = format!(
                "{}: must be one of the names in pod.spec.resourceClaims{rest}",
                plain.message
            );
            out.push(FieldError { message, ..plain });
        }
    }
}

fn is_given(at: &Path<'_>, text: &str, out: &mut Vec<FieldError>) -> bool {
    validation::required(at, text, out);
    !text.is_empty()
}

fn is_native(name: &str) -> bool {
    !name.contains('/') || name.contains("kubernetes.io/")
}

fn is_huge_page(name: &str) -> bool {
    name.starts_with("hugepages-")
}

fn huge_page_size(name: &str) -> Option<Quantity> {
    Quantity::parse(name.strip_prefix("hugepages-")?).ok()
}

fn may_overcommit(name: &str) -> bool {
    is_native(name) && !is_huge_page(name)
}

/// Whether the resource is allowed in the resources of the pod.
fn fits_pod(name: &str) -> bool {
    matches!(name, "cpu" | "memory") || is_huge_page(name)
}

/// The errors of the resources of a pod as a whole, next to those of its containers.
pub(super) fn validate_pod_level(
    spec: &Value,
    claims: &BTreeSet<&str>,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let Some(resources) = spec.get_set("resources") else {
        return;
    };
    let at = at.child("resources");
    if spec.field("os").text("name") == "windows" {
        out.push(FieldError::forbidden(
            at,
            "may not be set for a windows pod",
        ));
        return;
    }
    if resources.has("claims") {
        out.push(FieldError::forbidden(
            at.child("claims"),
            "claims may not be set for Resources at pod-level",
        ));
    }
    validate(resources, Level::Pod, claims, &at, out);
    let requests_at = at.child("requests");
    for (name, total) in aggregate(spec, "requests") {
        if let Some(own) = Quantity::of(resources.field("requests").field(name))
            && total > own
        {
            let detail =
                format!("must be greater than or equal to aggregate container requests of {total}");
            out.push(FieldError::invalid(requests_at.key(name), &own, &detail));
        }
    }
    let containers = at.child("containers");
    for (i, container) in spec.list("containers").iter().enumerate() {
        for (name, amount) in amounts(container.field("resources").field("limits")) {
            if let Some(own) = Quantity::of(resources.field("limits").field(name))
                && amount > own
            {
                let container_at = containers.index(i);
                let at = container_at.key(name);
                out.push(FieldError::invalid(
                    at.child("limits"),
                    &amount,
                    &format!("must be less than or equal to pod limits of {own}"),
                ));
            }
        }
    }
}

/// Completes the requests of a pod as a whole: from its containers, then from its own limits.
pub(super) fn default_pod_level(spec: &mut Map<String, Value>) {
    if spec.field("resources").is_empty_at("limits") {
        return;
    }
    let own = spec.field("resources").clone();
    let whole = Value::Object(spec.clone());
    let requests = spec.map_at("resources").map_at("requests");
    for (name, total) in aggregate(&whole, "requests") {
        if fits_pod(name) && may_overcommit(name) {
            requests
                .entry(name)
                .or_insert_with(|| total.to_string().into());
        }
    }
    for (name, limit) in own.entries("limits") {
        if fits_pod(name) {
            requests
                .entry(name.clone())
                .or_insert_with(|| limit.clone());
        }
    }
}

/// The resources of all containers together: init containers run before the others, sidecars beside
/// them.
fn aggregate<'a>(spec: &'a Value, list: &str) -> Amounts<'a> {
    let of = |container: &'a Value| amounts(container.field("resources").field(list));
    let mut total = Amounts::new();
    for container in spec.list("containers") {
        add(&mut total, &of(container));
    }
    let mut sidecars = Amounts::new();
    let mut highest = Amounts::new();
    for container in spec.list("initContainers") {
        let mut now = of(container);
        if container.text("restartPolicy") == "Always" {
            add(&mut total, &now);
            add(&mut sidecars, &now);
            now = sidecars.clone();
        } else {
            add(&mut now, &sidecars);
        }
        raise(&mut highest, &now);
    }
    raise(&mut total, &highest);
    total
}

fn amounts(list: &Value) -> Amounts<'_> {
    list.as_object()
        .into_iter()
        .flatten()
        .filter_map(|(name, value)| Some((name.as_str(), Quantity::of(value)?)))
        .collect()
}

fn add<'a>(total: &mut Amounts<'a>, more: &Amounts<'a>) {
    for (name, amount) in more {
        total
            .entry(name)
            .and_modify(|t| *t = t.plus(*amount))
            .or_insert(*amount);
    }
}

fn raise<'a>(total: &mut Amounts<'a>, other: &Amounts<'a>) {
    for (name, amount) in other {
        total
            .entry(name)
            .and_modify(|t| *t = (*t).max(*amount))
            .or_insert(*amount);
    }
}

/// The quality of service class of a pod spec: by the pod's own resources, or else by all its
/// containers.
pub fn qos_class(spec: &Value) -> &'static str {
    let holders: Vec<&Value> = match spec.get_set("resources") {
        Some(own) => vec![own],
        None => ["containers", "initContainers"]
            .iter()
            .flat_map(|l| spec.list(l))
            .map(|c| c.field("resources"))
            .collect(),
    };
    let counted = |holder: &'static str| {
        let mut total = Amounts::new();
        for resources in &holders {
            let mut found = amounts(resources.field(holder));
            found.retain(|name, amount| {
                matches!(*name, "cpu" | "memory") && *amount > Quantity::ZERO
            });
            add(&mut total, &found);
        }
        total
    };
    let requests = counted("requests");
    let limits = counted("limits");
    let limited = |resources: &&Value| {
        let limits = amounts(resources.field("limits"));
        let pod_without_limits = limits.is_empty() && spec.has("resources");
        pod_without_limits
            || ["cpu", "memory"]
                .iter()
                .all(|n| limits.get(n).is_some_and(|l| *l > Quantity::ZERO))
    };
    if requests.is_empty() && limits.is_empty() {
        "BestEffort"
    } else if holders.iter().all(limited) && requests == limits {
        "Guaranteed"
    } else {
        "Burstable"
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn messages(resources: Value) -> Vec<String> {
        let mut out = Vec::new();
        validate(
            &resources,
            Level::Container,
            &BTreeSet::new(),
            &Path::field("r"),
            &mut out,
        );
        out.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn bad_amounts_are_refused_as_recorded() {
        let cases = [
            (
                json!({"requests": {"cpu": "2"}, "limits": {"cpu": "1"}}),
                vec![
                    "r.requests: Invalid value: \"2\": must be less than or equal to cpu limit of 1",
                ],
            ),
            (
                json!({"requests": {"cpu": "-1"}}),
                vec!["r.requests[cpu]: Invalid value: \"-1\": must be greater than or equal to 0"],
            ),
            (
                json!({"requests": {"disk": "1Gi"}}),
                vec![
                    "r.requests[disk]: Invalid value: \"disk\": must be a standard resource type or fully qualified",
                    "r.requests[disk]: Invalid value: \"disk\": must be a standard resource for containers",
                ],
            ),
            (
                json!({"requests": {"example.com/gpu": 1}}),
                vec![
                    "r.limits: Required value: Limit must be set for non overcommitable resources",
                ],
            ),
            (
                json!({"limits": {"example.com/gpu": "1500m"}, "requests": {"example.com/gpu": "1500m"}}),
                vec![
                    "r.limits[example.com/gpu]: Invalid value: \"1500m\": must be an integer",
                    "r.requests[example.com/gpu]: Invalid value: \"1500m\": must be an integer",
                ],
            ),
            (
                json!({"limits": {"hugepages-2Mi": "4Mi"}}),
                vec!["r: Forbidden: HugePages require cpu or memory"],
            ),
            (
                json!({"claims": [{"name": "gpu"}]}),
                vec![
                    "r.claims[0]: Not found: \"gpu\": must be one of the names in pod.spec.resourceClaims which is empty",
                ],
            ),
        ];
        for (resources, expected) in cases {
            assert_eq!(messages(resources.clone()), expected, "{resources}");
        }
    }

    #[test]
    fn quality_of_service_follows_requests_and_limits() {
        let full = json!({"limits": {"cpu": "100m", "memory": "1Gi"}, "requests": {"cpu": "100m", "memory": "1Gi"}});
        let cases = [
            (json!([{"resources": {}}]), "BestEffort"),
            (
                json!([{"resources": {"requests": {"cpu": "100m"}}}]),
                "Burstable",
            ),
            (json!([{"resources": full}]), "Guaranteed"),
            (json!([{"resources": full}, {"resources": {}}]), "Burstable"),
        ];
        for (containers, class) in cases {
            assert_eq!(qos_class(&json!({ "containers": containers })), class);
        }
    }
}
