//! The event recorder on the embedded server in paused time.

use std::time::Duration;

use bellerophon_apiserver::ApiServer;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use k8s_openapi::api::events::v1 as events_v1;
use kube::api::{Api, DeleteParams, ListParams, PostParams};
use kube::{Resource, ResourceExt};
use serde_json::json;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::metrics::Metrics;

struct Harness {
    server: ApiServer,
    events: Api<events_v1::Event>,
    recorder: EventRecorder,
    stop: CancellationToken,
    writer: tokio::task::JoinHandle<()>,
    map: ConfigMap,
}

impl Harness {
    async fn start() -> Self {
        let server = ApiServer::builder().seed(1).start().await.unwrap();
        let clock = Clock::starting_at(jiff::Timestamp::from_second(1_700_000_000).unwrap());
        let (recorder, writer) = EventRecorder::new(
            server.client(),
            "example.org/hero",
            "pod-1",
            clock,
            Rng::seeded(1),
        );
        let stop = CancellationToken::new();
        let mut map = ConfigMap::default();
        map.metadata.name = Some("web".into());
        map.metadata.namespace = Some("default".into());
        let writer = tokio::spawn(writer.run(stop.clone()));
        Self {
            events: Api::namespaced(server.client(), "default"),
            server,
            recorder,
            stop,
            writer,
            map,
        }
    }

    fn record(&self, reason: &str) {
        let event = Event::warning(reason, "Scale", format!("{reason} happened"));
        self.recorder.event(&self.map, event);
    }

    async fn list(&self) -> Vec<events_v1::Event> {
        let list = self.events.list(&ListParams::default()).await.unwrap();
        list.items
    }

    /// Reason and count of each Event, by reason.
    async fn recorded(&self) -> Vec<(String, i32)> {
        let mut recorded: Vec<_> = self
            .list()
            .await
            .into_iter()
            .map(|event| (event.reason.clone().unwrap(), count(&event)))
            .collect();
        recorded.sort();
        recorded
    }
}

/// The count of the series; 1 without a series.
fn count(event: &events_v1::Event) -> i32 {
    event.series.as_ref().map_or(1, |series| series.count)
}

#[tokio::test(start_paused = true)]
async fn repeated_event_becomes_a_series_with_its_final_count() {
    let harness = Harness::start().await;
    harness.record("Failed");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(harness.recorded().await, [("Failed".into(), 1)]);
    for _ in 0..9 {
        harness.record("Failed");
        sleep(Duration::from_secs(10)).await;
    }
    assert_eq!(
        harness.recorded().await,
        [("Failed".into(), 2)],
        "the second is written, later ones are counted"
    );
    sleep(Duration::from_secs(400)).await;
    assert_eq!(harness.recorded().await, [("Failed".into(), 10)]);
    harness.record("Failed");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(
        harness.recorded().await.len(),
        2,
        "after the series finished, a new Event is created"
    );
}

#[tokio::test(start_paused = true)]
async fn different_notes_are_different_events_in_order() {
    let harness = Harness::start().await;
    let record = |note: String| {
        let recorder = harness.recorder.with_instance("node-7");
        recorder.event(&harness.map, Event::normal("Created", "Create", note));
    };
    (1..=12).for_each(|number| record(format!("created pod {number}")));
    record("created pod 3".into());
    sleep(Duration::from_secs(1)).await;
    let list = harness.list().await;
    let recorded: Vec<_> = list
        .iter()
        .map(|event| (event.note.clone().unwrap(), count(event)))
        .collect();
    let mut expected: Vec<_> = (1..=10)
        .map(|number| {
            let count = if number == 3 { 2 } else { 1 };
            (format!("created pod {number}"), count)
        })
        .collect();
    expected.push(("(combined from similar events): created pod 11".into(), 2));
    assert_eq!(recorded, expected);
    for event in &list {
        assert_eq!(event.reporting_instance.as_deref(), Some("node-7"));
    }
    sleep(Duration::from_secs(601)).await;
    record("created pod 13".into());
    sleep(Duration::from_secs(1)).await;
    let list = harness.list().await;
    assert_eq!(
        list.last().and_then(|event| event.note.as_deref()),
        Some("created pod 13"),
        "after the aggregation interval the note is written in full"
    );
}

