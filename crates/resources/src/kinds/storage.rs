//! The kinds of storage.k8s.io: classes, CSI drivers, CSI nodes and volume attachments. Mirrors
//! `ValidateStorageClass`, `ValidateCSIDriver`, `ValidateCSINode` and `ValidateVolumeAttachment` in
//! `pkg/apis/storage/validation`.

use std::collections::BTreeSet;

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt, same},
    names,
    quantity::Quantity,
};
use bellerophon_codec::{object::Object, types::Internal};
use serde_json::{Value, json};

use super::{
    DeleteAnswer, Generation, STATUS_RESETS_METADATA, Strategy, persistent_volume::driver_name,
    validation,
};

const ANSWERED: Strategy = Strategy {
    delete_answer: DeleteAnswer::Object,
    ..Strategy::PLAIN
};

/// The strategy of StorageClasses. Mirrors `pkg/registry/storage/storageclass`.
pub const STORAGE_CLASS: Strategy = Strategy {
    default: |class| {
        class.body.default_to("reclaimPolicy", "Delete");
        class.body.default_to("volumeBindingMode", "Immediate");
    },
    validate: validate_class,
    validate_update: |new, old, out| {
        for field in [
            "parameters",
            "provisioner",
            "reclaimPolicy",
            "volumeBindingMode",
        ] {
            if !same(new.body.field(field), old.body.field(field)) {
                out.push(FieldError::invalid(
                    field,
                    new.body.field(field),
                    validation::IMMUTABLE,
                ));
            }
        }
    },
    ..ANSWERED
};

/// The strategy of VolumeAttributesClasses. Mirrors `pkg/registry/storage/volumeattributesclass`.
pub const VOLUME_ATTRIBUTES_CLASS: Strategy = Strategy {
    validate: |class, out| {
        provisioner("driverName", class.body.text("driverName"), out);
        parameters(class.body.field("parameters"), out);
        if class.body.is_empty_at("parameters") {
            out.push(FieldError::required(
                "parameters",
                "must contain at least one key/value pair",
            ));
        }
    },
    validate_update: |new, old, out| {
        for field in ["driverName", "parameters"] {
            if new.body.field(field) != old.body.field(field) {
                out.push(FieldError::forbidden(
                    field,
                    &format!("updates to {field} are forbidden."),
                ));
            }
        }
    },
    ..ANSWERED
};

/// The strategy of CSIDrivers. Mirrors `pkg/registry/storage/csidriver`.
pub const CSI_DRIVER: Strategy = Strategy {
    default: default_driver,
    prepare_update: |new, old| {
        if !same(new.body.field("spec"), old.body.field("spec")) {
            new.meta.generation = old.meta.generation + 1;
        }
    },
    validate: validate_driver,
    validate_update: |new, old, out| {
        for (field, shown) in [
            ("attachRequired", "attachedRequired"),
            ("volumeLifecycleModes", "volumeLifecycleModes"),
        ] {
            let at = Path::field("spec");
            validation::immutable(
                &at.child(shown),
                new.body.field("spec").field(field),
                old.body.field("spec").field(field),
                out,
            );
        }
    },
    unconditional_update: false,
    ..ANSWERED
};

/// The strategy of CSINodes. Mirrors `pkg/registry/storage/csinode`.
pub const CSI_NODE: Strategy = Strategy {
    validate: validate_node,
    validate_update: same_drivers,
    unconditional_update: false,
    ..ANSWERED
};

/// The strategy of CSIStorageCapacities. Mirrors `pkg/registry/storage/csistoragecapacity`.
pub const CSI_STORAGE_CAPACITY: Strategy = Strategy {
    validate: |capacity, out| {
        validation::label_selector(
            &Path::field("nodeTopology"),
            capacity.body.field("nodeTopology"),
            out,
        );
        let class = capacity.body.text("storageClassName");
        validation::named(
            &Path::field("storageClassName"),
            class,
            names::dns_subdomain(class),
            out,
        );
        if let Some(amount) = capacity
            .body
            .get_set("capacity")
            .and_then(Quantity::of)
            .filter(|amount| amount.sign() < 0)
        {
            out.push(FieldError::invalid(
                "capacity",
                &amount,
                validation::NOT_NEGATIVE,
            ));
        }
    },
    validate_update: |new, old, out| {
        for field in ["nodeTopology", "storageClassName"] {
            if !same(new.body.field(field), old.body.field(field)) {
                out.push(FieldError::invalid(
                    field,
                    new.body.field(field),
                    validation::IMMUTABLE,
                ));
            }
        }
    },
    unconditional_update: false,
    ..Strategy::PLAIN
};

