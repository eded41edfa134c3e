//! What other libraries were seen to do wrong, as promises. Each test says what used to happen elsewhere.
//!
//! An HTTP 410 at the start of a watch that never led to a new list is in `refusals.rs`.
#![expect(
    clippy::unwrap_used,
    reason = "a failed expectation in a test is the failure of the test"
)]

mod harness;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bellerophon::{
    Controller, InformerOptions, Manager, ManagerOptions, Outcome, Request, SharedInformer,
};
use bellerophon_apiserver::ApiServer;
use harness::{Fate, Story, api, create, is_watch, maps, meddled, run, settle};
use http::HeaderValue;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::time::{Instant, sleep};

async fn server() -> ApiServer {
    ApiServer::builder().seed(1).start().await.unwrap()
}

/// Notes each reconcile: what, and whether it is there.
fn noting(informer: &SharedInformer<ConfigMap>, story: &Story) -> Controller {
    let story = story.clone();
    Controller::of(informer).reconcile_with(move |request: Request<ConfigMap>| {
        story.note(format!(
            "{} {}",
            request.key.name(),
            if request.object.is_some() {
                "there"
            } else {
                "gone"
            }
        ));
        async { Ok(Outcome::Done) }
    })
}

/// The store used to forget what a new list no longer had, and nobody was told: an owner never heard of its lost child.
#[tokio::test(start_paused = true)]
async fn deletion_missed_by_a_cut_watch_is_reconciled() {
    let (server, story, cut) = (
        server().await,
        Story::default(),
        Arc::new(AtomicBool::new(false)),
    );
    let line = cut.clone();
    // Watches end soon, so that the line can be cut between two of them.
    let client = meddled(&server, move |request| {
        if is_watch(request) {
            harness::set_query(request, "timeoutSeconds", "1");
        }
        if line.load(Ordering::SeqCst) {
            Fate::Cut
        } else {
            Fate::Pass
        }
    });
    let maps = maps(&client);
    let controller = noting(&maps, &story);
    run(
        Manager::new(client, ManagerOptions::default())
            .cache(&maps)
            .controller(controller),
        async {
            create(&server.client(), "a").await;
            create(&server.client(), "b").await;
            settle().await;
            assert_eq!(story.take(), ["a there", "b there"]);
            cut.store(true, Ordering::SeqCst);
            settle().await;
            api::<ConfigMap>(&server.client())
                .delete("b", &DeleteParams::default())
                .await
                .unwrap();
            cut.store(false, Ordering::SeqCst);
            sleep(Duration::from_secs(60)).await;
            assert_eq!(story.take(), ["b gone"], "once, and nothing else");
        },
    )
    .await;
}

/// Reconciles used to fall from 149 to 9 in these 30 s, because one back-off covered all watches of a controller.
#[tokio::test(start_paused = true)]
async fn forbidden_secondary_watch_does_not_slow_the_rest() {
    let (server, story, forbidden) = (
        server().await,
        Story::default(),
        Arc::new(AtomicBool::new(false)),
    );
    let refuse = forbidden.clone();
    let refused: Client = meddled(&server, move |request| {
        if refuse.load(Ordering::SeqCst) {
            request
                .headers_mut()
                .insert("impersonate-user", HeaderValue::from_static("nobody"));
        }
        Fate::Pass
    });
    let (client, secrets) = (
        server.client(),
        SharedInformer::<Secret>::new(refused.clone(), (), InformerOptions::default()),
    );
    let (maps, noted) = (maps(&client), story.clone());
    let controller =
        Controller::of(&maps)
            .owns(&secrets)
            .reconcile_with(move |request: Request<ConfigMap>| {
                noted.note(request.key.name());
                async { Ok(Outcome::Done) }
            });
    create(&client, "one").await;
    run(
        Manager::new(client.clone(), ManagerOptions::default())
            .cache(&maps)
            .cache(&secrets)
            .controller(controller),
        async {
            settle().await;
            forbidden.store(true, Ordering::SeqCst);
            // Longer than any watch lasts, so that the one of the secrets has ended and cannot begin again.
            sleep(Duration::from_secs(11 * 60)).await;
            assert!(
                api::<Secret>(&refused)
                    .list(&Default::default())
                    .await
                    .is_err()
            );
            story.take();
            for round in 0..150 {
                let change = Patch::Merge(json!({ "data": { "round": round.to_string() } }));
                api::<ConfigMap>(&client)
                    .patch("one", &PatchParams::default(), &change)
                    .await
                    .unwrap();
                sleep(Duration::from_millis(200)).await;
            }
            assert_eq!(story.take().len(), 150);
        },
    )
    .await;
}

/// A subscriber used to sleep until an unrelated timer when the object it was told of was gone from the store already:
/// the next object waited 2 s, or for ever.
#[tokio::test(start_paused = true)]
async fn object_gone_before_it_is_read_does_not_hold_up_the_next() {
    let (server, first, second) = (server().await, Story::default(), Story::default());
    let client = server.client();
    let maps = maps(&client);
    let controllers = [noting(&maps, &first), noting(&maps, &second)];
    let manager = controllers.into_iter().fold(
        Manager::new(client.clone(), ManagerOptions::default()).cache(&maps),
        Manager::controller,
    );
    run(manager, async {
        settle().await;
        let start = Instant::now();
        create(&client, "short-lived").await;
        api::<ConfigMap>(&client)
            .delete("short-lived", &DeleteParams::default())
            .await
            .unwrap();
        create(&client, "next").await;
        for story in [&first, &second] {
            while !story.all().iter().any(|call| call == "next there") {
                tokio::task::yield_now().await;
            }
        }
        assert_eq!(start.elapsed(), Duration::ZERO, "no timer had to help");
    })
    .await;
}

/// Twelve objects used to be reconciled in another order on each run, and under steady load one could starve.
#[tokio::test(start_paused = true)]
async fn objects_are_reconciled_in_the_order_they_came() {
    let (server, story) = (server().await, Story::default());
    let client = server.client();
    let (maps, noted) = (maps(&client), story.clone());
    let controller = Controller::of(&maps).reconcile_with(move |request: Request<ConfigMap>| {
        noted.note(
            request
                .object
                .as_ref()
                .map(|map| map.name_any())
                .unwrap_or_default(),
        );
        async {
            sleep(Duration::from_secs(1)).await;
            Ok(Outcome::Done)
        }
    });
    run(
        Manager::new(client.clone(), ManagerOptions::default())
            .cache(&maps)
            .controller(controller),
        async {
            settle().await;
            let names: Vec<_> = (0..12)
                .map(|i| format!("map-{:02}", (i * 7) % 12))
                .collect();
            for name in &names {
                create(&client, name).await;
            }
            sleep(Duration::from_secs(60)).await;
            assert_eq!(story.all(), names);
        },
    )
    .await;
}
