//! Observation: live reads of everything that belongs to a store.
//!
//! In: the key of a Bellerophon. Out: [`Observed`] for the plan, and the objects for its step.
//! Guarantees: the Bellerophon is read first, all other objects concurrently; nothing comes from a
//! cache; secrets stay in [`Objects`], which has no `Debug`.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use bellerophon::{
    ObjectKey,
    client::{ReconcileClient, WriteError},
    clock::Rng,
    owner::controller_of,
};
use futures_util::future::join_all;
use jiff::Timestamp;
use k8s_openapi::{
    api::{
        core::v1::{PersistentVolumeClaim, Pod, Secret, Service},
        policy::v1::PodDisruptionBudget,
    },
    apimachinery::pkg::util::intstr::IntOrString,
};
use kube::{Resource, ResourceExt as _, api::ListParams};
use tokio::time::timeout;

use crate::{
    crd::{Backup, Bellerophon, MemberRole, ScheduledBackup},
    member_api::{MemberApi, Target},
    names, objects,
    observed::{BackupState, ClaimState, Observed, PodPhase, PodState, Report, SharedObject},
    sampler::Sampler,
};

/// How long the status of a member may take: several heartbeats, and less than the interval of
/// observations.
const STATUS_TIMEOUT: Duration = Duration::from_secs(3);

/// The number of attempts to find an unused random name.
const NAME_ATTEMPTS: usize = 16;

/// What observations need besides a client.
pub struct Observer {
    /// How members are reached.
    pub members: Arc<dyn MemberApi>,
    /// Random names.
    pub rng: Rng,
    /// Rates.
    pub sampler: Sampler,
}

/// The objects that a step changes, as they were read.
pub struct Objects {
    pub(crate) hero: Arc<Bellerophon>,
    pub(crate) pods: BTreeMap<String, Arc<Pod>>,
    pub(crate) claims: BTreeMap<String, Arc<PersistentVolumeClaim>>,
    pub(crate) services: BTreeMap<String, Arc<Service>>,
    pub(crate) secrets: BTreeMap<String, Arc<Secret>>,
    pub(crate) budget: Option<Arc<PodDisruptionBudget>>,
    pub(crate) schedule: Option<Arc<ScheduledBackup>>,
}

impl Observer {
    /// Observes a store; `None` if the Bellerophon does not exist.
    ///
    /// # Errors
    /// The server refuses a read.
    pub async fn observe(
        &self,
        client: &ReconcileClient,
        key: &ObjectKey,
        now: Timestamp,
    ) -> Result<Option<(Observed, Objects)>, WriteError> {
        let Some(hero) = client.get::<Bellerophon>(key).await? else {
            return Ok(None);
        };
        let objects = read_objects(client, key, hero).await?;
        let reports = self.reports(&objects).await;
        let rates = self
            .sampler
            .sample(&objects.hero.uid().unwrap_or_default(), &reports, now);
        let backup = read_backup(client, &objects.hero).await?;
        let observed = Observed {
            hero: Bellerophon::clone(&objects.hero),
            now,
            fresh_name: self.fresh_name(&objects),
            fresh_cluster_id: names::random_cluster_id(&self.rng),
            shared: objects.shared(),
            budget: objects.min_available(),
            certificates: objects.certificates(),
            pods: objects
                .pods
                .iter()
                .map(|(name, pod)| (name.clone(), pod_state(pod)))
                .collect(),
            claims: objects.claim_states(),
            reports,
            backup,
            reads_per_second: rates.reads_per_second,
            recent_elections: rates.elections,
        };
        Ok(Some((observed, objects)))
    }

    /// The statuses of all members with a running Pod, the last known leader's first, so that the
    /// others are not compared with a later state of it.
    async fn reports(&self, objects: &Objects) -> BTreeMap<String, Report> {
        let status = objects.hero.status.clone().unwrap_or_default();
        let (leader, others): (Vec<_>, Vec<_>) = status
            .members
            .iter()
            .map(|member| member.name.clone())
            .partition(|name| status.leader.as_ref() == Some(name));
        let mut reports = BTreeMap::new();
        for group in [leader, others] {
            let requests = group.into_iter().filter_map(|name| {
                let target = objects.target(&name)?;
                Some(async move { (name, self.report(&target).await) })
            });
            reports.extend(join_all(requests).await);
        }
        reports
    }

    async fn report(&self, target: &Target) -> Report {
        match timeout(STATUS_TIMEOUT, self.members.status(target)).await {
            Ok(Ok(status)) => Ok(Box::new(status)),
            Ok(Err(error)) => Err(error.message),
            Err(_) => Err("it does not answer".to_owned()),
        }
    }

