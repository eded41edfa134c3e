//! The shared informer factory on the embedded API server: sharing, ending, and namespaces that change.

use std::{collections::BTreeSet, sync::Arc};

use bellerophon::{
    EventHandler, FactoryNamespaces, FactoryOptions, HandlerOptions, InformerLease,
    InformerOptions, Lister, Metrics, SharedInformerFactory, SyncError, Tombstone, TraceBus,
    TraceEvent,
};
use bellerophon_apiserver::ApiServer;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::{
    Api, Client, Resource, ResourceExt,
    api::{ObjectMeta, Patch, PatchParams, PostParams},
    core::{ApiResource, DynamicObject, GroupVersionKind},
};
use tokio::{
    task::JoinHandle,
    time::{Duration, Instant, sleep},
};
use tokio_util::sync::CancellationToken;

struct Running {
    factory: SharedInformerFactory,
    stop: CancellationToken,
    task: JoinHandle<()>,
}

impl Running {
    fn start(client: &Client, namespaces: FactoryNamespaces) -> Self {
        let factory = SharedInformerFactory::new(
            client.clone(),
            FactoryOptions {
                namespaces,
                ..FactoryOptions::default()
            },
        );
        let stop = CancellationToken::new();
        let task = tokio::spawn({
            let (factory, stop) = (factory.clone(), stop.clone());
            async move { factory.run(stop).await.expect("it runs once") }
        });
        Self {
            factory,
            stop,
            task,
        }
    }

    fn config_maps(&self) -> InformerLease<ConfigMap> {
        self.factory.informer(
            (),
            InformerOptions {
                labels: Some("app=x".into()),
                ..InformerOptions::default()
            },
        )
    }

    async fn stop(self) {
        self.stop.cancel();
        self.task.await.expect("no panic");
    }
}

/// A server with a config map of the same name in three namespaces; two of them belong to team red.
async fn three_namespaces() -> (ApiServer, Client) {
    let server = ApiServer::builder()
        .seed(1)
        .start()
        .await
        .expect("the server starts");
    let client = server.client();
    for (namespace, team) in [("m", "red"), ("n", "blue"), ("o", "red")] {
        let metadata = labelled(namespace, "team", team);
        let object = Namespace {
            metadata,
            ..Namespace::default()
        };
        Api::all(client.clone())
            .create(&PostParams::default(), &object)
            .await
            .expect("it is created");
        let object = ConfigMap {
            metadata: labelled("a", "app", "x"),
            ..ConfigMap::default()
        };
        Api::namespaced(client.clone(), namespace)
            .create(&PostParams::default(), &object)
            .await
            .expect("it is created");
    }
    (server, client)
}

fn labelled(name: &str, label: &str, value: &str) -> ObjectMeta {
    ObjectMeta {
        name: Some(name.into()),
        labels: Some([(label.to_owned(), value.to_owned())].into()),
        ..ObjectMeta::default()
    }
}

fn named(names: &[&str]) -> FactoryNamespaces {
    FactoryNamespaces::Named(names.iter().map(ToString::to_string).collect())
}

fn where_found<K: Resource + Send + Sync + 'static>(lister: &Lister<K>) -> Vec<String> {
    let namespaces: BTreeSet<_> = lister
        .list()
        .iter()
        .filter_map(|object| object.namespace())
        .collect();
    namespaces.into_iter().collect()
}

