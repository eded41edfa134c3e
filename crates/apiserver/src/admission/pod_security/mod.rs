//! Pod Security Standards, configured by the labels of a namespace.
//! In: a namespace, a pod, or a workload with a pod template. Out: a denial, or warnings.
//! Guarantees: only pods are denied; workloads with a pod template get warnings.
//! Mirrors the plugin PodSecurity.

mod baseline; // checks of the baseline level
mod level; // labels of a namespace
mod restricted; // checks of the restricted level
mod subject; // the pod or template that is evaluated

use std::collections::{BTreeMap, BTreeSet};

use bellerophon_apimachinery::{
    error::{ApiError, GroupKind},
    json_ext::JsonExt,
};
use bellerophon_codec::object::{Object, ObjectMeta};
use bellerophon_storage::Scope;

use self::{
    level::{Level, Policy, Standard},
    subject::{Subject, Violation},
};
use super::Admission;

/// Pods of a namespace whose level changes are checked up to this many.
const NAMESPACE_PODS_MAX: usize = 3000;

/// Where kinds that make pods keep the template.
const TEMPLATES: [(&str, &str, &str); 8] = [
    ("", "podtemplates", "template"),
    ("", "replicationcontrollers", "spec.template"),
    ("apps", "daemonsets", "spec.template"),
    ("apps", "deployments", "spec.template"),
    ("apps", "replicasets", "spec.template"),
    ("apps", "statefulsets", "spec.template"),
    ("batch", "cronjobs", "spec.jobTemplate.spec.template"),
    ("batch", "jobs", "spec.template"),
];

/// Evaluates the levels of the namespace.
///
/// # Errors
/// 403 for a pod that violates the enforced level, 422 for labels that name no level.
pub(super) fn validate(request: &Admission<'_>, object: &Object) -> Result<Vec<String>, ApiError> {
    if request.writes("", "namespaces") {
        return validate_namespace(request, object);
    }
    if ["", "ephemeralcontainers", "resize"]
        .iter()
        .any(|subresource| request.writes_subresource("", "pods", subresource))
    {
        let significant = request.old.is_none_or(|old| changes_images(object, old));
        return if significant {
            validate_pod(request, object)
        } else {
            Ok(Vec::new())
        };
    }
    let path = TEMPLATES
        .iter()
        .find(|(group, plural, _)| request.writes(group, plural))
        .map(|(_, _, path)| *path);
    let Some(template) = path.and_then(|path| object.at(path)) else {
        return Ok(Vec::new());
    };
    let policy = policy_of(request);
    let meta = template
        .get_set("metadata")
        .and_then(|meta| serde_json::from_value(meta.clone()).ok())
        .unwrap_or_default();
    Ok(warning(
        policy.warn,
        &Subject {
            meta: &meta,
            spec: template.field("spec"),
        },
    )
    .into_iter()
    .collect())
}

fn policy_of(request: &Admission<'_>) -> Policy {
    let namespace = request.look_up("/namespaces", "", request.namespace());
    namespace
        .map(|namespace| Policy::of(&namespace.meta.labels).0)
        .unwrap_or_default()
}

fn validate_pod(request: &Admission<'_>, pod: &Object) -> Result<Vec<String>, ApiError> {
    let policy = policy_of(request);
    let subject = Subject {
        meta: &pod.meta,
        spec: pod.body.field("spec"),
    };
    let violations = violations(policy.enforce, &subject);
    if !violations.is_empty() {
        return Err(request.forbid(
            pod,
            format!(
                "violates PodSecurity {:?}: {}",
                policy.enforce.to_string(),
                details(&violations)
            ),
        ));
    }
    Ok(warning(policy.warn, &subject).into_iter().collect())
}

fn warning(level: Level, subject: &Subject<'_>) -> Option<String> {
    let violations = violations(level, subject);
    (!violations.is_empty()).then(|| {
        format!(
            "would violate PodSecurity {:?}: {}",
            level.to_string(),
            details(&violations)
        )
    })
}

fn details(violations: &[Violation]) -> String {
    violations
        .iter()
        .map(|v| format!("{} ({})", v.reason, v.detail))
        .collect::<Vec<_>>()
        .join(", ")
}

