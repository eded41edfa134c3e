//! `create_or_update` and `create`: what is as desired is not written.

use std::sync::Arc;

use bellerophon::client::OperationResult;
use bellerophon::prelude::*;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::{Context, named, reconcile, set};
use crate::harness::{api, secret};

#[tokio::test(start_paused = true)]
async fn unchanged_object_is_not_written() {
    let work = async |ctx: Arc<Context>, req: Request<ConfigMap>| {
        let Some(map) = req.object() else {
            return Ok(Action::await_change());
        };
        let reads = ctx.requests("GET");
        let writes = ctx.requests("PATCH");
        let written = req.client().create_or_update(map, set("a", "b")).await?;
        let data = written.object()?.data.clone().unwrap_or_default();
        ctx.log.push(format!("{:?} {data:?}", written.operation));
        assert_eq!(ctx.requests("GET"), reads, "the cache has the object");
        let expected = match written.operation {
            OperationResult::Unchanged => 0.0,
            OperationResult::Updated => 1.0,
            OperationResult::Created => panic!("it exists"),
        };
        assert_eq!(ctx.requests("PATCH") - writes, expected);
        assert_eq!(ctx.requests("POST"), 0.0);
        Ok(Action::await_change())
    };
    let log = reconcile(work, async |client| {
        let theirs = Patch::Merge(json!({ "data": { "a": "other", "c": "d" } }));
        let maps = api::<ConfigMap>(&client);
        let patched = maps.patch("one", &PatchParams::default(), &theirs).await;
        patched.unwrap();
    })
    .await;
    let one = r#"{"a": "b"}"#;
    let both = r#"{"a": "b", "c": "d"}"#;
    assert_eq!(
        log,
        [
            format!("Updated {one}"),
            format!("Unchanged {one}"),
            format!("Updated {both}"),
            format!("Unchanged {both}")
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn missing_object_is_created_with_the_change_and_a_second_create_fails() {
    let work = async |ctx: Arc<Context>, req: Request<ConfigMap>| {
        let client = req.client();
        for _ in 0..2 {
            let child = named("child");
            let written = client.create_or_update(&child, set("a", "b")).await?;
            let data = written.object()?.data.clone().unwrap_or_default();
            let manager = client.field_manager();
            ctx.log
                .push(format!("{:?} {data:?} by {manager:?}", written.operation));
        }
        let error = client.create(&named("child")).await.unwrap_err();
        assert!(error.is_already_exists());
        assert!(!error.is_conflict());
        ctx.log.push(error.to_string());
        Ok(Action::await_change())
    };
    let log = reconcile(work, async |_| {}).await;
    assert_eq!(log[0], r#"Created {"a": "b"} by "configmap""#);
    assert_eq!(log[1], r#"Unchanged {"a": "b"} by "configmap""#);
    assert!(
        log[2].starts_with("cannot create ConfigMap default/child: "),
        "{}",
        log[2]
    );
}

/// A kind that no cache of the controller has is read from the server, and written only if it
/// changes.
#[tokio::test(start_paused = true)]
async fn uncached_object_costs_one_read_and_no_write_if_unchanged() {
    let work = async |ctx: Arc<Context>, req: Request<ConfigMap>| {
        let label = |secret: &mut Secret| {
            let labels = secret.metadata.labels.get_or_insert_default();
            labels.insert("team".into(), "red".into());
        };
        for _ in 0..2 {
            let reads = ctx.requests("GET");
            let created = ctx.requests("POST");
            let patched = ctx.requests("PATCH");
            let written = req
                .client()
                .create_or_update(&secret("login"), label)
                .await?;
            ctx.log.push(format!(
                "{:?}: {} reads, {} creates, {} patches",
                written.operation,
                ctx.requests("GET") - reads,
                ctx.requests("POST") - created,
                ctx.requests("PATCH") - patched
            ));
        }
        Ok(Action::await_change())
    };
    let log = reconcile(work, async |_| {}).await;
    assert_eq!(
        log,
        [
            "Created: 1 reads, 1 creates, 0 patches",
            "Unchanged: 1 reads, 0 creates, 0 patches"
        ]
    );
}
