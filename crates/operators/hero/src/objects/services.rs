//! Services, the PodDisruptionBudget and the ScheduledBackup of a store.

use bellerophon::owner::OwnerError;
use k8s_openapi::{
    api::{
        core::v1::{Service, ServicePort, ServiceSpec},
        policy::v1::{PodDisruptionBudget, PodDisruptionBudgetSpec},
    },
    apimachinery::pkg::{apis::meta::v1::LabelSelector, util::intstr::IntOrString},
};
use kube::ResourceExt as _;

use super::{owned, shared_metadata};
use crate::{
    crd::{Bellerophon, ScheduledBackup, ScheduledBackupSpec},
    names,
};

/// The headless Service: host names of members, also of those that are not ready, since a member is
/// ready only after it has reached the others.
pub(crate) fn peer_service(hero: &Bellerophon) -> Result<Service, OwnerError> {
    let name = hero.name_any();
    let service = Service {
        metadata: shared_metadata(hero, names::peer_service(&name)),
        spec: Some(ServiceSpec {
            cluster_ip: Some("None".to_owned()),
            publish_not_ready_addresses: Some(true),
            selector: Some(names::member_selector(&name)),
            ports: Some(vec![
                port("client", names::CLIENT_PORT),
                port("peer", names::PEER_PORT),
                port("health", names::HEALTH_PORT),
            ]),
            ..ServiceSpec::default()
        }),
        status: None,
    };
    owned(hero, service)
}

/// The Service for clients: every ready member, voters and readers.
pub(crate) fn client_service(hero: &Bellerophon) -> Result<Service, OwnerError> {
    let name = hero.name_any();
    let service = Service {
        metadata: shared_metadata(hero, name.clone()),
        spec: Some(ServiceSpec {
            selector: Some(names::member_selector(&name)),
            ports: Some(vec![port("client", names::CLIENT_PORT)]),
            ..ServiceSpec::default()
        }),
        status: None,
    };
    owned(hero, service)
}

fn port(name: &str, port: u16) -> ServicePort {
    ServicePort {
        name: Some(name.to_owned()),
        port: i32::from(port),
        target_port: Some(IntOrString::String(name.to_owned())),
        ..ServicePort::default()
    }
}

/// The PodDisruptionBudget of the voters.
pub(crate) fn budget(
    hero: &Bellerophon,
    min_available: i32,
) -> Result<PodDisruptionBudget, OwnerError> {
    let name = hero.name_any();
    let budget = PodDisruptionBudget {
        metadata: shared_metadata(hero, name.clone()),
        spec: Some(PodDisruptionBudgetSpec {
            min_available: Some(IntOrString::Int(min_available)),
            selector: Some(LabelSelector {
                match_labels: Some(names::voter_selector(&name)),
                ..LabelSelector::default()
            }),
            ..PodDisruptionBudgetSpec::default()
        }),
        status: None,
    };
    owned(hero, budget)
}

/// The ScheduledBackup of `spec.backup.schedule`; `None` if it is unset.
pub(crate) fn schedule(hero: &Bellerophon) -> Result<Option<ScheduledBackup>, OwnerError> {
    let policy = &hero.spec.backup;
    let Some(schedule) = &policy.schedule else {
        return Ok(None);
    };
    let name = hero.name_any();
    let spec = ScheduledBackupSpec {
        hero: name.clone(),
        schedule: schedule.clone(),
        keep: policy.keep,
        suspend: false,
    };
    let mut backup = ScheduledBackup::new(&name, spec);
    backup.metadata = shared_metadata(hero, name);
    owned(hero, backup).map(Some)
}
