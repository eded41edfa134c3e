//! Devices and the claims on them.
//! Mirrors `printResourceClaim`, `printResourceSlice` and others in `pkg/printers/internalversion`.

use bellerophon_apimachinery::table_column::Column;
use bellerophon_codec::object::Object;

use super::{
    field::Fields,
    printer::{Printer, age, name},
};

pub(super) static RESOURCE_CLAIM: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text(
            "State",
            "How far the claim is: pending, allocated, reserved, deleted.",
        ),
        Column::AGE,
    ],
    cells: |object, now| vec![name(object), claim_state(object).into(), age(object, now)],
    ..Printer::PLAIN
};

pub(super) static RESOURCE_SLICE: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("Node", "The node that has the devices."),
        Column::text("Driver", "The driver that runs them."),
        Column::text("Pool", "The pool the slice is a part of."),
        Column::AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            object.text("spec.nodeName").into(),
            object.text("spec.driver").into(),
            object.text("spec.pool.name").into(),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

fn claim_state(claim: &Object) -> String {
    let deleted = claim.meta.deletion_timestamp.is_some();
    let allocated = claim.has("status.allocation");
    let states = [
        ("deleted", deleted),
        ("pending", !allocated && !deleted),
        ("allocated", allocated),
        (
            "reserved",
            allocated && !claim.list("status.reservedFor").is_empty(),
        ),
    ];
    states
        .iter()
        .filter(|(_, holds)| *holds)
        .map(|(state, _)| *state)
        .collect::<Vec<_>>()
        .join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use crate::print::printer::tests::{NOW, check};

    #[test]
    fn claims_show_their_state() {
        for (meta, status, state) in [
            (json!({}), json!({}), "pending"),
            (json!({}), json!({ "allocation": {} }), "allocated"),
            (
                json!({}),
                json!({ "allocation": {}, "reservedFor": [{}] }),
                "allocated,reserved",
            ),
            (
                json!({ "deletionTimestamp": NOW }),
                json!({ "allocation": {} }),
                "deleted,allocated",
            ),
            (json!({ "deletionTimestamp": NOW }), json!({}), "deleted"),
        ] {
            check(
                "resource.k8s.io/v1",
                "ResourceClaim",
                json!({ "metadata": meta, "status": status }),
                json!(["x", state, "10m"]),
            );
        }
    }

    #[test]
    fn slices_show_node_driver_and_pool() {
        let spec = json!({ "nodeName": "n", "driver": "d", "pool": { "name": "p" } });
        check(
            "resource.k8s.io/v1",
            "ResourceSlice",
            json!({ "spec": spec }),
            json!(["x", "n", "d", "p", "10m"]),
        );
        for kind in ["DeviceClass", "ResourceClaimTemplate"] {
            check("resource.k8s.io/v1", kind, json!({}), json!(["x", "10m"]));
        }
    }
}
