//! Network policies: peers, blocks and ports.
//! Mirrors `ValidateNetworkPolicy` in `pkg/apis/networking/validation`.

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt},
};
use bellerophon_codec::object::Object;
use serde_json::{Value, json};

use super::{Generation, Strategy, validation};

/// The strategy of NetworkPolicies. Mirrors `pkg/registry/networking/networkpolicy`.
pub const NETWORK_POLICY: Strategy = Strategy {
    default,
    validate,
    generation: Generation::Spec,
    ..Strategy::PLAIN
};

fn default(policy: &mut Object) {
    let spec = policy.section("spec");
    spec.default_to("podSelector", json!({}));
    if spec.is_empty_at("policyTypes") {
        let types = if spec.is_empty_at("egress") {
            json!(["Ingress"])
        } else {
            json!(["Ingress", "Egress"])
        };
        spec.insert("policyTypes".into(), types);
    }
    for direction in ["ingress", "egress"] {
        for rule in spec.maps_mut(direction) {
            rule.maps_mut("ports")
                .for_each(|port| port.default_to("protocol", "TCP"));
        }
    }
}

fn validate(policy: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("spec");
    let spec = policy.body.field("spec");
    validation::label_selector(&at.child("podSelector"), spec.field("podSelector"), out);
    for (direction, side) in [("ingress", "from"), ("egress", "to")] {
        let rules = at.child(direction);
        for (i, rule) in spec.list(direction).iter().enumerate() {
            let at = rules.index(i);
            let ports = at.child("ports");
            for (i, port) in rule.list("ports").iter().enumerate() {
                validate_port(&ports.index(i), port, out);
            }
            let peers = at.child(side);
            for (i, peer) in rule.list(side).iter().enumerate() {
                validate_peer(&peers.index(i), peer, out);
            }
        }
    }
    let types = at.child("policyTypes");
    if spec.list("policyTypes").len() > 2 {
        out.push(FieldError::invalid(
            types,
            spec.field("policyTypes"),
            "may not specify more than two policyTypes",
        ));
        return;
    }
    for (i, kind) in spec
        .list("policyTypes")
        .iter()
        .filter_map(Value::as_str)
        .enumerate()
    {
        validation::one_of(&types.index(i), kind, &["Ingress", "Egress"], out);
    }
}

fn validate_port(at: &Path, port: &Value, out: &mut Vec<FieldError>) {
    if let Some(protocol) = port.field("protocol").as_str() {
        validation::one_of(
            &at.child("protocol"),
            protocol,
            &["TCP", "UDP", "SCTP"],
            out,
        );
    }
    let end_at = at.child("endPort");
    let end = port.int("endPort");
    match port.field("port") {
        Value::Null => {
            if let Some(end) = end {
                out.push(FieldError::invalid(
                    end_at,
                    end,
                    "may not be specified when `port` is not specified",
                ));
            }
        }
        Value::String(name) => {
            if let Some(end) = end {
                out.push(FieldError::invalid(
                    end_at,
                    end,
                    "may not be specified when `port` is non-numeric",
                ));
            }
            validation::named(&at.child("port"), name, validation::port_name(name), out);
        }
        number => {
            let number = number.as_i64().unwrap_or_default();
            validation::port_number(&at.child("port"), number, out);
            if let Some(end) = end {
                if end < number {
                    // Kubernetes shows the first port here.
                    out.push(FieldError::invalid(
                        end_at,
                        number,
                        "must be greater than or equal to `port`",
                    ));
                }
                validation::port_number(&end_at, end, out);
            }
        }
    }
}

