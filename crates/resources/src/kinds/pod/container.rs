//! Containers of a pod: main, init and ephemeral ones.
//! In: the lists of a pod spec. Out: the errors of each container and among them. Mirrors
//! `validateContainers`, `validateInitContainers` and `validateContainerPorts` in
//! `pkg/apis/core/validation`.

use std::collections::BTreeSet;

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::JsonExt,
    names,
};
use serde_json::Value;

use super::{
    super::validation,
    env, mount, probe, resources, security,
    spec::{ContainerContext, validate_choice},
};

/// The errors of the containers of a spec.
pub(super) fn validate_all(
    spec: &Value,
    container_context: &ContainerContext<'_>,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    validate_main(
        spec.list("containers"),
        container_context,
        &at.child("containers"),
        out,
    );
    validate_init(spec, container_context, &at.child("initContainers"), out);
    validate_ephemeral(
        spec,
        container_context,
        &at.child("ephemeralContainers"),
        out,
    );
}

fn validate_main(
    containers: &[Value],
    container_context: &ContainerContext<'_>,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    if containers.is_empty() {
        out.push(FieldError::required(at, ""));
        return;
    }
    let mut seen = BTreeSet::new();
    for (i, container) in containers.iter().enumerate() {
        let at = at.index(i);
        validate_common(container, container_context, &at, out);
        let name = container.text("name");
        if !seen.insert(name) {
            out.push(FieldError::duplicate(at.child("name"), name));
        }
        probe::validate_lifecycle(container, container_context, &at, out);
        probe::validate_all(container, container_context, &at, out);
        validate_restart_policy(container, &at, out);
    }
    validate_unique_host_ports(containers.iter().enumerate(), at, out);
}

fn validate_init(
    spec: &Value,
    container_context: &ContainerContext<'_>,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let mut seen: BTreeSet<&str> = spec
        .list("containers")
        .iter()
        .map(|c| c.text("name"))
        .collect();
    for (i, container) in spec.list("initContainers").iter().enumerate() {
        let item = at.index(i);
        validate_common(container, container_context, &item, out);
        validate_restart_policy(container, &item, out);
        let name = container.text("name");
        if seen.contains(name) {
            out.push(FieldError::duplicate(item.child("name"), name));
        } else if !name.is_empty() {
            seen.insert(name);
        }
        validate_unique_host_ports(std::iter::once((0, container)), at, out);
        let sidecar = container.text("restartPolicy") == "Always";
        if sidecar {
            probe::validate_lifecycle(container, container_context, &item, out);
            probe::validate_all(container, container_context, &item, out);
        } else {
            for field in [
                "lifecycle",
                "livenessProbe",
                "readinessProbe",
                "startupProbe",
            ] {
                if container.has(field) {
                    let detail = "may not be set for init containers without restartPolicy=Always";
                    out.push(FieldError::forbidden(item.child(field), detail));
                }
            }
            let policies = item.child("resizePolicy");
            for (j, policy) in container.list("resizePolicy").iter().enumerate() {
                if policy.text("restartPolicy") == "RestartContainer" {
                    let detail =
                        "must not be set to 'RestartContainer' for non-sidecar initContainers";
                    out.push(FieldError::invalid(
                        policies.index(j).child("restartPolicy"),
                        "RestartContainer",
                        detail,
                    ));
                }
            }
        }
    }
}

/// Fields that an ephemeral container may not have.
const NOT_EPHEMERAL: [&str; 9] = [
    "ports",
    "resources",
    "resizePolicy",
    "restartPolicy",
    "restartPolicyRules",
    "livenessProbe",
    "readinessProbe",
    "startupProbe",
    "lifecycle",
];

fn validate_ephemeral(
    spec: &Value,
    container_context: &ContainerContext<'_>,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let others: BTreeSet<&str> = ["containers", "initContainers"]
        .iter()
        .flat_map(|l| spec.list(l))
        .map(|c| c.text("name"))
        .collect();
    let mut seen = others.clone();
    for (i, container) in spec.list("ephemeralContainers").iter().enumerate() {
        let at = at.index(i);
        validate_common(container, container_context, &at, out);
        validate_image_blanks(container, &at, out);
        let name = container.text("name");
        if !seen.insert(name) {
            out.push(FieldError::duplicate(at.child("name"), name));
        }
        let target = container.text("targetContainerName");
        if !target.is_empty() && !others.contains(target) {
            out.push(FieldError::not_found(
                at.child("targetContainerName"),
                target,
            ));
        }
        const DETAIL: &str = "cannot be set for an Ephemeral Container";
        for field in NOT_EPHEMERAL.iter().filter(|f| !container.is_empty_at(f)) {
            out.push(FieldError::forbidden(at.child(field), DETAIL));
        }
        let mounts = at.child("volumeMounts");
        for (j, mount) in container.list("volumeMounts").iter().enumerate() {
            for field in ["subPath", "subPathExpr"]
                .iter()
                .filter(|f| !mount.text(f).is_empty())
            {
                out.push(FieldError::forbidden(mounts.index(j).child(field), DETAIL));
            }
        }
    }
}

