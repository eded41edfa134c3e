//! A store, its Pods and claims in memory: the plan without an API server.
//!
//! In: a Bellerophon, faults, time. Out: steps applied as the API server, kubelet and store would.
//! Guarantees: after every step the invariants of the operator are checked; a run is a function of
//! its seed.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Duration,
};

use bellerophon::clock::Rng;
use bellerophon_hero::{
    Bellerophon, ClaimState, Observed, PodPhase, PodState, SharedObject, Step,
    crd::{BellerophonSpec, BellerophonStatus, MemberPhase, MemberRole, MemberStatus, Phase},
    member_api::{AdminRequest, AdminResponse},
    names,
    plan::plan,
    revision,
    sampler::Sampler,
};
use bellerophon_store_client::api::{
    AddLearnerRequest, ChangeMembershipRequest, FormatRequest, InitializeRequest,
    RaiseFormatLevelRequest, TransferLeaderRequest,
};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt as _;

use crate::store_model::{Process, StoreModel, quorum};

/// How long a Pod takes to start, and to end.
const POD_TIME: Duration = Duration::from_secs(3);

/// The number of steps after which a run that has not converged is a failure.
const STEPS_MAX: usize = 20_000;

/// A Pod and its kubelet.
#[derive(Clone, Debug)]
pub(crate) struct SimPod {
    pub(crate) state: PodState,
    image: String,
    claim: String,
    /// When the next change happens.
    due: Option<Timestamp>,
    /// Whether its node is gone: it never ends.
    pub(crate) is_stranded: bool,
}

/// A store and everything around it.
pub(crate) struct Simulation {
    pub(crate) hero: Bellerophon,
    pub(crate) pods: BTreeMap<String, SimPod>,
    pub(crate) claims: BTreeMap<String, ClaimState>,
    pub(crate) store: StoreModel,
    pub(crate) now: Timestamp,
    pub(crate) rng: Rng,
    /// Mutations so far, by name.
    pub(crate) mutations: Vec<&'static str>,
    pub(crate) reads_per_second: Option<f64>,
    shared: BTreeSet<SharedObject>,
    budget: Option<i32>,
    certificates: BTreeMap<String, Timestamp>,
    uids: u64,
    /// Voters whose healthy Pod the operator deleted, and that are not healthy again.
    down_by_us: BTreeSet<u64>,
    retired: BTreeSet<String>,
    /// All ids that were allocated, by cluster.
    pub(crate) is_deleted: bool,
    sampler: Sampler,
}

/// A store with a number of voters.
pub(crate) fn hero(replicas: i32) -> Bellerophon {
    let spec: BellerophonSpec = serde_json::from_value(serde_json::json!({
        "winged_horse_name": "pegasus", "image": "store:1.0.0", "replicas": replicas,
    }))
    .expect("a spec");
    let mut hero = Bellerophon::new("icarus", spec);
    hero.metadata.namespace = Some("default".into());
    hero.metadata.uid = Some("hero-1".into());
    hero.metadata.generation = Some(1);
    hero
}

impl Simulation {
    pub(crate) fn new(hero: Bellerophon, seed: u64) -> Self {
        Self {
            hero,
            pods: BTreeMap::new(),
            claims: BTreeMap::new(),
            store: StoreModel::new(),
            now: Timestamp::from_second(1_767_268_800).expect("a time"),
            rng: Rng::seeded(seed),
            mutations: Vec::new(),
            reads_per_second: None,
            shared: BTreeSet::new(),
            budget: None,
            certificates: BTreeMap::new(),
            uids: 0,
            down_by_us: BTreeSet::new(),
            retired: BTreeSet::new(),
            is_deleted: false,
            sampler: Sampler::default(),
        }
    }

    pub(crate) fn status(&self) -> BellerophonStatus {
        self.hero.status.clone().unwrap_or_default()
    }

    fn uid(&mut self, kind: &str) -> String {
        self.uids += 1;
        format!("{kind}-{}", self.uids)
    }

    pub(crate) fn cluster_id(&self) -> String {
        self.status().cluster_id.unwrap_or_default()
    }

