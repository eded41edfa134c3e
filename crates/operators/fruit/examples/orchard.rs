//! Kubernetes as a data store: fills, lists in pages, watches and aggregates fruits through a typed client.
//!
//! Run: `cargo run --release -p bellerophon-fruit --example orchard` (10,000 fruits on an embedded server)
//! or `cargo run --release -p bellerophon-fruit --example orchard -- --kubeconfig FILE` (in namespace `orchard` of any
//! cluster that has the kind: `bellerophon manifests fruit --crds-only | kubectl apply -f -`).
#![expect(clippy::print_stdout, reason = "an example shows what it does")]

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

type Outcome<T> = Result<T, Box<dyn Error>>;

#[tokio::main]
async fn main() -> Outcome<()> {
    let mut arguments = std::env::args()
        .skip_while(|argument| argument != "--kubeconfig")
        .skip(1);
    // The server lives as long as this binding.
    let (client, _server) = match arguments.next() {
        Some(file) => (
            Client::try_from(
                Config::from_custom_kubeconfig(Kubeconfig::read_from(file)?, &Default::default())
                    .await?,
            )?,
            None,
        ),
        None => {
            let server = bellerophon_apiserver::ApiServer::builder().start().await?;
            for definition in (OPERATOR.definitions)() {
                Api::<CustomResourceDefinition>::all(server.client())
                    .create(&Default::default(), &definition)
                    .await?;
            }
            (server.client(), Some(server))
        }
    };
    let orchard: Namespace =
        serde_json::from_value(serde_json::json!({"metadata": {"name": NAMESPACE}}))?;
    Api::all(client.clone())
        .create(&Default::default(), &orchard)
        .await?;
    let fruits = Api::<Fruit>::namespaced(client.clone(), NAMESPACE);
    refuse(&fruits).await?;
    fill(&fruits).await?;
    page(&fruits).await?;
    aggregate(client, &fruits).await?;
    fruits
        .delete_collection(&DeleteParams::default(), &ListParams::default())
        .await?;
    Ok(())
}

/// What the server says of a fruit that breaks the rules.
async fn refuse(fruits: &Api<Fruit>) -> Outcome<()> {
    for (sweetness, weight, comment) in [(true, 0, ""), (false, 5000, "")] {
        let bad = Fruit::new(
            "bad",
            FruitSpec {
                sweetness,
                weight,
                comment: comment.into(),
            },
        );
        match fruits.create(&Default::default(), &bad).await {
            Err(kube::Error::Api(status)) if status.code == 422 => {
                println!("refused: {}", status.message)
            }
            Err(error) => return Err(error.into()),
            Ok(_) => return Err("a bad fruit was taken".into()),
        }
    }
    Ok(())
}

async fn fill(fruits: &Api<Fruit>) -> Outcome<()> {
    let began = Instant::now();
    let made = |i: usize| async move {
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
        .map(made)
        .buffer_unordered(16)
        .try_for_each(|_| async { Ok(()) })
        .await?;
    println!("filled: {FRUITS} fruits in {:?}", began.elapsed());
    Ok(())
}

async fn page(fruits: &Api<Fruit>) -> Outcome<()> {
    let began = Instant::now();
    let (mut pages, mut found, mut sweet) = (0, 0, 0);
    let mut params = ListParams::default().limit(PAGE);
    loop {
        let page = fruits.list(&params).await?;
        pages += 1;
        found += page.items.len();
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
        "listed: {found} fruits in {pages} pages, {sweet} of them sweet, in {:?}",
        began.elapsed()
    );
    let chosen = fruits
        .list(&ListParams::default().fields("spec.sweetness=true"))
        .await?;
    println!(
        "selected by the server: {} sweet fruits",
        chosen.items.len()
    );
    Ok(())
}

async fn aggregate(client: Client, fruits: &Api<Fruit>) -> Outcome<()> {
    let began = Instant::now();
    let informer = SharedInformer::<Fruit>::new(client, (), InformerOptions::default());
    informer.add_index("sweetness", |fruit| vec![fruit.spec.sweetness.to_string()])?;
    let (stop, running) = (CancellationToken::new(), informer.clone());
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
        "cached: {} fruits, the sweet ones weigh {weight} g, in {:?}",
        lister.len(),
        began.elapsed()
    );
    fruits
        .delete("fruit-00000", &DeleteParams::default())
        .await?;
    while lister.len() == FRUITS {
        tokio::task::yield_now().await;
    }
    println!("watched: one was eaten, {} are left", lister.len());
    stop.cancel();
    task.await??;
    Ok(())
}
