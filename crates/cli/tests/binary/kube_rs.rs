//! kube-rs over HTTPS against the real binary: create, read, change, apply, watch, delete, with typed and with defined kinds.

use std::{fs, path::Path, pin::pin, time::Duration};

use crate::running::Running;
use futures_util::{Stream, TryStreamExt as _};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ConfigMap, Namespace},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Client, Config, ResourceExt as _,
    api::{
        ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
        WatchEvent, WatchParams,
    },
    config::{KubeConfigOptions, Kubeconfig},
    core::GroupVersionKind,
};
use serde_json::json;
use tokio::time::timeout;

/// Longer than anything here takes on a busy machine; only a test that fails waits for it.
const PATIENCE: Duration = Duration::from_secs(60);

async fn client(running: &Running) -> Client {
    let kubeconfig = Kubeconfig::read_from(running.kubeconfig()).expect("a kubeconfig");
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .expect("a configuration");
    Client::try_from(config).expect("a client")
}

fn config_map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(
        json!({"metadata": {"name": name, "labels": {"app": "x"}}, "data": {"a": value}}),
    )
    .expect("a config map")
}

fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        other => panic!("no answer: {other}"),
    }
}

/// What a watch says next, in short.
async fn next(
    events: &mut (impl Stream<Item = kube::Result<WatchEvent<ConfigMap>>> + Unpin),
) -> String {
    let event = timeout(PATIENCE, events.try_next())
        .await
        .expect("in time")
        .expect("an event")
        .expect("not the end");
    match event {
        WatchEvent::Added(object) => format!("added {}", object.name_any()),
        WatchEvent::Modified(object) => format!("modified {}", object.name_any()),
        WatchEvent::Deleted(object) => format!("deleted {}", object.name_any()),
        WatchEvent::Bookmark(_) => "bookmark".to_owned(),
        WatchEvent::Error(error) => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn typed_client_creates_reads_changes_and_deletes() {
    let running = Running::start(&["--cluster", "none"]);
    let api: Api<ConfigMap> = Api::default_namespaced(client(&running).await);
    let (post, delete) = (PostParams::default(), DeleteParams::default());

    let created = api
        .create(&post, &config_map("settings", "b"))
        .await
        .expect("created");
    assert!(created.uid().is_some() && created.resource_version().is_some());
    assert_eq!(
        code(
            &api.create(&post, &config_map("settings", "b"))
                .await
                .expect_err("it exists")
        ),
        409
    );

    let mut changed = api.get("settings").await.expect("there");
    changed
        .data
        .get_or_insert_default()
        .insert("c".to_owned(), "d".to_owned());
    let replaced = api
        .replace("settings", &post, &changed)
        .await
        .expect("replaced");
    assert_ne!(replaced.resource_version(), created.resource_version());
    assert_eq!(
        code(
            &api.replace("settings", &post, &changed)
                .await
                .expect_err("it was changed meanwhile")
        ),
        409
    );

    for (patch, wanted) in [
        (
            Patch::Merge(json!({"data": {"c": null, "m": "1"}})),
            json!({"a": "b", "m": "1"}),
        ),
        (
            Patch::Strategic(json!({"data": {"s": "2"}})),
            json!({"a": "b", "m": "1", "s": "2"}),
        ),
    ] {
        let patched = api
            .patch("settings", &PatchParams::default(), &patch)
            .await
            .expect("patched");
        assert_eq!(json!(patched.data), wanted);
    }
    let listed = api
        .list(
            &ListParams::default()
                .labels("app=x")
                .fields("metadata.name=settings"),
        )
        .await
        .expect("listed");
    assert_eq!(listed.items.len(), 1);
    assert!(
        api.delete("settings", &delete)
            .await
            .expect("deleted")
            .is_right(),
        "gone at once"
    );
    assert_eq!(api.get_opt("settings").await.expect("an answer"), None);
}

#[tokio::test]
async fn appliers_share_and_take_fields() {
    let running = Running::start(&["--cluster", "none"]);
    let api: Api<Deployment> = Api::default_namespaced(client(&running).await);
    let declared = |replicas: u32| {
        Patch::Apply(json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"a": "b"}},
                "template": {"metadata": {"labels": {"a": "b"}}, "spec": {"containers": [{"name": "c", "image": "i"}]}},
            },
        }))
    };
    let (one, other) = (PatchParams::apply("one"), PatchParams::apply("other"));
    let made = api.patch("web", &one, &declared(2)).await.expect("applied");
    let same = api
        .patch("web", &one, &declared(2))
        .await
        .expect("applied again");
    assert_eq!(
        made.resource_version(),
        same.resource_version(),
        "nothing changed"
    );
    let conflict = api
        .patch("web", &other, &declared(3))
        .await
        .expect_err("somebody else's field");
    assert!(
        conflict
            .to_string()
            .contains("conflict with \"one\": .spec.replicas"),
        "{conflict}"
    );
    let forced = api
        .patch("web", &other.force(), &declared(3))
        .await
        .expect("taken");
    assert_eq!(forced.spec.and_then(|spec| spec.replicas), Some(3));
    let scale = api
        .patch_scale(
            "web",
            &PatchParams::default(),
            &Patch::Merge(json!({"spec": {"replicas": 5}})),
        )
        .await
        .expect("scaled");
    assert_eq!(scale.spec.and_then(|spec| spec.replicas), Some(5));
}

