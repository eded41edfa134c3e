//! The shared informer factory: sharing, the life of informers, and namespaces that change.

use std::sync::Arc;

use bellerophon::informer::{
    EventHandler, FactoryOptions, InformerOptions, Namespaces, SharedInformer,
    SharedInformerFactory, SyncError, Tombstone,
};
use bellerophon::metrics::Metrics;
use bellerophon::prelude::*;
use bellerophon::trace::{Trace, TraceEvent};
use http::HeaderValue;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::PostParams;
use kube::core::{ApiResource, DynamicObject, GroupVersionKind};
use kube::{Api, Client, ResourceExt};

use crate::harness::{
    Fault, config_map, faulty_client, found_in, manager, server, set_team, settle, three_namespaces,
};

fn start(client: &Client, namespaces: Namespaces) -> SharedInformerFactory {
    let options = FactoryOptions {
        namespaces,
        ..FactoryOptions::default()
    };
    SharedInformerFactory::start(client.clone(), options)
}

fn config_maps(informers: &SharedInformerFactory) -> SharedInformer<ConfigMap> {
    informers.informer(InformerOptions::labels("test"))
}

fn informer_count(informers: &SharedInformerFactory, count: usize) {
    assert_eq!(
        format!("{informers:?}"),
        format!("SharedInformerFactory {{ informers: {count}, .. }}")
    );
}

#[tokio::test(start_paused = true)]
async fn equal_requests_share_one_informer_until_the_last_handle() {
    let server = server().await;
    let client = server.client();
    three_namespaces(&client).await;
    let informers = start(&client, Namespaces::All);
    let first = config_maps(&informers);
    let second = config_maps(&informers);
    let other = informers.informer::<ConfigMap>(InformerOptions::default());
    informers.wait_for_cache_sync().await.unwrap();
    informer_count(&informers, 2);
    assert_eq!(first.lister().len(), 3);
    assert_eq!(first.stats().watches, 1);
    let expected = first.stats();
    let mut stats = second.stats();
    if !server.has_virtual_time() {
        stats.silence = expected.silence;
    }
    assert_eq!(stats, expected);
    assert!(other.lister().len() >= 3);
    let registration = first.add_key_handler(|_| ());
    let lister = second.lister();
    let index = second.index("name", |map: &ConfigMap| vec![map.name_any()]);
    drop(first);
    settle().await;
    assert!(second.has_synced(), "a handle exists");
    drop(second);
    settle().await;
    assert_eq!(lister.len(), 3, "a lister is a handle");
    drop(lister);
    settle().await;
    assert_eq!(index.keys("a").len(), 3, "an index is a handle");
    informer_count(&informers, 2);
    drop(index);
    settle().await;
    informer_count(&informers, 1);
    assert!(matches!(
        registration.wait_for_cache_sync().await,
        Err(SyncError::Stopped { .. })
    ));
    let again = config_maps(&informers);
    again.wait_for_cache_sync().await.unwrap();
    assert_eq!(again.stats().relists, 1, "it is a new informer");
    assert!(other.has_synced());
    informers.stop().await;
    assert!(!again.has_synced());
    assert_eq!(again.lister().len(), 3, "a stopped cache stays readable");
}

