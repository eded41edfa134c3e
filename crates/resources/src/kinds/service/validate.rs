//! The errors of a service, its change or its status.
//! Mirrors `ValidateService` and `ValidateServiceUpdate` in `pkg/apis/core/validation`.

use std::collections::BTreeSet;

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::JsonExt,
    names,
};
use bellerophon_codec::{object::Object, types::Internal};
use serde_json::{Map, Value, json};

use super::{HEADLESS, is_external, is_headless, needs_health_check};
use crate::kinds::validation;

const SPEC: Path = Path::field("spec");
const STICKY_MAX_SECONDS: i64 = 86_400;

pub(super) fn service(service: &Object, out: &mut Vec<FieldError>) {
    topology(service, out);
    let empty = Map::new();
    let spec = service.body.field("spec").as_object().unwrap_or(&empty);
    by_type(spec, out);
    ports(spec.list("ports"), out);
    validation::labels(&SPEC.child("selector"), spec.field("selector"), out);
    affinity(spec, out);
    cluster_ips(spec, out);
    external_ips(spec, out);
    validation::one_of(
        &SPEC.child("type"),
        spec.text("type"),
        &["ClusterIP", "ExternalName", "LoadBalancer", "NodePort"],
        out,
    );
    port_numbers(spec, out);
    source_ranges(service, spec, out);
    if spec.get_set("allocateLoadBalancerNodePorts").is_some()
        && spec.text("type") != "LoadBalancer"
    {
        out.push(FieldError::forbidden(
            SPEC.child("allocateLoadBalancerNodePorts"),
            "may only be used when `type` is 'LoadBalancer'",
        ));
    }
    if let Some(class) = spec.field("loadBalancerClass").as_str() {
        match spec.text("type") {
            "LoadBalancer" => validation::named(
                &SPEC.child("loadBalancerClass"),
                class,
                names::qualified_name(class),
                out,
            ),
            _ => out.push(FieldError::forbidden(
                SPEC.child("loadBalancerClass"),
                "may only be used when `type` is 'LoadBalancer'",
            )),
        }
    }
    traffic(spec, out);
}

fn topology(service: &Object, out: &mut Vec<FieldError>) {
    let annotation = |name: &str| {
        service
            .meta
            .annotations
            .get(&format!("service.kubernetes.io/{name}"))
    };
    if let (Some(mode), Some(hints)) = (
        annotation("topology-mode"),
        annotation("topology-aware-hints"),
    ) && mode != hints
    {
        let at = Path::field("metadata.annotations");
        let why = "must match annotations[service.kubernetes.io/topology-aware-hints] when both are specified";
        out.push(FieldError::invalid(
            at.key("service.kubernetes.io/topology-mode"),
            mode,
            why,
        ));
    }
}

fn by_type(spec: &Map<String, Value>, out: &mut Vec<FieldError>) {
    let kind = spec.text("type");
    let headless = is_headless(spec);
    if spec.is_empty_at("ports") && !headless && kind != "ExternalName" {
        out.push(FieldError::required(SPEC.child("ports"), ""));
    }
    match kind {
        "LoadBalancer" | "NodePort" if headless => {
            let at = SPEC.child("clusterIPs");
            out.push(FieldError::invalid(
                at.index(0),
                HEADLESS,
                &format!("may not be set to 'None' for {kind} services"),
            ));
        }
        "ExternalName" => {
            for field in ["clusterIPs", "ipFamilies", "ipFamilyPolicy"] {
                if !spec.is_empty_at(field) {
                    out.push(FieldError::forbidden(
                        SPEC.child(field),
                        "may not be set for ExternalName services",
                    ));
                }
            }
            let name = spec.text("externalName");
            match name.strip_suffix('.').unwrap_or(name) {
                "" => out.push(FieldError::required(SPEC.child("externalName"), "")),
                name => validation::named(
                    &SPEC.child("externalName"),
                    name,
                    names::dns_subdomain(name),
                    out,
                ),
            }
        }
        _ => {}
    }
}