/// Lets virtual time pass until it is so.
async fn until(mut so: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(3600);
    while !so() {
        assert!(Instant::now() < end, "it never came to be");
        sleep(Duration::from_millis(100)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn equal_wishes_share_one_informer_until_the_last_lease() {
    let (_server, client) = three_namespaces().await;
    let running = Running::start(&client, FactoryNamespaces::All);
    let first = running.config_maps();
    let second = running.config_maps();
    let other = running
        .factory
        .informer::<ConfigMap>((), InformerOptions::default());
    running
        .factory
        .wait_for_sync()
        .await
        .expect("the server answers");
    assert_eq!(first.lister().len(), 3);
    assert_eq!((first.stats().watches, second.stats()), (1, first.stats()));
    assert!(other.lister().len() >= 3);
    let (lister, informer) = (first.lister(), (*first).clone());
    drop(first);
    sleep(Duration::from_secs(1)).await;
    assert!(second.has_synced(), "somebody still wants it");
    drop(second);
    until(|| !informer.has_synced()).await;
    assert!(matches!(
        informer.wait_for_sync().await,
        Err(SyncError::Stopped { .. })
    ));
    assert_eq!(lister.len(), 3, "what was read stays readable");
    let again = running.config_maps();
    again.wait_for_sync().await.expect("a new one is started");
    assert!(other.has_synced());
    running.stop().await;
    assert!(!again.has_synced());
}

/// Follows one kind for the sake of another.
struct Holds(#[expect(dead_code, reason = "it is held, not read")] InformerLease<Namespace>);

impl EventHandler<ConfigMap> for Holds {
    fn on_add(&self, _: &Arc<ConfigMap>, _: bool) {}
    fn on_update(&self, _: &Arc<ConfigMap>, _: &Arc<ConfigMap>) {}
    fn on_delete(&self, _: Tombstone<ConfigMap>) {}
}

/// Dropping the last lease used to hang when a handler of that informer held a lease of the same factory.
#[tokio::test]
async fn handler_gives_back_the_lease_it_holds() {
    let (_server, client) = three_namespaces().await;
    let factory = SharedInformerFactory::new(client, FactoryOptions::default());
    let config_maps = factory.informer::<ConfigMap>((), InformerOptions::default());
    let namespaces = factory.cluster_informer::<Namespace>((), InformerOptions::default());
    config_maps.add_handler(Holds(namespaces), HandlerOptions::default());
    let (dropped, end) = std::sync::mpsc::sync_channel(1);
    // Not joined: a thread that hangs must not hang the test.
    std::thread::spawn(move || {
        drop(config_maps);
        dropped.send(()).expect("somebody listens");
    });
    end.recv_timeout(std::time::Duration::from_secs(20))
        .expect("the lease is dropped at once");
    assert_eq!(
        format!("{factory:?}"),
        "SharedInformerFactory { informers: 0, .. }"
    );
}

#[tokio::test(start_paused = true)]
async fn informers_report_and_trace_as_their_factory_does() {
    let (_server, client) = three_namespaces().await;
    let (metrics, trace) = (Metrics::new(), TraceBus::new(100));
    let factory = SharedInformerFactory::new(
        client.clone(),
        FactoryOptions {
            trace: trace.clone(),
            ..FactoryOptions::default()
        },
    );
    let early = factory.informer::<ConfigMap>(
        (),
        InformerOptions {
            labels: Some("app=x".into()),
            ..InformerOptions::default()
        },
    );
    factory.report_to(&metrics);
    let late = factory.cluster_informer::<Namespace>((), InformerOptions::default());
    let stop = CancellationToken::new();
    let running = tokio::spawn({
        let (factory, stop) = (factory.clone(), stop.clone());
        async move { factory.run(stop).await.expect("it runs once") }
    });
    factory.wait_for_sync().await.expect("the server answers");
    let page = metrics.page();
    for (name, objects) in [
        ("configmaps", early.lister().len()),
        ("namespaces", late.lister().len()),
    ] {
        assert!(
            page.contains(&format!(
                "bellerophon_informer_objects{{name=\"{name}\"}} {objects}"
            )),
            "{name} is not in {page}"
        );
    }
    let object = ConfigMap {
        metadata: labelled("b", "app", "x"),
        ..ConfigMap::default()
    };
    let made = Api::<ConfigMap>::namespaced(client, "m")
        .create(&PostParams::default(), &object)
        .await
        .expect("it is created");
    until(|| early.lister().len() == 4).await;
    let told = trace
        .since(0)
        .records
        .into_iter()
        .find_map(|record| match &record.event {
            TraceEvent::Cached {
                kind,
                key,
                resource_version,
                ..
            } => Some((
                kind.to_string(),
                key.name().to_owned(),
                resource_version.clone(),
            )),
            _ => None,
        });
    assert_eq!(
        told,
        Some((
            "ConfigMap".to_owned(),
            "b".to_owned(),
            made.resource_version()
        ))
    );
    stop.cancel();
    running.await.expect("no panic");
}

#[tokio::test(start_paused = true)]
async fn informers_follow_the_namespaces_of_the_factory() {
    let (_server, client) = three_namespaces().await;
    let running = Running::start(&client, named(&["m"]));
    let config_maps = running.config_maps();
    let namespaces = running
        .factory
        .cluster_informer::<Namespace>((), InformerOptions::default());
    running
        .factory
        .wait_for_sync()
        .await
        .expect("the server answers");
    assert_eq!(where_found(&config_maps.lister()), ["m"]);
    assert!(
        namespaces.lister().len() >= 3,
        "cluster-scoped kinds are followed whole"
    );
    for (chosen, found) in [
        (named(&["n", "o"]), vec!["n", "o"]),
        (FactoryNamespaces::All, vec!["m", "n", "o"]),
        (named(&[]), vec![]),
    ] {
        running.factory.set_namespaces(chosen);
        until(|| where_found(&config_maps.lister()) == found).await;
    }
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn labels_of_namespaces_choose_what_is_followed() {
    let (_server, client) = three_namespaces().await;
    let running = Running::start(&client, FactoryNamespaces::Labelled("team=red".into()));
    let config_maps = running.config_maps();
    running
        .factory
        .wait_for_sync()
        .await
        .expect("the server answers");
    assert_eq!(where_found(&config_maps.lister()), ["m", "o"]);
    let api: Api<Namespace> = Api::all(client.clone());
    for (namespace, team, found) in [
        ("n", "red", vec!["m", "n", "o"]),
        ("m", "blue", vec!["n", "o"]),
    ] {
        let patch = serde_json::json!({ "metadata": { "labels": { "team": team } } });
        api.patch(namespace, &PatchParams::default(), &Patch::Merge(patch))
            .await
            .expect("it is labelled");
        until(|| where_found(&config_maps.lister()) == found).await;
    }
    running.stop().await;
}

#[tokio::test(start_paused = true)]
async fn one_missing_kind_is_named_and_stops_no_other() {
    let (_server, client) = three_namespaces().await;
    let running = Running::start(&client, FactoryNamespaces::All);
    let config_maps = running.config_maps();
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Wasp"));
    let wasps: InformerLease<DynamicObject> =
        running.factory.informer(kind, InformerOptions::default());
    let missing = SyncError::NoSuchKind {
        what: "wasps.example.com".into(),
    };
    assert_eq!(running.factory.wait_for_sync().await, Err(missing));
    config_maps
        .wait_for_sync()
        .await
        .expect("it has nothing to do with wasps");
    drop(wasps);
    assert_eq!(running.factory.wait_for_sync().await, Ok(()));
    let lister = Arc::new(config_maps.lister());
    assert_eq!(lister.len(), 3);
    running.stop().await;
}