/// The errors of a container of any list.
fn validate_common(
    container: &Value,
    container_context: &ContainerContext<'_>,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let name = container.text("name");
    if name.is_empty() {
        out.push(FieldError::required(at.child("name"), ""));
    } else {
        validation::named(&at.child("name"), name, names::dns_label(name), out);
    }
    validation::required(&at.child("image"), container.text("image"), out);
    let policy = container.text("terminationMessagePolicy");
    validate_choice(
        &at.child("terminationMessagePolicy"),
        policy,
        &["File", "FallbackToLogsOnError"],
        out,
    );
    validate_ports(container.list("ports"), &at.child("ports"), out);
    env::validate(container, at, out);
    mount::validate(container, container_context, at, out);
    validate_choice(
        &at.child("imagePullPolicy"),
        container.text("imagePullPolicy"),
        &["Always", "IfNotPresent", "Never"],
        out,
    );
    resources::validate(
        container.field("resources"),
        resources::Level::Container,
        &container_context.claims,
        &at.child("resources"),
        out,
    );
    validate_resize_policy(container, container_context, &at.child("resizePolicy"), out);
    security::validate_container(
        container.field("securityContext"),
        container_context.host_users,
        &at.child("securityContext"),
        out,
    );
}

fn validate_ports(ports: &[Value], at: &Path<'_>, out: &mut Vec<FieldError>) {
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let at = at.index(i);
        let name = port.text("name");
        let errors = if name.is_empty() {
            Vec::new()
        } else {
            validation::port_name(name)
        };
        if errors.is_empty() && !name.is_empty() && !seen.insert(name) {
            out.push(FieldError::duplicate(at.child("name"), name));
        }
        validation::named(&at.child("name"), name, errors, out);
        match port.number("containerPort") {
            0 => out.push(FieldError::required(at.child("containerPort"), "")),
            number => validation::port_number(&at.child("containerPort"), number, out),
        }
        if let Some(host) = port.int("hostPort").filter(|p| *p != 0) {
            validation::port_number(&at.child("hostPort"), host, out);
        }
        validate_choice(
            &at.child("protocol"),
            port.text("protocol"),
            validation::PROTOCOLS,
            out,
        );
    }
}

/// No two containers of a pod may take the same port of the host.
fn validate_unique_host_ports<'a>(
    containers: impl Iterator<Item = (usize, &'a Value)>,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let mut taken = BTreeSet::new();
    for (i, container) in containers {
        let item = at.index(i);
        let ports = item.child("ports");
        for (j, port) in container
            .list("ports")
            .iter()
            .enumerate()
            .filter(|(_, p)| p.number("hostPort") != 0)
        {
            let key = format!(
                "{}/{}/{}",
                port.text("protocol"),
                port.text("hostIP"),
                port.number("hostPort")
            );
            if taken.contains(&key) {
                out.push(FieldError::duplicate(
                    ports.index(j).child("hostPort"),
                    &key,
                ));
            }
            taken.insert(key);
        }
    }
}

fn validate_resize_policy(
    container: &Value,
    container_context: &ContainerContext<'_>,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let mut seen = BTreeSet::new();
    for (i, policy) in container.list("resizePolicy").iter().enumerate() {
        let resource = policy.text("resourceName");
        let restart = policy.text("restartPolicy");
        if !seen.insert(resource) {
            out.push(FieldError::duplicate(at.index(i), resource));
        }
        validate_choice(at, resource, &["cpu", "memory"], out);
        validate_choice(at, restart, &["NotRequired", "RestartContainer"], out);
        if container_context.restart_policy == "Never" && restart != "NotRequired" {
            out.push(FieldError::invalid(
                at,
                restart,
                "must be 'NotRequired' when pod `restartPolicy` is 'Never'",
            ));
        }
    }
}

const RESTART_RULES_MAX: usize = 20;
const EXIT_CODES_MAX: usize = 255;

fn validate_restart_policy(container: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let rules = container.list("restartPolicyRules");
    let at_policy = at.child("restartPolicy");
    match container.field("restartPolicy").as_str() {
        None if rules.is_empty() => return,
        None => out.push(FieldError::required(
            at_policy,
            "must specify restartPolicy when restart rules are used",
        )),
        Some(policy) => {
            validation::one_of(&at_policy, policy, &["Always", "Never", "OnFailure"], out)
        }
    }
    let at_rules = at.child("restartPolicyRules");
    if rules.len() > RESTART_RULES_MAX {
        out.push(FieldError::too_many(
            at_rules,
            rules.len(),
            RESTART_RULES_MAX,
        ));
    }
    for (i, rule) in rules.iter().enumerate() {
        let at = at_rules.index(i);
        validation::one_of(
            &at.child("action"),
            rule.text("action"),
            &["Restart", "RestartAllContainers"],
            out,
        );
        let at_codes = at.child("exitCodes");
        let Some(codes) = rule.get_set("exitCodes") else {
            out.push(FieldError::required(at_codes, "must be specified"));
            continue;
        };
        validation::one_of(
            &at_codes.child("operator"),
            codes.text("operator"),
            &["In", "NotIn"],
            out,
        );
        let count = codes.list("values").len();
        if count > EXIT_CODES_MAX {
            out.push(FieldError::too_many(
                at_codes.child("values"),
                count,
                EXIT_CODES_MAX,
            ));
        }
    }
}

/// White space around an image is rejected in pods, not in templates.
pub(super) fn validate_image_blanks(container: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let image = container.text("image");
    if image.trim() != image {
        out.push(FieldError::invalid(
            at.child("image"),
            image,
            "must not have leading or trailing whitespace",
        ));
    }
}
