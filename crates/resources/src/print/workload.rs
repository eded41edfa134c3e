//! Workloads, disruption budgets and revisions. Mirrors
//! `printDeployment`, `printReplicaSet`, `printStatefulSet` and `printDaemonSet` in
//! `pkg/printers/internalversion`.

use bellerophon_apimachinery::{error::GroupKind, table_column::Column, time::Time};
use bellerophon_codec::object::Object;
use serde_json::Value;

use super::{
    descriptions,
    field::Fields,
    printer::{Printer, age, name},
    selector::{labels, selector_or_none, selector_text},
};

pub(super) const CONTAINERS: Column = Column::text("Containers", descriptions::CONTAINERS);
pub(super) const IMAGES: Column = Column::text("Images", descriptions::IMAGES);

pub(super) static POD_TEMPLATE: Printer = Printer {
    columns: &[
        Column::NAME,
        CONTAINERS,
        IMAGES,
        Column::text("Pod Labels", "The labels for the pod template."),
    ],
    cells: |object, _| {
        let [names, images] = containers(object, "template");
        vec![
            name(object),
            names,
            images,
            labels(object.map("template.metadata.labels")).into(),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static REPLICATION_CONTROLLER: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::integer("Desired", "How many pods are wanted."),
        Column::integer("Current", "How many pods there are."),
        Column::integer("Ready", "How many of the pods are ready."),
        Column::AGE,
        CONTAINERS.wide(),
        IMAGES.wide(),
        Column::text("Selector", "The labels of the pods that are counted.").wide(),
    ],
    cells: |object, now| replica_cells(object, now, labels(object.map("spec.selector"))),
    ..Printer::PLAIN
};

pub(super) static REPLICA_SET: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::integer("Desired", descriptions::REPLICA_SET_DESIRED),
        Column::integer("Current", descriptions::REPLICA_SET_CURRENT),
        Column::integer("Ready", descriptions::REPLICA_SET_READY),
        Column::AGE,
        CONTAINERS.wide(),
        IMAGES.wide(),
        Column::text("Selector", descriptions::REPLICA_SET_SELECTOR).wide(),
    ],
    cells: |object, now| {
        replica_cells(object, now, selector_or_none(object.field("spec.selector")))
    },
    ..Printer::PLAIN
};

pub(super) static DEPLOYMENT: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("Ready", "Number of the pod with ready state"),
        Column::text("Up-to-date", descriptions::DEPLOYMENT_UPDATED),
        Column::text("Available", descriptions::DEPLOYMENT_AVAILABLE),
        Column::AGE,
        CONTAINERS.wide(),
        IMAGES.wide(),
        Column::text("Selector", descriptions::DEPLOYMENT_SELECTOR).wide(),
    ],
    cells: |object, now| {
        let [names, images] = containers(object, "spec.template");
        vec![
            name(object),
            ready_of_wanted(object),
            object.int("status.updatedReplicas").into(),
            object.int("status.availableReplicas").into(),
            age(object, now),
            names,
            images,
            selector_text(object.field("spec.selector")).into(),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static STATEFUL_SET: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("Ready", "Number of the pod with ready state"),
        Column::AGE,
        CONTAINERS.wide(),
        IMAGES.wide(),
    ],
    cells: |object, now| {
        let [names, images] = containers(object, "spec.template");
        vec![
            name(object),
            ready_of_wanted(object),
            age(object, now),
            names,
            images,
        ]
    },
    ..Printer::PLAIN
};

