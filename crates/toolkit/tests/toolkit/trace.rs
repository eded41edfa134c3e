//! The reconcile trace: from a change to the writes it caused, across controllers.

use std::time::Duration;

use bellerophon::informer::InformerOptions;
use bellerophon::prelude::*;
use bellerophon::trace::{TraceEvent, TraceRecord};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt;

use crate::harness::{create, manager, maps, run, secret, server, set_data, settle};

fn key(name: &str) -> ObjectKey {
    ObjectKey::namespaced("default", name)
}

/// Gives each map a secret of its name, at the second attempt.
async fn create_secret(req: Request<ConfigMap>) -> Result<Action, Error> {
    let Some(map) = req.object() else {
        return Ok(Action::await_change());
    };
    if req.attempt() == 1 {
        return Err(Error::retry("not yet"));
    }
    req.client().apply(&secret(&map.name_any())).await?;
    Ok(Action::await_change())
}

async fn delete_secret(req: Request<Secret>) -> Result<Action, Error> {
    if let Some(secret) = req.object() {
        req.client().delete(secret).await?;
    }
    Ok(Action::await_change())
}

#[tokio::test(start_paused = true)]
async fn timeline_links_the_writes_of_one_controller_to_those_of_another() {
    let server = server().await;
    let client = server.client();
    let mut mgr = manager(&client);
    let maps = maps(&mut mgr);
    let secrets = mgr.informer::<Secret>(InformerOptions::fields("metadata.name=icarus"));
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .name("creator")
        .reconcile(create_secret);
    mgr.controller::<Secret>()
        .informer(&secrets)
        .name("deleter")
        .reconcile(delete_secret);
    let trace = mgr.trace().clone();
    let mut reader = trace.subscribe();
    run(mgr, async {
        settle().await;
        create(&client, "other").await;
        create(&client, "icarus").await;
        settle().await;
    })
    .await;
    // Versions are chosen by the server, and simultaneous events may come in either order.
    let timeline = trace.timeline(&key("icarus"));
    let text = timeline.to_string();
    let has_line = |start: &str, part: &str| {
        text.lines()
            .any(|line| line.trim_start().starts_with(start) && line.contains(part))
    };
    for (start, part) in [
        ("#", " creator reconciled default/icarus: error"),
        ("because #", "ConfigMap default/icarus added at "),
        (
            "#",
            " creator reconciled default/icarus, attempt 2: success",
        ),
        ("because ConfigMap default/icarus retry", ""),
        ("wrote #", "Secret default/icarus at "),
        ("#", " deleter reconciled default/icarus: success"),
        ("because #", ", written by creator for default/icarus"),
        ("deleted #", "Secret default/icarus"),
        ("because #", ", written by deleter for default/icarus"),
    ] {
        assert!(has_line(start, part), "no line {start}…{part} in\n{text}");
    }
    assert!(
        !text.contains("other"),
        "reconciles of another object are left out:\n{text}"
    );
    assert_eq!(timeline.reconciles.len(), 4, "{text}");
    let batch = reader.next().await;
    assert_eq!(batch.missed, 0);
    assert_eq!(
        batch.records.len(),
        trace.snapshot().len(),
        "an early reader receives all records"
    );
    let took = batch
        .records
        .iter()
        .filter_map(|record| match &record.event {
            TraceEvent::Finished { took, .. } => Some(*took),
            _ => None,
        });
    assert!(took.max() < Some(Duration::from_secs(1)));
}

/// The name of the stage, and whether the record is about the version that the controller wrote.
fn stage(record: &TraceRecord, written: &Option<String>) -> &'static str {
    match &record.event {
        TraceEvent::Accepted(_) => "accepted",
        TraceEvent::Listed { objects, .. } => {
            assert_eq!(*objects, 0);
            "listed"
        }
        TraceEvent::Cached {
            resource_version, ..
        } if resource_version == written => "cached own write",
        TraceEvent::Cached { .. } => "cached",
        TraceEvent::Delivered {
            resource_version, ..
        } if resource_version == written => "delivered own write",
        TraceEvent::Delivered { .. } => "delivered",
        TraceEvent::Enqueued { .. } => "enqueued",
        TraceEvent::Started { .. } => "started",
        TraceEvent::Wrote { .. } | TraceEvent::SubresourceWritten { .. } => "wrote",
        TraceEvent::Finished { .. } => "finished",
    }
}

#[tokio::test(start_paused = true)]
async fn trace_records_every_stage_of_a_change() {
    let server = server().await;
    let client = server.client();
    let mut mgr = manager(&client);
    let trace = mgr.trace().clone();
    let maps = maps(&mut mgr);
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .reconcile(async |req: Request<ConfigMap>| {
            if req.object().is_some_and(|map| map.data.is_none()) {
                let kube = req.client().kube();
                let written = set_data(kube, req.key().name(), "a", "b").await;
                req.client().record_write(&written);
            }
            Ok(Action::await_change())
        });
    run(mgr, async {
        settle().await;
        create(&client, "one").await;
        settle().await;
    })
    .await;
    let records = trace.since(0).records;
    let written = records.iter().find_map(|record| match &record.event {
        TraceEvent::Wrote {
            resource_version, ..
        } => resource_version.clone(),
        _ => None,
    });
    let stages: Vec<_> = records
        .iter()
        .map(|record| stage(record, &written))
        .collect();
    let mut sorted = stages.clone();
    sorted.sort_unstable();
    assert_eq!(
        sorted,
        [
            "cached",
            "cached own write",
            "delivered",
            "delivered own write",
            "enqueued",
            "enqueued",
            "finished",
            "finished",
            "listed",
            "started",
            "started",
            "wrote"
        ],
        "{stages:?}"
    );
    let position = |stage| stages.iter().position(|found| *found == stage);
    assert!(position("cached") < position("delivered"), "{stages:?}");
    assert!(
        position("cached own write") < position("delivered own write"),
        "{stages:?}"
    );
}
