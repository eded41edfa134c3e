//! Promises about a cache that is older than what a controller wrote.
#![expect(
    clippy::unwrap_used,
    reason = "a failed expectation in a test is the failure of the test"
)]

mod harness;

use std::time::Duration;

use bellerophon::{
    Controller, InformerOptions, Manager, ManagerOptions, ObjectKey, Outcome, Request,
    SharedInformer,
};
use bellerophon_apiserver::ApiServer;
use harness::{Fate, Story, api, create, is_watch, maps, meddled, run, set_query, settle};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{ListParams, PostParams};
use kube::{Client, ResourceExt};
use tokio::time::{Instant, sleep};

/// How far behind the lagging cache is.
const LAG: Duration = Duration::from_secs(5);

/// A client whose watches end after a second and then take their time to come back.
fn lagging(server: &ApiServer) -> Client {
    meddled(server, |request| {
        if !is_watch(request) {
            return Fate::Pass;
        }
        set_query(request, "timeoutSeconds", "1");
        if request
            .uri()
            .query()
            .is_some_and(|query| query.contains("sendInitialEvents"))
        {
            Fate::Pass
        } else {
            Fate::Hold(LAG)
        }
    })
}

/// What a controller did that makes a child when its lagging cache shows none.
struct Seen {
    reconciles: Vec<String>,
    children: usize,
}

async fn children_of_one_owner(
    labels: Option<&str>,
    noting: fn(&Request<ConfigMap>, &Secret),
) -> Seen {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let (client, story, start) = (server.client(), Story::default(), Instant::now());
    let options = InformerOptions {
        labels: labels.map(Into::into),
        ..InformerOptions::default()
    };
    let (maps, secrets) = (
        maps(&client),
        SharedInformer::<Secret>::new(lagging(&server), (), options),
    );
    let (noted, writer, lister) = (story.clone(), client.clone(), secrets.lister());
    let controller = Controller::of(&maps)
        .watches(&secrets, |_| Vec::new())
        .reconcile_with(move |request: Request<ConfigMap>| {
            let (story, client, secrets) = (noted.clone(), writer.clone(), lister.clone());
            async move {
                let children = secrets
                    .list()
                    .iter()
                    .filter(|secret| secret.name_any().starts_with("child-"))
                    .count();
                story.note(format!("{children} at {}", start.elapsed().as_secs()));
                if children == 0 {
                    let mut secret = Secret::default();
                    secret.metadata.generate_name = Some("child-".into());
                    noting(
                        &request,
                        &api::<Secret>(&client)
                            .create(&PostParams::default(), &secret)
                            .await?,
                    );
                }
                Ok(Outcome::Done)
            }
        });
    let trigger = controller.trigger();
    run(
        Manager::new(client.clone(), ManagerOptions::default())
            .cache(&maps)
            .cache(&secrets)
            .controller(controller),
        async {
            // Between two watches of the secrets.
            settle().await;
            create(&client, "owner").await;
            for _ in 0..40 {
                sleep(Duration::from_millis(250)).await;
                trigger.reconcile(ObjectKey::namespaced("default", "owner"));
            }
        },
    )
    .await;
    let children = api::<Secret>(&client)
        .list(&ListParams::default())
        .await
        .unwrap()
        .items;
    Seen {
        reconciles: story.all(),
        children: children
            .iter()
            .filter(|secret| secret.name_any().starts_with("child-"))
            .count(),
    }
}

#[tokio::test(start_paused = true)]
async fn controller_does_not_act_on_a_cache_older_than_its_write() {
    let seen = children_of_one_owner(None, |request, secret| request.writes().wrote(secret)).await;
    assert_eq!(seen.children, 1);
    assert_eq!(seen.reconciles[0], "0 at 2");
    assert!(
        seen.reconciles[1..]
            .iter()
            .all(|call| call.starts_with("1 at ")),
        "{:?}",
        seen.reconciles
    );
    assert!(
        seen.reconciles.len() > 2,
        "it went on once the cache had caught up: {:?}",
        seen.reconciles
    );
}

/// What the gate is for: without it, each reconcile on the old cache makes another child.
#[tokio::test(start_paused = true)]
async fn write_that_is_not_noted_is_repeated_on_an_old_cache() {
    let seen = children_of_one_owner(None, |_, _| {}).await;
    assert!(seen.children > 1, "{}", seen.children);
}

/// The cache selects by a label that the child does not have: it will never show the child, and the owner must go on.
#[tokio::test(start_paused = true)]
async fn write_that_the_cache_does_not_select_is_not_waited_for_long() {
    let seen = children_of_one_owner(Some("other"), |request, secret| {
        request.writes().wrote(secret)
    })
    .await;
    let times: Vec<u64> = seen
        .reconciles
        .iter()
        .map(|call| call.split(' ').next_back().unwrap().parse().unwrap())
        .collect();
    assert!(
        times.windows(2).all(|pair| pair[1] - pair[0] <= 8),
        "{times:?}"
    );
}