/// The strategy of VolumeAttachments. Mirrors `pkg/registry/storage/volumeattachment`.
pub const VOLUME_ATTACHMENT: Strategy = Strategy {
    reset_fields: STATUS_RESETS_METADATA,
    default: |attachment| attachment.section("status").default_to("attached", false),
    prepare_create: |attachment| {
        attachment
            .body
            .insert("status".into(), json!({"attached": false}));
    },
    validate: validate_attachment,
    validate_update: |new, old, out| {
        let before = old.body.field("spec");
        let spec = new.body.field("spec");
        validation::immutable_struct(
            &Path::field("spec"),
            "storage.VolumeAttachmentSpec",
            spec,
            before,
            out,
        );
    },
    generation: Generation::None,
    unconditional_update: false,
    delete_answer: DeleteAnswer::Object,
    ..Strategy::WITH_STATUS
};

const PARAMETERS_MAX: usize = 512;
const PARAMETERS_MAX_BYTES: usize = 256 * 1024;
const NODE_ID_MAX: usize = 256;

fn validate_class(class: &Object, out: &mut Vec<FieldError>) {
    provisioner("provisioner", class.body.text("provisioner"), out);
    parameters(class.body.field("parameters"), out);
    let policy = class.body.text("reclaimPolicy");
    if !policy.is_empty() {
        validation::one_of(
            &Path::field("reclaimPolicy"),
            policy,
            &["Delete", "Retain"],
            out,
        );
    }
    let modes = &["Immediate", "WaitForFirstConsumer"];
    validation::one_of(
        &Path::field("volumeBindingMode"),
        class.body.text("volumeBindingMode"),
        modes,
        out,
    );
    let all = Path::field("allowedTopologies");
    for (i, term) in class.body.list("allowedTopologies").iter().enumerate() {
        let at = all.index(i);
        let expressions = at.child("matchLabelExpressions");
        for (i, expression) in term.list("matchLabelExpressions").iter().enumerate() {
            topology(&expressions.index(i), expression, out);
        }
    }
}

fn topology(at: &Path, expression: &Value, out: &mut Vec<FieldError>) {
    let all = at.child("values");
    if expression.is_empty_at("values") {
        out.push(FieldError::required(all, ""));
    }
    let mut seen = BTreeSet::new();
    for (i, value) in expression
        .list("values")
        .iter()
        .filter_map(Value::as_str)
        .enumerate()
    {
        if !seen.insert(value) {
            out.push(FieldError::duplicate(all.index(i), value));
        }
    }
    let key = expression.text("key");
    validation::named(&at.child("key"), key, names::qualified_name(key), out);
}

fn provisioner(field: &str, name: &str, out: &mut Vec<FieldError>) {
    if name.is_empty() {
        out.push(FieldError::required(field, ""));
        return;
    }
    let lower = name.to_lowercase();
    validation::named(
        &Path::field(field),
        &lower,
        names::qualified_name(&lower),
        out,
    );
}

fn parameters(parameters: &Value, out: &mut Vec<FieldError>) {
    let entries: Vec<_> = parameters.as_object().into_iter().flatten().collect();
    if entries.len() > PARAMETERS_MAX {
        out.push(FieldError::too_long("parameters", PARAMETERS_MAX));
        return;
    }
    for (key, _) in entries.iter().filter(|(key, _)| key.is_empty()) {
        out.push(FieldError::invalid(
            "parameters",
            *key,
            "field can not be empty.",
        ));
    }
    let size: usize = entries
        .iter()
        .map(|(key, value)| key.len() + value.as_str().map_or(0, str::len))
        .sum();
    if size > PARAMETERS_MAX_BYTES {
        out.push(FieldError::too_long("parameters", PARAMETERS_MAX_BYTES));
    }
}

fn default_driver(driver: &mut Object) {
    let spec = driver.section("spec");
    spec.default_to("attachRequired", true);
    for field in [
        "podInfoOnMount",
        "storageCapacity",
        "requiresRepublish",
        "seLinuxMount",
    ] {
        spec.default_to(field, false);
    }
    spec.default_to("fsGroupPolicy", "ReadWriteOnceWithFSType");
    if spec.is_empty_at("volumeLifecycleModes") {
        spec.insert("volumeLifecycleModes".into(), json!(["Persistent"]));
    }
}

