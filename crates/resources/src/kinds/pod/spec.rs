//! Validation of a pod spec, in a pod or in a template.
//! In: the defaulted spec. Out: its errors, in the order of Kubernetes.
//! Mirrors `ValidatePodSpec` in `pkg/apis/core/validation`.

use std::collections::{BTreeMap, BTreeSet};

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::JsonExt,
    names,
};
use bellerophon_codec::object::ObjectMeta;
use serde_json::{Map, Value};

use super::{super::validation, affinity, container, env, resources, scheduling, security, volume};

/// The object with the spec: some rules are for pods only.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Holder<'a> {
    Pod(&'a ObjectMeta),
    Template,
}

/// The pod around the validated containers.
pub(super) struct ContainerContext<'a> {
    /// Valid volumes by name.
    pub(super) volumes: BTreeMap<&'a str, &'a Value>,
    /// The names of the pod's resource claims.
    pub(super) claims: BTreeSet<&'a str>,
    pub(super) grace_seconds: Option<i64>,
    pub(super) restart_policy: &'a str,
    /// Whether users in the pod are users of the host.
    pub(super) host_users: bool,
}

/// The errors of a pod spec.
pub(crate) fn validate(spec: &Value, holder: Holder<'_>, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if !spec.has("terminationGracePeriodSeconds") {
        out.push(FieldError::required(
            at.child("terminationGracePeriodSeconds"),
            "",
        ));
    }
    let container_context = ContainerContext {
        volumes: volume::validate_all(spec, holder, &at.child("volumes"), out),
        claims: spec
            .list("resourceClaims")
            .iter()
            .map(|c| c.text("name"))
            .filter(|n| !n.is_empty())
            .collect(),
        grace_seconds: spec.int("terminationGracePeriodSeconds"),
        restart_policy: spec.text("restartPolicy"),
        host_users: spec.field("hostUsers") != &Value::Bool(false),
    };
    validate_claims(spec, holder, &at.child("resourceClaims"), out);
    container::validate_all(spec, &container_context, at, out);
    resources::validate_pod_level(spec, &container_context.claims, at, out);
    validate_host_ports(spec, holder, at, out);
    validate_choice(
        &at.child("restartPolicy"),
        spec.text("restartPolicy"),
        &["Always", "OnFailure", "Never"],
        out,
    );
    validate_choice(
        &at.child("dnsPolicy"),
        spec.text("dnsPolicy"),
        &["ClusterFirstWithHostNet", "ClusterFirst", "Default", "None"],
        out,
    );
    validation::labels(&at.child("nodeSelector"), spec.field("nodeSelector"), out);
    security::validate_pod(spec, &at.child("securityContext"), out);
    validate_pull_secrets(spec, &at.child("imagePullSecrets"), out);
    affinity::validate(spec.field("affinity"), &at.child("affinity"), out);
    validate_dns(spec, &at.child("dnsConfig"), out);
    scheduling::validate_gates(spec, at, out);
    scheduling::validate_spread(
        spec.list("topologySpreadConstraints"),
        &at.child("topologySpreadConstraints"),
        out,
    );
    security::validate_host_process(spec, at, out);
    validate_host_users(spec, at, out);
    validate_host_name(spec, at, out);
    validate_names(spec, at, out);
    if spec.has("os") {
        security::validate_os(spec, at, out);
    }
    env::validate_files(spec, at, out);
}

/// A choice that must be made, out of `supported`.
pub(super) fn validate_choice(
    at: &Path<'_>,
    value: &str,
    supported: &[&str],
    out: &mut Vec<FieldError>,
) {
    if value.is_empty() {
        out.push(FieldError::required(at, ""));
    } else {
        validation::one_of(at, value, supported, out);
    }
}

/// Every container of a spec with its place, in the order init, main, ephemeral.
pub(super) fn visit(spec: &Value, at: &Path<'_>, mut see: impl FnMut(&Value, &Path<'_>)) {
    for list in super::defaults::CONTAINER_LISTS {
        let list_at = at.child(list);
        for (i, container) in spec.list(list).iter().enumerate() {
            see(container, &list_at.index(i));
        }
    }
}

