//! Services, endpoints, ingresses, policies, addresses.
//! Mirrors `printService`, `printIngress`, `printEndpointSlice` in `pkg/printers/internalversion`.

use std::{collections::BTreeSet, net::Ipv6Addr};

use bellerophon_apimachinery::{error::GroupResource, table_column::Column};
use bellerophon_codec::object::Object;
use serde_json::Value;

use super::{
    descriptions,
    field::{Fields, first_three},
    printer::{Printer, age, name},
    selector::{labels, selector_or_none},
};

const DEFAULT_INGRESS_CLASS: &str = "ingressclass.kubernetes.io/is-default-class";
/// Hosts of an ingress that are printed; the rest are counted.
const HOSTS_SHOWN_MAX: usize = 3;

pub(super) static SERVICE: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("Type", descriptions::SERVICE_TYPE),
        Column::text("Cluster-IP", descriptions::SERVICE_CLUSTER_IP),
        Column::text("External-IP", descriptions::SERVICE_EXTERNAL_IP),
        Column::text("Port(s)", descriptions::SERVICE_PORTS),
        Column::AGE,
        Column::text("Selector", descriptions::SERVICE_SELECTOR).wide(),
    ],
    cells: |object, now| {
        vec![
            name(object),
            object.text("spec.type").into(),
            object
                .texts("spec.clusterIPs")
                .first()
                .copied()
                .unwrap_or("<none>")
                .into(),
            external_ip(object).into(),
            service_ports(object).into(),
            age(object, now),
            labels(object.map("spec.selector")).into(),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static ENDPOINTS: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("Endpoints", descriptions::ENDPOINTS),
        Column::AGE,
    ],
    cells: |object, now| vec![name(object), endpoints(object).into(), age(object, now)],
    ..Printer::PLAIN
};

