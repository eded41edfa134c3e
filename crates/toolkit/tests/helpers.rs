//! Promises of the helpers a reconcile writes with, on the embedded server in paused time.
#![expect(
    clippy::unwrap_used,
    reason = "a failed expectation in a test is the failure of the test"
)]

use std::sync::{Arc, Mutex};
use std::time::Duration;

use bellerophon::{
    Controller, Done, InformerOptions, Manager, ManagerOptions, Outcome, ReconcileResult, Request,
    SharedInformer, Step,
};
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
    let maps = SharedInformer::new(
        client.clone(),
        (),
        InformerOptions {
            labels: Some("test".into()),
            ..InformerOptions::default()
        },
    );
    let (for_work, noted) = (client.clone(), story.clone());
    let controller = Controller::of(&maps)
        .reconcile_with(move |request| reconcile(for_work.clone(), noted.clone(), request));
    let running = tokio::spawn(
        Manager::new(client.clone(), ManagerOptions::default())
            .cache(&maps)
            .controller(controller)
            .run(stop.clone()),
    );
    let api: Api<ConfigMap> = Api::namespaced(client, "default");
    let map = json!({ "metadata": { "name": "one", "labels": { "test": "" } } });
    api.create(
        &PostParams::default(),
        &serde_json::from_value(map).unwrap(),
    )
    .await
    .unwrap();
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
        let finalizer =
            request
                .writes()
                .finalizer(&maps, map, "example.org/test", |step| async move {
                    note(format!(
                        "{step:?} with {:?}, try {attempt}",
                        map.finalizers()
                    ));
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
    assert_eq!(
        story,
        [
            format!("Apply {ours}, try 1"),
            format!("CleanUp {ours}, try 1"),
            format!("CleanUp {ours}, try 2"),
            "gone".into()
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn unchanged_object_is_not_written() {
    let work = async |client: Client, story: Story, request: Request<ConfigMap>| {
        let change = |map: &mut ConfigMap| {
            _ = map
                .data
                .get_or_insert_default()
                .insert("a".into(), "b".into())
        };
        let (map, done) = request
            .writes()
            .create_or_patch(
                &maps(client),
                request.object.as_deref(),
                ConfigMap::default(),
                change,
            )
            .await?;
        story
            .lock()
            .unwrap()
            .push(format!("{done:?} {:?}", map.data.unwrap_or_default()));
        assert!(done != Done::Created);
        Ok(Outcome::Done)
    };
    let story = run(work, async |maps| {
        maps.patch(
            "one",
            &PatchParams::default(),
            &Patch::Merge(json!({ "data": { "a": "foreign", "c": "d" } })),
        )
        .await
        .unwrap();
    })
    .await;
    let (alone, both) = (r#"{"a": "b"}"#, r#"{"a": "b", "c": "d"}"#);
    assert_eq!(
        story,
        [
            format!("Patched {alone}"),
            format!("Unchanged {alone}"),
            format!("Patched {both}"),
            format!("Unchanged {both}")
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn stale_form_is_neither_patched_nor_deleted() {
    let work = async |client: Client, story: Story, request: Request<ConfigMap>| {
        let Some(map) = request.object.as_deref() else {
            return Ok(Outcome::Done);
        };
        let maps = maps(client);
        if map.data.is_none() {
            // Somebody else is faster.
            maps.patch(
                "one",
                &PatchParams::default(),
                &Patch::Merge(json!({ "data": { "c": "d" } })),
            )
            .await?;
            let change = |map: &mut ConfigMap| {
                _ = map
                    .data
                    .get_or_insert_default()
                    .insert("a".into(), "b".into())
            };
            let patched = request
                .writes()
                .create_or_patch(&maps, Some(map), ConfigMap::default(), change)
                .await;
            let deleted = request.writes().delete(&maps, map).await;
            let conflicts = [patched.err(), deleted.err()]
                .map(|error| error.is_some_and(|error| error.is_conflict()));
            story.lock().unwrap().push(format!("{conflicts:?}"));
            return Ok(Outcome::Done);
        }
        request.writes().delete(&maps, map).await?;
        request.writes().delete(&maps, map).await?;
        story
            .lock()
            .unwrap()
            .push("deleted once, gone the second time".into());
        Ok(Outcome::Done)
    };
    let story = run(work, async |_| {}).await;
    assert_eq!(
        story,
        ["[true, true]", "deleted once, gone the second time"]
    );
}

/// Fields and their owners: `(manager, field)` for every manager of the object.
fn owns(map: &ConfigMap, manager: &str, field: &str) -> bool {
    let owned = map
        .managed_fields()
        .iter()
        .filter(|entry| entry.manager.as_deref() == Some(manager));
    owned
        .filter_map(|entry| entry.fields_v1.as_ref())
        .any(|fields| fields.0["f:data"].get(format!("f:{field}")).is_some())
}

#[tokio::test(start_paused = true)]
async fn apply_sets_its_fields_drops_those_it_no_longer_names_and_leaves_others() {
    let work = async |client: Client, story: Story, request: Request<ConfigMap>| {
        let Some(map) = request.object.as_deref() else {
            return Ok(Outcome::Done);
        };
        let maps = maps(client);
        let wanted = |data: &[(&str, &str)]| {
            let mut wanted = ConfigMap::default();
            (wanted.metadata.name, wanted.metadata.namespace) =
                (Some("target".into()), Some("default".into()));
            // What the server keeps must not be in the way of what is wanted.
            wanted.metadata.uid = map.uid();
            wanted.metadata.resource_version = Some("1".into());
            wanted.data = Some(
                data.iter()
                    .map(|(key, value)| (key.to_string(), value.to_string()))
                    .collect(),
            );
            wanted
        };
        let note = |words: &str, map: &ConfigMap| {
            story.lock().unwrap().push(format!(
                "{words}: {:?}",
                map.data.clone().unwrap_or_default()
            ))
        };
        let made = request
            .writes()
            .apply(&maps, &wanted(&[("ours", "1"), ("both", "1")]))
            .await?;
        note("made", &made);
        let same = request
            .writes()
            .apply(&maps, &wanted(&[("ours", "1"), ("both", "1")]))
            .await?;
        assert_eq!(
            made.resource_version(),
            same.resource_version(),
            "what is as wanted is not written"
        );
        let theirs = Patch::Merge(json!({ "data": { "theirs": "1", "both": "2" } }));
        maps.patch(
            "target",
            &PatchParams {
                field_manager: Some("kubectl".into()),
                ..PatchParams::default()
            },
            &theirs,
        )
        .await?;
        let taken = request
            .writes()
            .apply(&maps, &wanted(&[("both", "3")]))
            .await?;
        note("taken over", &taken);
        let owners = ["both", "theirs"].map(|field| {
            (
                owns(&taken, request.writes().controller(), field),
                owns(&taken, "kubectl", field),
            )
        });
        assert_eq!(owners, [(true, false), (false, true)]);
        Ok(Outcome::Done)
    };
    let story = run(work, async |_| {}).await;
    assert_eq!(
        story,
        [
            r#"made: {"both": "1", "ours": "1"}"#,
            r#"taken over: {"both": "3", "theirs": "1"}"#
        ]
    );
}

#[tokio::test(start_paused = true)]
async fn apply_status_touches_nothing_but_the_status() {
    use k8s_openapi::api::apps::v1::{Deployment, DeploymentCondition};
    let work = async |client: Client, story: Story, request: Request<ConfigMap>| {
        let deployments = Api::<Deployment>::namespaced(client, "default");
        let note = |deployment: &Deployment| {
            let (status, labels) = (
                deployment.status.clone().unwrap_or_default(),
                deployment.labels().keys().collect::<Vec<_>>(),
            );
            let conditions = status.conditions.unwrap_or_default().len();
            story.lock().unwrap().push(format!(
                "labels {labels:?}, replicas {:?}, conditions {conditions}",
                status.replicas
            ));
        };
        let template = json!({ "metadata": { "labels": { "app": "web" } }, "spec": { "containers": [{ "name": "c", "image": "i" }] } });
        let spec = json!({ "selector": { "matchLabels": { "app": "web" } }, "template": template });
        let deployment =
            serde_json::from_value(json!({ "metadata": { "name": "web" }, "spec": spec }))?;
        let mut deployment = deployments
            .create(&PostParams::default(), &deployment)
            .await?;
        deployment
            .labels_mut()
            .insert("not".into(), "applied".into());
        let seen = DeploymentCondition {
            type_: "example.org/Seen".into(),
            status: "True".into(),
            ..DeploymentCondition::default()
        };
        let status = deployment.status.insert(Default::default());
        (status.replicas, status.conditions) = (Some(3), Some(vec![seen]));
        note(
            &request
                .writes()
                .apply_status(&deployments, &deployment)
                .await?,
        );
        deployment.status.get_or_insert_default().replicas = None;
        note(
            &request
                .writes()
                .apply_status(&deployments, &deployment)
                .await?,
        );
        deployment.metadata.name = Some("nobody".into());
        let missing = request
            .writes()
            .apply_status(&deployments, &deployment)
            .await
            .unwrap_err();
        story
            .lock()
            .unwrap()
            .push(format!("{} {missing}", missing.is_not_found()));
        Ok(Outcome::Done)
    };
    let story = run(work, async |_| {}).await;
    assert_eq!(
        story[..2],
        [
            "labels [], replicas Some(3), conditions 1",
            "labels [], replicas None, conditions 1"
        ]
    );
    assert!(
        story[2].starts_with("true cannot apply the status of Deployment default/nobody: "),
        "{}",
        story[2]
    );
}

#[tokio::test(start_paused = true)]
async fn missing_object_is_created_with_the_change_and_a_second_creator_is_refused() {
    let work = async |client: Client, story: Story, request: Request<ConfigMap>| {
        let maps = maps(client);
        for _ in 0..2 {
            let mut wanted = ConfigMap::default();
            (wanted.metadata.name, wanted.metadata.namespace) =
                (Some("child".into()), Some("default".into()));
            let change = |map: &mut ConfigMap| {
                _ = map
                    .data
                    .get_or_insert_default()
                    .insert("a".into(), "b".into())
            };
            // The cache of another, older process does not know the child either.
            let words = match request
                .writes()
                .create_or_patch(&maps, None, wanted, change)
                .await
            {
                Ok((map, done)) => format!(
                    "{done:?} {:?} by {:?}",
                    map.data.unwrap_or_default(),
                    request.writes().controller()
                ),
                Err(error) => format!("conflict {}: {error}", error.is_conflict()),
            };
            story.lock().unwrap().push(words);
        }
        Ok(Outcome::Done)
    };
    let story = run(work, async |_| {}).await;
    assert_eq!(story[0], r#"Created {"a": "b"} by "configmap""#);
    assert!(
        story[1].starts_with("conflict true: cannot create ConfigMap default/child: "),
        "{}",
        story[1]
    );
}
