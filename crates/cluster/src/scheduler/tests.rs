//! Scheduling cycles on small clusters.

use std::sync::Arc;
use std::time::Duration;

use bellerophon::clock::Rng;
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use serde_json::{Value, json};
use tokio::time::Instant;

use super::cache::Cache;
use super::diagnosis::UnschedulableReasons;
use super::pdb::PodDisruptionBudgets;
use super::pod_info::{PendingPod, PodInfo};
use super::queue::SchedulingQueue;
use super::scheduling_cycle::{CycleInputs, FitError, ScheduleResult, schedule_pod};

const ZONE: &str = "topology.kubernetes.io/zone";
const HOSTNAME: &str = "kubernetes.io/hostname";

impl PodDisruptionBudgets for Vec<Arc<PodDisruptionBudget>> {
    fn list(&self, _: &str) -> Vec<Arc<PodDisruptionBudget>> {
        self.clone()
    }
}

fn merge(mut base: Value, overrides: Value) -> Value {
    for (key, value) in overrides.as_object().into_iter().flatten() {
        if base[key].is_object() && value.is_object() {
            base[key] = merge(base[key].clone(), value.clone());
        } else {
            base[key] = value.clone();
        }
    }
    base
}

/// A node with 4 CPUs and 10 pods allocatable. Its zone is the first letter of its name.
fn node(name: &str, overrides: Value) -> Arc<Node> {
    let node = json!({
        "metadata": {"name": name, "labels": {HOSTNAME: name, ZONE: &name[..1]}},
        "spec": {},
        "status": {"allocatable": {"cpu": "4", "memory": "8Gi", "pods": "10"}},
    });
    Arc::new(serde_json::from_value(merge(node, overrides)).unwrap())
}

/// A pod without requests. Its label `app` is its name up to the first dash.
fn pod(name: &str, overrides: Value) -> Pod {
    let app = name.split('-').next().unwrap();
    let pod = json!({
        "metadata": {"name": name, "namespace": "default", "uid": name, "labels": {"app": app}},
        "spec": {"containers": [{"name": "c"}]},
    });
    serde_json::from_value(merge(pod, overrides)).unwrap()
}

fn cpu(amount: &str) -> Value {
    json!({"spec": {"containers": [{"name": "c", "resources": {"requests": {"cpu": amount}}}]}})
}

/// A scheduler cache with these nodes and pods assigned to them.
fn cache(nodes: &[Arc<Node>], assigned: &[(&str, Pod)]) -> Cache {
    let mut cache = Cache::default();
    nodes
        .iter()
        .for_each(|node| cache.update_node(node.clone()));
    assigned
        .iter()
        .for_each(|(node, pod)| cache.add_pod(&Arc::new(PodInfo::of(pod)), node));
    assert!(cache.is_consistent());
    cache
}

fn schedule_with(
    cache: &mut Cache,
    pod: &Pod,
    budgets: Vec<Arc<PodDisruptionBudget>>,
) -> ScheduleResult {
    let inputs = CycleInputs {
        volume_selectors: Ok(Vec::new()),
        budgets: &budgets,
        rng: &Rng::seeded(7),
    };
    let result = schedule_pod(cache, &PendingPod::of(pod), &inputs);
    assert!(
        cache.is_consistent(),
        "a scheduling cycle leaves the cache consistent"
    );
    result
}

/// The selected node, or the message of the fit error.
fn node_or_message(cache: &mut Cache, pod: &Pod) -> String {
    match schedule_with(cache, pod, Vec::new()) {
        ScheduleResult::Scheduled { node } => node,
        ScheduleResult::Unschedulable(FitError { message, .. }) => message,
    }
}

fn host_port() -> Value {
    let port = json!({"containerPort": 80, "hostPort": 80});
    json!({"spec": {"containers": [{"name": "c", "ports": [port]}]}})
}

