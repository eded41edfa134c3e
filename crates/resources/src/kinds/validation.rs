//! Validation that many kinds share: ports, addresses, selectors, references, quantities.
//! In: a value and its path. Out: the errors, with the messages of Kubernetes, added to the
//! caller's list.

use std::net::IpAddr;

use bellerophon_apimachinery::{
    field::{FieldError, Path, Shown, Verbatim},
    json_ext::{JsonExt, same},
    names,
    quantity::Quantity,
};
use bellerophon_codec::types::Internal;
use serde_json::Value;

pub(crate) const IMMUTABLE: &str = "field is immutable";
pub(crate) const NOT_NEGATIVE: &str = "must be greater than or equal to 0";
const POSITIVE: &str = "must be greater than 0";
pub(crate) const PROTOCOLS: &[&str] = &["SCTP", "TCP", "UDP"];

/// Adds an `Invalid value` for every reason a check of [`names`] gave.
pub(crate) fn named(at: &Path, value: &str, errors: Vec<String>, out: &mut Vec<FieldError>) {
    out.extend(errors.iter().map(|why| FieldError::invalid(at, value, why)));
}

/// The value must be one of these.
pub(crate) fn one_of(at: &Path, value: &str, supported: &[&str], out: &mut Vec<FieldError>) {
    if !supported.contains(&value) {
        out.push(FieldError::not_supported(at, value, supported));
    }
}

/// The string must not be empty.
pub(crate) fn required(at: &Path, value: &str, out: &mut Vec<FieldError>) {
    if value.is_empty() {
        out.push(FieldError::required(at, ""));
    }
}

/// A number that may be 0 but not less.
pub(crate) fn not_negative(at: &Path, value: i64, out: &mut Vec<FieldError>) {
    if value < 0 {
        out.push(FieldError::invalid(at, value, NOT_NEGATIVE));
    }
}

/// A number above 0.
pub(crate) fn positive(at: &Path, value: i64, out: &mut Vec<FieldError>) {
    if value <= 0 {
        out.push(FieldError::invalid(at, value, POSITIVE));
    }
}

/// The field must not change.
pub(crate) fn immutable(at: &Path, new: &Value, old: &Value, out: &mut Vec<FieldError>) {
    if new != old {
        out.push(FieldError::invalid(at, new, IMMUTABLE));
    }
}

/// Rejects a change of a value that messages print as the struct `name` of the server.
pub(crate) fn immutable_struct(
    at: &Path,
    name: &'static str,
    new: &Value,
    old: &Value,
    out: &mut Vec<FieldError>,
) {
    if !same(new, old) {
        out.push(FieldError::invalid(at, Internal::one(name, new), IMMUTABLE));
    }
}

/// A port number.
pub(crate) fn port_number(at: &Path, port: i64, out: &mut Vec<FieldError>) {
    if !(1..=65535).contains(&port) {
        out.push(FieldError::invalid(
            at,
            port,
            "must be between 1 and 65535, inclusive",
        ));
    }
}

/// The errors of a port's name; empty when it is valid.
pub(crate) fn port_name(name: &str) -> Vec<String> {
    let letters = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    [
        (name.len() > 15, "must be no more than 15 characters"),
        (
            name.is_empty() || !name.chars().all(letters),
            "must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)",
        ),
        (
            !name.chars().any(|c| c.is_ascii_lowercase()),
            "must contain at least one letter (a-z)",
        ),
        (name.contains("--"), "must not contain consecutive hyphens"),
        (
            name.starts_with('-') || name.ends_with('-'),
            "must not begin or end with a hyphen",
        ),
    ]
    .into_iter()
    .filter(|(bad, _)| *bad)
    .map(|(_, why)| why.to_owned())
    .collect()
}

/// A port by number or by name.
pub(crate) fn port_or_name(at: &Path, port: &Value, out: &mut Vec<FieldError>) {
    match port {
        Value::String(name) => named(at, name, port_name(name), out),
        other => port_number(at, other.as_i64().unwrap_or_default(), out),
    }
}

