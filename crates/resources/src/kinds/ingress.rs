//! Ingresses and their classes: hosts, paths and backends.
//! Mirrors `ValidateIngressCreate` and `ValidateIngressClass` in `pkg/apis/networking/validation`.

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt},
    names,
};
use bellerophon_codec::object::Object;
use serde_json::{Map, Value, json};

use super::{Generation, Strategy, validation};

const CLASS_ANNOTATION: &str = "kubernetes.io/ingress.class";
const CONTROLLER_MAX: usize = 250;

/// The strategy of Ingresses. Mirrors `pkg/registry/networking/ingress`.
pub const INGRESS: Strategy = Strategy {
    default: |ingress| {
        ingress.section("spec");
        ingress
            .section("status")
            .default_to("loadBalancer", Map::new());
    },
    prepare_create: |ingress| {
        ingress
            .body
            .insert("status".into(), json!({"loadBalancer": {}}));
    },
    validate,
    validate_create: class_twice,
    validate_status,
    warnings,
    ..Strategy::WITH_STATUS
};

/// The strategy of IngressClasses. Mirrors `pkg/registry/networking/ingressclass`.
pub const INGRESS_CLASS: Strategy = Strategy {
    default: |class| {
        let spec = class.section("spec");
        let parameters = spec.map_mut("parameters").into_iter();
        parameters.for_each(|p| p.default_to("scope", "Cluster"));
    },
    validate: validate_class,
    validate_update: |new, old, out| {
        let controller = |class: &Object| json!(class.str_at("spec.controller"));
        validation::immutable(
            &Path::field("spec.controller"),
            &controller(new),
            &controller(old),
            out,
        );
    },
    generation: Generation::Spec,
    ..Strategy::PLAIN
};

fn validate(ingress: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("spec");
    let spec = ingress.body.field("spec");
    if spec.is_empty_at("rules") && spec.get_set("defaultBackend").is_none() {
        out.push(FieldError::invalid(
            at,
            validation::NULL,
            "either `defaultBackend` or `rules` must be specified",
        ));
    }
    if let Some(backend) = spec.get_set("defaultBackend") {
        validate_backend(&at.child("defaultBackend"), backend, out);
    }
    let rules = at.child("rules");
    for (i, rule) in spec.list("rules").iter().enumerate() {
        validate_rule(&rules.index(i), rule, out);
    }
    let all = at.child("tls");
    for (i, tls) in spec.list("tls").iter().enumerate() {
        validate_tls(&all.index(i), tls, out);
    }
    if let Some(class) = spec.field("ingressClassName").as_str() {
        validation::named(
            &at.child("ingressClassName"),
            class,
            names::dns_subdomain(class),
            out,
        );
    }
}

fn validate_rule(at: &Path, rule: &Value, out: &mut Vec<FieldError>) {
    let host = rule.text("host");
    if !host.is_empty() {
        if validation::parse_ip(host).is_some() {
            out.push(FieldError::invalid(
                at.child("host"),
                host,
                "must be a DNS name, not an IP address",
            ));
        }
        validation::named(&at.child("host"), host, host_name(host), out);
    }
    let Some(http) = rule.get_set("http") else {
        return;
    };
    let at = at.child("http");
    let all = at.child("paths");
    if http.is_empty_at("paths") {
        out.push(FieldError::required(all, ""));
    }
    for (i, path) in http.list("paths").iter().enumerate() {
        validate_path(&all.index(i), path, out);
    }
}

/// The errors of a host, which may start with `*.`.
fn host_name(host: &str) -> Vec<String> {
    if !host.contains('*') {
        return names::dns_subdomain(host);
    }
    let mut errors = Vec::new();
    if host.len() > 253 {
        errors.push("must be no more than 253 characters".into());
    }
    let fits = host
        .strip_prefix("*.")
        .is_some_and(|rest| rest.len() <= 253 && names::dns_subdomain(rest).is_empty());
    if !fits {
        errors.push(r"a wildcard DNS-1123 subdomain must start with '*.', followed by a valid DNS subdomain, which must consist of lower case alphanumeric characters, '-' or '.' and end with an alphanumeric character (e.g. '*.example.com', regex used for validation is '\*\.[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*')".into());
    }
    errors
}

fn validate_path(at: &Path, path: &Value, out: &mut Vec<FieldError>) {
    let text = path.text("path");
    let Some(kind) = path.field("pathType").as_str() else {
        out.push(FieldError::required(
            at.child("pathType"),
            "pathType must be specified",
        ));
        return;
    };
    let strict = match kind {
        "Exact" | "Prefix" => true,
        "ImplementationSpecific" => false,
        other => {
            out.push(FieldError::not_supported(
                at.child("pathType"),
                other,
                &["Exact", "ImplementationSpecific", "Prefix"],
            ));
            validate_backend(&at.child("backend"), path.field("backend"), out);
            return;
        }
    };
    if !text.starts_with('/') && (strict || !text.is_empty()) {
        out.push(FieldError::invalid(
            at.child("path"),
            text,
            "must be an absolute path",
        ));
    }
    if strict && !text.is_empty() {
        for part in ["//", "/./", "/../", "%2f", "%2F"]
            .iter()
            .filter(|part| text.contains(**part))
        {
            out.push(FieldError::invalid(
                at.child("path"),
                text,
                &format!("must not contain '{part}'"),
            ));
        }
        for end in ["/..", "/."].iter().filter(|end| text.ends_with(**end)) {
            out.push(FieldError::invalid(
                at.child("path"),
                text,
                &format!("cannot end with '{end}'"),
            ));
        }
    }
    validate_backend(&at.child("backend"), path.field("backend"), out);
}

