//! Random rollouts: both plans against a model of a server and its machines, with everything that can go wrong.
//!
//! Caches lag object by object, answers are lost, controllers are two at once and crash between any two writes, agents
//! crash, clocks are off by up to an hour, machines die, Nodes are deleted, policies change. What is judged is what happens
//! to machines, not what anybody believes.

use std::{
    collections::{BTreeMap, BTreeSet, VecDeque},
    io::Write as _,
    sync::Arc,
};

use bellerophon::Entropy;
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use kube::api::ObjectMeta;

use crate::{
    agent::plan::{AfterDrain, Step, after_drain, step},
    controller::plan::{Back, Deed, Held, Nodes, View, free, plan},
    ledger::{LEDGER, RebootLedger, RebootLedgerSpec},
    notes::Fate,
    policy::{RebootPolicy, RebootPolicySpec},
    rules::Rules,
    state::{Edit, NodeState},
};

/// How many rollouts a run of the tests does.
const ROLLOUTS: u64 = 10_000;

/// How long a rollout may take once nothing goes wrong any more, in rounds.
const PATIENCE: usize = 1000;

/// What the server has.
struct Server {
    version: u64,
    nodes: BTreeMap<String, NodeState>,
    ledger: RebootLedger,
    policy: RebootPolicy,
}

impl Server {
    /// Changes a Node if it is still the version that was read.
    fn edit(&mut self, read: &NodeState, edit: &Edit) -> bool {
        let Some(node) = self
            .nodes
            .get_mut(&read.name)
            .filter(|node| (&node.uid, &node.version) == (&read.uid, &read.version))
        else {
            return false;
        };
        self.version += 1;
        node.apply(edit);
        node.version = self.version.to_string();
        true
    }

    /// What a kubelet or a person does, whatever the version.
    fn change(&mut self, name: &str, change: impl FnOnce(&mut NodeState)) {
        if let Some(node) = self.nodes.get_mut(name) {
            self.version += 1;
            change(node);
            node.version = self.version.to_string();
        }
    }

    fn swap_ledger(&mut self, mut wanted: RebootLedger) -> bool {
        if wanted.metadata.resource_version != self.ledger.metadata.resource_version {
            return false;
        }
        self.version += 1;
        wanted.metadata.resource_version = Some(self.version.to_string());
        self.ledger = wanted;
        true
    }

    /// What the policy allows, however many nodes somebody knows of.
    fn limit(&self) -> usize {
        Rules::of_all([&self.policy])[0].limit(1000)
    }
}

/// A write that a controller has planned and not made.
enum Write {
    Ledger {
        wanted: Box<RebootLedger>,
        limit: usize,
    },
    Node {
        read: Arc<NodeState>,
        edit: Edit,
    },
}

#[derive(Default)]
struct Controller {
    nodes: Nodes,
    ledger: Option<RebootLedger>,
    back: Back,
    todo: VecDeque<Write>,
    offset: i64,
}

struct Machine {
    boot: u32,
    /// Off until then, by the machine's own reboot or by accident.
    down_until: Option<i64>,
    dead: bool,
    /// Reboots that an agent ordered.
    reboots: usize,
    requests: usize,
    cordoned_before: bool,
    pods: usize,
    /// The kubelet has told of this boot.
    told: bool,
    offset: i64,
    /// What the agent knows of its Node, and what it is about to write.
    cached: Option<NodeState>,
    todo: Option<(NodeState, Edit)>,
}

struct Rollout {
    seed: u64,
    entropy: Entropy,
    time: i64,
    server: Server,
    machines: BTreeMap<String, Machine>,
    controllers: [Controller; 2],
    faults: bool,
}

fn boot(machine: u32, boot: u32) -> String {
    format!("b-{machine}-{boot}")
}

