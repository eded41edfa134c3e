//! EndpointSlices: addresses of one address type, with their ports.
//! Mirrors `ValidateEndpointSlice` in `pkg/apis/discovery/validation`.

use std::{collections::BTreeSet, net::IpAddr};

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt},
    names,
};
use bellerophon_codec::object::Object;
use serde_json::{Value, json};

use super::{Generation, Strategy, validation};

/// The strategy of EndpointSlices. Mirrors `pkg/registry/discovery/endpointslice`.
pub const ENDPOINT_SLICE: Strategy = Strategy {
    default,
    validate,
    validate_update,
    generation: Generation::Body,
    ..Strategy::PLAIN
};

const ENDPOINTS_MAX: usize = 1000;
const PORTS_MAX: usize = 20_000;
const ADDRESSES_MAX: usize = 100;
const TOPOLOGY_MAX: usize = 16;

fn default(slice: &mut Object) {
    for port in slice.body.maps_mut("ports") {
        port.default_to("name", "");
        port.default_to("protocol", "TCP");
    }
    for endpoint in slice.body.maps_mut("endpoints") {
        endpoint.default_to("conditions", json!({}));
        // In v1, the zone is a field.
        endpoint
            .map_mut("deprecatedTopology")
            .into_iter()
            .for_each(|t| {
                t.remove("topology.kubernetes.io/zone");
            });
    }
}

fn validate(slice: &Object, out: &mut Vec<FieldError>) {
    let kind = slice.body.text("addressType");
    if kind.is_empty() {
        out.push(FieldError::required("addressType", ""));
    } else {
        validation::one_of(
            &Path::field("addressType"),
            kind,
            &["FQDN", "IPv4", "IPv6"],
            out,
        );
    }
    ports(slice.body.list("ports"), out);
    let all = Path::field("endpoints");
    let endpoints = slice.body.list("endpoints");
    if endpoints.len() > ENDPOINTS_MAX {
        out.push(FieldError::too_many(all, endpoints.len(), ENDPOINTS_MAX));
        return;
    }
    for (i, endpoint) in endpoints.iter().enumerate() {
        validate_endpoint(&all.index(i), endpoint, kind, out);
    }
}

fn ports(ports: &[Value], out: &mut Vec<FieldError>) {
    let all = Path::field("ports");
    if ports.len() > PORTS_MAX {
        out.push(FieldError::too_many(all, ports.len(), PORTS_MAX));
        return;
    }
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let at = all.index(i);
        let name = port.text("name");
        if !name.is_empty() {
            validation::named(&at.child("name"), name, names::dns_label(name), out);
        }
        if !seen.insert(name) {
            out.push(FieldError::duplicate(at.child("name"), name));
        }
        validation::one_of(
            &at.child("protocol"),
            port.text("protocol"),
            validation::PROTOCOLS,
            out,
        );
        if let Some(protocol) = port.field("appProtocol").as_str() {
            validation::named(
                &at.child("appProtocol"),
                protocol,
                names::qualified_name(protocol),
                out,
            );
        }
    }
}

fn validate_endpoint(at: &Path, endpoint: &Value, kind: &str, out: &mut Vec<FieldError>) {
    let all = at.child("addresses");
    let addresses = endpoint.list("addresses");
    if addresses.is_empty() {
        out.push(FieldError::required(all, "must contain at least 1 address"));
    } else if addresses.len() > ADDRESSES_MAX {
        out.push(FieldError::too_many(all, addresses.len(), ADDRESSES_MAX));
    }
    for (i, address) in addresses.iter().filter_map(Value::as_str).enumerate() {
        validate_address(&all, i, address, kind, out);
    }
    if let Some(node) = endpoint.field("nodeName").as_str() {
        validation::named(&at.child("nodeName"), node, names::dns_subdomain(node), out);
    }
    topology(&at.child("deprecatedTopology"), endpoint, out);
    if let Some(hostname) = endpoint.field("hostname").as_str() {
        validation::named(
            &at.child("hostname"),
            hostname,
            names::dns_label(hostname),
            out,
        );
    }
}

