//! The smallest useful controller: greets every ConfigMap labelled `greet`, and keeps it greeted.
//!
//! Run: `cargo run -p bellerophon --example smallest` (on an embedded server, with a sample object)
//! or `cargo run -p bellerophon --example smallest -- --kubeconfig FILE` (on any cluster, until Ctrl-C).
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

use std::error::Error;

use bellerophon::{
    Controller, InformerOptions, Manager, ManagerOptions, Outcome, ReconcileResult, Request,
    SharedInformer,
};
use k8s_openapi::api::core::v1::ConfigMap;
use kube::{Api, Client, Config, config::Kubeconfig};

async fn greet(client: Client, request: Request<ConfigMap>) -> ReconcileResult {
    println!("{}: reconciled because {}", request.key, request.causes);
    let Some(map) = request.object.as_deref() else {
        println!("{}: gone", request.key);
        return Ok(Outcome::Done);
    };
    let maps = Api::namespaced(client, request.key.namespace().unwrap_or("default"));
    let greeting = format!("hello, {}", request.key.name());
    let greet = |map: &mut ConfigMap| {
        _ = map
            .data
            .get_or_insert_default()
            .insert("greeting".into(), greeting)
    };
    let (_, done) = request
        .writes()
        .create_or_patch(&maps, Some(map), ConfigMap::default(), greet)
        .await?;
    println!("{}: {done:?}", request.key);
    Ok(Outcome::Done)
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args()
        .skip_while(|argument| argument != "--kubeconfig")
        .skip(1);
    let (client, embedded) = match arguments.next() {
        Some(file) => (
            Client::try_from(
                Config::from_custom_kubeconfig(Kubeconfig::read_from(file)?, &Default::default())
                    .await?,
            )?,
            None,
        ),
        None => {
            let server = bellerophon_apiserver::ApiServer::builder().start().await?;
            (server.client(), Some(server))
        }
    };
    let maps = SharedInformer::new(
        client.clone(),
        (),
        InformerOptions {
            labels: Some("greet".into()),
            ..InformerOptions::default()
        },
    );
    let greeter = client.clone();
    let controller =
        Controller::of(&maps).reconcile_with(move |request| greet(greeter.clone(), request));
    let manager = Manager::new(client.clone(), ManagerOptions::default())
        .cache(&maps)
        .controller(controller);
    if embedded.is_none() {
        return Ok(manager.run_until_signal().await?);
    }
    let sample = serde_json::json!({ "metadata": { "name": "icarus", "labels": { "greet": "" } } });
    Api::namespaced(client, "default")
        .create(
            &Default::default(),
            &serde_json::from_value::<ConfigMap>(sample)?,
        )
        .await?;
    let stop = tokio_util::sync::CancellationToken::new();
    let greeted = async {
        while !maps.lister().list().iter().any(|map| map.data.is_some()) {
            tokio::task::yield_now().await;
        }
        stop.cancel();
    };
    Ok(tokio::join!(manager.run(stop.clone()), greeted).0?)
}
