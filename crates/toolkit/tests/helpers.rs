//! Promises of the helpers a reconcile writes with, on the embedded server in paused time.
#![expect(clippy::unwrap_used, reason = "a failed expectation in a test is the failure of the test")]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bellerophon::{Controller, Done, InformerOptions, Manager, ManagerOptions, Outcome, ReconcileResult, Request, SharedInformer, Step};
use bellerophon_apiserver::ApiServer;
use k8s_openapi::api::core::v1::ConfigMap;
use kube::api::{Api, DeleteParams, Patch, PatchParams, PostParams};
use kube::{Client, ResourceExt};
use serde_json::json;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;

type Story = Arc<Mutex<Vec<String>>>;

/// Runs a controller over the maps labelled `test` while `tell` goes on, and returns what it noted.
async fn run<F, T>(
    reconcile: impl Fn(Client, Story, Request<ConfigMap>) -> F + Send + Sync + 'static,
    tell: impl FnOnce(Api<ConfigMap>) -> T,
) -> Vec<String>
where
    F: Future<Output = ReconcileResult> + Send + 'static,
    T: Future<Output = ()>,
{
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let (client, story, stop) = (server.client(), Story::default(), CancellationToken::new());
    let maps = SharedInformer::new(client.clone(), (), InformerOptions { labels: Some("test".into()), ..InformerOptions::default() });
    let (for_work, noted) = (client.clone(), story.clone());
    let controller = Controller::of(&maps).reconcile_with(move |request| reconcile(for_work.clone(), noted.clone(), request));
    let running =
        tokio::spawn(Manager::new(client.clone(), ManagerOptions::default()).cache(&maps).controller(controller).run(stop.clone()));
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let map = json!({ "metadata": { "name": "one", "labels": { "test": "" } } });
    api.create(&PostParams::default(), &serde_json::from_value(map).unwrap()).await.unwrap();
    sleep(Duration::from_secs(5)).await;
    tell(api).await;
    sleep(Duration::from_secs(5)).await;
    stop.cancel();
    running.await.unwrap().unwrap();
    let story = story.lock().unwrap();
    story.clone()
}

fn maps(client: Client) -> Api<ConfigMap> {
    Api::namespaced(client, "default")
}

#[tokio::test(start_paused = true)]
async fn finalizer_is_stored_before_work_and_goes_after_clean_up() {
    let work = async |client: Client, story: Story, request: Request<ConfigMap>| {
        let note = |words: String| story.lock().unwrap().push(words);
        let Some(map) = request.object.as_deref() else {
            note("gone".into());
            return Ok(Outcome::Done);
        };
        let (attempt, maps) = (request.attempt, maps(client));
        let finalizer = request.writes().finalizer(&maps, map, "example.org/test", |step| async move {
            note(format!("{step:?} with {:?}, try {attempt}", map.finalizers()));
            match (step, attempt) {
                (Step::CleanUp, 1) => Err(bellerophon::Failure::retry("not yet")),
                _ => Ok(Outcome::Done),
            }
        });
        finalizer.await
    };
    let story = run(work, async |maps| {
        maps.delete("one", &DeleteParams::default()).await.unwrap();
    })
    .await;
    let ours = r#"with ["example.org/test"]"#;
    assert_eq!(story, [format!("Apply {ours}, try 1"), format!("CleanUp {ours}, try 1"), format!("CleanUp {ours}, try 2"), "gone".into()]);
}

#[tokio::test(start_paused = true)]
async fn unchanged_object_is_not_written() {
    let work = async |client: Client, story: Story, request: Request<ConfigMap>| {
        let change = |map: &mut ConfigMap| _ = map.data.get_or_insert_default().insert("a".into(), "b".into());
        let (map, done) = request.writes().create_or_patch(&maps(client), request.object.as_deref(), ConfigMap::default(), change).await?;
        story.lock().unwrap().push(format!("{done:?} {:?}", map.data.unwrap_or_default()));
        assert!(done != Done::Created);
        Ok(Outcome::Done)
    };
    let story = run(work, async |maps| {
        maps.patch("one", &PatchParams::default(), &Patch::Merge(json!({ "data": { "a": "foreign", "c": "d" } }))).await.unwrap();
    })
    .await;
    let (alone, both) = (r#"{"a": "b"}"#, r#"{"a": "b", "c": "d"}"#);
    assert_eq!(story, [format!("Patched {alone}"), format!("Unchanged {alone}"), format!("Patched {both}"), format!("Unchanged {both}")]);
}

#[tokio::test(start_paused = true)]
async fn stale_form_is_neither_patched_nor_deleted() {
    let work = async |client: Client, story: Story, request: Request<ConfigMap>| {
        let Some(map) = request.object.as_deref() else { return Ok(Outcome::Done) };
        let maps = maps(client);
        if map.data.is_none() {
            // Somebody else is faster.
            maps.patch("one", &PatchParams::default(), &Patch::Merge(json!({ "data": { "c": "d" } }))).await?;
            let change = |map: &mut ConfigMap| _ = map.data.get_or_insert_default().insert("a".into(), "b".into());
            let patched = request.writes().create_or_patch(&maps, Some(map), ConfigMap::default(), change).await;
            let deleted = request.writes().delete(&maps, map).await;
            let conflicts = [patched.err(), deleted.err()].map(|error| error.is_some_and(|error| error.is_conflict()));
            story.lock().unwrap().push(format!("{conflicts:?}"));
            return Ok(Outcome::Done);
        }
        request.writes().delete(&maps, map).await?;
        request.writes().delete(&maps, map).await?;
        story.lock().unwrap().push("deleted once, gone the second time".into());
        Ok(Outcome::Done)
    };
    let story = run(work, async |_| {}).await;
    assert_eq!(story, ["[true, true]", "deleted once, gone the second time"]);
}
