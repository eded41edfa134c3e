//! A model test: controller and agent plans against a model of the API server and the machines,
//! with random faults.
//!
//! Caches are stale object by object, responses are lost, two controllers are active and crash
//! between any two writes, agents crash, clocks are off by up to an hour, machines fail, Nodes are
//! deleted, policies change, users forge annotations. Assertions are about the machines, not about
//! the state that a component believes in.
//!
//! `REBOOT_ROLLOUTS=10000 cargo test -p bellerophon-reboot --lib random_rollouts` runs more rollouts
//! than the default.

use std::{
    collections::{BTreeMap, VecDeque},
    io::Write as _,
    sync::Arc,
};

use bellerophon::clock::Rng;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::ObjectMeta;

use crate::{
    agent::plan::{AgentStep, DrainDecision, after_drain, next_step},
    annotations::{IN_PROGRESS, RebootProgress, RebootResult, Stage},
    controller::plan::{
        ActiveBlockers, NodeUpdate, Nodes, ObservedState, ReadySince, completed_grants, plan,
    },
    ledger::{LEDGER, RebootLedger, RebootLedgerSpec},
    parsed_policy::ParsedPolicy,
    policy::{RebootPolicy, RebootPolicySpec},
    state::{NodePatch, NodeState},
};

/// The default number of random rollouts.
const ROLLOUTS: u64 = 2_500;

/// The maximum number of rounds that a rollout may take without further faults.
const ROUNDS_MAX: usize = 1000;

/// The model of the API server.
struct Server {
    version: u64,
    nodes: BTreeMap<String, NodeState>,
    ledger: RebootLedger,
    policy: RebootPolicy,
}

impl Server {
    /// Patches a Node if its resource version is the one that was read.
    fn patch(&mut self, read: &NodeState, patch: &NodePatch) -> bool {
        let Some(node) = self
            .nodes
            .get_mut(&read.name)
            .filter(|node| node.uid == read.uid && node.version == read.version)
        else {
            return false;
        };
        self.version += 1;
        node.apply(patch);
        node.version = self.version.to_string();
        true
    }

    /// Updates a Node regardless of its version, as a kubelet or an administrator does.
    fn update(&mut self, name: &str, change: impl FnOnce(&mut NodeState)) {
        if let Some(node) = self.nodes.get_mut(name) {
            self.version += 1;
            change(node);
            node.version = self.version.to_string();
        }
    }

    /// Replaces the ledger if its resource version is the one that was read.
    fn replace_ledger(&mut self, mut desired: RebootLedger) -> bool {
        if desired.metadata.resource_version != self.ledger.metadata.resource_version {
            return false;
        }
        self.version += 1;
        desired.metadata.resource_version = Some(self.version.to_string());
        self.ledger = desired;
        true
    }

    /// The limit of the policy for a large pool.
    fn limit(&self) -> usize {
        ParsedPolicy::parse_all([&self.policy])[0].limit(1000)
    }
}

/// A planned write of a controller.
enum Write {
    Ledger {
        desired: Box<RebootLedger>,
        limit: usize,
    },
    Node {
        read: Arc<NodeState>,
        patch: NodePatch,
    },
}

/// A controller with its cache and its planned writes.
#[derive(Default)]
struct Controller {
    nodes: Nodes,
    ledger: Option<RebootLedger>,
    ready_since: ReadySince,
    pending: VecDeque<Write>,
    /// The skew of its clock in seconds.
    clock_skew: i64,
}

/// A machine with its kubelet and its agent.
struct Machine {
    boot: u32,
    /// Off until then, after a reboot or a power failure.
    down_until: Option<i64>,
    /// It never starts again.
    dead: bool,
    /// The number of reboots by the agent.
    reboots: usize,
    requests: usize,
    cordoned_before: bool,
    pods: usize,
    /// The kubelet has reported the current boot ID.
    reported: bool,
    /// The agent rebooted it, and the kubelet has not reported the new boot ID.
    rebooting: bool,
    /// The skew of its clock in seconds.
    clock_skew: i64,
    /// The agent's cache of its Node.
    cached: Option<NodeState>,
    /// The agent's planned write, and the Node it was planned from.
    pending: Option<(NodeState, NodePatch)>,
}

/// One random rollout.
struct Rollout {
    seed: u64,
    entropy: Rng,
    time: i64,
    server: Server,
    machines: BTreeMap<String, Machine>,
    controllers: [Controller; 2],
    /// Whether faults are injected.
    faults: bool,
}

fn boot_id(machine: u32, boot: u32) -> String {
    format!("b-{machine}-{boot}")
}