    /// A random name that no member, Pod or claim has.
    fn fresh_name(&self, objects: &Objects) -> String {
        let hero = objects.hero.name_any();
        let mut name = String::new();
        for _ in 0..NAME_ATTEMPTS {
            name = names::random_member_name(&hero, &self.rng);
            let members = objects
                .hero
                .status
                .iter()
                .flat_map(|status| &status.members);
            let is_used = objects.pods.contains_key(&name)
                || objects.claims.contains_key(&name)
                || members.into_iter().any(|member| member.name == name);
            if !is_used {
                break;
            }
        }
        name
    }
}

async fn read_objects(
    client: &ReconcileClient,
    key: &ObjectKey,
    hero: Arc<Bellerophon>,
) -> Result<Objects, WriteError> {
    let namespace = key.namespace();
    let own = ListParams::default().labels(&format!("{}={}", names::HERO_LABEL, key.name()));
    let (pods, claims, services, secrets, budget, schedule) = tokio::try_join!(
        client.list::<Pod>(namespace, &own),
        client.list::<PersistentVolumeClaim>(namespace, &own),
        client.list::<Service>(namespace, &own),
        client.list::<Secret>(namespace, &own),
        client.get(key),
        client.get(key),
    )?;
    let uid = hero.uid();
    let is_controlled =
        |pod: &Arc<Pod>| controller_of(&**pod).map(|owner| &owner.uid) == uid.as_ref();
    Ok(Objects {
        pods: by_name(pods.into_iter().filter(is_controlled)),
        claims: by_name(claims.into_iter().filter(|claim| is_of_member(claim))),
        services: by_name(services),
        secrets: by_name(secrets),
        budget,
        schedule,
        hero,
    })
}

fn by_name<K: Resource>(objects: impl IntoIterator<Item = Arc<K>>) -> BTreeMap<String, Arc<K>> {
    let named = objects.into_iter().map(|object| {
        let name = object.meta().name.clone().unwrap_or_default();
        (name, object)
    });
    named.collect()
}

fn is_of_member(claim: &PersistentVolumeClaim) -> bool {
    let component = claim.labels().get(names::COMPONENT_LABEL);
    component.is_some_and(|component| component == names::MEMBER_COMPONENT)
}

/// The backup that a new store begins with.
async fn read_backup(
    client: &ReconcileClient,
    hero: &Bellerophon,
) -> Result<Option<BackupState>, WriteError> {
    let source = hero
        .spec
        .bootstrap
        .as_ref()
        .and_then(|bootstrap| bootstrap.restore.as_ref());
    let name = source.and_then(|source| source.backup.as_ref());
    let has_begun = hero
        .status
        .as_ref()
        .is_some_and(|status| status.cluster_id.is_some());
    let Some(name) = name.filter(|_| !has_begun) else {
        return Ok(None);
    };
    let key = ObjectKey::in_namespace_of(hero, name);
    let backup = client.get::<Backup>(&key).await?;
    let status = backup.and_then(|backup| backup.status.clone());
    Ok(status.and_then(|status| {
        Some(BackupState {
            phase: status.phase,
            claim: status.claim?,
            file: status.file?,
            checksum: status.checksum?,
            revision: status.revision?,
        })
    }))
}

impl Objects {
    /// How a member is reached; `None` if its Pod does not run or the credentials do not exist.
    pub(crate) fn target(&self, member: &str) -> Option<Target> {
        let pod = self.pods.get(member)?;
        if pod_state(pod).phase != PodPhase::Running {
            return None;
        }
        let hero = self.hero.name_any();
        let admin = self.secrets.get(&names::admin_secret(&hero))?;
        let authority = self.secrets.get(&names::ca_secret(&hero))?;
        Some(Target {
            namespace: self.hero.namespace().unwrap_or_default(),
            pod: member.to_owned(),
            ip: pod.status.as_ref().and_then(|status| status.pod_ip.clone()),
            host: names::host(&self.hero, member),
            token: objects::text(admin, objects::TOKEN)?,
            ca_pem: objects::text(authority, objects::CERTIFICATE)?,
        })
    }

