//! Volumes of a pod.
//!
//! In: the volumes of the pod's spec and the objects they refer to. Out: directories, and the
//! mounts of containers.
//! Guarantees: files of config maps, secrets, tokens and the downward API change atomically, as
//! soon as their source changes.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Weak;
use std::time::Duration;

use bellerophon::ObjectKey;
use bellerophon_process_runtime::atomic_writer::{AtomicWriter, FileProjection, Payload};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{
    ConfigMap, DownwardAPIVolumeFile, HostPathVolumeSource, KeyToPath, PersistentVolume,
    PersistentVolumeClaim, Pod, ProjectedVolumeSource, Secret, Volume, VolumeProjection,
};
use tracing::warn;

use super::super::time::{after, remaining};
use super::pod::ProcessPod;
use super::{Shared, downward_api};

/// The default of `defaultMode`.
const DEFAULT_MODE: i32 = 0o644;

/// When a failed renewal of a token is tried again.
const RETRY_DELAY: Duration = Duration::from_secs(10);

/// Why a volume could not be set up.
#[derive(Debug, thiserror::Error)]
#[error("MountVolume.SetUp failed for volume {volume:?} : {message}")]
pub(super) struct VolumeError {
    volume: String,
    message: String,
}

/// The files of a volume.
struct Files {
    payload: Payload,
    /// When a token is renewed.
    renew_at: Option<Timestamp>,
}

/// Whether a volume of the pod has files of that config map.
pub(super) fn refers_to_config_map(pod: &Pod, name: &str) -> bool {
    projections(pod).any(|source| {
        let source = source.config_map.as_ref();
        source.is_some_and(|source| source.name == name)
    })
}

/// Whether a volume of the pod has files of that secret.
pub(super) fn refers_to_secret(pod: &Pod, name: &str) -> bool {
    projections(pod).any(|source| {
        let source = source.secret.as_ref();
        source.is_some_and(|source| source.name == name)
    })
}

pub(super) fn volumes(pod: &Pod) -> impl Iterator<Item = &Volume> {
    pod.spec
        .iter()
        .flat_map(|spec| spec.volumes.iter().flatten())
}

fn projections(pod: &Pod) -> impl Iterator<Item = VolumeProjection> {
    let sources = volumes(pod).filter_map(projected);
    sources.flat_map(|source| source.sources.unwrap_or_default())
}

/// A configMap, secret, downwardAPI or projected volume as a projected one.
pub(super) fn projected(volume: &Volume) -> Option<ProjectedVolumeSource> {
    if let Some(source) = &volume.projected {
        return Some(source.clone());
    }
    let mut projection = VolumeProjection::default();
    let default_mode;
    if let Some(source) = &volume.config_map {
        default_mode = source.default_mode;
        projection.config_map = Some(k8s_openapi::api::core::v1::ConfigMapProjection {
            name: source.name.clone(),
            items: source.items.clone(),
            optional: source.optional,
        });
    } else if let Some(source) = &volume.secret {
        default_mode = source.default_mode;
        projection.secret = Some(k8s_openapi::api::core::v1::SecretProjection {
            name: source.secret_name.clone().unwrap_or_default(),
            items: source.items.clone(),
            optional: source.optional,
        });
    } else if let Some(source) = &volume.downward_api {
        default_mode = source.default_mode;
        projection.downward_api = Some(k8s_openapi::api::core::v1::DownwardAPIProjection {
            items: source.items.clone(),
        });
    } else {
        return None;
    }
    Some(ProjectedVolumeSource {
        default_mode,
        sources: Some(vec![projection]),
    })
}

/// Sets up all volumes of a pod; returns when a token is renewed.
pub(super) async fn set_up(
    shared: &Shared,
    pod: &ProcessPod,
) -> Result<Option<Timestamp>, VolumeError> {
    let complete = pod.complete(shared).await;
    let complete = complete.map_err(|message| VolumeError {
        volume: String::new(),
        message,
    })?;
    let mut renewal: Option<Timestamp> = None;
    for volume in volumes(&complete) {
        let renew_at = set_up_volume(shared, pod, volume).await;
        let renew_at = renew_at.map_err(|message| VolumeError {
            volume: volume.name.clone(),
            message,
        })?;
        renewal = renewal.into_iter().chain(renew_at).min();
    }
    Ok(renewal)
}