#[tokio::test(start_paused = true)]
async fn event_is_recorded_by_object_reference_too() {
    let harness = Harness::start().await;
    let reference = harness.map.object_ref(&());
    let event = Event::normal("Scaled", "Scale", "scaled to 3");
    harness.recorder.event(reference.clone(), event);
    sleep(Duration::from_secs(1)).await;
    let list = harness.list().await;
    assert_eq!(list.len(), 1);
    assert_eq!(list[0].regarding.as_ref(), Some(&reference));
}

#[tokio::test(start_paused = true)]
async fn expired_event_is_recreated() {
    let harness = Harness::start().await;
    harness.record("Failed");
    sleep(Duration::from_secs(1)).await;
    let name = harness.list().await[0].name_any();
    harness
        .events
        .delete(&name, &DeleteParams::default())
        .await
        .unwrap();
    harness.record("Failed");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(harness.recorded().await, [("Failed".into(), 2)]);
}

/// An event that could not be created used to be counted and never written while its series lasted.
#[tokio::test(start_paused = true)]
async fn event_that_was_rejected_is_recorded_when_it_is_repeated() {
    let mut harness = Harness::start().await;
    harness.map.metadata.namespace = Some("later".into());
    harness.record("Failed");
    sleep(Duration::from_secs(1)).await;
    let namespace = serde_json::from_value(json!({ "metadata": { "name": "later" } })).unwrap();
    let namespaces: Api<Namespace> = Api::all(harness.server.client());
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    harness.events = Api::namespaced(harness.server.client(), "later");
    harness.record("Failed");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(harness.recorded().await, [("Failed".into(), 1)]);
}

#[tokio::test(start_paused = true)]
async fn events_of_one_object_are_rate_limited() {
    let harness = Harness::start().await;
    for i in 0..100 {
        harness.record(&format!("Reason{i:03}"));
    }
    sleep(Duration::from_secs(1)).await;
    assert_eq!(harness.recorded().await.len(), 25);
    let metrics = Metrics::new();
    metrics.track_recorder(&harness.recorder);
    let text = metrics.encode();
    for line in [
        r#"bellerophon_events_written_total{controller="example.org/hero"} 25"#,
        r#"bellerophon_events_dropped_total{controller="example.org/hero",reason="full"} 0"#,
        r#"bellerophon_events_dropped_total{controller="example.org/hero",reason="rate_limited"} 75"#,
        r#"bellerophon_events_dropped_total{controller="example.org/hero",reason="refused"} 0"#,
    ] {
        assert!(
            text.lines().any(|found| found == line),
            "no line {line} in\n{text}"
        );
    }
    sleep(Duration::from_secs(301)).await;
    harness.record("Later");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(harness.recorded().await.len(), 26);
}

#[tokio::test(start_paused = true)]
async fn recording_never_waits_and_counts_dropped_events() {
    let harness = Harness::start().await;
    for i in 0..QUEUED_EVENTS_MAX + 7 {
        harness.record(&format!("Reason{i}"));
    }
    assert_eq!(harness.recorder.dropped(), 7);
}

#[tokio::test(start_paused = true)]
async fn stop_writes_queued_events() {
    let harness = Harness::start().await;
    (0..5).for_each(|_| harness.record("Failed"));
    harness.stop.cancel();
    harness.writer.await.unwrap();
    let list = harness.events.list(&ListParams::default()).await.unwrap();
    let event = &list.items[0];
    assert_eq!(count(event), 5);
    assert_eq!(event.type_.as_deref(), Some("Warning"));
}
