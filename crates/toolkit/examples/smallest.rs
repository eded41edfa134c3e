//! The smallest useful controller: writes a greeting into every ConfigMap with the label `greet`.
//!
//! Run: `cargo run -p bellerophon --example smallest` (on an embedded API server, with a sample
//! object) or `cargo run -p bellerophon --example smallest -- --kubeconfig FILE` (on any cluster,
//! until Ctrl-C).
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

mod common; // the cluster of --kubeconfig, or an embedded API server

use bellerophon::informer::InformerOptions;
use bellerophon::prelude::*;
use common::{BoxError, Cluster, labelled};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::Api;

async fn greet(req: Request<ConfigMap>) -> Result<Action, Error> {
    println!("{}: reconciled because {}", req.key(), req.causes());
    let Some(map) = req.object() else {
        return Ok(Action::await_change());
    };
    let greet = |new: &mut ConfigMap| {
        let greeting = format!("hello, {}", req.key().name());
        new.data
            .get_or_insert_default()
            .insert("greeting".into(), greeting);
    };
    let written = req.client().create_or_update(map, greet).await?;
    println!("{}: {:?}", req.key(), written.operation);
    Ok(Action::await_change())
}

#[tokio::main]
async fn main() -> Result<(), BoxError> {
    let cluster = Cluster::from_args().await?;
    let mut mgr = cluster.manager();
    let maps = mgr.informer(InformerOptions::labels("greet"));
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .reconcile(greet);
    cluster
        .run(mgr, |api| demonstrate(api, maps.lister()))
        .await
}

/// On the embedded server: creates an object and waits for its greeting.
async fn demonstrate(api: Api<ConfigMap>, maps: Lister<ConfigMap>) -> Result<(), BoxError> {
    let icarus = labelled("icarus", "greet", "")?;
    let icarus = api.create(&Default::default(), &icarus).await?;
    let is_greeted = |map: Option<&ConfigMap>| map.is_some_and(|map| map.data.is_some());
    maps.await_condition(&ObjectKey::from_object(&icarus), is_greeted)
        .await;
    Ok(())
}