fn ports(ports: &[Value], out: &mut Vec<FieldError>) {
    let all = SPEC.child("ports");
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let at = all.index(i);
        let name = port.text("name");
        if name.is_empty() {
            if ports.len() > 1 {
                out.push(FieldError::required(at.child("name"), ""));
            }
        } else {
            validation::named(&at.child("name"), name, names::dns_label(name), out);
            if !seen.insert(name) {
                out.push(FieldError::duplicate(at.child("name"), name));
            }
        }
        validation::port_number(&at.child("port"), port.int("port").unwrap_or_default(), out);
        validation::one_of(
            &at.child("protocol"),
            port.text("protocol"),
            validation::PROTOCOLS,
            out,
        );
        validation::port_or_name(&at.child("targetPort"), port.field("targetPort"), out);
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

fn affinity(spec: &Map<String, Value>, out: &mut Vec<FieldError>) {
    validation::one_of(
        &SPEC.child("sessionAffinity"),
        spec.text("sessionAffinity"),
        &["ClientIP", "None"],
        out,
    );
    if spec.text("sessionAffinity") == "ClientIP" {
        let seconds = spec
            .field("sessionAffinityConfig")
            .field("clientIP")
            .int("timeoutSeconds")
            .unwrap_or_default();
        if !(1..=STICKY_MAX_SECONDS).contains(&seconds) {
            let why = format!("must be greater than 0 and less than {STICKY_MAX_SECONDS}");
            out.push(FieldError::invalid(
                "spec.sessionAffinityConfig.clientIP.timeoutSeconds",
                seconds,
                &why,
            ));
        }
    }
}

/// Addresses, families and policy must agree; also run before addresses are given.
pub(super) fn cluster_ips(spec: &Map<String, Value>, out: &mut Vec<FieldError>) {
    if spec.text("type") == "ExternalName" {
        return;
    }
    let at = SPEC.child("clusterIPs");
    let shown = spec.field("clusterIPs");
    let ips = spec.list("clusterIPs");
    match (spec.text("clusterIP"), ips.first().and_then(Value::as_str)) {
        ("", None) => {}
        ("", Some(_)) => out.push(FieldError::invalid(
            at,
            shown,
            "must be empty when `clusterIP` is not specified",
        )),
        (_, None) => out.push(FieldError::required(at, "")),
        (one, Some(first)) if one != first => out.push(FieldError::invalid(
            at,
            shown,
            "first value must match `clusterIP`",
        )),
        _ => {}
    }
    family_fields(spec, out);
    let before = out.len();
    for (i, ip) in ips.iter().enumerate() {
        let ip = ip.as_str().unwrap_or_default();
        match (i, ip) {
            (0, HEADLESS) if ips.len() > 1 => out.push(FieldError::invalid(
                at,
                shown,
                "'None' must be the first and only value",
            )),
            (0, HEADLESS) => {}
            _ => validation::ip(&at.index(i), ip, out),
        }
    }
    let any_error = out.len() > before;
    if ips.len() > 2 {
        out.push(FieldError::invalid(
            at,
            shown,
            "may only hold up to 2 values",
        ));
    }
    if !any_error {
        address_families(spec, out);
    }
}

fn family_fields(spec: &Map<String, Value>, out: &mut Vec<FieldError>) {
    let all = SPEC.child("ipFamilies");
    let mut seen = BTreeSet::new();
    for (i, family) in spec
        .list("ipFamilies")
        .iter()
        .filter_map(Value::as_str)
        .enumerate()
    {
        validation::one_of(&all.index(i), family, &["IPv4", "IPv6"], out);
        if !seen.insert(family) {
            out.push(FieldError::duplicate(all.index(i), family));
        }
    }
    if let Some(policy) = spec.field("ipFamilyPolicy").as_str() {
        validation::one_of(
            &SPEC.child("ipFamilyPolicy"),
            policy,
            &["PreferDualStack", "RequireDualStack", "SingleStack"],
            out,
        );
    }
}

fn address_families(spec: &Map<String, Value>, out: &mut Vec<FieldError>) {
    let at = SPEC.child("clusterIPs");
    let shown = spec.field("clusterIPs");
    let ips: Vec<&str> = spec
        .list("clusterIPs")
        .iter()
        .filter_map(Value::as_str)
        .collect();
    let is_v6 = |ip: &str| validation::parse_ip(ip).is_some_and(|ip| ip.is_ipv6());
    if ips.len() > 1 && !(ips.len() == 2 && is_v6(ips[0]) != is_v6(ips[1])) {
        out.push(FieldError::invalid(
            at,
            shown,
            "may specify no more than one IP for each IP family",
        ));
    }
    if is_headless(spec) {
        return;
    }
    for (i, (ip, family)) in ips.iter().zip(spec.list("ipFamilies")).enumerate() {
        let wanted_v6 = family == "IPv6";
        if wanted_v6 != is_v6(ip) {
            let name = if wanted_v6 { "IPv6" } else { "IPv4" };
            out.push(FieldError::invalid(
                at.index(i),
                *ip,
                &format!("expected an {name} value as indicated by `ipFamilies[{i}]`"),
            ));
        }
    }
}

fn external_ips(spec: &Map<String, Value>, out: &mut Vec<FieldError>) {
    let all = SPEC.child("externalIPs");
    for (i, ip) in spec
        .list("externalIPs")
        .iter()
        .filter_map(Value::as_str)
        .enumerate()
    {
        let before = out.len();
        validation::ip(&all.index(i), ip, out);
        if out.len() == before {
            validation::endpoint_ip(&all.index(i), ip, out);
        }
    }
}

fn port_numbers(spec: &Map<String, Value>, out: &mut Vec<FieldError>) {
    let all = SPEC.child("ports");
    let ports = spec.list("ports");
    let node_port = |port: &Value| port.int("nodePort").unwrap_or_default();
    if spec.text("type") == "ClusterIP" {
        for (i, _) in ports
            .iter()
            .enumerate()
            .filter(|(_, port)| node_port(port) != 0)
        {
            out.push(FieldError::forbidden(
                all.index(i).child("nodePort"),
                "may not be used when `type` is 'ClusterIP'",
            ));
        }
    }
    let mut seen = BTreeSet::new();
    for (i, port) in ports
        .iter()
        .enumerate()
        .filter(|(_, port)| node_port(port) != 0)
    {
        if !seen.insert((port.text("protocol"), node_port(port))) {
            out.push(FieldError::duplicate(
                all.index(i).child("nodePort"),
                node_port(port),
            ));
        }
    }
    let mut seen = BTreeSet::new();
    for (i, port) in ports.iter().enumerate() {
        let protocol = port.text("protocol");
        let number = port.int("port").unwrap_or_default();
        if !seen.insert((protocol, number)) {
            let shown = json!({"protocol": protocol, "port": number});
            out.push(FieldError::duplicate(
                all.index(i),
                Internal::one("core.ServicePort", &shown),
            ));
        }
    }
}

fn source_ranges(service: &Object, spec: &Map<String, Value>, out: &mut Vec<FieldError>) {
    const ANNOTATION: &str = "service.beta.kubernetes.io/load-balancer-source-ranges";
    const ONLY_BALANCED: &str = "may only be used when `type` is 'LoadBalancer'";
    let balanced = spec.text("type") == "LoadBalancer";
    if !spec.is_empty_at("loadBalancerSourceRanges") {
        // The capital letter is Kubernetes' own.
        let all = SPEC.child("LoadBalancerSourceRanges");
        if !balanced {
            out.push(FieldError::forbidden(all, ONLY_BALANCED));
        }
        for (i, range) in spec
            .list("loadBalancerSourceRanges")
            .iter()
            .filter_map(Value::as_str)
            .enumerate()
        {
            validation::cidr(&all.index(i), range.trim(), out);
        }
    } else if let Some(ranges) = service.meta.annotations.get(ANNOTATION) {
        let annotations = Path::field("metadata.annotations");
        let at = annotations.key(ANNOTATION);
        if !balanced {
            out.push(FieldError::forbidden(at, ONLY_BALANCED));
        }
        if !ranges.trim().is_empty() {
            ranges
                .split(',')
                .for_each(|range| validation::cidr(&at, range.trim(), out));
        }
    }
}

fn traffic(spec: &Map<String, Value>, out: &mut Vec<FieldError>) {
    let at = SPEC.child("externalTrafficPolicy");
    match (is_external(spec), spec.text("externalTrafficPolicy")) {
        (false, "") => {}
        (false, policy) => out.push(FieldError::invalid(
            at,
            policy,
            "may only be set for externally-accessible services",
        )),
        (true, policy) => validation::one_of(&at, policy, &["Cluster", "Local"], out),
    }
    let at = SPEC.child("healthCheckNodePort");
    let port = spec.int("healthCheckNodePort").unwrap_or_default();
    match (needs_health_check(spec), port) {
        (false, 0) => {}
        (false, port) => {
            out.push(FieldError::invalid(at, port, "may only be set when `type` is 'LoadBalancer' and `externalTrafficPolicy` is 'Local'"));
        }
        (true, 0) => out.push(FieldError::required(at, "")),
        (true, port) => validation::port_number(&at, port, out),
    }
    if let Some(policy) = spec.field("internalTrafficPolicy").as_str() {
        validation::one_of(
            &SPEC.child("internalTrafficPolicy"),
            policy,
            &["Cluster", "Local"],
            out,
        );
    }
    if let Some(distribution) = spec.field("trafficDistribution").as_str() {
        let known = &["PreferClose", "PreferSameZone", "PreferSameNode"];
        validation::one_of(&SPEC.child("trafficDistribution"), distribution, known, out);
    }
}

pub(super) fn change(new: &Object, old: &Object, out: &mut Vec<FieldError>) {
    let before = old.body.field("spec");
    let spec = new.body.field("spec");
    let by_name = |spec: &Value| spec.text("type") == "ExternalName";
    if !by_name(spec) && !by_name(before) {
        kept_addresses(spec, before, out);
        kept_families(spec, before, out);
    }
    let balanced = |spec: &Value| spec.text("type") == "LoadBalancer";
    if balanced(spec)
        && balanced(before)
        && spec.field("loadBalancerClass") != before.field("loadBalancerClass")
    {
        out.push(FieldError::invalid(
            "spec.loadBalancerClass",
            spec.field("loadBalancerClass"),
            "may not change once set",
        ));
    }
    let checked = needs_health_check(spec) && needs_health_check(before);
    if checked && spec.field("healthCheckNodePort") != before.field("healthCheckNodePort") {
        out.push(FieldError::forbidden(
            "spec.healthCheckNodePort",
            validation::IMMUTABLE,
        ));
    }
}

fn kept_addresses(spec: &Value, before: &Value, out: &mut Vec<FieldError>) {
    if is_headless(spec) && is_headless(before) {
        return;
    }
    let all = SPEC.child("clusterIPs");
    let ips = spec.list("clusterIPs");
    let held = before.list("clusterIPs");
    let shown = spec.field("clusterIPs");
    if ips.is_empty() && !held.is_empty() {
        out.push(FieldError::invalid(
            all.index(0),
            shown,
            "primary clusterIP can not be unset",
        ));
    }
    let compared = if ips.len() == held.len() {
        held.len()
    } else {
        1
    };
    for (i, (ip, was)) in ips.iter().zip(held).enumerate().take(compared) {
        if ip != was {
            out.push(FieldError::invalid(
                all.index(i),
                shown,
                "may not change once set",
            ));
        }
    }
}

fn kept_families(spec: &Value, before: &Value, out: &mut Vec<FieldError>) {
    if is_headless(spec) || is_headless(before) {
        return;
    }
    let all = SPEC.child("ipFamilies");
    for (family, was) in spec
        .list("ipFamilies")
        .iter()
        .zip(before.list("ipFamilies"))
    {
        if family != was {
            out.push(FieldError::invalid(
                all.index(0),
                spec.field("ipFamilies"),
                "may not change once set",
            ));
        }
    }
}

pub(super) fn status(new: &Object, _: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("status.loadBalancer.ingress");
    let ingress = new
        .body
        .field("status")
        .field("loadBalancer")
        .list("ingress");
    if new.str_at("spec.type") != "LoadBalancer" && !ingress.is_empty() {
        out.push(FieldError::forbidden(
            at,
            "may only be used when `spec.type` is 'LoadBalancer'",
        ));
        return;
    }
    for (i, point) in ingress.iter().enumerate() {
        entry_point(&at.index(i), point, out);
    }
}

fn entry_point(at: &Path, point: &Value, out: &mut Vec<FieldError>) {
    let ip = point.text("ip");
    let hostname = point.text("hostname");
    if !ip.is_empty() {
        validation::ip(&at.child("ip"), ip, out);
    }
    match point.field("ipMode").as_str() {
        None if !ip.is_empty() => out.push(FieldError::required(
            at.child("ipMode"),
            "must be specified when `ip` is set",
        )),
        Some(_) if ip.is_empty() => out.push(FieldError::forbidden(
            at.child("ipMode"),
            "may not be specified when `ip` is not set",
        )),
        Some(mode) => validation::one_of(&at.child("ipMode"), mode, &["Proxy", "VIP"], out),
        None => {}
    }
    if !hostname.is_empty() {
        validation::named(
            &at.child("hostname"),
            hostname,
            names::dns_subdomain(hostname),
            out,
        );
        if validation::parse_ip(hostname).is_some() {
            out.push(FieldError::invalid(
                at.child("hostname"),
                hostname,
                "must be a DNS name, not an IP address",
            ));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::kinds::{
        service::SERVICE,
        test_support::{create, refused, update, update_status},
    };

    #[test]
    fn ports_are_required_unique_and_in_range() {
        refused(
            &SERVICE,
            json!({"spec": {}}),
            &["spec.ports: Required value"],
        );
        refused(
            &SERVICE,
            json!({"spec": {"ports": [{"name": "a", "port": 80}, {"name": "a", "port": 80}]}}),
            &[
                r#"spec.ports[1].name: Duplicate value: "a""#,
                r#"spec.ports[1]: Duplicate value: {"Name":"","Protocol":"TCP","AppProtocol":null,"Port":80,"TargetPort":0,"NodePort":0}"#,
            ],
        );
        refused(
            &SERVICE,
            json!({"spec": {"ports": [{"name": "a", "port": 65536, "targetPort": "not_a_name"}, {"name": "B", "port": 80, "protocol": "HTTP"}]}}),
            &[
                "spec.ports[0].port: Invalid value: 65536: must be between 1 and 65535, inclusive",
                r#"spec.ports[0].targetPort: Invalid value: "not_a_name": must contain only alpha-numeric characters (a-z, 0-9), and hyphens (-)"#,
                r#"spec.ports[1].name: Invalid value: "B": a lowercase RFC 1123 label…"#,
                r#"spec.ports[1].protocol: Unsupported value: "HTTP": supported values: "SCTP", "TCP", "UDP""#,
            ],
        );
        refused(
            &SERVICE,
            json!({"spec": {"ports": [{"port": 80, "nodePort": 30080}]}}),
            &["spec.ports[0].nodePort: Forbidden: may not be used when `type` is 'ClusterIP'"],
        );
    }

    #[test]
    fn fields_must_fit_the_type() {
        refused(
            &SERVICE,
            json!({"spec": {"type": "Internal", "sessionAffinity": "Cookie", "ports": [{"port": 80}]}}),
            &[
                r#"spec.sessionAffinity: Unsupported value: "Cookie": supported values: "ClientIP", "None""#,
                r#"spec.type: Unsupported value: "Internal": supported values: "ClusterIP", "ExternalName", "LoadBalancer", "NodePort""#,
            ],
        );
        refused(
            &SERVICE,
            json!({"spec": {"externalTrafficPolicy": "Local", "loadBalancerSourceRanges": ["192.0.2.0/24"], "ports": [{"port": 80}]}}),
            &[
                "spec.LoadBalancerSourceRanges: Forbidden: may only be used when `type` is 'LoadBalancer'",
                r#"spec.externalTrafficPolicy: Invalid value: "Local": may only be set for externally-accessible services"#,
            ],
        );
        refused(
            &SERVICE,
            json!({"spec": {"type": "NodePort", "clusterIP": "None", "clusterIPs": ["None"], "ports": [{"port": 80}]}}),
            &[
                r#"spec.clusterIPs[0]: Invalid value: "None": may not be set to 'None' for NodePort services"#,
            ],
        );
        refused(
            &SERVICE,
            json!({"spec": {"type": "ExternalName", "ports": [{"port": 80}]}}),
            &["spec.externalName: Required value"],
        );
    }

    #[test]
    fn address_stays_once_set() {
        let spec = |ip: &str| json!({"spec": {"ports": [{"port": 80}], "clusterIP": ip, "clusterIPs": [ip], "ipFamilies": ["IPv4"]}});
        let (old, _) = create(&SERVICE, spec("10.0.0.9"));
        for ip in ["10.0.0.99", "None"] {
            let (_, errors) = update(&SERVICE, &old, spec(ip));
            assert_eq!(
                errors,
                [format!(
                    "spec.clusterIPs[0]: Invalid value: [\"{ip}\"]: may not change once set"
                )]
            );
        }
    }

    #[test]
    fn balancer_status_is_checked() {
        let (old, _) = create(
            &SERVICE,
            json!({"spec": {"type": "LoadBalancer", "ports": [{"port": 80}]}}),
        );
        let mut next = old.to_value();
        next["status"] =
            json!({"loadBalancer": {"ingress": [{"ip": "x", "hostname": "192.0.2.1"}]}});
        let (_, errors) = update_status(&SERVICE, &old, next);
        assert_eq!(
            errors,
            [
                r#"status.loadBalancer.ingress[0].ip: Invalid value: "x": must be a valid IP address, (e.g. 10.9.8.7 or 2001:db8::ffff)"#,
                r#"status.loadBalancer.ingress[0].hostname: Invalid value: "192.0.2.1": must be a DNS name, not an IP address"#,
            ]
        );
    }
}