fn validate_backend(at: &Path, backend: &Value, out: &mut Vec<FieldError>) {
    match (backend.get_set("resource"), backend.get_set("service")) {
        (Some(_), Some(_)) => out.push(FieldError::invalid(
            at,
            "",
            "cannot set both resource and service backends",
        )),
        (Some(resource), None) => typed_reference(&at.child("resource"), resource, out),
        (None, Some(service)) => validate_service(at, service, out),
        (None, None) => out.push(FieldError::invalid(
            at,
            "",
            "resource or service backend is required",
        )),
    }
}

fn validate_service(at: &Path, service: &Value, out: &mut Vec<FieldError>) {
    let place = at.child("service");
    match service.text("name") {
        "" => out.push(FieldError::required(place.child("name"), "")),
        name => validation::named(&place.child("name"), name, names::dns_label(name), out),
    }
    let port = service.field("port");
    let place = place.child("port");
    match (port.text("name"), port.int("number").unwrap_or_default()) {
        ("", 0) => out.push(FieldError::required(at, "port name or number is required")),
        ("", number) => validation::port_number(&place.child("number"), number, out),
        (name, 0) => {
            validation::named(&place.child("name"), name, validation::port_name(name), out)
        }
        _ => out.push(FieldError::invalid(
            at,
            "",
            "cannot set both port name & port number",
        )),
    }
}

/// A reference with a group, a kind and a name.
fn typed_reference(at: &Path, reference: &Value, out: &mut Vec<FieldError>) {
    if let Some(group) = reference.field("apiGroup").as_str() {
        validation::named(
            &at.child("apiGroup"),
            group,
            names::dns_subdomain(group),
            out,
        );
    }
    for field in ["kind", "name"] {
        match reference.text(field) {
            "" => out.push(FieldError::required(at.child(field), "")),
            text => validation::named(&at.child(field), text, names::path_segment(text), out),
        }
    }
}

fn validate_tls(at: &Path, tls: &Value, out: &mut Vec<FieldError>) {
    let all = at.child("hosts");
    for (i, host) in tls
        .list("hosts")
        .iter()
        .filter_map(Value::as_str)
        .enumerate()
    {
        validation::named(&all.index(i), host, host_name(host), out);
    }
    let secret = tls.text("secretName");
    if !secret.is_empty() {
        validation::named(
            &at.child("secretName"),
            secret,
            names::dns_subdomain(secret),
            out,
        );
    }
}

/// The class may be in an annotation or in the spec, or in both when they are equal.
fn class_twice(ingress: &Object, out: &mut Vec<FieldError>) {
    let annotation = ingress.meta.annotations.get(CLASS_ANNOTATION);
    let class = ingress.at("spec.ingressClassName").and_then(Value::as_str);
    if let (Some(annotation), Some(class)) = (annotation, class)
        && annotation != class
    {
        let at = Path::field("annotations");
        out.push(FieldError::invalid(
            at.child(CLASS_ANNOTATION),
            annotation,
            "must match `ingressClassName` when both are specified",
        ));
    }
}

fn validate_status(new: &Object, _: &Object, out: &mut Vec<FieldError>) {
    let all = Path::field("status.loadBalancer.ingress");
    for (i, point) in new
        .body
        .field("status")
        .field("loadBalancer")
        .list("ingress")
        .iter()
        .enumerate()
    {
        let at = all.index(i);
        let ip = point.text("ip");
        let hostname = point.text("hostname");
        if !ip.is_empty() {
            validation::ip(&at.child("ip"), ip, out);
        }
        if !hostname.is_empty() {
            validation::named(
                &at.child("hostname"),
                hostname,
                names::dns_subdomain(hostname),
                out,
            );
            if validation::parse_ip(hostname).is_some() {
                out.push(FieldError::invalid(
                    at.child("hostname"),
                    hostname,
                    "must be a DNS name, not an IP address",
                ));
            }
        }
    }
}

fn warnings(ingress: &Object, old: Option<&Object>) -> Vec<String> {
    let annotated = ingress.meta.annotations.contains_key(CLASS_ANNOTATION);
    if old.is_some() || !annotated || ingress.at("spec.ingressClassName").is_some() {
        return Vec::new();
    }
    vec![format!(
        "annotation {CLASS_ANNOTATION:?} is deprecated, please use 'spec.ingressClassName' instead"
    )]
}

