//! Decisions on small clusters.

use std::sync::Arc;
use std::time::Duration;

use bellerophon::Entropy;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::budget::Budgets;
use super::cycle::{Circumstances, Decision, Refused, decide};
use super::ledger::Ledger;
use super::pod_info::{Pending, PodInfo};
use super::queue::Queue;
use super::refusal::Refusal;

impl Budgets for Vec<Arc<PodDisruptionBudget>> {
    fn of(&self, _: &str) -> Vec<Arc<PodDisruptionBudget>> {
        self.clone()
    }
}

fn merged(mut base: Value, over: Value) -> Value {
    for (key, value) in over.as_object().into_iter().flatten() {
        if base[key].is_object() && value.is_object() {
            base[key] = merged(base[key].clone(), value.clone());
        } else {
            base[key] = value.clone();
        }
    }
    base
}

/// A node with 4 CPUs, room for 10 pods, in a zone that is the first letter of its name.
fn node(name: &str, over: Value) -> Arc<Node> {
    let node = json!({
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, "topology.kubernetes.io/zone": &name[..1]}},
        "spec": {},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
    });
    Arc::new(serde_json::from_value(merged(node, over)).unwrap())
}

/// A pod that asks for nothing, with a label `app` of its name without the part after a dash.
fn pod(name: &str, over: Value) -> Pod {
    let app = name.split('-').next().unwrap();
    let pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": app}},
        "spec": {"containers": [{"name": "c"}]},
    });
    serde_json::from_value(merged(pod, over)).unwrap()
}

fn cpu(amount: &str) -> Value {
    json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": amount}}}]}})
}

/// A cluster with pods on nodes as `node: pod pod`.
fn ledger(nodes: &[Arc<Node>], placed: &[(&str, Pod)]) -> Ledger {
    let mut ledger = Ledger::default();
    nodes.iter().for_each(|node| ledger.set_node(node.clone()));
    placed
        .iter()
        .for_each(|(node, pod)| ledger.place(&Arc::new(PodInfo::of(pod)), node));
    assert!(ledger.is_consistent());
    ledger
}

fn decide_with(ledger: &mut Ledger, pod: &Pod, budgets: Vec<Arc<PodDisruptionBudget>>) -> Decision {
    let circumstances = Circumstances {
        volumes: Ok(Vec::new()),
        budgets: &budgets,
        entropy: &Entropy::seeded(7),
    };
    let decision = decide(ledger, &Pending::of(pod), &circumstances);
    assert!(
        ledger.is_consistent(),
        "a decision leaves the ledger as it was"
    );
    decision
}

/// The node, or the message.
fn outcome(ledger: &mut Ledger, pod: &Pod) -> String {
    match decide_with(ledger, pod, Vec::new()) {
        Decision::Bind { node } => node,
        Decision::Refuse(Refused { message, .. }) => message,
    }
}