/// Everything in which the subject falls short of a level.
fn violations(level: Level, subject: &Subject<'_>) -> Vec<Violation> {
    let minor = level.minor();
    match level.standard {
        Standard::Privileged => Vec::new(),
        Standard::Baseline => baseline::CHECKS
            .iter()
            .filter_map(|check| (check.run)(subject, minor))
            .collect(),
        Standard::Restricted => {
            let stricter: BTreeSet<&str> = restricted::CHECKS
                .iter()
                .filter(|c| c.since <= minor)
                .filter_map(|c| c.instead_of)
                .collect();
            let basic = baseline::CHECKS
                .iter()
                .filter(|check| !stricter.contains(check.id))
                .filter_map(|check| (check.run)(subject, minor));
            let more = restricted::CHECKS
                .iter()
                .filter(|c| c.since <= minor)
                .filter_map(|check| (check.run)(subject, minor));
            basic.chain(more).collect()
        }
    }
}

/// Whether an update brings in other programs; anything else was evaluated when the pod was
/// created.
fn changes_images(new: &Object, old: &Object) -> bool {
    let new = new.body.field("spec");
    let old = old.body.field("spec");
    let differs = |list: &str| {
        let new = new.list(list);
        let old = old.list(list);
        new.len() != old.len()
            || new
                .iter()
                .zip(old)
                .any(|(new, old)| new.text("image") != old.text("image"))
    };
    let images: BTreeMap<&str, &str> = old
        .list("ephemeralContainers")
        .iter()
        .map(|old| (old.text("name"), old.text("image")))
        .collect();
    let added = new
        .list("ephemeralContainers")
        .iter()
        .any(|new| images.get(new.text("name")) != Some(&new.text("image")));
    differs("containers") || differs("initContainers") || added
}

/// Labels must name levels; a stricter level warns of pods that are there already and violate it.
fn validate_namespace(
    request: &Admission<'_>,
    namespace: &Object,
) -> Result<Vec<String>, ApiError> {
    let (policy, errs) = Policy::of(&namespace.meta.labels);
    let before = request.old.map(|old| Policy::of(&old.meta.labels));
    if !errs.is_empty() && before.as_ref().is_none_or(|(_, known)| *known != errs) {
        return Err(ApiError::Invalid {
            kind: GroupKind::new("", "Namespace"),
            name: namespace.meta.name.clone(),
            errors: errs,
        });
    }
    let Some((before, _)) = before else {
        return Ok(Vec::new());
    };
    let new = policy.enforce;
    let old = before.enforce;
    if new == old
        || new.standard == Standard::Privileged
        || (new.version == old.version && new.standard <= old.standard)
    {
        return Ok(Vec::new());
    }
    let pods = request.list("/pods", Scope::Namespace(namespace.meta.name.clone()));
    Ok(warn_of_pods(&namespace.meta.name, new, by_importance(pods)))
}

/// Representative pods first: of those with one controller, the first.
fn by_importance(pods: Vec<Object>) -> Vec<Object> {
    let mut seen = BTreeSet::new();
    let controller = |meta: &ObjectMeta| {
        meta.owner_references
            .iter()
            .find(|o| o.controller == Some(true))
            .map(|o| o.uid.clone())
    };
    let (mut first, others): (Vec<Object>, Vec<Object>) = pods
        .into_iter()
        .partition(|pod| controller(&pod.meta).is_none_or(|uid| seen.insert(uid)));
    first.extend(others);
    first
}

fn warn_of_pods(namespace: &str, level: Level, pods: Vec<Object>) -> Vec<String> {
    let total = pods.len();
    let mut found = BTreeMap::<String, Vec<String>>::new();
    for pod in pods.iter().take(NAMESPACE_PODS_MAX) {
        let violations = violations(
            level,
            &Subject {
                meta: &pod.meta,
                spec: pod.body.field("spec"),
            },
        );
        if !violations.is_empty() {
            let reasons = violations
                .iter()
                .map(|v| v.reason.as_str())
                .collect::<Vec<_>>()
                .join(", ");
            found
                .entry(reasons)
                .or_default()
                .push(pod.meta.name.clone());
        }
    }
    let mut warnings = Vec::new();
    if total > NAMESPACE_PODS_MAX {
        warnings
            .push(format!("new PodSecurity enforce level only checked against the first {NAMESPACE_PODS_MAX} of {total} existing pods"));
    }
    if !found.is_empty() {
        let level = level.to_string();
        warnings.push(format!("existing pods in namespace {namespace:?} violate the new PodSecurity enforce level {level:?}"));
    }
    let mut lines: Vec<String> = found
        .into_iter()
        .map(|(reasons, names)| {
            let name = names.iter().min().cloned().unwrap_or_default();
            match names.len() {
                1 => format!("{name}: {reasons}"),
                2 => format!("{name} (and 1 other pod): {reasons}"),
                n => format!("{name} (and {} other pods): {reasons}", n - 1),
            }
        })
        .collect();
    lines.sort();
    warnings.extend(lines);
    warnings
}