fn validate_class(class: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("spec");
    let spec = class.body.field("spec");
    let controller = spec.text("controller");
    if controller.len() > CONTROLLER_MAX {
        out.push(FieldError::too_long(at.child("controller"), CONTROLLER_MAX));
    }
    prefixed_path(&at.child("controller"), controller, out);
    let Some(parameters) = spec.get_set("parameters") else {
        return;
    };
    let at = at.child("parameters");
    typed_reference(&at, parameters, out);
    let namespace = parameters.field("namespace").as_str();
    match (parameters.text("scope"), namespace) {
        ("Namespace", None) => out.push(FieldError::required(
            at.child("namespace"),
            "`parameters.scope` is set to 'Namespace'",
        )),
        ("Namespace", Some(name)) => {
            validation::named(&at.child("namespace"), name, names::dns_label(name), out)
        }
        ("Cluster", Some(_)) => out.push(FieldError::forbidden(
            at.child("namespace"),
            "`parameters.scope` is set to 'Cluster'",
        )),
        ("Cluster", None) => {}
        (other, _) => out.push(FieldError::not_supported(
            at.child("scope"),
            other,
            &["Cluster", "Namespace"],
        )),
    }
}

/// A name such as `example.com/controller`: a domain, then a path.
pub(super) fn prefixed_path(at: &Path, text: &str, out: &mut Vec<FieldError>) {
    if text.is_empty() {
        out.push(FieldError::required(at, ""));
        return;
    }
    match text.split_once('/') {
        Some((domain, path)) if !domain.is_empty() && !path.is_empty() => {
            validation::named(at, domain, names::dns_subdomain(domain), out);
            let allowed = |c: char| c.is_ascii_alphanumeric() || "-._~!$&'()*+,;=:/%".contains(c);
            if !path.chars().all(allowed) {
                let why = r"Invalid path (regex used for validation is '[A-Za-z0-9/\-._~%!$&'()*+,;=:]+')";
                out.push(FieldError::invalid(at, path, why));
            }
        }
        _ => out.push(FieldError::invalid(
            at,
            text,
            "must be a domain-prefixed path (such as \"acme.io/foo\")",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::test_support::{create, refused, update};

    #[test]
    fn hosts_paths_and_backends_are_checked() {
        refused(
            &INGRESS,
            json!({"spec": {}}),
            &["spec: Invalid value: null: either `defaultBackend` or `rules` must be specified"],
        );
        refused(
            &INGRESS,
            json!({"spec": {"rules": [{"host": "192.0.2.1", "http": {"paths": [{"path": "/a//b", "pathType": "Exact", "backend": {"service": {"name": "web", "port": {}}}}, {"path": "/", "pathType": "Regex", "backend": {}}]}}], "tls": [{"hosts": ["*"]}]}}),
            &[
                r#"spec.rules[0].host: Invalid value: "192.0.2.1": must be a DNS name, not an IP address"#,
                r#"spec.rules[0].http.paths[0].path: Invalid value: "/a//b": must not contain '//'"#,
                "spec.rules[0].http.paths[0].backend: Required value: port name or number is required",
                r#"spec.rules[0].http.paths[1].pathType: Unsupported value: "Regex": supported values: "Exact", "ImplementationSpecific", "Prefix""#,
                r#"spec.rules[0].http.paths[1].backend: Invalid value: "": resource or service backend is required"#,
                r#"spec.tls[0].hosts[0]: Invalid value: "*": a wildcard DNS-1123 subdomain must start with '*.'…"#,
            ],
        );
        refused(
            &INGRESS,
            json!({"spec": {"rules": [{"host": "*.example.com", "http": {"paths": []}}], "defaultBackend": {"service": {"name": "web", "port": {"number": 80, "name": "http"}}}}}),
            &[
                r#"spec.defaultBackend: Invalid value: "": cannot set both port name & port number"#,
                "spec.rules[0].http.paths: Required value",
            ],
        );
        refused(
            &INGRESS,
            json!({"spec": {"rules": [{"http": {"paths": [{"path": "/", "backend": {}}]}}]}}),
            &["spec.rules[0].http.paths[0].pathType: Required value: pathType must be specified"],
        );
    }

    #[test]
    fn class_by_annotation_is_warned_of() {
        let (ingress, _) = create(
            &INGRESS,
            json!({"metadata": {"annotations": {CLASS_ANNOTATION: "nginx"}}, "spec": {"defaultBackend": {}}}),
        );
        assert_eq!(
            warnings(&ingress, None),
            [
                "annotation \"kubernetes.io/ingress.class\" is deprecated, please use 'spec.ingressClassName' instead"
            ]
        );
    }

    #[test]
    fn controller_of_a_class_stays() {
        let (class, errors) = create(
            &INGRESS_CLASS,
            json!({"spec": {"controller": "example.com/a", "parameters": {"kind": "P", "name": "p"}}}),
        );
        assert_eq!(errors.len(), 0);
        assert_eq!(class.str_at("spec.parameters.scope"), "Cluster");
        let (_, errors) = update(
            &INGRESS_CLASS,
            &class,
            json!({"spec": {"controller": "example.com/b"}}),
        );
        assert_eq!(
            errors,
            ["spec.controller: Invalid value: \"example.com/b\": field is immutable"]
        );
    }
}