#[test]
fn filters_say_why_in_the_words_people_know() {
    let three = || {
        vec![
            node("a1", json!({})),
            node("b1", json!({})),
            node("c1", json!({})),
        ]
    };
    let all = |why: &str| {
        format!(
            "0/3 nodes are available: 3 {why}. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
        )
    };
    let each = |over: Value| {
        vec![
            node("a1", over.clone()),
            node("b1", over.clone()),
            node("c1", over),
        ]
    };
    let no_victims = |why: &str| {
        format!(
            "0/3 nodes are available: 3 {why}. preemption: 0/3 nodes are available: 3 No preemption victims found for incoming pod."
        )
    };
    let full = || {
        ["a1", "b1", "c1"]
            .map(|node| (node, pod(&format!("old-{node}"), cpu("3"))))
            .to_vec()
    };
    let port = || json!({"spec": {"containers": [{"name": "c", "ports": [{"containerPort": 80, "hostPort": 80}]}]}});
    let cases: Vec<(&str, Vec<Arc<Node>>, Vec<(&str, Pod)>, Value, String)> = vec![
        ("no nodes", vec![], vec![], json!({}), "no nodes available to schedule pods".into()),
        ("more than any node has", three(), vec![], cpu("5"), all("Insufficient cpu")),
        ("more than is left", three(), full(), cpu("2"), no_victims("Insufficient cpu")),
        ("cordoned", each(json!({"spec": {"unschedulable": true}})), vec![], json!({}), all("node(s) were unschedulable")),
        (
            "tainted",
            each(json!({"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}})),
            vec![],
            json!({}),
            all("node(s) had untolerated taint(s)"),
        ),
        ("selector", three(), vec![], json!({"spec": {"nodeSelector": {"disk": "ssd"}}}), all("node(s) didn't match Pod's node affinity/selector")),
        (
            "ports",
            three(),
            ["a1", "b1", "c1"].map(|node| (node, pod(&format!("old-{node}"), port()))).to_vec(),
            port(),
            no_victims("node(s) didn't have free ports for the requested pod ports"),
        ),
        (
            "too many pods",
            each(json!({"status": {"allocatable": {"pods": "0"}}})),
            vec![],
            json!({}),
            no_victims("Too many pods"),
        ),
        (
            "extended",
            three(),
            vec![],
            json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"example.com/gpu": "1"}}}]}}),
            all("Insufficient example.com/gpu"),
        ),
        (
            "several",
            vec![node("a1", json!({"spec": {"unschedulable": true}})), node("b1", json!({})), node("c1", json!({}))],
            full(),
            json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": "2", "memory": "9Gi"}}}]}}),
            "0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient cpu, 2 Insufficient memory. \
             preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling."
                .into(),
        ),
        (
            "never preempts",
            three(),
            full(),
            merged(cpu("2"), json!({"spec": {"preemptionPolicy": "Never"}})),
            "0/3 nodes are available: 3 Insufficient cpu. preemption: not eligible due to preemptionPolicy=Never.".into(),
        ),
        (
            "affinity",
            three(),
            vec![],
            json!({"spec": {"affinity": {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "db"}}}]}}}}),
            all("node(s) didn't match pod affinity rules"),
        ),
        (
            "anti-affinity of those who are there",
            three(),
            vec![("a1", pod("db", json!({"spec": {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [
                {"topologyKey": "nowhere", "labelSelector": {}}, {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"app": "new"}}}]}}}})))],
            json!({"spec": {"nodeSelector": {"kubernetes.io/hostname": "a1"}}}),
            "0/3 nodes are available: 1 node(s) didn't satisfy existing pods anti-affinity rules, 2 node(s) didn't match Pod's node affinity/selector. \
             preemption: 0/3 nodes are available: 1 No preemption victims found for incoming pod, 2 Preemption is not helpful for scheduling."
                .into(),
        ),
    ];
    for (why, nodes, placed, over, wanted) in cases {
        assert_eq!(
            outcome(&mut ledger(&nodes, &placed), &pod("new", over)),
            wanted,
            "{why}"
        );
    }
}

