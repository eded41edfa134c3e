//! Promises of the page of metrics: every name, type and label, as client-go and controller-runtime have them.
#![expect(
    clippy::unwrap_used,
    reason = "a failed expectation in a test is the failure of the test"
)]

mod harness;

use std::collections::{BTreeMap, BTreeSet};

use bellerophon::{
    Controller, ControllerOptions, Entropy, EventRecorder, EventType, LeaderOptions, Manager,
    ManagerOptions, Metrics, Note, Outcome, Request, WallClock,
};
use bellerophon_apiserver::ApiServer;
use harness::{create, maps, run, settle};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::client::ClientBuilder;

/// Name, type and labels, in alphabetical order of the names. Names of ours begin with `bellerophon_`.
const PAGE: &[(&str, &str, &str)] = &[
    ("bellerophon_events_dropped", "counter", "controller reason"),
    ("bellerophon_events_written", "counter", "controller"),
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

/// Upper bounds of histograms: how many, the least and the greatest but infinity.
const BUCKETS: &[(&str, usize, f64, f64)] = &[
    ("controller_runtime_reconcile_time_seconds", 40, 0.005, 60.0),
    ("rest_client_request_duration_seconds", 12, 0.005, 60.0),
    ("workqueue_queue_duration_seconds", 12, 1e-8, 1e3),
    ("workqueue_work_duration_seconds", 12, 1e-8, 1e3),
];

/// What a page says of each family: its type, its labels, and the upper bounds of its buckets.
#[derive(Debug, Default)]
struct Said {
    type_: String,
    labels: BTreeSet<String>,
    bounds: Vec<f64>,
}

fn read(page: &str) -> BTreeMap<String, Said> {
    let mut families = BTreeMap::<String, Said>::new();
    let mut family = String::new();
    for line in page.lines() {
        if let Some(words) = line.strip_prefix("# TYPE ") {
            let (name, type_) = words.split_once(' ').unwrap();
            family = name.to_string();
            families.entry(family.clone()).or_default().type_ = type_.into();
        } else if !line.starts_with('#') {
            let said = families.get_mut(&family).unwrap();
            assert!(line.starts_with(&family), "{line} is not of {family}");
            let labels = line
                .split_once('{')
                .and_then(|(_, rest)| rest.rsplit_once('}'))
                .map_or("", |(labels, _)| labels);
            for (name, value) in labels.split(',').filter_map(|label| label.split_once('=')) {
                match (name, value.trim_matches('"').parse()) {
                    ("le", Ok(bound)) if !said.bounds.contains(&bound) => said.bounds.push(bound),
                    ("le", _) => {}
                    _ => _ = said.labels.insert(name.into()),
                }
            }
        }
    }
    families
}

#[tokio::test(start_paused = true)]
async fn every_name_type_and_label_is_as_users_know_it() {
    let (server, metrics) = (
        ApiServer::builder().seed(1).start().await.unwrap(),
        Metrics::new(),
    );
    let client = ClientBuilder::new(server.service(), "default")
        .with_layer(&metrics.client_layer())
        .build();
    let clock = WallClock::starting_at(jiff::Timestamp::from_second(1_700_000_000).unwrap());
    let (recorder, writer) =
        EventRecorder::new(client.clone(), "hero", "pod-1", clock, Entropy::seeded(1));
    metrics.watch_recorder(&recorder);
    let maps = maps(&client);
    let options = ControllerOptions {
        metrics: metrics.clone(),
        ..ControllerOptions::default()
    };
    let controller = Controller::of(&maps).with_options(options).reconcile_with(
        move |request: Request<ConfigMap>| {
            let note = Note {
                type_: EventType::Normal,
                reason: "Seen".into(),
                action: "Look".into(),
                note: "there it is".into(),
            };
            request
                .object
                .iter()
                .for_each(|map| recorder.event(&**map, note.clone()));
            async { Ok(Outcome::Done) }
        },
    );
    let leader = Some(LeaderOptions::new("default", "lock", "me"));
    let options = ManagerOptions {
        leader,
        clock,
        metrics: metrics.clone(),
        entropy: Entropy::seeded(1),
        ..ManagerOptions::default()
    };
    let manager = Manager::new(client, options)
        .cache(&maps)
        .controller(controller)
        .background("events", move |stop| async move {
            writer.run(stop).await;
            Ok(())
        });
    let mut page = String::new();
    run(manager, async {
        settle().await;
        create(&server.client(), "one").await;
        settle().await;
        page = metrics.page();
    })
    .await;
    let families = read(&page);
    let informers = |name: &&str| name.starts_with("bellerophon_informer_");
    let found: Vec<_> = families
        .keys()
        .map(String::as_str)
        .filter(|name| !informers(name))
        .collect();
    assert_eq!(
        found,
        PAGE.iter().map(|(name, ..)| *name).collect::<Vec<_>>()
    );
    for (name, type_, labels) in PAGE {
        let said = &families[*name];
        let found = said
            .labels
            .iter()
            .map(String::as_str)
            .collect::<Vec<_>>()
            .join(" ");
        assert_eq!(
            (said.type_.as_str(), found.as_str()),
            (*type_, *labels),
            "{name}"
        );
    }
    for (name, count, least, greatest) in BUCKETS {
        let bounds = &families[*name].bounds;
        let near = |found: Option<&f64>, wanted: f64| {
            found.is_some_and(|found| (found / wanted - 1.0).abs() < 1e-9)
        };
        let finite: Vec<f64> = bounds
            .iter()
            .copied()
            .filter(|bound| bound.is_finite())
            .collect();
        assert_eq!(finite.len(), *count, "{name}: {finite:?}");
        assert!(
            near(finite.first(), *least) && near(finite.last(), *greatest),
            "{name}: {finite:?}"
        );
    }
    for line in [
        r#"leader_election_master_status{name="lock"} 1"#,
        r#"controller_runtime_reconcile_total{controller="configmap",result="success"} 1"#,
        r#"workqueue_adds_total{name="configmap",controller="configmap"} 1"#,
        r#"bellerophon_events_written_total{controller="hero"} 1"#,
    ] {
        assert!(
            page.lines().any(|found| found == line),
            "no line {line} in\n{page}"
        );
    }
    assert!(page.ends_with("# EOF\n"));
}