impl Rollout {
    fn new(seed: u64) -> Self {
        let entropy = Rng::seeded(seed);
        let count = 2 + entropy.below(5);
        let mut nodes = BTreeMap::new();
        let mut machines = BTreeMap::new();
        for number in 0..count {
            let name = format!("n{number}");
            let number = u32::try_from(number).expect("a small number");
            let cordoned_before = entropy.below(8) == 0;
            let mut node = NodeState {
                name: name.clone(),
                uid: format!("u-{name}"),
                version: "1".into(),
                boot_id: Some(boot_id(number, 0)),
                ready: true,
                unschedulable: cordoned_before,
                ..NodeState::default()
            };
            if entropy.below(6) == 0 {
                node.labels.insert(
                    "node-role.kubernetes.io/control-plane".into(),
                    String::new(),
                );
            }
            nodes.insert(name.clone(), node);
            let clock_skew = i64::try_from(entropy.below(7200)).expect("a small number") - 3600;
            let machine = Machine {
                boot: 0,
                down_until: None,
                dead: false,
                reboots: 0,
                requests: 0,
                cordoned_before,
                pods: usize::try_from(entropy.below(4)).expect("a small number"),
                reported: true,
                rebooting: false,
                clock_skew: if entropy.below(2) == 0 { 0 } else { clock_skew },
                cached: None,
                pending: None,
            };
            machines.insert(name, machine);
        }
        let metadata = ObjectMeta {
            name: Some(LEDGER.into()),
            uid: Some("0123456789".into()),
            resource_version: Some("1".into()),
            ..ObjectMeta::default()
        };
        let ledger = RebootLedger {
            metadata,
            spec: RebootLedgerSpec::default(),
        };
        let max_unavailable =
            IntOrString::Int(1 + i32::try_from(entropy.below(3)).expect("a small number"));
        let spec = RebootPolicySpec {
            max_unavailable,
            count_cordoned: entropy.below(2) == 0,
            ..RebootPolicySpec::default()
        };
        let server = Server {
            version: 1,
            nodes,
            ledger,
            policy: RebootPolicy::new("p", spec),
        };
        let mut rollout = Self {
            seed,
            entropy,
            time: 1_000_000,
            server,
            machines,
            controllers: Default::default(),
            faults: true,
        };
        rollout.controllers[1].clock_skew = 1800;
        let names: Vec<String> = rollout.machines.keys().cloned().collect();
        names.iter().for_each(|name| rollout.request(name));
        rollout
    }

    fn chance(&self, one_in: u64) -> bool {
        self.entropy.below(one_in) == 0
    }

    /// As [`chance`](Self::chance), while faults are injected.
    fn fault(&self, one_in: u64) -> bool {
        self.faults && self.chance(one_in)
    }

    fn now(&self, clock_skew: i64) -> Timestamp {
        let skew = if self.faults { clock_skew } else { 0 };
        Timestamp::from_second(self.time + skew).expect("a time")
    }

    fn request(&mut self, name: &str) {
        let Some(machine) = self.machines.get_mut(name) else {
            return;
        };
        // During a request or its reboot, another request may or may not be served by it.
        let is_requested = self.server.nodes[name].needed().is_some();
        let mut grants = self.server.ledger.spec.grants.iter();
        if !is_requested && !grants.any(|grant| grant.node == name) {
            machine.requests += 1;
            self.server
                .update(name, |node| node.apply(&NodePatch::request("kernel")));
        }
    }

    fn run(mut self) -> usize {
        let steps = 60 + self.entropy.below(240);
        for _ in 0..steps {
            self.step();
        }
        self.faults = false;
        self.repair();
        for _ in 0..ROUNDS_MAX {
            self.round();
            if self.is_done() {
                self.check_end();
                return self.machines.values().map(|machine| machine.reboots).sum();
            }
        }
        panic!(
            "seed {}: not done: {:?}\n{:?}",
            self.seed, self.server.nodes, self.server.ledger.spec
        )
    }

    /// The work of administrators: Nodes of dead machines are deleted, a paused policy is resumed.
    fn repair(&mut self) {
        for (name, machine) in &self.machines {
            if machine.dead {
                self.server.nodes.remove(name);
            }
        }
        self.server.policy.spec.paused = false;
        self.server.policy.spec.max_unavailable = IntOrString::Int(2);
        // Nodes that were cordoned by others stay so, and must not exhaust the limit.
        self.server.policy.spec.count_cordoned = false;
    }

