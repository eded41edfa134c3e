//! Reads from the server, past the caches.

use std::sync::Arc;

use bellerophon::client::ReconcileClient;
use bellerophon::prelude::*;
use k8s_openapi::api::core::v1::ConfigMap;
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
