//! Metrics: every name, type and label, as client-go and controller-runtime have them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bellerophon::events::EventRecorder;
use bellerophon::leader::LeaderElectionOptions;
use bellerophon::prelude::*;
use bellerophon::testing;
use k8s_openapi::api::core::v1::ConfigMap;

use crate::harness::{assert_line, create, maps, run, server, settle};

/// Name, type and labels, ordered by name. Metrics that only this toolkit has begin with
/// `bellerophon_`.
const FAMILIES: &[(&str, &str, &str)] = &[
    ("bellerophon_events_dropped", "counter", "controller reason"),
    ("bellerophon_events_written", "counter", "controller"),
    ("bellerophon_informer_handler_backlog", "gauge", "name"),
    ("bellerophon_informer_lag_seconds", "gauge", "name"),
    ("bellerophon_informer_objects", "gauge", "name"),
    ("bellerophon_informer_relists", "counter", "name"),
    ("bellerophon_informer_silence_seconds", "gauge", "name"),
    ("bellerophon_informer_undecodable", "counter", "name"),
    ("bellerophon_informer_watches", "counter", "name"),
    ("controller_runtime_active_workers", "gauge", "controller"),
    (
        "controller_runtime_max_concurrent_reconciles",
        "gauge",
        "controller",
    ),
    (
        "controller_runtime_reconcile",
        "counter",
        "controller result",
    ),
    (
        "controller_runtime_reconcile_errors",
        "counter",
        "controller",
    ),
    (
        "controller_runtime_reconcile_panics",
        "counter",
        "controller",
    ),
    (
        "controller_runtime_reconcile_time_seconds",
        "histogram",
        "controller",
    ),
    (
        "controller_runtime_reconcile_timeouts",
        "counter",
        "controller",
    ),
    (
        "controller_runtime_terminal_reconcile_errors",
        "counter",
        "controller",
    ),
    ("controller_runtime_webhook_panics", "counter", ""),
    ("leader_election_master_status", "gauge", "name"),
    ("leader_election_slowpath", "counter", "name"),
    (
        "rest_client_request_duration_seconds",
        "histogram",
        "host verb",
    ),
    ("rest_client_requests", "counter", "code host method"),
    ("workqueue_adds", "counter", "controller name"),
    ("workqueue_depth", "gauge", "controller name priority"),
    (
        "workqueue_longest_running_processor_seconds",
        "gauge",
        "controller name",
    ),
    (
        "workqueue_queue_duration_seconds",
        "histogram",
        "controller name",
    ),
    ("workqueue_retries", "counter", "controller name"),
    (
        "workqueue_unfinished_work_seconds",
        "gauge",
        "controller name",
    ),
    (
        "workqueue_work_duration_seconds",
        "histogram",
        "controller name",
    ),
];

/// Upper bounds of histograms: their number, the least and the greatest finite one.
const BUCKETS: &[(&str, usize, f64, f64)] = &[
    ("controller_runtime_reconcile_time_seconds", 40, 0.005, 60.0),
    ("rest_client_request_duration_seconds", 12, 0.005, 60.0),
    ("workqueue_queue_duration_seconds", 12, 1e-8, 1e3),
    ("workqueue_work_duration_seconds", 12, 1e-8, 1e3),
];

/// A family of metrics as it is exposed.
#[derive(Debug, Default)]
struct Exposed {
    help: String,
    type_: String,
    labels: BTreeSet<String>,
    /// The upper bounds of its buckets.
    bounds: Vec<f64>,
}

fn parse(text: &str) -> BTreeMap<String, Exposed> {
    let mut families = BTreeMap::<String, Exposed>::new();
    let mut family = String::new();
    for line in text.lines() {
        if let Some(words) = line.strip_prefix("# HELP ") {
            let (name, help) = words.split_once(' ').unwrap();
            families.entry(name.into()).or_default().help = help.into();
        } else if let Some(words) = line.strip_prefix("# TYPE ") {
            let (name, type_) = words.split_once(' ').unwrap();
            family = name.to_string();
            families.entry(family.clone()).or_default().type_ = type_.into();
        } else if !line.starts_with('#') {
            let exposed = families.get_mut(&family).unwrap();
            assert!(line.starts_with(&family), "{line} is not of {family}");
            let labels = line
                .split_once('{')
                .and_then(|(_, rest)| rest.rsplit_once('}'))
                .map_or("", |(labels, _)| labels);
            for (name, value) in labels.split(',').filter_map(|label| label.split_once('=')) {
                match (name, value.trim_matches('"').parse()) {
                    ("le", Ok(bound)) if !exposed.bounds.contains(&bound) => {
                        exposed.bounds.push(bound);
                    }
                    ("le", _) => {}
                    _ => _ = exposed.labels.insert(name.into()),
                }
            }
        }
    }
    families
}

