//! Predicates: which changes lead to a reconcile.

use std::sync::Arc;

use bellerophon::prelude::*;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::ResourceExt;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::harness::{api, create, delete, fixture, log_state, run, secret, set_data, settle};

#[tokio::test(start_paused = true)]
async fn predicate_never_drops_a_deletion() {
    let (_server, client, log, mut mgr, maps) = fixture().await;
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .predicate(Predicate::filter(|map: &ConfigMap| {
            map.name_any() != "filtered"
        }))
        .predicate(Predicate::labels_changed())
        .context(Arc::new(log.clone()))
        .reconcile(log_state);
    run(mgr, async {
        for name in ["filtered", "other"] {
            create(&client, name).await;
            settle().await;
            set_data(&client, name, "a", "b").await;
            settle().await;
            delete(&client, name).await;
            settle().await;
        }
    })
    .await;
    assert_eq!(
        log.all(),
        ["filtered deleted", "other exists", "other deleted"]
    );
}

#[tokio::test(start_paused = true)]
async fn deletions_predicate_passes_deletions_only() {
    let (_server, client, log, mut mgr, maps) = fixture().await;
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .predicate(Predicate::deletions())
        .watches::<Secret>(|secret| vec![ObjectKey::from_object(secret)])
        .predicate(Predicate::deletions())
        .context(Arc::new(log.clone()))
        .reconcile(log_state);
    run(mgr, async {
        create(&client, "map").await;
        set_data(&client, "map", "a", "b").await;
        let secrets = api::<Secret>(&client);
        let created = secrets
            .create(&PostParams::default(), &secret("secret"))
            .await;
        created.unwrap();
        let label = Patch::Merge(json!({ "metadata": { "labels": { "a": "b" } } }));
        let patched = secrets
            .patch("secret", &PatchParams::default(), &label)
            .await;
        patched.unwrap();
        settle().await;
        assert_eq!(log.take(), [""; 0]);
        delete(&client, "map").await;
        settle().await;
        let deleted = secrets.delete("secret", &DeleteParams::default()).await;
        deleted.unwrap();
        settle().await;
    })
    .await;
    assert_eq!(log.all(), ["map deleted", "secret deleted"]);
}

/// Predicates and informers qualify the kind named last.
#[tokio::test(start_paused = true)]
async fn predicate_of_a_watched_kind_leaves_the_reconciled_kind_alone() {
    let (_server, client, log, mut mgr, maps) = fixture().await;
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .watches::<Secret>(|secret| vec![ObjectKey::from_object(secret)])
        .predicate(Predicate::filter(|_: &Secret| false))
        .context(Arc::new(log.clone()))
        .reconcile(log_state);
    run(mgr, async {
        create(&client, "map").await;
        let secrets = api::<Secret>(&client);
        let created = secrets
            .create(&PostParams::default(), &secret("secret"))
            .await;
        created.unwrap();
        settle().await;
    })
    .await;
    assert_eq!(log.all(), ["map exists"]);
}