fn validate_driver(driver: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("spec");
    let spec = driver.body.field("spec");
    validation::one_of(
        &at.child("fsGroupPolicy"),
        spec.text("fsGroupPolicy"),
        &["File", "None", "ReadWriteOnceWithFSType"],
        out,
    );
    let all = at.child("tokenRequests");
    let mut audiences = BTreeSet::new();
    for (i, request) in spec.list("tokenRequests").iter().enumerate() {
        let at = all.index(i);
        let audience = request.text("audience");
        if !audiences.insert(audience) {
            out.push(FieldError::duplicate(at.child("audience"), audience));
            continue;
        }
        match request.int("expirationSeconds") {
            Some(n) if n < 600 => {
                out.push(FieldError::invalid(
                    at.child("expirationSeconds"),
                    n,
                    "may not specify a duration less than 10 minutes",
                ));
            }
            Some(n) if n > 1 << 32 => {
                out.push(FieldError::invalid(
                    at.child("expirationSeconds"),
                    n,
                    "may not specify a duration larger than 2^32 seconds",
                ));
            }
            _ => {}
        }
    }
    for mode in spec
        .list("volumeLifecycleModes")
        .iter()
        .filter_map(Value::as_str)
    {
        validation::one_of(
            &at.child("volumeLifecycleModes"),
            mode,
            &["Persistent", "Ephemeral"],
            out,
        );
    }
    if let Some(period) = spec
        .int("nodeAllocatableUpdatePeriodSeconds")
        .filter(|period| *period < 10)
    {
        out.push(FieldError::invalid(
            at.child("nodeAllocatableUpdatePeriodSeconds"),
            period,
            "must be greater than or equal to 10 seconds",
        ));
    }
    if let Some(flag) = spec
        .field("serviceAccountTokenInSecrets")
        .as_bool()
        .filter(|_| spec.is_empty_at("tokenRequests"))
    {
        let why = "serviceAccountTokenInSecrets is set but no tokenRequests are specified";
        out.push(FieldError::invalid(
            at.child("serviceAccountTokenInSecrets"),
            flag,
            why,
        ));
    }
}

fn validate_node(node: &Object, out: &mut Vec<FieldError>) {
    let all = Path::field("spec.drivers");
    let mut names_seen = BTreeSet::new();
    for (i, driver) in node.body.field("spec").list("drivers").iter().enumerate() {
        let at = all.index(i);
        let name = driver.text("name");
        validation::required(&at.child("name"), name, out);
        driver_name(&at.child("name"), name, out);
        let id = driver.text("nodeID");
        validation::required(&at.child("nodeID"), id, out);
        if id.len() > NODE_ID_MAX {
            out.push(FieldError::invalid(
                at.child("nodeID"),
                id,
                &format!("must be {NODE_ID_MAX} characters or less"),
            ));
        }
        if let Some(count) = driver.field("allocatable").int("count") {
            validation::not_negative(&at.child("allocatable").child("count"), count, out);
        }
        if !names_seen.insert(name) {
            out.push(FieldError::duplicate(at.child("name"), name));
        }
        let mut keys = BTreeSet::new();
        for key in driver.list("topologyKeys").iter().filter_map(Value::as_str) {
            validation::required(&at, key, out);
            if !keys.insert(key) {
                out.push(FieldError::duplicate(at, key));
            }
            validation::named(&at, key, names::qualified_name(key), out);
        }
    }
}

/// A driver on a node is immutable, except for its volume limit.
fn same_drivers(new: &Object, old: &Object, out: &mut Vec<FieldError>) {
    let drivers = |node: &Object| node.body.field("spec").list("drivers").to_vec();
    let fixed = |driver: &Value| {
        (
            driver.text("nodeID").to_owned(),
            driver.field("topologyKeys").clone(),
        )
    };
    for before in drivers(old) {
        for now in drivers(new)
            .iter()
            .filter(|now| now.text("name") == before.text("name") && fixed(now) != fixed(&before))
        {
            let mut shown = now.clone();
            shown
                .as_object_mut()
                .map(|driver| driver.remove("allocatable"));
            out.push(FieldError::invalid(
                "spec.drivers",
                Internal::one("storage.CSINodeDriver", &shown),
                validation::IMMUTABLE,
            ));
        }
    }
}