fn requests(requests: Value) -> Value {
    json!({"spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]}})
}

/// A spec with required terms of `podAffinity` or `podAntiAffinity`.
fn required_terms(kind: &str, terms: Value) -> Value {
    let terms = json!({"requiredDuringSchedulingIgnoredDuringExecution": terms});
    json!({"spec": {"affinity": {kind: terms}}})
}

/// An affinity term that selects pods by their label `app`.
fn affinity_term(app: &str, topology_key: &str) -> Value {
    json!({"topologyKey": topology_key, "labelSelector": {"matchLabels": {"app": app}}})
}

#[test]
fn fit_errors_use_the_messages_of_kube_scheduler() {
    let each = |overrides: Value| ["a1", "b1", "c1"].map(|name| node(name, overrides.clone()));
    let three = || each(json!({})).to_vec();
    let on_each = |overrides: Value| {
        ["a1", "b1", "c1"]
            .map(|node| (node, pod(&format!("old-{node}"), overrides.clone())))
            .to_vec()
    };
    let not_helpful = |reason: &str| {
        format!(
            "0/3 nodes are available: 3 {reason}. preemption: 0/3 nodes are available: \
             3 Preemption is not helpful for scheduling."
        )
    };
    let no_victims = |reason: &str| {
        format!(
            "0/3 nodes are available: 3 {reason}. preemption: 0/3 nodes are available: \
             3 No preemption victims found for incoming pod."
        )
    };
    let anti_affinity = || {
        let ignored = json!({"topologyKey": "missing", "labelSelector": {}});
        let terms = json!([ignored, affinity_term("new", HOSTNAME)]);
        pod("db", required_terms("podAntiAffinity", terms))
    };
    let cases: Vec<(&str, Vec<Arc<Node>>, Vec<(&str, Pod)>, Value, String)> = vec![
        (
            "no nodes",
            vec![],
            vec![],
            json!({}),
            "no nodes available to schedule pods".into(),
        ),
        (
            "requests exceed allocatable",
            three(),
            vec![],
            cpu("5"),
            not_helpful("Insufficient cpu"),
        ),
        (
            "requests exceed what is left",
            three(),
            on_each(cpu("3")),
            cpu("2"),
            no_victims("Insufficient cpu"),
        ),
        (
            "cordoned",
            each(json!({"spec": {"unschedulable": true}})).to_vec(),
            vec![],
            json!({}),
            not_helpful("node(s) were unschedulable"),
        ),
        (
            "tainted",
            each(json!({"spec": {"taints": [{"key": "x", "effect": "NoSchedule"}]}})).to_vec(),
            vec![],
            json!({}),
            not_helpful("node(s) had untolerated taint(s)"),
        ),
        (
            "node selector",
            three(),
            vec![],
            json!({"spec": {"nodeSelector": {"disk": "ssd"}}}),
            not_helpful("node(s) didn't match Pod's node affinity/selector"),
        ),
        (
            "host ports",
            three(),
            on_each(host_port()),
            host_port(),
            no_victims("node(s) didn't have free ports for the requested pod ports"),
        ),
        (
            "too many pods",
            each(json!({"status": {"allocatable": {"pods": "0"}}})).to_vec(),
            vec![],
            json!({}),
            no_victims("Too many pods"),
        ),
        (
            "extended resource",
            three(),
            vec![],
            requests(json!({"example.com/gpu": "1"})),
            not_helpful("Insufficient example.com/gpu"),
        ),
        (
            "several reasons",
            vec![
                node("a1", json!({"spec": {"unschedulable": true}})),
                node("b1", json!({})),
                node("c1", json!({})),
            ],
            on_each(cpu("3")),
            requests(json!({"cpu": "2", "memory": "9Gi"})),
            "0/3 nodes are available: 1 node(s) were unschedulable, 2 Insufficient cpu, \
             2 Insufficient memory. preemption: 0/3 nodes are available: \
             3 Preemption is not helpful for scheduling."
                .into(),
        ),
        (
            "preemptionPolicy: Never",
            three(),
            on_each(cpu("3")),
            merge(cpu("2"), json!({"spec": {"preemptionPolicy": "Never"}})),
            "0/3 nodes are available: 3 Insufficient cpu. \
             preemption: not eligible due to preemptionPolicy=Never."
                .into(),
        ),
        (
            "pod affinity",
            three(),
            vec![],
            required_terms("podAffinity", json!([affinity_term("db", HOSTNAME)])),
            not_helpful("node(s) didn't match pod affinity rules"),
        ),
        (
            "anti-affinity of existing pods",
            three(),
            vec![("a1", anti_affinity())],
            json!({"spec": {"nodeSelector": {"kubernetes.io/hostname": "a1"}}}),
            "0/3 nodes are available: \
             1 node(s) didn't satisfy existing pods anti-affinity rules, \
             2 node(s) didn't match Pod's node affinity/selector. \
             preemption: 0/3 nodes are available: \
             1 No preemption victims found for incoming pod, \
             2 Preemption is not helpful for scheduling."
                .into(),
        ),
    ];
    for (case, nodes, assigned, overrides, expected) in cases {
        assert_eq!(
            node_or_message(&mut cache(&nodes, &assigned), &pod("new", overrides)),
            expected,
            "{case}"
        );
    }
}

#[test]
fn pods_are_placed_by_affinity_spread_and_free_resources() {
    let nodes = || {
        [
            node("a1", json!({})),
            node("a2", json!({})),
            node("b1", json!({})),
        ]
    };
    let required = |kind: &str, term: Value| required_terms(kind, json!([term]));
    let preferred = |kind: &str, term: Value| {
        let term = json!({"weight": 10, "podAffinityTerm": term});
        let terms = json!({"preferredDuringSchedulingIgnoredDuringExecution": [term]});
        json!({"spec": {"affinity": {kind: terms}}})
    };
    let spread = |when_unsatisfiable: &str, topology_key: &str| {
        let constraint = json!({
            "maxSkew": 1, "topologyKey": topology_key, "whenUnsatisfiable": when_unsatisfiable,
            "labelSelector": {"matchLabels": {"app": "new"}},
        });
        json!({"spec": {"topologySpreadConstraints": [constraint]}})
    };
    let owner = json!({
        "apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true,
    });
    let owned = json!({"metadata": {"ownerReferences": [owner]}});
    let cases: Vec<(&str, Vec<(&str, Pod)>, Value, &[&str])> = vec![
        (
            "node selector",
            vec![],
            json!({"spec": {"nodeSelector": {HOSTNAME: "a2"}}}),
            &["a2"],
        ),
        (
            "least allocated node",
            vec![("a1", pod("x", cpu("3"))), ("b1", pod("y", cpu("2")))],
            cpu("1"),
            &["a2"],
        ),
        (
            "required affinity by hostname",
            vec![("a2", pod("db", json!({})))],
            required("podAffinity", affinity_term("db", HOSTNAME)),
            &["a2"],
        ),
        (
            "required affinity by zone",
            vec![("a2", pod("db", json!({})))],
            required("podAffinity", affinity_term("db", ZONE)),
            &["a1", "a2"],
        ),
        (
            "required affinity to itself",
            vec![],
            required("podAffinity", affinity_term("new", ZONE)),
            &["a1", "a2", "b1"],
        ),
        (
            "required anti-affinity by hostname",
            vec![("a1", pod("db", json!({}))), ("b1", pod("db-2", json!({})))],
            required("podAntiAffinity", affinity_term("db", HOSTNAME)),
            &["a2"],
        ),
        (
            "required anti-affinity by zone",
            vec![("a2", pod("db", json!({})))],
            required("podAntiAffinity", affinity_term("db", ZONE)),
            &["b1"],
        ),
        (
            "preferred affinity",
            vec![("b1", pod("db", json!({})))],
            preferred("podAffinity", affinity_term("db", ZONE)),
            &["b1"],
        ),
        (
            "preferred anti-affinity",
            vec![("b1", pod("db", json!({}))), ("a1", pod("db-2", json!({})))],
            preferred("podAntiAffinity", affinity_term("db", HOSTNAME)),
            &["a2"],
        ),
        (
            "preferred affinity of an existing pod",
            vec![(
                "b1",
                pod(
                    "db",
                    preferred("podAffinity", affinity_term("new", HOSTNAME)),
                ),
            )],
            json!({}),
            &["b1"],
        ),
        (
            "hard spread constraint by zone",
            vec![("a1", pod("new-1", json!({})))],
            spread("DoNotSchedule", ZONE),
            &["b1"],
        ),
        (
            "hard spread constraint by hostname",
            vec![
                ("a1", pod("new-1", json!({}))),
                ("b1", pod("new-2", json!({}))),
            ],
            spread("DoNotSchedule", HOSTNAME),
            &["a2"],
        ),
        (
            "soft spread constraint",
            vec![
                ("a1", pod("new-1", json!({}))),
                ("b1", pod("new-2", json!({}))),
            ],
            spread("ScheduleAnyway", HOSTNAME),
            &["a2"],
        ),
        (
            "system default constraints",
            vec![
                ("a1", pod("n-1", owned.clone())),
                ("b1", pod("n-2", owned.clone())),
            ],
            owned,
            &["a2"],
        ),
        (
            "anti-affinity ignores other namespaces",
            vec![("a1", pod("db", json!({"metadata": {"namespace": "other"}})))],
            merge(
                required("podAntiAffinity", affinity_term("db", ZONE)),
                json!({"spec": {"nodeSelector": {HOSTNAME: "a1"}}}),
            ),
            &["a1"],
        ),
    ];
    for (case, assigned, overrides, expected) in cases {
        let actual = node_or_message(&mut cache(&nodes(), &assigned), &pod("new", overrides));
        assert!(
            expected.contains(&actual.as_str()),
            "{case}: {actual}, not one of {expected:?}"
        );
    }
}

#[test]
fn preemption_selects_the_candidate_with_the_lowest_cost() {
    let with =
        |priority: i32, amount: &str| merge(cpu(amount), json!({"spec": {"priority": priority}}));
    let nodes = || [node("a1", json!({})), node("b1", json!({}))];
    let budget = |app: &str, allowed: i32| {
        let budget = json!({
            "metadata": {"uid": app},
            "spec": {"selector": {"matchLabels": {"app": app}}},
            "status": {"disruptionsAllowed": allowed},
        });
        Arc::new(serde_json::from_value::<PodDisruptionBudget>(budget).unwrap())
    };
    // Assigned pods, disruption budgets, expected node and victims.
    let cases: Vec<(
        &str,
        Vec<(&str, Pod)>,
        Vec<Arc<PodDisruptionBudget>>,
        Option<(&str, &[&str])>,
    )> = vec![
        (
            "lower priority",
            vec![
                ("a1", pod("x", with(5, "4"))),
                ("b1", pod("y", with(1, "4"))),
            ],
            vec![],
            Some(("b1", &["y"])),
        ),
        (
            "fewer victims",
            vec![
                ("a1", pod("x", with(1, "2"))),
                ("a1", pod("y", with(1, "2"))),
                ("b1", pod("z", with(1, "4"))),
            ],
            vec![],
            Some(("b1", &["z"])),
        ),
        (
            "minimal victims",
            vec![
                ("a1", pod("x", with(1, "1"))),
                ("a1", pod("y", with(2, "3"))),
                ("b1", pod("z", with(100, "4"))),
            ],
            vec![],
            Some(("a1", &["y"])),
        ),
        (
            "disruption budgets are respected",
            vec![
                ("a1", pod("x", with(1, "4"))),
                ("b1", pod("y", with(5, "4"))),
            ],
            vec![budget("x", 0), budget("y", 1)],
            Some(("b1", &["y"])),
        ),
        (
            "budgets are violated without another candidate",
            vec![
                ("a1", pod("x", with(1, "4"))),
                ("b1", pod("y", with(100, "4"))),
            ],
            vec![budget("x", 0)],
            Some(("a1", &["x"])),
        ),
        (
            "no victims of higher priority",
            vec![
                ("a1", pod("x", with(100, "4"))),
                ("b1", pod("y", with(100, "4"))),
            ],
            vec![],
            None,
        ),
    ];
    for (case, assigned, budgets, expected) in cases {
        let mut cache = cache(&nodes(), &assigned);
        let result = schedule_with(&mut cache, &pod("new", with(10, "3")), budgets);
        let ScheduleResult::Unschedulable(error) = result else {
            panic!("{case}: {result:?}")
        };
        let preemption = error.preemption.as_ref();
        let node = preemption.map(|preemption| preemption.node.as_str());
        let victims: Option<Vec<_>> = preemption.map(|preemption| {
            let victims = preemption.victims.iter();
            victims.map(|pod| pod.uid.as_str()).collect()
        });
        assert_eq!(node, expected.map(|(node, _)| node), "node: {case}");
        let expected_victims = expected.map(|(_, victims)| victims.to_vec());
        assert_eq!(victims, expected_victims, "victims: {case}");
    }
}

#[test]
fn nominated_pod_reserves_resources_against_lower_priority() {
    let with = |priority: i32| merge(cpu("3"), json!({"spec": {"priority": priority}}));
    let mut cache = cache(&[node("a1", json!({}))], &[]);
    let nominated = Arc::new(PodInfo::of(&pod("nominated", with(10))));
    cache.add_nominated_pod(&nominated, "a1");
    assert!(node_or_message(&mut cache, &pod("lower", with(1))).contains("Insufficient cpu"));
    assert_eq!(node_or_message(&mut cache, &pod("higher", with(20))), "a1");
    cache.delete_nominated_pod("nominated");
    assert_eq!(node_or_message(&mut cache, &pod("lower", with(1))), "a1");
}

fn requested_milli_cpu(cache: &Cache, node: &str) -> i64 {
    let slot = cache.slot_of(node).unwrap();
    cache.node(slot).unwrap().requested.milli_cpu
}

#[test]
fn cache_tracks_added_and_removed_nodes_and_pods() {
    let mut cache = cache(
        &[node("a1", json!({}))],
        &[("ghost", pod("early", cpu("1")))],
    );
    assert_eq!(cache.node_count(), 1, "the Node of a pod may be unknown");
    assert_eq!(cache.slot_count(), 2, "a pod may be added before its node");
    cache.update_node(node("ghost", json!({})));
    assert_eq!(requested_milli_cpu(&cache, "ghost"), 1000);
    cache.add_pod(&Arc::new(PodInfo::of(&pod("early", cpu("2")))), "a1");
    assert_eq!(
        requested_milli_cpu(&cache, "a1"),
        2000,
        "an updated pod counts once"
    );
    cache.remove_node("ghost");
    assert!(!cache.remove_pod("unknown"));
    assert!(cache.remove_pod("early"));
    cache.update_node(node("b1", json!({})));
    assert_eq!(cache.node_count(), 2);
    assert_eq!(cache.slot_count(), 2, "free slots are reused");
    assert!(cache.is_consistent());
}

#[tokio::test(start_paused = true)]
async fn unschedulable_pods_are_retried_after_helpful_events() {
    let second = Duration::from_secs(1);
    let pending = |name: &str, priority: i32| {
        PendingPod::of(&pod(name, json!({"spec": {"priority": priority}})))
    };
    let mut queue = SchedulingQueue::default();
    let pop = |queue: &mut SchedulingQueue| {
        queue
            .pop(Instant::now())
            .map(|pending| pending.info.uid.clone())
    };
    for (name, priority) in [("low", 1), ("high", 9), ("also-high", 9)] {
        queue.add_or_update(pending(name, priority), Instant::now());
    }
    let order: Vec<_> = std::iter::from_fn(|| pop(&mut queue)).collect();
    assert_eq!(order, ["high", "also-high", "low"]);
    queue.add_unschedulable(
        "low",
        UnschedulableReasons::INSUFFICIENT_CPU,
        None,
        Instant::now(),
    );
    queue.add_unschedulable(
        "high",
        UnschedulableReasons::UNTOLERATED_TAINT,
        None,
        Instant::now(),
    );
    queue.retry("also-high", Instant::now());

    tokio::time::advance(second * 2).await;
    assert_eq!(
        pop(&mut queue).as_deref(),
        Some("also-high"),
        "its back-off has ended"
    );
    queue.delete("also-high");
    queue.record_event(UnschedulableReasons::RESOLVED_BY_POD_DELETE);
    assert_eq!(
        pop(&mut queue).as_deref(),
        Some("low"),
        "a pod deletion frees CPU"
    );
    assert_eq!(
        pop(&mut queue),
        None,
        "a pod deletion does not change taints"
    );
    queue.add_unschedulable(
        "low",
        UnschedulableReasons::INSUFFICIENT_CPU,
        None,
        Instant::now(),
    );
    queue.record_event(UnschedulableReasons::RESOLVED_BY_POD_DELETE);
    assert_eq!(pop(&mut queue), None, "its back-off has not ended");
    tokio::time::advance(second * 2).await;
    assert_eq!(pop(&mut queue).as_deref(), Some("low"));
    tokio::time::advance(second * 300).await;
    assert_eq!(
        pop(&mut queue).as_deref(),
        Some("high"),
        "unschedulable for 5 minutes"
    );
    queue.add_unschedulable(
        "low",
        UnschedulableReasons::INSUFFICIENT_CPU,
        None,
        Instant::now(),
    );
    queue.delete("low");
    queue.delete("high");
    queue.record_event(UnschedulableReasons::ALL);
    assert!(pop(&mut queue).is_none());
    assert!(queue.next_deadline().is_none());
    assert!(!queue.has_ready_pods(Instant::now()));
}

#[tokio::test(start_paused = true)]
async fn gated_pods_are_not_popped_until_their_gates_are_removed() {
    let mut queue = SchedulingQueue::default();
    let gated = json!({"spec": {"schedulingGates": [{"name": "example.com/wait"}]}});
    queue.add_or_update(PendingPod::of(&pod("web", gated)), Instant::now());
    queue.record_event(UnschedulableReasons::ALL);
    assert!(queue.pop(Instant::now()).is_none());
    queue.add_or_update(PendingPod::of(&pod("web", json!({}))), Instant::now());
    assert!(queue.pop(Instant::now()).is_some());
}
