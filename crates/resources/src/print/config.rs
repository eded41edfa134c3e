//! Secrets, config maps, quotas, leases. Mirrors `printConfigMap`,
//! `printSecret`, `printResourceQuota`, `printLease` in `pkg/printers/internalversion`.

use bellerophon_apimachinery::table_column::Column;
use bellerophon_codec::object::Object;

use super::{
    descriptions,
    field::Fields,
    printer::{Printer, age, name},
};

pub(super) static SECRET: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("Type", descriptions::SECRET_TYPE),
        Column::text("Data", descriptions::SECRET_DATA),
        Column::AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            object.text("type").into(),
            entries(object, "data").into(),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static CONFIG_MAP: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("Data", descriptions::CONFIG_MAP_DATA),
        Column::AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            (entries(object, "data") + entries(object, "binaryData")).into(),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static RESOURCE_QUOTA: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text(
            "Request",
            "What is used of what may be requested or counted.",
        ),
        Column::text("Limit", "What is used of what limits may add up to."),
        Column::AGE,
    ],
    cells: |object, now| {
        let [requests, limits] = quota_use(object);
        vec![
            name(object),
            requests.into(),
            limits.into(),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static LEASE: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("Holder", descriptions::LEASE_HOLDER),
        Column::AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            object.text("spec.holderIdentity").into(),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

fn entries(object: &Object, field: &str) -> usize {
    object.map(field).map_or(0, serde_json::Map::len)
}

/// `used/hard` of every resource by name: those that are not limits, and those that are.
fn quota_use(quota: &Object) -> [String; 2] {
    let used = quota.map("status.used");
    let amount = |value: Option<&serde_json::Value>| {
        value.map_or_else(
            || "0".into(),
            |value| {
                value
                    .as_str()
                    .map_or_else(|| value.to_string(), str::to_owned)
            },
        )
    };
    let mut names: Vec<_> = quota.map("status.hard").into_iter().flatten().collect();
    names.sort_unstable_by_key(|(name, _)| *name);
    let words = |limits: bool| {
        let wanted = names
            .iter()
            .filter(|(name, _)| name.starts_with("limits.") == limits);
        let words = wanted.map(|(name, hard)| {
            format!(
                "{name}: {}/{}",
                amount(used.and_then(|used| used.get(*name))),
                amount(Some(*hard))
            )
        });
        words.collect::<Vec<_>>().join(", ")
    };
    [words(false), words(true)]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::print::printer::tests::check;

    #[test]
    fn entries_are_counted() {
        check(
            "v1",
            "Secret",
            json!({ "type": "Opaque", "data": { "a": "", "b": "" } }),
            json!(["x", "Opaque", 2, "10m"]),
        );
        check(
            "v1",
            "ConfigMap",
            json!({ "data": { "a": "" }, "binaryData": { "b": "" } }),
            json!(["x", 2, "10m"]),
        );
        check("v1", "ConfigMap", json!({}), json!(["x", 0, "10m"]));
    }

    #[test]
    fn quotas_are_split_into_requests_and_limits() {
        let hard =
            json!({ "pods": "10", "limits.cpu": "4", "requests.cpu": "2", "limits.memory": "8Gi" });
        let used = json!({ "pods": "3", "limits.cpu": "500m", "requests.cpu": "250m" });
        let cells = json!([
            "x",
            "pods: 3/10, requests.cpu: 250m/2",
            "limits.cpu: 500m/4, limits.memory: 0/8Gi",
            "10m"
        ]);
        check(
            "v1",
            "ResourceQuota",
            json!({ "status": { "hard": hard, "used": used } }),
            cells,
        );
    }

    #[test]
    fn leases_show_their_holder() {
        check(
            "coordination.k8s.io/v1",
            "Lease",
            json!({ "spec": { "holderIdentity": "ctl-0" } }),
            json!(["x", "ctl-0", "10m"]),
        );
        check(
            "coordination.k8s.io/v1",
            "Lease",
            json!({}),
            json!(["x", "", "10m"]),
        );
    }

    #[test]
    fn accounts_have_name_and_age() {
        check("v1", "ServiceAccount", json!({}), json!(["x", "10m"]));
    }
}
