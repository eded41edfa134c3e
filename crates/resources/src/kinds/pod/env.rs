//! Environment variables of a container and where their values come from.
//! In: a container. Out: the errors with `env` and `envFrom`.
//! Mirrors `ValidateEnv` and `ValidateEnvFrom` in `pkg/apis/core/validation`.

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::JsonExt,
    names,
    quantity::Quantity,
};
use serde_json::Value;

use super::{super::validation, mount::validate_no_backsteps, spec::visit};

/// Fields of a pod that a variable may take its value from.
const ENV_FIELDS: [&str; 9] = [
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.serviceAccountName",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
];
/// Fields of a pod that a file may take its content from.
pub(super) const FILE_FIELDS: [&str; 5] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
];
/// Fields of a pod that exist at all for a reference.
const KNOWN_FIELDS: [&str; 15] = [
    "metadata.annotations",
    "metadata.labels",
    "metadata.name",
    "metadata.namespace",
    "metadata.uid",
    "spec.nodeName",
    "spec.restartPolicy",
    "spec.serviceAccountName",
    "spec.schedulerName",
    "status.phase",
    "status.hostIP",
    "status.hostIPs",
    "status.podIP",
    "status.podIPs",
    "spec.host",
];
const RESOURCES: [&str; 6] = [
    "limits.cpu",
    "limits.ephemeral-storage",
    "limits.memory",
    "requests.cpu",
    "requests.ephemeral-storage",
    "requests.memory",
];

/// The errors of the variables of a container.
pub(super) fn validate(container: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let env_at = at.child("env");
    for (i, variable) in container.list("env").iter().enumerate() {
        let at = env_at.index(i);
        let name = variable.text("name");
        if name.is_empty() {
            out.push(FieldError::required(at.child("name"), ""));
        } else {
            validation::named(&at.child("name"), name, variable_name(name), out);
        }
        if let Some(source) = variable.get_set("valueFrom") {
            validate_source(source, variable.text("value"), &at.child("valueFrom"), out);
        }
    }
    validate_sources(container.list("envFrom"), &at.child("envFrom"), out);
}

/// The errors of the name of a variable.
fn variable_name(name: &str) -> Vec<String> {
    let printable = |c: char| c == ' ' || c.is_ascii_graphic();
    if name.chars().all(|c| printable(c) && c != '=') {
        Vec::new()
    } else {
        vec!["a valid environment variable name must consist only of printable ASCII characters other than '='".to_owned()]
    }
}

fn validate_source(source: &Value, value: &str, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let mut sources = 0;
    for name in [
        "fieldRef",
        "resourceFieldRef",
        "configMapKeyRef",
        "secretKeyRef",
        "fileKeyRef",
    ] {
        let Some(reference) = source.get_set(name) else {
            continue;
        };
        sources += 1;
        let at = at.child(name);
        match name {
            "fieldRef" => validate_field_ref(reference, &ENV_FIELDS, &at, out),
            "resourceFieldRef" => validate_resource_ref(reference, &at, out),
            "fileKeyRef" => validate_file_ref(reference, &at, out),
            _ => validate_key_ref(reference, &at, out),
        }
    }
    let detail = match (sources, value.is_empty()) {
        (0, _) => {
            "must specify one of: `fieldRef`, `resourceFieldRef`, `configMapKeyRef`, `secretKeyRef` or `fileKeyRef`"
        }
        (_, false) => "may not be specified when `value` is not empty",
        (1, true) => return,
        _ => "may not have more than one field specified at a time",
    };
    out.push(FieldError::invalid(at, "", detail));
}

/// A reference to a field of the pod itself.
pub(super) fn validate_field_ref(
    reference: &Value,
    fields: &[&str],
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let path = reference.text("fieldPath");
    for (name, value) in [
        ("apiVersion", reference.text("apiVersion")),
        ("fieldPath", path),
    ] {
        if value.is_empty() {
            out.push(FieldError::required(at.child(name), ""));
            return;
        }
    }
    let field_at = at.child("fieldPath");
    let refuse = |why: String| {
        FieldError::invalid(
            at.child("fieldPath"),
            path,
            &format!("error converting fieldPath: {why}"),
        )
    };
    if reference.text("apiVersion") != "v1" {
        out.push(refuse(format!(
            "unsupported pod version: {}",
            reference.text("apiVersion")
        )));
        return;
    }
    match subscript(path) {
        Some(("metadata.annotations", key)) => {
            let key = key.to_lowercase();
            validation::named(at, &key, names::qualified_name(&key), out);
        }
        Some(("metadata.labels", key)) => {
            validation::named(at, key, names::qualified_name(key), out)
        }
        Some(_) => out.push(refuse(format!(
            "field label does not support subscript: {path}"
        ))),
        None if !KNOWN_FIELDS.contains(&path) => {
            out.push(refuse(format!("field label not supported: {path}")))
        }
        // An old spelling of the node's name.
        None if path == "spec.host" => validation::one_of(&field_at, "spec.nodeName", fields, out),
        None => validation::one_of(&field_at, path, fields, out),
    }
}

