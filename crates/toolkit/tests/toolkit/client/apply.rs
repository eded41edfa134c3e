//! Server-side apply of objects and of their status.

use std::sync::Arc;

use bellerophon::client::{ConflictPolicy, OperationResult, Precondition, WriteOptions};
use bellerophon::prelude::*;
use k8s_openapi::api::batch::v1::{Job, JobCondition, JobStatus};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::ResourceExt;
use kube::api::{Patch, PatchParams};
use serde_json::json;

use super::{Context, named, reconcile};
use crate::harness::api;

/// Whether the field manager owns this field of the data.
fn owns(map: &ConfigMap, manager: &str, field: &str) -> bool {
    let owned = map
        .managed_fields()
        .iter()
        .filter(|entry| entry.manager.as_deref() == Some(manager));
    owned
        .filter_map(|entry| entry.fields_v1.as_ref())
        .any(|fields| fields.0["f:data"].get(format!("f:{field}")).is_some())
}

/// The ConfigMap `target` with this data.
fn target(data: &[(&str, &str)]) -> ConfigMap {
    let mut target = named("target");
    let entries = data
        .iter()
        .map(|(key, value)| (key.to_string(), value.to_string()));
    target.data = Some(entries.collect());
    target
}

/// Another field manager sets `theirs` and `both`.
async fn write_as_kubectl(client: &kube::Client) -> Result<(), kube::Error> {
    let theirs = Patch::Merge(json!({ "data": { "theirs": "1", "both": "2" } }));
    let params = PatchParams {
        field_manager: Some("kubectl".into()),
        ..PatchParams::default()
    };
    let maps = api::<ConfigMap>(client);
    maps.patch("target", &params, &theirs).await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn apply_sets_its_fields_removes_its_former_ones_and_keeps_others() {
    let work = async |ctx: Arc<Context>, req: Request<ConfigMap>| {
        let Some(map) = req.object() else {
            return Ok(Action::await_change());
        };
        let client = req.client();
        let log = |step: &str, map: &ConfigMap| {
            let data = map.data.clone().unwrap_or_default();
            ctx.log.push(format!("{step}: {data:?}"));
        };
        let mut desired = target(&[("ours", "1"), ("both", "1")]);
        // Fields that the server sets are not applied.
        desired.metadata.uid = map.uid();
        desired.metadata.resource_version = Some("1".into());
        let created = client.apply(&desired).await?.object()?;
        log("created", &created);
        let same = client.apply(&desired).await?;
        assert_eq!(
            created.metadata.resource_version,
            same.metadata().resource_version,
            "an equal object is not stored again"
        );
        write_as_kubectl(client.kube()).await?;
        let taken = client.apply(&target(&[("both", "3")])).await?.object()?;
        log("taken over", &taken);
        let manager = client.field_manager();
        assert!(owns(&taken, manager, "both"));
        assert!(!owns(&taken, "kubectl", "both"));
        assert!(!owns(&taken, manager, "theirs"));
        assert!(owns(&taken, "kubectl", "theirs"));
        Ok(Action::await_change())
    };
    let log = reconcile(work, async |_| {}).await;
    assert_eq!(
        log,
        [
            r#"created: {"both": "1", "ours": "1"}"#,
            r#"taken over: {"both": "3", "theirs": "1"}"#
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn apply_without_force_fails_on_fields_of_others() {
    let work = async |ctx: Arc<Context>, req: Request<ConfigMap>| {
        let client = req.client().with_options(WriteOptions {
            on_conflict: Some(ConflictPolicy::Fail),
            ..WriteOptions::default()
        });
        client.apply(&target(&[("both", "1")])).await?;
        write_as_kubectl(client.kube()).await?;
        let error = client.apply(&target(&[("both", "3")])).await.unwrap_err();
        ctx.log.push(format!("conflict {}", error.is_conflict()));
        Ok(Action::await_change())
    };
    let log = reconcile(work, async |_| {}).await;
    assert_eq!(log, ["conflict true"]);
}

/// A Job whose status no controller writes: its `managedBy` names another controller.
fn job() -> Job {
    let template = json!({
        "spec": { "containers": [{ "name": "c", "image": "i" }], "restartPolicy": "Never" },
    });
    let spec = json!({ "managedBy": "example.org/nobody", "template": template });
    let metadata = json!({ "name": "web", "namespace": "default" });
    serde_json::from_value(json!({ "metadata": metadata, "spec": spec })).unwrap()
}

#[tokio::test(start_paused = true)]
async fn apply_status_writes_nothing_but_the_status() {
    let work = async |ctx: Arc<Context>, req: Request<ConfigMap>| {
        let client = req.client();
        let log = |job: &Job| {
            let is_labelled = job.labels().contains_key("not");
            let status = job.status.clone().unwrap_or_default();
            let conditions = status.conditions.unwrap_or_default().len();
            ctx.log.push(format!(
                "labelled {is_labelled}, active {:?}, conditions {conditions}",
                status.active
            ));
        };
        let created = client.create(&job()).await?.object()?;
        let mut labelled = Job::clone(&created);
        labelled.labels_mut().insert("not".into(), "applied".into());
        let seen = JobCondition {
            type_: "example.org/Seen".into(),
            status: "True".into(),
            ..JobCondition::default()
        };
        let mut status = JobStatus {
            active: Some(3),
            conditions: Some(vec![seen]),
            ..JobStatus::default()
        };
        let written = client.apply_status(&labelled, &status).await?;
        log(&*written.object()?);
        status.active = None;
        let written = client.apply_status(&labelled, &status).await?;
        log(&*written.object()?);
        labelled.metadata.name = Some("missing".into());
        let error = client.apply_status(&labelled, &status).await.unwrap_err();
        assert!(error.is_not_found());
        ctx.log.push(error.to_string());
        Ok(Action::await_change())
    };
    let log = reconcile(work, async |_| {}).await;
    assert_eq!(
        log[..2],
        [
            "labelled false, active Some(3), conditions 1",
            "labelled false, active None, conditions 1"
        ]
    );
    assert!(
        log[2].starts_with("cannot apply the status of Job default/missing: "),
        "{}",
        log[2]
    );
}

#[tokio::test(start_paused = true)]
async fn equal_status_sends_no_request() {
    let work = async |ctx: Arc<Context>, req: Request<ConfigMap>| {
        let client = req.client();
        let mut job = client.create(&job()).await?.object()?;
        let status = JobStatus {
            active: Some(3),
            ..JobStatus::default()
        };
        for _ in 0..2 {
            let before = ctx.requests("PATCH");
            let written = client.apply_status(&*job, &status).await?;
            let sent = ctx.requests("PATCH") - before;
            ctx.log
                .push(format!("{:?} with {sent} requests", written.operation));
            job = written.object()?;
            assert_eq!(job.status.as_ref(), Some(&status));
        }
        Ok(Action::await_change())
    };
    let log = reconcile(work, async |_| {}).await;
    assert_eq!(
        log,
        ["Updated with 1 requests", "Unchanged with 0 requests"]
    );
}

#[tokio::test(start_paused = true)]
async fn create_or_apply_writes_only_the_object_it_was_planned_from() {
    let work = async |ctx: Arc<Context>, req: Request<ConfigMap>| {
        if req.object().is_none() {
            return Ok(Action::await_change());
        }
        let client = req.client();
        let maps = api::<ConfigMap>(client.kube());
        let desired = target(&[("ours", "1")]);
        let first = client.create_or_apply(None, &desired).await?;
        assert_eq!(first.operation, OperationResult::Created);
        let first = first.object()?;
        let error = client.create_or_apply(None, &desired).await.unwrap_err();
        assert!(error.is_conflict(), "{error}");

        let desired = target(&[("ours", "2")]);
        let second = client.create_or_apply(Some(&*first), &desired).await?;
        let second = second.object()?;
        assert_eq!(second.data, desired.data);
        let stale = client.create_or_apply(Some(&*first), &desired).await;
        assert!(stale.unwrap_err().is_conflict());

        maps.delete("target", &Default::default()).await?;
        let deleted = client.create_or_apply(Some(&*second), &desired).await;
        assert!(deleted.unwrap_err().is_conflict());
        let theirs = target(&[("theirs", "1")]);
        maps.create(&Default::default(), &theirs).await?;
        for precondition in [Precondition::Version, Precondition::Uid] {
            let options = WriteOptions {
                precondition: Some(precondition),
                ..WriteOptions::default()
            };
            let client = client.with_options(options);
            let recreated = client.create_or_apply(Some(&*second), &desired).await;
            assert!(recreated.is_err(), "{precondition:?}");
        }
        assert_eq!(maps.get("target").await?.data, theirs.data);
        ctx.log.push("checked");
        Ok(Action::await_change())
    };
    let log = reconcile(work, async |_| {}).await;
    assert_eq!(log[..1], ["checked"]);
}

#[tokio::test(start_paused = true)]
async fn field_of_the_creation_that_is_left_out_later_is_removed() {
    let work = async |ctx: Arc<Context>, req: Request<ConfigMap>| {
        if req.object().is_none() {
            return Ok(Action::await_change());
        }
        let client = req.client();
        let created = target(&[("kept", "1"), ("dropped", "1")]);
        let created = client.create_or_apply(None, &created).await?.object()?;
        let desired = target(&[("kept", "2")]);
        let applied = client.create_or_apply(Some(&*created), &desired).await?;
        assert_eq!(applied.object()?.data, desired.data);
        ctx.log.push("checked");
        Ok(Action::await_change())
    };
    let log = reconcile(work, async |_| {}).await;
    assert_eq!(log[..1], ["checked"]);
}
