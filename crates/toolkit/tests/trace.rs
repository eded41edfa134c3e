//! Promises of the trace: two controllers on one bus, and the way from one's write to the other's.

mod harness;

use std::time::Duration;

use bellerophon::{
    Controller, ControllerOptions, Failure, InformerOptions, Manager, ManagerOptions, ObjectKey,
    Outcome, Request, SharedInformer, TraceBus, TraceEvent,
};
use bellerophon_apiserver::ApiServer;
use harness::{api, create, maps, run, settle};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Client, ResourceExt};

fn key(name: &str) -> ObjectKey {
    ObjectKey::namespaced("default", name)
}

/// Gives each map a secret of its name, at the second attempt.
fn makers(
    client: &Client,
    informer: &SharedInformer<ConfigMap>,
    options: ControllerOptions,
) -> Controller {
    let client = client.clone();
    Controller::of(informer)
        .with_options(options)
        .named("maker")
        .reconcile_with(move |request: Request<ConfigMap>| {
            let client = client.clone();
            async move {
                let Some(map) = &request.object else {
                    return Ok(Outcome::Done);
                };
                if request.attempt == 1 {
                    return Err(Failure::retry("not yet"));
                }
                let mut secret = Secret::default();
                (secret.metadata.name, secret.metadata.namespace) =
                    (Some(map.name_any()), map.namespace());
                request.writes().apply(&api(&client), &secret).await?;
                Ok(Outcome::Done)
            }
        })
}

/// Removes each secret that a map has.
fn breakers(
    client: &Client,
    informer: &SharedInformer<Secret>,
    options: ControllerOptions,
) -> Controller {
    let client = client.clone();
    Controller::of(informer)
        .with_options(options)
        .named("breaker")
        .reconcile_with(move |request: Request<Secret>| {
            let client = client.clone();
            async move {
                if let Some(secret) = &request.object {
                    request.writes().delete(&api(&client), &**secret).await?;
                }
                Ok(Outcome::Done)
            }
        })
}

#[tokio::test(start_paused = true)]
async fn chain_from_write_to_write_is_told() {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let (client, trace) = (server.client(), TraceBus::new(1000));
    let options = || ControllerOptions {
        trace: trace.clone(),
        ..ControllerOptions::default()
    };
    let fields = Some("metadata.name=icarus".into());
    let (maps, secrets) = (
        maps(&client),
        SharedInformer::new(
            client.clone(),
            (),
            InformerOptions {
                fields,
                ..InformerOptions::default()
            },
        ),
    );
    let (maker, breaker) = (
        makers(&client, &maps, options()),
        breakers(&client, &secrets, options()),
    );
    let mut reader = trace.subscribe();
    let manager = Manager::new(client.clone(), ManagerOptions::default())
        .cache(&maps)
        .cache(&secrets)
        .controller(maker)
        .controller(breaker);
    run(manager, async {
        settle().await;
        create(&client, "other").await;
        create(&client, "icarus").await;
        settle().await;
    })
    .await;
    // Versions are the server's choice, and what happens at once may come in either order.
    let why = trace.why(&key("icarus"));
    let story = why.to_string();
    let told = |start: &str, part: &str| {
        story
            .lines()
            .any(|line| line.trim_start().starts_with(start) && line.contains(part))
    };
    for (start, part) in [
        ("#", " maker reconciled default/icarus: error"),
        ("because #", "ConfigMap default/icarus added at "),
        ("#", " maker reconciled default/icarus, attempt 2: success"),
        ("because ConfigMap default/icarus retry", ""),
        ("wrote #", "Secret default/icarus at "),
        ("#", " breaker reconciled default/icarus: success"),
        ("because #", ", written by maker for default/icarus"),
        ("deleted #", "Secret default/icarus"),
        ("because #", ", written by breaker for default/icarus"),
    ] {
        assert!(told(start, part), "no line {start}…{part} in\n{story}");
    }
    assert!(
        !story.contains("other"),
        "what led nowhere near is not told:\n{story}"
    );
    assert_eq!(why.reconciles.len(), 4, "{story}");
    let batch = reader.next().await;
    assert_eq!(
        (batch.missed, batch.records.len()),
        (0, trace.snapshot().len()),
        "who subscribed before it began saw it all"
    );
    let took = batch
        .records
        .iter()
        .filter_map(|record| match &record.event {
            TraceEvent::Ended { took, .. } => Some(*took),
            _ => None,
        });
    assert!(took.max() < Some(Duration::from_secs(1)));
}
