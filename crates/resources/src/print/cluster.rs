//! Nodes, namespaces, classes, flow control, aggregated APIs. Mirrors
//! `printNode`, `printNamespace`, `printFlowSchema` and others in `pkg/printers/internalversion`.

use std::{cmp::Ordering, collections::BTreeSet};

use bellerophon_apimachinery::{table_column::Column, time::Time};
use bellerophon_codec::object::Object;
use serde_json::Value;

use super::{
    descriptions,
    field::Fields,
    printer::{Printer, age, name},
};

const ROLE_LABEL_PREFIX: &str = "node-role.kubernetes.io/";
const ROLE_LABEL: &str = "kubernetes.io/role";

pub(super) static NODE: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("Status", "The status of the node"),
        Column::text("Roles", "The roles of the node"),
        Column::AGE,
        Column::text("Version", descriptions::NODE_VERSION),
        Column::text("Internal-IP", descriptions::NODE_ADDRESSES).wide(),
        Column::text("External-IP", descriptions::NODE_ADDRESSES).wide(),
        Column::text("OS-Image", descriptions::NODE_OS_IMAGE).wide(),
        Column::text("Kernel-Version", descriptions::NODE_KERNEL_VERSION).wide(),
        Column::text("Container-Runtime", descriptions::NODE_CONTAINER_RUNTIME).wide(),
    ],
    cells: node_cells,
    ..Printer::PLAIN
};