/// `metadata.labels['app']` taken apart.
fn subscript(path: &str) -> Option<(&str, &str)> {
    path.strip_suffix("']")?
        .split_once("['")
        .filter(|(field, _)| !field.is_empty())
}

/// A reference to the resources of a container.
pub(super) fn validate_resource_ref(reference: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let resource = reference.text("resource");
    let huge = ["requests.hugepages-", "limits.hugepages-"]
        .iter()
        .any(|p| resource.starts_with(p));
    if resource.is_empty() {
        out.push(FieldError::required(at.child("resource"), ""));
    } else if !huge {
        validation::one_of(&at.child("resource"), resource, &RESOURCES, out);
    }
    validate_divisor(reference, resource, &at.child("divisor"), out);
}

pub(super) fn validate_divisor(
    reference: &Value,
    resource: &str,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let Some(divisor) = Quantity::of(reference.field("divisor")).filter(|d| *d != Quantity::ZERO)
    else {
        return;
    };
    let text = divisor.to_string();
    let kind = resource.split_once('.').map_or("", |(_, kind)| kind);
    if kind == "cpu" {
        if !["1m", "1"].contains(&text.as_str()) {
            out.push(FieldError::invalid(
                at,
                resource,
                "only divisor's values 1m and 1 are supported with the cpu resource",
            ));
        }
        return;
    }
    let named = match kind {
        "memory" => "memory",
        "ephemeral-storage" => "local ephemeral storage",
        _ if kind.starts_with("hugepages-") => "hugepages",
        _ => return,
    };
    let units = [
        "1", "1k", "1M", "1G", "1T", "1P", "1E", "1Ki", "1Mi", "1Gi", "1Ti", "1Pi", "1Ei",
    ];
    if !units.contains(&text.as_str()) {
        let detail = format!(
            "only divisor's values {} are supported with the {named} resource",
            units.join(", ")
        );
        out.push(FieldError::invalid(at, resource, &detail));
    }
}

fn validate_key_ref(reference: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let name = reference.text("name");
    let key = reference.text("key");
    validation::named(&at.child("name"), name, names::dns_subdomain(name), out);
    if key.is_empty() {
        out.push(FieldError::required(at.child("key"), ""));
    } else {
        validation::named(&at.child("key"), key, validation::config_key(key), out);
    }
}

fn validate_file_ref(reference: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let required = |field: &str, validate: fn(&str) -> Vec<String>, out: &mut Vec<FieldError>| {
        let value = reference.text(field);
        if value.is_empty() {
            out.push(FieldError::required(at.child(field), ""));
        } else {
            validation::named(&at.child(field), value, validate(value), out);
        }
    };
    required("key", variable_name, out);
    required("volumeName", names::dns_label, out);
    required("path", |_| Vec::new(), out);
    validate_no_backsteps(reference.text("path"), &at.child("path"), out);
}

fn validate_sources(sources: &[Value], at: &Path<'_>, out: &mut Vec<FieldError>) {
    for (i, source) in sources.iter().enumerate() {
        let item = at.index(i);
        let prefix = source.text("prefix");
        validation::named(&item.child("prefix"), prefix, variable_name(prefix), out);
        let mut found = 0;
        for name in ["configMapRef", "secretRef"] {
            let Some(reference) = source.get_set(name) else {
                continue;
            };
            found += 1;
            let reference_at = item.child(name);
            let name_at = reference_at.child("name");
            match reference.text("name") {
                "" => out.push(FieldError::required(name_at, "")),
                name => validation::named(&name_at, name, names::dns_subdomain(name), out),
            }
        }
        match found {
            0 => out.push(FieldError::invalid(
                at,
                "",
                "must specify one of: `configMapRef` or `secretRef`",
            )),
            1 => {}
            _ => out.push(FieldError::invalid(
                at,
                "",
                "may not have more than one field specified at a time",
            )),
        }
    }
}

/// A variable read from a file needs the empty directory that will hold it.
pub(super) fn validate_files(spec: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    visit(spec, at, |container, at| {
        let env_at = at.child("env");
        for (i, variable) in container.list("env").iter().enumerate() {
            let Some(reference) = variable.field("valueFrom").get_set("fileKeyRef") else {
                continue;
            };
            let name = reference.text("volumeName");
            let variable_at = env_at.index(i);
            let source_at = variable_at.child("valueFrom");
            let at = source_at.child("fileKeyRef");
            match spec
                .list("volumes")
                .iter()
                .rfind(|v| v.text("name") == name)
            {
                None => out.push(FieldError::not_found(at.child("volumeName"), name)),
                Some(volume) if !volume.has("emptyDir") => {
                    out.push(FieldError::invalid(
                        at.child("volumeName"),
                        name,
                        "referenced volume must be of type emptyDir",
                    ));
                }
                Some(_) => {}
            }
        }
    });
}
