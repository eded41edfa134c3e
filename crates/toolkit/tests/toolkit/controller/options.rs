//! Settings of controllers: how they merge, what they inherit, what stays alive.

use std::sync::Arc;
use std::time::Duration;

use bellerophon::controller::ControllerOptions;
use bellerophon::informer::InformerOptions;
use bellerophon::prelude::*;
use bellerophon::testing;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::api::PostParams;
use tokio::time::sleep;

use crate::harness::{Log, api, assert_line, create, manager, maps, run, secret, server, settle};

async fn log_name(log: Arc<Log>, req: Request<ConfigMap>) -> Result<Action, Error> {
    log.push(req.key().name());
    Ok(Action::await_change())
}

#[tokio::test(start_paused = true)]
async fn with_options_keeps_what_it_does_not_set() {
    let server = server().await;
    let mut options = testing::options(1);
    options.controller.concurrency = Some(7);
    let mut mgr = Manager::new(server.client(), options);
    let hourly = || ControllerOptions {
        resync_period: Some(Duration::from_secs(3600)),
        ..ControllerOptions::default()
    };
    let three = || ControllerOptions {
        concurrency: Some(3),
        ..ControllerOptions::default()
    };
    let idle = async |_: Request<ConfigMap>| Ok(Action::await_change());
    let builder = mgr.controller::<ConfigMap>().name("before");
    builder
        .concurrency(4)
        .with_options(hourly())
        .reconcile(idle);
    let builder = mgr.controller::<ConfigMap>().name("after");
    builder
        .with_options(hourly())
        .concurrency(4)
        .reconcile(idle);
    let builder = mgr.controller::<ConfigMap>().name("replaced");
    builder.concurrency(4).with_options(three()).reconcile(idle);
    let builder = mgr.controller::<ConfigMap>().name("inherited");
    builder.with_options(hourly()).reconcile(idle);
    let text = mgr.metrics().encode();
    for (name, concurrency) in [
        ("before", 4),
        ("after", 4),
        ("replaced", 3),
        ("inherited", 7),
    ] {
        let metric = "controller_runtime_max_concurrent_reconciles";
        let line = format!(r#"{metric}{{controller="{name}"}} {concurrency}"#);
        assert_line(&text, &line);
    }
}

#[tokio::test(start_paused = true)]
async fn controllers_inherit_the_resync_period_of_the_manager() {
    let server = server().await;
    let client = server.client();
    create(&client, "icarus").await;
    let mut options = testing::options(1);
    options.controller.resync_period = Some(Duration::from_secs(60));
    let mut mgr = Manager::new(client, options);
    let maps = maps(&mut mgr);
    let periods = [
        ("inherited", None, 2),
        ("own", Some(Duration::from_secs(30)), 3),
        ("disabled", Some(Duration::ZERO), 1),
    ];
    let logs = periods.map(|(name, resync_period, reconciles)| {
        let log = Log::default();
        let options = ControllerOptions {
            resync_period,
            ..ControllerOptions::default()
        };
        mgr.controller::<ConfigMap>()
            .informer(&maps)
            .name(name)
            .with_options(options)
            .context(Arc::new(log.clone()))
            .reconcile(log_name);
        (name, log, reconciles)
    });
    run(mgr, async {
        sleep(Duration::from_secs(70)).await;
    })
    .await;
    for (name, log, reconciles) in logs {
        assert_eq!(log.all().len(), reconciles, "{name}");
    }
}

/// An informer used to stop once the caller had dropped its handle, whatever the controller needed.
#[tokio::test(start_paused = true)]
async fn controller_keeps_its_informers_alive() {
    let server = server().await;
    let client = server.client();
    let log = Log::default();
    let mut mgr = manager(&client);
    {
        let informers = mgr.informers();
        let maps = informers.informer::<ConfigMap>(InformerOptions::labels("test"));
        let secrets = informers.informer::<Secret>(InformerOptions::labels("test"));
        mgr.controller::<ConfigMap>()
            .informer(&maps)
            .watches::<Secret>(|secret| vec![ObjectKey::from_object(secret)])
            .informer(&secrets)
            .context(Arc::new(log.clone()))
            .reconcile(log_name);
    }
    run(mgr, async {
        sleep(Duration::from_secs(120)).await;
        create(&client, "map").await;
        let mut watched = secret("secret");
        watched.metadata.labels = Some([("test".into(), String::new())].into());
        let secrets = api::<Secret>(&client);
        let created = secrets.create(&PostParams::default(), &watched).await;
        created.unwrap();
        settle().await;
        assert_eq!(log.take(), ["map", "secret"]);
        sleep(Duration::from_secs(120)).await;
        create(&client, "later").await;
        settle().await;
        assert_eq!(log.take(), ["later"]);
    })
    .await;
}
