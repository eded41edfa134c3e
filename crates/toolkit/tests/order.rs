//! Promises about whose turn it is: between objects, between namespaces.
#![expect(
    clippy::unwrap_used,
    reason = "a failed expectation in a test is the failure of the test"
)]

mod harness;

use std::time::Duration;

use bellerophon::{
    Controller, ControllerOptions, Manager, ManagerOptions, Order, Outcome, Request,
};
use bellerophon_apiserver::ApiServer;
use harness::{Story, map, maps, run, settle};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{Api, PostParams};
use tokio::time::sleep;

/// The place at which the one object of a quiet namespace is served, after thirty of a busy one.
async fn place_of_the_quiet_one(order: Order) -> usize {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let (client, story) = (server.client(), Story::default());
    for name in ["busy", "quiet"] {
        let namespace: Namespace =
            serde_json::from_value(serde_json::json!({ "metadata": { "name": name } })).unwrap();
        Api::<Namespace>::all(client.clone())
            .create(&PostParams::default(), &namespace)
            .await
            .unwrap();
    }
    let (maps, noted) = (maps(&client), story.clone());
    let options = ControllerOptions {
        order,
        ..ControllerOptions::default()
    };
    let controller = Controller::of(&maps).with_options(options).reconcile_with(
        move |request: Request<ConfigMap>| {
            noted.note(request.key.to_string());
            async {
                sleep(Duration::from_secs(1)).await;
                Ok(Outcome::Done)
            }
        },
    );
    run(
        Manager::new(client.clone(), ManagerOptions::default())
            .cache(&maps)
            .controller(controller),
        async {
            settle().await;
            let create = async |namespace: &str, name: &str| {
                let api = Api::<ConfigMap>::namespaced(client.clone(), namespace);
                api.create(&PostParams::default(), &map(name))
                    .await
                    .unwrap();
            };
            for i in 0..30 {
                create("busy", &format!("map-{i:02}")).await;
            }
            create("quiet", "only").await;
            sleep(Duration::from_secs(60)).await;
        },
    )
    .await;
    let served = story.all();
    let busy: Vec<_> = served
        .iter()
        .filter(|key| key.starts_with("busy/"))
        .cloned()
        .collect();
    assert_eq!(
        busy,
        (0..30)
            .map(|i| format!("busy/map-{i:02}"))
            .collect::<Vec<_>>(),
        "in order within a namespace"
    );
    served.iter().position(|key| key == "quiet/only").unwrap()
}

#[tokio::test(start_paused = true)]
async fn quiet_namespace_waits_for_all_or_for_its_turn() {
    assert_eq!(place_of_the_quiet_one(Order::FirstCome).await, 30);
    let place = place_of_the_quiet_one(Order::ByNamespace).await;
    assert!(place <= 3, "served as number {place}");
}