/// Whether two bounds are equal up to rounding.
fn is_near(found: Option<&f64>, expected: f64) -> bool {
    found.is_some_and(|found| (found / expected - 1.0).abs() < 1e-9)
}

#[tokio::test(start_paused = true)]
async fn every_name_type_and_label_is_as_documented() {
    let server = server().await;
    let election = LeaderElectionOptions {
        lease_namespace: "default".into(),
        identity: Some("me".into()),
        ..LeaderElectionOptions::new("lock")
    };
    let options = ManagerOptions {
        leader_election: Some(election),
        ..testing::options(1)
    };
    let mut mgr = Manager::new(server.client(), options);
    let metrics = mgr.metrics().clone();
    let recorder = mgr.recorder("hero");
    let maps = maps(&mut mgr);
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .context(Arc::new(recorder))
        .reconcile(
            async |recorder: Arc<EventRecorder>, req: Request<ConfigMap>| {
                if let Some(map) = req.object() {
                    recorder.event(map, Event::normal("Seen", "Look", "seen"));
                }
                Ok(Action::await_change())
            },
        );
    let mut text = String::new();
    run(mgr, async {
        settle().await;
        create(&server.client(), "one").await;
        settle().await;
        text = metrics.encode();
    })
    .await;
    let families = parse(&text);
    let found: Vec<_> = families.keys().map(String::as_str).collect();
    let expected: Vec<_> = FAMILIES.iter().map(|(name, ..)| *name).collect();
    assert_eq!(found, expected);
    for (name, type_, labels) in FAMILIES {
        let exposed = &families[*name];
        let found: Vec<_> = exposed.labels.iter().map(String::as_str).collect();
        assert_eq!(exposed.type_, *type_, "{name}");
        assert_eq!(found.join(" "), *labels, "{name}");
    }
    for (name, count, least, greatest) in BUCKETS {
        let bounds = families[*name].bounds.iter().copied();
        let finite: Vec<f64> = bounds.filter(|bound| bound.is_finite()).collect();
        assert_eq!(finite.len(), *count, "{name}: {finite:?}");
        assert!(is_near(finite.first(), *least), "{name}: {finite:?}");
        assert!(is_near(finite.last(), *greatest), "{name}: {finite:?}");
    }
    for line in [
        r#"leader_election_master_status{name="lock"} 1"#,
        r#"controller_runtime_reconcile_total{controller="configmap",result="success"} 1"#,
        r#"workqueue_adds_total{name="configmap",controller="configmap"} 1"#,
        r#"bellerophon_events_written_total{controller="hero"} 1"#,
        r#"bellerophon_informer_objects{name="configmaps"} 1"#,
    ] {
        assert_line(&text, line);
    }
    assert!(text.ends_with("# EOF\n"));
    check_page(&families);
}

const PAGE: &str = concat!(
    env!("CARGO_MANIFEST_DIR"),
    "/../../docs/reference/metrics.md"
);

const HEAD: &str = "\
# Metrics

<!-- Generated by `BELLEROPHON_WRITE_DOCS=1 cargo test -p bellerophon --test toolkit metrics`. -->

What a Manager with a controller, a leader election and an event recorder serves at `/metrics`. Names, types and labels
without the prefix `bellerophon_` are those of client-go and controller-runtime.

| metric | type | labels | meaning |
|---|---|---|---|
";

/// The page of all metrics is up to date.
fn check_page(families: &BTreeMap<String, Exposed>) {
    let mut page = HEAD.to_owned();
    for (name, exposed) in families {
        // As Prometheus stores them: the encoder adds the suffix.
        let suffix = if exposed.type_ == "counter" {
            "_total"
        } else {
            ""
        };
        let labels: Vec<String> = exposed
            .labels
            .iter()
            .map(|label| format!("`{label}`"))
            .collect();
        assert!(!exposed.help.is_empty(), "{name} has no help");
        let help = exposed.help.trim_end_matches('.');
        page.push_str(&format!(
            "| `{name}{suffix}` | {} | {} | {help} |\n",
            exposed.type_,
            labels.join(", ")
        ));
    }
    if std::env::var_os("BELLEROPHON_WRITE_DOCS").is_some() {
        std::fs::write(PAGE, &page).unwrap();
    }
    let actual = std::fs::read_to_string(PAGE).unwrap_or_default();
    assert!(
        actual == page,
        "docs/reference/metrics.md is out of date: \
         BELLEROPHON_WRITE_DOCS=1 cargo test -p bellerophon --test toolkit metrics"
    );
}
