//! The whole stack, twice: the same seed sends the same requests at the same times, another seed
//! others.
//!
//! Two processes elect a leader, watch through a faulty connection, reconcile with failures and
//! back-off, write children and record events. Each run has its own thread, so that hash keys
//! differ between runs; what depended on them would show.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use bellerophon::clock::{Clock, Rng};
use bellerophon::controller::ControllerOptions;
use bellerophon::leader::LeaderElectionOptions;
use bellerophon::prelude::*;
use bellerophon::queue::{Backoff, RateLimit};
use bellerophon::testing;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Client, ResourceExt};
use tokio::time::{Instant, sleep};

use crate::harness::{
    Fault, Log, TestServer, create, delete, faulty_client, is_watch, maps, secret, server,
    set_data, set_query,
};

const MAPS: [&str; 6] = ["ares", "bia", "circe", "dike", "eos", "faun"];

/// A client that logs its requests; every fifth one is disconnected.
fn logging_client(server: &TestServer, who: &'static str, start: Instant, log: &Log) -> Client {
    let log = log.clone();
    let count = AtomicU32::new(0);
    faulty_client(server, move |request| {
        log.push(format!(
            "{} {who} {} {}",
            start.elapsed().as_millis(),
            request.method(),
            request.uri()
        ));
        if is_watch(request) {
            set_query(request, "timeoutSeconds", "7");
        }
        match count.fetch_add(1, Ordering::SeqCst) % 5 {
            4 => Fault::Disconnect,
            _ => Fault::None,
        }
    })
}

/// Gives each map a secret and records events; fails at the first two attempts.
async fn create_secret(req: Request<ConfigMap>) -> Result<Action, Error> {
    let Some(map) = req.object() else {
        return Ok(Action::await_change());
    };
    let recorder = req.recorder();
    if req.attempt() <= 2 {
        let note = format!("attempt {} for {}", req.attempt(), map.name_any());
        recorder.event(map, Event::warning("NotYet", "Create", note));
        return Err(Error::retry("not yet"));
    }
    let mut secret = secret(&map.name_any());
    set_controller_reference(map, &mut secret)?;
    req.client().apply(&secret).await?;
    recorder.event(
        map,
        Event::normal("Created", "Create", "created the secret"),
    );
    Ok(Action::requeue_after(Duration::from_secs(45)))
}

/// Labels each secret with the name of the controller.
async fn label(req: Request<Secret>) -> Result<Action, Error> {
    let Some(secret) = req.object() else {
        return Ok(Action::await_change());
    };
    let name = req.client().field_manager().to_owned();
    let label = |secret: &mut Secret| _ = secret.labels_mut().insert(name, "seen".into());
    req.client().create_or_update(secret, label).await?;
    Ok(Action::await_change())
}

/// One of the two processes.
fn process(client: &Client, who: &'static str, rng: &Rng, clock: Clock) -> Manager {
    let election = LeaderElectionOptions {
        lease_namespace: "default".into(),
        identity: Some(who.into()),
        ..LeaderElectionOptions::new("lock")
    };
    let backoff = Backoff {
        first_delay: Duration::from_secs(1),
        jitter: 0.5,
        ..Backoff::default()
    };
    let controller = ControllerOptions {
        concurrency: Some(3),
        rate_limit: Some(RateLimit {
            backoff: Some(backoff),
            bucket: None,
        }),
        ..ControllerOptions::default()
    };
    let options = ManagerOptions {
        identity: Some(who.into()),
        leader_election: Some(election),
        controller,
        clock,
        rng: rng.clone(),
        ..testing::options(0)
    };
    let mut mgr = Manager::new(client.clone(), options);
    let maps = maps(&mut mgr);
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .owns::<Secret>()
        .reconcile(create_secret);
    // Several controllers that wait for the same caches and work on the same objects.
    for name in ["label-a", "label-b", "label-c"] {
        mgr.controller::<Secret>().name(name).reconcile(label);
    }
    mgr
}

async fn requests(seed: u64) -> Vec<String> {
    let server = server().await;
    let log = Log::default();
    let start = Instant::now();
    let rng = Rng::seeded(seed);
    let clock = Clock::starting_at(jiff::Timestamp::from_second(1_700_000_000).unwrap());
    let [first, second] = ["first", "second"].map(|who| {
        let client = logging_client(&server, who, start, &log);
        process(&client, who, &rng, clock).start()
    });
    let client = server.client();
    for name in MAPS {
        create(&client, name).await;
        sleep(Duration::from_millis(700)).await;
    }
    for round in 0..20 {
        let name = MAPS[round % MAPS.len()];
        set_data(&client, name, "round", &round.to_string()).await;
        sleep(Duration::from_secs(3)).await;
    }
    delete(&client, "circe").await;
    // The leader stops in order, and the other process takes over.
    let (stopped, ()) = tokio::join!(first.stop(), sleep(Duration::from_secs(120)));
    stopped.unwrap();
    second.stop().await.unwrap();
    log.all()
}

/// A run in its own thread.
fn run(seed: u64) -> Vec<String> {
    let run = move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(requests(seed))
    };
    std::thread::spawn(run).join().unwrap()
}

#[test]
fn same_seed_sends_the_same_requests_at_the_same_times() {
    let first = run(7);
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
    let difference = first.iter().zip(&again).find(|(one, other)| one != other);
    assert_eq!(difference, None);
    assert_eq!(first.len(), again.len());
    let times = |requests: &[String]| -> Vec<String> {
        let time = |request: &String| request.split(' ').next().unwrap().to_owned();
        requests.iter().map(time).collect()
    };
    assert_ne!(
        times(&first),
        times(&run(8)),
        "another seed leads to other delays"
    );
}
