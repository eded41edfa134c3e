//! A model of the replicated store: disks, members, elections, replication and membership.
//!
//! In: which Pods run on which claims, and admin requests. Out: the statuses and refusals of the
//! real store.
//! Guarantees: a leader needs a majority of the voters, and a log at least as long as that of a
//! majority; an entry is committed only on a majority; what breaks an invariant is recorded in
//! [`StoreModel::violations`].

use std::collections::{BTreeMap, BTreeSet};

use bellerophon_hero::member_api::{AdminRequest, AdminResponse};
use bellerophon_store_client::api::{
    ChangeMembershipRequest, FormatLevels, MemberState, Membership, MembershipMember, Replication,
    RequestCounts, Role, Status,
};

/// The entries that a member receives between two observations.
const CATCH_UP: u64 = 2_000;

/// The bytes of one log entry.
const ENTRY_BYTES: u64 = 300;

/// A running process: a Pod on a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Process {
    /// The UID of the claim.
    pub(crate) claim: String,
    pub(crate) version: String,
    pub(crate) level_max: u32,
}

/// A data directory.
#[derive(Clone, Debug, Default)]
struct Disk {
    identity: Option<(String, u64)>,
    /// The last index in the log, which is applied as soon as it is committed.
    matched: u64,
    log_bytes: u64,
    reads: u64,
}

#[derive(Clone, Debug)]
struct Cluster {
    term: u64,
    leader: Option<u64>,
    last: u64,
    committed: u64,
    /// The revision before the first entry.
    base_revision: u64,
    level: u32,
    membership: Membership,
    /// The voters before an unfinished change.
    old_voters: Option<BTreeSet<u64>>,
    /// The last committed membership: a leader without the entry of a later one has this one.
    previous: Option<(Membership, Option<BTreeSet<u64>>)>,
}

impl Cluster {
    /// Keeps the membership before it is changed, if it is committed.
    fn keep_membership(&mut self) {
        if self.membership.index <= self.committed {
            self.previous = Some((self.membership.clone(), self.old_voters.clone()));
        }
    }
}

/// All disks and clusters.
#[derive(Clone, Debug, Default)]
pub(crate) struct StoreModel {
    disks: BTreeMap<String, Disk>,
    clusters: BTreeMap<String, Cluster>,
    /// Which claim each id was formatted on.
    formatted: BTreeMap<(String, u64), String>,
    /// Claims whose process receives nothing.
    pub(crate) stalled: BTreeSet<String>,
    /// Claims whose process does not answer.
    pub(crate) unreachable: BTreeSet<String>,
    /// Whether the next change of the membership stops half-way.
    pub(crate) interrupts_change: bool,
    /// The reads that each member serves between two observations.
    pub(crate) reads_per_tick: u64,
    /// The lag above which no member is promoted.
    pub(crate) lag_max: u64,
    pub(crate) violations: Vec<String>,
}

pub(crate) fn quorum(voters: usize) -> usize {
    voters / 2 + 1
}

impl StoreModel {
    pub(crate) fn new() -> Self {
        Self {
            lag_max: 1000,
            ..Self::default()
        }
    }

    /// Loses the data on a claim.
    pub(crate) fn wipe(&mut self, claim: &str) {
        self.disks.insert(claim.to_owned(), Disk::default());
    }

    /// A data directory that was restored offline, as the only voter of a new cluster.
    pub(crate) fn restore(
        &mut self,
        claim: &str,
        cluster: &str,
        id: u64,
        address: &str,
        revision: u64,
    ) {
        self.format(claim, cluster, id);
        self.begin_cluster(claim, cluster, id, address, revision);
    }

    /// Whether fewer voters than a quorum still have their data.
    pub(crate) fn is_data_lost(&self, cluster: &str, claims: &BTreeSet<String>) -> bool {
        let Some(state) = self.clusters.get(cluster) else {
            return false;
        };
        let has_data = |id: &&u64| {
            claims.iter().any(|claim| {
                let disk = self.disks.get(claim);
                disk.and_then(|disk| disk.identity.as_ref()) == Some(&(cluster.to_owned(), **id))
            })
        };
        // A change that stopped half-way needs a majority of both sets.
        let sets = [Some(&state.membership.voters), state.old_voters.as_ref()];
        sets.into_iter()
            .flatten()
            .any(|voters| voters.iter().filter(has_data).count() < quorum(voters.len()))
    }

