//! Endpoints: the addresses of a service in their deprecated form.
//! Mirrors `ValidateEndpoints` in `pkg/apis/core/validation`.

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt},
    names,
};
use bellerophon_codec::object::Object;
use serde_json::Value;

use super::{Strategy, validation};

/// The strategy of Endpoints. Mirrors `pkg/registry/core/endpoint`.
pub const ENDPOINTS: Strategy = Strategy {
    default,
    validate,
    create_on_update: true,
    ..Strategy::PLAIN
};

fn default(endpoints: &mut Object) {
    for subset in endpoints.body.maps_mut("subsets") {
        subset
            .maps_mut("ports")
            .for_each(|port| port.default_text("protocol", "TCP"));
    }
}

fn validate(endpoints: &Object, out: &mut Vec<FieldError>) {
    let all = Path::field("subsets");
    for (i, subset) in endpoints.body.list("subsets").iter().enumerate() {
        validate_subset(&all.index(i), subset, out);
    }
}

fn validate_subset(at: &Path, subset: &Value, out: &mut Vec<FieldError>) {
    if subset.is_empty_at("addresses") && subset.is_empty_at("notReadyAddresses") {
        out.push(FieldError::required(
            at,
            "must specify `addresses` or `notReadyAddresses`",
        ));
    }
    for section in ["addresses", "notReadyAddresses"] {
        let all = at.child(section);
        for (i, address) in subset.list(section).iter().enumerate() {
            validate_address(&all.index(i), address, out);
        }
    }
    let all = at.child("ports");
    let ports = subset.list("ports");
    for (i, port) in ports.iter().enumerate() {
        validate_port(&all.index(i), port, ports.len(), out);
    }
}

fn validate_address(at: &Path, address: &Value, out: &mut Vec<FieldError>) {
    let ip = address.text("ip");
    let hostname = address.text("hostname");
    validation::ip(&at.child("ip"), ip, out);
    if !hostname.is_empty() {
        validation::named(
            &at.child("hostname"),
            hostname,
            names::dns_label(hostname),
            out,
        );
    }
    if let Some(node) = address.field("nodeName").as_str() {
        validation::named(&at.child("nodeName"), node, names::dns_subdomain(node), out);
    }
    validation::endpoint_ip(&at.child("ip"), ip, out);
}

fn validate_port(at: &Path, port: &Value, ports: usize, out: &mut Vec<FieldError>) {
    match port.text("name") {
        "" if ports > 1 => out.push(FieldError::required(at.child("name"), "")),
        "" => {}
        name => validation::named(&at.child("name"), name, names::dns_label(name), out),
    }
    validation::port_number(&at.child("port"), port.int("port").unwrap_or_default(), out);
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::test_support::{create, refused};

    #[test]
    fn addresses_and_ports_are_checked() {
        refused(
            &ENDPOINTS,
            json!({"subsets": [{"addresses": [{"ip": "x"}], "ports": [{"port": 0}]}, {"ports": [{"port": 80}]}, {"addresses": [{"ip": "127.0.0.1"}], "ports": [{"port": 80}, {"port": 81}]}]}),
            &[
                r#"subsets[0].addresses[0].ip: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"#,
                r#"subsets[0].addresses[0].ip: Invalid value: "x": must be a valid IP address"#,
                "subsets[0].ports[0].port: Invalid value: 0: must be between 1 and 65535, inclusive",
                "subsets[1]: Required value: must specify `addresses` or `notReadyAddresses`",
                r#"subsets[2].addresses[0].ip: Invalid value: "127.0.0.1": may not be in the loopback range (127.0.0.0/8, ::1/128)"#,
                "subsets[2].ports[0].name: Required value",
                "subsets[2].ports[1].name: Required value",
            ],
        );
        let (endpoints, _) = create(
            &ENDPOINTS,
            json!({"subsets": [{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 80}]}]}),
        );
        assert_eq!(
            endpoints.body["subsets"][0]["ports"],
            json!([{"port": 80, "protocol": "TCP"}])
        );
    }
}