#[test]
fn pods_go_where_they_belong() {
    let nodes = || {
        [
            node("a1", json!({})),
            node("a2", json!({})),
            node("b1", json!({})),
        ]
    };
    let term = |app: &str, key: &str| json!({"topologyKey": key, "labelSelector": {"matchLabels": {"app": app}}});
    let (zone, host) = ("topology.kubernetes.io/zone", "kubernetes.io/hostname");
    let required = |kind: &str, term: Value| json!({"spec": {"affinity": {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}});
    let preferred = |kind: &str, term: Value| json!({"spec": {"affinity": {kind: {"preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 10, "podAffinityTerm": term}]}}}});
    let spread = |when: &str, key: &str| {
        json!({"spec": {"topologySpreadConstraints": [
            {"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": when, "labelSelector": {"matchLabels": {"app": "new"}}}]}})
    };
    let owned = json!({"metadata": {"ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true}]}});
    let cases: Vec<(&str, Vec<(&str, Pod)>, Value, &[&str])> = vec![
        (
            "by name",
            vec![],
            json!({"spec": {"nodeSelector": {host: "a2"}}}),
            &["a2"],
        ),
        (
            "where there is most room",
            vec![("a1", pod("x", cpu("3"))), ("b1", pod("y", cpu("2")))],
            cpu("1"),
            &["a2"],
        ),
        (
            "beside another",
            vec![("a2", pod("db", json!({})))],
            required("podAffinity", term("db", host)),
            &["a2"],
        ),
        (
            "in the zone of another",
            vec![("a2", pod("db", json!({})))],
            required("podAffinity", term("db", zone)),
            &["a1", "a2"],
        ),
        (
            "the first of its kind",
            vec![],
            required("podAffinity", term("new", zone)),
            &["a1", "a2", "b1"],
        ),
        (
            "not beside another",
            vec![("a1", pod("db", json!({}))), ("b1", pod("db-2", json!({})))],
            required("podAntiAffinity", term("db", host)),
            &["a2"],
        ),
        (
            "not in the zone of another",
            vec![("a2", pod("db", json!({})))],
            required("podAntiAffinity", term("db", zone)),
            &["b1"],
        ),
        (
            "rather beside another",
            vec![("b1", pod("db", json!({})))],
            preferred("podAffinity", term("db", zone)),
            &["b1"],
        ),
        (
            "rather not beside another",
            vec![("b1", pod("db", json!({}))), ("a1", pod("db-2", json!({})))],
            preferred("podAntiAffinity", term("db", host)),
            &["a2"],
        ),
        (
            "where it is liked",
            vec![("b1", pod("db", preferred("podAffinity", term("new", host))))],
            json!({}),
            &["b1"],
        ),
        (
            "spread over zones",
            vec![("a1", pod("new-1", json!({})))],
            spread("DoNotSchedule", zone),
            &["b1"],
        ),
        (
            "spread over nodes",
            vec![
                ("a1", pod("new-1", json!({}))),
                ("b1", pod("new-2", json!({}))),
            ],
            spread("DoNotSchedule", host),
            &["a2"],
        ),
        (
            "rather spread",
            vec![
                ("a1", pod("new-1", json!({}))),
                ("b1", pod("new-2", json!({}))),
            ],
            spread("ScheduleAnyway", host),
            &["a2"],
        ),
        (
            "pods of a controller are spread",
            vec![
                ("a1", pod("n-1", owned.clone())),
                ("b1", pod("n-2", owned.clone())),
            ],
            owned,
            &["a2"],
        ),
        (
            "other namespaces do not count",
            vec![("a1", pod("db", json!({"metadata": {"namespace": "other"}})))],
            merged(
                required("podAntiAffinity", term("db", zone)),
                json!({"spec": {"nodeSelector": {host: "a1"}}}),
            ),
            &["a1"],
        ),
    ];
    for (why, placed, over, wanted) in cases {
        let got = outcome(&mut ledger(&nodes(), &placed), &pod("new", over));
        assert!(
            wanted.contains(&got.as_str()),
            "{why}: {got}, not one of {wanted:?}"
        );
    }
}

#[test]
fn preemption_ends_the_least_that_helps() {
    let with =
        |priority: i32, amount: &str| merged(cpu(amount), json!({"spec": {"priority": priority}}));
    let nodes = || [node("a1", json!({})), node("b1", json!({}))];
    let budget = |app: &str, allowed: i32| {
        let budget = json!({
            "metadata": {"uid": app}, "spec": {"selector": {"matchLabels": {"app": app}}}, "status": {"disruptionsAllowed": allowed},
        });
        Arc::new(serde_json::from_value::<PodDisruptionBudget>(budget).unwrap())
    };
    // Who is where; disruption budgets; the node and the victims.
    let cases: Vec<(
        &str,
        Vec<(&str, Pod)>,
        Vec<Arc<PodDisruptionBudget>>,
        Option<(&str, &[&str])>,
    )> = vec![
        (
            "the less important",
            vec![
                ("a1", pod("x", with(5, "4"))),
                ("b1", pod("y", with(1, "4"))),
            ],
            vec![],
            Some(("b1", &["y"])),
        ),
        (
            "the fewer",
            vec![
                ("a1", pod("x", with(1, "2"))),
                ("a1", pod("y", with(1, "2"))),
                ("b1", pod("z", with(1, "4"))),
            ],
            vec![],
            Some(("b1", &["z"])),
        ),
        (
            "no more than needed",
            vec![
                ("a1", pod("x", with(1, "1"))),
                ("a1", pod("y", with(2, "3"))),
                ("b1", pod("z", with(100, "4"))),
            ],
            vec![],
            Some(("a1", &["y"])),
        ),
        (
            "budgets are kept",
            vec![
                ("a1", pod("x", with(1, "4"))),
                ("b1", pod("y", with(5, "4"))),
            ],
            vec![budget("x", 0), budget("y", 1)],
            Some(("b1", &["y"])),
        ),
        (
            "if there is no other way",
            vec![
                ("a1", pod("x", with(1, "4"))),
                ("b1", pod("y", with(100, "4"))),
            ],
            vec![budget("x", 0)],
            Some(("a1", &["x"])),
        ),
        (
            "nobody more important",
            vec![
                ("a1", pod("x", with(100, "4"))),
                ("b1", pod("y", with(100, "4"))),
            ],
            vec![],
            None,
        ),
    ];
    for (why, placed, budgets, wanted) in cases {
        let mut ledger = ledger(&nodes(), &placed);
        let decision = decide_with(&mut ledger, &pod("new", with(10, "3")), budgets);
        let Decision::Refuse(refused) = decision else {
            panic!("{why}: {decision:?}")
        };
        let got = refused.preemption.map(|p| {
            (
                p.node,
                p.victims
                    .iter()
                    .map(|pod| pod.uid.clone())
                    .collect::<Vec<_>>(),
            )
        });
        assert_eq!(
            got,
            wanted.map(|(node, victims)| (
                node.to_owned(),
                victims.iter().map(|uid| (*uid).to_owned()).collect()
            )),
            "{why}"
        );
    }
}

#[test]
fn room_that_a_pod_waits_for_is_kept_from_less_important_ones() {
    let with = |priority: i32| merged(cpu("3"), json!({"spec": {"priority": priority}}));
    let mut ledger = ledger(&[node("a1", json!({}))], &[]);
    let waiting = Arc::new(PodInfo::of(&pod("waiting", with(10))));
    ledger.nominate(&waiting, "a1");
    assert!(outcome(&mut ledger, &pod("less", with(1))).contains("Insufficient cpu"));
    assert_eq!(outcome(&mut ledger, &pod("more", with(20))), "a1");
    ledger.withdraw("waiting");
    assert_eq!(outcome(&mut ledger, &pod("less", with(1))), "a1");
}

#[test]
fn ledger_follows_nodes_and_pods_that_come_and_go() {
    let mut ledger = ledger(
        &[node("a1", json!({}))],
        &[("ghost", pod("early", cpu("1")))],
    );
    assert_eq!(
        (ledger.len(), ledger.slots()),
        (1, 2),
        "a pod may come before its node"
    );
    ledger.set_node(node("ghost", json!({})));
    assert_eq!(
        ledger
            .node(ledger.slot_of("ghost").unwrap())
            .unwrap()
            .requested
            .cpu,
        1000
    );
    ledger.place(&Arc::new(PodInfo::of(&pod("early", cpu("2")))), "a1");
    assert_eq!(
        ledger
            .node(ledger.slot_of("a1").unwrap())
            .unwrap()
            .requested
            .cpu,
        2000,
        "a pod that is told again counts once"
    );
    ledger.remove_node("ghost");
    assert!(!ledger.remove("nobody") && ledger.remove("early"));
    ledger.set_node(node("b1", json!({})));
    assert_eq!(
        (ledger.len(), ledger.slots()),
        (2, 2),
        "what is free is used again"
    );
    assert!(ledger.is_consistent());
}

#[tokio::test(start_paused = true)]
async fn refused_pods_are_tried_again_when_it_can_help() {
    let second = Duration::from_secs(1);
    let named = |name: &str, priority: i32| {
        Pending::of(&pod(name, json!({"spec": {"priority": priority}})))
    };
    let mut queue = Queue::default();
    let take = |queue: &mut Queue| {
        queue
            .take(Instant::now())
            .map(|pending| pending.info.uid.clone())
    };
    for (name, priority) in [("low", 1), ("high", 9), ("also-high", 9)] {
        queue.set(named(name, priority), Instant::now());
    }
    let order: Vec<_> = std::iter::from_fn(|| take(&mut queue)).collect();
    assert_eq!(order, ["high", "also-high", "low"]);
    queue.refused("low", Refusal::CPU, None, Instant::now());
    queue.refused("high", Refusal::TAINTS, None, Instant::now());
    queue.again("also-high", Instant::now());

    tokio::time::advance(second * 2).await;
    assert_eq!(
        take(&mut queue).as_deref(),
        Some("also-high"),
        "its back-off is over"
    );
    queue.remove("also-high");
    queue.happened(Refusal::MENDED_BY_END);
    assert_eq!(
        take(&mut queue).as_deref(),
        Some("low"),
        "room helps those without room"
    );
    assert_eq!(take(&mut queue), None, "and nobody else");
    queue.refused("low", Refusal::CPU, None, Instant::now());
    queue.happened(Refusal::MENDED_BY_END);
    assert_eq!(take(&mut queue), None, "it failed just now");
    tokio::time::advance(second * 2).await;
    assert_eq!(take(&mut queue).as_deref(), Some("low"));
    tokio::time::advance(second * 300).await;
    assert_eq!(
        take(&mut queue).as_deref(),
        Some("high"),
        "after five minutes whatever happened"
    );
    queue.refused("low", Refusal::CPU, None, Instant::now());
    queue.remove("low");
    queue.remove("high");
    queue.happened(Refusal::ANY);
    assert!(
        take(&mut queue).is_none()
            && queue.next_time().is_none()
            && !queue.is_in_line(Instant::now())
    );
}

#[tokio::test(start_paused = true)]
async fn gated_pods_wait_until_their_gates_are_open() {
    let mut queue = Queue::default();
    let gated = json!({"spec": {"schedulingGates": [{"name": "example.com/wait"}]}});
    queue.set(Pending::of(&pod("web", gated)), Instant::now());
    queue.happened(Refusal::ANY);
    assert!(queue.take(Instant::now()).is_none());
    queue.set(Pending::of(&pod("web", json!({}))), Instant::now());
    assert!(queue.take(Instant::now()).is_some());
}