fn validate_claims(spec: &Value, holder: Holder<'_>, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let mut seen = BTreeSet::new();
    for (i, claim) in spec.list("resourceClaims").iter().enumerate() {
        if let Holder::Pod(meta) = holder
            && meta.annotations.contains_key(MIRROR)
        {
            out.push(FieldError::forbidden(
                "",
                "static pods do not support resource claims",
            ));
            continue;
        }
        let at = at.index(i);
        let name = claim.text("name");
        if name.is_empty() {
            out.push(FieldError::required(at.child("name"), ""));
        } else if !seen.insert(name) {
            out.push(FieldError::duplicate(at.child("name"), name));
        } else {
            validation::named(&at.child("name"), name, names::dns_label(name), out);
        }
        const SOURCES: [&str; 2] = ["resourceClaimName", "resourceClaimTemplateName"];
        match SOURCES.iter().filter(|s| claim.has(s)).count() {
            0 => out.push(FieldError::invalid(at, claim, "must specify one of: `resourceClaimName`, `resourceClaimTemplateName`")),
            1 => {}
            _ => out.push(FieldError::invalid(
                at,
                claim,
                "at most one of `resourceClaimName` or `resourceClaimTemplateName` may be specified",
            )),
        }
        for source in SOURCES {
            if let Some(name) = claim.field(source).as_str() {
                validation::named(&at.child(source), name, names::dns_subdomain(name), out);
            }
        }
    }
}

fn validate_host_ports(spec: &Value, holder: Holder<'_>, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if !spec.is_true("hostNetwork") {
        return;
    }
    let containers_at = at.child("containers");
    for (i, container) in spec.list("containers").iter().enumerate() {
        let container_at = containers_at.index(i);
        let ports_at = container_at.child("ports");
        for (j, port) in container.list("ports").iter().enumerate() {
            let host = port.number("hostPort");
            let own = port.number("containerPort");
            if (holder != Holder::Template || host != 0) && host != own {
                let port_at = ports_at.index(j);
                let detail = "must match `containerPort` when `hostNetwork` is true";
                out.push(FieldError::invalid(port_at.child("hostPort"), host, detail));
            }
        }
    }
}

fn validate_pull_secrets(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    for (i, secret) in spec.list("imagePullSecrets").iter().enumerate() {
        if secret
            .as_object()
            .is_some_and(|s| s.keys().any(|k| k != "name"))
        {
            out.push(FieldError::invalid(
                at.index(i),
                secret,
                "only name may be set",
            ));
        }
    }
}

const NAMESERVERS_MAX: usize = 3;
const SEARCHES_MAX: usize = 32;
const SEARCHES_CHARS_MAX: usize = 2048;

fn validate_dns(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let config = spec.field("dnsConfig");
    let servers_at = at.child("nameservers");
    if spec.text("dnsPolicy") == "None" {
        if config.is_null() {
            out.push(FieldError::required(
                at,
                "must provide `dnsConfig` when `dnsPolicy` is None",
            ));
            return;
        }
        if config.list("nameservers").is_empty() {
            out.push(FieldError::required(
                servers_at,
                "must provide at least one DNS nameserver when `dnsPolicy` is None",
            ));
            return;
        }
    }
    if config.list("nameservers").len() > NAMESERVERS_MAX {
        let detail = format!("must not have more than {NAMESERVERS_MAX} nameservers");
        out.push(FieldError::invalid(
            servers_at,
            config.field("nameservers"),
            &detail,
        ));
    }
    for (i, server) in config.texts("nameservers").enumerate() {
        validation::ip(&servers_at.index(i), server, out);
    }
    let searches_at = at.child("searches");
    let searches: Vec<&str> = config.texts("searches").collect();
    if searches.len() > SEARCHES_MAX {
        let detail = format!("must not have more than {SEARCHES_MAX} search paths");
        out.push(FieldError::invalid(
            searches_at,
            config.field("searches"),
            &detail,
        ));
    }
    if searches.join(" ").len() > SEARCHES_CHARS_MAX {
        let detail = format!(
            "must not have more than {SEARCHES_CHARS_MAX} characters (including spaces) in the search list"
        );
        out.push(FieldError::invalid(
            searches_at,
            config.field("searches"),
            &detail,
        ));
    }
    for (i, search) in searches.into_iter().enumerate().filter(|(_, s)| *s != ".") {
        let search = search.strip_suffix('.').unwrap_or(search);
        validation::named(&searches_at.index(i), search, search_path(search), out);
    }
    for (i, option) in config.list("options").iter().enumerate() {
        if option.text("name").is_empty() {
            out.push(FieldError::required(
                at.child("options").index(i),
                "must not be empty",
            ));
        }
    }
}

