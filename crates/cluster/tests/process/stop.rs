//! Graceful termination: preStop, SIGTERM, SIGKILL, in the order of sidecars.

use std::time::Duration;

use bellerophon::clock::Clock;
use jiff::Timestamp;
use serde_json::json;

use crate::support::*;

/// How early an event may be, and how late with `BELLEROPHON_REQUIRE_TIMELINE=1`.
const TOLERANCE_MS: i64 = 100;
/// How late an event may be otherwise: on a busy machine, the programs that write the times start
/// late.
const TOLERANCE_BUSY_MS: i64 = 1500;

/// A script that appends a line with the time to a file.
fn mark(name: &str) -> String {
    format!("echo {name} $(date +%s%N) >> $DIR/$TIMELINE")
}

/// The milliseconds from a point in time to each marked line.
fn timeline(cluster: &ProcessCluster, file: &str, from: Timestamp) -> Vec<(String, i64)> {
    let lines = cluster.lines(file);
    let marks = lines.iter().map(|line| {
        let (name, nanoseconds) = line.rsplit_once(' ').unwrap();
        let nanoseconds: i128 = nanoseconds.parse().unwrap();
        let elapsed = nanoseconds - from.as_nanosecond();
        (name.to_owned(), i64::try_from(elapsed / 1_000_000).unwrap())
    });
    marks.collect()
}

/// Deletes a pod whose app has a preStop hook of 0.5 s, ignores SIGTERM and has a child; a sidecar
/// ends 0.3 s after SIGTERM. Returns the timeline since the deletion.
async fn measure(cluster: &ProcessCluster) -> Vec<(String, i64)> {
    let file = "timeline";
    let env = || json!([{"name": "TIMELINE", "value": file}]);
    // The file is replaced, so that it always has the last time at which the process lived.
    let live = |name: &str| {
        let file = format!("$DIR/$TIMELINE.{name}");
        format!("while :; do date +%s%N > {file}.new; mv {file}.new {file}; sleep 0.01; done")
    };
    let child = format!("trap '{}' TERM; {}", mark("child-term"), live("child"));
    let app = format!(
        "(setsid sh -c \"$0\" &)
         trap '{}' TERM
         {}",
        mark("app-term"),
        live("app")
    );
    let pre_stop = format!("{}; sleep 0.5; {}", mark("pre-stop"), mark("pre-stopped"));
    let mut app = sh(
        "app",
        &app,
        json!({
            "env": env(),
            "lifecycle": {"preStop": {"exec": {"command": ["sh", "-c", pre_stop]}}},
        }),
    );
    app["command"].as_array_mut().unwrap().push(json!(child));
    let sidecar = |name: &str| {
        let script = format!(
            "trap '{}; sleep 0.3; {}; exit 0' TERM; while :; do sleep 0.01; done",
            mark(&format!("{name}-term")),
            mark(&format!("{name}-end"))
        );
        sh(
            name,
            &script,
            json!({"restartPolicy": "Always", "env": env()}),
        )
    };
    let spec = json!({
        "terminationGracePeriodSeconds": 3,
        "initContainers": [sidecar("first"), sidecar("second")],
        "containers": [app],
    });
    let pod = cluster.create("stopped", spec).await;
    cluster.until_ready("stopped").await;
    for process in ["app", "child"] {
        while cluster.lines(&format!("{file}.{process}")).is_empty() {
            tokio::task::yield_now().await;
        }
    }
    let deleted_at = Clock::system().now();
    cluster.delete("stopped", 3).await;
    cluster.until_deleted("stopped").await;
    cluster.until_no_process(&pod).await;
    let mut timeline = timeline(cluster, file, deleted_at);
    for process in ["app", "child"] {
        let alive: i128 = cluster.lines(&format!("{file}.{process}"))[0]
            .parse()
            .unwrap();
        let elapsed = (alive - deleted_at.as_nanosecond()) / 1_000_000;
        timeline.push((format!("{process}-killed"), i64::try_from(elapsed).unwrap()));
    }
    timeline
}