    /// The processes of running Pods, by Pod name.
    pub(crate) fn processes(&self) -> BTreeMap<String, Process> {
        let running = self.pods.iter().filter(|(name, pod)| {
            pod.state.phase == PodPhase::Running && !pod.is_stranded && !name.ends_with("-restore")
        });
        running
            .map(|(name, pod)| {
                let version = pod.image.rsplit(':').next().unwrap_or_default().to_owned();
                let level_max = if version.starts_with("1.0") { 1 } else { 2 };
                let claim = pod.claim.clone();
                (
                    name.clone(),
                    Process {
                        claim,
                        version,
                        level_max,
                    },
                )
            })
            .collect()
    }

    pub(crate) fn observe(&mut self) -> Observed {
        let processes = self.processes();
        self.store.tick(&processes);
        let cluster = self.cluster_id();
        let voters = self.store.voters(&cluster);
        self.down_by_us
            .retain(|id| voters.contains(id) && !self.store.is_healthy(&cluster, *id, &processes));
        let reports = processes
            .iter()
            .map(|(name, process)| (name.clone(), self.store.status(process).map(Box::new)))
            .collect();
        let rates = self.sampler.sample("hero-1", &reports, self.now);
        let mut fresh_name = names::random_member_name("icarus", &self.rng);
        while self.pods.contains_key(&fresh_name) || self.claims.contains_key(&fresh_name) {
            fresh_name = names::random_member_name("icarus", &self.rng);
        }
        Observed {
            hero: self.hero.clone(),
            now: self.now,
            fresh_name,
            fresh_cluster_id: names::random_cluster_id(&self.rng),
            shared: self.shared.clone(),
            budget: self.budget,
            certificates: self.certificates.clone(),
            pods: self
                .pods
                .iter()
                .map(|(name, pod)| (name.clone(), pod.state.clone()))
                .collect(),
            claims: self.claims.clone(),
            reports,
            backup: None,
            reads_per_second: self.reads_per_second.or(rates.reads_per_second),
            recent_elections: rates.elections,
        }
    }

    /// One reconcile: observe, plan, apply, and the time until the next one. Returns the step.
    pub(crate) fn reconcile(&mut self) -> Step {
        let observed = self.observe();
        let step = plan(&observed);
        self.check_before(&step);
        // An error is read again by the next observation.
        _ = self.apply(&step);
        self.check_after(&step);
        let after = match &step {
            Step::Wait { after, .. } => *after,
            _ => Duration::from_millis(10),
        };
        self.advance(after);
        step
    }

    /// A reconcile whose operator crashes after its mutation, before anything else.
    pub(crate) fn crash_after_mutation(&mut self) {
        let observed = self.observe();
        let step = plan(&observed);
        self.check_before(&step);
        match &step {
            // The id was allocated and is on record nowhere.
            Step::Allocate { .. } => _ = self.send_to_leader(&AdminRequest::Allocate),
            step => _ = self.apply(step),
        }
        self.advance(Duration::from_secs(1));
    }

    /// Advances time; kubelets and the garbage collector act.
    pub(crate) fn advance(&mut self, time: Duration) {
        self.now = self.now.saturating_add(time).expect("the time is in range");
        let now = self.now;
        let due = |pod: &SimPod| pod.due.is_some_and(|due| due <= now) && !pod.is_stranded;
        let names: Vec<String> = self
            .pods
            .iter()
            .filter(|(_, pod)| due(pod))
            .map(|(name, _)| name.clone())
            .collect();
        for name in names {
            self.change_pod(&name);
        }
        let in_use: BTreeSet<String> = self.pods.values().map(|pod| pod.claim.clone()).collect();
        self.claims
            .retain(|_, claim| !claim.is_terminating || in_use.contains(&claim.uid));
    }

    fn change_pod(&mut self, name: &str) {
        let Some(pod) = self.pods.get_mut(name) else {
            return;
        };
        pod.due = None;
        if pod.state.is_terminating {
            self.pods.remove(name);
            return;
        }
        pod.state.phase = PodPhase::Running;
        if name.ends_with("-restore") {
            pod.state.phase = PodPhase::Succeeded;
            let claim = pod.claim.clone();
            let status = self.status();
            let restore = status.restore.clone().expect("a restore");
            let cluster = self.cluster_id();
            self.store
                .restore(&claim, &cluster, 1, "a", restore.min_revision);
        }
    }

