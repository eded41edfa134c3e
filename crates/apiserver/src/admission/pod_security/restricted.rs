//! The checks of the restricted level, in addition to those of the baseline level.

use bellerophon_apimachinery::json_ext::JsonExt;
use serde_json::Value;

use super::{
    baseline::{bad_seccomp, proc_mount},
    subject::{Check, Subject, Violation, named, plural, quoted, set_of, uses},
};

/// In the order in which violations are reported.
pub(super) const CHECKS: [Check; 7] = [
    Check {
        since: 8,
        ..Check::new("allowPrivilegeEscalation", escalation)
    },
    Check {
        since: 22,
        instead_of: Some("capabilities"),
        ..Check::new("capabilities_restricted", capabilities)
    },
    Check {
        since: 35,
        instead_of: Some("procMount"),
        ..Check::new("procMount_restricted", |subject, _| proc_mount(subject))
    },
    Check {
        instead_of: Some("hostPathVolumes"),
        ..Check::new("restrictedVolumes", volumes)
    },
    Check::new("runAsNonRoot", |subject, minor| {
        if minor >= 35 && subject.has_own_users() {
            None
        } else {
            non_root(subject)
        }
    }),
    Check {
        since: 23,
        ..Check::new("runAsUser", |subject, minor| {
            if minor >= 35 && subject.has_own_users() {
                None
            } else {
                user(subject)
            }
        })
    },
    Check {
        since: 19,
        instead_of: Some("seccompProfile"),
        ..Check::new("seccompProfile_restricted", seccomp)
    },
];

const VOLUMES: [&str; 9] = [
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "image",
    "persistentVolumeClaim",
    "projected",
    "secret",
];

/// Windows pods are spared what their system does not know, from this minor version on.
const WINDOWS_SPARED: u32 = 25;

fn context(container: &Value) -> &Value {
    container.field("securityContext")
}

fn is_spared(subject: &Subject<'_>, minor: u32) -> bool {
    minor >= WINDOWS_SPARED && subject.is_windows()
}

fn escalation(subject: &Subject<'_>, minor: u32) -> Option<Violation> {
    let containers = subject.containers_that(|c| {
        context(c).get_set("allowPrivilegeEscalation") != Some(&Value::Bool(false))
    });
    if is_spared(subject, minor) || containers.is_empty() {
        return None;
    }
    let detail = format!(
        "{} must set securityContext.allowPrivilegeEscalation=false",
        named("container", &containers)
    );
    Violation::new("allowPrivilegeEscalation != false", detail)
}

fn capabilities(subject: &Subject<'_>, minor: u32) -> Option<Violation> {
    fn added(container: &Value) -> impl Iterator<Item = &str> {
        context(container)
            .field("capabilities")
            .texts("add")
            .filter(|c| *c != "NET_BIND_SERVICE")
    }
    if is_spared(subject, minor) {
        return None;
    }
    let keeping = subject.containers_that(|c| {
        !context(c)
            .field("capabilities")
            .texts("drop")
            .any(|c| c == "ALL")
    });
    let adding = subject.containers_that(|c| added(c).next().is_some());
    let mut details = Vec::new();
    if !keeping.is_empty() {
        details.push(format!(
            "{} must set securityContext.capabilities.drop=[\"ALL\"]",
            named("container", &keeping)
        ));
    }
    if !adding.is_empty() {
        let bad = set_of(subject.containers().flat_map(added));
        let who = named("container", &adding);
        details.push(format!(
            "{who} must not include {} in securityContext.capabilities.add",
            quoted(&bad)
        ));
    }
    if details.is_empty() {
        None
    } else {
        Violation::new("unrestricted capabilities", details.join("; "))
    }
}

fn volumes(subject: &Subject<'_>, _: u32) -> Option<Violation> {
    let bad: Vec<&Value> = subject
        .spec
        .list("volumes")
        .iter()
        .filter(|v| !VOLUMES.iter().any(|source| v.has(source)))
        .collect();
    if bad.is_empty() {
        return None;
    }
    let names: Vec<String> = bad.iter().map(|v| v.text("name").to_owned()).collect();
    let source = |v: &&Value| {
        v.as_object()
            .into_iter()
            .flatten()
            .find(|(k, v)| *k != "name" && !v.is_null())
            .map_or("unknown".into(), |(k, _)| k.clone())
    };
    let types: std::collections::BTreeSet<String> = bad.iter().map(source).collect();
    let who = named("volume", &names);
    let how = uses(names.len());
    Violation::new(
        "restricted volume types",
        format!(
            "{who} {how} {} {}",
            plural("restricted volume type", types.len()),
            quoted(&types)
        ),
    )
}

fn non_root(subject: &Subject<'_>) -> Option<Violation> {
    let run_as_non_root =
        |context: &Value| context.get_set("runAsNonRoot").and_then(Value::as_bool);
    let setters = subject.setters(
        run_as_non_root(subject.context()) == Some(false),
        &subject.containers_that(|c| run_as_non_root(context(c)) == Some(false)),
    );
    if !setters.is_empty() {
        return Violation::new(
            "runAsNonRoot != true",
            format!("{setters} must not set securityContext.runAsNonRoot=false"),
        );
    }
    let silent = subject.containers_that(|c| run_as_non_root(context(c)).is_none());
    if run_as_non_root(subject.context()) == Some(true) || silent.is_empty() {
        return None;
    }
    Violation::new(
        "runAsNonRoot != true",
        format!(
            "pod or {} must set securityContext.runAsNonRoot=true",
            named("container", &silent)
        ),
    )
}

fn user(subject: &Subject<'_>) -> Option<Violation> {
    let root = |context: &Value| context.int("runAsUser") == Some(0);
    let setters = subject.setters(
        root(subject.context()),
        &subject.containers_that(|c| root(context(c))),
    );
    if setters.is_empty() {
        None
    } else {
        Violation::new("runAsUser=0", format!("{setters} must not set runAsUser=0"))
    }
}

fn seccomp(subject: &Subject<'_>, minor: u32) -> Option<Violation> {
    if is_spared(subject, minor) {
        return None;
    }
    let violation = bad_seccomp(subject);
    let silent = subject.containers_that(|c| !context(c).has("seccompProfile"));
    if violation.is_some() || subject.context().has("seccompProfile") || silent.is_empty() {
        return violation;
    }
    let who = named("container", &silent);
    let detail = format!(
        "pod or {who} must set securityContext.seccompProfile.type to \"RuntimeDefault\" or \"Localhost\""
    );
    Violation::new("seccompProfile", detail)
}
