//! Nodes and pods as short forms, plans as lists of names.

use serde_json::{Value, json};

use super::*;
use crate::workloads::revision::HASH;
use crate::workloads::samples::pod;

/// A set with this update strategy.
fn set(strategy: Value) -> DaemonSet {
    let template = json!({ "spec": { "containers": [] } });
    serde_json::from_value(json!({
        "metadata": { "name": "agent", "generation": 2 },
        "spec": { "selector": {}, "template": template, "updateStrategy": strategy },
    }))
    .unwrap()
}

fn rolling(max_surge: Value, max_unavailable: Value) -> Value {
    json!({ "type": "RollingUpdate", "rollingUpdate": { "maxSurge": max_surge, "maxUnavailable": max_unavailable } })
}

/// `node:revision:state` for each pod, states being ready, up, failed, done, going.
fn pods(forms: &str) -> ByNode {
    let mut by_node = ByNode::new();
    for (index, form) in forms.split_whitespace().enumerate() {
        let parts: Vec<_> = form.split(':').collect();
        let sample = pod(&format!("{}-{}", parts[0], parts[1]))
            .label(HASH, parts[1])
            .created(index as i64)
            .on(parts[0]);
        let sample = match parts[2] {
            "ready" => sample.running().ready(),
            "up" => sample.running(),
            "failed" => sample.phase("Failed"),
            "done" => sample.phase("Succeeded"),
            _ => sample.running().ready().deleting(),
        };
        by_node
            .entry(parts[0].into())
            .or_default()
            .push(sample.cached());
    }
    by_node
}

/// `name` for nodes that run a pod, `name?` where one may stay, `name!` where none may be.
fn places(forms: &str) -> BTreeMap<String, Place> {
    let place = |form: &str| match form.chars().last() {
        Some('?') => Place::Stay,
        Some('!') => Place::No,
        _ => Place::Run,
    };
    forms
        .split_whitespace()
        .map(|form| (form.trim_end_matches(['?', '!']).to_owned(), place(form)))
        .collect()
}

fn check(what: &str, strategy: &Value, nodes: &str, there: &str, expected: &str) {
    let set = set(strategy.clone());
    let places = places(nodes);
    let by_node = pods(there);
    let facts = Facts {
        set: &set,
        hash: "new",
        places: &places,
        pods: &by_node,
        now: Timestamp::from_second(100).unwrap(),
    };
    let plan = plan(&facts, |_| None);
    let mut steps: Vec<_> = plan.create.iter().map(|node| format!("+{node}")).collect();
    steps.extend(plan.delete.iter().map(|pod| format!("-{}", pod.name_any())));
    steps.sort();
    assert_eq!(
        steps.join(" "),
        expected,
        "{what}: nodes {nodes}, pods {there}"
    );
}

#[test]
fn every_node_with_a_place_has_one_pod() {
    let strategy = rolling(json!(0), json!(1));
    for (what, nodes, there, expected) in [
        ("fresh", "a b c!", "", "+a +b"),
        ("settled", "a b", "a:new:ready b:new:ready", ""),
        ("may stay", "a?", "a:new:ready", ""),
        ("not wanted to come", "a?", "", ""),
        ("must go", "a!", "a:new:ready", "-a-new"),
        ("goes already", "a!", "a:new:going", ""),
        ("replaced only when gone", "a", "a:new:going", ""),
        ("failed", "a", "a:new:failed", "-a-new"),
        ("done", "a", "a:new:done", "-a-new"),
        (
            "one too many: the younger goes",
            "a",
            "a:old:ready a:new:ready",
            "-a-new",
        ),
    ] {
        check(what, &strategy, nodes, there, expected);
    }
}

