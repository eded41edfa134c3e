//! Volumes of a pod: their names and the one source of each.
//! In: the volumes of a spec. Out: their errors, and the valid ones by name.
//! Mirrors `ValidateVolumes` and `validateVolumeSource` in `pkg/apis/core/validation`.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::JsonExt,
    names,
    quantity::Quantity,
};
use regex::Regex;
use serde_json::Value;

use super::{
    super::validation,
    claim,
    mount::{validate_descending, validate_no_backsteps, validate_not_reserved},
    projection,
    spec::{Holder, validate_choice},
};

type Check = fn(&Value, &Path<'_>, &mut Vec<FieldError>);

/// Every source in the order in which Kubernetes looks for it, with the fields it cannot do without
/// and its other checks.
const SOURCES: [(&str, &[&str], Check); 30] = [
    ("emptyDir", &[], validate_empty_dir),
    ("hostPath", &[], validate_host_path),
    ("gitRepo", &["repository"], |s, at, out| {
        validate_descending(s.text("directory"), &at.child("directory"), out)
    }),
    ("gcePersistentDisk", &["pdName"], validate_partition),
    ("awsElasticBlockStore", &["volumeID"], validate_partition),
    ("secret", &["secretName"], validate_items),
    ("nfs", &["server", "path"], validate_nfs),
    ("iscsi", &["targetPortal"], validate_iscsi),
    ("glusterfs", &["endpoints", "path"], nothing),
    ("persistentVolumeClaim", &["claimName"], nothing),
    ("rbd", &["monitors", "image"], nothing),
    ("cinder", &["volumeID"], validate_secret_ref),
    ("cephfs", &["monitors"], nothing),
    ("quobyte", &[], validate_quobyte),
    ("downwardAPI", &[], validate_downward),
    ("fc", &[], validate_fibre_channel),
    ("flexVolume", &["driver"], validate_flex),
    ("configMap", &["name"], validate_items),
    ("azureFile", &["secretName", "shareName"], nothing),
    ("flocker", &[], validate_flocker),
    ("vsphereVolume", &["volumePath"], nothing),
    ("photonPersistentDisk", &["pdID"], nothing),
    ("portworxVolume", &["volumeID"], nothing),
    ("azureDisk", &["diskName", "diskURI"], validate_azure_disk),
    ("storageos", &[], validate_storage_os),
    ("scaleIO", &["gateway", "system", "volumeName"], nothing),
    ("projected", &[], validate_projected),
    ("csi", &[], validate_csi),
    ("ephemeral", &["volumeClaimTemplate"], validate_ephemeral),
    ("image", &[], |s, at, out| {
        validate_choice(
            &at.child("pullPolicy"),
            s.text("pullPolicy"),
            &["Always", "IfNotPresent", "Never"],
            out,
        )
    }),
];

fn nothing(_: &Value, _: &Path<'_>, _: &mut Vec<FieldError>) {}

/// The errors of the volumes of a spec; returns the valid ones by name.
pub(super) fn validate_all<'a>(
    spec: &'a Value,
    holder: Holder<'_>,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) -> BTreeMap<&'a str, &'a Value> {
    let volumes = spec.list("volumes");
    let pod = match holder {
        Holder::Pod(meta) => meta.name.as_str(),
        Holder::Template => "",
    };
    let made: BTreeSet<String> = volumes
        .iter()
        .filter(|v| !pod.is_empty() && v.has("ephemeral"))
        .map(|v| format!("{pod}-{}", v.text("name")))
        .collect();
    let mut sound = BTreeMap::new();
    for (i, volume) in volumes.iter().enumerate() {
        let at = at.index(i);
        let before = out.len();
        let name = volume.text("name");
        validate_source(volume, holder, &at, out);
        if name.is_empty() {
            out.push(FieldError::required(at.child("name"), ""));
        } else {
            validation::named(&at.child("name"), name, names::dns_label(name), out);
        }
        if sound.contains_key(name) {
            out.push(FieldError::duplicate(at.child("name"), name));
        }
        if out.len() == before {
            sound.insert(name, volume);
        }
        let claim = volume.field("persistentVolumeClaim").text("claimName");
        if made.contains(claim) {
            let claim_at = at.child("persistentVolumeClaim");
            let detail = "must not reference a PVC that gets created for an ephemeral volume";
            out.push(FieldError::invalid(
                claim_at.child("claimName"),
                claim,
                detail,
            ));
        }
    }
    sound
}

fn validate_source(volume: &Value, holder: Holder<'_>, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let mut found = false;
    for (name, required, check) in SOURCES {
        let Some(source) = volume.get_set(name) else {
            continue;
        };
        if found {
            out.push(FieldError::forbidden(
                at.child(name),
                "may not specify more than 1 volume type",
            ));
            continue;
        }
        found = true;
        // The path of this source lacks its first letters in Kubernetes.
        let here = at.child(if name == "gcePersistentDisk" {
            "persistentDisk"
        } else {
            name
        });
        for field in required.iter().filter(|f| source.is_empty_at(f)) {
            out.push(FieldError::required(here.child(field), ""));
        }
        if name == "image" && holder != Holder::Template {
            validation::required(&here.child("reference"), source.text("reference"), out);
        }
        check(source, &here, out);
        if let (Holder::Pod(meta), "ephemeral") = (holder, name) {
            validate_made_name(&meta.name, volume.text("name"), at, out);
        }
    }
    if !found {
        out.push(FieldError::required(at, "must specify a volume type"));
    }
}

/// The claim made for a volume is named after pod and volume.
fn validate_made_name(pod: &str, volume: &str, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if pod.is_empty() || volume.is_empty() {
        return;
    }
    let name = format!("{pod}-{volume}");
    for why in names::dns_subdomain(&name) {
        out.push(FieldError::invalid(
            at.child("name"),
            volume,
            &format!("PVC name {name:?}: {why}"),
        ));
    }
}

fn validate_empty_dir(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if Quantity::of(source.field("sizeLimit")).is_some_and(|l| l < Quantity::ZERO) {
        out.push(FieldError::forbidden(
            at.child("sizeLimit"),
            "SizeLimit field must be a valid resource quantity",
        ));
    }
}

const HOST_PATH_TYPES: [&str; 8] = [
    "",
    "BlockDevice",
    "CharDevice",
    "Directory",
    "DirectoryOrCreate",
    "File",
    "FileOrCreate",
    "Socket",
];

fn validate_host_path(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let path = source.text("path");
    if path.is_empty() {
        out.push(FieldError::required(at.child("path"), ""));
        return;
    }
    validate_no_backsteps(path, &at.child("path"), out);
    validation::one_of(
        &at.child("type"),
        source.text("type"),
        &HOST_PATH_TYPES,
        out,
    );
}

fn validate_partition(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let partition = source.number("partition");
    if !(0..=255).contains(&partition) {
        out.push(FieldError::invalid(
            at.child("partition"),
            partition,
            "must be between 1 and 255, inclusive",
        ));
    }
}

/// Access bits of a file, when given.
pub(super) fn validate_mode(source: &Value, field: &str, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if let Some(mode) = source.int(field).filter(|m| !(0..=0o777).contains(m)) {
        out.push(FieldError::invalid(
            at.child(field),
            mode,
            "must be a number between 0 and 0777 (octal), both inclusive",
        ));
    }
}

fn validate_items(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    validate_mode(source, "defaultMode", at, out);
    let items_at = at.child("items");
    for (i, item) in source.list("items").iter().enumerate() {
        validate_item(item, &items_at.index(i), out);
    }
}

/// A key of a ConfigMap or Secret and the file it becomes.
pub(super) fn validate_item(item: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    validation::required(&at.child("key"), item.text("key"), out);
    validation::required(&at.child("path"), item.text("path"), out);
    validate_not_reserved(item.text("path"), &at.child("path"), out);
    validate_mode(item, "mode", at, out);
}

fn validate_nfs(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if !source.text("path").starts_with('/') {
        out.push(FieldError::invalid(
            at.child("path"),
            source.text("path"),
            "must be an absolute path",
        ));
    }
}

static ISCSI_NAME: LazyLock<Regex> = LazyLock::new(|| {
    Regex::new(r"^(iqn\.\d{4}-\d{2}\.([[:alnum:]-.]+)(:[^,;*&$|\s]+)|eui\.[[:alnum:]]{16}|naa\.[[:alnum:]]{32})$")
        .expect("a constant pattern")
});

fn validate_iscsi(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    match source.text("iqn") {
        "" => out.push(FieldError::required(at.child("iqn"), "")),
        name => validate_initiator(name, &at.child("iqn"), out),
    }
    let lun = source.number("lun");
    if !(0..=255).contains(&lun) {
        out.push(FieldError::invalid(
            at.child("lun"),
            lun,
            "must be between 0 and 255, inclusive",
        ));
    }
    if (source.is_true("chapAuthDiscovery") || source.is_true("chapAuthSession"))
        && !source.has("secretRef")
    {
        out.push(FieldError::required(at.child("secretRef"), ""));
    }
    if let Some(name) = source.field("initiatorName").as_str() {
        validate_initiator(name, &at.child("initiatorname"), out);
    }
}

fn validate_initiator(name: &str, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if !["iqn", "eui", "naa"].iter().any(|p| name.starts_with(p)) {
        out.push(FieldError::invalid(
            at,
            name,
            "must be valid format starting with iqn, eui, or naa",
        ));
    } else if !ISCSI_NAME.is_match(name) {
        out.push(FieldError::invalid(at, name, "must be valid format"));
    }
}

fn validate_secret_ref(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if let Some(reference) = source.get_set("secretRef") {
        validation::required(
            &at.child("secretRef").child("name"),
            reference.text("name"),
            out,
        );
    }
}

fn validate_quobyte(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    const PAIRS: &str = "must be a host:port pair or multiple pairs separated by commas";
    let registry = source.text("registry");
    if registry.is_empty() {
        out.push(FieldError::required(at.child("registry"), PAIRS));
    } else if source.text("tenant").len() >= 65 {
        out.push(FieldError::required(
            at.child("tenant"),
            "must be a UUID and may not exceed a length of 64 characters",
        ));
    } else {
        for _ in registry.split(',').filter(|pair| !pair.contains(':')) {
            out.push(FieldError::invalid(at.child("registry"), registry, PAIRS));
        }
    }
    validation::required(&at.child("volume"), source.text("volume"), out);
}

fn validate_downward(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    validate_mode(source, "defaultMode", at, out);
    for file in source.list("items") {
        projection::validate_file(file, at, out);
    }
}

fn validate_fibre_channel(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let targets = source.list("targetWWNs");
    let ids = source.list("wwids");
    let targets_at = at.child("targetWWNs");
    if targets.is_empty() && ids.is_empty() {
        out.push(FieldError::required(
            targets_at,
            "must specify either targetWWNs or wwids, but not both",
        ));
    }
    if !targets.is_empty() && !ids.is_empty() {
        let detail = "targetWWNs and wwids can not be specified simultaneously";
        out.push(FieldError::invalid(
            targets_at,
            source.field("targetWWNs"),
            detail,
        ));
    }
    if !targets.is_empty() {
        match source.int("lun") {
            None => out.push(FieldError::required(
                at.child("lun"),
                "lun is required if targetWWNs is specified",
            )),
            Some(lun) if !(0..=255).contains(&lun) => {
                out.push(FieldError::invalid(
                    at.child("lun"),
                    lun,
                    "must be between 0 and 255, inclusive",
                ));
            }
            Some(_) => {}
        }
    }
}

fn validate_flex(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let options = at.child("options");
    for (key, _) in source.entries("options") {
        let domain = format!(
            ".{}",
            key.split('/').next().unwrap_or_default().to_lowercase()
        );
        if key.contains('/') && (domain.ends_with(".kubernetes.io") || domain.ends_with(".k8s.io"))
        {
            out.push(FieldError::invalid(
                options.key(key),
                key,
                "kubernetes.io and k8s.io namespaces are reserved",
            ));
        }
    }
}

fn validate_flocker(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let name = source.text("datasetName");
    let uuid = source.text("datasetUUID");
    match (name.is_empty(), uuid.is_empty()) {
        (true, true) => out.push(FieldError::required(
            at,
            "one of datasetName and datasetUUID is required",
        )),
        (false, false) => {
            out.push(FieldError::invalid(
                at,
                "resource",
                "datasetName and datasetUUID can not be specified simultaneously",
            ));
        }
        _ => {}
    }
    if name.contains('/') {
        out.push(FieldError::invalid(
            at.child("datasetName"),
            name,
            "must not contain '/'",
        ));
    }
}

fn validate_azure_disk(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let kind = source.text("kind");
    let uri = source.text("diskURI");
    validation::one_of(
        &at.child("cachingMode"),
        source.text("cachingMode"),
        &["None", "ReadOnly", "ReadWrite"],
        out,
    );
    validation::one_of(
        &at.child("kind"),
        kind,
        &["Dedicated", "Managed", "Shared"],
        out,
    );
    let (start, form) = if kind == "Managed" {
        (
            "/subscriptions/",
            "/subscriptions/{sub-id}/resourcegroups/{group-name}/providers/microsoft.compute/disks/{disk-id}",
        )
    } else {
        (
            "https://",
            "https://{account-name}.blob.core.windows.net/{container-name}/{disk-name}.vhd",
        )
    };
    if !uri.starts_with(start) {
        out.push(FieldError::not_supported(at.child("diskURI"), uri, &[form]));
    }
}

fn validate_storage_os(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let name = source.text("volumeName");
    let namespace = source.text("volumeNamespace");
    if name.is_empty() {
        out.push(FieldError::required(at.child("volumeName"), ""));
    } else {
        validation::named(&at.child("volumeName"), name, names::dns_label(name), out);
    }
    if !namespace.is_empty() {
        validation::named(
            &at.child("volumeNamespace"),
            namespace,
            names::dns_label(namespace),
            out,
        );
    }
    validate_secret_ref(source, at, out);
}

fn validate_projected(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    validate_mode(source, "defaultMode", at, out);
    projection::validate_sources(source.list("sources"), at, out);
}

fn validate_csi(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let driver = source.text("driver");
    let driver_at = at.child("driver");
    if driver.is_empty() {
        out.push(FieldError::required(driver_at, ""));
    } else {
        if driver.len() > 63 {
            out.push(FieldError::too_long(driver_at, 63));
        }
        validation::named(
            &driver_at,
            driver,
            names::dns_subdomain(&driver.to_lowercase()),
            out,
        );
    }
    if let Some(secret) = source.get_set("nodePublishSecretRef") {
        match secret.text("name") {
            "" => out.push(FieldError::required(
                at.child("nodePublishSecretRef").child("name"),
                "",
            )),
            name => validation::named(&at.child("name"), name, names::dns_subdomain(name), out),
        }
    }
}

fn validate_ephemeral(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if let Some(template) = source.get_set("volumeClaimTemplate") {
        claim::validate_template(template, &at.child("volumeClaimTemplate"), out);
    }
}