    /// The Pod of a member ends without being deleted.
    pub(crate) fn end_pod(&mut self, name: &str, phase: PodPhase) {
        if let Some(pod) = self.pods.get_mut(name) {
            pod.state.phase = phase;
            pod.due = None;
            if pod.state.is_terminating {
                pod.due = Some(self.now);
            }
        }
    }

    /// A client deletes a Pod.
    pub(crate) fn delete_pod(&mut self, name: &str) {
        let now = self.now;
        if let Some(pod) = self.pods.get_mut(name)
            && !pod.state.is_terminating
        {
            pod.state.is_terminating = true;
            pod.due = now.saturating_add(POD_TIME).ok();
        }
    }

    /// A client deletes a claim; it goes when no Pod uses it.
    pub(crate) fn delete_claim(&mut self, name: &str) {
        if let Some(claim) = self.claims.get_mut(name) {
            claim.is_terminating = true;
        }
    }

    fn send(&mut self, member: &str, request: &AdminRequest) -> Result<AdminResponse, String> {
        let processes = self.processes();
        let process = processes.get(member).ok_or("it does not run")?;
        self.store.send(process, request, &processes)
    }

    fn send_to_leader(&mut self, request: &AdminRequest) -> Result<AdminResponse, String> {
        let leader = self.status().leader.ok_or("there is no leader")?;
        self.send(&leader, request)
    }

    fn entry(&self, member: &str) -> MemberStatus {
        self.status()
            .member(member)
            .cloned()
            .expect("a step names a member of the status")
    }

    fn apply(&mut self, step: &Step) -> Result<(), String> {
        if step.is_mutation() {
            self.mutations.push(step.name());
        }
        let cluster_id = self.cluster_id();
        let parsed = || cluster_id.parse().map_err(|error| format!("{error}"));
        match step {
            Step::Wait { .. } => {}
            Step::WriteStatus(status) => self.hero.status = Some((**status).clone()),
            Step::AddFinalizer => self.hero.finalizers_mut().push(names::FINALIZER.to_owned()),
            Step::RemoveFinalizer => {
                self.hero.finalizers_mut().clear();
                self.is_deleted = true;
            }
            Step::ApplyShared(object) => _ = self.shared.insert(*object),
            Step::ApplyBudget { min_available } => self.budget = Some(*min_available),
            Step::IssueCertificate { member } => {
                let end = self.now + jiff::SignedDuration::from_hours(90 * 24);
                self.certificates.insert(member.clone(), end);
            }
            Step::DeleteCertificate { member } => _ = self.certificates.remove(member),
            Step::Allocate { name, role } => {
                let AdminResponse::Allocated(id) = self.send_to_leader(&AdminRequest::Allocate)?
                else {
                    return Err("no id".to_owned());
                };
                let mut status = self.status();
                status.members.push(MemberStatus {
                    name: name.clone(),
                    id,
                    role: *role,
                    ..MemberStatus::default()
                });
                self.hero.status = Some(status);
            }
            Step::CreateClaim { member } => self.create_claim(member)?,
            Step::RetireClaim { member } => {
                if let Some(claim) = self.claims.get_mut(member) {
                    claim.is_retired = true;
                    self.retired.insert(claim.uid.clone());
                }
            }
            Step::DeleteClaim { member } => self.delete_claim(member),
            Step::CreatePod { member } => self.create_pod(member, member.clone())?,
            Step::CreateRestorePod { member } => {
                self.create_pod(member, names::restore_pod(member))?
            }
            Step::DeletePod { pod, .. } => self.delete_pod(pod),
            Step::LabelPod { member, role } => {
                if let Some(pod) = self.pods.get_mut(member) {
                    pod.state.role = Some(*role);
                }
            }
            Step::Initialize { member } => {
                let request = AdminRequest::Initialize(InitializeRequest {
                    cluster_id: parsed()?,
                    member_id: self.entry(member).id,
                    address: names::peer_address(&self.hero, member),
                });
                self.send(member, &request)?;
            }
            Step::Format { member } => {
                let request = AdminRequest::Format(FormatRequest {
                    cluster_id: parsed()?,
                    member_id: self.entry(member).id,
                });
                self.send(member, &request)?;
            }
            Step::AddLearner { member } => {
                let request = AdminRequest::AddLearner(AddLearnerRequest {
                    id: self.entry(member).id,
                    address: names::peer_address(&self.hero, member),
                });
                self.send_to_leader(&request)?;
            }
            Step::ChangeMembership {
                voters,
                learners,
                expected_index,
            } => {
                let request = AdminRequest::ChangeMembership(ChangeMembershipRequest {
                    voters: voters.clone(),
                    learners: learners.clone(),
                    expected_membership_index: *expected_index,
                });
                self.send_to_leader(&request)?;
            }
            Step::TransferLeader { to, .. } => {
                let to = self.entry(to).id;
                self.send_to_leader(&AdminRequest::TransferLeader(TransferLeaderRequest { to }))?;
            }
            Step::RaiseFormatLevel { level } => {
                let request = RaiseFormatLevelRequest { level: *level };
                self.send_to_leader(&AdminRequest::RaiseFormatLevel(request))?;
            }
            Step::Compact { member } => {
                self.send(member, &AdminRequest::Compact)?;
                let mut status = self.status();
                status.autopilot.compacted_at = Some(Time(self.now));
                self.hero.status = Some(status);
            }
        }
        Ok(())
    }

