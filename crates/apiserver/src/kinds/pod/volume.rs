//! Volumes of a pod: their names and the one source each has.
//! In: the volumes of a spec. Out: what is wrong with them, and the sound ones by name.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::LazyLock,
};

use regex::Regex;
use serde_json::Value;

use super::{
    super::{checks, look::Look, quantity::Quantity},
    claim,
    mount::{check_descending, check_no_backsteps, check_not_reserved},
    projection,
    spec::{Holder, check_choice},
};
use crate::{
    field::{FieldError, Path},
    names,
};

type Check = fn(&Value, &Path<'_>, &mut Vec<FieldError>);

/// Every source in the order in which Kubernetes looks for it, with the fields it cannot do without and its other checks.
const SOURCES: [(&str, &[&str], Check); 30] = [
    ("emptyDir", &[], check_empty_dir),
    ("hostPath", &[], check_host_path),
    ("gitRepo", &["repository"], |s, at, out| {
        check_descending(s.text("directory"), &at.child("directory"), out)
    }),
    ("gcePersistentDisk", &["pdName"], check_partition),
    ("awsElasticBlockStore", &["volumeID"], check_partition),
    ("secret", &["secretName"], check_items),
    ("nfs", &["server", "path"], check_nfs),
    ("iscsi", &["targetPortal"], check_iscsi),
    ("glusterfs", &["endpoints", "path"], nothing),
    ("persistentVolumeClaim", &["claimName"], nothing),
    ("rbd", &["monitors", "image"], nothing),
    ("cinder", &["volumeID"], check_secret_ref),
    ("cephfs", &["monitors"], nothing),
    ("quobyte", &[], check_quobyte),
    ("downwardAPI", &[], check_downward),
    ("fc", &[], check_fibre_channel),
    ("flexVolume", &["driver"], check_flex),
    ("configMap", &["name"], check_items),
    ("azureFile", &["secretName", "shareName"], nothing),
    ("flocker", &[], check_flocker),
    ("vsphereVolume", &["volumePath"], nothing),
    ("photonPersistentDisk", &["pdID"], nothing),
    ("portworxVolume", &["volumeID"], nothing),
    ("azureDisk", &["diskName", "diskURI"], check_azure_disk),
    ("storageos", &[], check_storage_os),
    ("scaleIO", &["gateway", "system", "volumeName"], nothing),
    ("projected", &[], check_projected),
    ("csi", &[], check_csi),
    ("ephemeral", &["volumeClaimTemplate"], check_ephemeral),
    ("image", &[], |s, at, out| {
        check_choice(
            &at.child("pullPolicy"),
            s.text("pullPolicy"),
            &["Always", "IfNotPresent", "Never"],
            out,
        )
    }),
];

fn nothing(_: &Value, _: &Path<'_>, _: &mut Vec<FieldError>) {}

/// What is wrong with the volumes of a spec; the sound ones come back by name.
pub(super) fn check_all<'a>(
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
        check_source(volume, holder, &at, out);
        if name.is_empty() {
            out.push(FieldError::required(at.child("name"), ""));
        } else {
            checks::named(&at.child("name"), name, names::dns_label(name), out);
        }
        if sound.contains_key(name) {
            out.push(FieldError::duplicate(at.child("name"), name));
        }
        if out.len() == before {
            sound.insert(name, volume);
        }
        let claim = volume.part("persistentVolumeClaim").text("claimName");
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

fn check_source(volume: &Value, holder: Holder<'_>, at: &Path<'_>, out: &mut Vec<FieldError>) {
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
            checks::required(&here.child("reference"), source.text("reference"), out);
        }
        check(source, &here, out);
        if let (Holder::Pod(meta), "ephemeral") = (holder, name) {
            check_made_name(&meta.name, volume.text("name"), at, out);
        }
    }
    if !found {
        out.push(FieldError::required(at, "must specify a volume type"));
    }
}

