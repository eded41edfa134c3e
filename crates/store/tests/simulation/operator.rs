//! Changes of the membership during a simulation, one request at a time.
//!
//! In: running members. Out: members that come and go.
//! Guarantee: a new member has an allocated id and an empty disk; a removed one never comes back.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex},
};

use bellerophon_store::{
    Member,
    api::{MemberId, MemberState, Reason, StoreError},
};
use rand::{RngExt, rngs::StdRng};

use crate::{
    cluster::Cluster,
    network::{Slot, address},
};

/// What the operator waits for.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Idle,
    Allocate,
    Format(MemberId),
    AddLearner(MemberId, Slot),
    Promote(MemberId),
    Remove(MemberId),
    Transfer,
    Compact,
}

pub(crate) struct Operator {
    step: Step,
    /// Where the request runs, if there is one.
    at: Option<Slot>,
    next: u64,
    result: Arc<Mutex<Option<Result<u64, StoreError>>>>,
    attempts: u32,
    /// Members that were removed; their machines must be switched off.
    pub(crate) removed: Vec<MemberId>,
}

/// How often a promotion is tried before the operator gives up.
const ATTEMPTS_MAX: u32 = 40;

/// Milliseconds between two requests.
const PAUSE_MS: u64 = 60;

impl Operator {
    pub(crate) fn new() -> Self {
        Self {
            step: Step::Idle,
            at: None,
            next: 0,
            result: Arc::default(),
            attempts: 0,
            removed: Vec::new(),
        }
    }

    pub(crate) fn is_idle(&self) -> bool {
        self.step == Step::Idle
    }

    pub(crate) fn grow(&mut self) {
        self.begin(Step::Allocate);
    }

    pub(crate) fn shrink(&mut self, id: MemberId) {
        self.begin(Step::Remove(id));
    }

    pub(crate) fn transfer(&mut self) {
        self.begin(Step::Transfer);
    }

    pub(crate) fn compact(&mut self) {
        self.begin(Step::Compact);
    }

    fn begin(&mut self, step: Step) {
        if self.is_idle() {
            self.step = step;
            self.attempts = 0;
        }
    }

    /// A process ended: its request has no result.
    pub(crate) fn lose(&mut self, slot: Slot) {
        if self.at == Some(slot) {
            self.at = None;
        }
    }

    pub(crate) fn step(&mut self, cluster: &mut Cluster, rng: &mut StdRng) {
        let result = self.result.lock().unwrap().take();
        if let Some(result) = result {
            self.at = None;
            self.next = cluster.now + PAUSE_MS;
            cluster
                .trace
                .record(format_args!("operator {:?} {result:?}", self.step));
            self.advance(result);
        }
        if self.at.is_some() || self.next > cluster.now || self.is_idle() {
            return;
        }
        if let Step::Format(id) = self.step {
            let slot = add_member(cluster, id, rng);
            self.step = Step::AddLearner(id, slot);
        }
        self.request(cluster, rng);
    }

    fn advance(&mut self, result: Result<u64, StoreError>) {
        self.attempts += 1;
        if let (Step::Remove(id), Ok(_)) = (&self.step, &result) {
            self.removed.push(*id);
        }
        self.step = match (&self.step, result) {
            (Step::Allocate, Ok(id)) => Step::Format(id),
            (Step::AddLearner(id, _), Ok(_)) => Step::Promote(*id),
            (_, Ok(_)) => Step::Idle,
            (step, Err(error)) => {
                let is_final = error.reason() == Reason::Invalid;
                if is_final || self.attempts >= ATTEMPTS_MAX {
                    Step::Idle
                } else {
                    step.clone()
                }
            }
        };
    }

    fn request(&mut self, cluster: &Cluster, rng: &mut StdRng) {
        let running = cluster.running();
        if running.is_empty() {
            return;
        }
        let slot = running[rng.random_range(0..running.len())];
        let step = self.step.clone();
        let result = Arc::clone(&self.result);
        let choice = rng.random_range(0..1000);
        self.at = Some(slot);
        cluster.spawn(slot, |member| async move {
            let outcome = perform(&member, &step, choice).await;
            *result.lock().unwrap() = Some(outcome);
        });
    }
}

/// Starts an empty machine and formats it as a member.
pub(crate) fn add_member(cluster: &mut Cluster, id: MemberId, rng: &mut StdRng) -> Slot {
    let slot = cluster.add_machine(rng.random_range(850..=1150));
    let identity = cluster.identity(id);
    cluster.machines.get_mut(&slot).unwrap().member_id = Some(id);
    cluster.block_on(slot, |member| async move {
        member.format(identity).await.unwrap();
    });
    slot
}

async fn perform(member: &Member, step: &Step, choice: usize) -> Result<u64, StoreError> {
    let status = member.status().await;
    if status.state != MemberState::Running {
        let message = "choose another member";
        return Err(StoreError::new(Reason::NotReady, message));
    }
    let membership = status.membership;
    let mut voters: BTreeSet<MemberId> = membership.voters.clone();
    let mut learners = membership.learners.clone();
    match step {
        Step::Idle | Step::Format(_) => Ok(0),
        Step::Allocate => member.allocate_member_id().await,
        Step::AddLearner(id, slot) => {
            member.add_learner(*id, address(*slot)).await?;
            Ok(0)
        }
        Step::Promote(id) => {
            voters.insert(*id);
            learners.remove(id);
            member
                .change_membership(voters, learners, membership.index)
                .await?;
            Ok(0)
        }
        Step::Remove(id) => {
            voters.remove(id);
            learners.remove(id);
            member
                .change_membership(voters, learners, membership.index)
                .await?;
            Ok(0)
        }
        Step::Transfer => {
            let to = *voters
                .iter()
                .nth(choice % voters.len().max(1))
                .unwrap_or(&1);
            member.transfer_leader(to).await?;
            Ok(0)
        }
        Step::Compact => {
            member.compact().await?;
            Ok(0)
        }
    }
}