/// The errors of a DNS search path, which may have underscores.
fn search_path(name: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if name.len() > 253 {
        errors.push("must be no more than 253 characters".to_owned());
    }
    let label = |label: &str| {
        let inner = label.strip_prefix('_').unwrap_or(label);
        let edge =
            |c: Option<char>| c.is_some_and(|c| c.is_ascii_lowercase() || c.is_ascii_digit());
        edge(inner.chars().next())
            && edge(inner.chars().next_back())
            && inner
                .chars()
                .all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_'))
    };
    if !name.split('.').all(label) {
        errors.push("a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '_', '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '_?[a-z0-9]([-_a-z0-9]*[a-z0-9])?(\\._?[a-z0-9]([-_a-z0-9]*[a-z0-9])?)*')".to_owned());
    }
    errors
}

fn validate_host_users(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if spec.field("hostUsers") != &Value::Bool(false) {
        return;
    }
    // Kubernetes writes two of the three with a capital.
    for (field, shown) in [
        ("hostNetwork", "hostNetwork"),
        ("hostPID", "HostPID"),
        ("hostIPC", "HostIPC"),
    ] {
        if spec.is_true(field) {
            out.push(FieldError::forbidden(
                at.child(shown),
                "when `hostUsers` is false",
            ));
        }
    }
    visit(spec, at, |container, at| {
        if !container.is_empty_at("volumeDevices") {
            out.push(FieldError::forbidden(
                at.child("volumeDevices"),
                "when `hostUsers` is false",
            ));
        }
    });
}

fn validate_host_name(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let Some(name) = spec.field("hostnameOverride").as_str() else {
        return;
    };
    let at = at.child("hostnameOverride");
    for (field, detail) in [
        (
            "setHostnameAsFQDN",
            "may not be specified when setHostnameAsFQDN is true",
        ),
        (
            "hostNetwork",
            "may not be specified when hostNetwork is true",
        ),
    ] {
        if spec.is_true(field) {
            out.push(FieldError::forbidden(at, detail));
        }
    }
    if name.len() > 64 {
        out.push(FieldError::too_long(at, 64));
    }
    validation::named(&at, name, names::dns_subdomain(name), out);
}

/// Validates the names of other objects, the host name and the fields between them.
fn validate_names(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let name = |field: &str, validate: fn(&str) -> Vec<String>, out: &mut Vec<FieldError>| {
        let value = spec.text(field);
        if !value.is_empty() {
            validation::named(&at.child(field), value, validate(value), out);
        }
    };
    name("serviceAccountName", names::dns_subdomain, out);
    name("nodeName", names::dns_subdomain, out);
    if let Some(seconds) = spec.int("activeDeadlineSeconds")
        && !(1..=i64::from(i32::MAX)).contains(&seconds)
    {
        out.push(FieldError::invalid(
            at.child("activeDeadlineSeconds"),
            seconds,
            "must be between 1 and 2147483647, inclusive",
        ));
    }
    name("hostname", names::dns_label, out);
    name("subdomain", names::dns_label, out);
    scheduling::validate_tolerations(spec.list("tolerations"), &at.child("tolerations"), out);
    validate_host_aliases(spec, &at.child("hostAliases"), out);
    name("priorityClassName", names::dns_subdomain, out);
    if let Some(class) = spec.field("runtimeClassName").as_str() {
        validation::named(
            &at.child("runtimeClassName"),
            class,
            names::dns_subdomain(class),
            out,
        );
    }
    if let Some(policy) = spec.field("preemptionPolicy").as_str() {
        validate_choice(
            &at.child("preemptionPolicy"),
            policy,
            &["PreemptLowerPriority", "Never"],
            out,
        );
    }
    if let Some(overhead) = spec.get_set("overhead") {
        let limits = Value::Object(Map::from_iter([("limits".to_owned(), overhead.clone())]));
        resources::validate(
            &limits,
            resources::Level::Container,
            &BTreeSet::new(),
            &at.child("overhead"),
            out,
        );
    }
}

fn validate_host_aliases(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    for (i, alias) in spec.list("hostAliases").iter().enumerate() {
        let at = at.index(i);
        validation::ip(&at.child("ip"), alias.text("ip"), out);
        let names_at = at.child("hostnames");
        for (j, name) in alias.texts("hostnames").enumerate() {
            validation::named(&names_at.index(j), name, names::dns_subdomain(name), out);
        }
    }
}

/// Marks the mirror of a pod that a node runs from a file.
pub(super) const MIRROR: &str = "kubernetes.io/config.mirror";