    /// One round of all components. Without grants, time advances faster, since back-offs take
    /// hours.
    fn round(&mut self) {
        self.time += if self.server.ledger.spec.grants.is_empty() {
            600
        } else {
            20
        };
        self.run_controller(0);
        while !self.controllers[0].pending.is_empty() {
            self.run_controller(0);
        }
        let names: Vec<String> = self.machines.keys().cloned().collect();
        for name in &names {
            self.run_kubelet(name);
            self.run_agent(name);
            while self.machines[name].pending.is_some() {
                self.run_agent(name);
            }
        }
    }

    fn step(&mut self) {
        self.time += i64::try_from(self.entropy.below(20)).expect("a small number");
        match self.entropy.below(10) {
            0..=2 => self.run_controller(usize::from(self.fault(3))),
            3..=5 => self.on_random_node(Self::run_agent),
            6 => self.on_random_node(Self::run_kubelet),
            7 => self.on_random_node(Self::inject_fault),
            8 => self.change_policy_or_request(),
            _ => self.crash_controller(),
        }
    }

    fn on_random_node(&mut self, action: fn(&mut Self, &str)) {
        let names: Vec<String> = self.machines.keys().cloned().collect();
        let index = self.entropy.below(names.len() as u64);
        let name = &names[usize::try_from(index).expect("a small number")];
        action(self, name);
    }

    /// Makes the next planned write of a controller, or plans.
    fn run_controller(&mut self, index: usize) {
        let mut controller = std::mem::take(&mut self.controllers[index]);
        match controller.pending.pop_front() {
            Some(write) => self.write(&mut controller, write),
            None => self.plan(&mut controller),
        }
        if self.fault(40) {
            controller = Controller {
                clock_skew: controller.clock_skew,
                ..Controller::default()
            };
        }
        self.controllers[index] = controller;
    }

    fn write(&mut self, controller: &mut Controller, write: Write) {
        let done = match write {
            Write::Ledger { desired, limit } => {
                let before = self.granted();
                let done = self.server.replace_ledger(*desired);
                if done {
                    self.check_ledger(&before, limit);
                }
                done
            }
            Write::Node { read, patch } => self.server.patch(&read, &patch),
        };
        // To the controller, a lost response is a failure.
        if !done || self.fault(30) {
            controller.pending.clear();
        }
    }

    /// Updates the cache of a controller in part, and plans from it.
    fn plan(&mut self, controller: &mut Controller) {
        for name in self.machines.keys() {
            if self.faults && self.chance(2) && controller.nodes.contains_key(name) {
                continue;
            }
            match self.server.nodes.get(name) {
                Some(node) => {
                    _ = controller
                        .nodes
                        .insert(name.clone(), Arc::new(node.clone()))
                }
                None => _ = controller.nodes.remove(name),
            }
        }
        if controller.ledger.is_none() || !self.fault(3) {
            controller.ledger = Some(self.server.ledger.clone());
        }
        let Some(ledger) = controller.ledger.clone() else {
            return;
        };
        let policies = ParsedPolicy::parse_all([&self.server.policy]);
        let blockers = ActiveBlockers::default();
        let observed = ObservedState {
            now: self.now(controller.clock_skew),
            nodes: &controller.nodes,
            ledger: &ledger,
            policies: &policies,
            own_node: Some("n0"),
            blockers: &blockers,
            ready_since: &controller.ready_since,
        };
        // The reconciler reads the nodes of completed grants from the server.
        let mut current = controller.nodes.clone();
        for grant in completed_grants(&observed) {
            match self.server.nodes.get(&grant.node) {
                Some(node) => _ = current.insert(grant.node, Arc::new(node.clone())),
                None => _ = current.remove(&grant.node),
            }
        }
        let plan = plan(&ObservedState {
            nodes: &current,
            ..observed
        });
        let node_write = |update: NodeUpdate| {
            current.get(&update.node).map(|read| Write::Node {
                read: read.clone(),
                patch: update.patch,
            })
        };
        let ledger_write = plan.ledger.map(|desired| Write::Ledger {
            desired: Box::new(desired),
            limit: self.server.limit(),
        });
        let pending = &mut controller.pending;
        pending.extend(plan.updates.into_iter().filter_map(node_write));
        pending.extend(ledger_write);
        pending.extend(plan.announcements.into_iter().filter_map(node_write));
        controller.ready_since = plan.ready_since;
    }

    fn run_agent(&mut self, name: &str) {
        let Some(mut machine) = self.machines.remove(name) else {
            return;
        };
        if machine.down_until.is_none() && !machine.dead {
            self.agent_step(name, &mut machine);
        }
        self.machines.insert(name.to_owned(), machine);
    }