#[tokio::test]
async fn containers_are_stopped_by_the_timeline_of_the_kubelet() {
    // The sidecars do not wait for the turn of their predecessors when the grace period has ended.
    let expected = [
        ("pre-stop", 0),
        ("pre-stopped", 500),
        ("app-term", 500),
        ("second-term", 3000),
        ("first-term", 3000),
        ("second-end", 3300),
        ("first-end", 3300),
        ("app-killed", 3000),
        ("child-killed", 3000),
    ];
    let late_max = match std::env::var_os("BELLEROPHON_REQUIRE_TIMELINE") {
        Some(_) => TOLERANCE_MS,
        None => TOLERANCE_BUSY_MS,
    };
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let timeline = measure(&cluster).await;
        let names: Vec<_> = timeline.iter().map(|(name, _)| name.as_str()).collect();
        // SIGTERM is sent to the main process only.
        assert!(!names.contains(&"child-term"), "{tier:?} {timeline:?}");
        let first = ["pre-stop", "pre-stopped", "app-term"];
        assert_eq!(names[..3], first, "{tier:?} {timeline:?}");
        assert_eq!(names.len(), expected.len(), "{tier:?} {timeline:?}");
        for (name, time) in expected {
            let found = timeline.iter().find(|(found, _)| found == name);
            let (_, at) = found.unwrap_or_else(|| panic!("{tier:?} {name} in {timeline:?}"));
            assert!(
                at - time >= -TOLERANCE_MS,
                "{tier:?} {name} in {timeline:?}"
            );
            assert!(at - time <= late_max, "{tier:?} {name} in {timeline:?}");
        }
        cluster.stop().await;
    }
}

#[tokio::test]
async fn sidecars_stop_in_reverse_order_after_the_app() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let stops = |name: &str| {
            format!(
                "trap 'echo {name} term >> $DIR/stops; sleep 0.2
                       echo {name} end >> $DIR/stops; exit 0' TERM
                 while :; do sleep 0.01; done"
            )
        };
        // The preStop hook of a sidecar does not wait for its turn.
        let pre_stop = json!({
            "preStop": {"exec": {"command": ["sh", "-c", "echo first hook >> $DIR/stops"]}},
        });
        let first = sh(
            "first",
            &stops("first"),
            json!({"restartPolicy": "Always", "lifecycle": pre_stop}),
        );
        let second = sh(
            "second",
            &stops("second"),
            json!({"restartPolicy": "Always"}),
        );
        let spec = json!({
            "initContainers": [first, second],
            "containers": [sh("app", &stops("app"), json!({}))],
        });
        let pod = cluster.create("ordered", spec).await;
        cluster.until_ready("ordered").await;
        cluster.delete("ordered", 30).await;
        cluster.until_deleted("ordered").await;
        let stops = cluster.lines("stops");
        let hook = stops.iter().position(|line| line == "first hook").unwrap();
        let app_end = stops.iter().position(|line| line == "app end").unwrap();
        assert!(hook < app_end, "{tier:?} {stops:?}");
        let rest: Vec<_> = stops.iter().filter(|line| *line != "first hook").collect();
        let expected = [
            "app term",
            "app end",
            "second term",
            "second end",
            "first term",
            "first end",
        ];
        assert_eq!(rest, expected, "{tier:?}");
        cluster.until_no_process(&pod).await;
        cluster.stop().await;
    }
}

#[tokio::test]
async fn shorter_grace_period_of_a_second_delete_counts() {
    for tier in tiers().await {
        let cluster = ProcessCluster::start(tier).await;
        let script = "trap 'echo term >> $DIR/term' TERM; while :; do sleep 0.01; done";
        cluster
            .create(
                "stubborn",
                json!({"containers": [sh("app", script, json!({}))]}),
            )
            .await;
        let pod = cluster.until_ready("stubborn").await;
        cluster.delete("stubborn", 600).await;
        while cluster.lines("term").is_empty() {
            tokio::task::yield_now().await;
        }
        let started = tokio::time::Instant::now();
        cluster.delete("stubborn", 1).await;
        cluster.until_deleted("stubborn").await;
        assert!(started.elapsed() < Duration::from_secs(60), "{tier:?}");
        cluster.until_no_process(&pod).await;
        cluster.stop().await;
    }
}
