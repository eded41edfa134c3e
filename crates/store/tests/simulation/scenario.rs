//! One history: a cluster grows to three members, faults happen under load, the faults end, and
//! everything that clients saw is checked.
//!
//! In: a seed and planted bugs. Out: a report with the hash of the trace, or what is wrong.

mod end;

use std::collections::BTreeSet;

use bellerophon_linearizability::{Options, Report, check};
use bellerophon_store::api::{MemberState, Role, Status};
use rand::{RngExt, SeedableRng, rngs::StdRng};

use crate::{
    clients::{Clients, acknowledged},
    cluster::{Cluster, Wrap},
    network::{Quality, Slot},
    operator::Operator,
};

/// Milliseconds in which a cluster without faults grows to three members.
const SETUP_MS: u64 = 8000;

/// Milliseconds of faults.
const FAULTS_MS: u64 = 4000;

/// Milliseconds after the last fault until every member answers again: an expired lease, three
/// elections, back-off of replication, and a snapshot.
const HEALED_MS: u64 = 6000;

/// Milliseconds between two decisions about faults.
const DECISION_MS: u64 = 100;

/// What a history showed.
pub(crate) struct Passed {
    pub(crate) hash: u64,
    pub(crate) report: Report,
    pub(crate) acknowledged: usize,
    /// Milliseconds until every member answered after the faults ended.
    pub(crate) healed_ms: u64,
    /// Faults that were injected, by name.
    pub(crate) faults: Vec<&'static str>,
}

pub(crate) struct Scenario {
    pub(crate) cluster: Cluster,
    pub(crate) clients: Clients,
    pub(crate) operator: Operator,
    pub(crate) rng: StdRng,
    retired: BTreeSet<Slot>,
    /// Where a graceful stop was requested and the process has not ended.
    stopping: BTreeSet<Slot>,
    faults: Vec<&'static str>,
}

/// Runs a history.
pub(crate) fn run(seed: u64, wrap: Wrap) -> Result<Passed, String> {
    let mut scenario = Scenario::new(seed, wrap);
    scenario.set_up()?;
    scenario.inject_faults()?;
    let healed_ms = scenario.heal()?;
    let history = scenario.finish()?;
    let report = check(&history, &Options::default()).map_err(|violation| violation.to_string())?;
    Ok(Passed {
        hash: scenario.cluster.trace.hash(),
        report,
        acknowledged: acknowledged(&history.operations),
        healed_ms,
        faults: scenario.faults,
    })
}

impl Scenario {
    pub(crate) fn new(seed: u64, wrap: Wrap) -> Self {
        Self {
            cluster: Cluster::new(seed, wrap),
            clients: Clients::new(4, 2),
            operator: Operator::new(),
            rng: StdRng::seed_from_u64(seed),
            retired: BTreeSet::new(),
            stopping: BTreeSet::new(),
            faults: Vec::new(),
        }
    }

    /// One step of time with clients and operator.
    pub(crate) fn tick(&mut self) -> Result<(), String> {
        self.cluster.tick();
        self.clients.step(&self.cluster, &mut self.rng);
        self.operator.step(&mut self.cluster, &mut self.rng);
        for id in std::mem::take(&mut self.operator.removed) {
            if let Some(slot) = self.cluster.slot_of(id) {
                self.retire(slot);
            }
        }
        Ok(())
    }

    fn retire(&mut self, slot: Slot) {
        self.retired.insert(slot);
        self.cluster.crash(slot);
        self.lose(slot);
    }

    fn lose(&mut self, slot: Slot) {
        self.stopping.remove(&slot);
        self.clients.lose(slot, self.cluster.now);
        self.operator.lose(slot);
    }

    pub(crate) fn set_up(&mut self) -> Result<(), String> {
        let slot = self.cluster.add_machine(1000);
        self.cluster.initialize(slot);
        let end = self.cluster.now + SETUP_MS;
        let mut next = 0;
        loop {
            if self.cluster.now >= next && self.operator.is_idle() {
                next = self.cluster.now + DECISION_MS;
                if self.voters() >= 3 {
                    return Ok(());
                }
                self.operator.grow();
            }
            if self.cluster.now > end {
                return Err("the cluster did not grow to three members".to_owned());
            }
            self.tick()?;
        }
    }

