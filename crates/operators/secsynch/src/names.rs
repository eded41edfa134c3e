//! Names in a spec, which any user may have written.
//!
//! Guarantee: a valid name is a DNS-1123 label or subdomain, so that it names one object.

use crate::crd::SecSynchSpec;

/// The pattern of a DNS-1123 label, such as the name of a namespace.
pub(crate) const LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// The pattern of a DNS-1123 subdomain, such as the name of a Secret.
pub(crate) const SUBDOMAIN: &str =
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// The pattern of a DNS-1123 label in which `*` stands for any text.
pub(crate) const LABEL_WITH_WILDCARDS: &str = r"^[a-z0-9*]([-a-z0-9*]*[a-z0-9*])?$";

const LABEL_LENGTH_MAX: usize = 63;
const SUBDOMAIN_LENGTH_MAX: usize = 253;

/// The first field with an invalid name. The schema of the CRD rejects them; an object that was
/// stored before the schema had patterns may have one.
pub(crate) fn invalid_field(spec: &SecSynchSpec) -> Option<&'static str> {
    if !is_subdomain(&spec.secret_name) {
        return Some("secretName");
    }
    (!is_label(&spec.source_namespace)).then_some("sourceNamespace")
}

fn is_subdomain(name: &str) -> bool {
    name.len() <= SUBDOMAIN_LENGTH_MAX && name.split('.').all(has_label_form)
}

fn is_label(name: &str) -> bool {
    name.len() <= LABEL_LENGTH_MAX && has_label_form(name)
}

fn has_label_form(label: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !label.is_empty()
        && label.bytes().all(is_allowed)
        && !label.starts_with('-')
        && !label.ends_with('-')
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(secret_name: &str, source_namespace: &str) -> SecSynchSpec {
        serde_json::from_value(serde_json::json!({
            "secretName": secret_name, "sourceNamespace": source_namespace,
        }))
        .expect("a spec")
    }

    #[test]
    fn names_are_dns_labels_and_subdomains() {
        let long = "a".repeat(64);
        for (secret_name, source_namespace, invalid) in [
            ("s", "a", None),
            ("my.secret-1", "team-a", None),
            (&*long, "a", None),
            ("", "a", Some("secretName")),
            ("..", "a", Some("secretName")),
            ("S", "a", Some("secretName")),
            ("s/../t", "a", Some("secretName")),
            ("s", "", Some("sourceNamespace")),
            ("s", "a.b", Some("sourceNamespace")),
            ("s", "-a", Some("sourceNamespace")),
            ("s", &*long, Some("sourceNamespace")),
            ("s", "victim/secrets/exists?a=", Some("sourceNamespace")),
        ] {
            let found = invalid_field(&spec(secret_name, source_namespace));
            assert_eq!(found, invalid, "{source_namespace}/{secret_name}");
        }
    }
}