fn validate_attachment(attachment: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("spec");
    let spec = attachment.body.field("spec");
    validation::required(&at.child("attacher"), spec.text("attacher"), out);
    driver_name(&at.child("attacher"), spec.text("attacher"), out);
    let source = spec.field("source");
    let inline = source.get_set("inlineVolumeSpec");
    let name = source.field("persistentVolumeName").as_str();
    let exactly_one = "must specify exactly one of inlineVolumeSpec and persistentVolumeName";
    match (inline, name) {
        (None, None) => out.push(FieldError::required(at.child("source"), exactly_one)),
        (Some(_), Some(_)) => out.push(FieldError::forbidden(at.child("source"), exactly_one)),
        (None, Some("")) => out.push(FieldError::required(
            "spec.source.persistentVolumeName",
            "must specify non empty persistentVolumeName",
        )),
        _ => {}
    }
    let node = spec.text("nodeName");
    validation::named(&at.child("nodeName"), node, names::dns_subdomain(node), out);
    if let Some(name) = name {
        validation::named(
            &Path::field("spec.source.persistentVolumeName"),
            name,
            names::dns_subdomain(name),
            out,
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::test_support::{create, refused, update};

    #[test]
    fn class_is_fixed_but_for_growth() {
        let (class, errors) = create(
            &STORAGE_CLASS,
            json!({"provisioner": "disk.example.com", "parameters": {"type": "ssd"}}),
        );
        assert_eq!(errors.len(), 0);
        assert_eq!(class.body.text("reclaimPolicy"), "Delete");
        assert_eq!(class.body.text("volumeBindingMode"), "Immediate");
        let (_, errors) = update(
            &STORAGE_CLASS,
            &class,
            json!({"provisioner": "other.example.com", "parameters": {"type": "hdd"}, "reclaimPolicy": "Retain", "allowVolumeExpansion": true}),
        );
        assert_eq!(
            errors,
            [
                r#"parameters: Invalid value: {"type":"hdd"}: field is immutable"#,
                r#"provisioner: Invalid value: "other.example.com": field is immutable"#,
                r#"reclaimPolicy: Invalid value: "Retain": field is immutable"#
            ]
        );
        refused(&STORAGE_CLASS, json!({}), &["provisioner: Required value"]);
    }

    #[test]
    fn driver_gets_its_defaults() {
        let (driver, errors) = create(&CSI_DRIVER, json!({"spec": {}}));
        assert_eq!(errors, [""; 0]);
        assert_eq!(
            driver.body["spec"],
            json!({"attachRequired": true, "podInfoOnMount": false, "volumeLifecycleModes": ["Persistent"], "storageCapacity": false, "fsGroupPolicy": "ReadWriteOnceWithFSType", "requiresRepublish": false, "seLinuxMount": false})
        );
    }

    #[test]
    fn volume_of_an_attachment_is_immutable() {
        let body = json!({"spec": {"attacher": "disk.example.com", "nodeName": "n1", "source": {"persistentVolumeName": "pv1"}}});
        let (attachment, errors) = create(&VOLUME_ATTACHMENT, body);
        assert_eq!(errors.len(), 0);
        assert_eq!(&attachment.body["status"], &json!({"attached": false}));
        let (_, errors) = update(
            &VOLUME_ATTACHMENT,
            &attachment,
            json!({"spec": {"attacher": "disk.example.com", "nodeName": "n2", "source": {"persistentVolumeName": "pv1"}}}),
        );
        assert_eq!(errors.len(), 1);
        refused(
            &VOLUME_ATTACHMENT,
            json!({"spec": {"attacher": "a.b", "nodeName": "n", "source": {}}}),
            &[
                "spec.source: Required value: must specify exactly one of inlineVolumeSpec and persistentVolumeName",
            ],
        );
    }

    #[test]
    fn node_drivers_are_checked() {
        refused(
            &CSI_NODE,
            json!({"spec": {"drivers": [{"name": "a.b", "nodeID": "1"}, {"name": "a.b", "nodeID": "", "topologyKeys": ["z", "z"]}]}}),
            &[
                "spec.drivers[1].nodeID: Required value",
                "spec.drivers[1].name: Duplicate value: \"a.b\"",
                "spec.drivers[1]: Duplicate value: \"z\"",
            ],
        );
    }
}
