//! Mounts of containers, and volumes in memory.
//!
//! In: `volumeMounts` of a container. Out: the mounts of the runtime; a tmpfs per emptyDir with
//! medium `Memory` in tier A, and a directory in tier B.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Component, Path, PathBuf};

use bellerophon_process_runtime::expansion::expand;
use bellerophon_process_runtime::{Mount, Sandbox, Tier};
use k8s_openapi::api::core::v1::{Container, Pod, Volume};

use super::Shared;
use super::pod::ProcessPod;
use super::volumes::{create_writable_dir, projected, source_path, volumes};
use crate::quantity;

/// The mounts of a container; the error is the message of `CreateContainerConfigError`.
pub(super) async fn mounts(
    shared: &Shared,
    pod: &ProcessPod,
    container: &Container,
    env: &BTreeMap<String, String>,
) -> Result<Vec<Mount>, String> {
    let complete = pod.complete(shared).await?;
    let mut mounts = Vec::new();
    for mount in container.volume_mounts.iter().flatten() {
        let volume = volumes(&complete).find(|volume| volume.name == mount.name);
        let volume = volume.ok_or_else(|| format!("volume {:?} not found", mount.name))?;
        let source = source_path(shared, pod, volume).await?;
        let sub_path = match (&mount.sub_path, &mount.sub_path_expr) {
            (_, Some(expression)) => Some(expand(expression, |name| env.get(name))),
            (sub_path, None) => sub_path.clone(),
        };
        let sub_path = sub_path.filter(|path| !path.is_empty()).map(PathBuf::from);
        // The node does not see what is in a tmpfs.
        let is_tmpfs = is_memory(volume) && shared.runtime.tier() == Tier::A;
        if let Some(sub_path) = &sub_path {
            validate_sub_path(sub_path)?;
            if !is_tmpfs && projected(volume).is_none() {
                create_sub_path(&source, sub_path)?;
            }
        }
        // A relative mount path is below the root.
        let target = Path::new("/").join(&mount.mount_path);
        mounts.push(Mount {
            name: mount.name.clone(),
            source,
            target,
            sub_path,
            read_only: mount.read_only == Some(true) || projected(volume).is_some(),
            create_sub_path: is_tmpfs,
        });
    }
    Ok(mounts)
}

fn validate_sub_path(sub_path: &Path) -> Result<(), String> {
    let is_below = sub_path
        .components()
        .all(|component| matches!(component, Component::Normal(_) | Component::CurDir));
    if is_below {
        return Ok(());
    }
    let sub_path = sub_path.display();
    Err(format!(
        "subPath {sub_path} must be relative and without '..'"
    ))
}

/// Creates the directory of a `subPath` that does not exist, as the kubelet does.
fn create_sub_path(source: &Path, sub_path: &Path) -> Result<(), String> {
    let path = source.join(sub_path);
    // Symbolic links are resolved by the runtime, which does not leave the volume.
    if fs::symlink_metadata(&path).is_ok() {
        return Ok(());
    }
    fs::create_dir_all(&path)
        .map_err(|error| format!("failed to create subPath directory: {error}"))
}

/// Whether a volume is an emptyDir in memory.
fn is_memory(volume: &Volume) -> bool {
    let medium = volume
        .empty_dir
        .as_ref()
        .and_then(|it| it.medium.as_deref());
    medium == Some("Memory")
}

/// The directories in which the node finds the files of the pod's emptyDirs.
pub(super) fn empty_dirs(
    pod: &ProcessPod,
    complete: &Pod,
    tier: Tier,
) -> BTreeMap<String, PathBuf> {
    let shim = pod.created_sandbox().and_then(|sandbox| sandbox.shim_pid());
    let empty_dirs = volumes(complete).filter(|volume| volume.empty_dir.is_some());
    let directory = |volume: &Volume| {
        let path = pod.volume_dir(&volume.name);
        match shim.filter(|_| is_memory(volume) && tier == Tier::A) {
            // A tmpfs is mounted in the namespace of the pod only.
            Some(shim) => {
                let path = path.canonicalize().unwrap_or(path);
                let path = path.strip_prefix("/").map(Path::to_owned).unwrap_or(path);
                Path::new("/proc")
                    .join(shim.to_string())
                    .join("root")
                    .join(path)
            }
            None => path,
        }
    };
    let with_names = empty_dirs.map(|volume| (volume.name.clone(), directory(volume)));
    with_names.collect()
}

/// Mounts the volumes that are in memory in a new sandbox of tier A.
pub(super) async fn mount_memory(
    pod: &ProcessPod,
    complete: &Pod,
    sandbox: &Sandbox,
) -> Result<(), String> {
    for volume in volumes(complete).filter(|volume| is_memory(volume)) {
        let limit = volume
            .empty_dir
            .as_ref()
            .and_then(|it| it.size_limit.as_ref());
        let limit = limit.map(quantity::value);
        let limit = limit
            .and_then(|limit| u64::try_from(limit).ok())
            .filter(|it| *it > 0);
        let path = pod.volume_dir(&volume.name);
        create_writable_dir(&path).map_err(|error| error.to_string())?;
        // The shim has another working directory.
        let path = path.canonicalize().map_err(|error| error.to_string())?;
        let mounted = sandbox.mount_tmpfs(path, limit).await;
        mounted.map_err(|error| error.to_string())?;
    }
    Ok(())
}
