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

use bellerophon::{InformerOptions, SharedInformer};
use bellerophon_fruit::{Fruit, FruitSpec, OPERATOR};
use futures_util::{StreamExt as _, TryStreamExt as _, stream};
use k8s_openapi::{
    api::core::v1::Namespace,
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Config,
    api::{DeleteParams, ListParams},
    config::Kubeconfig,
};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

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
            let server = bellerophon_apiserver::ApiServer::builder().start().await?;
            let crds = Api::<CustomResourceDefinition>::all(server.client());
            for crd in (OPERATOR.crds)() {
                crds.create(&Default::default(), &crd).await?;
            }
            (server.client(), Some(server))
        }
    };
    let mut namespace = Namespace::default();
    namespace.metadata.name = Some(NAMESPACE.to_owned());
    Api::all(client.clone())
        .create(&Default::default(), &namespace)
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
    let informer = SharedInformer::<Fruit>::new(client, (), InformerOptions::default());
    informer.add_index("sweetness", |fruit| vec![fruit.spec.sweetness.to_string()])?;
    let stop = CancellationToken::new();
    let running = informer.clone();
    let task = tokio::spawn({
        let stop = stop.clone();
        async move { running.run(stop).await }
    });
    informer.wait_for_sync().await?;
    let lister = informer.lister();
    let weight: i64 = lister
        .by_index("sweetness", "true")?
        .iter()
        .map(|fruit| fruit.spec.weight)
        .sum();
    println!(
        "cached: {} fruits, total weight of the sweet ones {weight} g, in {:?}",
        lister.len(),
        start.elapsed()
    );
    fruits
        .delete("fruit-00000", &DeleteParams::default())
        .await?;
    while lister.len() == FRUITS {
        tokio::task::yield_now().await;
    }
    println!("watched: 1 fruit was deleted, {} are left", lister.len());
    stop.cancel();
    task.await??;
    Ok(())
}
