//! Which namespaces a Manager and its informers watch.

use bellerophon::informer::{InformerOptions, Namespaces};
use bellerophon::manager::ManagerOptions;
use bellerophon::prelude::*;
use bellerophon::testing;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};

use crate::harness::{found_in, run, server, set_team, settle, three_namespaces};

#[tokio::test(start_paused = true)]
async fn manager_follows_the_labels_of_namespaces() {
    let server = server().await;
    let client = server.client();
    three_namespaces(&client).await;
    let mut mgr = Manager::new(
        client.clone(),
        ManagerOptions {
            namespaces: Namespaces::Labelled("team=red".into()),
            ..testing::options(1)
        },
    );
    let maps = mgr.informer::<ConfigMap>(InformerOptions::labels("test"));
    let namespaces = mgr.lister::<Namespace>();
    run(mgr, async {
        found_in(&maps, &["m", "o"]).await;
        assert!(
            namespaces.len() > 2,
            "cluster-scoped kinds are watched completely"
        );
        set_team(&client, "n", "red").await;
        found_in(&maps, &["m", "n", "o"]).await;
        set_team(&client, "m", "blue").await;
        found_in(&maps, &["n", "o"]).await;
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn one_informer_follows_the_labels_of_namespaces() {
    let server = server().await;
    let client = server.client();
    three_namespaces(&client).await;
    let mut mgr = Manager::new(client.clone(), testing::options(1));
    let everywhere = mgr.informer::<ConfigMap>(InformerOptions::labels("test"));
    let red = mgr.informer::<ConfigMap>(InformerOptions {
        namespaces: Some(Namespaces::Labelled("team=red".into())),
        ..InformerOptions::labels("test")
    });
    run(mgr, async {
        found_in(&red, &["m", "o"]).await;
        found_in(&everywhere, &["m", "n", "o"]).await;
        set_team(&client, "n", "red").await;
        found_in(&red, &["m", "n", "o"]).await;
        set_team(&client, "o", "blue").await;
        found_in(&red, &["m", "n"]).await;
        found_in(&everywhere, &["m", "n", "o"]).await;
    })
    .await;
}

/// An informer that was stopped with its own selection of namespaces used to keep its handlers, and
/// through them itself.
#[tokio::test(start_paused = true)]
async fn stopped_manager_frees_its_informers() {
    let selections = [
        None,
        Some(Namespaces::named(["m"])),
        Some(Namespaces::Labelled("team=red".into())),
    ];
    for namespaces in selections {
        let server = server().await;
        let client = server.client();
        three_namespaces(&client).await;
        let mut mgr = Manager::new(client, testing::options(1));
        let metrics = mgr.metrics().clone();
        let maps = mgr.informer::<ConfigMap>(InformerOptions {
            namespaces: namespaces.clone(),
            ..InformerOptions::labels("test")
        });
        mgr.controller::<ConfigMap>()
            .informer(&maps)
            .reconcile(async |_: Request<ConfigMap>| Ok(Action::await_change()));
        drop(maps);
        run(mgr, async {
            settle().await;
            assert!(metrics.encode().contains(r#"{name="configmaps"}"#));
        })
        .await;
        assert!(
            !metrics.encode().contains(r#"{name="configmaps"}"#),
            "still reported with {namespaces:?}"
        );
    }
}
