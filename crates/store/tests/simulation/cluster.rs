//! Members in one thread: each has its own runtime and clock, and they meet on the simulated
//! network.
//!
//! In: a seed, steps of time, crashes and restarts. Out: members to call.
//! Guarantees: deterministic. A crash drops the runtime of a process in the middle of whatever it
//! did; its disk then loses what was not synced. A paused process makes no step, and its clock
//! jumps when it continues. Clocks run at different rates.

use std::{
    collections::BTreeMap,
    future::Future,
    sync::{Arc, Mutex},
    time::Duration,
};

use bellerophon_store::{
    Disk, Member, MemberConfig, PeerTransport, Timing,
    api::{ClusterId, Identity, MemberId},
    disk::simulated::SimulatedDisk,
};
use tokio::{
    runtime::{Builder, Runtime},
    time::{advance, sleep},
};

use crate::{
    network::{Network, Packet, Slot, address},
    trace::Trace,
};

/// The step of time.
pub(crate) const TICK_MS: u64 = 5;

/// Syncs take up to this long.
const DISK_LATENCY: Duration = Duration::from_millis(3);

/// Replaces the disk or the transport of a process, to plant a bug.
pub(crate) struct Wrap {
    pub(crate) disk: fn(Arc<dyn Disk>) -> Arc<dyn Disk>,
    pub(crate) transport: fn(Arc<dyn PeerTransport>) -> Arc<dyn PeerTransport>,
}

impl Default for Wrap {
    fn default() -> Self {
        Self {
            disk: |disk| disk,
            transport: |transport| transport,
        }
    }
}

pub(crate) struct Cluster {
    seed: u64,
    pub(crate) id: ClusterId,
    pub(crate) now: u64,
    pub(crate) network: Arc<Network>,
    pub(crate) trace: Arc<Trace>,
    pub(crate) machines: BTreeMap<Slot, Machine>,
    wrap: Wrap,
    starts: u64,
}

/// A disk and the process on it.
pub(crate) struct Machine {
    pub(crate) disk: Arc<SimulatedDisk>,
    pub(crate) member_id: Option<MemberId>,
    process: Option<Process>,
    /// Steps of its clock per 1,000 of real time.
    rate: u64,
    /// Its process makes no step until then.
    paused_until: u64,
    /// Why the last start failed.
    pub(crate) refused: Option<String>,
}

struct Process {
    runtime: Runtime,
    member: Member,
    /// The time up to which it ran, in microseconds.
    ran_until: u64,
}

impl Cluster {
    pub(crate) fn new(seed: u64, wrap: Wrap) -> Self {
        let trace = Arc::new(Trace::new());
        Self {
            seed,
            id: "cluster-a".parse().unwrap(),
            now: 0,
            network: Network::new(seed ^ 0x6e65_7477, Arc::clone(&trace)),
            trace,
            machines: BTreeMap::new(),
            wrap,
            starts: 0,
        }
    }

    /// Adds a machine with an empty disk and starts its process.
    pub(crate) fn add_machine(&mut self, rate: u64) -> Slot {
        let slot = self.machines.len();
        self.machines.insert(
            slot,
            Machine {
                disk: SimulatedDisk::new(self.seed ^ (slot as u64) << 32),
                member_id: None,
                process: None,
                rate,
                paused_until: 0,
                refused: None,
            },
        );
        self.start(slot);
        slot
    }

    /// Starts a process. It may refuse the disk.
    pub(crate) fn start(&mut self, slot: Slot) {
        let machine = self.machines.get_mut(&slot).unwrap();
        if machine.process.is_some() {
            return;
        }
        self.starts += 1;
        let config = config(self.seed.wrapping_mul(31).wrapping_add(self.starts));
        let disk = (self.wrap.disk)(machine.disk.attach(DISK_LATENCY));
        let transport = (self.wrap.transport)(self.network.transport(slot));
        let runtime = Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        machine.refused = None;
        match runtime.block_on(Member::open(config, disk, transport)) {
            Ok(member) => {
                machine.process = Some(Process {
                    runtime,
                    member,
                    ran_until: self.now * 1000,
                });
                self.trace.record(format_args!("started {slot}"));
            }
            Err(error) => {
                self.trace.record(format_args!("refused {slot} {error}"));
                machine.refused = Some(error.to_string());
            }
        }
    }

    /// The power of a machine fails.
    pub(crate) fn crash(&mut self, slot: Slot) {
        let machine = self.machines.get_mut(&slot).unwrap();
        if let Some(process) = machine.process.take() {
            machine.disk.crash();
            drop(process);
            self.network.reset(slot);
            self.trace.record(format_args!("crashed {slot}"));
        }
    }

    /// A process ends without warning; its files stay as they are.
    pub(crate) fn kill(&mut self, slot: Slot) {
        let machine = self.machines.get_mut(&slot).unwrap();
        if let Some(process) = machine.process.take() {
            machine.disk.detach();
            drop(process);
            self.network.reset(slot);
            self.trace.record(format_args!("killed {slot}"));
        }
    }

    /// A process makes no step for some time.
    pub(crate) fn pause(&mut self, slot: Slot, duration: u64) {
        self.machines.get_mut(&slot).unwrap().paused_until = self.now + duration;
        self.trace
            .record(format_args!("paused {slot} for {duration}"));
    }

    pub(crate) fn resume_all(&mut self) {
        for machine in self.machines.values_mut() {
            machine.paused_until = machine.paused_until.min(self.now);
        }
    }

    pub(crate) fn is_running(&self, slot: Slot) -> bool {
        self.machines[&slot].process.is_some()
    }

