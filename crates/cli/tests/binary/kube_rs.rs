//! kube-rs over HTTPS against the binary: create, get, replace, patch, apply, watch and delete,
//! with typed objects and custom resources.

use std::{fs, path::Path, pin::pin, time::Duration};

use crate::running::RunningServer;
use futures_util::{Stream, TryStreamExt as _};
use k8s_openapi::{
    api::{
        apps::v1::Deployment,
        core::v1::{ComponentStatus, ConfigMap, Event, Namespace},
    },
    apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition,
};
use kube::{
    Api, Resource as _, ResourceExt as _,
    api::{
        ApiResource, DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams,
        WatchEvent, WatchParams,
    },
    core::GroupVersionKind,
};
use serde_json::json;
use tokio::time::timeout;

/// The timeout of every wait: longer than anything takes on a busy machine.
const TIMEOUT: Duration = Duration::from_secs(60);

fn config_map(name: &str, value: &str) -> ConfigMap {
    serde_json::from_value(
        json!({"metadata": {"name": name, "labels": {"app": "x"}}, "data": {"a": value}}),
    )
    .expect("a ConfigMap")
}

fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(status) => status.code,
        other => panic!("no response: {other}"),
    }
}

/// The next event of a watch, as text.
async fn next_event(
    events: &mut (impl Stream<Item = kube::Result<WatchEvent<ConfigMap>>> + Unpin),
) -> String {
    let event = timeout(TIMEOUT, events.try_next())
        .await
        .expect("an event within the timeout")
        .expect("no error")
        .expect("an open watch");
    match event {
        WatchEvent::Added(object) => format!("added {}", object.name_any()),
        WatchEvent::Modified(object) => format!("modified {}", object.name_any()),
        WatchEvent::Deleted(object) => format!("deleted {}", object.name_any()),
        WatchEvent::Bookmark(_) => "bookmark".to_owned(),
        WatchEvent::Error(error) => panic!("{error:?}"),
    }
}

#[tokio::test]
async fn events_refer_to_component_statuses() {
    let server = RunningServer::start(&["--nodes", "1"]);
    let client = server.client().await;
    let statuses: Api<ComponentStatus> = Api::all(client.clone());
    let scheduler = statuses.get("scheduler").await.expect("a component");
    let conditions = scheduler.conditions.clone().expect("conditions");
    assert_eq!(conditions[0].status, "True");
    let all = statuses.list(&ListParams::default()).await.expect("a list");
    let names: Vec<String> = all.iter().map(|status| status.name_any()).collect();
    assert_eq!(names, ["controller-manager", "etcd-0", "scheduler"]);
    let events: Api<Event> = Api::namespaced(client, "default");
    let event = json!({
        "metadata": {"name": "scheduler.1"},
        "involvedObject": scheduler.object_ref(&()),
        "reason": "Tested",
        "type": "Normal",
    });
    let event = serde_json::from_value(event).expect("an Event");
    let created = events.create(&PostParams::default(), &event).await;
    let involved = created.expect("created").involved_object;
    assert_eq!(involved.kind.as_deref(), Some("ComponentStatus"));
}

#[tokio::test]
async fn typed_objects_are_created_updated_and_deleted() {
    let server = RunningServer::start(&["--cluster", "none"]);
    let api: Api<ConfigMap> = Api::default_namespaced(server.client().await);
    let post = PostParams::default();
    let delete = DeleteParams::default();

    let created = api
        .create(&post, &config_map("settings", "b"))
        .await
        .expect("created");
    assert!(created.uid().is_some());
    assert!(created.resource_version().is_some());
    let duplicate = api.create(&post, &config_map("settings", "b")).await;
    assert_eq!(code(&duplicate.expect_err("the name exists")), 409);

    let mut changed = api.get("settings").await.expect("it exists");
    changed
        .data
        .get_or_insert_default()
        .insert("c".to_owned(), "d".to_owned());
    let replaced = api
        .replace("settings", &post, &changed)
        .await
        .expect("replaced");
    assert_ne!(replaced.resource_version(), created.resource_version());
    let stale = api.replace("settings", &post, &changed).await;
    assert_eq!(code(&stale.expect_err("the version is stale")), 409);

    for (patch, expected) in [
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
        assert_eq!(json!(patched.data), expected);
    }
    let selected = ListParams::default()
        .labels("app=x")
        .fields("metadata.name=settings");
    let listed = api.list(&selected).await.expect("listed");
    assert_eq!(listed.items.len(), 1);
    let deleted = api.delete("settings", &delete).await.expect("deleted");
    assert!(
        deleted.is_right(),
        "the response is a Status, not an object"
    );
    assert_eq!(api.get_opt("settings").await.expect("a response"), None);
}

