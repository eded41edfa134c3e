//! Names in a spec, which any user may have written.
//!
//! Guarantee: a valid name is a DNS-1123 label or subdomain, so that it names one object.

/// The pattern of a DNS-1123 label, such as the name of a namespace.
pub(crate) const LABEL: &str = "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$";
/// The pattern of a DNS-1123 subdomain, such as the name of a Secret.
pub(crate) const SUBDOMAIN: &str =
    r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
/// The pattern of a DNS-1123 label in which `*` matches any text.
pub(crate) const LABEL_WITH_WILDCARDS: &str = r"^[a-z0-9*]([-a-z0-9*]*[a-z0-9*])?$";

const LABEL_LENGTH_MAX: usize = 63;
const SUBDOMAIN_LENGTH_MAX: usize = 253;

/// Whether a name is a DNS-1123 subdomain.
pub(crate) fn is_subdomain(name: &str) -> bool {
    name.len() <= SUBDOMAIN_LENGTH_MAX && name.split('.').all(has_label_form)
}

/// Whether a name is a DNS-1123 label.
pub(crate) fn is_label(name: &str) -> bool {
    name.len() <= LABEL_LENGTH_MAX && has_label_form(name)
}

fn has_label_form(label: &str) -> bool {
    let is_allowed = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    !label.is_empty()
        && label.bytes().all(is_allowed)
        && !label.starts_with('-')
        && !label.ends_with('-')
}
