//! Reads from the server, past the caches.

use std::sync::Arc;

use bellerophon::client::{Precondition, ReconcileClient, WriteOptions};
use bellerophon::prelude::*;
use k8s_openapi::api::core::v1::ConfigMap;
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::ResourceExt;
use kube::api::ListParams;

use super::{Context, reconcile};
use crate::harness::{create, server, set_data};

#[tokio::test(start_paused = true)]
async fn get_returns_what_the_server_has() {
    let work = async |ctx: Arc<Context>, req: Request<ConfigMap>| {
        let Some(map) = req.object().filter(|map| map.data.is_none()) else {
            return Ok(Action::await_change());
        };
        set_data(req.client().kube(), "one", "a", "b").await;
        let newest = req.client().get::<ConfigMap>(req.key()).await?;
        let newest = newest.expect("it exists");
        ctx.log.push(format!("{:?} {:?}", map.data, newest.data));
        let missing = ObjectKey::namespaced("default", "missing");
        let missing = req.client().get::<ConfigMap>(&missing).await?;
        ctx.log
            .push(format!("{:?}", missing.map(|map| map.name_any())));
        Ok(Action::await_change())
    };
    let log = reconcile(work, async |_| {}).await;
    assert_eq!(log, [r#"None Some({"a": "b"})"#, "None"]);
}

#[tokio::test(start_paused = true)]
async fn list_follows_pages_to_the_end() {
    let server = server().await;
    let client = server.client();
    for name in ["a", "b", "c", "d", "e"] {
        create(&client, name).await;
    }
    let client = ReconcileClient::new(client, "test");
    let params = ListParams::default().labels("test").limit(2);
    let listed = client.list::<ConfigMap>(Some("default"), &params).await;
    let listed = listed.unwrap();
    let names: Vec<_> = listed.iter().map(|map| map.name_any()).collect();
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
}

/// A name used to be written into the path as it is, so that it could name another object.
#[tokio::test(start_paused = true)]
async fn names_and_namespaces_never_form_another_path() {
    let server = server().await;
    create(&server.client(), "one").await;
    let client = ReconcileClient::new(server.client(), "test");
    for (namespace, name) in [
        ("default", "../configmaps/one"),
        ("default", "x/../one"),
        ("default", "one?x="),
        ("default", "one#x"),
        ("default", "%6fne"),
        ("default", ".."),
        ("default", "."),
        ("default/configmaps/one?x=", "x"),
        ("x/../default", "one"),
        ("%64efault", "one"),
    ] {
        let key = ObjectKey::namespaced(namespace, name);
        let found = client.get::<ConfigMap>(&key).await;
        let name = found.map(|map| map.map(|map| map.name_any()));
        assert!(matches!(name, Ok(None) | Err(_)), "{key}: {name:?}");
        let mut map = ConfigMap::default();
        map.metadata.namespace = Some(namespace.into());
        map.metadata.name = Some(key.name().into());
        let all = WriteOptions {
            precondition: Some(Precondition::None),
            ..WriteOptions::default()
        };
        // Whatever the server responds, the object below is not deleted.
        _ = client.with_options(all).delete(&map).await;
        _ = client
            .list::<ConfigMap>(Some(namespace), &ListParams::default())
            .await;
    }
    let key = ObjectKey::namespaced("default", "one");
    let found = client.get::<ConfigMap>(&key).await.unwrap();
    assert!(found.is_some());
}

#[tokio::test(start_paused = true)]
async fn names_with_special_characters_are_escaped() {
    let server = server().await;
    let client = ReconcileClient::new(server.client(), "test");
    for name in ["system:my-role", "my role?x=1#y", "rôle"] {
        let mut role = ClusterRole::default();
        role.metadata.name = Some(name.into());
        client.create(&role).await.unwrap();
        let found = client.get::<ClusterRole>(&ObjectKey::cluster(name)).await;
        let found = found.unwrap().expect("it exists");
        assert_eq!(found.name_any(), name);
        client.delete(&*found).await.unwrap();
        let found = client.get::<ClusterRole>(&ObjectKey::cluster(name)).await;
        assert!(found.unwrap().is_none(), "{name}");
    }
}
