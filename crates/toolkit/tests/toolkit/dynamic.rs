//! Controllers of kinds known at run time, and of metadata alone.

use std::sync::Arc;
use std::time::Duration;

use bellerophon::informer::{InformerOptions, InitialList, SharedInformer};
use bellerophon::prelude::*;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Secret};
use kube::api::{Api, DeleteParams, ListParams};
use kube::core::{ApiResource, DynamicObject, PartialObjectMeta};
use kube::{Resource, ResourceExt};
use serde_json::json;
use tokio::time::sleep;

use crate::harness::{Log, api, create, create_namespace, manager, run, secret, server};

type Metadata = PartialObjectMeta<DynamicObject>;

fn resource<K: Resource<DynamicType = ()>>() -> ApiResource {
    ApiResource::erase::<K>(&())
}

/// The informer of labelled objects of a resource.
fn informer<K: Kind>(mgr: &mut Manager, resource: ApiResource) -> SharedInformer<K> {
    mgr.informer(InformerOptions {
        labels: Some("test".into()),
        ..InformerOptions::resource(resource)
    })
}

async fn settle() {
    sleep(Duration::from_secs(3)).await;
}

/// The kinds and events of the causes, without names that the server chose.
fn causes<K>(req: &Request<K>) -> String {
    let mut causes: Vec<_> = req
        .causes()
        .iter()
        .map(|cause| format!("{} {}", cause.kind, cause.event.as_str()))
        .collect();
    causes.sort();
    causes.join(", ")
}

/// What the reconciler below uses.
struct Children {
    log: Log,
    secrets: Lister<Metadata>,
}

/// Gives each object a Secret, if it has none.
async fn create_child(ctx: Arc<Children>, req: Request<DynamicObject>) -> Result<Action, Error> {
    let Some(owner) = req.object() else {
        return Ok(Action::await_change());
    };
    let children = ctx.secrets.len();
    ctx.log.push(format!(
        "{} with {children} children because {}",
        req.key(),
        causes(&req)
    ));
    if children > 0 {
        return Ok(Action::await_change());
    }
    // The server chooses the name: a reconcile on an old cache would create a second child.
    let mut child = DynamicObject::new("", &resource::<Secret>());
    child.metadata.name = None;
    child.metadata.generate_name = Some("child-".into());
    child.metadata.namespace = owner.namespace();
    child.metadata.labels = Some([("test".into(), String::new())].into());
    set_controller_reference(owner, &mut child)?;
    req.client().create(&child).await?;
    Ok(Action::requeue_after(Duration::ZERO))
}

#[tokio::test(start_paused = true)]
async fn dynamic_kind_is_reconciled_with_its_children() {
    for initial_list in [InitialList::Streamed, InitialList::Paged] {
        let server = server().await;
        let client = server.client();
        let log = Log::default();
        let mut mgr = manager(&client);
        let maps = mgr.informer::<DynamicObject>(InformerOptions {
            labels: Some("test".into()),
            initial_list: Some(initial_list),
            ..InformerOptions::resource(resource::<ConfigMap>())
        });
        let secrets = informer::<Metadata>(&mut mgr, resource::<Secret>());
        let context = Children {
            log: log.clone(),
            secrets: secrets.lister(),
        };
        let handle = mgr
            .controller::<DynamicObject>()
            .informer(&maps)
            .owns::<Metadata>()
            .informer(&secrets)
            .context(Arc::new(context))
            .reconcile(create_child);
        assert_eq!(handle.name(), "configmap");
        create(&client, "one").await;
        run(mgr, async {
            settle().await;
            let secrets = api::<Secret>(&client);
            let children = secrets.list_metadata(&ListParams::default()).await;
            let children = children.unwrap().items;
            assert_eq!(children.len(), 1);
            let name = children[0].name_any();
            let deleted = secrets.delete(&name, &DeleteParams::default()).await;
            deleted.unwrap();
            settle().await;
        })
        .await;
        let mut expected = [
            "default/one with 0 children because ConfigMap added",
            "default/one with 1 children because ConfigMap retry, Secret added",
            "default/one with 0 children because Secret deleted",
        ];
        let mut log = log.all();
        if !server.has_virtual_time() {
            // The Secret may be added after the reconcile of the retry, which causes another one.
            log.retain(|line| !line.ends_with("because Secret added"));
            expected[1] = expected[1].trim_end_matches(", Secret added");
            log[1] = log[1].trim_end_matches(", Secret added").to_owned();
        }
        assert_eq!(log[..3], expected, "{initial_list:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn cluster_scoped_owner_of_a_dynamic_kind_is_found_by_its_cache() {
    let server = server().await;
    let client = server.client();
    let log = Log::default();
    let mut mgr = manager(&client);
    let owners = informer::<Metadata>(&mut mgr, resource::<Namespace>());
    let secrets = informer::<Metadata>(&mut mgr, resource::<Secret>());
    mgr.controller::<Metadata>()
        .informer(&owners)
        .owns::<Metadata>()
        .informer(&secrets)
        .context(Arc::new(log.clone()))
        .reconcile(async |log: Arc<Log>, req: Request<Metadata>| {
            log.push(format!("{} {}", req.key(), req.object().is_some()));
            Ok(Action::await_change())
        });
    run(mgr, async {
        create_namespace(&client, "team-a", json!({ "test": "" })).await;
        settle().await;
        let namespaces = Api::<Namespace>::all(client.clone());
        let namespace = namespaces.get("team-a").await.unwrap();
        let mut child = secret("child");
        child.metadata.labels = Some([("test".into(), String::new())].into());
        set_controller_reference(&namespace, &mut child).unwrap();
        let created = api::<Secret>(&client)
            .create(&Default::default(), &child)
            .await;
        created.unwrap();
        settle().await;
    })
    .await;
    assert_eq!(log.all(), ["team-a true", "team-a true"]);
    let owner = owners.lister().get(&ObjectKey::cluster("team-a"));
    assert_eq!(
        owner.map(|owner| owner.name_any()).as_deref(),
        Some("team-a")
    );
}

/// A dynamic object is applied without naming its resource: the REST mapper discovers it once.
#[tokio::test(start_paused = true)]
async fn resource_of_a_dynamic_object_is_discovered_once() {
    let server = server().await;
    let client = server.client();
    let log = Log::default();
    let mut mgr = manager(&client);
    let metrics = mgr.metrics().clone();
    let maps = crate::harness::maps(&mut mgr);
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .context(Arc::new(log.clone()))
        .reconcile(async |log: Arc<Log>, req: Request<ConfigMap>| {
            let resource = resource::<Secret>();
            let mut copy = DynamicObject::new(req.key().name(), &resource).within("default");
            copy.data = json!({ "stringData": { "a": "b" } });
            let written = req.client().apply(&copy).await?;
            let object = written.object()?;
            log.push(format!("{} {}", object.name_any(), object.data["type"]));
            Ok(Action::await_change())
        });
    run(mgr, async {
        for name in ["a", "b", "c"] {
            create(&client, name).await;
            settle().await;
        }
    })
    .await;
    let expected = ["a", "b", "c"].map(|name| format!("{name} \"Opaque\""));
    assert_eq!(log.all(), expected);
    let text = metrics.encode();
    let gets = crate::harness::sample(
        &text,
        "rest_client_requests_total",
        r#"code="200",host="",method="GET""#,
    );
    // One watch with the initial list, one discovery of the group version.
    assert_eq!(gets, 2.0, "{text}");
}