#[cfg(test)]
mod tests {
    use crate::test_support::object;
    use serde_json::{Value, json};

    use super::*;

    fn violation_details(level: &str, spec: Value) -> String {
        let pod = object(json!({ "spec": spec }));
        let labels = BTreeMap::from([(
            "pod-security.kubernetes.io/enforce".to_owned(),
            level.to_owned(),
        )]);
        details(&violations(
            Policy::of(&labels).0.enforce,
            &Subject {
                meta: &pod.meta,
                spec: &pod.body["spec"],
            },
        ))
    }

    #[test]
    fn each_violation_is_named_with_what_to_do() {
        let hard = json!({"runAsNonRoot": true, "seccompProfile": {"type": "RuntimeDefault"}});
        let with = |mut container: Value| {
            container["name"] = "a".into();
            json!({"containers": [container]})
        };
        let cases = [
            ("privileged", json!({"hostPID": true}), ""),
            (
                "baseline",
                json!({"hostPID": true, "hostIPC": true}),
                "host namespaces (hostPID=true, hostIPC=true)",
            ),
            (
                "baseline",
                with(json!({"ports": [{"hostPort": 80}]})),
                "hostPort (container \"a\" uses hostPort 80)",
            ),
            (
                "baseline",
                with(json!({"securityContext": {"capabilities": {"add": ["SYS_ADMIN", "CHOWN"]}}})),
                "non-default capabilities (container \"a\" must not include \"SYS_ADMIN\" in securityContext.capabilities.add)",
            ),
            (
                "baseline",
                with(json!({"livenessProbe": {"httpGet": {"host": "h"}}})),
                "probe or lifecycle host (container \"a\" uses probe or lifecycle host \"h\")",
            ),
            (
                "baseline",
                json!({"securityContext": {"seLinuxOptions": {"type": "x", "user": "u"}}}),
                "seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: type \"x\"; user may not be set)",
            ),
            (
                "baseline",
                json!({"securityContext": {"sysctls": [{"name": "kernel.msgmax"}]}}),
                "forbidden sysctls (kernel.msgmax)",
            ),
            (
                "baseline",
                json!({"volumes": [{"name": "v", "hostPath": {}}]}),
                "hostPath volumes (volume \"v\")",
            ),
            (
                "restricted",
                json!({"volumes": [{"name": "v", "hostPath": {}}], "securityContext": hard}),
                "restricted volume types (volume \"v\" uses restricted volume type \"hostPath\")",
            ),
            (
                "restricted",
                json!({"securityContext": {"runAsNonRoot": true, "runAsUser": 0, "seccompProfile": {"type": "Localhost"}}}),
                "runAsUser=0 (pod must not set runAsUser=0)",
            ),
            (
                "restricted",
                json!({"securityContext": hard, "containers": [{"name": "a", "securityContext": {"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"], "add": ["CHOWN"]}}}]}),
                "unrestricted capabilities (container \"a\" must not include \"CHOWN\" in securityContext.capabilities.add)",
            ),
        ];
        for (level, spec, want) in cases {
            assert_eq!(
                violation_details(level, spec.clone()),
                want,
                "{level} {spec}"
            );
        }
    }

    #[test]
    fn stricter_level_warns_of_pods_already_there() {
        let pod =
            |name: &str| object(json!({"metadata": {"name": name}, "spec": {"hostPID": true}}));
        let level = Level {
            standard: Standard::Baseline,
            ..Level::default()
        };
        assert_eq!(
            warn_of_pods("ns", level, vec![pod("b"), pod("a")]),
            [
                "existing pods in namespace \"ns\" violate the new PodSecurity enforce level \"baseline:latest\"",
                "a (and 1 other pod): host namespaces"
            ]
        );
    }
}
