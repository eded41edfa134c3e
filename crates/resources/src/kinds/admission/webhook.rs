//! Webhook configurations. Mirrors `ValidateValidatingWebhookConfiguration`,
//! `ValidateMutatingWebhookConfiguration` and the defaults of `pkg/apis/admissionregistration/v1`.

use std::collections::BTreeSet;

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt},
    names,
};
use bellerophon_codec::object::Object;
use serde_json::Value;

use super::rules;
use crate::kinds::{Effect, Generation, Strategy, validation};

/// The strategy of ValidatingWebhookConfigurations. Mirrors `pkg/registry/admissionregistration/validatingwebhookconfiguration`.
pub const VALIDATING_WEBHOOKS: Strategy = Strategy {
    default: |configuration| default(configuration, Kind::Validating),
    validate: |configuration, out| validate(configuration, Kind::Validating, out),
    generation: Generation::Body,
    unconditional_update: false,
    effect: Effect::Admission,
    ..Strategy::PLAIN
};

/// The strategy of MutatingWebhookConfigurations. Mirrors `pkg/registry/admissionregistration/mutatingwebhookconfiguration`.
pub const MUTATING_WEBHOOKS: Strategy = Strategy {
    default: |configuration| default(configuration, Kind::Mutating),
    validate: |configuration, out| validate(configuration, Kind::Mutating, out),
    ..VALIDATING_WEBHOOKS
};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Validating,
    Mutating,
}

fn default(configuration: &mut Object, kind: Kind) {
    for hook in configuration.body.maps_mut("webhooks") {
        hook.default_to("failurePolicy", "Fail");
        rules::default_match(hook);
        hook.default_to("timeoutSeconds", 10);
        rules::default_rules(hook, "rules");
        if kind == Kind::Mutating {
            hook.default_to("reinvocationPolicy", "Never");
        }
        let service = hook
            .map_mut("clientConfig")
            .and_then(|config| config.map_mut("service"));
        service
            .into_iter()
            .for_each(|service| service.default_to("port", 443));
    }
}

fn validate(configuration: &Object, kind: Kind, out: &mut Vec<FieldError>) {
    let all = Path::field("webhooks");
    let mut seen = BTreeSet::new();
    for (i, hook) in configuration.body.list("webhooks").iter().enumerate() {
        let at = all.index(i);
        validate_hook(&at, hook, kind, out);
        review_versions(
            &at.child("admissionReviewVersions"),
            hook.field("admissionReviewVersions"),
            out,
        );
        let name = hook.text("name");
        if !name.is_empty() && !seen.insert(name) {
            out.push(FieldError::duplicate(at.child("name"), name));
        }
    }
}

fn validate_hook(at: &Path, hook: &Value, kind: Kind, out: &mut Vec<FieldError>) {
    domain_of_three(&at.child("name"), hook.text("name"), out);
    let rules = at.child("rules");
    for (i, rule) in hook.list("rules").iter().enumerate() {
        rules::validate_rule(&rules.index(i), rule, out);
    }
    validation::one_of(
        &at.child("failurePolicy"),
        hook.text("failurePolicy"),
        &["Fail", "Ignore"],
        out,
    );
    validation::one_of(
        &at.child("matchPolicy"),
        hook.text("matchPolicy"),
        &["Equivalent", "Exact"],
        out,
    );
    match hook.field("sideEffects").as_str() {
        None => out.push(FieldError::required(
            at.child("sideEffects"),
            "must specify one of None, NoneOnDryRun",
        )),
        Some(effects) => validation::one_of(
            &at.child("sideEffects"),
            effects,
            &["None", "NoneOnDryRun"],
            out,
        ),
    }
    if let Some(seconds) = hook
        .int("timeoutSeconds")
        .filter(|seconds| !(1..=30).contains(seconds))
    {
        out.push(FieldError::invalid(
            at.child("timeoutSeconds"),
            seconds,
            "the timeout value must be between 1 and 30 seconds",
        ));
    }
    for selector in ["namespaceSelector", "objectSelector"] {
        validation::label_selector(&at.child(selector), hook.field(selector), out);
    }
    if kind == Kind::Mutating {
        validation::one_of(
            &at.child("reinvocationPolicy"),
            hook.text("reinvocationPolicy"),
            &["IfNeeded", "Never"],
            out,
        );
    }
    client(&at.child("clientConfig"), hook.field("clientConfig"), out);
    rules::match_conditions(
        &at.child("matchConditions"),
        hook.list("matchConditions"),
        false,
        out,
    );
}

fn domain_of_three(at: &Path, name: &str, out: &mut Vec<FieldError>) {
    let errors = names::dns_subdomain(name);
    if name.is_empty() {
        out.push(FieldError::required(at, ""));
    } else if !errors.is_empty() {
        out.push(FieldError::invalid(at, name, &errors.join(",")));
    } else if name.split('.').count() < 3 {
        out.push(FieldError::invalid(
            at,
            name,
            "should be a domain with at least three segments separated by dots",
        ));
    }
}

fn client(at: &Path, config: &Value, out: &mut Vec<FieldError>) {
    match (config.field("url").as_str(), config.get_set("service")) {
        (Some(url), None) => validate_url(&at.child("url"), url, out),
        (None, Some(service)) => validate_service(&at.child("service"), service, out),
        _ => out.push(FieldError::required(
            at,
            "exactly one of url or service is required",
        )),
    }
}