pub(super) static ENDPOINT_SLICE: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("AddressType", "The kind of addresses in the slice."),
        Column::text(
            "Ports",
            "The ports that every endpoint of the slice serves.",
        ),
        Column::text("Endpoints", "The addresses in the slice."),
        Column::AGE,
    ],
    cells: |object, now| {
        let ports: Vec<String> = object.list("ports").iter().map(slice_port).collect();
        let addresses: Vec<String> = object
            .list("endpoints")
            .iter()
            .flat_map(|endpoint| endpoint.texts("addresses"))
            .map(str::to_owned)
            .collect();
        vec![
            name(object),
            object.text("addressType").into(),
            some_or_unset(&ports),
            some_or_unset(&addresses),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static INGRESS: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text(
            "Class",
            "The name of the IngressClass resource that should be used for additional configuration",
        ),
        Column::text(
            "Hosts",
            "Hosts that incoming requests are matched against before the ingress rule",
        ),
        Column::text(
            "Address",
            "Address is a list containing ingress points for the load-balancer",
        ),
        Column::text("Ports", "Ports of TLS configurations that open"),
        Column::AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            object.text_or("spec.ingressClassName", "<none>").into(),
            hosts(object).into(),
            balancer_addresses(object).join(",").into(),
            if object.list("spec.tls").is_empty() {
                "80"
            } else {
                "80, 443"
            }
            .into(),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static INGRESS_CLASS: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("Controller", "Who serves ingresses of this class."),
        Column::text("Parameters", "An object with further settings."),
        Column::AGE,
    ],
    cells: |object, now| {
        let default = object
            .meta
            .annotations
            .get(DEFAULT_INGRESS_CLASS)
            .is_some_and(|value| value == "true");
        let suffix = if default { " (default)" } else { "" };
        vec![
            format!("{}{suffix}", object.meta.name).into(),
            object.text("spec.controller").into(),
            class_parameters(object).into(),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static NETWORK_POLICY: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("Pod-Selector", "The pods it applies to."),
        Column::AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            selector_or_none(object.field("spec.podSelector")).into(),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static SERVICE_CIDR: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("CIDRs", "The ranges that service addresses come from."),
        Column::AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            object.texts("spec.cidrs").join(",").into(),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static IP_ADDRESS: Printer = Printer {
    // Kubernetes sends an age that no column describes.
    columns: &[
        Column::NAME,
        Column::text("ParentRef", "The object the address belongs to."),
    ],
    cells: |object, now| vec![name(object), parent(object).into(), age(object, now)],
    ..Printer::PLAIN
};

fn external_ip(service: &Object) -> String {
    let mut addresses = service.texts("spec.externalIPs");
    match service.text("spec.type") {
        "ClusterIP" | "NodePort" if addresses.is_empty() => "<none>".into(),
        "ClusterIP" | "NodePort" => addresses.join(","),
        "LoadBalancer" => {
            addresses.splice(0..0, balancer_addresses(service));
            if addresses.is_empty() {
                "<pending>".into()
            } else {
                addresses.join(",")
            }
        }
        "ExternalName" => service.text("spec.externalName").into(),
        _ => "<unknown>".into(),
    }
}

/// Where a load balancer answers, sorted and without repetition.
fn balancer_addresses(object: &Object) -> Vec<&str> {
    let points = object.list("status.loadBalancer.ingress").iter();
    let addresses: BTreeSet<&str> = points
        .map(|point| point.filled_or("ip", point.text("hostname")))
        .filter(|address| !address.is_empty())
        .collect();
    addresses.into_iter().collect()
}

fn service_ports(service: &Object) -> String {
    let ports = service
        .list("spec.ports")
        .iter()
        .map(|port| match port.int("nodePort") {
            node_port @ 1.. => {
                format!("{}:{node_port}/{}", port.int("port"), port.text("protocol"))
            }
            _ => format!("{}/{}", port.int("port"), port.text("protocol")),
        });
    let ports: Vec<String> = ports.collect();
    if ports.is_empty() {
        "<none>".into()
    } else {
        ports.join(",")
    }
}

fn endpoints(object: &Object) -> String {
    let subsets = object.list("subsets");
    if subsets.is_empty() {
        return "<none>".into();
    }
    first_three(
        &subsets
            .iter()
            .flat_map(subset_endpoints)
            .collect::<Vec<_>>(),
    )
}

/// Every address with every port; addresses alone where there are no ports, as headless services
/// may have it.
fn subset_endpoints(subset: &Value) -> Vec<String> {
    let addresses: Vec<&str> = subset
        .list("addresses")
        .iter()
        .map(|address| address.text("ip"))
        .collect();
    match subset.list("ports") {
        [] => addresses.into_iter().map(str::to_owned).collect(),
        ports => ports
            .iter()
            .flat_map(|port| {
                addresses
                    .iter()
                    .map(|address| host_port(address, port.int("port")))
            })
            .collect(),
    }
}

fn host_port(address: &str, port: i64) -> String {
    if address.parse::<Ipv6Addr>().is_ok() {
        format!("[{address}]:{port}")
    } else {
        format!("{address}:{port}")
    }
}

fn slice_port(port: &Value) -> String {
    port.scalar_or("port", port.text_or("name", "*"))
}

fn some_or_unset(items: &[String]) -> Value {
    match first_three(items) {
        words if words.is_empty() => "<unset>".into(),
        words => words.into(),
    }
}

/// Rules without a host are not printed, yet count as "more" once three hosts are.
fn hosts(ingress: &Object) -> String {
    let rules = ingress.list("spec.rules");
    let with_host = rules
        .iter()
        .enumerate()
        .filter(|(_, rule)| !rule.text("host").is_empty());
    let shown: Vec<(usize, &str)> = with_host
        .take(HOSTS_SHOWN_MAX)
        .map(|(index, rule)| (index, rule.text("host")))
        .collect();
    let words = shown
        .iter()
        .map(|(_, host)| *host)
        .collect::<Vec<_>>()
        .join(",");
    match shown.get(HOSTS_SHOWN_MAX - 1) {
        _ if shown.is_empty() => "*".into(),
        Some((last, _)) if last + 1 < rules.len() => {
            format!("{words} + {} more...", rules.len() - HOSTS_SHOWN_MAX)
        }
        _ => words,
    }
}

fn class_parameters(class: &Object) -> String {
    let Some(parameters) = class.field("spec.parameters") else {
        return "<none>".into();
    };
    let group = parameters
        .field("apiGroup")
        .and_then(Value::as_str)
        .map(|group| format!(".{group}"))
        .unwrap_or_default();
    format!(
        "{}{group}/{}",
        parameters.text("kind"),
        parameters.text("name")
    )
}

/// `services/default/web`, or `<none>`.
fn parent(address: &Object) -> String {
    let Some(parent) = address.field("spec.parentRef") else {
        return "<none>".into();
    };
    let resource = GroupResource::new(parent.text("group"), parent.text("resource"))
        .to_string()
        .to_lowercase();
    match parent.text("namespace") {
        "" => format!("{resource}/{}", parent.text("name")),
        namespace => format!("{resource}/{namespace}/{}", parent.text("name")),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::print::printer::tests::{check, object};

    #[test]
    fn services_show_where_they_answer() {
        let ports = json!([{ "port": 80, "protocol": "TCP", "nodePort": 30080 }, { "port": 53, "protocol": "UDP" }]);
        let plain = json!({ "spec": { "type": "ClusterIP", "clusterIPs": ["10.0.0.9"], "ports": ports, "selector": { "app": "web" } } });
        check(
            "v1",
            "Service",
            plain,
            json!([
                "x",
                "ClusterIP",
                "10.0.0.9",
                "<none>",
                "80:30080/TCP,53/UDP",
                "10m",
                "app=web"
            ]),
        );
        let name = json!({ "spec": { "type": "ExternalName", "externalName": "db.example.com" } });
        check(
            "v1",
            "Service",
            name,
            json!([
                "x",
                "ExternalName",
                "<none>",
                "db.example.com",
                "<none>",
                "10m",
                "<none>"
            ]),
        );
    }

    #[test]
    fn load_balancers_are_pending_until_they_have_an_address() {
        let points = json!([{ "ip": "192.0.2.7" }, { "hostname": "a-rather-long-name.example.com" }, { "ip": "192.0.2.7" }]);
        for (external, points, words) in [
            (json!([]), json!([]), "<pending>"),
            (json!(["192.0.2.1"]), json!([]), "192.0.2.1"),
            (
                json!([]),
                points.clone(),
                "192.0.2.7,a-rather-long-name.example.com",
            ),
            (
                json!(["192.0.2.1"]),
                points,
                "192.0.2.7,a-rather-long-name.example.com,192.0.2.1",
            ),
        ] {
            let service = json!({ "spec": { "type": "LoadBalancer", "externalIPs": external }, "status": { "loadBalancer": { "ingress": points } } });
            assert_eq!(external_ip(&object(service)), words);
        }
    }

    #[test]
    fn long_lists_of_endpoints_are_shortened() {
        let addresses = json!([{ "ip": "10.1.0.1" }, { "ip": "10.1.0.2" }]);
        for (subsets, words) in [
            (json!([]), "<none>"),
            (json!([{ "notReadyAddresses": addresses }]), ""),
            (json!([{ "addresses": addresses }]), "10.1.0.1,10.1.0.2"),
            (
                json!([{ "addresses": addresses, "ports": [{ "port": 80 }, { "port": 81 }] }]),
                "10.1.0.1:80,10.1.0.2:80,10.1.0.1:81 + 1 more...",
            ),
            (
                json!([{ "addresses": [{ "ip": "fd00::1" }], "ports": [{ "port": 80 }] }]),
                "[fd00::1]:80",
            ),
        ] {
            check(
                "v1",
                "Endpoints",
                json!({ "subsets": subsets }),
                json!(["x", words, "10m"]),
            );
        }
    }

    #[test]
    fn slices_show_ports_and_addresses() {
        let endpoints = json!([{ "addresses": ["10.1.0.1"] }, { "addresses": ["10.1.0.2", "10.1.0.3"] }, { "addresses": ["10.1.0.4"] }]);
        let slice = json!({ "addressType": "IPv4", "ports": [{ "port": 80 }, { "name": "dns" }, {}], "endpoints": endpoints });
        check(
            "discovery.k8s.io/v1",
            "EndpointSlice",
            slice,
            json!([
                "x",
                "IPv4",
                "80,dns,*",
                "10.1.0.1,10.1.0.2,10.1.0.3 + 1 more...",
                "10m"
            ]),
        );
        check(
            "discovery.k8s.io/v1",
            "EndpointSlice",
            json!({ "ports": null }),
            json!(["x", "", "<unset>", "<unset>", "10m"]),
        );
    }

    #[test]
    fn ingresses_show_their_hosts() {
        for (hosts, words) in [
            (vec![], "*"),
            (vec![""], "*"),
            (vec!["a", "b", "c"], "a,b,c"),
            (vec!["a", "b", "c", "d"], "a,b,c + 1 more..."),
            (vec!["a", "", "b", "c", ""], "a,b,c + 2 more..."),
        ] {
            let rules: Vec<Value> = hosts
                .into_iter()
                .map(|host| json!({ "host": host }))
                .collect();
            check(
                "networking.k8s.io/v1",
                "Ingress",
                json!({ "spec": { "rules": rules } }),
                json!(["x", "<none>", words, "", "80", "10m"]),
            );
        }
        let spec = json!({ "ingressClassName": "nginx", "tls": [{}] });
        let status = json!({ "loadBalancer": { "ingress": [{ "ip": "192.0.2.7" }] } });
        check(
            "networking.k8s.io/v1",
            "Ingress",
            json!({ "spec": spec, "status": status }),
            json!(["x", "nginx", "*", "192.0.2.7", "80, 443", "10m"]),
        );
    }

    #[test]
    fn the_default_ingress_class_is_marked() {
        let spec = json!({ "controller": "example.com/c", "parameters": { "apiGroup": "example.com", "kind": "P", "name": "n" } });
        let body = json!({ "metadata": { "annotations": { DEFAULT_INGRESS_CLASS: "true" } }, "spec": spec });
        check(
            "networking.k8s.io/v1",
            "IngressClass",
            body,
            json!(["x (default)", "example.com/c", "P.example.com/n", "10m"]),
        );
        check(
            "networking.k8s.io/v1",
            "IngressClass",
            json!({}),
            json!(["x", "", "<none>", "10m"]),
        );
    }

    #[test]
    fn policies_ranges_and_addresses_are_printed() {
        check(
            "networking.k8s.io/v1",
            "NetworkPolicy",
            json!({ "spec": { "podSelector": {} } }),
            json!(["x", "<none>", "10m"]),
        );
        check(
            "networking.k8s.io/v1",
            "ServiceCIDR",
            json!({ "spec": { "cidrs": ["10.0.0.0/16", "fd00::/64"] } }),
            json!(["x", "10.0.0.0/16,fd00::/64", "10m"]),
        );
        let parent = json!({ "group": "", "resource": "services", "namespace": "default", "name": "kubernetes" });
        check(
            "networking.k8s.io/v1",
            "IPAddress",
            json!({ "spec": { "parentRef": parent } }),
            json!(["x", "services/default/kubernetes", "10m"]),
        );
    }
}