#[tokio::test]
async fn server_side_apply_reports_and_forces_conflicts() {
    let server = RunningServer::start(&["--cluster", "none"]);
    let api: Api<Deployment> = Api::default_namespaced(server.client().await);
    let configuration = |replicas: u32| {
        Patch::Apply(json!({
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": {"name": "web"},
            "spec": {
                "replicas": replicas,
                "selector": {"matchLabels": {"a": "b"}},
                "template": {
                    "metadata": {"labels": {"a": "b"}},
                    "spec": {"containers": [{"name": "c", "image": "i"}]},
                },
            },
        }))
    };
    let one = PatchParams::apply("one");
    let other = PatchParams::apply("other");
    let created = api
        .patch("web", &one, &configuration(2))
        .await
        .expect("applied");
    let same = api
        .patch("web", &one, &configuration(2))
        .await
        .expect("applied again");
    assert_eq!(
        created.resource_version(),
        same.resource_version(),
        "an apply without a change is not a write"
    );
    let conflict = api
        .patch("web", &other, &configuration(3))
        .await
        .expect_err("another manager has the field");
    assert!(
        conflict
            .to_string()
            .contains("conflict with \"one\": .spec.replicas"),
        "{conflict}"
    );
    let forced = api
        .patch("web", &other.force(), &configuration(3))
        .await
        .expect("forced");
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
async fn watch_delivers_every_change_in_order() {
    let server = RunningServer::start(&["--cluster", "none"]);
    let api: Api<ConfigMap> = Api::default_namespaced(server.client().await);
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
    api.create(&post, &config_map("watched", "b"))
        .await
        .expect("created");
    api.patch(
        "watched",
        &PatchParams::default(),
        &Patch::Merge(json!({"data": {"a": "c"}})),
    )
    .await
    .expect("patched");
    api.delete("watched", &DeleteParams::default())
        .await
        .expect("deleted");
    for expected in ["added watched", "modified watched", "deleted watched"] {
        assert_eq!(next_event(&mut events).await, expected);
    }
    let mut all = pin!(
        api.watch(&WatchParams::default().initial_events(), "0")
            .await
            .expect("a watch")
    );
    for expected in ["added before", "bookmark"] {
        assert_eq!(next_event(&mut all).await, expected);
    }
}

#[tokio::test]
async fn custom_resource_is_served_from_the_creation_of_its_crd() {
    let server = RunningServer::start(&["--cluster", "none"]);
    let client = server.client().await;
    let samples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../samples");
    let sample = |name: &str| fs::read_to_string(samples.join(name)).expect("a sample");
    let crd: CustomResourceDefinition =
        serde_saphyr::from_str(&sample("sheroes-definition.yaml")).expect("a CRD");
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    crds.create(&PostParams::default(), &crd)
        .await
        .expect("created");

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
    let created = api
        .patch(
            "philonoe",
            &PatchParams::apply("test"),
            &Patch::Apply(&shero),
        )
        .await
        .expect("applied");
    assert_eq!(created.data["spec"]["replicas"], 2);
    let status = json!({"status": {"replicas": 1}});
    let updated = api
        .patch_status("philonoe", &PatchParams::default(), &Patch::Merge(status))
        .await
        .expect("updated");
    assert_eq!(updated.data["status"]["replicas"], 1);

    crds.delete(&crd.name_any(), &DeleteParams::default())
        .await
        .expect("deleted");
    let removed = api.get("philonoe").await;
    assert_eq!(code(&removed.expect_err("the CRD is deleted")), 404);
    let namespaces: Api<Namespace> = Api::all(client);
    let protected = namespaces.delete("default", &DeleteParams::default()).await;
    assert_eq!(code(&protected.expect_err("it cannot be deleted")), 403);
}