/// A handler that holds the informer of another kind.
struct Holds(#[expect(dead_code, reason = "it is held, not read")] SharedInformer<Namespace>);

impl EventHandler<ConfigMap> for Holds {
    fn on_add(&self, _: &Arc<ConfigMap>, _: bool) {}
    fn on_update(&self, _: &Arc<ConfigMap>, _: &Arc<ConfigMap>) {}
    fn on_delete(&self, _: Tombstone<ConfigMap>) {}
}

/// Dropping the last handle used to deadlock if a handler of that informer held a handle of the
/// same factory.
#[tokio::test]
async fn handler_may_hold_an_informer_of_the_same_factory() {
    let server = server().await;
    let client = server.client();
    three_namespaces(&client).await;
    // A factory whose Manager is never started: its informers are dropped with their last handle.
    let informers = manager(&client).informers();
    let config_maps = informers.informer::<ConfigMap>(InformerOptions::default());
    let namespaces = informers.informer::<Namespace>(InformerOptions::default());
    config_maps.add_event_handler(Holds(namespaces));
    let (sender, dropped) = std::sync::mpsc::sync_channel(1);
    // Not joined: a thread that deadlocks must not block the test.
    std::thread::spawn(move || {
        drop(config_maps);
        sender.send(()).expect("the test waits for it");
    });
    let timeout = std::time::Duration::from_secs(20);
    dropped
        .recv_timeout(timeout)
        .expect("the handle is dropped");
    informer_count(&informers, 0);
}

#[tokio::test(start_paused = true)]
async fn dropped_informer_drops_the_informers_that_its_handlers_hold() {
    let server = server().await;
    let client = server.client();
    three_namespaces(&client).await;
    let informers = start(&client, Namespaces::All);
    let config_maps = config_maps(&informers);
    let namespaces = informers.informer::<Namespace>(InformerOptions::default());
    config_maps.add_event_handler(Holds(namespaces));
    informers.wait_for_cache_sync().await.unwrap();
    informer_count(&informers, 2);
    drop(config_maps);
    settle().await;
    informer_count(&informers, 0);
    informers.stop().await;
}

/// An informer with its own selection of namespaces used to be aborted: its handlers stayed, with
/// the handles that they held.
#[tokio::test(start_paused = true)]
async fn stopped_factory_drops_all_handlers() {
    let server = server().await;
    let client = server.client();
    three_namespaces(&client).await;
    let selections = [
        None,
        Some(Namespaces::named(["m"])),
        Some(Namespaces::Labelled("team=red".into())),
    ];
    for namespaces in selections {
        let informers = start(&client, Namespaces::All);
        let maps = informers.informer::<ConfigMap>(InformerOptions {
            namespaces: namespaces.clone(),
            ..InformerOptions::labels("test")
        });
        let held = Arc::new(maps.clone());
        let handler = held.clone();
        let registration = maps.add_key_handler(move |_| assert!(handler.has_synced()));
        registration.wait_for_cache_sync().await.unwrap();
        informers.stop().await;
        assert_eq!(Arc::strong_count(&held), 1, "{namespaces:?}");
        assert!(!maps.has_synced(), "{namespaces:?}");
    }
}

/// An informer whose namespaces are never known is never started.
#[tokio::test(start_paused = true)]
async fn stopped_factory_drops_handlers_of_informers_that_never_started() {
    let server = server().await;
    let unprivileged = faulty_client(&server, |request| {
        let user = HeaderValue::from_static("nobody");
        request.headers_mut().insert("impersonate-user", user);
        Fault::None
    });
    let informers = start(&unprivileged, Namespaces::Labelled("team=red".into()));
    let maps = config_maps(&informers);
    let held = Arc::new(maps.clone());
    let handler = held.clone();
    maps.add_key_handler(move |_| assert!(handler.has_synced()));
    let error = maps.wait_for_cache_sync().await.unwrap_err();
    assert!(
        matches!(&error, SyncError::Forbidden { resource, .. } if resource == "namespaces"),
        "{error}"
    );
    informers.stop().await;
    assert_eq!(Arc::strong_count(&held), 1);
    assert!(matches!(
        maps.wait_for_cache_sync().await,
        Err(SyncError::Stopped { .. })
    ));
}

#[tokio::test(start_paused = true)]
async fn informers_use_the_metrics_and_the_trace_of_the_factory() {
    let server = server().await;
    let client = server.client();
    three_namespaces(&client).await;
    let metrics = Metrics::new();
    let trace = Trace::new(100);
    let options = FactoryOptions {
        metrics: metrics.clone(),
        trace: trace.clone(),
        ..FactoryOptions::default()
    };
    let informers = SharedInformerFactory::start(client.clone(), options);
    let maps = config_maps(&informers);
    let namespaces = informers.informer::<Namespace>(InformerOptions::default());
    informers.wait_for_cache_sync().await.unwrap();
    let text = metrics.encode();
    for (name, objects) in [
        ("configmaps", maps.lister().len()),
        ("namespaces", namespaces.lister().len()),
    ] {
        let line = format!("bellerophon_informer_objects{{name=\"{name}\"}} {objects}");
        assert!(text.contains(&line), "no {line} in {text}");
    }
    let api = Api::<ConfigMap>::namespaced(client, "m");
    let created = api.create(&PostParams::default(), &config_map("b")).await;
    let created = created.unwrap();
    let key = ObjectKey::from_object(&created);
    maps.lister()
        .await_condition(&key, |map| map.is_some())
        .await;
    let records = trace.since(0).records;
    let cached = records.iter().find_map(|record| match &record.event {
        TraceEvent::Cached {
            kind,
            key,
            resource_version,
            ..
        } => Some((kind.to_string(), key.clone(), resource_version.clone())),
        _ => None,
    });
    let expected = ("ConfigMap".to_owned(), key, created.resource_version());
    assert_eq!(cached, Some(expected));
    informers.stop().await;
}

#[tokio::test(start_paused = true)]
async fn informers_follow_the_namespaces_of_the_factory() {
    let server = server().await;
    let client = server.client();
    three_namespaces(&client).await;
    let informers = start(&client, Namespaces::named(["m"]));
    let maps = config_maps(&informers);
    let namespaces = informers.informer::<Namespace>(InformerOptions::default());
    informers.wait_for_cache_sync().await.unwrap();
    found_in(&maps, &["m"]).await;
    assert!(
        namespaces.lister().len() >= 3,
        "cluster-scoped kinds are watched completely"
    );
    let chosen = [
        (Namespaces::named(["n", "o"]), vec!["n", "o"]),
        (Namespaces::All, vec!["m", "n", "o"]),
        (Namespaces::named([""; 0]), vec![]),
    ];
    for (namespaces, expected) in chosen {
        informers.set_namespaces(namespaces);
        found_in(&maps, &expected).await;
    }
    informers.stop().await;
}

#[tokio::test(start_paused = true)]
async fn informers_follow_the_labels_of_namespaces() {
    let server = server().await;
    let client = server.client();
    three_namespaces(&client).await;
    let informers = start(&client, Namespaces::Labelled("team=red".into()));
    let maps = config_maps(&informers);
    informers.wait_for_cache_sync().await.unwrap();
    found_in(&maps, &["m", "o"]).await;
    for (namespace, team, expected) in [
        ("n", "red", vec!["m", "n", "o"]),
        ("m", "blue", vec!["n", "o"]),
    ] {
        set_team(&client, namespace, team).await;
        found_in(&maps, &expected).await;
    }
    informers.stop().await;
}

#[tokio::test(start_paused = true)]
async fn resource_that_is_not_served_is_named_and_stops_no_other() {
    let server = server().await;
    let client = server.client();
    three_namespaces(&client).await;
    let informers = start(&client, Namespaces::All);
    let maps = config_maps(&informers);
    let wasp = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Wasp"));
    let wasps = informers.informer::<DynamicObject>(InformerOptions::resource(wasp));
    let not_served = SyncError::NotServed {
        resource: "wasps.example.com".into(),
    };
    assert_eq!(informers.wait_for_cache_sync().await, Err(not_served));
    maps.wait_for_cache_sync().await.unwrap();
    drop(wasps);
    assert_eq!(informers.wait_for_cache_sync().await, Ok(()));
    assert_eq!(maps.lister().len(), 3);
    informers.stop().await;
}