    pub(crate) fn running(&self) -> Vec<Slot> {
        let running = |slot: &&Slot| self.is_running(**slot);
        self.machines.keys().filter(running).copied().collect()
    }

    pub(crate) fn member(&self, slot: Slot) -> Option<&Member> {
        Some(&self.machines[&slot].process.as_ref()?.member)
    }

    /// The slot of a member.
    pub(crate) fn slot_of(&self, id: MemberId) -> Option<Slot> {
        let mut machines = self.machines.iter();
        machines
            .find(|(_, machine)| machine.member_id == Some(id))
            .map(|(slot, _)| *slot)
    }

    /// Runs something with a member, in its process.
    pub(crate) fn spawn<F>(&self, slot: Slot, work: impl FnOnce(Member) -> F)
    where
        F: Future<Output = ()> + Send + 'static,
    {
        if let Some(process) = &self.machines[&slot].process {
            process.runtime.spawn(work(process.member.clone()));
        }
    }

    /// Runs something with a member to its end; the other members stand still.
    pub(crate) fn block_on<F: Future>(
        &self,
        slot: Slot,
        work: impl FnOnce(Member) -> F,
    ) -> F::Output {
        let process = self.machines[&slot].process.as_ref().unwrap();
        process.runtime.block_on(work(process.member.clone()))
    }

    /// Sends a request to a member and advances the time of all members until its response.
    ///
    /// # Panics
    ///
    /// If there is none in ten seconds: every request has a shorter deadline.
    pub(crate) fn call<F>(&mut self, slot: Slot, request: impl FnOnce(Member) -> F) -> F::Output
    where
        F: Future<Output: Send> + Send + 'static,
    {
        let response = Arc::new(Mutex::new(None));
        let received = Arc::clone(&response);
        self.spawn(slot, |member| {
            let request = request(member);
            async move {
                let result = request.await;
                *response.lock().unwrap() = Some(result);
            }
        });
        let end = self.now + 10_000;
        while self.now < end {
            self.tick();
            if let Some(result) = received.lock().unwrap().take() {
                return result;
            }
        }
        panic!("no response in ten seconds");
    }

    /// Replaces a disk by an empty one and starts its process.
    pub(crate) fn replace_disk(&mut self, slot: Slot) {
        self.crash(slot);
        self.starts += 1;
        let disk = SimulatedDisk::new(self.seed ^ self.starts << 48);
        self.machines.get_mut(&slot).unwrap().disk = disk;
        self.start(slot);
    }

    /// The identity of a member of this cluster.
    pub(crate) fn identity(&self, member_id: MemberId) -> Identity {
        Identity {
            cluster_id: self.id.clone(),
            member_id,
        }
    }

    /// Makes a machine the first member.
    pub(crate) fn initialize(&mut self, slot: Slot) {
        let identity = self.identity(1);
        self.machines.get_mut(&slot).unwrap().member_id = Some(1);
        self.block_on(slot, |member| async move {
            member.initialize(identity, address(slot)).await.unwrap();
        });
    }

    /// One step of time: deliveries, then every process.
    pub(crate) fn tick(&mut self) {
        self.now += TICK_MS;
        self.trace.set_now(self.now);
        for packet in self.network.due(self.now) {
            self.deliver(packet);
        }
        for machine in self.machines.values_mut() {
            if machine.paused_until > self.now {
                continue;
            }
            if let Some(process) = &mut machine.process {
                process.run_until(self.now * 1000, machine.rate);
            }
        }
    }

    pub(crate) fn run(&mut self, duration: u64) {
        let end = self.now + duration;
        while self.now < end {
            self.tick();
        }
    }

    fn deliver(&self, packet: Packet) {
        match packet {
            Packet::Response { result, answer, .. } => {
                // The receiver is gone if its process crashed.
                let _ = answer.send(result);
            }
            Packet::Request(parcel, answer) => {
                let link = (parcel.from_slot, parcel.to_slot);
                let network = Arc::clone(&self.network);
                let target = self.machines.get(&parcel.to_slot);
                if target.is_none_or(|machine| machine.process.is_none()) {
                    network.refuse(link, answer);
                    return;
                }
                let number = network.accept(link, answer);
                self.spawn(parcel.to_slot, |member| async move {
                    let result = member.handle_peer(parcel.into_request()).await;
                    network.respond(number, result);
                });
            }
        }
    }
}

impl Process {
    fn run_until(&mut self, now: u64, rate: u64) {
        let tick = TICK_MS * 1000;
        let behind = (now - self.ran_until).saturating_sub(tick);
        if behind > 0 {
            // It was paused: its clock jumps, and all its timers are late.
            let jump = Duration::from_micros(behind);
            self.runtime.block_on(async { advance(jump).await });
        }
        let step = Duration::from_micros(tick * rate / 1000);
        self.runtime.block_on(async { sleep(step).await });
        self.ran_until = now;
    }
}

/// Settings that make everything happen within seconds: small segments, frequent snapshots, a
/// short history.
pub(crate) fn config(seed: u64) -> MemberConfig {
    MemberConfig {
        timing: Timing {
            heartbeat: Duration::from_millis(50),
            election_min: Duration::from_millis(150),
            election_max: Duration::from_millis(300),
            request: Duration::from_millis(800),
            snapshot: Duration::from_millis(1000),
        },
        segment_bytes: 2048,
        snapshot_log_bytes: 1200,
        keep_log_bytes: 600,
        history_revisions: 40,
        history_bytes: 1 << 20,
        cache_bytes: 1 << 18,
        promotion_lag_max: 5,
        seed,
    }
}
