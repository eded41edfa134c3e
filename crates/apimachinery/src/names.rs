//! Validation of names, label keys and label values.
//! Guarantees: messages are those of Kubernetes.

use std::sync::LazyLock;

use regex::Regex;

const DNS_LABEL: &str = "[a-z0-9]([-a-z0-9]*[a-z0-9])?";
const DNS_SUBDOMAIN: &str = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*";
const DNS_1035: &str = "[a-z]([-a-z0-9]*[a-z0-9])?";
const QUALIFIED: &str = "([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]";
const LABEL_VALUE: &str = "(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?";

const DNS_LABEL_MAX: usize = 63;
const DNS_SUBDOMAIN_MAX: usize = 253;

static DNS_LABEL_RE: LazyLock<Regex> = LazyLock::new(|| whole(DNS_LABEL));
static DNS_SUBDOMAIN_RE: LazyLock<Regex> = LazyLock::new(|| whole(DNS_SUBDOMAIN));
static DNS_1035_RE: LazyLock<Regex> = LazyLock::new(|| whole(DNS_1035));
static QUALIFIED_RE: LazyLock<Regex> = LazyLock::new(|| whole(QUALIFIED));
static LABEL_VALUE_RE: LazyLock<Regex> = LazyLock::new(|| whole(LABEL_VALUE));

fn whole(pattern: &str) -> Regex {
    Regex::new(&format!("^(?:{pattern})$")).expect("the pattern is a constant of this file")
}

/// The errors of a name such as `example.com`; empty when it is valid.
pub fn dns_subdomain(name: &str) -> Vec<String> {
    let mut errors = too_long(name, DNS_SUBDOMAIN_MAX, "characters");
    if !DNS_SUBDOMAIN_RE.is_match(name) {
        errors.push(format!(
            "a lowercase RFC 1123 subdomain must consist of lower case alphanumeric characters, '-' or '.', and must start and end with an alphanumeric character (e.g. 'example.com', regex used for validation is '{DNS_SUBDOMAIN}')"
        ));
    }
    errors
}

/// The errors of a name such as `my-name`; empty when it is valid.
pub fn dns_label(name: &str) -> Vec<String> {
    let mut errors = too_long(name, DNS_LABEL_MAX, "characters");
    if !DNS_LABEL_RE.is_match(name) {
        if DNS_SUBDOMAIN_RE.is_match(name) {
            errors.push("must not contain dots".into());
        } else {
            errors.push(format!(
                "a lowercase RFC 1123 label must consist of lower case alphanumeric characters or '-', and must start and end with an alphanumeric character (e.g. 'my-name',  or '123-abc', regex used for validation is '{DNS_LABEL}')"
            ));
        }
    }
    errors
}

/// The errors of a name such as `abc-123` that must start with a letter; empty when it is valid.
pub fn dns_1035_label(name: &str) -> Vec<String> {
    let mut errors = too_long(name, DNS_LABEL_MAX, "characters");
    if !DNS_1035_RE.is_match(name) {
        errors.push(format!(
            "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '{DNS_1035}')"
        ));
    }
    errors
}

/// The errors of a name that is one segment of a path; empty when it is valid.
pub fn path_segment(name: &str) -> Vec<String> {
    if name == "." || name == ".." {
        return vec![format!("may not be '{name}'")];
    }
    ["/", "%"]
        .iter()
        .filter(|c| name.contains(**c))
        .map(|c| format!("may not contain '{c}'"))
        .collect()
}

/// The errors of a label or annotation key such as `example.com/name`; empty when it is valid.
pub fn qualified_name(key: &str) -> Vec<String> {
    let mut errors = Vec::new();
    let parts: Vec<&str> = key.split('/').collect();
    let name = match parts.as_slice() {
        [name] => *name,
        [prefix, name] => {
            if prefix.is_empty() {
                errors.push("prefix part must be non-empty".into());
            } else {
                errors.extend(
                    dns_subdomain(prefix)
                        .into_iter()
                        .map(|w| format!("prefix part {w}")),
                );
            }
            *name
        }
        _ => {
            return vec![format!(
                "a valid label key must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{QUALIFIED}') with an optional DNS subdomain prefix and '/' (e.g. 'example.com/MyName')"
            )];
        }
    };
    if name.is_empty() {
        errors.push("name part must be non-empty".into());
    } else if name.len() > DNS_LABEL_MAX {
        errors.push(format!(
            "name part must be no more than {DNS_LABEL_MAX} bytes"
        ));
    }
    if !QUALIFIED_RE.is_match(name) {
        errors.push(format!(
            "name part must consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyName',  or 'my.name',  or '123-abc', regex used for validation is '{QUALIFIED}')"
        ));
    }
    errors
}

/// The errors of a label's value; empty when it is valid.
pub fn label_value(value: &str) -> Vec<String> {
    let mut errors = too_long(value, DNS_LABEL_MAX, "bytes");
    if !LABEL_VALUE_RE.is_match(value) {
        errors.push(format!(
            "a valid label must be an empty string or consist of alphanumeric characters, '-', '_' or '.', and must start and end with an alphanumeric character (e.g. 'MyValue',  or 'my_value',  or '12345', regex used for validation is '{LABEL_VALUE}')"
        ));
    }
    errors
}

/// Kubernetes counts bytes everywhere; messages name bytes for labels and characters for names.
fn too_long(text: &str, max: usize, unit: &str) -> Vec<String> {
    if text.len() > max {
        vec![format!("must be no more than {max} {unit}")]
    } else {
        Vec::new()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_validated_as_in_kubernetes() {
        assert!(dns_subdomain("a.b-c").is_empty());
        assert!(dns_label("a.b")[0].contains("must not contain dots"));
        assert_eq!(dns_subdomain(&"a".repeat(254)).len(), 1);
        assert!(qualified_name("example.com/My.name").is_empty());
        assert_eq!(qualified_name("").len(), 2);
        assert_eq!(qualified_name("/x"), ["prefix part must be non-empty"]);
        assert!(label_value("").is_empty() && !label_value("no spaces").is_empty());
        assert_eq!(
            path_segment("a/b%"),
            ["may not contain '/'", "may not contain '%'"]
        );
    }
}