    /// The voters of a cluster, and its leader.
    pub(crate) fn voters(&self, cluster: &str) -> BTreeSet<u64> {
        self.clusters
            .get(cluster)
            .map(|state| state.membership.voters.clone())
            .unwrap_or_default()
    }

    /// Whether a member runs and has all committed entries up to the lag bound.
    pub(crate) fn is_healthy(
        &self,
        cluster: &str,
        id: u64,
        processes: &BTreeMap<String, Process>,
    ) -> bool {
        let Some(state) = self.clusters.get(cluster) else {
            return false;
        };
        self.live(cluster, processes).get(&id).is_some_and(|claim| {
            state.committed.saturating_sub(self.disks[claim].matched) <= self.lag_max
        })
    }

    /// Lets a cluster accept writes, if a leader has a quorum.
    pub(crate) fn write(&mut self, entries: u64) {
        for state in self.clusters.values_mut() {
            if state.leader.is_some() {
                state.last += entries;
            }
        }
    }

    /// Elections and replication until the next observation.
    pub(crate) fn tick(&mut self, processes: &BTreeMap<String, Process>) {
        let names: Vec<String> = self.clusters.keys().cloned().collect();
        for name in names {
            self.elect(&name, processes);
            self.replicate(&name, processes);
        }
        for process in processes.values() {
            if let Some(disk) = self.disks.get_mut(&process.claim) {
                disk.reads += self.reads_per_tick;
            }
        }
    }

    /// The members of a cluster that run, are reachable and receive entries, with their claims.
    fn live(&self, cluster: &str, processes: &BTreeMap<String, Process>) -> BTreeMap<u64, String> {
        let live = processes.values().filter_map(|process| {
            let (name, id) = self.disks.get(&process.claim)?.identity.as_ref()?;
            let is_live = name == cluster && !self.unreachable.contains(&process.claim);
            is_live.then(|| (*id, process.claim.clone()))
        });
        live.collect()
    }

    /// Whether these members are a majority of all sets of voters in effect.
    fn is_majority(state: &Cluster, members: &BTreeSet<u64>) -> bool {
        let sets = [Some(&state.membership.voters), state.old_voters.as_ref()];
        sets.into_iter()
            .flatten()
            .all(|voters| voters.intersection(members).count() >= quorum(voters.len()))
    }

    fn elect(&mut self, name: &str, processes: &BTreeMap<String, Process>) {
        let live = self.live(name, processes);
        let disks = &self.disks;
        let matched = |id: &u64| {
            live.get(id)
                .map(|claim| disks[claim].matched)
                .unwrap_or_default()
        };
        let Some(state) = self.clusters.get_mut(name) else {
            return;
        };
        let voters: BTreeSet<u64> = live
            .keys()
            .filter(|id| state.membership.voters.contains(id))
            .copied()
            .collect();
        let has_quorum = Self::is_majority(state, &voters);
        if state.leader.is_some_and(|leader| voters.contains(&leader)) && has_quorum {
            return;
        }
        state.leader = None;
        if !has_quorum {
            return;
        }
        let candidate = voters.iter().copied().max_by_key(|id| (matched(id), *id));
        let Some(candidate) = candidate else { return };
        state.term += 1;
        state.leader = Some(candidate);
        // What the former leader had not replicated is gone, and a blank entry begins the term.
        let last = matched(&candidate) + 1;
        state.last = last;
        if state.membership.index >= last
            && let Some((membership, old_voters)) = state.previous.take()
        {
            state.membership = membership;
            state.old_voters = old_voters;
            if !state.membership.voters.contains(&candidate) {
                state.leader = None;
            }
        }
        if last <= state.committed {
            let text = format!("{name}: member {candidate} leads without all committed entries");
            self.violations.push(text);
        }
        self.set_matched(&live[&candidate], last);
    }

    fn set_matched(&mut self, claim: &str, index: u64) {
        if let Some(disk) = self.disks.get_mut(claim) {
            let added = index.saturating_sub(disk.matched);
            disk.log_bytes += added * ENTRY_BYTES;
            disk.matched = index;
        }
    }