/// The family is blamed on the list, the address itself on the item.
fn validate_address(
    all: &Path,
    index: usize,
    address: &str,
    kind: &str,
    out: &mut Vec<FieldError>,
) {
    let at = all.index(index);
    match kind {
        "IPv4" | "IPv6" => {
            let before = out.len();
            validation::ip(&at, address, out);
            if out.len() > before {
                return;
            }
            let fits = validation::parse_ip(address)
                .is_some_and(|ip| matches!(ip, IpAddr::V4(_)) == (kind == "IPv4"));
            if !fits {
                out.push(FieldError::invalid(
                    all,
                    address,
                    &format!("must be an {kind} address"),
                ));
            }
            let canonical = validation::parse_ip(address)
                .map(|ip| ip.to_string())
                .unwrap_or_default();
            if kind == "IPv6" && canonical != address {
                out.push(FieldError::invalid(
                    at,
                    address,
                    &format!("must be in canonical form ({canonical:?})"),
                ));
                return;
            }
            validation::endpoint_ip(&at, address, out);
        }
        "FQDN" => {
            let name = address.strip_suffix('.').unwrap_or(address);
            let errors = names::dns_subdomain(name);
            if errors.is_empty() && !name.contains('.') {
                out.push(FieldError::invalid(
                    at,
                    address,
                    "should be a domain with at least two segments separated by dots",
                ));
            }
            validation::named(&at, address, errors, out);
        }
        _ => {}
    }
}

fn topology(at: &Path, endpoint: &Value, out: &mut Vec<FieldError>) {
    let count = endpoint.entries("deprecatedTopology").count();
    if count > TOPOLOGY_MAX {
        out.push(FieldError::too_many(at, count, TOPOLOGY_MAX));
    }
    validation::labels(at, endpoint.field("deprecatedTopology"), out);
}

fn validate_update(new: &Object, old: &Object, out: &mut Vec<FieldError>) {
    validation::immutable(
        &Path::field("addressType"),
        new.body.field("addressType"),
        old.body.field("addressType"),
        out,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::test_support::{create, refused, update};

    #[test]
    fn ports_and_conditions_are_filled_in() {
        let (slice, errors) = create(
            &ENDPOINT_SLICE,
            json!({"addressType": "IPv4", "endpoints": [{"addresses": ["192.0.2.10"]}], "ports": [{"port": 8080}]}),
        );
        assert_eq!(errors, [""; 0]);
        assert_eq!(
            slice.body["endpoints"],
            json!([{"addresses": ["192.0.2.10"], "conditions": {}}])
        );
        assert_eq!(
            slice.body["ports"],
            json!([{"name": "", "protocol": "TCP", "port": 8080}])
        );
    }

    #[test]
    fn addresses_fit_their_type() {
        refused(
            &ENDPOINT_SLICE,
            json!({"endpoints": [{"addresses": ["192.0.2.1"]}]}),
            &["addressType: Required value"],
        );
        refused(
            &ENDPOINT_SLICE,
            json!({"addressType": "IPv4", "endpoints": [{"addresses": []}, {"addresses": ["2001:db8::1"]}, {"addresses": ["127.0.0.1"], "hostname": "A"}], "ports": [{"name": "a", "port": 80}, {"name": "a", "port": 81}, {"name": "c", "protocol": "FOO"}]}),
            &[
                r#"ports[1].name: Duplicate value: "a""#,
                r#"ports[2].protocol: Unsupported value: "FOO": supported values: "SCTP", "TCP", "UDP""#,
                "endpoints[0].addresses: Required value: must contain at least 1 address",
                r#"endpoints[1].addresses: Invalid value: "2001:db8::1": must be an IPv4 address"#,
                r#"endpoints[2].addresses[0]: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)"#,
                r#"endpoints[2].hostname: Invalid value: "A": a lowercase RFC 1123 label…"#,
            ],
        );
    }

    #[test]
    fn address_type_stays() {
        let (slice, _) = create(&ENDPOINT_SLICE, json!({"addressType": "IPv4"}));
        let (_, errors) = update(&ENDPOINT_SLICE, &slice, json!({"addressType": "IPv6"}));
        assert_eq!(
            errors,
            ["addressType: Invalid value: \"IPv6\": field is immutable"]
        );
    }
}