    /// Makes the planned write of an agent, or plans its next step.
    fn agent_step(&mut self, name: &str, machine: &mut Machine) {
        if let Some((read, patch)) = machine.pending.take() {
            self.server.patch(&read, &patch);
            if !self.fault(30) {
                machine.cached = None;
            }
            return;
        }
        if machine.cached.is_none() || !self.fault(3) {
            machine.cached = self.server.nodes.get(name).cloned();
        }
        let Some(node) = machine.cached.clone() else {
            return;
        };
        let number = name[1..].parse().expect("a number");
        let boot = boot_id(number, machine.boot);
        let now = self.now(machine.clock_skew);
        let patch = match next_step(&node, &boot, Some(&self.server.ledger), now) {
            AgentStep::Idle | AgentStep::AwaitKubelet => return,
            AgentStep::RemoveOrder => NodePatch::remove_order(),
            AgentStep::CleanUp => NodePatch::clean_up(&node),
            AgentStep::Claim(id) => NodePatch::claim(&node, &id, &boot, now),
            AgentStep::End {
                id,
                result,
                request,
            } => NodePatch::end(&node, &id, result, &request, now),
            AgentStep::Reboot(_) => return self.reboot(name, machine),
            AgentStep::Drain { progress, grant } => {
                machine.pods = machine.pods.saturating_sub(usize::from(self.chance(2)));
                match after_drain(&progress, &grant, machine.pods, now) {
                    DrainDecision::Retry => return,
                    DrainDecision::Commit => NodePatch::commit(&progress, now),
                    DrainDecision::GiveUp => NodePatch::end(
                        &node,
                        &progress.id,
                        RebootResult::DrainTimedOut,
                        &grant.reason,
                        now,
                    ),
                }
            }
        };
        machine.pending = Some((node, patch));
    }

    fn reboot(&mut self, name: &str, machine: &mut Machine) {
        let mut grants = self.server.ledger.spec.grants.iter();
        assert!(
            grants.any(|grant| grant.node == name),
            "seed {}: {name} reboots without a grant",
            self.seed
        );
        machine.reboots += 1;
        assert!(
            machine.reboots <= machine.requests,
            "seed {}: {name} reboots twice for one request",
            self.seed
        );
        assert_eq!(
            machine.pods, 0,
            "seed {}: {name} reboots before it is drained",
            self.seed
        );
        machine.rebooting = true;
        self.shut_down(machine);
    }

    fn shut_down(&self, machine: &mut Machine) {
        machine.down_until = Some(self.time + 10);
        machine.cached = None;
        machine.pending = None;
        machine.reported = false;
        machine.dead = self.fault(30);
    }

    /// The kubelet, and the node lifecycle controller that marks a silent node as not ready.
    fn run_kubelet(&mut self, name: &str) {
        let time = self.time;
        let machine = self.machines.get_mut(name).expect("a machine");
        match machine.down_until {
            Some(until) if time < until || machine.dead => {
                self.server.update(name, |node| node.ready = false)
            }
            Some(_) => {
                machine.down_until = None;
                machine.boot += 1;
            }
            None if machine.dead => self.server.update(name, |node| node.ready = false),
            None => {
                let number = name[1..].parse().expect("a number");
                let boot = boot_id(number, machine.boot);
                machine.reported = true;
                machine.rebooting = false;
                self.server.update(name, |node| {
                    node.ready = true;
                    node.boot_id = Some(boot);
                });
            }
        }
    }

    fn inject_fault(&mut self, name: &str) {
        let Some(mut machine) = self.machines.remove(name) else {
            return;
        };
        match self.entropy.below(12) {
            // A power failure: a new boot ID without a grant.
            0 => self.shut_down(&mut machine),
            // The agent crashes.
            1..=3 => {
                machine.cached = None;
                machine.pending = None;
            }
            // The Node is deleted and not recreated.
            4 if self.chance(3) => {
                self.server.nodes.remove(name);
            }
            // A user repeats an order that ended.
            5 => self.server.update(name, |node| {
                if let Some(last) = node.last() {
                    let order = crate::annotations::RebootOrder {
                        id: last.id.clone(),
                        expires: Timestamp::MAX,
                    };
                    *node = node.clone().with_annotation(crate::annotations::NOW, order);
                }
            }),
            // A user forges the stage of a reboot.
            6 => self.server.update(name, |node| {
                if let Some(progress) = node.progress() {
                    let forged = RebootProgress {
                        stage: Stage::Rebooting,
                        ..progress.clone()
                    };
                    *node = node.clone().with_annotation(IN_PROGRESS, forged);
                }
            }),
            // A user forges the end of a grant.
            7 => {
                let now = self.now(0);
                self.server.update(name, |node| {
                    if let Some(progress) = node.progress() {
                        let result = RebootResult::Withdrawn;
                        let forged = NodePatch::end(node, &progress.id, result, "", now);
                        node.apply(&forged);
                    }
                });
            }
            _ => {}
        }
        self.machines.insert(name.to_owned(), machine);
    }

