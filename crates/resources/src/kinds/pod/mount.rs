//! Volume mounts and block devices of a container, and their paths.
//! In: a container and the valid volumes of its pod. Out: the errors of its mounts and devices.
//! Mirrors `ValidateVolumeMounts` and `ValidateVolumeDevices` in `pkg/apis/core/validation`.

use std::collections::BTreeSet;

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::JsonExt,
};
use serde_json::Value;

use super::{super::validation, spec::ContainerContext};

/// The errors of the mounts and devices of a container.
pub(super) fn validate(
    container: &Value,
    container_context: &ContainerContext<'_>,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    validate_mounts(container, container_context, &at.child("volumeMounts"), out);
    validate_devices(
        container,
        container_context,
        &at.child("volumeDevices"),
        out,
    );
}

fn validate_mounts(
    container: &Value,
    container_context: &ContainerContext<'_>,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let devices = container.list("volumeDevices");
    let device_names: BTreeSet<&str> = devices.iter().map(|d| d.text("name")).collect();
    let device_paths: BTreeSet<&str> = devices.iter().map(|d| d.text("devicePath")).collect();
    let mut paths = BTreeSet::new();
    for (i, mount) in container.list("volumeMounts").iter().enumerate() {
        let item = at.index(i);
        let name = mount.text("name");
        let path = mount.text("mountPath");
        validation::required(&item.child("name"), name, out);
        if !container_context.volumes.contains_key(name) {
            out.push(FieldError::not_found(item.child("name"), name));
        }
        validation::required(&item.child("mountPath"), path, out);
        if !paths.insert(path) {
            out.push(FieldError::invalid(
                item.child("mountPath"),
                path,
                "must be unique",
            ));
        }
        if device_names.contains(name) {
            out.push(FieldError::invalid(
                item.child("name"),
                name,
                "must not already exist in volumeDevices",
            ));
        }
        if device_paths.contains(path) {
            out.push(FieldError::invalid(
                item.child("mountPath"),
                path,
                "must not already exist as a path in volumeDevices",
            ));
        }
        validate_sub_paths(mount, at, &item, out);
        validate_propagation(mount, container, at, out);
        validate_recursive(mount, at, out);
    }
}

// Kubernetes reports some errors of a mount at the list: hence two paths.
fn validate_sub_paths(mount: &Value, list: &Path<'_>, item: &Path<'_>, out: &mut Vec<FieldError>) {
    let path = mount.text("subPath");
    let expression = mount.text("subPathExpr");
    validate_descending(path, &list.child("subPath"), out);
    if !expression.is_empty() && !path.is_empty() {
        out.push(FieldError::invalid(
            item.child("subPathExpr"),
            expression,
            "subPathExpr and subPath are mutually exclusive",
        ));
    }
    validate_descending(expression, &list.child("subPathExpr"), out);
}

fn validate_propagation(
    mount: &Value,
    container: &Value,
    list: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let Some(mode) = mount.field("mountPropagation").as_str() else {
        return;
    };
    let at = list.child("mountPropagation");
    validation::one_of(
        &at,
        mode,
        &["Bidirectional", "HostToContainer", "None"],
        out,
    );
    if mode == "Bidirectional" && !container.field("securityContext").is_true("privileged") {
        out.push(FieldError::forbidden(
            at,
            "Bidirectional mount propagation is available only to privileged containers",
        ));
    }
}

fn validate_recursive(mount: &Value, list: &Path<'_>, out: &mut Vec<FieldError>) {
    let at = list.child("recursiveReadOnly");
    match mount.field("recursiveReadOnly").as_str() {
        None | Some("Disabled") => {}
        Some("Enabled" | "IfPossible") => {
            if !mount.is_true("readOnly") {
                out.push(FieldError::forbidden(
                    at,
                    "may only be specified when readOnly is true",
                ));
            }
            if !matches!(mount.text("mountPropagation"), "" | "None") {
                out.push(FieldError::forbidden(
                    at,
                    "may only be specified when mountPropagation is None or not specified",
                ));
            }
        }
        Some(other) => out.push(FieldError::not_supported(
            at,
            other,
            &["Disabled", "Enabled", "IfPossible"],
        )),
    }
}

fn validate_devices(
    container: &Value,
    container_context: &ContainerContext<'_>,
    at: &Path<'_>,
    out: &mut Vec<FieldError>,
) {
    let mounts = container.list("volumeMounts");
    let mount_names: BTreeSet<&str> = mounts.iter().map(|m| m.text("name")).collect();
    let mount_paths: BTreeSet<&str> = mounts.iter().map(|m| m.text("mountPath")).collect();
    let mut names = BTreeSet::new();
    let mut paths = BTreeSet::new();
    for (i, device) in container.list("volumeDevices").iter().enumerate() {
        let at = at.index(i);
        let name = device.text("name");
        let path = device.text("devicePath");
        let name_at = at.child("name");
        let path_at = at.child("devicePath");
        validation::required(&name_at, name, out);
        if names.contains(name) {
            out.push(FieldError::invalid(name_at, name, "must be unique"));
        }
        match container_context.volumes.get(name) {
            None => out.push(FieldError::not_found(name_at, name)),
            Some(volume) if !volume.has("persistentVolumeClaim") && !volume.has("ephemeral") => {
                let detail = "can only use volume source type of PersistentVolumeClaim or Ephemeral for block mode";
                out.push(FieldError::invalid(name_at, name, detail));
            }
            Some(_) => {}
        }
        validation::required(&path_at, path, out);
        if paths.contains(path) {
            out.push(FieldError::invalid(path_at, path, "must be unique"));
        }
        if has_backsteps(path) {
            out.push(FieldError::invalid(
                path_at,
                path,
                "can not contain backsteps ('..')",
            ));
        } else {
            paths.insert(path);
        }
        if mount_names.contains(name) {
            out.push(FieldError::invalid(
                name_at,
                name,
                "must not already exist in volumeMounts",
            ));
        }
        if mount_paths.contains(path) {
            out.push(FieldError::invalid(
                path_at,
                path,
                "must not already exist as a path in volumeMounts",
            ));
        }
        if !name.is_empty() {
            names.insert(name);
        }
    }
}

fn has_backsteps(path: &str) -> bool {
    path.split('/').any(|step| step == "..")
}

/// A path must not climb.
pub(super) fn validate_no_backsteps(path: &str, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if has_backsteps(path) {
        out.push(FieldError::invalid(at, path, "must not contain '..'"));
    }
}

/// A relative path without `..`. Mirrors `validateLocalDescendingPath`.
pub(super) fn validate_descending(path: &str, at: &Path<'_>, out: &mut Vec<FieldError>) {
    if path.starts_with('/') {
        out.push(FieldError::invalid(at, path, "must be a relative path"));
    }
    validate_no_backsteps(path, at, out);
}

/// A relative path without `..` whose name the kubelet does not reserve. Mirrors
/// `validateLocalNonReservedPath`.
pub(super) fn validate_not_reserved(path: &str, at: &Path<'_>, out: &mut Vec<FieldError>) {
    validate_descending(path, at, out);
    if path.starts_with("..") && !path.starts_with("../") {
        out.push(FieldError::invalid(at, path, "must not start with '..'"));
    }
}
