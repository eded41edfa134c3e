//! Pods that write, delete and restore backup files.

use std::collections::BTreeMap;

use bellerophon::owner::{OwnerError, set_controller_reference};
use k8s_openapi::{
    api::core::v1::{Container, Pod, PodSpec, Volume, VolumeMount},
    apimachinery::pkg::apis::meta::v1::ObjectMeta,
};
use kube::ResourceExt as _;

use super::{
    member_pod::{DATA_DIRECTORY, claim_volume, mount, pod_defaults, secret_volume, unprivileged},
    owned,
};
use crate::{
    crd::{Backup, Bellerophon, BellerophonStatus, MemberPhase, MemberStatus, RestoreStatus},
    names,
};

/// The container whose termination message has the result.
pub(crate) const BACKUP_CONTAINER: &str = "backup";

/// Where backup files are mounted.
const BACKUPS: &str = "/backups";

/// Where certificates and tokens are mounted.
const CREDENTIALS: &str = "/etc/bellerophon";

/// The longest `--timeout` of the command.
const COMMAND_SECONDS_MAX: i64 = 3600;

/// A file of a backup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct BackupFile {
    /// The claim that holds it.
    pub(crate) claim: String,
    /// Its name in the claim.
    pub(crate) name: String,
}

/// The Pod that writes a backup and verifies its checksum. It ends by itself after `seconds_max`.
pub(crate) fn backup_pod(
    hero: &Bellerophon,
    backup: &Backup,
    file: &BackupFile,
    seconds_max: i64,
) -> Result<Pod, OwnerError> {
    let name = hero.name_any();
    let arguments = [
        "store",
        "backup",
        "--endpoints",
        &endpoints(hero),
        "--ca",
        &format!("{CREDENTIALS}/client/ca.crt"),
        "--token-file",
        &format!("{CREDENTIALS}/admin/token"),
        "--timeout",
        &seconds_max.clamp(1, COMMAND_SECONDS_MAX).to_string(),
        "--output",
        &format!("{BACKUPS}/{}", file.name),
        "--result",
        "/dev/termination-log",
    ]
    .map(str::to_owned);
    let task = Task {
        name: backup_pod_name(backup),
        component: names::BACKUP_COMPONENT,
        image: image(hero),
        arguments: arguments.to_vec(),
        mounts: vec![
            mount("backups", BACKUPS.to_owned()),
            mount("client", format!("{CREDENTIALS}/client")),
            mount("admin", format!("{CREDENTIALS}/admin")),
        ],
        volumes: vec![
            claim_volume("backups", &file.claim),
            secret_volume("client", names::client_secret(&name)),
            secret_volume("admin", names::admin_secret(&name)),
        ],
        seconds_max,
    };
    let mut pod = task.into_pod(hero);
    set_controller_reference(backup, &mut pod)?;
    Ok(pod)
}

/// All members that stay, so that the command finds the leader.
fn endpoints(hero: &Bellerophon) -> String {
    let members = hero.status.iter().flat_map(|status| &status.members);
    let urls: Vec<String> = members
        .filter(|member| member.phase == MemberPhase::Active)
        .map(|member| {
            format!(
                "https://{}:{}",
                names::host(hero, &member.name),
                names::CLIENT_PORT
            )
        })
        .collect();
    urls.join(",")
}

/// The Pod that deletes the file of a backup.
pub(crate) fn cleanup_pod(
    backup: &Backup,
    image: String,
    file: &BackupFile,
    seconds_max: i64,
) -> Result<Pod, OwnerError> {
    let path = format!("{BACKUPS}/{}", file.name);
    let task = Task {
        name: format!("{}-cleanup", backup_pod_name(backup)),
        component: names::BACKUP_COMPONENT,
        image,
        arguments: ["store", "snapshot", "delete", &path]
            .map(str::to_owned)
            .to_vec(),
        mounts: vec![mount("backups", BACKUPS.to_owned())],
        volumes: vec![claim_volume("backups", &file.claim)],
        seconds_max,
    };
    let mut pod = task.into_pod_of(&backup.spec.hero, backup.namespace());
    set_controller_reference(backup, &mut pod)?;
    Ok(pod)
}

/// The Pod that writes the data directory of the first member from a backup, before the member
/// itself starts.
pub(crate) fn restore_pod(
    hero: &Bellerophon,
    status: &BellerophonStatus,
    member: &MemberStatus,
    restore: &RestoreStatus,
) -> Result<Pod, OwnerError> {
    let cluster_id = status.cluster_id.clone().unwrap_or_default();
    let arguments = [
        "store",
        "restore",
        "--data",
        DATA_DIRECTORY,
        "--file",
        &format!("{BACKUPS}/{}", restore.file),
        "--checksum",
        &restore.checksum,
        "--cluster-id",
        &cluster_id,
        "--member-id",
        &member.id.to_string(),
        "--address",
        &names::peer_address(hero, &member.name),
        "--min-revision",
        &restore.min_revision.to_string(),
    ]
    .map(str::to_owned);
    let task = Task {
        name: names::restore_pod(&member.name),
        component: names::RESTORE_COMPONENT,
        image: image(hero),
        arguments: arguments.to_vec(),
        mounts: vec![
            mount("data", "/data".to_owned()),
            mount("backups", BACKUPS.to_owned()),
        ],
        volumes: vec![
            claim_volume("data", &member.name),
            claim_volume("backups", &restore.claim),
        ],
        seconds_max: hero.spec.backup.timeout_seconds,
    };
    owned(hero, task.into_pod(hero))
}

/// The name of the Pod that writes a backup.
pub(crate) fn backup_pod_name(backup: &Backup) -> String {
    format!("{}-backup", backup.name_any())
}

fn image(hero: &Bellerophon) -> String {
    let status = hero.status.as_ref();
    let accepted = status.and_then(|status| status.image.clone());
    accepted.unwrap_or_else(|| hero.spec.image.clone())
}

/// A Pod that runs one command to its end.
struct Task {
    name: String,
    component: &'static str,
    image: String,
    arguments: Vec<String>,
    mounts: Vec<VolumeMount>,
    volumes: Vec<Volume>,
    seconds_max: i64,
}

impl Task {
    fn into_pod(self, hero: &Bellerophon) -> Pod {
        self.into_pod_of(&hero.name_any(), hero.namespace())
    }

    fn into_pod_of(self, hero: &str, namespace: Option<String>) -> Pod {
        let mut labels: BTreeMap<String, String> = names::labels(hero);
        labels.insert(names::COMPONENT_LABEL.to_owned(), self.component.to_owned());
        let metadata = ObjectMeta {
            name: Some(self.name),
            namespace,
            labels: Some(labels),
            ..ObjectMeta::default()
        };
        let container = Container {
            name: BACKUP_CONTAINER.to_owned(),
            image: Some(self.image),
            args: Some(self.arguments),
            volume_mounts: Some(self.mounts),
            security_context: Some(unprivileged()),
            ..Container::default()
        };
        Pod {
            metadata,
            spec: Some(PodSpec {
                containers: vec![container],
                volumes: Some(self.volumes),
                restart_policy: Some("Never".to_owned()),
                active_deadline_seconds: Some(self.seconds_max),
                ..pod_defaults()
            }),
            status: None,
        }
    }
}
