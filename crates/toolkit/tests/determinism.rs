//! The whole stack, twice: the same seed makes the same requests at the same times, another seed others.
//!
//! Two processes elect a leader, watch over a bad line, reconcile with failures and back-off, write children and record
//! events. Each run has a thread of its own, so that hash keys differ between runs; what depended on them would show.
#![expect(
    clippy::unwrap_used,
    reason = "a failed expectation in a test is the failure of the test"
)]

mod harness;

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bellerophon::{
    Backoff, Controller, ControllerOptions, Entropy, EventRecorder, EventType, Failure,
    InformerOptions, LeaderOptions, Manager, ManagerOptions, Note, Outcome, RateLimit,
    ReconcileResult, Request, SharedInformer, WallClock, set_controller_reference,
};
use bellerophon_apiserver::ApiServer;
use harness::{Fate, Story, api, create, is_watch, meddled, set_query};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

const MAPS: [&str; 6] = ["ares", "bia", "circe", "dike", "eos", "faun"];

/// A client that notes its requests, and whose line breaks now and then.
fn client(server: &ApiServer, who: &'static str, start: Instant, story: &Story) -> Client {
    let (story, count) = (story.clone(), AtomicU32::new(0));
    meddled(server, move |request| {
        story.note(format!(
            "{} {who} {} {}",
            start.elapsed().as_millis(),
            request.method(),
            request.uri()
        ));
        if is_watch(request) {
            set_query(request, "timeoutSeconds", "7");
        }
        if count.fetch_add(1, Ordering::SeqCst) % 5 == 4 {
            Fate::Cut
        } else {
            Fate::Pass
        }
    })
}

/// Gives each map a secret and tells people; fails at first, and whenever the line does.
async fn reconcile(
    client: Client,
    recorder: EventRecorder,
    request: Request<ConfigMap>,
) -> ReconcileResult {
    let Some(map) = request.object.as_deref() else {
        return Ok(Outcome::Done);
    };
    if request.attempt <= 2 {
        let note = format!("attempt {} for {}", request.attempt, map.name_any());
        recorder.event(
            map,
            Note {
                type_: EventType::Warning,
                reason: "NotYet".into(),
                action: "Make".into(),
                note,
            },
        );
        return Err(Failure::retry("not yet"));
    }
    let mut secret: Secret = serde_json::from_value(
        json!({ "metadata": { "name": map.name_any(), "namespace": "default" } }),
    )?;
    set_controller_reference(map, &mut secret)?;
    request.writes().apply(&api(&client), &secret).await?;
    recorder.event(
        map,
        Note {
            type_: EventType::Normal,
            reason: "Made".into(),
            action: "Make".into(),
            note: "there is a secret".into(),
        },
    );
    Ok(Outcome::RequeueAfter(Duration::from_secs(45)))
}

/// Labels each secret with the controller's name.
async fn mark(client: Client, request: Request<Secret>) -> ReconcileResult {
    let Some(secret) = request.object.as_deref() else {
        return Ok(Outcome::Done);
    };
    let name = request.writes().controller().to_string();
    let change = |secret: &mut Secret| _ = secret.labels_mut().insert(name, "seen".into());
    request
        .writes()
        .create_or_patch(&api(&client), Some(secret), Secret::default(), change)
        .await?;
    Ok(Outcome::Done)
}

