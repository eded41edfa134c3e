//! Cached objects, and lookups of them.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bellerophon::informer::{
    CacheMode, EventHandler, InformerOptions, InitialList, Namespaces, SyncError, Tombstone,
    Transform,
};
use bellerophon::prelude::*;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::core::{
    ApiResource, DynamicObject, Expression, GroupVersionKind, PartialObjectMeta, Selector,
};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::time::sleep;

use super::{config_map, create, factory, put};
use crate::harness::{create_namespace, server};

async fn names<K: Kind>(client: &Client, options: InformerOptions<K>) -> Vec<String> {
    let informers = factory(client, 1);
    let informer = informers.informer(options);
    informer.wait_for_cache_sync().await.unwrap();
    let objects = informer.lister().list();
    informers.stop().await;
    objects.iter().map(|object| object.name_any()).collect()
}

#[tokio::test(start_paused = true)]
async fn typed_metadata_and_dynamic_caches_agree() {
    let server = server().await;
    let client = server.client();
    for name in ["a", "b", "c"] {
        create(&client, name, "x").await;
    }
    let default = || Some(Namespaces::named(["default"]));
    let all = ["a", "b", "c"];
    let typed = || InformerOptions::<ConfigMap> {
        namespaces: default(),
        ..InformerOptions::labels("app=x")
    };
    assert_eq!(names(&client, typed()).await, all);
    let paged = InformerOptions {
        initial_list: Some(InitialList::Paged),
        page_size: Some(2),
        ..typed()
    };
    assert_eq!(names(&client, paged).await, all);
    let metadata = InformerOptions::<PartialObjectMeta<ConfigMap>> {
        namespaces: default(),
        ..InformerOptions::labels("app")
    };
    assert_eq!(names(&client, metadata).await, all);
    let resource = ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ConfigMap"));
    let dynamic = InformerOptions::<DynamicObject> {
        fields: Some("metadata.name!=b".into()),
        labels: Some("app=x".into()),
        ..InformerOptions::resource(resource)
    };
    assert_eq!(names(&client, dynamic).await, ["a", "c"]);
}

#[tokio::test(start_paused = true)]
async fn lister_finds_by_key_namespace_selector_and_index() {
    let server = server().await;
    let client = server.client();
    create(&client, "a", "x").await;
    create(&client, "b", "y").await;
    let informers = factory(&client, 1);
    let informer = informers.informer::<ConfigMap>(InformerOptions::default());
    informer.wait_for_cache_sync().await.unwrap();
    let by_app = informer.index("app", |map: &ConfigMap| {
        map.labels().get("app").cloned().into_iter().collect()
    });
    let lister = informer.lister();
    create(&client, "c", "y").await;
    let key = ObjectKey::namespaced("default", "c");
    lister.await_condition(&key, |map| map.is_some()).await;
    let found = |objects: Vec<Arc<ConfigMap>>| -> Vec<String> {
        objects.iter().map(|object| object.name_any()).collect()
    };
    assert_eq!(found(by_app.get("y")), ["b", "c"]);
    assert_eq!(by_app.keys("x"), [ObjectKey::namespaced("default", "a")]);
    assert!(by_app.keys("z").is_empty());
    let selector = Selector::from(Expression::Equal("app".into(), "x".into()));
    assert_eq!(found(lister.matching(&selector)), ["a"]);
    assert_eq!(
        lister.matching_keys(&selector),
        [ObjectKey::namespaced("default", "a")]
    );
    assert!(lister.in_namespace("default").len() >= 3);
    assert!(lister.in_namespace("missing").is_empty());
    assert_eq!(lister.iter().count(), lister.len());
    assert_eq!(
        lister.latest_version(&key),
        lister.resource_version_of(&key)
    );
    informers.stop().await;
}

