//! Promises about signals: the first one stops in order, the second one at once. Real signals to this very process.
#![cfg(unix)]
#![expect(
    clippy::unwrap_used,
    reason = "a failed expectation in a test is the failure of the test"
)]

mod harness;

use std::process::Command;
use std::time::Duration;

use bellerophon::{Controller, Manager, ManagerError, ManagerOptions, Outcome, Request};
use bellerophon_apiserver::ApiServer;
use harness::{Story, create, maps};
use k8s_openapi::api::core::v1::ConfigMap;

fn send(signal: &str) {
    let sent = Command::new("kill")
        .args([signal, &std::process::id().to_string()])
        .status()
        .unwrap();
    assert!(sent.success());
}

async fn until(story: &Story, words: &str) {
    while !story.all().iter().any(|noted| noted == words) {
        tokio::task::yield_now().await;
    }
}

/// One test, because signals reach all tests of a process.
#[tokio::test]
async fn first_signal_stops_in_order_and_the_second_at_once() {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let client = server.client();
    create(&client, "one").await;
    for (obedient, signals) in [(true, vec!["-INT"]), (false, vec!["-TERM", "-INT"])] {
        let (story, maps) = (Story::default(), maps(&client));
        let noted = story.clone();
        let controller =
            Controller::of(&maps).reconcile_with(move |request: Request<ConfigMap>| {
                let story = noted.clone();
                async move {
                    story.note("begun");
                    request.stop.cancelled().await;
                    story.note("told to stop");
                    match obedient {
                        true => story.note("ended"),
                        false => std::future::pending().await,
                    }
                    Ok(Outcome::Done)
                }
            });
        // The limit for ending is an hour: whoever returns sooner did so for another reason.
        let options = ManagerOptions {
            grace: Duration::from_secs(3600),
            ..ManagerOptions::default()
        };
        let running = tokio::spawn(
            Manager::new(client.clone(), options)
                .cache(&maps)
                .controller(controller)
                .run_until_signal(),
        );
        let mut expected = vec!["begun", "told to stop"];
        for (signal, words) in signals.into_iter().zip(&expected) {
            until(&story, words).await;
            send(signal);
        }
        let ended = running.await.unwrap();
        match obedient {
            true => {
                ended.unwrap();
                expected.push("ended");
            }
            false => assert!(matches!(ended, Err(ManagerError::Interrupted)), "{ended:?}"),
        }
        assert_eq!(story.all(), expected);
    }
}