    fn replicate(&mut self, name: &str, processes: &BTreeMap<String, Process>) {
        let live = self.live(name, processes);
        let Some(state) = self.clusters.get(name).cloned() else {
            return;
        };
        let Some(leader) = state.leader else { return };
        for (id, claim) in &live {
            let is_member = state.membership.members.contains_key(id);
            let is_stalled = self.stalled.contains(claim) && *id != leader;
            if is_member && !is_stalled {
                let matched = self.disks[claim].matched;
                let next = if *id == leader {
                    state.last
                } else {
                    (matched + CATCH_UP).min(state.last)
                };
                self.set_matched(claim, next);
            }
        }
        let matched = |id: &u64| {
            live.get(id)
                .map(|claim| self.disks[claim].matched)
                .unwrap_or_default()
        };
        let committed = |voters: &BTreeSet<u64>| {
            let mut indexes: Vec<u64> = voters.iter().map(matched).collect();
            indexes.sort_unstable_by(|a, b| b.cmp(a));
            indexes[quorum(voters.len()) - 1]
        };
        let mut index = committed(&state.membership.voters);
        if let Some(old) = &state.old_voters {
            index = index.min(committed(old));
        }
        if let Some(state) = self.clusters.get_mut(name) {
            state.committed = state.committed.max(index);
        }
    }

    fn format(&mut self, claim: &str, cluster: &str, id: u64) {
        let key = (cluster.to_owned(), id);
        let former = self.formatted.insert(key.clone(), claim.to_owned());
        if former.as_ref().is_some_and(|former| former != claim) {
            self.violations
                .push(format!("{cluster}: id {id} was formatted on two claims"));
        }
        let is_voter = self.voters(cluster).contains(&id);
        if is_voter {
            self.violations.push(format!(
                "{cluster}: voter {id} was formatted on an empty disk"
            ));
        }
        self.disks.insert(
            claim.to_owned(),
            Disk {
                identity: Some(key),
                ..Disk::default()
            },
        );
    }

    fn begin_cluster(&mut self, claim: &str, cluster: &str, id: u64, address: &str, revision: u64) {
        let member = MembershipMember {
            address: address.to_owned(),
        };
        if self.clusters.contains_key(cluster) {
            self.violations
                .push(format!("{cluster}: initialized twice"));
        }
        self.clusters.insert(
            cluster.to_owned(),
            Cluster {
                term: 1,
                leader: Some(id),
                last: 2,
                committed: 2,
                base_revision: revision,
                level: 1,
                membership: Membership {
                    index: 1,
                    voters: BTreeSet::from([id]),
                    learners: BTreeSet::new(),
                    members: BTreeMap::from([(id, member)]),
                    is_joint: false,
                },
                old_voters: None,
                previous: None,
            },
        );
        self.set_matched(claim, 2);
    }

    /// The status of a process.
    pub(crate) fn status(&self, process: &Process) -> Result<Status, String> {
        if self.unreachable.contains(&process.claim) {
            return Err("connection refused".to_owned());
        }
        let mut status = empty_status(process);
        let disk = self.disks.get(&process.claim).cloned().unwrap_or_default();
        let Some((cluster, id)) = disk.identity.clone() else {
            return Ok(status);
        };
        status.cluster_id = Some(cluster.parse().map_err(|error| format!("{error}"))?);
        status.member_id = Some(id);
        status.log_bytes = disk.log_bytes;
        status.requests.reads = disk.reads;
        status.state = MemberState::Joining;
        status.role = Some(Role::Learner);
        let Some(state) = self.clusters.get(&cluster) else {
            return Ok(status);
        };
        status.format_level = state.level;
        status.last_log_index = disk.matched;
        status.applied_index = disk.matched.min(state.committed);
        status.committed_index = status.applied_index;
        // Equal indexes have equal revisions.
        status.revision = state.base_revision + status.applied_index;
        if !state.membership.members.contains_key(&id) {
            return Ok(status);
        }
        status.state = MemberState::Running;
        status.term = state.term;
        status.leader = state.leader;
        status.membership = state.membership.clone();
        if state.membership.voters.contains(&id) {
            status.role = Some(match state.leader {
                Some(leader) if leader == id => Role::Leader,
                Some(_) => Role::Follower,
                None => Role::Candidate,
            });
        }
        if state.leader == Some(id) {
            status.committed_index = state.committed;
            status.last_log_index = state.last;
            // The only voter has no acknowledgements.
            status.last_quorum_contact_ms = (state.membership.voters.len() > 1).then_some(0);
            status.replication = self.replication(&cluster, state);
        }
        Ok(status)
    }