#[tokio::test]
async fn watch_tells_every_change_in_order() {
    let running = Running::start(&["--cluster", "none"]);
    let api: Api<ConfigMap> = Api::default_namespaced(client(&running).await);
    let post = PostParams::default();
    api.create(&post, &config_map("before", "b"))
        .await
        .expect("created");
    let version = api
        .list(&ListParams::default())
        .await
        .expect("listed")
        .metadata
        .resource_version
        .expect("a version");
    let mut events = pin!(
        api.watch(&WatchParams::default().labels("app=x"), &version)
            .await
            .expect("a watch")
    );
    api.create(&post, &config_map("seen", "b"))
        .await
        .expect("created");
    api.patch(
        "seen",
        &PatchParams::default(),
        &Patch::Merge(json!({"data": {"a": "c"}})),
    )
    .await
    .expect("patched");
    api.delete("seen", &DeleteParams::default())
        .await
        .expect("deleted");
    for wanted in ["added seen", "modified seen", "deleted seen"] {
        assert_eq!(next(&mut events).await, wanted);
    }
    let mut all = pin!(
        api.watch(&WatchParams::default().initial_events(), "0")
            .await
            .expect("a watch")
    );
    for wanted in ["added before", "bookmark"] {
        assert_eq!(next(&mut all).await, wanted);
    }
}

#[tokio::test]
async fn defined_kind_is_served_as_soon_as_it_is_there() {
    let running = Running::start(&["--cluster", "none"]);
    let client = client(&running).await;
    let sample = |name: &str| {
        fs::read_to_string(
            Path::new(env!("CARGO_MANIFEST_DIR"))
                .join("../../samples")
                .join(name),
        )
        .expect("a sample")
    };
    let definition: CustomResourceDefinition =
        serde_saphyr::from_str(&sample("sheroes-definition.yaml")).expect("a definition");
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    definitions
        .create(&PostParams::default(), &definition)
        .await
        .expect("defined");

    let kind = GroupVersionKind::gvk(
        "stable.simple-bellerophon.io",
        "v444beta989",
        "BellerophonSimple",
    );
    let api: Api<DynamicObject> = Api::default_namespaced_with(
        client.clone(),
        &ApiResource::from_gvk_with_plural(&kind, "sheroes"),
    );
    let shero: DynamicObject = serde_saphyr::from_str(&sample("shero.yaml")).expect("an object");
    let made = api
        .patch(
            "philonoe",
            &PatchParams::apply("test"),
            &Patch::Apply(&shero),
        )
        .await
        .expect("applied");
    assert_eq!(made.data["spec"]["replicas"], 2);
    let status = json!({"status": {"replicas": 1}});
    let reported = api
        .patch_status("philonoe", &PatchParams::default(), &Patch::Merge(status))
        .await
        .expect("reported");
    assert_eq!(reported.data["status"]["replicas"], 1);

    definitions
        .delete(&definition.name_any(), &DeleteParams::default())
        .await
        .expect("deleted");
    assert_eq!(
        code(&api.get("philonoe").await.expect_err("the kind is gone")),
        404
    );
    let namespaces: Api<Namespace> = Api::all(client);
    assert_eq!(
        code(
            &namespaces
                .delete("default", &DeleteParams::default())
                .await
                .expect_err("it must stay")
        ),
        403
    );
}