#[test]
fn update_takes_away_as_many_as_it_may() {
    for (what, max, nodes, there, expected) in [
        (
            "one",
            json!(1),
            "a b c",
            "a:old:ready b:old:ready c:old:ready",
            "-a-old",
        ),
        (
            "one is under way",
            json!(1),
            "a b c",
            "a:new:up b:old:ready c:old:ready",
            "",
        ),
        (
            "one is being deleted",
            json!(1),
            "a b c",
            "a:old:going b:old:ready c:old:ready",
            "",
        ),
        (
            "next one",
            json!(1),
            "a b c",
            "a:new:ready b:old:ready c:old:ready",
            "-b-old",
        ),
        (
            "unhealthy ones cost nothing",
            json!(1),
            "a b c",
            "a:old:up b:old:up c:old:ready",
            "-a-old -b-old",
        ),
        (
            "half, rounded up",
            json!("50%"),
            "a b c",
            "a:old:ready b:old:ready c:old:ready",
            "-a-old -b-old",
        ),
        (
            "first things first",
            json!(1),
            "a b c",
            "a:old:ready b:old:ready",
            "+c",
        ),
    ] {
        check(what, &rolling(json!(0), max), nodes, there, expected);
    }
    check(
        "on delete",
        &json!({ "type": "OnDelete" }),
        "a",
        "a:old:ready",
        "",
    );
}

#[test]
fn update_brings_as_many_more_as_it_may() {
    for (what, max, nodes, there, expected) in [
        ("one", json!(1), "a b", "a:old:ready b:old:ready", "+a"),
        (
            "one is under way",
            json!(1),
            "a b",
            "a:old:ready a:new:up b:old:ready",
            "",
        ),
        (
            "taken over",
            json!(1),
            "a b",
            "a:old:ready a:new:ready b:old:ready",
            "-a-old",
        ),
        (
            "unhealthy ones are joined at once",
            json!(1),
            "a b",
            "a:old:up b:old:up",
            "+a +b",
        ),
        (
            "the old one broke before the new one was ready",
            json!(1),
            "a",
            "a:old:up a:new:up",
            "-a-old",
        ),
        (
            "none is left but one on its way out",
            json!(1),
            "a",
            "a:old:going",
            "+a",
        ),
        (
            "misplaced, and needed until another serves",
            json!(1),
            "a? b",
            "a:old:ready b:new:up",
            "",
        ),
        (
            "misplaced, and another serves",
            json!(1),
            "a? b",
            "a:old:ready b:new:ready",
            "-a-old",
        ),
    ] {
        check(what, &rolling(max, json!(0)), nodes, there, expected);
    }
}

#[test]
fn failed_pod_waits_for_its_turn() {
    let set = set(rolling(json!(0), json!(1)));
    let places = places("a");
    let by_node = pods("a:new:failed");
    let facts = Facts {
        set: &set,
        hash: "new",
        places: &places,
        pods: &by_node,
        now: Timestamp::from_second(100).unwrap(),
    };
    let held = plan(&facts, |_| Some(Duration::from_secs(8)));
    assert!(held.delete.is_empty());
    assert!(held.notes.is_empty());
    assert_eq!(held.next, Some(Duration::from_secs(8)));
    let replaced = plan(&facts, |_| None);
    assert_eq!(
        replaced.notes[0].note,
        "Found failed daemon pod default/a-new on node a, will try to kill it"
    );
}

#[test]
fn pod_that_waits_for_a_lost_node_goes() {
    let set = set(rolling(json!(0), json!(1)));
    let mut by_node = pods("gone:new:ready");
    by_node
        .entry("gone".into())
        .or_default()
        .push(pod("waits").cached());
    let facts = Facts {
        set: &set,
        hash: "new",
        places: &BTreeMap::new(),
        pods: &by_node,
        now: Timestamp::from_second(0).unwrap(),
    };
    let names: Vec<_> = plan(&facts, |_| None)
        .delete
        .iter()
        .map(|pod| pod.name_any())
        .collect();
    assert_eq!(
        names,
        ["waits"],
        "a bound one is left to those who look after lost nodes"
    );
}

#[test]
fn status_counts_nodes() {
    let set = set(rolling(json!(0), json!(1)));
    let places = places("a b c d? e!");
    let by_node = pods("a:new:ready b:old:ready c:new:up d:old:ready e:old:going");
    let facts = Facts {
        set: &set,
        hash: "new",
        places: &places,
        pods: &by_node,
        now: Timestamp::from_second(100).unwrap(),
    };
    let expected = DaemonSetStatus {
        desired_number_scheduled: 3,
        current_number_scheduled: 3,
        number_misscheduled: 2,
        number_ready: 2,
        updated_number_scheduled: Some(2),
        number_available: Some(2),
        number_unavailable: Some(1),
        observed_generation: Some(2),
        ..DaemonSetStatus::default()
    };
    assert_eq!(facts.status(), expected);
}
