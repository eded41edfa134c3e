//! Deletions: definitions with many objects, malformed selectors.

use std::time::Duration;

use futures_util::{StreamExt as _, stream};
use serde_json::json;
use tokio::time::Instant;

use crate::target::Target;

const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// The clean-up used to recurse once per object: about 115 objects overflowed the stack.
#[tokio::test]
async fn deleting_a_definition_with_many_objects_does_not_end_the_process() {
    const OBJECTS: usize = 400;
    let target = Target::start().await;
    let definition = json!({
        "metadata": {"name": "things.attacks.example"},
        "spec": {
            "group": "attacks.example",
            "scope": "Namespaced",
            "names": {"plural": "things", "kind": "Thing"},
            "versions": [{
                "name": "v1",
                "served": true,
                "storage": true,
                "schema": {"openAPIV3Schema": {"type": "object"}},
            }],
        },
    });
    target.admin.create(DEFINITIONS, &definition).await;
    let things = "/apis/attacks.example/v1/namespaces/default/things";
    let admin = &target.admin;
    let created = stream::iter(0..OBJECTS).map(|i| async move {
        let thing = json!({
            "apiVersion": "attacks.example/v1",
            "kind": "Thing",
            "metadata": {"name": format!("t{i}")},
        });
        admin.create(things, &thing).await
    });
    let created = created.buffer_unordered(16).count().await;
    assert_eq!(created, OBJECTS);
    let path = format!("{DEFINITIONS}/things.attacks.example");
    admin.delete(&path).await.assert_status(200);
    let started = Instant::now();
    while admin.get(&path).await.status != 404 {
        assert!(
            started.elapsed() < Duration::from_secs(10),
            "it is not gone"
        );
    }
    admin.get(things).await.assert_status(404);
    target.assert_well().await;
}

/// Parameters that are not UTF-8 used to be ignored: no selector, and no dry run.
#[tokio::test]
async fn malformed_selector_of_a_deletion_deletes_nothing() {
    let target = Target::start().await;
    let admin = &target.admin;
    for name in ["a", "b", "c", "d"] {
        let object = json!({"metadata": {"name": name, "labels": {"app": "x"}}});
        admin.create(CONFIG_MAPS, &object).await;
    }
    for query in [
        "labelSelector=app%3D%FF&dryRun=All%FF",
        "labelSelector=app%3D%FF",
        "fieldSelector=metadata.name%3D%FF",
        "dryRun=All%FF",
    ] {
        let deleted = admin.delete(&format!("{CONFIG_MAPS}?{query}")).await;
        deleted.assert_status(400);
    }
    let page = format!("{CONFIG_MAPS}?limit=1&continue=%FF");
    admin.get(&page).await.assert_status(400);
    let list = admin.get(CONFIG_MAPS).await.json();
    assert_eq!(list["items"].as_array().map(Vec::len), Some(4), "{list}");
    target.assert_well().await;
}
