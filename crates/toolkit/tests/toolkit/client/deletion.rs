//! Deletions and finalizers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use bellerophon::client::{Precondition, WriteOptions};
use bellerophon::finalizer;
use bellerophon::prelude::*;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;

use super::{Context, reconcile, reconcile_as, set};
use crate::harness::{Fault, delete, faulty_client, server, set_data};

#[tokio::test(start_paused = true)]
async fn finalizer_is_stored_before_apply_and_removed_after_cleanup() {
    let work = async |ctx: Arc<Context>, req: Request<ConfigMap>| {
        let Some(map) = req.object() else {
            ctx.log.push("deleted");
            return Ok(Action::await_change());
        };
        let attempt = req.attempt();
        let work = async |event| {
            let finalizers = map.finalizers();
            ctx.log
                .push(format!("{event:?} with {finalizers:?}, attempt {attempt}"));
            match (event, attempt) {
                (finalizer::Event::Cleanup, 1) => Err(Error::retry("not yet")),
                _ => Ok(Action::await_change()),
            }
        };
        let client = req.client();
        client.finalizer(map, "example.org/test", work).await
    };
    let log = reconcile(work, async |client| delete(&client, "one").await).await;
    let ours = r#"with ["example.org/test"]"#;
    assert_eq!(
        log,
        [
            format!("Apply {ours}, attempt 1"),
            format!("Cleanup {ours}, attempt 1"),
            format!("Cleanup {ours}, attempt 2"),
            "deleted".into()
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn finalizer_stays_while_cleanup_is_requeued() {
    let work = async |ctx: Arc<Context>, req: Request<ConfigMap>| {
        let Some(map) = req.object() else {
            ctx.log.push("deleted");
            return Ok(Action::await_change());
        };
        let calls = ctx.log.all().len();
        let work = async |event| {
            ctx.log.push(format!("{event:?}"));
            Ok(match (event, calls) {
                (finalizer::Event::Cleanup, 1) => {
                    Action::requeue_after(std::time::Duration::from_secs(1))
                }
                _ => Action::await_change(),
            })
        };
        let client = req.client();
        client.finalizer(map, "example.org/test", work).await
    };
    let log = reconcile(work, async |client| delete(&client, "one").await).await;
    assert_eq!(log, ["Apply", "Cleanup", "Cleanup", "deleted"]);
}

#[tokio::test(start_paused = true)]
async fn object_that_changed_is_neither_patched_nor_deleted() {
    let work = async |ctx: Arc<Context>, req: Request<ConfigMap>| {
        let Some(map) = req.object() else {
            return Ok(Action::await_change());
        };
        let client = req.client();
        if map.data.is_none() {
            let patched = client.create_or_update(map, set("a", "b")).await;
            let deleted = client.delete(map).await;
            let conflicts = [patched.err(), deleted.err()]
                .map(|error| error.is_some_and(|error| error.is_conflict()));
            ctx.log.push(format!("{conflicts:?}"));
            return Ok(Action::await_change());
        }
        client.delete(map).await?;
        client.delete(map).await?;
        ctx.log.push("deleted once, not found the second time");
        Ok(Action::await_change())
    };
    let server = server().await;
    let other = server.client();
    let is_first = AtomicBool::new(true);
    let client = faulty_client(&server, move |request| {
        let is_patch = request.method() == http::Method::PATCH;
        if !is_patch || !is_first.swap(false, Ordering::Relaxed) {
            return Fault::None;
        }
        // Another client is faster: the cache cannot have its write before the patch is made.
        let other = other.clone();
        Fault::After(Box::pin(async move {
            set_data(&other, "one", "c", "d").await;
        }))
    });
    let log = reconcile_as(&server, client, work, async |_| {}).await;
    assert_eq!(
        log,
        ["[true, true]", "deleted once, not found the second time"]
    );
}

#[tokio::test(start_paused = true)]
async fn precondition_of_the_uid_deletes_any_version() {
    let work = async |ctx: Arc<Context>, req: Request<ConfigMap>| {
        let Some(map) = req.object() else {
            ctx.log.push("deleted");
            return Ok(Action::await_change());
        };
        set_data(req.client().kube(), "one", "c", "d").await;
        let any_version = WriteOptions {
            precondition: Some(Precondition::Uid),
            ..WriteOptions::default()
        };
        req.client().with_options(any_version).delete(map).await?;
        Ok(Action::await_change())
    };
    let log = reconcile(work, async |_| {}).await;
    assert_eq!(log, ["deleted"]);
}
