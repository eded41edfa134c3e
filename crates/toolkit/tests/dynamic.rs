//! Promises of controllers over kinds known only at run time, and over metadata alone, on the embedded server.
#![expect(
    clippy::unwrap_used,
    reason = "a failed expectation in a test is the failure of the test"
)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bellerophon::{
    Controller, InformerOptions, Manager, ManagerOptions, ObjectKey, Outcome, Request,
    SharedInformer, set_controller_reference_of_kind,
};
use bellerophon_apiserver::ApiServer;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{Api, DeleteParams, PostParams};
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::{Client, Resource, ResourceExt};
use serde_json::json;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

type Story = Arc<Mutex<Vec<String>>>;
type Meta = PartialObjectMeta<DynamicObject>;

fn kind<K: Resource<DynamicType = ()>>() -> ApiResource {
    ApiResource::erase::<K>(&())
}

fn informer<K>(client: &Client, kind: ApiResource, labels: &str) -> SharedInformer<K>
where
    K: Resource<DynamicType = ApiResource> + serde::de::DeserializeOwned + Send + Sync + 'static,
{
    SharedInformer::new(
        client.clone(),
        kind,
        InformerOptions {
            labels: Some(labels.into()),
            ..InformerOptions::default()
        },
    )
}

async fn settle() {
    sleep(Duration::from_secs(3)).await;
}

/// A manager that runs while a story is told.
async fn run(manager: Manager, story: impl Future<Output = ()>) {
    let stop = CancellationToken::new();
    let (ran, ()) = tokio::join!(manager.run(stop.clone()), async {
        story.await;
        stop.cancel();
    });
    ran.unwrap();
}

#[tokio::test(start_paused = true)]
async fn kind_known_at_run_time_is_reconciled_with_its_children() {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let (client, story) = (server.client(), Story::default());
    let maps: SharedInformer<DynamicObject> = informer(&client, kind::<ConfigMap>(), "test");
    let secrets: SharedInformer<Meta> = informer(&client, kind::<Secret>(), "test");
    let (noted, writer, children) = (story.clone(), client.clone(), secrets.lister());
    let controller = Controller::of(&maps).owns(&secrets).reconcile_with(
        move |request: Request<DynamicObject>| {
            let (noted, writer, children) = (noted.clone(), writer.clone(), children.clone());
            async move {
                let Some(map) = request.object.as_deref() else {
                    return Ok(Outcome::Done);
                };
                noted.lock().unwrap().push(format!(
                    "{} with {} children because {}",
                    request.key,
                    children.len(),
                    words(&request)
                ));
                if children.is_empty() {
                    // A name of the server's choice: acting on an old cache would make a second child.
                    let mut child = DynamicObject::new("", &kind::<Secret>());
                    (child.metadata.name, child.metadata.generate_name) =
                        (None, Some("child-".into()));
                    (child.metadata.namespace, child.metadata.labels) = (
                        map.namespace(),
                        Some([("test".into(), String::new())].into()),
                    );
                    set_controller_reference_of_kind(&kind::<ConfigMap>(), map, &mut child)?;
                    let secrets = Api::namespaced_with(writer, "default", &kind::<Secret>());
                    request
                        .writes()
                        .of_kind(kind::<Secret>())
                        .create_or_patch(&secrets, None, child, |_| {})
                        .await?;
                    return Ok(Outcome::RequeueAfter(Duration::ZERO));
                }
                Ok(Outcome::Done)
            }
        },
    );
    assert_eq!(controller.name(), "configmap");
    let manager = Manager::new(client.clone(), ManagerOptions::default())
        .cache(&maps)
        .cache(&secrets)
        .controller(controller);
    run(manager, async {
        let map = json!({ "metadata": { "name": "one", "labels": { "test": "" } } });
        let maps = Api::<ConfigMap>::namespaced(client.clone(), "default");
        maps.create(
            &PostParams::default(),
            &serde_json::from_value(map).unwrap(),
        )
        .await
        .unwrap();
        settle().await;
        let secrets = Api::<Secret>::namespaced(client.clone(), "default");
        let children = secrets
            .list_metadata(&Default::default())
            .await
            .unwrap()
            .items;
        assert_eq!(children.len(), 1);
        secrets
            .delete(&children[0].name_any(), &DeleteParams::default())
            .await
            .unwrap();
        settle().await;
    })
    .await;
    let story = story.lock().unwrap();
    let expected = [
        "default/one with 0 children because ConfigMap added",
        "default/one with 1 children because ConfigMap retry, Secret added",
        "default/one with 0 children because Secret deleted",
    ];
    assert_eq!(story[..3], expected);
}

/// The kinds and events of the causes, without names of the server's choice.
fn words<K>(request: &Request<K>) -> String {
    let mut words: Vec<_> = request
        .causes
        .iter()
        .map(|cause| format!("{} {}", cause.kind, cause.event.as_str()))
        .collect();
    words.sort();
    words.join(", ")
}

#[tokio::test(start_paused = true)]
async fn cluster_scoped_owner_of_a_run_time_kind_is_found_by_its_cache() {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let (client, story) = (server.client(), Story::default());
    let owners: SharedInformer<Meta> = informer(&client, kind::<Namespace>(), "test");
    let secrets: SharedInformer<Meta> = informer(&client, kind::<Secret>(), "test");
    let noted = story.clone();
    let controller =
        Controller::of(&owners)
            .owns(&secrets)
            .reconcile_with(move |request: Request<Meta>| {
                noted
                    .lock()
                    .unwrap()
                    .push(format!("{} {}", request.key, request.object.is_some()));
                async { Ok(Outcome::Done) }
            });
    let manager = Manager::new(client.clone(), ManagerOptions::default())
        .cache(&owners)
        .cache(&secrets)
        .controller(controller);
    run(manager, async {
        let namespace = json!({ "metadata": { "name": "team-a", "labels": { "test": "" } } });
        let namespace: Namespace = serde_json::from_value(namespace).unwrap();
        let namespace = Api::<Namespace>::all(client.clone())
            .create(&PostParams::default(), &namespace)
            .await
            .unwrap();
        settle().await;
        let mut secret: Secret = serde_json::from_value(
            json!({ "metadata": { "name": "child", "labels": { "test": "" } } }),
        )
        .unwrap();
        bellerophon::set_controller_reference(&namespace, &mut secret).unwrap();
        Api::<Secret>::namespaced(client.clone(), "default")
            .create(&PostParams::default(), &secret)
            .await
            .unwrap();
        settle().await;
    })
    .await;
    assert_eq!(*story.lock().unwrap(), ["team-a true", "team-a true"]);
    assert_eq!(
        owners
            .lister()
            .get(&ObjectKey::cluster("team-a"))
            .map(|owner| owner.name_any()),
        Some("team-a".into())
    );
}
