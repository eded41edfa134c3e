//! Mistakes of the setup, and what needs no setup.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bellerophon::informer::{CacheMode, InformerOptions, Transform};
use bellerophon::manager::{ManagerOptions, Runnable, RunnableGroup};
use bellerophon::prelude::*;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt;
use kube::core::DynamicObject;
use tokio_util::sync::CancellationToken;

use crate::harness::{create, manager, run, sample, server, settle};

async fn idle(_req: Request<ConfigMap>) -> Result<Action, Error> {
    Ok(Action::await_change())
}

/// The messages of `run`, which must return before anything starts.
async fn mistakes(setup: impl FnOnce(&mut Manager)) -> Vec<String> {
    let server = server().await;
    let mut mgr = manager(&server.client());
    let started = Arc::new(AtomicBool::new(false));
    let runnable = {
        let started = started.clone();
        async move |_: CancellationToken| {
            started.store(true, Ordering::SeqCst);
            Ok(())
        }
    };
    mgr.add("server", runnable.in_group(RunnableGroup::Servers));
    setup(&mut mgr);
    let metrics = mgr.metrics().clone();
    let error = mgr.run_until(std::future::pending()).await.unwrap_err();
    let ManagerError::Setup(messages) = error else {
        panic!("another error: {error}");
    };
    assert!(!started.load(Ordering::SeqCst), "a runnable was started");
    let text = metrics.encode();
    assert!(!text.contains("rest_client_requests_total{"), "{text}");
    messages
}

/// Whether the message ends with this line of this file.
#[track_caller]
fn assert_location(message: &str, line: u32) {
    let location = format!("({}:{line}:", file!());
    assert!(message.contains(&location), "no {location} in {message}");
}

#[tokio::test(start_paused = true)]
async fn two_controllers_of_one_name_are_returned_with_both_lines() {
    let first = line!() + 2;
    let messages = mistakes(|mgr| {
        mgr.controller::<ConfigMap>().reconcile(idle);
        mgr.controller::<ConfigMap>()
            .owns::<Secret>()
            .reconcile(idle);
    })
    .await;
    assert_eq!(messages.len(), 1, "{messages:?}");
    let message = &messages[0];
    assert!(
        message.starts_with(r#"two controllers are named "configmap""#),
        "{message}"
    );
    let first_location = format!("the first is at {}:{first}:", file!());
    assert!(message.contains(&first_location), "{message}");
    assert_location(message, first + 1);
}

#[tokio::test(start_paused = true)]
async fn contradicting_informer_options_are_returned_with_their_line() {
    let first = line!() + 2;
    let messages = mistakes(|mgr| {
        mgr.informer::<ConfigMap>(InformerOptions {
            cache_mode: Some(CacheMode::Decoded),
            ..InformerOptions::default()
        });
        mgr.informer::<ConfigMap>(InformerOptions {
            transform: Some(Transform::none()),
            ..InformerOptions::default()
        });
        mgr.informer::<ConfigMap>(InformerOptions {
            cache_mode: Some(CacheMode::Compact { decoded_max: 0 }),
            ..InformerOptions::default()
        });
    })
    .await;
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert!(
        messages[0].starts_with("the informer of configmaps has contradicting cache_mode"),
        "{messages:?}"
    );
    assert_location(&messages[0], first + 8);
}

#[tokio::test(start_paused = true)]
async fn index_name_with_two_functions_is_returned_with_its_line() {
    let first = line!() + 3;
    let messages = mistakes(|mgr| {
        let by_name = |map: &ConfigMap| vec![map.name_any()];
        mgr.index("team", by_name);
        mgr.index("team", by_name);
        mgr.index("team", |map: &ConfigMap| {
            map.namespace().into_iter().collect()
        });
    })
    .await;
    assert_eq!(messages.len(), 1, "{messages:?}");
    assert!(
        messages[0].starts_with(r#"the index "team" of configmaps has two different functions"#),
        "{messages:?}"
    );
    assert_location(&messages[0], first + 2);
}

#[tokio::test(start_paused = true)]
async fn dynamic_object_without_an_informer_is_returned_with_its_line() {
    let first = line!() + 2;
    let messages = mistakes(|mgr| {
        mgr.controller::<DynamicObject>()
            .reconcile(async |_: Request<DynamicObject>| Ok(Action::await_change()));
        mgr.controller::<ConfigMap>()
            .owns::<DynamicObject>()
            .watches::<DynamicObject>(|_| Vec::new())
            .reconcile(idle);
    })
    .await;
    assert_eq!(messages.len(), 3, "{messages:?}");
    for message in &messages {
        assert!(message.contains("DynamicObject"), "{message}");
        assert!(message.contains("InformerOptions::resource"), "{message}");
    }
    assert_location(&messages[0], first);
    assert_location(&messages[1], first + 3);
    assert_location(&messages[2], first + 4);
}

#[tokio::test(start_paused = true)]
async fn all_setup_errors_are_returned() {
    let messages = mistakes(|mgr| {
        mgr.controller::<ConfigMap>().reconcile(idle);
        mgr.controller::<ConfigMap>().reconcile(idle);
        mgr.index("team", |map: &ConfigMap| vec![map.name_any()]);
        mgr.index("team", |map: &ConfigMap| {
            map.namespace().into_iter().collect()
        });
    })
    .await;
    assert_eq!(messages.len(), 2, "{messages:?}");
}

/// The metrics of a controller used to be in no registry unless one was passed to it.
#[tokio::test(start_paused = true)]
async fn smallest_program_has_all_metrics() {
    let server = server().await;
    let client = server.client();
    let mut mgr = Manager::new(client.clone(), ManagerOptions::default());
    mgr.controller::<ConfigMap>().reconcile(idle);
    let metrics = mgr.metrics().clone();
    run(mgr, async {
        create(&client, "icarus").await;
        settle().await;
        let text = metrics.encode();
        for (metric, labels) in [
            ("workqueue_adds_total", r#"name="configmap""#),
            (
                "workqueue_work_duration_seconds_count",
                r#"name="configmap""#,
            ),
            (
                "controller_runtime_reconcile_total",
                r#"controller="configmap",result="success""#,
            ),
            (
                "controller_runtime_reconcile_time_seconds_count",
                r#"controller="configmap""#,
            ),
            (
                "controller_runtime_max_concurrent_reconciles",
                r#"controller="configmap""#,
            ),
            ("rest_client_requests_total", r#"method="GET""#),
            ("bellerophon_informer_objects", r#"name="configmaps""#),
        ] {
            assert!(
                sample(&text, metric, labels) > 0.0,
                "no {metric}{{{labels}}} in\n{text}"
            );
        }
    })
    .await;
}
