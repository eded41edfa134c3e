//! A custom resource as a data store: creates 10,000 Fruits, lists them in pages, and watches and
//! aggregates them through an informer.
//!
//! On an embedded API server:
//! `cargo run --release -p bellerophon-fruit --example orchard`
//!
//! In the namespace `orchard` of another cluster, after
//! `bellerophon manifests fruit --crds-only | kubectl apply -f -`:
//! `cargo run --release -p bellerophon-fruit --example orchard -- --kubeconfig FILE`
#![expect(clippy::print_stdout, reason = "an example prints its results")]

use std::error::Error;

use bellerophon::{
    ObjectKey,
    client::ReconcileClient,
    manager::{Manager, ManagerOptions},
};
use bellerophon_apiserver::ApiServer;
use bellerophon_fruit::{Fruit, FruitSpec, OPERATOR};
use bellerophon_operator::define;
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::api::core::v1::Namespace;
use kube::{
    Api, Client, Config,
    api::{DeleteParams, ListParams},
    config::Kubeconfig,
};
use tokio::time::Instant;

const FRUITS: usize = 10_000;
const PAGE: u32 = 500;
const NAMESPACE: &str = "orchard";

type ExampleResult = Result<(), Box<dyn Error>>;

#[tokio::main]
async fn main() -> ExampleResult {
    let mut arguments = std::env::args()
        .skip_while(|argument| argument != "--kubeconfig")
        .skip(1);
    // The embedded server lives as long as this binding.
    let (client, _server) = match arguments.next() {
        Some(file) => {
            let kubeconfig = Kubeconfig::read_from(file)?;
            let config = Config::from_custom_kubeconfig(kubeconfig, &Default::default()).await?;
            (Client::try_from(config)?, None)
        }
        None => {
            let server = ApiServer::builder().start().await?;
            define(&server.client(), &[OPERATOR]).await?;
            (server.client(), Some(server))
        }
    };
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(NAMESPACE.to_owned());
    ReconcileClient::new(client.clone(), "orchard")
        .create(&namespace)
        .await?;
    let fruits = Api::<Fruit>::namespaced(client.clone(), NAMESPACE);
    create_invalid(&fruits).await?;
    create(&fruits).await?;
    list(&fruits).await?;
    aggregate(client, &fruits).await?;
    fruits
        .delete_collection(&DeleteParams::default(), &ListParams::default())
        .await?;
    Ok(())
}

/// Prints the validation errors of invalid Fruits.
async fn create_invalid(fruits: &Api<Fruit>) -> ExampleResult {
    for (sweetness, weight, comment) in [(true, 0, ""), (false, 5000, "")] {
        let invalid = Fruit::new(
            "invalid",
            FruitSpec {
                sweetness,
                weight,
                comment: comment.into(),
            },
        );
        match fruits.create(&Default::default(), &invalid).await {
            Err(kube::Error::Api(status)) if status.code == 422 => {
                println!("rejected: {}", status.message)
            }
            Err(error) => return Err(error.into()),
            Ok(_) => return Err("an invalid fruit was accepted".into()),
        }
    }
    Ok(())
}

async fn create(fruits: &Api<Fruit>) -> ExampleResult {
    let start = Instant::now();
    let create_one = |i: usize| async move {
        let spec = FruitSpec {
            sweetness: i.is_multiple_of(3),
            weight: 50 + (i % 400) as i64,
            comment: String::new(),
        };
        fruits
            .create(
                &Default::default(),
                &Fruit::new(&format!("fruit-{i:05}"), spec),
            )
            .await
    };
    stream::iter(0..FRUITS)
        .map(create_one)
        .buffer_unordered(16)
        .try_for_each(|_| async { Ok(()) })
        .await?;
    println!("created: {FRUITS} fruits in {:?}", start.elapsed());
    Ok(())
}

async fn list(fruits: &Api<Fruit>) -> ExampleResult {
    let start = Instant::now();
    let mut pages = 0;
    let mut count = 0;
    let mut sweet = 0;
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = fruits.list(&params).await?;
        pages += 1;
        count += page.items.len();
        sweet += page
            .items
            .iter()
            .filter(|fruit| fruit.spec.sweetness)
            .count();
        match page.metadata.continue_ {
            Some(token) if !token.is_empty() => params = params.continue_token(&token),
            _ => break,
        }
    }
    println!(
        "listed: {count} fruits in {pages} pages, {sweet} of them sweet, in {:?}",
        start.elapsed()
    );
    let selected = fruits
        .list(&ListParams::default().fields("spec.sweetness=true"))
        .await?;
    println!(
        "listed by field selector: {} sweet fruits",
        selected.items.len()
    );
    Ok(())
}

async fn aggregate(client: Client, fruits: &Api<Fruit>) -> ExampleResult {
    let start = Instant::now();
    let mut mgr = Manager::new(client, ManagerOptions::default());
    let lister = mgr.lister::<Fruit>();
    let by_sweetness = mgr.index("sweetness", |fruit: &Fruit| {
        vec![fruit.spec.sweetness.to_string()]
    });
    let mut running = mgr.start();
    running.ready().await?;
    let sweet = by_sweetness.get("true");
    let weight: i64 = sweet.iter().map(|fruit| fruit.spec.weight).sum();
    println!(
        "cached: {} fruits, total weight of the sweet ones {weight} g, in {:?}",
        lister.len(),
        start.elapsed()
    );
    let first = ObjectKey::namespaced(NAMESPACE, "fruit-00000");
    fruits
        .delete(first.name(), &DeleteParams::default())
        .await?;
    lister
        .await_condition(&first, |fruit| fruit.is_none())
        .await;
    println!("watched: 1 fruit was deleted, {} are left", lister.len());
    running.stop().await?;
    Ok(())
}
