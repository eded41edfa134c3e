//! Probes and lifecycle hooks of a container.
//! In: a container. Out: the errors of its probes and hooks. Mirrors `validateProbe`,
//! `validateHandler` and `validateLifecycle` in `pkg/apis/core/validation`.

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::JsonExt,
};
use serde_json::Value;

use super::{super::validation, spec::ContainerContext};

/// The errors of the three probes.
pub(super) fn validate_all(
    container: &Value,
    container_context: &ContainerContext<'_>,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    for name in ["livenessProbe", "readinessProbe", "startupProbe"] {
        let Some(probe) = container.get_set(name) else {
            continue;
        };
        let at = at.child(name);
        validate_probe(probe, container_context, &at, out);
        if name == "readinessProbe" {
            if let Some(seconds) = probe.int("terminationGracePeriodSeconds") {
                let detail = "must not be set for readinessProbes";
                out.push(FieldError::invalid(
                    at.child("terminationGracePeriodSeconds"),
                    seconds,
                    detail,
                ));
            }
        } else if probe.number("successThreshold") != 1 {
            out.push(FieldError::invalid(
                at.child("successThreshold"),
                probe.number("successThreshold"),
                "must be 1",
            ));
        }
    }
}

fn validate_probe(
    probe: &Value,
    container_context: &ContainerContext<'_>,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    validate_handler(
        probe,
        &["exec", "httpGet", "tcpSocket", "grpc"],
        container_context,
        at,
        out,
    );
    for field in [
        "initialDelaySeconds",
        "timeoutSeconds",
        "periodSeconds",
        "successThreshold",
        "failureThreshold",
    ] {
        validation::not_negative(&at.child(field), probe.number(field), out);
    }
    if let Some(seconds) = probe
        .int("terminationGracePeriodSeconds")
        .filter(|s| *s <= 0)
    {
        out.push(FieldError::invalid(
            at.child("terminationGracePeriodSeconds"),
            seconds,
            "must be greater than 0",
        ));
    }
}

/// The errors of the hooks around a container's life.
pub(super) fn validate_lifecycle(
    container: &Value,
    container_context: &ContainerContext<'_>,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let at = at.child("lifecycle");
    for hook in ["postStart", "preStop"] {
        if let Some(handler) = container.field("lifecycle").get_set(hook) {
            validate_handler(
                handler,
                &["exec", "httpGet", "tcpSocket", "sleep"],
                container_context,
                &at.child(hook),
                out,
            );
        }
    }
}

/// Exactly one handler must be set, and valid.
fn validate_handler(
    holder: &Value,
    handlers: &[&str],
    container_context: &ContainerContext<'_>,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let mut found = handlers
        .iter()
        .filter_map(|name| Some((*name, holder.get_set(name)?)));
    let Some((name, handler)) = found.next() else {
        out.push(FieldError::required(at, "must specify a handler type"));
        return;
    };
    let here = at.child(name);
    match name {
        "exec" => {
            if handler.list("command").is_empty() {
                out.push(FieldError::required(here.child("command"), ""));
            }
        }
        "httpGet" => validate_http_get(handler, &here, out),
        "tcpSocket" => validation::port_or_name(&here.child("port"), handler.field("port"), out),
        "grpc" => validation::port_number(&here.child("port"), handler.number("port"), out),
        _ => validate_sleep(handler.number("seconds"), container_context, &here, out),
    }
    for (name, _) in found {
        out.push(FieldError::forbidden(
            at.child(name),
            "may not specify more than 1 handler type",
        ));
    }
}

fn validate_http_get(get: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    validation::required(&at.child("path"), get.text("path"), out);
    validation::port_or_name(&at.child("port"), get.field("port"), out);
    validation::one_of(
        &at.child("scheme"),
        get.text("scheme"),
        &["HTTP", "HTTPS"],
        out,
    );
    for header in get.list("httpHeaders") {
        let name = header.text("name");
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-') {
            let detail = "a valid HTTP header must consist of alphanumeric characters or '-' (e.g. 'X-Header-Name', regex used for validation is '[-A-Za-z0-9]+')";
            out.push(FieldError::invalid(at.child("httpHeaders"), name, detail));
        }
    }
}

fn validate_sleep(
    seconds: i64,
    container_context: &ContainerContext<'_>,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    if let Some(grace) = container_context.grace_seconds
        && (seconds < 0 || seconds > grace)
    {
        let detail =
            format!("must be non-negative and less than terminationGracePeriodSeconds ({grace})");
        out.push(FieldError::invalid(at, seconds, &detail));
    }
}