impl Rollout {
    fn new(seed: u64) -> Self {
        let entropy = Entropy::seeded(seed);
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
                boot_id: Some(boot(number, 0)),
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
            let offset = i64::try_from(entropy.below(7200)).expect("a small number") - 3600;
            let machine = Machine {
                boot: 0,
                down_until: None,
                dead: false,
                reboots: 0,
                requests: 0,
                cordoned_before,
                pods: usize::try_from(entropy.below(4)).expect("a small number"),
                told: true,
                offset: if entropy.below(2) == 0 { 0 } else { offset },
                cached: None,
                todo: None,
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
        rollout.controllers[1].offset = 1800;
        let names: Vec<String> = rollout.machines.keys().cloned().collect();
        names.iter().for_each(|name| rollout.request(name));
        rollout
    }

    fn chance(&self, one_in: u64) -> bool {
        self.entropy.below(one_in) == 0
    }

    /// As [`chance`](Self::chance), while things go wrong.
    fn fault(&self, one_in: u64) -> bool {
        self.faults && self.chance(one_in)
    }

    fn now(&self, offset: i64) -> Timestamp {
        Timestamp::from_second(self.time + if self.faults { offset } else { 0 }).expect("a time")
    }

    fn request(&mut self, name: &str) {
        let Some(machine) = self.machines.get_mut(name) else {
            return;
        };
        // While a request or its reboot is under way another one may or may not be served by it.
        let node = &self.server.nodes[name];
        if node.needed().is_none()
            && !self
                .server
                .ledger
                .spec
                .grants
                .iter()
                .any(|grant| grant.node == name)
        {
            machine.requests += 1;
            self.server
                .change(name, |node| node.apply(&Edit::request("kernel")));
        }
    }

    fn run(mut self) -> usize {
        let steps = 60 + self.entropy.below(240);
        for _ in 0..steps {
            self.step();
        }
        self.faults = false;
        self.mend();
        for _ in 0..PATIENCE {
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

    /// People look after what is left: dead machines are taken out, what was paused goes on.
    fn mend(&mut self) {
        for (name, machine) in &self.machines {
            if machine.dead {
                self.server.nodes.remove(name);
            }
        }
        self.server.policy.spec.paused = false;
        self.server.policy.spec.max_unavailable = IntOrString::Int(2);
        // What others cordoned is theirs; it must not keep the pool at its limit for ever.
        self.server.policy.spec.count_cordoned = false;
    }

    /// Everyone does what there is to do. Nobody waits out a back-off of hours second by second.
    fn round(&mut self) {
        self.time += if self.server.ledger.spec.grants.is_empty() {
            600
        } else {
            20
        };
        self.controller(0);
        while !self.controllers[0].todo.is_empty() {
            self.controller(0);
        }
        let names: Vec<String> = self.machines.keys().cloned().collect();
        for name in &names {
            self.kubelet(name);
            self.agent(name);
            while self.machines[name].todo.is_some() {
                self.agent(name);
            }
        }
    }

    fn step(&mut self) {
        self.time += i64::try_from(self.entropy.below(20)).expect("a small number");
        match self.entropy.below(10) {
            0..=2 => self.controller(usize::from(self.fault(3))),
            3..=5 => self.some_node(Self::agent),
            6 => self.some_node(Self::kubelet),
            7 => self.some_node(Self::trouble),
            8 => self.people(),
            _ => self.crash(),
        }
    }

    fn some_node(&mut self, act: fn(&mut Self, &str)) {
        let names: Vec<String> = self.machines.keys().cloned().collect();
        let name = &names
            [usize::try_from(self.entropy.below(names.len() as u64)).expect("a small number")];
        act(self, name);
    }

    fn controller(&mut self, which: usize) {
        let mut controller = std::mem::take(&mut self.controllers[which]);
        match controller.todo.pop_front() {
            Some(write) => self.write(&mut controller, write),
            None => self.look(&mut controller),
        }
        if self.fault(40) {
            controller = Controller {
                offset: controller.offset,
                ..Controller::default()
            };
        }
        self.controllers[which] = controller;
    }

    fn write(&mut self, controller: &mut Controller, write: Write) {
        let done = match write {
            Write::Ledger { wanted, limit } => {
                let before: BTreeSet<String> = self
                    .server
                    .ledger
                    .spec
                    .grants
                    .iter()
                    .map(|grant| grant.node.clone())
                    .collect();
                let done = self.server.swap_ledger(*wanted);
                if done {
                    self.check_ledger(&before, limit);
                }
                done
            }
            Write::Node { read, edit } => self.server.edit(&read, &edit),
        };
        // A lost answer looks as a refusal does.
        if !done || self.fault(30) {
            controller.todo.clear();
        }
    }

    fn look(&mut self, controller: &mut Controller) {
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
        let rules = Rules::of_all([&self.server.policy]);
        let (held, now) = (Held::default(), self.now(controller.offset));
        let view = View {
            now,
            nodes: &controller.nodes,
            ledger: &ledger,
            rules: &rules,
            own_node: Some("n0"),
            held: &held,
            back: &controller.back,
        };
        let mut fresh = controller.nodes.clone();
        for grant in free(&view) {
            match self.server.nodes.get(&grant.node) {
                Some(node) => _ = fresh.insert(grant.node, Arc::new(node.clone())),
                None => _ = fresh.remove(&grant.node),
            }
        }
        let plan = plan(&View {
            nodes: &fresh,
            ..view
        });
        let write = |deed: Deed| {
            fresh.get(&deed.node).map(|read| Write::Node {
                read: read.clone(),
                edit: deed.edit,
            })
        };
        let limit = self.server.limit();
        controller
            .todo
            .extend(plan.deeds.into_iter().filter_map(write));
        controller
            .todo
            .extend(plan.ledger.map(|wanted| Write::Ledger {
                wanted: Box::new(wanted),
                limit,
            }));
        controller
            .todo
            .extend(plan.announcements.into_iter().filter_map(write));
        controller.back = plan.back;
    }

    fn agent(&mut self, name: &str) {
        let Some(mut machine) = self.machines.remove(name) else {
            return;
        };
        if machine.down_until.is_none() && !machine.dead {
            self.act(name, &mut machine);
        }
        self.machines.insert(name.to_owned(), machine);
    }

    fn act(&mut self, name: &str, machine: &mut Machine) {
        if let Some((read, edit)) = machine.todo.take() {
            self.server.edit(&read, &edit);
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
        let (boot, now) = (boot(number, machine.boot), self.now(machine.offset));
        let edit = match step(&node, &boot, Some(&self.server.ledger), now) {
            Step::Rest | Step::AwaitKubelet => return,
            Step::Discard => Edit::discard(),
            Step::Tidy => Edit::tidy(&node),
            Step::Claim(id) => Edit::claim(&node, &id, &boot, now),
            Step::End { id, fate, request } => Edit::end(&node, &id, fate, &request, now),
            Step::Reboot(_) => return self.reboot(name, machine),
            Step::Drain { progress, grant } => {
                machine.pods = machine.pods.saturating_sub(usize::from(self.chance(2)));
                match after_drain(&progress, &grant, machine.pods, now) {
                    AfterDrain::Again => return,
                    AfterDrain::Commit => Edit::commit(&progress),
                    AfterDrain::GiveUp => {
                        Edit::end(&node, &progress.id, Fate::DrainTimedOut, &grant.reason, now)
                    }
                }
            }
        };
        machine.todo = Some((node, edit));
    }

    fn reboot(&mut self, name: &str, machine: &mut Machine) {
        let granted = self
            .server
            .ledger
            .spec
            .grants
            .iter()
            .any(|grant| grant.node == name);
        assert!(
            granted,
            "seed {}: {name} reboots without a grant",
            self.seed
        );
        machine.reboots += 1;
        assert!(
            machine.reboots <= machine.requests,
            "seed {}: {name} reboots again",
            self.seed
        );
        self.go_down(machine);
    }

    fn go_down(&self, machine: &mut Machine) {
        machine.down_until = Some(self.time + 10);
        (machine.cached, machine.todo, machine.told) = (None, None, false);
        machine.dead = self.fault(30);
    }

    /// The kubelet, and what finds out that there is none.
    fn kubelet(&mut self, name: &str) {
        let (time, machine) = (self.time, self.machines.get_mut(name).expect("a machine"));
        match machine.down_until {
            Some(until) if time < until || machine.dead => {
                self.server.change(name, |node| node.ready = false)
            }
            Some(_) => {
                machine.down_until = None;
                machine.boot += 1;
            }
            None if machine.dead => self.server.change(name, |node| node.ready = false),
            None => {
                let boot = boot(name[1..].parse().expect("a number"), machine.boot);
                machine.told = true;
                self.server
                    .change(name, |node| (node.ready, node.boot_id) = (true, Some(boot)));
            }
        }
    }

    fn trouble(&mut self, name: &str) {
        let Some(mut machine) = self.machines.remove(name) else {
            return;
        };
        match self.entropy.below(12) {
            // Power is lost: the boot changes, and nobody ordered it.
            0 => self.go_down(&mut machine),
            1..=3 => (machine.cached, machine.todo) = (None, None),
            // The Node is deleted, and never comes back.
            4 if self.chance(3) => {
                self.server.nodes.remove(name);
            }
            // Somebody forges or replays an order.
            5 => self.server.change(name, |node| {
                if let Some(last) = node.last() {
                    let order = crate::notes::Order {
                        id: last.id.clone(),
                        expires: Timestamp::MAX,
                    };
                    *node = node.clone().with_note(crate::notes::NOW, order);
                }
            }),
            _ => {}
        }
        self.machines.insert(name.to_owned(), machine);
    }

    fn people(&mut self) {
        match self.entropy.below(6) {
            0 => {
                self.server.policy.spec.max_unavailable =
                    IntOrString::Int(i32::try_from(self.entropy.below(4)).expect("a small number"))
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

    fn crash(&mut self) {
        let which = usize::from(self.chance(2));
        self.controllers[which] = Controller {
            offset: self.controllers[which].offset,
            ..Controller::default()
        };
    }

    fn check_ledger(&self, before: &BTreeSet<String>, limit: usize) {
        let grants = &self.server.ledger.spec.grants;
        let now: BTreeSet<String> = grants.iter().map(|grant| grant.node.clone()).collect();
        assert_eq!(
            now.len(),
            grants.len(),
            "seed {}: two grants for a node: {grants:?}",
            self.seed
        );
        if now.iter().any(|node| !before.contains(node)) {
            assert!(
                now.len() <= limit,
                "seed {}: {now:?} are more than {limit}",
                self.seed
            );
        }
        for freed in before.difference(&now) {
            let node = self.server.nodes.get(freed);
            // A forged order may be there again; nobody obeys an order that ended.
            let is_told =
                |node: &NodeState| node.now().is_some_and(|order| !node.has_ended(&order.id));
            let free = node
                .is_none_or(|node| !node.is_busy() && !is_told(node) && !node.is_cordoned_by_us());
            assert!(
                free,
                "seed {}: the slot of {freed} was freed too early: {node:?}",
                self.seed
            );
        }
    }

    fn is_done(&self) -> bool {
        self.server.ledger.spec.grants.is_empty()
            && self.machines.iter().all(|(name, machine)| {
                machine.dead
                    || self.server.nodes.get(name).is_none_or(|node| {
                        machine.told
                            && node.ready
                            && node.needed().is_none()
                            && !node.is_busy()
                            && !node.has_order()
                            && !node.is_cordoned_by_us()
                    })
            })
    }

    fn check_end(&self) {
        for (name, machine) in self.machines.iter().filter(|(_, machine)| !machine.dead) {
            let Some(node) = self.server.nodes.get(name) else {
                continue;
            };
            assert_eq!(
                node.unschedulable, machine.cordoned_before,
                "seed {}: {name} is not as it was: {node:?}",
                self.seed
            );
        }
    }
}

#[test]
fn random_rollouts_keep_every_promise() {
    let threads = std::thread::available_parallelism().map_or(1, usize::from) as u64;
    let reboots: usize = std::thread::scope(|scope| {
        let running: Vec<_> = (0..threads)
            .map(|first| {
                scope.spawn(move || {
                    (first..ROLLOUTS)
                        .step_by(threads as usize)
                        .map(|seed| Rollout::new(seed).run())
                        .sum::<usize>()
                })
            })
            .collect();
        running
            .into_iter()
            .map(|thread| thread.join().expect("no promise is broken"))
            .sum()
    });
    assert!(
        reboots > 2 * usize::try_from(ROLLOUTS).expect("a small number"),
        "nodes do reboot: {reboots}"
    );
    // Past the test harness, which keeps what a test prints to itself.
    _ = writeln!(
        std::io::stderr(),
        "{ROLLOUTS} random rollouts, {reboots} reboots"
    );
}