pub(super) static NAMESPACE: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("Status", "The status of the namespace"),
        Column::AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            object.text("status.phase").into(),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static COMPONENT_STATUS: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("Status", "Whether the component is healthy."),
        Column::text("Message", "The message of the health check."),
        Column::text("Error", "The error of the health check."),
    ],
    cells: |object, _| {
        let health = object.typed("conditions", "Healthy");
        let status = match health.map(|health| health.text("status")) {
            None => "Unknown",
            Some("True") => "Healthy",
            Some(_) => "Unhealthy",
        };
        let condition = |field| Value::from(health.map_or("", |health| health.text(field)));
        vec![
            name(object),
            status.into(),
            condition("message"),
            condition("error"),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static PRIORITY_CLASS: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::integer("Value", "The priority itself; higher goes first."),
        Column::boolean(
            "Global-Default",
            "Whether pods that name no class get this one.",
        ),
        Column::AGE,
        Column::text(
            "PreemptionPolicy",
            "Whether its pods may push others off a node.",
        ),
    ],
    cells: |object, now| {
        vec![
            name(object),
            object.int("value").into(),
            object.flag("globalDefault").into(),
            age(object, now),
            object.text("preemptionPolicy").into(),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static RUNTIME_CLASS: Printer = Printer {
    // The description of the handler is empty in Kubernetes.
    columns: &[Column::NAME, Column::text("Handler", ""), Column::AGE],
    cells: |object, now| {
        vec![
            name(object),
            object.text("handler").into(),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static FLOW_SCHEMA: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("PriorityLevel", "Where matching requests queue."),
        Column::text(
            "MatchingPrecedence",
            "Which schema is tried first: the lowest.",
        ),
        Column::text(
            "DistinguisherMethod",
            "The flow distinguisher of the schema.",
        ),
        Column::AGE,
        Column::text("MissingPL", "Whether the priority level does not exist."),
    ],
    cells: |object, now| {
        let dangling = object.typed("status.conditions", "Dangling");
        vec![
            name(object),
            object.text("spec.priorityLevelConfiguration.name").into(),
            object.int("spec.matchingPrecedence").into(),
            object
                .text_or("spec.distinguisherMethod.type", "<none>")
                .into(),
            age(object, now),
            dangling
                .map_or("?", |condition| condition.text("status"))
                .into(),
        ]
    },
    order: Some(by_precedence),
    ..Printer::PLAIN
};

pub(super) static PRIORITY_LEVEL: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("Type", "Whether requests at this level are limited."),
        Column::text(
            "NominalConcurrencyShares",
            "Its share of the requests that are served concurrently.",
        ),
        Column::text("Queues", "How many queues it has."),
        Column::text("HandSize", "How many queues a flow is dealt."),
        Column::text("QueueLengthLimit", "How many requests fit a queue."),
        Column::AGE,
    ],
    cells: |object, now| {
        let limit = |section: &str, field: &str| match object.field(section) {
            Some(section) => section.int(field).into(),
            None => Value::from("<none>"),
        };
        let queuing = "spec.limited.limitResponse.queuing";
        vec![
            name(object),
            object.text("spec.type").into(),
            limit("spec.limited", "nominalConcurrencyShares"),
            limit(queuing, "queues"),
            limit(queuing, "handSize"),
            limit(queuing, "queueLengthLimit"),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static API_SERVICE: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("Service", "Who serves the API."),
        Column::text("Available", "Whether it answers."),
        Column::AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            api_server(object).into(),
            availability(object).into(),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

fn node_cells(node: &Object, now: Time) -> Vec<Value> {
    let architecture = match node.text("status.nodeInfo.architecture") {
        "" => String::new(),
        architecture => format!(" ({architecture})"),
    };
    vec![
        name(node),
        node_status(node).into(),
        node_roles(node).into(),
        age(node, now),
        node.text("status.nodeInfo.kubeletVersion").into(),
        node_address(node, "InternalIP").into(),
        node_address(node, "ExternalIP").into(),
        node.filled_or("status.nodeInfo.osImage", "<unknown>")
            .into(),
        format!(
            "{}{architecture}",
            node.filled_or("status.nodeInfo.kernelVersion", "<unknown>")
        )
        .into(),
        node.filled_or("status.nodeInfo.containerRuntimeVersion", "<unknown>")
            .into(),
    ]
}

fn node_status(node: &Object) -> String {
    let readiness = match node
        .typed("status.conditions", "Ready")
        .map(|ready| ready.text("status"))
    {
        None => "Unknown",
        Some("True") => "Ready",
        Some(_) => "NotReady",
    };
    if node.flag("spec.unschedulable") {
        format!("{readiness},SchedulingDisabled")
    } else {
        readiness.into()
    }
}

/// Roles are read from labels, in either of two forms.
fn node_roles(node: &Object) -> String {
    let role = |(key, value): (&String, &String)| match key.strip_prefix(ROLE_LABEL_PREFIX) {
        Some(role) => Some(role.to_owned()),
        None if key == ROLE_LABEL => Some(value.clone()),
        None => None,
    };
    let roles: BTreeSet<String> = node
        .meta
        .labels
        .iter()
        .filter_map(role)
        .filter(|role| !role.is_empty())
        .collect();
    if roles.is_empty() {
        "<none>".into()
    } else {
        roles.into_iter().collect::<Vec<_>>().join(",")
    }
}

fn node_address<'a>(node: &'a Object, type_: &str) -> &'a str {
    node.typed("status.addresses", type_)
        .map_or("<none>", |address| address.text("address"))
}

/// Flow schemas are printed in the order in which they are tried.
fn by_precedence(a: &Object, b: &Object) -> Ordering {
    let key = |schema: &Object| {
        (
            schema.int("spec.matchingPrecedence"),
            schema.meta.name.clone(),
        )
    };
    key(a).cmp(&key(b))
}

fn api_server(object: &Object) -> String {
    match object.field("spec.service") {
        Some(service) => format!("{}/{}", service.text("namespace"), service.text("name")),
        None => "Local".into(),
    }
}

fn availability(object: &Object) -> String {
    let Some(available) = object.typed("status.conditions", "Available") else {
        return "Unknown".into();
    };
    match (available.text("status"), available.text("reason")) {
        (status @ "True", _) | (status, "") => status.into(),
        (status, reason) => format!("{status} ({reason})"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::print::{
        ListMeta, TableOptions,
        printer::tests::{NOW, check, object},
        table,
    };

    #[test]
    fn nodes_show_status_roles_and_system() {
        let labels = json!({ "kubernetes.io/role": "edge", "node-role.kubernetes.io/etcd": "", "node-role.kubernetes.io/control-plane": "" });
        let info = json!({ "kubeletVersion": "v1.36.4", "osImage": "Debian", "kernelVersion": "6.1.0", "architecture": "amd64", "containerRuntimeVersion": "containerd://2.0.0" });
        let addresses = json!([{ "type": "InternalIP", "address": "192.0.2.5" }, { "type": "Hostname", "address": "n" }]);
        let status = json!({ "conditions": [{ "type": "Ready", "status": "True" }], "addresses": addresses, "nodeInfo": info });
        let cells = json!([
            "x",
            "Ready",
            "control-plane,edge,etcd",
            "10m",
            "v1.36.4",
            "192.0.2.5",
            "<none>",
            "Debian",
            "6.1.0 (amd64)",
            "containerd://2.0.0"
        ]);
        check(
            "v1",
            "Node",
            json!({ "metadata": { "labels": labels }, "status": status }),
            cells,
        );
        let bare = json!({ "spec": { "unschedulable": true } });
        let cells = json!([
            "x",
            "Unknown,SchedulingDisabled",
            "<none>",
            "10m",
            "",
            "<none>",
            "<none>",
            "<unknown>",
            "<unknown>",
            "<unknown>"
        ]);
        check("v1", "Node", bare, cells);
    }

    #[test]
    fn small_kinds_are_printed() {
        check(
            "v1",
            "Namespace",
            json!({ "status": { "phase": "Active" } }),
            json!(["x", "Active", "10m"]),
        );
        check(
            "v1",
            "ComponentStatus",
            json!({}),
            json!(["x", "Unknown", "", ""]),
        );
        check(
            "v1",
            "ComponentStatus",
            json!({ "conditions": [{ "type": "Healthy", "status": "True", "message": "ok" }] }),
            json!(["x", "Healthy", "ok", ""]),
        );
        let class = json!({ "value": 1000, "preemptionPolicy": "PreemptLowerPriority" });
        check(
            "scheduling.k8s.io/v1",
            "PriorityClass",
            class,
            json!(["x", 1000, false, "10m", "PreemptLowerPriority"]),
        );
        check(
            "node.k8s.io/v1",
            "RuntimeClass",
            json!({ "handler": "runc" }),
            json!(["x", "runc", "10m"]),
        );
    }

    #[test]
    fn api_services_show_service_and_availability() {
        for (spec, conditions, service, available) in [
            (
                json!({}),
                json!([{ "type": "Available", "status": "True", "reason": "Local" }]),
                "Local",
                "True",
            ),
            (
                json!({ "service": { "namespace": "ns", "name": "s" } }),
                json!([{ "type": "Available", "status": "False", "reason": "Missing" }]),
                "ns/s",
                "False (Missing)",
            ),
            (json!({}), json!([]), "Local", "Unknown"),
        ] {
            let body = json!({ "spec": spec, "status": { "conditions": conditions } });
            check(
                "apiregistration.k8s.io/v1",
                "APIService",
                body,
                json!(["x", service, available, "10m"]),
            );
        }
    }

    #[test]
    fn priority_levels_show_numbers_where_they_have_them() {
        let queuing = json!({ "queues": 64, "handSize": 6, "queueLengthLimit": 50 });
        let limited = json!({ "nominalConcurrencyShares": 30, "limitResponse": { "type": "Queue", "queuing": queuing } });
        let group = "flowcontrol.apiserver.k8s.io/v1";
        check(
            group,
            "PriorityLevelConfiguration",
            json!({ "spec": { "type": "Limited", "limited": limited } }),
            json!(["x", "Limited", 30, 64, 6, 50, "10m"]),
        );
        let cells = json!(["x", "Exempt", "<none>", "<none>", "<none>", "<none>", "10m"]);
        check(
            group,
            "PriorityLevelConfiguration",
            json!({ "spec": { "type": "Exempt" } }),
            cells,
        );
    }

    #[test]
    fn flow_schemas_are_in_matching_order() {
        let schema = |name: &str, precedence: i64| {
            let level = json!({ "name": "exempt" });
            object(
                json!({ "metadata": { "name": name }, "spec": { "matchingPrecedence": precedence, "priorityLevelConfiguration": level } }),
            )
        };
        let schemas = [schema("a", 10_000), schema("c", 1), schema("b", 1)];
        let table = table(
            &FLOW_SCHEMA,
            &schemas,
            Time::parse(NOW).unwrap(),
            &ListMeta::default(),
            TableOptions::default(),
        );
        let names: Vec<&Value> = table["rows"]
            .as_array()
            .unwrap()
            .iter()
            .map(|row| &row["cells"][0])
            .collect();
        assert_eq!(names, ["b", "c", "a"]);
        assert_eq!(
            table["rows"][0]["cells"],
            json!(["b", "exempt", 1, "<none>", "<unknown>", "?"])
        );
    }
}