    fn create_claim(&mut self, member: &str) -> Result<(), String> {
        if self.claims.contains_key(member) {
            return Err("AlreadyExists".to_owned());
        }
        let uid = self.uid("claim");
        self.store.wipe(&uid);
        let claim = ClaimState {
            uid,
            member_id: Some(self.entry(member).id),
            is_own: true,
            is_terminating: false,
            is_retired: false,
        };
        self.claims.insert(member.to_owned(), claim);
        Ok(())
    }

    fn create_pod(&mut self, member: &str, name: String) -> Result<(), String> {
        if self.pods.contains_key(&name) {
            return Err("AlreadyExists".to_owned());
        }
        let claim = self
            .claims
            .get(member)
            .cloned()
            .ok_or("the claim does not exist")?;
        if self.retired.contains(&claim.uid) {
            self.store
                .violations
                .push(format!("the retired claim {member} is mounted"));
        }
        let status = self.status();
        let entry = self.entry(member);
        let is_voter = status.voters.contains(&entry.id);
        let role = if is_voter {
            entry.role
        } else {
            MemberRole::Reader
        };
        let pod = SimPod {
            state: PodState {
                uid: self.uid("pod"),
                phase: PodPhase::Pending,
                is_terminating: false,
                created: self.now,
                revision: revision(&self.hero, &status),
                role: Some(role),
                restarts: 0,
            },
            image: status.image.clone().unwrap_or_default(),
            claim: claim.uid,
            due: self.now.saturating_add(POD_TIME).ok(),
            is_stranded: false,
        };
        self.pods.insert(name, pod);
        Ok(())
    }

    /// What must hold for a step, given the true state.
    fn check_before(&mut self, step: &Step) {
        let cluster = self.cluster_id();
        let processes = self.processes();
        let claims: BTreeSet<String> = self
            .claims
            .values()
            .filter(|claim| !claim.is_terminating)
            .map(|claim| claim.uid.clone())
            .collect();
        let is_terminating = self.hero.metadata.deletion_timestamp.is_some();
        let is_lost = self.store.is_data_lost(&cluster, &claims);
        if is_lost && step.is_mutation() && !is_terminating {
            let text = format!("{} while a majority has lost its data", step.name());
            // A disk that was lost after the observation is not known yet.
            if self.status().phase == Phase::QuorumLost {
                self.store.violations.push(text);
            }
        }
        if let Step::DeletePod { pod, .. } = step
            && let Some(member) = self.status().member(pod)
            && !is_terminating
        {
            self.check_stop(&cluster, member.id, &processes);
        }
    }

    /// A healthy voter is stopped only if all others are healthy.
    fn check_stop(&mut self, cluster: &str, id: u64, processes: &BTreeMap<String, Process>) {
        let voters = self.store.voters(cluster);
        if !voters.contains(&id) || !self.store.is_healthy(cluster, id, processes) {
            return;
        }
        let healthy = voters
            .iter()
            .filter(|voter| **voter != id && self.store.is_healthy(cluster, **voter, processes))
            .count();
        if healthy + 1 < voters.len() {
            let text = format!("voter {id} is stopped while another one is unhealthy");
            self.store.violations.push(text);
        }
        if voters.len() > 2 && healthy < quorum(voters.len()) {
            self.store
                .violations
                .push(format!("voter {id} is stopped, and the quorum is lost"));
        }
        self.down_by_us.insert(id);
        if self.down_by_us.len() > 1 {
            let text = format!("more than one voter is down: {:?}", self.down_by_us);
            self.store.violations.push(text);
        }
    }