    pub(super) fn status(&self, slot: Slot) -> Option<Status> {
        let member = self.cluster.member(slot)?.clone();
        Some(
            self.cluster
                .block_on(slot, |_| async move { member.status().await }),
        )
    }

    pub(super) fn statuses(&self) -> Vec<(Slot, Status)> {
        let running = self.cluster.running().into_iter();
        running
            .filter_map(|slot| Some((slot, self.status(slot)?)))
            .collect()
    }

    /// The voters that a leader knows of, if the configuration is not joint.
    fn voters(&self) -> usize {
        let statuses = self.statuses().into_iter().map(|(_, status)| status);
        statuses
            .filter(|status| status.role == Some(Role::Leader) && !status.membership.is_joint)
            .map(|status| status.membership.voters.len())
            .max()
            .unwrap_or(0)
    }

    pub(crate) fn inject_faults(&mut self) -> Result<(), String> {
        let end = self.cluster.now + FAULTS_MS;
        let mut next = self.cluster.now;
        while self.cluster.now < end {
            if self.cluster.now >= next {
                next = self.cluster.now + DECISION_MS;
                self.decide()?;
            }
            self.tick()?;
        }
        Ok(())
    }

    fn decide(&mut self) -> Result<(), String> {
        let slots: Vec<Slot> = self.cluster.machines.keys().copied().collect();
        let slot = slots[self.rng.random_range(0..slots.len())];
        let other = slots[self.rng.random_range(0..slots.len())];
        let name = match self.rng.random_range(0..100) {
            0..8 => {
                self.cluster.crash(slot);
                self.lose(slot);
                "crash"
            }
            8..12 => {
                self.cluster.kill(slot);
                self.lose(slot);
                "kill"
            }
            12..14 => {
                for slot in slots {
                    self.cluster.crash(slot);
                    self.lose(slot);
                }
                "crash of all"
            }
            14..34 => {
                self.restart_all()?;
                "restart"
            }
            34..40 => {
                let duration = self.rng.random_range(50..800);
                self.cluster.pause(slot, duration);
                "pause"
            }
            40..46 => {
                for peer in slots.into_iter().filter(|peer| *peer != slot) {
                    self.cluster.network.cut(slot, peer);
                    self.cluster.network.cut(peer, slot);
                }
                "isolation"
            }
            46..50 => {
                self.cluster.network.cut(slot, other);
                "one-way cut"
            }
            50..58 => {
                self.cluster.network.heal();
                "heal"
            }
            58..66 => {
                self.cluster.network.set_quality(Quality {
                    delay: (1, self.rng.random_range(5..120)),
                    lost: self.rng.random_range(0..200),
                    repeated: self.rng.random_range(0..200),
                });
                "bad network"
            }
            66..71 => {
                self.operator.transfer();
                "transfer"
            }
            71..75 => {
                self.operator.grow();
                "grow"
            }
            75..79 => {
                if let Some(id) = self.cluster.machines[&slot].member_id {
                    self.operator.shrink(id);
                }
                "shrink"
            }
            79..83 => {
                self.operator.compact();
                "compact"
            }
            83..87 => {
                self.stop(slot);
                "stop"
            }
            _ => "none",
        };
        self.cluster
            .trace
            .record(format_args!("fault {name} {slot}"));
        self.faults.push(name);
        Ok(())
    }

    /// Requests a graceful stop of a process, and ends it some time later.
    fn stop(&mut self, slot: Slot) {
        if self.cluster.is_running(slot) {
            self.stopping.insert(slot);
            self.cluster.spawn(slot, |member| async move {
                member.shut_down().await;
            });
        }
    }

    /// Starts what does not run, or stopped.
    pub(super) fn restart_all(&mut self) -> Result<(), String> {
        for slot in self.cluster.machines.keys().copied().collect::<Vec<_>>() {
            if self.retired.contains(&slot) {
                continue;
            }
            if let Some(status) = self.status(slot) {
                if status.state == MemberState::Failed {
                    return Err(format!("the process at {slot} failed: {}", status.message));
                }
                if status.message == "the member is stopping" {
                    self.cluster.kill(slot);
                    self.lose(slot);
                }
            }
            self.cluster.start(slot);
            if let Some(reason) = &self.cluster.machines[&slot].refused {
                return Err(format!("the machine {slot} did not start: {reason}"));
            }
        }
        Ok(())
    }
}