/// The claim made for a volume is named after pod and volume.
fn check_made_name(pod: &str, volume: &str, at: &Path<'_>, out: &mut Vec<FieldError>) {
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

fn check_empty_dir(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if Quantity::of(source.part("sizeLimit")).is_some_and(|l| l < Quantity::ZERO) {
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

fn check_host_path(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let path = source.text("path");
    if path.is_empty() {
        out.push(FieldError::required(at.child("path"), ""));
        return;
    }
    check_no_backsteps(path, &at.child("path"), out);
    checks::one_of(
        &at.child("type"),
        source.text("type"),
        &HOST_PATH_TYPES,
        out,
    );
}

fn check_partition(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
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
pub(super) fn check_mode(source: &Value, field: &str, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if let Some(mode) = source.int(field).filter(|m| !(0..=0o777).contains(m)) {
        out.push(FieldError::invalid(
            at.child(field),
            mode,
            "must be a number between 0 and 0777 (octal), both inclusive",
        ));
    }
}

fn check_items(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    check_mode(source, "defaultMode", at, out);
    let items_at = at.child("items");
    for (i, item) in source.list("items").iter().enumerate() {
        check_item(item, &items_at.index(i), out);
    }
}

/// A key of a ConfigMap or Secret and the file it becomes.
pub(super) fn check_item(item: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    checks::required(&at.child("key"), item.text("key"), out);
    checks::required(&at.child("path"), item.text("path"), out);
    check_not_reserved(item.text("path"), &at.child("path"), out);
    check_mode(item, "mode", at, out);
}

fn check_nfs(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
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

fn check_iscsi(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    match source.text("iqn") {
        "" => out.push(FieldError::required(at.child("iqn"), "")),
        name => check_initiator(name, &at.child("iqn"), out),
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
    if let Some(name) = source.part("initiatorName").as_str() {
        check_initiator(name, &at.child("initiatorname"), out);
    }
}

fn check_initiator(name: &str, at: &Path<'_>, out: &mut Vec<FieldError>) {
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

fn check_secret_ref(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if let Some(reference) = source.get_set("secretRef") {
        checks::required(
            &at.child("secretRef").child("name"),
            reference.text("name"),
            out,
        );
    }
}

fn check_quobyte(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
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
    checks::required(&at.child("volume"), source.text("volume"), out);
}

fn check_downward(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    check_mode(source, "defaultMode", at, out);
    for file in source.list("items") {
        projection::check_file(file, at, out);
    }
}

fn check_fibre_channel(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let (targets, ids) = (source.list("targetWWNs"), source.list("wwids"));
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
            source.part("targetWWNs"),
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

fn check_flex(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
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

fn check_flocker(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let (name, uuid) = (source.text("datasetName"), source.text("datasetUUID"));
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

fn check_azure_disk(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let (kind, uri) = (source.text("kind"), source.text("diskURI"));
    checks::one_of(
        &at.child("cachingMode"),
        source.text("cachingMode"),
        &["None", "ReadOnly", "ReadWrite"],
        out,
    );
    checks::one_of(
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

fn check_storage_os(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let (name, namespace) = (source.text("volumeName"), source.text("volumeNamespace"));
    if name.is_empty() {
        out.push(FieldError::required(at.child("volumeName"), ""));
    } else {
        checks::named(&at.child("volumeName"), name, names::dns_label(name), out);
    }
    if !namespace.is_empty() {
        checks::named(
            &at.child("volumeNamespace"),
            namespace,
            names::dns_label(namespace),
            out,
        );
    }
    check_secret_ref(source, at, out);
}

fn check_projected(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    check_mode(source, "defaultMode", at, out);
    projection::check_sources(source.list("sources"), at, out);
}

fn check_csi(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    let driver = source.text("driver");
    let driver_at = at.child("driver");
    if driver.is_empty() {
        out.push(FieldError::required(driver_at, ""));
    } else {
        if driver.len() > 63 {
            out.push(FieldError::too_long(driver_at, 63));
        }
        checks::named(
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
            name => checks::named(&at.child("name"), name, names::dns_subdomain(name), out),
        }
    }
}

fn check_ephemeral(source: &Value, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if let Some(template) = source.get_set("volumeClaimTemplate") {
        claim::check_template(template, &at.child("volumeClaimTemplate"), out);
    }
}