    fn check_after(&mut self, step: &Step) {
        let violations = &self.store.violations;
        assert!(
            violations.is_empty(),
            "after {step:?}: {violations:#?}\n{}",
            self.describe()
        );
        let status = self.status();
        let ids: BTreeSet<u64> = status.members.iter().map(|member| member.id).collect();
        assert_eq!(
            ids.len(),
            status.members.len(),
            "two members have one id: {status:#?}"
        );
    }

    /// Reconciles until nothing is to be done for a minute.
    pub(crate) fn settle(&mut self) -> BellerophonStatus {
        let mut quiet = Duration::ZERO;
        for _ in 0..STEPS_MAX {
            if self.is_deleted {
                return self.status();
            }
            let before = self.now;
            match self.reconcile() {
                Step::Wait { .. } if self.is_quiet() => {
                    let waited = self.now.duration_since(before);
                    quiet += Duration::try_from(waited).unwrap_or_default();
                }
                _ => quiet = Duration::ZERO,
            }
            if quiet >= Duration::from_secs(60) {
                return self.status();
            }
        }
        panic!("not settled after {STEPS_MAX} steps: {}", self.describe())
    }

    /// The state of members and Pods, a line each.
    pub(crate) fn describe(&self) -> String {
        let status = self.status();
        let mut text = format!(
            "{:?} at {}, desired {} {}, image {:?}, version {:?}, leader {:?}, voters {:?}\n",
            status.phase,
            self.now,
            self.hero.spec.replicas,
            self.hero.spec.image,
            status.image,
            status.version,
            status.leader,
            status.voters
        );
        for member in &status.members {
            let pod = self.pods.get(&member.name).map(|pod| {
                (
                    &pod.state.phase,
                    pod.state.is_terminating,
                    pod.is_stranded,
                    &pod.image,
                )
            });
            let claim = self.claims.get(&member.name);
            text += &format!(
                "{} {} {:?} {:?} healthy {} {:?} lag {:?} since {:?} pod {pod:?} claim {:?} removal {:?}\n",
                member.name,
                member.id,
                member.role,
                member.phase,
                member.healthy,
                member.state,
                member.lag,
                member.unhealthy_since.as_ref().map(|time| time.0),
                claim.map(|claim| (&claim.uid, claim.is_terminating)),
                member.removal_reason
            );
        }
        for condition in &status.conditions {
            text += &format!(
                "{}={} {} {}\n",
                condition.type_, condition.status, condition.reason, condition.message
            );
        }
        text + &format!(
            "last steps {:?}",
            &self.mutations[self.mutations.len().saturating_sub(12)..]
        )
    }

    fn is_quiet(&self) -> bool {
        self.pods
            .values()
            .all(|pod| pod.due.is_none() || pod.is_stranded)
            && matches!(
                self.status().phase,
                Phase::Running | Phase::QuorumLost | Phase::Blocked | Phase::Unavailable
            )
    }

    /// The names of members in a phase.
    pub(crate) fn members_in(&self, phase: MemberPhase) -> Vec<String> {
        let status = self.status();
        let members = status.members.iter().filter(|member| member.phase == phase);
        members.map(|member| member.name.clone()).collect()
    }

    /// The UID of a member's claim.
    pub(crate) fn claim_uid(&self, member: &str) -> String {
        self.claims
            .get(member)
            .map(|claim| claim.uid.clone())
            .unwrap_or_default()
    }

    /// Changes the spec, as a user does.
    pub(crate) fn edit(&mut self, change: impl FnOnce(&mut BellerophonSpec)) {
        change(&mut self.hero.spec);
        let generation = self.hero.metadata.generation.unwrap_or_default();
        self.hero.metadata.generation = Some(generation + 1);
    }

    /// Deletes the Bellerophon, as a user does.
    pub(crate) fn delete(&mut self) {
        self.hero.metadata.deletion_timestamp = Some(Time(self.now));
    }
}