pub(super) static DAEMON_SET: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::integer("Desired", descriptions::DAEMON_SET_DESIRED),
        Column::integer("Current", descriptions::DAEMON_SET_CURRENT),
        Column::integer("Ready", descriptions::DAEMON_SET_READY),
        Column::integer("Up-to-date", descriptions::DAEMON_SET_UPDATED),
        Column::integer("Available", descriptions::DAEMON_SET_AVAILABLE),
        Column::text("Node Selector", descriptions::DAEMON_SET_NODE_SELECTOR),
        Column::AGE,
        CONTAINERS.wide(),
        IMAGES.wide(),
        Column::text("Selector", descriptions::DAEMON_SET_SELECTOR).wide(),
    ],
    cells: |object, now| {
        let [names, images] = containers(object, "spec.template");
        vec![
            name(object),
            object.int("status.desiredNumberScheduled").into(),
            object.int("status.currentNumberScheduled").into(),
            object.int("status.numberReady").into(),
            object.int("status.updatedNumberScheduled").into(),
            object.int("status.numberAvailable").into(),
            labels(object.map("spec.template.spec.nodeSelector")).into(),
            age(object, now),
            names,
            images,
            selector_or_none(object.field("spec.selector")).into(),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static POD_DISRUPTION_BUDGET: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text(
            "Min Available",
            "The minimum number of pods that must be available.",
        ),
        Column::text(
            "Max Unavailable",
            "The maximum number of pods that may be unavailable.",
        ),
        Column::integer(
            "Allowed Disruptions",
            "Calculated number of pods that may be disrupted at this time.",
        ),
        Column::AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            object.scalar_or("spec.minAvailable", "N/A").into(),
            object.scalar_or("spec.maxUnavailable", "N/A").into(),
            object.int("status.disruptionsAllowed").into(),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static CONTROLLER_REVISION: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("Controller", "The object whose revision it is."),
        Column::text("Revision", "Its place in the order of revisions."),
        Column::AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            controller(object).into(),
            object.int("revision").into(),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

/// Names and images of the containers of a template, each with commas between.
pub(super) fn containers(object: &Object, template: &str) -> [Value; 2] {
    let containers = object.list(&format!("{template}.spec.containers"));
    ["name", "image"].map(|field| {
        containers
            .iter()
            .map(|container| container.text(field))
            .collect::<Vec<_>>()
            .join(",")
            .into()
    })
}

fn replica_cells(object: &Object, now: Time, selector: String) -> Vec<Value> {
    let [names, images] = containers(object, "spec.template");
    vec![
        name(object),
        object.int("spec.replicas").into(),
        object.int("status.replicas").into(),
        object.int("status.readyReplicas").into(),
        age(object, now),
        names,
        images,
        selector.into(),
    ]
}

fn ready_of_wanted(object: &Object) -> Value {
    format!(
        "{}/{}",
        object.int("status.readyReplicas"),
        object.int("spec.replicas")
    )
    .into()
}

/// `statefulset.apps/db`, or `<none>`.
fn controller(object: &Object) -> String {
    let Some(owner) = object
        .meta
        .owner_references
        .iter()
        .find(|owner| owner.controller == Some(true))
    else {
        return "<none>".into();
    };
    let group = owner
        .api_version
        .split_once('/')
        .map_or("", |(group, _)| group);
    format!(
        "{}/{}",
        GroupKind::new(group, owner.kind.as_str())
            .to_string()
            .to_lowercase(),
        owner.name
    )
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;
    use crate::print::printer::tests::check;

    pub(in crate::print) fn template() -> Value {
        let containers =
            json!([{ "name": "app", "image": "app:2" }, { "name": "log", "image": "log:2" }]);
        json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "containers": containers, "nodeSelector": { "zone": "a", "disk": "ssd" } } })
    }

    #[test]
    fn replicas_are_counted() {
        let selector = json!({ "matchLabels": { "app": "web" }, "matchExpressions": [{ "key": "tier", "operator": "Exists" }] });
        let spec = json!({ "replicas": 3, "selector": selector, "template": template() });
        let status = json!({ "replicas": 3, "readyReplicas": 2, "updatedReplicas": 1, "availableReplicas": 2 });
        let body = json!({ "spec": spec, "status": status });
        check(
            "apps/v1",
            "Deployment",
            body.clone(),
            json!([
                "x",
                "2/3",
                1,
                2,
                "10m",
                "app,log",
                "app:2,log:2",
                "app=web,tier"
            ]),
        );
        check(
            "apps/v1",
            "ReplicaSet",
            body.clone(),
            json!([
                "x",
                3,
                3,
                2,
                "10m",
                "app,log",
                "app:2,log:2",
                "app=web,tier"
            ]),
        );
        check(
            "apps/v1",
            "StatefulSet",
            body,
            json!(["x", "2/3", "10m", "app,log", "app:2,log:2"]),
        );
        let old = json!({ "spec": { "replicas": 1, "selector": { "app": "web" }, "template": template() } });
        check(
            "v1",
            "ReplicationController",
            old,
            json!(["x", 1, 0, 0, "10m", "app,log", "app:2,log:2", "app=web"]),
        );
        check(
            "v1",
            "ReplicationController",
            json!({}),
            json!(["x", 0, 0, 0, "10m", "", "", "<none>"]),
        );
        check(
            "v1",
            "PodTemplate",
            json!({ "template": template() }),
            json!(["x", "app,log", "app:2,log:2", "app=web"]),
        );
    }

    #[test]
    fn daemon_sets_count_nodes() {
        let status = json!({ "desiredNumberScheduled": 4, "currentNumberScheduled": 3, "numberReady": 2, "updatedNumberScheduled": 1, "numberAvailable": 2 });
        let body = json!({ "spec": { "selector": { "matchLabels": { "app": "web" } }, "template": template() }, "status": status });
        check(
            "apps/v1",
            "DaemonSet",
            body,
            json!([
                "x",
                4,
                3,
                2,
                1,
                2,
                "disk=ssd,zone=a",
                "10m",
                "app,log",
                "app:2,log:2",
                "app=web"
            ]),
        );
    }

    #[test]
    fn budgets_show_numbers_and_percentages() {
        check(
            "policy/v1",
            "PodDisruptionBudget",
            json!({ "spec": { "minAvailable": "50%" } }),
            json!(["x", "50%", "N/A", 0, "10m"]),
        );
        let body =
            json!({ "spec": { "maxUnavailable": 1 }, "status": { "disruptionsAllowed": 2 } });
        check(
            "policy/v1",
            "PodDisruptionBudget",
            body,
            json!(["x", "N/A", "1", 2, "10m"]),
        );
    }

    #[test]
    fn revisions_name_their_controller() {
        let owners = json!([{ "apiVersion": "v1", "kind": "Other", "name": "o" }, { "apiVersion": "apps/v1", "kind": "StatefulSet", "name": "db", "controller": true }]);
        check(
            "apps/v1",
            "ControllerRevision",
            json!({ "metadata": { "ownerReferences": owners }, "revision": 2 }),
            json!(["x", "statefulset.apps/db", 2, "10m"]),
        );
        check(
            "apps/v1",
            "ControllerRevision",
            json!({ "revision": 1 }),
            json!(["x", "<none>", 1, "10m"]),
        );
    }
}