    fn change_policy_or_request(&mut self) {
        match self.entropy.below(6) {
            0 => {
                let limit = i32::try_from(self.entropy.below(4)).expect("a small number");
                self.server.policy.spec.max_unavailable = IntOrString::Int(limit);
            }
            1 => self.server.policy.spec.paused = !self.server.policy.spec.paused,
            2 => {
                let names: Vec<String> = self.server.nodes.keys().cloned().collect();
                if let Some(name) = names.first() {
                    self.request(name);
                }
            }
            _ => {}
        }
    }

    fn crash_controller(&mut self) {
        let index = usize::from(self.chance(2));
        self.controllers[index] = Controller {
            clock_skew: self.controllers[index].clock_skew,
            ..Controller::default()
        };
    }

    /// The ID of each node's grant.
    fn granted(&self) -> BTreeMap<String, String> {
        let grants = self.server.ledger.spec.grants.iter();
        grants
            .map(|grant| (grant.node.clone(), grant.id.clone()))
            .collect()
    }

    /// Checks the ledger after a write: one grant per node, no new grant above the limit, no slot
    /// released too early.
    fn check_ledger(&self, before: &BTreeMap<String, String>, limit: usize) {
        let grants = &self.server.ledger.spec.grants;
        let after = self.granted();
        assert_eq!(
            after.len(),
            grants.len(),
            "seed {}: two grants of one node: {grants:?}",
            self.seed
        );
        if after.keys().any(|node| !before.contains_key(node)) {
            assert!(
                after.len() <= limit,
                "seed {}: {after:?} are more than {limit}",
                self.seed
            );
        }
        for (name, id) in before {
            if after.contains_key(name) {
                continue;
            }
            let Some(node) = self.server.nodes.get(name) else {
                continue;
            };
            assert!(
                !self.machines[name].rebooting,
                "seed {}: {name} reboots and its slot is released: {node:?}",
                self.seed
            );
            // Another order may be there, repeated by a user or written from a stale ledger; agents
            // remove an order that ended or has no grant.
            let order = node.order().filter(|order| order.id.as_str() == id);
            let has_order = order.is_some_and(|order| !node.has_ended(&order.id));
            let seed = self.seed;
            assert!(
                !node.is_in_progress(),
                "seed {seed}: released early: {node:?}"
            );
            assert!(!has_order, "seed {seed}: released early: {node:?}");
            assert!(
                !node.is_cordoned_by_us(),
                "seed {seed}: released early: {node:?}"
            );
        }
    }

    fn is_done(&self) -> bool {
        self.server.ledger.spec.grants.is_empty()
            && self.machines.iter().all(|(name, machine)| {
                machine.dead
                    || self.server.nodes.get(name).is_none_or(|node| {
                        machine.reported
                            && node.ready
                            && node.needed().is_none()
                            && !node.is_in_progress()
                            && !node.has_order()
                            && !node.is_cordoned_by_us()
                    })
            })
    }

    /// Checks that every node is as schedulable as before.
    fn check_end(&self) {
        for (name, machine) in self.machines.iter().filter(|(_, machine)| !machine.dead) {
            let Some(node) = self.server.nodes.get(name) else {
                continue;
            };
            assert_eq!(
                node.unschedulable, machine.cordoned_before,
                "seed {}: unschedulable of {name} has changed: {node:?}",
                self.seed
            );
        }
    }
}

#[test]
fn random_rollouts_keep_every_guarantee() {
    let rollouts = std::env::var("REBOOT_ROLLOUTS")
        .ok()
        .and_then(|text| text.parse().ok())
        .unwrap_or(ROLLOUTS);
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let reboots: usize = std::thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|first| {
                scope.spawn(move || {
                    (first..rollouts)
                        .step_by(threads as usize)
                        .map(|seed| Rollout::new(seed).run())
                        .sum::<usize>()
                })
            })
            .collect();
        workers
            .into_iter()
            .map(|worker| worker.join().expect("every rollout passes"))
            .sum()
    });
    assert!(
        reboots > 2 * usize::try_from(rollouts).expect("a small number"),
        "too few reboots: {reboots}"
    );
    // To stderr directly, since the test harness captures output.
    _ = writeln!(
        std::io::stderr(),
        "{rollouts} random rollouts, {reboots} reboots"
    );
}