async fn set_up_volume(
    shared: &Shared,
    pod: &ProcessPod,
    volume: &Volume,
) -> Result<Option<Timestamp>, String> {
    let Some(source) = projected(volume) else {
        let path = source_path(shared, pod, volume).await?;
        if let Some(host_path) = &volume.host_path {
            create_host_path(host_path).map_err(|error| error.to_string())?;
        } else {
            create_writable_dir(&path).map_err(|error| error.to_string())?;
        }
        return Ok(None);
    };
    let now = shared.clock.now();
    let files = files(shared, pod, &source, now).await?;
    let dir = pod.volume_dir(&volume.name);
    let write = move || {
        fs::create_dir_all(&dir)?;
        AtomicWriter::new(dir).write(&files.payload, now)
    };
    let written = tokio::task::spawn_blocking(write).await;
    written
        .map_err(io::Error::other)
        .flatten()
        .map_err(|error| error.to_string())?;
    Ok(files.renew_at)
}

/// Updates the volumes of a pod when their sources change and when tokens are due, until the pod
/// has ended.
pub(super) async fn follow(
    shared: Weak<Shared>,
    pod: Weak<ProcessPod>,
    mut renewal: Option<Timestamp>,
) {
    // Nothing is kept alive while nothing changes.
    while let Some((shared_now, pod_now)) = shared.upgrade().zip(pod.upgrade()) {
        let due = renewal.map(|at| remaining(shared_now.clock.now(), at));
        let changed = pod_now.changed.clone();
        drop(shared_now);
        drop(pod_now);
        match due {
            // An error is the timeout.
            Some(due) => drop(tokio::time::timeout(due, changed.notified()).await),
            None => changed.notified().await,
        }
        let Some((shared, pod)) = shared.upgrade().zip(pod.upgrade()) else {
            return;
        };
        match set_up(&shared, &pod).await {
            Ok(renew_at) => renewal = renew_at,
            Err(error) => {
                // The files stay as they are until the source changes, or the retry.
                warn!(pod = %pod.key, %error, "volumes were not updated");
                renewal = renewal.map(|at| at.max(after(shared.clock.now(), RETRY_DELAY)));
            }
        }
    }
}

/// The path of a volume on the node.
pub(super) async fn source_path(
    shared: &Shared,
    pod: &ProcessPod,
    volume: &Volume,
) -> Result<PathBuf, String> {
    if let Some(source) = &volume.host_path {
        return Ok(source.path.clone().into());
    }
    if let Some(source) = &volume.persistent_volume_claim {
        return claim_path(shared, pod, &source.claim_name).await;
    }
    if volume.ephemeral.is_some() {
        let claim = format!("{}-{}", pod.key.name(), volume.name);
        return claim_path(shared, pod, &claim).await;
    }
    if volume.empty_dir.is_some() || projected(volume).is_some() {
        return Ok(pod.volume_dir(&volume.name));
    }
    Err("nodes with local processes do not support this type of volume".to_owned())
}

/// The directory of the volume that is bound to a claim.
async fn claim_path(shared: &Shared, pod: &ProcessPod, claim: &str) -> Result<PathBuf, String> {
    let key = ObjectKey::new(pod.key.namespace(), claim);
    let found = shared.client.get::<PersistentVolumeClaim>(&key).await;
    let found = found.map_err(|error| error.to_string())?;
    let found = found.ok_or_else(|| format!("persistentvolumeclaim {claim:?} not found"))?;
    let spec = found.spec.as_ref();
    let volume = spec
        .and_then(|spec| spec.volume_name.clone())
        .filter(|name| !name.is_empty())
        .ok_or_else(|| format!("persistentvolumeclaim {claim:?} is not bound"))?;
    let key = ObjectKey::cluster(&volume);
    let found = shared.client.get::<PersistentVolume>(&key).await;
    let found = found.map_err(|error| error.to_string())?;
    let host_path = found.as_ref().and_then(|volume| {
        let spec = volume.spec.as_ref()?;
        let local = spec.local.as_ref().map(|source| source.path.clone());
        local.or_else(|| Some(spec.host_path.as_ref()?.path.clone()))
    });
    // Provisioned volumes have no path that this process could create elsewhere.
    let own = shared.runtime.data_dir().join("persistent-volumes");
    Ok(match host_path.map(PathBuf::from) {
        Some(path) if path.exists() => path,
        _ => own.join(volume),
    })
}

/// Creates the directory of a volume that every user can write, as the kubelet does.
pub(super) fn create_writable_dir(path: &Path) -> io::Result<()> {
    if path.exists() {
        return Ok(());
    }
    fs::create_dir_all(path)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o777))
}

fn create_host_path(source: &HostPathVolumeSource) -> io::Result<()> {
    let path = Path::new(&source.path);
    match source.type_.as_deref().unwrap_or_default() {
        "DirectoryOrCreate" => fs::create_dir_all(path),
        "FileOrCreate" if !path.exists() => fs::File::create(path).map(drop),
        "" | "FileOrCreate" => Ok(()),
        _ => fs::metadata(path).map(drop),
    }
}