/// The errors of a key of a ConfigMap or Secret; empty when it is valid.
pub(crate) fn config_key(key: &str) -> Vec<String> {
    let mut errors = Vec::new();
    if key.len() > 253 {
        errors.push("must be no more than 253 characters".into());
    }
    if key.is_empty()
        || !key
            .chars()
            .all(|c| c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.'))
    {
        errors.push("a valid config key must consist of alphanumeric characters, '-', '_' or '.' (e.g. 'key.name',  or 'KEY_NAME',  or 'key-name', regex used for validation is '[-._a-zA-Z0-9]+')".into());
    }
    match key {
        "." => errors.push("must not be '.'".into()),
        ".." => errors.push("must not be '..'".into()),
        _ if key.starts_with("..") => errors.push("must not start with '..'".into()),
        _ => {}
    }
    errors
}

/// A map of labels; both keys and values are blamed on the map.
pub(crate) fn labels(at: &Path, labels: &Value, out: &mut Vec<FieldError>) {
    for (key, value) in labels.as_object().into_iter().flatten() {
        named(at, key, names::qualified_name(key), out);
        let value = value.as_str().unwrap_or_default();
        named(at, value, names::label_value(value), out);
    }
}

/// A label selector with `matchLabels` and `matchExpressions`; null is fine.
pub(crate) fn label_selector(at: &Path, selector: &Value, out: &mut Vec<FieldError>) {
    labels(&at.child("matchLabels"), selector.field("matchLabels"), out);
    let all = at.child("matchExpressions");
    for (i, expression) in selector.list("matchExpressions").iter().enumerate() {
        requirement(&all.index(i), expression, out);
    }
}

fn requirement(at: &Path, requirement: &Value, out: &mut Vec<FieldError>) {
    let values = requirement.list("values");
    match requirement.text("operator") {
        "In" | "NotIn" => {
            if values.is_empty() {
                out.push(FieldError::required(
                    at.child("values"),
                    "must be specified when `operator` is 'In' or 'NotIn'",
                ));
            }
        }
        "Exists" | "DoesNotExist" => {
            if !values.is_empty() {
                out.push(FieldError::forbidden(
                    at.child("values"),
                    "may not be specified when `operator` is 'Exists' or 'DoesNotExist'",
                ));
            }
        }
        other => out.push(FieldError::invalid(
            at.child("operator"),
            other,
            "not a valid selector operator",
        )),
    }
    let key = requirement.text("key");
    named(&at.child("key"), key, names::qualified_name(key), out);
    let at_values = at.child("values");
    for (i, value) in values.iter().enumerate() {
        let value = value.as_str().unwrap_or_default();
        named(&at_values.index(i), value, names::label_value(value), out);
    }
}

/// Whether labels match a label selector; null matches nothing, an empty selector everything.
pub(crate) fn selects(
    selector: &Value,
    labels: &std::collections::BTreeMap<String, String>,
) -> bool {
    if selector.is_null() {
        return false;
    }
    let same = selector
        .entries("matchLabels")
        .all(|(k, v)| labels.get(k).map(String::as_str) == v.as_str());
    same && selector.list("matchExpressions").iter().all(|expression| {
        let held = labels.get(expression.text("key"));
        let among = held.is_some_and(|held| {
            expression
                .list("values")
                .iter()
                .any(|v| v.as_str() == Some(held))
        });
        match expression.text("operator") {
            "In" => among,
            "NotIn" => !among,
            "Exists" => held.is_some(),
            "DoesNotExist" => held.is_none(),
            _ => false,
        }
    })
}

/// An amount that is not negative, and whole where the resource is counted in pieces.
pub(crate) fn resource_amount(
    at: &Path,
    resource: &str,
    amount: &Value,
    out: &mut Vec<FieldError>,
) {
    let Some(quantity) = Quantity::of(amount) else {
        return;
    };
    if quantity.sign() < 0 {
        out.push(FieldError::invalid(at, &quantity, NOT_NEGATIVE));
    }
    if is_counted(resource) && !quantity.is_whole() {
        out.push(FieldError::invalid(at, &quantity, "must be an integer"));
    }
}

/// Whether a resource must be an integer.
pub(crate) fn is_counted(resource: &str) -> bool {
    const COUNTED: &[&str] = &[
        "pods",
        "resourcequotas",
        "services",
        "replicationcontrollers",
        "secrets",
        "configmaps",
        "persistentvolumeclaims",
        "services.nodeports",
        "services.loadbalancers",
    ];
    COUNTED.contains(&resource) || is_extended_resource(resource)
}

/// Whether a resource is one that a device plugin or an administrator brought: `example.com/gpu`.
pub(crate) fn is_extended_resource(resource: &str) -> bool {
    resource.contains('/')
        && !resource.contains("kubernetes.io/")
        && !resource.starts_with("requests.")
        && names::qualified_name(&format!("requests.{resource}")).is_empty()
}

/// Reads an address as Kubernetes does in its old fields: leading zeros of IPv4 octets do not
/// matter.
pub(crate) fn parse_ip(text: &str) -> Option<IpAddr> {
    if let Ok(ip) = text.parse() {
        return Some(ip);
    }
    let octets: Vec<&str> = text.split('.').collect();
    let plain: Option<Vec<String>> = octets
        .iter()
        .map(|o| {
            (o.len() <= 3 && !o.is_empty() && o.bytes().all(|b| b.is_ascii_digit()))
                .then(|| o.parse::<u16>().map(|n| n.to_string()).ok())?
        })
        .collect();
    (octets.len() == 4).then(|| plain?.join(".").parse().ok())?
}

/// Reads `address/length` as Kubernetes does in its old fields: bits beyond the length do not
/// matter.
pub(crate) fn parse_cidr(text: &str) -> Option<(IpAddr, u8)> {
    let (address, length) = text.split_once('/')?;
    let address = parse_ip(address)?;
    let max = if address.is_ipv4() { 32 } else { 128 };
    let digits = !length.is_empty() && length.bytes().all(|b| b.is_ascii_digit());
    digits
        .then(|| length.parse::<u8>().ok().filter(|n| *n <= max))?
        .map(|n| (address, n))
}

/// An address without leading zeros, and not an IPv4 one in IPv6 clothes.
pub(crate) fn ip(at: &Path, text: &str, out: &mut Vec<FieldError>) {
    match (parse_ip(text), text.parse::<IpAddr>()) {
        (None, _) => out.push(FieldError::invalid(
            at,
            text,
            "must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)",
        )),
        (Some(_), Err(_)) => out.push(FieldError::invalid(at, text, "must not have leading 0s")),
        (Some(ip), Ok(_)) if is_mapped(ip) => {
            out.push(FieldError::invalid(
                at,
                text,
                "must not be an IPv4-mapped IPv6 address",
            ));
        }
        _ => {}
    }
}

/// A CIDR without bits set beyond its prefix length.
pub(crate) fn cidr(at: &Path, text: &str, out: &mut Vec<FieldError>) {
    let Some((ip, length)) = parse_cidr(text) else {
        out.push(FieldError::invalid(
            at,
            text,
            "must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)",
        ));
        return;
    };
    let (address, digits) = text.split_once('/').expect("parsed with a slash above");
    if address.parse::<IpAddr>().is_err() || (digits.len() > 1 && digits.starts_with('0')) {
        out.push(FieldError::invalid(
            at,
            text,
            "must not have leading 0s in IP or prefix length",
        ));
    } else if is_mapped(ip) {
        out.push(FieldError::invalid(
            at,
            text,
            "must not have an IPv4-mapped IPv6 address",
        ));
    } else if masked(ip, length) != ip {
        out.push(FieldError::invalid(
            at,
            text,
            "must not have bits set beyond the prefix length",
        ));
    }
}

/// The address with all bits beyond the prefix cleared.
pub(crate) fn masked(ip: IpAddr, length: u8) -> IpAddr {
    match ip {
        IpAddr::V4(v4) => {
            let mask = u32::MAX.checked_shl(32 - u32::from(length)).unwrap_or(0);
            IpAddr::V4((v4.to_bits() & mask).into())
        }
        IpAddr::V6(v6) => {
            let mask = u128::MAX.checked_shl(128 - u32::from(length)).unwrap_or(0);
            IpAddr::V6((v6.to_bits() & mask).into())
        }
    }
}

fn is_mapped(ip: IpAddr) -> bool {
    matches!(ip, IpAddr::V6(v6) if v6.to_ipv4_mapped().is_some())
}

/// An address that traffic can be sent to: not unspecified, loopback or link-local.
pub(crate) fn endpoint_ip(at: &Path, text: &str, out: &mut Vec<FieldError>) {
    let Some(ip) = parse_ip(text) else {
        out.push(FieldError::invalid(at, text, "must be a valid IP address"));
        return;
    };
    let (local, local_multicast) = match ip {
        IpAddr::V4(v4) => (v4.is_link_local(), v4.octets()[..3] == [224, 0, 0]),
        IpAddr::V6(v6) => (
            v6.is_unicast_link_local(),
            v6.segments()[0] & 0xff0f == 0xff02,
        ),
    };
    if ip.is_unspecified() {
        out.push(FieldError::invalid(
            at,
            text,
            &format!("may not be unspecified ({text})"),
        ));
    }
    if ip.is_loopback() {
        out.push(FieldError::invalid(
            at,
            text,
            "may not be in the loopback range (127.0.0.0/8, ::1/128)",
        ));
    }
    if local {
        out.push(FieldError::invalid(
            at,
            text,
            "may not be in the link-local range (169.254.0.0/16, fe80::/10)",
        ));
    }
    if local_multicast {
        out.push(FieldError::invalid(
            at,
            text,
            "may not be in the link-local multicast range (224.0.0.0/24, ff02::/10)",
        ));
    }
}

/// A duplicate, with a message that names what is duplicated.
pub(crate) fn duplicate_because(at: &Path, value: impl Shown, why: &str) -> FieldError {
    let plain = FieldError::duplicate(at, value);
    FieldError {
        message: format!("{}: {why}", plain.message),
        ..plain
    }
}

/// Go's zero-valued way of printing an absent value inside a message.
pub(crate) const NULL: Verbatim<'static> = Verbatim("null");

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const AT: Path = Path::field("x");

    fn messages(check: impl FnOnce(&mut Vec<FieldError>)) -> Vec<String> {
        let mut out = Vec::new();
        check(&mut out);
        out.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn port_names_are_services_of_iana() {
        assert!(port_name("http-2").is_empty());
        assert_eq!(
            port_name("not_a_name"),
            ["must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"]
        );
        assert_eq!(port_name("1--").len(), 3);
    }

    #[test]
    fn selector_needs_values_for_in_only() {
        let selector = json!({"matchExpressions": [{"key": "a", "operator": "In"}, {"key": "", "operator": "Exists", "values": ["b c"]}, {"key": "a", "operator": "Near"}]});
        let errors = messages(|out| label_selector(&AT, &selector, out));
        assert_eq!(
            errors[0],
            "x.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'"
        );
        assert!(
            errors[1].starts_with("x.matchExpressions[1].values: Forbidden: may not be specified")
        );
        assert!(errors[4].starts_with("x.matchExpressions[1].values[0]: Invalid value: \"b c\""));
        assert_eq!(
            errors[5],
            "x.matchExpressions[2].operator: Invalid value: \"Near\": not a valid selector operator"
        );
    }

    #[test]
    fn selector_picks_by_labels() {
        let labels = [("app".to_owned(), "web".to_owned())].into();
        for (selector, fits) in [
            (json!(null), false),
            (json!({}), true),
            (json!({"matchLabels": {"app": "web"}}), true),
            (json!({"matchLabels": {"app": "db"}}), false),
            (
                json!({"matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["x"]}]}),
                true,
            ),
            (
                json!({"matchExpressions": [{"key": "tier", "operator": "Exists"}]}),
                false,
            ),
        ] {
            assert_eq!(selects(&selector, &labels), fits, "{selector}");
        }
    }

    #[test]
    fn addresses_are_read_as_in_old_fields() {
        assert_eq!(parse_ip("010.001.0.9"), parse_ip("10.1.0.9"));
        assert!(
            parse_ip("1.2.3").is_none()
                && parse_ip("1.2.3.256").is_none()
                && parse_ip("x").is_none()
        );
        assert!(
            parse_cidr("10.0.0.7/8").is_some()
                && parse_cidr("10.0.0.0/33").is_none()
                && parse_cidr("10.0.0.0/").is_none()
        );
        assert_eq!(
            messages(|out| endpoint_ip(&AT, "::1", out)),
            ["x: Invalid value: \"::1\": may not be in the loopback range (127.0.0.0/8, ::1/128)"]
        );
    }

    #[test]
    fn counted_resources_are_integers() {
        assert_eq!(
            messages(|out| resource_amount(&AT, "pods", &json!("1500m"), out)),
            ["x: Invalid value: \"1500m\": must be an integer"]
        );
        assert_eq!(
            messages(|out| resource_amount(&AT, "cpu", &json!("-1"), out)),
            ["x: Invalid value: \"-1\": must be greater than or equal to 0"]
        );
        assert!(
            is_counted("example.com/gpu")
                && !is_counted("cpu")
                && !is_counted("requests.example.com/gpu")
        );
    }
}