    fn replication(&self, cluster: &str, state: &Cluster) -> BTreeMap<u64, Replication> {
        let others = state
            .membership
            .members
            .keys()
            .filter(|id| state.leader != Some(**id));
        others
            .map(|id| {
                let claim = self.formatted.get(&(cluster.to_owned(), *id));
                let disk = claim.and_then(|claim| self.disks.get(claim));
                let matched = disk.map(|disk| disk.matched).unwrap_or_default();
                let replication = Replication {
                    matched_index: matched,
                    lag: state.last.saturating_sub(matched),
                    last_contact_ms: Some(0),
                };
                (*id, replication)
            })
            .collect()
    }

    /// An admin request to a process.
    pub(crate) fn send(
        &mut self,
        process: &Process,
        request: &AdminRequest,
        processes: &BTreeMap<String, Process>,
    ) -> Result<AdminResponse, String> {
        if self.unreachable.contains(&process.claim) {
            return Err("connection refused".to_owned());
        }
        let identity = self
            .disks
            .get(&process.claim)
            .and_then(|disk| disk.identity.clone());
        match request {
            AdminRequest::Initialize(request) => {
                let expected = (request.cluster_id.to_string(), request.member_id);
                match identity {
                    Some(identity) if identity == expected => {}
                    Some(_) => return Err("AlreadyFormatted".to_owned()),
                    None => {
                        self.format(&process.claim, &expected.0, expected.1);
                        self.begin_cluster(
                            &process.claim,
                            &expected.0,
                            expected.1,
                            &request.address,
                            0,
                        );
                    }
                }
                return Ok(AdminResponse::Done);
            }
            AdminRequest::Format(request) => {
                let expected = (request.cluster_id.to_string(), request.member_id);
                match identity {
                    Some(identity) if identity == expected => {}
                    Some(_) => return Err("AlreadyFormatted".to_owned()),
                    None => self.format(&process.claim, &expected.0, expected.1),
                }
                return Ok(AdminResponse::Done);
            }
            AdminRequest::Compact => {
                if let Some(disk) = self.disks.get_mut(&process.claim) {
                    disk.log_bytes = 0;
                }
                return Ok(AdminResponse::Done);
            }
            _ => {}
        }
        let (cluster, id) = identity.ok_or("Unformatted")?;
        self.elect(&cluster, processes);
        let leader = self.clusters.get(&cluster).and_then(|state| state.leader);
        if leader != Some(id) {
            return Err("NoLeader".to_owned());
        }
        self.send_to_leader(&cluster, request, processes)
    }

    fn send_to_leader(
        &mut self,
        cluster: &str,
        request: &AdminRequest,
        processes: &BTreeMap<String, Process>,
    ) -> Result<AdminResponse, String> {
        let live = self.live(cluster, processes);
        match request {
            AdminRequest::Allocate => {
                let state = self.clusters.get_mut(cluster).ok_or("Unformatted")?;
                state.last += 1;
                let id = state.last;
                self.replicate(cluster, processes);
                return Ok(AdminResponse::Allocated(id));
            }
            AdminRequest::AddLearner(request) => {
                let state = self.clusters.get_mut(cluster).ok_or("Unformatted")?;
                if state.old_voters.is_some() {
                    return Err("Busy".to_owned());
                }
                let member = MembershipMember {
                    address: request.address.clone(),
                };
                state.keep_membership();
                if state
                    .membership
                    .members
                    .insert(request.id, member)
                    .is_none()
                {
                    state.membership.learners.insert(request.id);
                    state.last += 1;
                    state.membership.index = state.last;
                }
            }
            AdminRequest::ChangeMembership(request) => {
                self.change_membership(cluster, request, &live)?;
            }
            AdminRequest::TransferLeader(request) => {
                let claim = live.get(&request.to).ok_or("the target is not reachable")?;
                let matched = self.disks[claim].matched;
                let state = self.clusters.get_mut(cluster).ok_or("Unformatted")?;
                if !state.membership.voters.contains(&request.to) {
                    return Err("Invalid".to_owned());
                }
                if matched < state.committed {
                    return Err("the target is behind".to_owned());
                }
                state.term += 1;
                state.leader = Some(request.to);
                state.last = matched + 1;
                let claim = claim.clone();
                let last = matched + 1;
                self.set_matched(&claim, last);
            }
            AdminRequest::RaiseFormatLevel(request) => {
                let is_supported = processes
                    .values()
                    .all(|process| process.level_max >= request.level);
                let state = self.clusters.get_mut(cluster).ok_or("Unformatted")?;
                if !is_supported {
                    return Err("a member does not support it".to_owned());
                }
                state.level = request.level;
            }
            other => return Err(format!("{other:?} is not a request to a leader")),
        }
        self.replicate(cluster, processes);
        Ok(AdminResponse::Done)
    }