async fn files(
    shared: &Shared,
    pod: &ProcessPod,
    source: &ProjectedVolumeSource,
    now: Timestamp,
) -> Result<Files, String> {
    let default_mode = source.default_mode.unwrap_or(DEFAULT_MODE);
    let mut files = Files {
        payload: Payload::new(),
        renew_at: None,
    };
    for source in source.sources.iter().flatten() {
        files.add(shared, pod, source, default_mode, now).await?;
    }
    Ok(files)
}

impl Files {
    async fn add(
        &mut self,
        shared: &Shared,
        pod: &ProcessPod,
        source: &VolumeProjection,
        mode: i32,
        now: Timestamp,
    ) -> Result<(), String> {
        if let Some(source) = &source.config_map {
            let key = ObjectKey::new(pod.key.namespace(), &source.name);
            let found = shared.client.get::<ConfigMap>(&key).await;
            let found = found.map_err(|error| error.to_string())?;
            let data = found.as_deref().map(config_map_data);
            let kind = "configmap";
            self.add_data(
                kind,
                &source.name,
                data,
                source.items.as_deref(),
                source.optional,
                mode,
            )?;
        }
        if let Some(source) = &source.secret {
            let key = ObjectKey::new(pod.key.namespace(), &source.name);
            let found = shared.client.get::<Secret>(&key).await;
            let found = found.map_err(|error| error.to_string())?;
            let data = found.as_deref().map(secret_data);
            let kind = "secret";
            self.add_data(
                kind,
                &source.name,
                data,
                source.items.as_deref(),
                source.optional,
                mode,
            )?;
        }
        if let Some(source) = &source.downward_api {
            for file in source.items.iter().flatten() {
                self.add_field(pod, file, mode)?;
            }
        }
        if let Some(source) = &source.service_account_token {
            let latest = pod.latest();
            let token = pod.tokens.get(&shared.client, &latest, source, now).await?;
            self.insert(&source.path, token.text.into_bytes(), mode);
            self.renew_at = self.renew_at.into_iter().chain([token.renew_at]).min();
        }
        let unsupported = [
            ("clusterTrustBundle", source.cluster_trust_bundle.is_some()),
            ("podCertificate", source.pod_certificate.is_some()),
        ];
        match unsupported.into_iter().find(|(_, is_set)| *is_set) {
            Some((name, _)) => Err(format!(
                "nodes with local processes do not support projections of {name}"
            )),
            None => Ok(()),
        }
    }

    fn add_data(
        &mut self,
        kind: &str,
        name: &str,
        data: Option<BTreeMap<String, Vec<u8>>>,
        items: Option<&[KeyToPath]>,
        optional: Option<bool>,
        mode: i32,
    ) -> Result<(), String> {
        let is_optional = optional == Some(true);
        let Some(mut data) = data else {
            let missing = format!("{kind} {name:?} not found");
            return if is_optional { Ok(()) } else { Err(missing) };
        };
        let Some(items) = items.filter(|items| !items.is_empty()) else {
            for (key, value) in data {
                self.insert(&key, value, mode);
            }
            return Ok(());
        };
        for item in items {
            match data.remove(&item.key) {
                Some(value) => self.insert(&item.path, value, item.mode.unwrap_or(mode)),
                None if is_optional => {}
                None => return Err(format!("references non-existent {kind} key: {}", item.key)),
            }
        }
        Ok(())
    }

    fn add_field(
        &mut self,
        pod: &ProcessPod,
        file: &DownwardAPIVolumeFile,
        mode: i32,
    ) -> Result<(), String> {
        let latest = pod.latest();
        let value = if let Some(field) = &file.field_ref {
            downward_api::field(&latest, &pod.listening_node(), &field.field_path)?
        } else if let Some(field) = &file.resource_field_ref {
            downward_api::resource(&latest, None, field)?
        } else {
            String::new()
        };
        self.insert(&file.path, value.into_bytes(), file.mode.unwrap_or(mode));
        Ok(())
    }

    fn insert(&mut self, path: &str, data: Vec<u8>, mode: i32) {
        let mode = u32::try_from(mode).unwrap_or_default();
        let file = FileProjection { data, mode };
        self.payload.insert(path.into(), file);
    }
}

fn config_map_data(config_map: &ConfigMap) -> BTreeMap<String, Vec<u8>> {
    let data = config_map.data.iter().flatten();
    let data = data.map(|(key, value)| (key.clone(), value.clone().into_bytes()));
    let binary = config_map.binary_data.iter().flatten();
    let binary = binary.map(|(key, value)| (key.clone(), value.0.clone()));
    data.chain(binary).collect()
}

fn secret_data(secret: &Secret) -> BTreeMap<String, Vec<u8>> {
    let data = secret.data.iter().flatten();
    data.map(|(key, value)| (key.clone(), value.0.clone()))
        .collect()
}
