//! What enqueues a key: changes, children, timers, streams, and callers outside of the cluster.

use std::sync::Arc;
use std::time::Duration;

use bellerophon::prelude::*;
use futures_util::stream;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::{DeleteParams, PostParams};
use tokio::sync::mpsc;
use tokio::time::sleep;

use crate::harness::{
    Log, api, create, delete, fixture, manager, maps, run, secret, server, set_data, settle, state,
};

/// Logs name and causes.
async fn log_causes(log: Arc<Log>, req: Request<ConfigMap>) -> Result<Action, Error> {
    log.push(format!("{} because {}", req.key().name(), req.causes()));
    Ok(Action::await_change())
}

#[tokio::test(start_paused = true)]
async fn every_change_leads_to_a_reconcile_on_its_state() {
    let server = server().await;
    let client = server.client();
    let log = Log::default();
    create(&client, "early").await;
    let mut mgr = manager(&client);
    let maps = maps(&mut mgr);
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .context(Arc::new(log.clone()))
        .reconcile(async |log: Arc<Log>, req: Request<ConfigMap>| {
            let events: Vec<_> = req
                .causes()
                .iter()
                .map(|cause| cause.event.as_str())
                .collect();
            log.push(format!("{} because {}", state(&req), events.join("+")));
            Ok(Action::await_change())
        });
    run(mgr, async {
        settle().await;
        create(&client, "late").await;
        settle().await;
        set_data(&client, "late", "a", "b").await;
        settle().await;
        delete(&client, "late").await;
        settle().await;
    })
    .await;
    let expected = [
        "early exists because added",
        "late exists because added",
        "late exists because updated",
        "late deleted because deleted",
    ];
    assert_eq!(log.all(), expected);
}

#[tokio::test(start_paused = true)]
async fn change_of_a_child_enqueues_its_controlling_owner() {
    let server = server().await;
    let client = server.client();
    let log = Log::default();
    let owner = create(&client, "owner").await;
    let mut mgr = manager(&client);
    let maps = maps(&mut mgr);
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .owns::<Secret>()
        .context(Arc::new(log.clone()))
        .reconcile(log_causes);
    run(mgr, async {
        settle().await;
        log.take();
        for (name, controls) in [("child", true), ("other", false)] {
            let mut child = secret(name);
            set_controller_reference(&owner, &mut child).unwrap();
            for reference in child.metadata.owner_references.iter_mut().flatten() {
                reference.controller = Some(controls);
                reference.block_owner_deletion = None;
            }
            let secrets = api::<Secret>(&client);
            secrets
                .create(&PostParams::default(), &child)
                .await
                .unwrap();
            settle().await;
        }
        let secrets = api::<Secret>(&client);
        let deleted = secrets.delete("child", &DeleteParams::default()).await;
        deleted.unwrap();
        settle().await;
    })
    .await;
    let calls = log.take();
    let without_versions: Vec<_> = calls
        .iter()
        .map(|call| call.split(" at ").next().unwrap())
        .collect();
    assert_eq!(
        without_versions,
        [
            "owner because Secret default/child added",
            "owner because Secret default/child deleted"
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn mapping_function_is_called_with_the_old_and_the_new_state() {
    let (_server, client, log, mut mgr, maps) = fixture().await;
    let target = |secret: &Secret| {
        let targets = secret.metadata.labels.iter().flatten();
        let targets = targets.filter(|(name, _)| *name == "target");
        targets
            .map(|(_, target)| ObjectKey::in_namespace_of(secret, target))
            .collect()
    };
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .watches::<Secret>(target)
        .context(Arc::new(log.clone()))
        .reconcile(async |log: Arc<Log>, req: Request<ConfigMap>| {
            log.push(req.key().name());
            Ok(Action::await_change())
        });
    run(mgr, async {
        let secrets = api::<Secret>(&client);
        let mut mapped = secret("mapped");
        mapped.metadata.labels = Some([("target".into(), "old".into())].into());
        let created = secrets.create(&PostParams::default(), &mapped).await;
        let mut mapped = created.unwrap();
        settle().await;
        assert_eq!(log.take(), ["old"]);
        mapped.metadata.labels = Some([("target".into(), "new".into())].into());
        let replaced = secrets
            .replace("mapped", &PostParams::default(), &mapped)
            .await;
        replaced.unwrap();
        settle().await;
        assert_eq!(log.take(), ["new", "old"]);
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn reason_of_a_requeue_becomes_the_next_cause() {
    let (_server, client, log, mut mgr, maps) = fixture().await;
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .context(Arc::new(log.clone()))
        .reconcile(async |log: Arc<Log>, req: Request<ConfigMap>| {
            let is_first = log.all().is_empty();
            log.push(req.causes().to_string());
            Ok(match is_first {
                true => Action::requeue_after(Duration::from_secs(10)).reason("no DNS record yet"),
                false => Action::await_change(),
            })
        });
    run(mgr, async {
        create(&client, "icarus").await;
        sleep(Duration::from_secs(9)).await;
        assert_eq!(log.all().len(), 1);
        settle().await;
        assert_eq!(
            log.all()[1..],
            ["ConfigMap default/icarus retry: no DNS record yet"]
        );
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn keys_of_a_stream_are_reconciled_as_they_come() {
    let server = server().await;
    let client = server.client();
    let log = Log::default();
    let (sender, receiver) = mpsc::channel::<ObjectKey>(8);
    let keys = stream::unfold(receiver, async |mut receiver| {
        let key = receiver.recv().await?;
        Some((key, receiver))
    });
    let mut mgr = manager(&client);
    let maps = maps(&mut mgr);
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .reconcile_on(keys)
        .context(Arc::new(log.clone()))
        .reconcile(log_causes);
    run(mgr, async {
        settle().await;
        for name in ["icarus", "daedalus"] {
            let key = ObjectKey::namespaced("default", name);
            sender.send(key).await.unwrap();
            settle().await;
        }
        drop(sender);
        create(&client, "perdix").await;
        settle().await;
    })
    .await;
    let calls = log.take();
    assert_eq!(
        calls[..2],
        [
            "icarus because ConfigMap default/icarus generic: event of a stream",
            "daedalus because ConfigMap default/daedalus generic: event of a stream"
        ]
    );
    assert_eq!(
        calls.len(),
        3,
        "changes still count once the stream has ended"
    );
}

#[tokio::test(start_paused = true)]
async fn reason_of_an_enqueue_is_a_cause() {
    let (_server, _client, log, mut mgr, maps) = fixture().await;
    let handle = mgr
        .controller::<ConfigMap>()
        .informer(&maps)
        .name("heroes")
        .context(Arc::new(log.clone()))
        .reconcile(log_causes);
    assert_eq!(handle.name(), "heroes");
    let icarus = || ObjectKey::namespaced("default", "icarus");
    handle.enqueue(icarus(), "requested at start");
    run(mgr, async {
        log.wait_for(|lines| lines.len() == 1).await;
        handle.enqueue(icarus(), "certificate expires");
        handle.enqueue(icarus(), "certificate expires");
        log.wait_for(|lines| lines.len() == 2).await;
        settle().await;
    })
    .await;
    assert_eq!(
        log.all(),
        [
            "icarus because ConfigMap default/icarus generic: requested at start",
            "icarus because ConfigMap default/icarus generic: certificate expires"
        ],
        "equal requests before the reconcile lead to one"
    );
}
