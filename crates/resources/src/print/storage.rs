//! Volumes, claims, classes and the drivers behind them.
//! Guarantees: quantities are printed as stored, which is their shortest form. Mirrors
//! `printPersistentVolume`, `printPersistentVolumeClaim`, `printStorageClass` and others in
//! `pkg/printers/internalversion`.

use bellerophon_apimachinery::table_column::Column;
use bellerophon_codec::object::Object;
use serde_json::Value;

use super::{
    descriptions,
    field::Fields,
    printer::{Printer, age, name},
};

/// Older than the field, and stronger.
const CLASS_ANNOTATION: &str = "volume.beta.kubernetes.io/storage-class";
const DEFAULT_CLASS_ANNOTATIONS: [&str; 2] = [
    "storageclass.kubernetes.io/is-default-class",
    "storageclass.beta.kubernetes.io/is-default-class",
];
const ACCESS_MODES: [(&str, &str); 4] = [
    ("ReadWriteOnce", "RWO"),
    ("ReadOnlyMany", "ROX"),
    ("ReadWriteMany", "RWX"),
    ("ReadWriteOncePod", "RWOP"),
];

pub(super) static PERSISTENT_VOLUME: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("Capacity", descriptions::VOLUME_CAPACITY),
        Column::text("Access Modes", descriptions::VOLUME_ACCESS_MODES),
        Column::text("Reclaim Policy", descriptions::VOLUME_RECLAIM_POLICY),
        Column::text("Status", descriptions::VOLUME_STATUS),
        Column::text("Claim", descriptions::VOLUME_CLAIM),
        Column::text("StorageClass", "StorageClass of the pv"),
        Column::text("VolumeAttributesClass", "VolumeAttributesClass of the pv"),
        Column::text("Reason", descriptions::VOLUME_REASON),
        Column::AGE,
        Column::text("VolumeMode", descriptions::VOLUME_MODE).wide(),
    ],
    cells: |object, now| {
        let claim = object
            .field("spec.claimRef")
            .map(|claim| format!("{}/{}", claim.text("namespace"), claim.text("name")));
        vec![
            name(object),
            object.scalar_or("spec.capacity.storage", "0").into(),
            access_modes(object, "spec.accessModes").into(),
            object.text("spec.persistentVolumeReclaimPolicy").into(),
            phase(object).into(),
            claim.unwrap_or_default().into(),
            class(object).into(),
            object
                .text_or("spec.volumeAttributesClassName", "<unset>")
                .into(),
            object.text("status.reason").into(),
            age(object, now),
            object.text_or("spec.volumeMode", "<unset>").into(),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static PERSISTENT_VOLUME_CLAIM: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("Status", descriptions::CLAIM_STATUS),
        Column::text("Volume", descriptions::CLAIM_VOLUME),
        Column::text("Capacity", descriptions::CLAIM_CAPACITY),
        Column::text("Access Modes", descriptions::CLAIM_ACCESS_MODES),
        Column::text("StorageClass", "StorageClass of the pvc"),
        Column::text("VolumeAttributesClass", "VolumeAttributesClass of the pvc"),
        Column::AGE,
        Column::text("VolumeMode", descriptions::CLAIM_VOLUME_MODE).wide(),
    ],
    cells: |object, now| {
        // Only a claim with a volume shows its capacity and modes.
        let (capacity, modes) = match object.text("spec.volumeName") {
            "" => (String::new(), String::new()),
            _ => (
                object.scalar_or("status.capacity.storage", "0"),
                access_modes(object, "status.accessModes"),
            ),
        };
        vec![
            name(object),
            phase(object).into(),
            object.text("spec.volumeName").into(),
            capacity.into(),
            modes.into(),
            class(object).into(),
            object
                .text_or("spec.volumeAttributesClassName", "<unset>")
                .into(),
            age(object, now),
            object.text_or("spec.volumeMode", "<unset>").into(),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static STORAGE_CLASS: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("Provisioner", "Who makes the volumes."),
        Column::text(
            "ReclaimPolicy",
            "What becomes of a volume once its claim is gone.",
        ),
        Column::text("VolumeBindingMode", "When a claim gets its volume."),
        Column::text("AllowVolumeExpansion", "Whether volumes can grow."),
        Column::AGE,
    ],
    cells: |object, now| {
        let is_default = |annotation: &&str| {
            object
                .meta
                .annotations
                .get(*annotation)
                .is_some_and(|value| value == "true")
        };
        let suffix = if DEFAULT_CLASS_ANNOTATIONS.iter().any(is_default) {
            " (default)"
        } else {
            ""
        };
        vec![
            format!("{}{suffix}", object.meta.name).into(),
            object.text("provisioner").into(),
            object.text_or("reclaimPolicy", "Delete").into(),
            object.text_or("volumeBindingMode", "Immediate").into(),
            object.flag("allowVolumeExpansion").into(),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static VOLUME_ATTRIBUTES_CLASS: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::text("DriverName", "The driver whose volumes it is for."),
        Column::AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            object.text("driverName").into(),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static VOLUME_ATTACHMENT: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::named("Attacher", "The driver that attaches the volume."),
        Column::text("PV", "The volume."),
        Column::text("Node", "The node it is to be attached to."),
        Column::boolean("Attached", "Whether it is."),
        Column::AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            object.text("spec.attacher").into(),
            object.text("spec.source.persistentVolumeName").into(),
            object.text("spec.nodeName").into(),
            object.flag("status.attached").into(),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static CSI_NODE: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::integer("Drivers", "How many drivers the node has."),
        Column::AGE,
    ],
    cells: |object, now| {
        vec![
            name(object),
            object.list("spec.drivers").len().into(),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

pub(super) static CSI_DRIVER: Printer = Printer {
    columns: &[
        Column::NAME,
        Column::boolean(
            "AttachRequired",
            "Whether volumes are attached before they are mounted.",
        ),
        Column::boolean(
            "PodInfoOnMount",
            "Whether the driver receives the pod that mounts.",
        ),
        Column::boolean(
            "StorageCapacity",
            "Whether the driver reports its remaining capacity.",
        ),
        Column::text(
            "TokenRequests",
            "The audiences of the tokens the driver is given.",
        ),
        Column::boolean("RequiresRepublish", "Whether mounts are refreshed."),
        Column::text("Modes", "The lives a volume can have."),
        Column::AGE,
    ],
    cells: |object, now| {
        let audiences = object.field("spec.tokenRequests").and_then(Value::as_array);
        let audiences = audiences.map(|requests| {
            requests
                .iter()
                .map(|request| request.text("audience"))
                .collect::<Vec<_>>()
                .join(",")
        });
        let modes = match object.texts("spec.volumeLifecycleModes").join(",") {
            modes if modes.is_empty() => "<none>".into(),
            modes => modes,
        };
        vec![
            name(object),
            (!object.has("spec.attachRequired") || object.flag("spec.attachRequired")).into(),
            object.flag("spec.podInfoOnMount").into(),
            object.flag("spec.storageCapacity").into(),
            audiences.unwrap_or_else(|| "<unset>".into()).into(),
            object.flag("spec.requiresRepublish").into(),
            modes.into(),
            age(object, now),
        ]
    },
    ..Printer::PLAIN
};

fn phase(object: &Object) -> &str {
    if object.meta.deletion_timestamp.is_some() {
        "Terminating"
    } else {
        object.text("status.phase")
    }
}

fn class(object: &Object) -> &str {
    object
        .meta
        .annotations
        .get(CLASS_ANNOTATION)
        .map_or_else(|| object.text("spec.storageClassName"), String::as_str)
}

/// The modes in short, always in the same order.
fn access_modes(object: &Object, path: &str) -> String {
    let modes = object.texts(path);
    ACCESS_MODES
        .iter()
        .filter(|(mode, _)| modes.contains(mode))
        .map(|(_, short)| *short)
        .collect::<Vec<_>>()
        .join(",")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::print::printer::tests::{NOW, check};

    #[test]
    fn volumes_show_capacity_and_claim() {
        let spec = json!({
            "capacity": { "storage": "5Gi" }, "accessModes": ["ReadOnlyMany", "ReadWriteOnce"], "claimRef": { "namespace": "ns", "name": "data" },
            "persistentVolumeReclaimPolicy": "Retain", "storageClassName": "fast", "volumeMode": "Filesystem",
        });
        let cells = json!([
            "x",
            "5Gi",
            "RWO,ROX",
            "Retain",
            "Pending",
            "ns/data",
            "fast",
            "<unset>",
            "",
            "10m",
            "Filesystem"
        ]);
        check(
            "v1",
            "PersistentVolume",
            json!({ "spec": spec, "status": { "phase": "Pending" } }),
            cells,
        );
        check(
            "v1",
            "PersistentVolume",
            json!({}),
            json!([
                "x", "0", "", "", "", "", "", "<unset>", "", "10m", "<unset>"
            ]),
        );
    }

    #[test]
    fn claims_show_capacity_and_modes_of_their_volume() {
        let status = json!({ "phase": "Bound", "accessModes": ["ReadWriteOnce"], "capacity": { "storage": "5Gi" } });
        let bound = json!({ "spec": { "volumeName": "pv", "storageClassName": "fast", "volumeMode": "Block" }, "status": status });
        check(
            "v1",
            "PersistentVolumeClaim",
            bound,
            json!([
                "x", "Bound", "pv", "5Gi", "RWO", "fast", "<unset>", "10m", "Block"
            ]),
        );
        let meta = json!({ "deletionTimestamp": NOW, "annotations": { CLASS_ANNOTATION: "slow" } });
        let terminating = json!({ "metadata": meta, "spec": { "volumeAttributesClassName": "gold" }, "status": { "phase": "Pending" } });
        check(
            "v1",
            "PersistentVolumeClaim",
            terminating,
            json!([
                "x",
                "Terminating",
                "",
                "",
                "",
                "slow",
                "gold",
                "10m",
                "<unset>"
            ]),
        );
    }

    #[test]
    fn the_default_class_is_marked() {
        let meta = json!({ "annotations": { DEFAULT_CLASS_ANNOTATIONS[1]: "true" } });
        let class = json!({ "metadata": meta, "provisioner": "example.com/p", "reclaimPolicy": "Retain", "allowVolumeExpansion": true });
        check(
            "storage.k8s.io/v1",
            "StorageClass",
            class,
            json!([
                "x (default)",
                "example.com/p",
                "Retain",
                "Immediate",
                true,
                "10m"
            ]),
        );
        check(
            "storage.k8s.io/v1",
            "StorageClass",
            json!({}),
            json!(["x", "", "Delete", "Immediate", false, "10m"]),
        );
        check(
            "storage.k8s.io/v1",
            "VolumeAttributesClass",
            json!({ "driverName": "d" }),
            json!(["x", "d", "10m"]),
        );
    }

    #[test]
    fn drivers_and_attachments_are_printed() {
        check(
            "storage.k8s.io/v1",
            "CSIDriver",
            json!({}),
            json!(["x", true, false, false, "<unset>", false, "<none>", "10m"]),
        );
        let spec = json!({ "attachRequired": false, "storageCapacity": true, "tokenRequests": [{ "audience": "a" }, { "audience": "b" }], "volumeLifecycleModes": ["Persistent", "Ephemeral"] });
        check(
            "storage.k8s.io/v1",
            "CSIDriver",
            json!({ "spec": spec }),
            json!([
                "x",
                false,
                false,
                true,
                "a,b",
                false,
                "Persistent,Ephemeral",
                "10m"
            ]),
        );
        check(
            "storage.k8s.io/v1",
            "CSINode",
            json!({ "spec": { "drivers": [{}] } }),
            json!(["x", 1, "10m"]),
        );
        let attachment = json!({ "spec": { "attacher": "d", "nodeName": "n", "source": { "persistentVolumeName": "pv" } }, "status": { "attached": true } });
        check(
            "storage.k8s.io/v1",
            "VolumeAttachment",
            attachment,
            json!(["x", "d", "pv", "n", true, "10m"]),
        );
        check(
            "storage.k8s.io/v1",
            "CSIStorageCapacity",
            json!({}),
            json!(["x", "2026-01-02T03:04:05Z"]),
        );
    }
}
