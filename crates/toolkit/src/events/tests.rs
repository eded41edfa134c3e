//! Promises of the events recorder, on the embedded server in paused time.

use bellerophon_apiserver::ApiServer;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{DeleteParams, ListParams};
use tokio::time::sleep;

use super::*;

struct World {
    server: ApiServer,
    events: Api<Event>,
    recorder: EventRecorder,
    stop: CancellationToken,
    writer: tokio::task::JoinHandle<()>,
    map: ConfigMap,
}

impl World {
    async fn new() -> Self {
        let server = ApiServer::builder().seed(1).start().await.unwrap();
        let clock = WallClock::starting_at(jiff::Timestamp::from_second(1_700_000_000).unwrap());
        let (recorder, writer) = EventRecorder::new(
            server.client(),
            "example.org/hero",
            "pod-1",
            clock,
            Entropy::seeded(1),
        );
        let stop = CancellationToken::new();
        let mut map = ConfigMap::default();
        (map.metadata.name, map.metadata.namespace) = (Some("web".into()), Some("default".into()));
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

    fn tell(&self, reason: &str) {
        let note = Note {
            type_: EventType::Warning,
            reason: reason.into(),
            action: "Scale".into(),
            note: format!("{reason} happened"),
        };
        self.recorder.event(&self.map, note);
    }

    /// Reason and count of each event, by reason; 1 for an event that is no series.
    async fn told(&self) -> Vec<(String, i32)> {
        let list = self.events.list(&ListParams::default()).await.unwrap();
        let mut told: Vec<_> = list
            .into_iter()
            .map(|event| {
                (
                    event.reason.unwrap(),
                    event.series.map_or(1, |series| series.count),
                )
            })
            .collect();
        told.sort();
        told
    }
}

#[tokio::test(start_paused = true)]
async fn repetition_becomes_a_series_with_its_final_count() {
    let world = World::new().await;
    world.tell("Failed");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.told().await, [("Failed".into(), 1)]);
    for _ in 0..9 {
        world.tell("Failed");
        sleep(Duration::from_secs(10)).await;
    }
    assert_eq!(
        world.told().await,
        [("Failed".into(), 2)],
        "the second is written, later ones are counted"
    );
    sleep(Duration::from_secs(400)).await;
    assert_eq!(world.told().await, [("Failed".into(), 10)]);
    world.tell("Failed");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(
        world.told().await.len(),
        2,
        "after a silence it is news again"
    );
}

#[tokio::test(start_paused = true)]
async fn other_words_are_other_events_in_their_order() {
    let world = World::new().await;
    let say = |words: String| {
        let note = Note {
            type_: EventType::Normal,
            reason: "Created".into(),
            action: "Create".into(),
            note: words,
        };
        world
            .recorder
            .with_instance("node-7")
            .event(&world.map, note);
    };
    (1..=12).for_each(|number| say(format!("made pod {number}")));
    say("made pod 3".into());
    sleep(Duration::from_secs(1)).await;
    let list = world.events.list(&ListParams::default()).await.unwrap();
    let told: Vec<_> = list
        .iter()
        .map(|event| {
            (
                event.note.clone().unwrap(),
                event.series.as_ref().map_or(1, |series| series.count),
            )
        })
        .collect();
    let mut wanted: Vec<_> = (1..=10)
        .map(|number| {
            (
                format!("made pod {number}"),
                if number == 3 { 2 } else { 1 },
            )
        })
        .collect();
    wanted.push(("(combined from similar events): made pod 11".into(), 2));
    assert_eq!(told, wanted);
    assert!(
        list.iter()
            .all(|event| event.reporting_instance.as_deref() == Some("node-7"))
    );
    sleep(Duration::from_secs(601)).await;
    say("made pod 13".into());
    sleep(Duration::from_secs(1)).await;
    let list = world.events.list(&ListParams::default()).await.unwrap();
    assert_eq!(
        list.items.last().and_then(|event| event.note.as_deref()),
        Some("made pod 13"),
        "after a silence it is told in full"
    );
}

#[tokio::test(start_paused = true)]
async fn expired_event_is_made_again() {
    let world = World::new().await;
    world.tell("Failed");
    sleep(Duration::from_secs(1)).await;
    let name = world
        .events
        .list(&ListParams::default())
        .await
        .unwrap()
        .items[0]
        .name_any();
    world
        .events
        .delete(&name, &DeleteParams::default())
        .await
        .unwrap();
    world.tell("Failed");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.told().await, [("Failed".into(), 2)]);
}

/// Once refused, a topic used to be counted and never written for as long as it went on.
#[tokio::test(start_paused = true)]
async fn event_that_was_refused_is_recorded_when_it_happens_again() {
    let mut world = World::new().await;
    world.map.metadata.namespace = Some("later".into());
    world.tell("Failed");
    sleep(Duration::from_secs(1)).await;
    let namespace = serde_json::from_value(json!({ "metadata": { "name": "later" } })).unwrap();
    let namespaces: Api<k8s_openapi::api::core::v1::Namespace> = Api::all(world.server.client());
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
    world.events = Api::namespaced(world.server.client(), "later");
    world.tell("Failed");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.told().await, [("Failed".into(), 1)]);
}

#[tokio::test(start_paused = true)]
async fn one_object_cannot_flood_the_cluster() {
    let world = World::new().await;
    for i in 0..100 {
        world.tell(&format!("Reason{i:03}"));
    }
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.told().await.len(), 25);
    let metrics = crate::Metrics::new();
    metrics.watch_recorder(&world.recorder);
    let page = metrics.page();
    for line in [
        r#"bellerophon_events_written_total{controller="example.org/hero"} 25"#,
        r#"bellerophon_events_dropped_total{controller="example.org/hero",reason="full"} 0"#,
        r#"bellerophon_events_dropped_total{controller="example.org/hero",reason="rate_limited"} 75"#,
        r#"bellerophon_events_dropped_total{controller="example.org/hero",reason="refused"} 0"#,
    ] {
        assert!(
            page.lines().any(|found| found == line),
            "no line {line} in\n{page}"
        );
    }
    sleep(Duration::from_secs(301)).await;
    world.tell("Later");
    sleep(Duration::from_secs(1)).await;
    assert_eq!(world.told().await.len(), 26);
}

#[tokio::test(start_paused = true)]
async fn recording_never_waits_and_counts_what_it_drops() {
    let world = World::new().await;
    for i in 0..WAITING_MAX + 7 {
        world.tell(&format!("Reason{i}"));
    }
    assert_eq!(world.recorder.dropped(), 7);
}

#[tokio::test(start_paused = true)]
async fn stop_writes_what_waits() {
    let world = World::new().await;
    (0..5).for_each(|_| world.tell("Failed"));
    world.stop.cancel();
    world.writer.await.unwrap();
    let list = world.events.list(&ListParams::default()).await.unwrap();
    let event = &list.items[0];
    assert_eq!(
        (
            event.series.as_ref().map(|series| series.count),
            event.type_.as_deref()
        ),
        (Some(5), Some("Warning"))
    );
}

#[test]
fn long_notes_are_cut_between_characters() {
    assert_eq!(cut("é".repeat(1000)).len(), 1024);
    assert_eq!(cut("short".into()), "short");
}