fn validate_url(at: &Path, url: &str, out: &mut Vec<FieldError>) {
    const FORM: &str = "; desired format: https://host[/path]";
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (rest, fragment) = rest.split_once('#').unwrap_or((rest, ""));
    let (rest, query) = rest.split_once('?').unwrap_or((rest, ""));
    let authority = if scheme.is_empty() {
        ""
    } else {
        rest.split('/').next().unwrap_or_default()
    };
    let (user, host) = authority.rsplit_once('@').unwrap_or(("", authority));
    if scheme != "https" {
        out.push(FieldError::invalid(
            at,
            scheme,
            &format!("'https' is the only allowed URL scheme{FORM}"),
        ));
    }
    if host.is_empty() {
        out.push(FieldError::invalid(
            at,
            host,
            &format!("host must be specified{FORM}"),
        ));
    }
    for (part, why) in [
        (user, "user information is not permitted in the URL"),
        (fragment, "fragments are not permitted in the URL"),
        (query, "query parameters are not permitted in the URL"),
    ] {
        if !part.is_empty() {
            out.push(FieldError::invalid(at, part, why));
        }
    }
}

fn validate_service(at: &Path, service: &Value, out: &mut Vec<FieldError>) {
    // Kubernetes mixes the two up here, and clients see it.
    validation::required(&at.child("name"), service.text("namespace"), out);
    validation::required(&at.child("namespace"), service.text("name"), out);
    let port = service.int("port").unwrap_or_default();
    if !(1..=65535).contains(&port) {
        out.push(FieldError::invalid(
            at.child("port"),
            port,
            "port is not valid: must be between 1 and 65535, inclusive",
        ));
    }
    let path = service.text("path");
    if path.is_empty() || path == "/" {
        return;
    }
    let at = at.child("path");
    let Some(steps) = path.strip_prefix('/') else {
        return out.push(FieldError::invalid(at, path, "must start with a '/'"));
    };
    for (i, step) in steps
        .strip_suffix('/')
        .unwrap_or(steps)
        .split('/')
        .enumerate()
    {
        if step.is_empty() {
            out.push(FieldError::invalid(
                at,
                path,
                &format!("segment[{i}] may not be empty"),
            ));
            continue;
        }
        let errors = names::dns_subdomain(step);
        out.extend(
            errors
                .iter()
                .map(|why| FieldError::invalid(at, path, &format!("segment[{i}]: {why}"))),
        );
    }
}

fn review_versions(at: &Path, versions: &Value, out: &mut Vec<FieldError>) {
    let items: Vec<&str> = versions
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if items.is_empty() {
        return out.push(FieldError::required(at, "must specify one of v1, v1beta1"));
    }
    let mut seen = BTreeSet::new();
    for (i, version) in items.iter().enumerate() {
        if seen.insert(version) {
            validation::named(&at.index(i), version, names::dns_1035_label(version), out);
        } else {
            out.push(FieldError::invalid(
                at.index(i),
                *version,
                "duplicate version",
            ));
        }
    }
    if !items
        .iter()
        .any(|version| ["v1", "v1beta1"].contains(version))
    {
        out.push(FieldError::invalid(
            at,
            versions,
            "must include at least one of v1, v1beta1",
        ));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::test_support::{create, refused};

    #[test]
    fn webhooks_are_completed() {
        let hook = json!({"name": "check.example.com", "sideEffects": "None", "admissionReviewVersions": ["v1"], "clientConfig": {"service": {"name": "hook", "namespace": "n"}},
            "rules": [{"apiGroups": ["x.example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["widgets"]}]});
        let (stored, errors) = create(&MUTATING_WEBHOOKS, json!({"webhooks": [hook]}));
        assert_eq!(errors, [""; 0]);
        let hook = &stored.body["webhooks"][0];
        assert_eq!(&hook["failurePolicy"], &json!("Fail"));
        assert_eq!(&hook["timeoutSeconds"], &json!(10));
        assert_eq!(&hook["reinvocationPolicy"], &json!("Never"));
        assert_eq!(&hook["rules"][0]["scope"], &json!("*"));
        assert_eq!(&hook["clientConfig"]["service"]["port"], &json!(443));
    }

    #[test]
    fn webhooks_are_checked() {
        refused(
            &VALIDATING_WEBHOOKS,
            json!({"webhooks": [{"name": "short", "clientConfig": {}, "rules": [{"apiGroups": [], "apiVersions": ["v1"], "operations": ["READ"], "resources": ["pods"]}], "sideEffects": "Some", "admissionReviewVersions": []}]}),
            &[
                r#"webhooks[0].name: Invalid value: "short": should be a domain with at least three segments separated by dots"#,
                r#"webhooks[0].rules[0].operations[0]: Unsupported value: "READ": supported values: "*", "CONNECT", "CREATE", "DELETE", "UPDATE""#,
                "webhooks[0].rules[0].apiGroups: Required value",
                r#"webhooks[0].sideEffects: Unsupported value: "Some": supported values: "None", "NoneOnDryRun""#,
                "webhooks[0].clientConfig: Required value: exactly one of url or service is required",
                "webhooks[0].admissionReviewVersions: Required value: must specify one of v1, v1beta1",
            ],
        );
        refused(
            &VALIDATING_WEBHOOKS,
            json!({"webhooks": [{"name": "a.example.com", "clientConfig": {"url": "http://hook.example.com"}, "sideEffects": "None", "admissionReviewVersions": ["v2"], "failurePolicy": "Retry", "timeoutSeconds": 60}]}),
            &[
                r#"webhooks[0].failurePolicy: Unsupported value: "Retry": supported values: "Fail", "Ignore""#,
                "webhooks[0].timeoutSeconds: Invalid value: 60: the timeout value must be between 1 and 30 seconds",
                r#"webhooks[0].clientConfig.url: Invalid value: "http": 'https' is the only allowed URL scheme; desired format: https://host[/path]"#,
                r#"webhooks[0].admissionReviewVersions: Invalid value: ["v2"]: must include at least one of v1, v1beta1"#,
            ],
        );
    }
}