    fn change_membership(
        &mut self,
        cluster: &str,
        request: &ChangeMembershipRequest,
        live: &BTreeMap<u64, String>,
    ) -> Result<(), String> {
        let state = self.clusters.get(cluster).cloned().ok_or("Unformatted")?;
        if request.expected_membership_index != state.membership.index {
            return Err("ConditionFailed".to_owned());
        }
        if request.voters.is_empty() {
            return Err("Invalid".to_owned());
        }
        let is_known = |id: &u64| state.membership.members.contains_key(id);
        if !request.voters.iter().chain(&request.learners).all(is_known) {
            return Err("Invalid".to_owned());
        }
        for id in request.voters.difference(&state.membership.voters) {
            let matched = live.get(id).map(|claim| self.disks[claim].matched);
            let lag = state.committed.saturating_sub(matched.unwrap_or_default());
            if lag > self.lag_max {
                let text = format!("{cluster}: member {id} was promoted with a lag of {lag}");
                self.violations.push(text);
            }
        }
        let living: BTreeSet<u64> = live.keys().copied().collect();
        let old = state
            .old_voters
            .clone()
            .unwrap_or_else(|| state.membership.voters.clone());
        let after = request.voters.intersection(&living).count();
        if request.voters != old && after < quorum(request.voters.len()) {
            let text = format!(
                "{cluster}: {:?} of {:?} are no quorum",
                living, request.voters
            );
            self.violations.push(text);
        }
        let state = self.clusters.get_mut(cluster).ok_or("Unformatted")?;
        state.keep_membership();
        if self.interrupts_change && request.voters != old {
            self.interrupts_change = false;
            state.last += 1;
            state.membership.index = state.last;
            state.membership.voters = state
                .membership
                .voters
                .union(&request.voters)
                .copied()
                .collect();
            let voters = &state.membership.voters;
            state.membership.learners.retain(|id| !voters.contains(id));
            state.membership.is_joint = true;
            state.old_voters = Some(old);
            return Err("the outcome is unknown".to_owned());
        }
        if after < quorum(request.voters.len()) {
            return Err("the outcome is unknown".to_owned());
        }
        state.last += 2;
        state.membership.index = state.last;
        state.membership.voters = request.voters.clone();
        state.membership.learners = request.learners.clone();
        state.membership.is_joint = false;
        state.old_voters = None;
        let all: BTreeSet<u64> = request.voters.union(&request.learners).copied().collect();
        state.membership.members.retain(|id, _| all.contains(id));
        if state
            .leader
            .is_some_and(|leader| !request.voters.contains(&leader))
        {
            state.leader = None;
        }
        Ok(())
    }
}

fn empty_status(process: &Process) -> Status {
    Status {
        version: process.version.clone(),
        supported_format_levels: FormatLevels {
            min: 1,
            max: process.level_max,
        },
        format_level: 0,
        state: MemberState::Unformatted,
        cluster_id: None,
        member_id: None,
        role: None,
        term: 0,
        leader: None,
        last_log_index: 0,
        committed_index: 0,
        applied_index: 0,
        revision: 0,
        compacted_revision: 0,
        data_bytes: 0,
        log_bytes: 0,
        membership: Membership::default(),
        replication: BTreeMap::new(),
        requests: RequestCounts::default(),
        last_quorum_contact_ms: None,
        snapshot: None,
        message: String::new(),
    }
}