#[tokio::test(start_paused = true)]
async fn resource_that_is_not_served_is_named_immediately() {
    let server = server().await;
    let informers = factory(&server.client(), 1);
    let wasp = ApiResource::from_gvk(&GroupVersionKind::gvk("example.com", "v1", "Wasp"));
    let informer = informers.informer::<DynamicObject>(InformerOptions::resource(wasp));
    let not_served = SyncError::NotServed {
        resource: "wasps.example.com".into(),
    };
    assert_eq!(informer.wait_for_cache_sync().await, Err(not_served));
    informers.stop().await;
}

#[tokio::test(start_paused = true)]
async fn transform_changes_what_is_cached_and_may_panic() {
    let server = server().await;
    let client = server.client();
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "default");
    for name in ["a", "b"] {
        let large = ConfigMap {
            data: Some([("large".to_owned(), "x".repeat(1000))].into()),
            ..config_map(name, "x")
        };
        put(&maps, &large).await;
    }
    for cache_mode in [CacheMode::Compact { decoded_max: 0 }, CacheMode::Decoded] {
        let transform = Transform::new(|map: &mut ConfigMap| {
            assert_ne!(map.name_any(), "b", "this call panics");
            map.data = None;
            map.labels_mut().insert("small".into(), "yes".into());
        });
        let informers = factory(&client, 1);
        let informer = informers.informer(InformerOptions {
            transform: Some(transform),
            cache_mode: Some(cache_mode),
            ..InformerOptions::labels("app=x")
        });
        informer.wait_for_cache_sync().await.unwrap();
        let selector = Selector::from(Expression::Equal("small".into(), "yes".into()));
        let small = informer.lister().matching(&selector);
        assert_eq!(small.len(), 1, "{cache_mode:?}");
        assert_eq!(small[0].name_any(), "a");
        assert_eq!(small[0].data, None);
        assert_eq!(informer.stats().undecodable, 1, "{cache_mode:?}");
        informers.stop().await;
    }
}

/// The calls of a handler, in order.
#[derive(Clone, Default)]
struct Calls(Arc<Mutex<Vec<String>>>);

impl Calls {
    fn push(&self, sign: &str, name: &str) {
        self.0.lock().unwrap().push(format!("{sign}{name}"));
    }
}

impl EventHandler<ConfigMap> for Calls {
    fn on_add(&self, object: &Arc<ConfigMap>, _: bool) {
        self.push("+", &object.name_any());
    }
    fn on_update(&self, _: &Arc<ConfigMap>, new: &Arc<ConfigMap>) {
        self.push("~", &new.name_any());
    }
    fn on_delete(&self, last: Tombstone<ConfigMap>) {
        self.push("-", last.key.name());
    }
}

/// A change from some namespaces to all, or back, used to report every object as deleted and added.
#[tokio::test(start_paused = true)]
async fn objects_stay_cached_in_namespaces_that_stay_watched() {
    let server = server().await;
    let client = server.client();
    create(&client, "a", "x").await;
    create_namespace(&client, "team-a", json!({})).await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "team-a");
    let created = maps
        .create(&Default::default(), &config_map("b", "x"))
        .await;
    created.unwrap();
    let informers = factory(&client, 1);
    informers.set_namespaces(Namespaces::named(["default"]));
    let informer = informers.informer::<ConfigMap>(InformerOptions::labels("app=x"));
    let calls = Calls::default();
    informer.add_event_handler(calls.clone());
    for (namespaces, objects) in [
        (Namespaces::named(["default"]), 1),
        (Namespaces::All, 2),
        (Namespaces::named(["team-a"]), 1),
        (Namespaces::named(["default"]), 1),
    ] {
        informers.set_namespaces(namespaces);
        sleep(Duration::from_secs(5)).await;
        informer.wait_for_cache_sync().await.unwrap();
        assert_eq!(informer.lister().len(), objects);
    }
    assert_eq!(*calls.0.lock().unwrap(), ["+a", "+b", "-a", "-b", "+a"]);
    informers.stop().await;
}