fn validate_peer(at: &Path, peer: &Value, out: &mut Vec<FieldError>) {
    let mut peers = 0;
    for selector in ["podSelector", "namespaceSelector"] {
        if let Some(value) = peer.get_set(selector) {
            peers += 1;
            validation::label_selector(&at.child(selector), value, out);
        }
    }
    if let Some(block) = peer.get_set("ipBlock") {
        validate_block(&at.child("ipBlock"), block, out);
        if peers > 0 {
            out.push(FieldError::forbidden(
                at,
                "may not specify both ipBlock and another peer",
            ));
        }
        peers += 1;
    }
    if peers == 0 {
        out.push(FieldError::required(at, "must specify a peer"));
    }
}

fn validate_block(at: &Path, block: &Value, out: &mut Vec<FieldError>) {
    let cidr = block.text("cidr");
    if cidr.is_empty() {
        out.push(FieldError::required(at.child("cidr"), ""));
        return;
    }
    validation::cidr(&at.child("cidr"), cidr, out);
    let Some((network, length)) = validation::parse_cidr(cidr) else {
        return;
    };
    let all = at.child("except");
    for (i, except) in block
        .list("except")
        .iter()
        .filter_map(Value::as_str)
        .enumerate()
    {
        validation::cidr(&all.index(i), except, out);
        let Some((part, part_length)) = validation::parse_cidr(except) else {
            continue;
        };
        let inside = part.is_ipv4() == network.is_ipv4()
            && validation::masked(part, length) == validation::masked(network, length);
        if !inside || length >= part_length {
            out.push(FieldError::invalid(
                all.index(i),
                except,
                "must be a strict subset of `cidr`",
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::test_support::{create, refused};

    #[test]
    fn types_and_protocols_are_filled_in() {
        let (policy, _) = create(
            &NETWORK_POLICY,
            json!({"spec": {"egress": [{"ports": [{"port": 80}]}]}}),
        );
        assert_eq!(
            policy.body["spec"],
            json!({"podSelector": {}, "egress": [{"ports": [{"port": 80, "protocol": "TCP"}]}], "policyTypes": ["Ingress", "Egress"]})
        );
    }

    #[test]
    fn blocks_and_ports_are_checked() {
        refused(
            &NETWORK_POLICY,
            json!({"spec": {"podSelector": {}, "ingress": [{"from": [{"ipBlock": {"cidr": "192.0.2.0"}}, {"ipBlock": {"cidr": "192.0.2.0/24", "except": ["198.51.100.0/24"]}}, {"podSelector": {}, "ipBlock": {"cidr": "192.0.2.0/24"}}, {}]}]}}),
            &[
                r#"spec.ingress[0].from[0].ipBlock.cidr: Invalid value: "192.0.2.0": must be a valid CIDR value, (e.g. 10.9.8.0/24 or 2001:db8::/64)"#,
                r#"spec.ingress[0].from[1].ipBlock.except[0]: Invalid value: "198.51.100.0/24": must be a strict subset of `cidr`"#,
                "spec.ingress[0].from[2]: Forbidden: may not specify both ipBlock and another peer",
                "spec.ingress[0].from[3]: Required value: must specify a peer",
            ],
        );
        refused(
            &NETWORK_POLICY,
            json!({"spec": {"podSelector": {"matchLabels": {"a": "b c"}}, "policyTypes": ["Both"], "ingress": [{"ports": [{"port": 70000}, {"port": 100, "endPort": 99}, {"endPort": 9}, {"protocol": "ICMP"}]}]}}),
            &[
                r#"spec.podSelector.matchLabels: Invalid value: "b c": a valid label must be…"#,
                "spec.ingress[0].ports[0].port: Invalid value: 70000: must be between 1 and 65535, inclusive",
                "spec.ingress[0].ports[1].endPort: Invalid value: 100: must be greater than or equal to `port`",
                "spec.ingress[0].ports[2].endPort: Invalid value: 9: may not be specified when `port` is not specified",
                r#"spec.ingress[0].ports[3].protocol: Unsupported value: "ICMP": supported values: "TCP", "UDP", "SCTP""#,
                r#"spec.policyTypes[0]: Unsupported value: "Both": supported values: "Ingress", "Egress""#,
            ],
        );
    }
}