/// One process of the two.
fn process(client: &Client, who: &'static str, entropy: &Entropy, clock: WallClock) -> Manager {
    let seeded = || entropy.clone();
    let options = InformerOptions {
        labels: Some("test".into()),
        entropy: seeded(),
        ..InformerOptions::default()
    };
    let maps = SharedInformer::<ConfigMap>::new(client.clone(), (), options);
    let secrets = SharedInformer::<Secret>::new(
        client.clone(),
        (),
        InformerOptions {
            entropy: seeded(),
            ..InformerOptions::default()
        },
    );
    let (recorder, writer) = EventRecorder::new(client.clone(), "hero", who, clock, seeded());
    let options = || {
        let backoff = Backoff {
            first_delay: Duration::from_secs(1),
            jitter: 0.5,
            ..Backoff::default()
        };
        let rate_limit = RateLimit {
            backoff: Some(backoff),
            bucket: None,
        };
        ControllerOptions {
            workers: 3,
            rate_limit,
            entropy: seeded(),
            ..ControllerOptions::default()
        }
    };
    let for_work = client.clone();
    let makers = Controller::of(&maps)
        .owns(&secrets)
        .with_options(options())
        .reconcile_with(move |request| reconcile(for_work.clone(), recorder.clone(), request));
    // Several more that wait for the same caches and work on the same objects.
    let markers = ["mark-a", "mark-b", "mark-c"].map(|name| {
        let client = client.clone();
        Controller::of(&secrets)
            .with_options(options())
            .named(name)
            .reconcile_with(move |request| mark(client.clone(), request))
    });
    let leader = Some(LeaderOptions::new("default", "lock", who));
    let manager = Manager::new(
        client.clone(),
        ManagerOptions {
            leader,
            clock,
            entropy: seeded(),
            ..ManagerOptions::default()
        },
    );
    markers
        .into_iter()
        .fold(
            manager.cache(&maps).cache(&secrets).controller(makers),
            Manager::controller,
        )
        .background("events", move |stop| async move {
            writer.run(stop).await;
            Ok(())
        })
}

async fn tell(seed: u64) -> Vec<String> {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let (story, start, entropy) = (Story::default(), Instant::now(), Entropy::seeded(seed));
    let clock = WallClock::starting_at(jiff::Timestamp::from_second(1_700_000_000).unwrap());
    let stops = [CancellationToken::new(), CancellationToken::new()];
    let mut running = Vec::new();
    for (who, stop) in ["first", "second"].into_iter().zip(&stops) {
        let client = client(&server, who, start, &story);
        running.push(tokio::spawn(
            process(&client, who, &entropy, clock).run(stop.clone()),
        ));
    }
    let maps = api::<ConfigMap>(&server.client());
    for name in MAPS {
        create(&server.client(), name).await;
        sleep(Duration::from_millis(700)).await;
    }
    for round in 0..20 {
        let name = MAPS[round % MAPS.len()];
        maps.patch(
            name,
            &PatchParams::default(),
            &Patch::Merge(json!({ "data": { "round": round.to_string() } })),
        )
        .await
        .unwrap();
        sleep(Duration::from_secs(3)).await;
    }
    maps.delete("circe", &DeleteParams::default())
        .await
        .unwrap();
    // The leader goes in order; the other one takes over.
    stops[0].cancel();
    sleep(Duration::from_secs(120)).await;
    stops[1].cancel();
    for process in running {
        process.await.unwrap().unwrap();
    }
    story.all()
}

/// A run on a thread of its own.
fn run(seed: u64) -> Vec<String> {
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(tell(seed))
    };
    std::thread::spawn(run).join().unwrap()
}

#[test]
fn same_seed_makes_the_same_requests_at_the_same_times() {
    let first = Arc::new(run(7));
    for part in [
        "GET /api/v1/configmaps",
        "PATCH /api/v1/namespaces/default/secrets/",
        "events",
        "PUT",
        "first",
        "second",
    ] {
        assert!(
            first.iter().any(|request| request.contains(part)),
            "no {part} among {} requests",
            first.len()
        );
    }
    let again = run(7);
    let differs = first.iter().zip(&again).find(|(one, other)| one != other);
    assert_eq!((differs, first.len()), (None, again.len()));
    let times = |requests: &[String]| {
        requests
            .iter()
            .map(|request| request.split(' ').next().unwrap().to_string())
            .collect::<Vec<_>>()
    };
    assert_ne!(
        times(&first),
        times(&run(8)),
        "another seed makes other delays"
    );
}