    /// The shared objects that exist and are as desired.
    fn shared(&self) -> std::collections::BTreeSet<SharedObject> {
        let as_desired = |object: &SharedObject| match object {
            SharedObject::PeerService => self.is_service_current(objects::peer_service(&self.hero)),
            SharedObject::ClientService => {
                self.is_service_current(objects::client_service(&self.hero))
            }
            SharedObject::Authority => {
                let name = names::ca_secret(&self.hero.name_any());
                self.has_texts(&name, &[objects::CERTIFICATE, objects::PRIVATE_KEY])
            }
            SharedObject::AdminToken => {
                let name = names::admin_secret(&self.hero.name_any());
                self.has_texts(&name, &[objects::TOKEN])
            }
            SharedObject::ClientToken => {
                let name = names::client_secret(&self.hero.name_any());
                self.has_texts(&name, &[objects::TOKEN, objects::CA_CERTIFICATE])
            }
            SharedObject::Schedule => match objects::schedule(&self.hero) {
                Ok(desired) => match (&self.schedule, desired) {
                    (current, Some(desired)) => current
                        .as_ref()
                        .is_some_and(|current| current.spec == desired.spec),
                    // One that the user created is not the operator's to delete.
                    (Some(current), None) => {
                        controller_of(&**current).map(|owner| &owner.uid)
                            != self.hero.metadata.uid.as_ref()
                    }
                    (None, None) => true,
                },
                Err(_) => false,
            },
        };
        SharedObject::ALL.into_iter().filter(as_desired).collect()
    }

    /// Whether a Service has the fields that the operator manages.
    fn is_service_current<E>(&self, desired: Result<Service, E>) -> bool {
        let Ok(desired) = desired else { return false };
        let Some(current) = self.services.get(&desired.name_any()) else {
            return false;
        };
        let (Some(current), Some(desired)) = (&current.spec, &desired.spec) else {
            return false;
        };
        let ports = |spec: &k8s_openapi::api::core::v1::ServiceSpec| -> Vec<_> {
            let ports = spec.ports.iter().flatten();
            ports
                .map(|port| (port.name.clone(), port.port, port.target_port.clone()))
                .collect()
        };
        current.selector == desired.selector
            && ports(current) == ports(desired)
            && desired
                .publish_not_ready_addresses
                .is_none_or(|desired| current.publish_not_ready_addresses == Some(desired))
    }

    fn has_texts(&self, secret: &str, keys: &[&str]) -> bool {
        let secret = self.secrets.get(secret);
        secret.is_some_and(|secret| keys.iter().all(|key| objects::text(secret, key).is_some()))
    }

    fn min_available(&self) -> Option<i32> {
        let spec = self.budget.as_ref()?.spec.as_ref()?;
        match spec.min_available.as_ref()? {
            IntOrString::Int(count) => Some(*count),
            IntOrString::String(_) => None,
        }
    }

    fn certificates(&self) -> BTreeMap<String, Timestamp> {
        let members = self.hero.status.iter().flat_map(|status| &status.members);
        members
            .filter_map(|member| {
                let secret = self.secrets.get(&names::member_secret(&member.name))?;
                Some((member.name.clone(), objects::not_after(secret)?))
            })
            .collect()
    }

    fn claim_states(&self) -> BTreeMap<String, ClaimState> {
        let uid = self.hero.uid().unwrap_or_default();
        let states = self.claims.iter().map(|(name, claim)| {
            let labels = claim.labels();
            let state = ClaimState {
                uid: claim.uid().unwrap_or_default(),
                member_id: labels
                    .get(names::MEMBER_LABEL)
                    .and_then(|id| id.parse().ok()),
                is_own: labels.get(names::HERO_UID_LABEL) == Some(&uid),
                is_terminating: claim.metadata.deletion_timestamp.is_some(),
                is_retired: labels.contains_key(names::RETIRED_LABEL),
            };
            (name.clone(), state)
        });
        states.collect()
    }
}

fn pod_state(pod: &Pod) -> PodState {
    let status = pod.status.as_ref();
    let containers = status.and_then(|status| status.container_statuses.as_ref());
    PodState {
        uid: pod.uid().unwrap_or_default(),
        phase: match status.and_then(|status| status.phase.as_deref()) {
            Some("Running") => PodPhase::Running,
            Some("Succeeded") => PodPhase::Succeeded,
            Some("Failed") => PodPhase::Failed,
            Some("Unknown") => PodPhase::Unknown,
            _ => PodPhase::Pending,
        },
        is_terminating: pod.metadata.deletion_timestamp.is_some(),
        created: pod
            .creation_timestamp()
            .map(|time| time.0)
            .unwrap_or_default(),
        revision: pod
            .annotations()
            .get(names::REVISION_ANNOTATION)
            .cloned()
            .unwrap_or_default(),
        role: match pod.labels().get(names::ROLE_LABEL).map(String::as_str) {
            Some("voter") => Some(MemberRole::Voter),
            Some("reader") => Some(MemberRole::Reader),
            _ => None,
        },
        restarts: containers
            .into_iter()
            .flatten()
            .map(|container| container.restart_count)
            .max()
            .unwrap_or_default(),
    }
}
