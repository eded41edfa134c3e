//! The Pod of a member.

use std::collections::BTreeMap;

use bellerophon::owner::OwnerError;
use k8s_openapi::{
    api::core::v1::{
        Affinity, Capabilities, Container, ContainerPort, EnvVar, HTTPGetAction,
        PersistentVolumeClaimVolumeSource, Pod, PodAffinityTerm, PodAntiAffinity,
        PodSecurityContext, PodSpec, Probe, SeccompProfile, SecretVolumeSource, SecurityContext,
        Volume, VolumeMount, WeightedPodAffinityTerm,
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use kube::ResourceExt as _;

use super::{USER, metadata, owned, revision};
use crate::{
    crd::{Bellerophon, BellerophonStatus, MemberRole, MemberStatus},
    names,
};

/// Longer than a hand-over of leadership and the flush of the log take.
const GRACE_SECONDS: i64 = 60;

/// A volume may have a directory `lost+found`, so that its root is never empty.
pub(super) const DATA_DIRECTORY: &str = "/data/store";

/// Where certificates and tokens are mounted.
const CREDENTIALS: &str = "/etc/bellerophon";

/// The Pod of a member, on its claim.
pub(crate) fn member_pod(
    hero: &Bellerophon,
    status: &BellerophonStatus,
    member: &MemberStatus,
    role: MemberRole,
) -> Result<Pod, OwnerError> {
    let cluster_id = status.cluster_id.clone().unwrap_or_default();
    let mut labels = names::claim_labels(hero, &cluster_id, member);
    labels.insert(
        names::ROLE_LABEL.to_owned(),
        names::role_label(role).to_owned(),
    );
    let mut metadata = metadata(hero, member.name.clone(), labels);
    let revision = revision(hero, status);
    metadata.annotations = Some(BTreeMap::from([(
        names::REVISION_ANNOTATION.to_owned(),
        revision,
    )]));
    let pod = Pod {
        metadata,
        spec: Some(PodSpec {
            hostname: Some(member.name.clone()),
            subdomain: Some(names::peer_service(&hero.name_any())),
            containers: vec![container(hero, status)],
            volumes: Some(volumes(hero, member)),
            affinity: Some(spread(hero)),
            termination_grace_period_seconds: Some(GRACE_SECONDS),
            ..pod_defaults()
        }),
        status: None,
    };
    owned(hero, pod)
}

/// What all Pods of a store have in common: no privileges and no access to the API server.
pub(super) fn pod_defaults() -> PodSpec {
    PodSpec {
        automount_service_account_token: Some(false),
        enable_service_links: Some(false),
        security_context: Some(PodSecurityContext {
            run_as_non_root: Some(true),
            run_as_user: Some(USER),
            run_as_group: Some(USER),
            fs_group: Some(USER),
            seccomp_profile: Some(SeccompProfile {
                type_: "RuntimeDefault".to_owned(),
                ..SeccompProfile::default()
            }),
            ..PodSecurityContext::default()
        }),
        ..PodSpec::default()
    }
}

/// The security context of all containers of a store.
pub(super) fn unprivileged() -> SecurityContext {
    SecurityContext {
        allow_privilege_escalation: Some(false),
        read_only_root_filesystem: Some(true),
        capabilities: Some(Capabilities {
            drop: Some(vec!["ALL".to_owned()]),
            ..Capabilities::default()
        }),
        ..SecurityContext::default()
    }
}

fn container(hero: &Bellerophon, status: &BellerophonStatus) -> Container {
    Container {
        name: "store".to_owned(),
        image: status
            .image
            .clone()
            .or_else(|| Some(hero.spec.image.clone())),
        args: Some(arguments()),
        env: Some(vec![EnvVar {
            name: "WINGED_HORSE_NAME".to_owned(),
            value: Some(hero.spec.winged_horse_name.clone()),
            ..EnvVar::default()
        }]),
        ports: Some(vec![
            port("client", names::CLIENT_PORT),
            port("peer", names::PEER_PORT),
            port("health", names::HEALTH_PORT),
        ]),
        readiness_probe: Some(probe("/readyz", 3)),
        // Long enough for a restart of the log writer on a slow disk.
        liveness_probe: Some(probe("/livez", 6)),
        security_context: Some(unprivileged()),
        volume_mounts: Some(vec![
            mount("data", "/data".to_owned()),
            mount("tls", format!("{CREDENTIALS}/tls")),
            mount("admin", format!("{CREDENTIALS}/admin")),
            mount("client", format!("{CREDENTIALS}/client")),
        ]),
        ..Container::default()
    }
}

fn arguments() -> Vec<String> {
    let listen = |port: u16| format!("0.0.0.0:{port}");
    let options = [
        ("--data", DATA_DIRECTORY.to_owned()),
        ("--client-listen", listen(names::CLIENT_PORT)),
        ("--peer-listen", listen(names::PEER_PORT)),
        ("--health-listen", listen(names::HEALTH_PORT)),
        ("--tls-cert", format!("{CREDENTIALS}/tls/tls.crt")),
        ("--tls-key", format!("{CREDENTIALS}/tls/tls.key")),
        ("--tls-ca", format!("{CREDENTIALS}/tls/ca.crt")),
        ("--admin-token-file", format!("{CREDENTIALS}/admin/token")),
        ("--client-token-file", format!("{CREDENTIALS}/client/token")),
    ];
    let mut arguments = vec!["store".to_owned(), "serve".to_owned()];
    for (name, value) in options {
        arguments.push(name.to_owned());
        arguments.push(value);
    }
    arguments
}

fn volumes(hero: &Bellerophon, member: &MemberStatus) -> Vec<Volume> {
    let hero = hero.name_any();
    vec![
        claim_volume("data", &member.name),
        secret_volume("tls", names::member_secret(&member.name)),
        secret_volume("admin", names::admin_secret(&hero)),
        secret_volume("client", names::client_secret(&hero)),
    ]
}

/// Members are on different nodes if there are enough of them.
fn spread(hero: &Bellerophon) -> Affinity {
    let term = PodAffinityTerm {
        label_selector: Some(LabelSelector {
            match_labels: Some(names::member_selector(&hero.name_any())),
            ..LabelSelector::default()
        }),
        topology_key: "kubernetes.io/hostname".to_owned(),
        ..PodAffinityTerm::default()
    };
    Affinity {
        pod_anti_affinity: Some(PodAntiAffinity {
            preferred_during_scheduling_ignored_during_execution: Some(vec![
                WeightedPodAffinityTerm {
                    weight: 100,
                    pod_affinity_term: term,
                },
            ]),
            ..PodAntiAffinity::default()
        }),
        ..Affinity::default()
    }
}

fn port(name: &str, port: u16) -> ContainerPort {
    ContainerPort {
        name: Some(name.to_owned()),
        container_port: i32::from(port),
        ..ContainerPort::default()
    }
}

fn probe(path: &str, failures: i32) -> Probe {
    Probe {
        http_get: Some(HTTPGetAction {
            path: Some(path.to_owned()),
            port: IntOrString::String("health".to_owned()),
            ..HTTPGetAction::default()
        }),
        period_seconds: Some(5),
        timeout_seconds: Some(3),
        failure_threshold: Some(failures),
        ..Probe::default()
    }
}

pub(super) fn mount(name: &str, path: String) -> VolumeMount {
    VolumeMount {
        name: name.to_owned(),
        mount_path: path,
        ..VolumeMount::default()
    }
}

pub(super) fn claim_volume(name: &str, claim: &str) -> Volume {
    Volume {
        name: name.to_owned(),
        persistent_volume_claim: Some(PersistentVolumeClaimVolumeSource {
            claim_name: claim.to_owned(),
            ..PersistentVolumeClaimVolumeSource::default()
        }),
        ..Volume::default()
    }
}

pub(super) fn secret_volume(name: &str, secret: String) -> Volume {
    Volume {
        name: name.to_owned(),
        secret: Some(SecretVolumeSource {
            secret_name: Some(secret),
            // Readable for the group of the container only.
            default_mode: Some(0o440),
            ..SecretVolumeSource::default()
        }),
        ..Volume::default()
    }
}
