//! Custom resources: from the definition to the last object.

use serde_json::{Value, json};

use super::{
    cluster::{Cluster, both_ways, in_process},
    effect::{
        Effect::{Added, Deleted, Generation, Nothing, Version},
        check, row,
    },
    objects::{held, widget, widgets},
    watching::shorts,
};

/// Makes the definition of widgets.
pub(crate) async fn defined(cluster: &Cluster) {
    let made = cluster
        .request(
            "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions",
            &widgets(),
        )
        .await;
    assert_eq!(made.code, 201, "{}", made.message());
}

#[test]
fn custom_resources_are_written_by_their_schema() {
    let sized = |size: Value| json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": size}});
    let put = |size: i64| {
        let mut object = widget("w", size);
        object["metadata"]["resourceVersion"] = json!("{rv}");
        object
    };
    both_ways(async |cluster| {
        defined(cluster).await;
        check(
            cluster,
            vec![
                row("good one is added", [], ("POST widget", widget("w", 3)), (201, ""), Added),
                row(
                    "other version takes it too",
                    [],
                    ("POST widget2", {
                        let mut object = widget("w", 3);
                        object["apiVersion"] = json!("example.dev/v2");
                        object
                    }),
                    (201, ""),
                    Added,
                ),
                row("required field is demanded", [], ("POST widget", sized(Value::Null)), (422, "Invalid"), Nothing),
                row("wrong type is invalid", [], ("POST widget", sized(json!("3"))), (422, "Invalid"), Nothing),
                row("bounds are kept", [], ("POST widget", sized(json!(11))), (422, "Invalid"), Nothing),
                row(
                    "strict unknown field is refused",
                    [],
                    (
                        "POST widget?fieldValidation=Strict",
                        json!({"apiVersion": "example.dev/v1", "kind": "Widget", "metadata": {"name": "w"}, "spec": {"size": 1, "odd": 1}}),
                    ),
                    (400, "BadRequest"),
                    Nothing,
                ),
                row("PUT needs a version", [("POST widget", widget("w", 3))], ("PUT widget/w", widget("w", 4)), (422, "Invalid"), Nothing),
                row("spec raises the generation", [("POST widget", widget("w", 3))], ("PUT widget/w", put(4)), (200, ""), Generation),
                row(
                    "metadata keeps the generation",
                    [("POST widget", widget("w", 3))],
                    ("MERGE widget/w", json!({"metadata": {"labels": {"a": "b"}}})),
                    (200, ""),
                    Version,
                ),
                row(
                    "status in a main write is dropped",
                    [("POST widget", widget("w", 3))],
                    ("MERGE widget/w", json!({"status": {"ready": 1}})),
                    (200, ""),
                    Nothing,
                ),
                row(
                    "status write keeps the generation",
                    [("POST widget", widget("w", 3))],
                    ("MERGE widget/w/status", json!({"status": {"ready": 1}})),
                    (200, ""),
                    Version,
                ),
                row(
                    "spec in a status write is dropped",
                    [("POST widget", widget("w", 3))],
                    ("MERGE widget/w/status", json!({"spec": {"size": 9}})),
                    (200, ""),
                    Nothing,
                ),
                row(
                    "unknown field is pruned away",
                    [("POST widget", widget("w", 3))],
                    ("MERGE widget/w", json!({"spec": {"odd": 1}})),
                    (200, ""),
                    Nothing,
                ),
                row(
                    "set takes no value twice",
                    [("POST widget", widget("w", 3))],
                    ("MERGE widget/w", json!({"spec": {"parts": ["a", "a"]}})),
                    (422, "Invalid"),
                    Nothing,
                ),
                row("deletion removes", [("POST widget", widget("w", 3))], ("DELETE widget/w", Value::Null), (200, ""), Deleted),
                row(
                    "finalizer holds in a new generation",
                    [("POST widget", held(widget("w", 3)))],
                    ("DELETE widget/w", Value::Null),
                    (200, ""),
                    Generation,
                ),
                row(
                    "JSON patch is taken",
                    [("POST widget", widget("w", 3))],
                    ("JSON widget/w", json!([{"op": "replace", "path": "/spec/size", "value": 4}])),
                    (200, ""),
                    Generation,
                ),
                row(
                    "body of another kind is refused",
                    [],
                    ("POST widget", json!({"apiVersion": "example.dev/v1", "kind": "Gadget", "metadata": {"name": "w"}})),
                    (422, "Invalid"),
                    Nothing,
                ),
            ],
        )
        .await;
    });
}

#[test]
fn definition_is_served_from_the_moment_it_is_answered() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        assert_eq!(place.get("widget").await.code, 404);
        defined(cluster).await;
        let definition = place.get("crd/widgets.example.dev").await.body;
        let conditions: Vec<&str> = definition["status"]["conditions"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|c| c["type"].as_str())
            .collect();
        assert_eq!(conditions, ["NamesAccepted", "Established"]);
        assert_eq!(definition["metadata"]["generation"].as_i64(), Some(1));
        assert_eq!(&definition["status"]["storedVersions"], &json!(["v1"]));
        assert_eq!(place.get("widget").await.code, 200);
        let versions = cluster
            .request("GET /apis/example.dev/v1", &Value::Null)
            .await;
        let names: Vec<&str> = versions.body["resources"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(|r| r["name"].as_str())
            .collect();
        assert_eq!(names, ["widgets", "widgets/status", "widgets/scale"]);
    });
}

#[test]
fn objects_are_completed_and_shown_in_every_version() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        defined(cluster).await;
        place.set_up(&[("POST widget", widget("w", 3))]).await;
        for (path, version) in [
            ("widget/w", "example.dev/v1"),
            ("widget2/w", "example.dev/v2"),
        ] {
            let object = place.get(path).await.body;
            assert_eq!(object["apiVersion"].as_str(), Some(version), "{path}");
            assert_eq!(object["spec"]["color"].as_str(), Some("red"), "{path}");
        }
        let items = place.get("widget2").await.body["items"].clone();
        assert_eq!(
            items[0]["kind"].as_str(),
            Some("Widget"),
            "items name their kind"
        );
        assert_eq!(
            items[0]["apiVersion"].as_str(),
            Some("example.dev/v2"),
            "items name their kind"
        );
    });
}

#[test]
fn selectable_fields_select_in_lists_and_watches() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        defined(cluster).await;
        let mut blue = widget("b", 1);
        blue["spec"]["color"] = json!("blue");
        let start = place.now().await;
        let v = place
            .set_up(&[
                ("POST widget", widget("a", 1)),
                ("POST widget", blue),
                ("MERGE widget/a", json!({"spec": {"color": "blue"}})),
            ])
            .await;
        assert_eq!(
            place
                .get("widget?fieldSelector=spec.color%3Dblue")
                .await
                .names(),
            ["a", "b"]
        );
        assert_eq!(
            place.get("widget?fieldSelector=spec.size%3D1").await.code,
            400
        );
        let events = place
            .events_since("widget?fieldSelector=spec.color%3Dred", start)
            .await;
        assert_eq!(
            shorts(&events),
            [format!("ADDED a@{}", v[0]), format!("DELETED a@{}", v[2])]
        );
    });
}

#[test]
fn broken_definitions_are_refused() {
    both_ways(async |cluster| {
        let change = |path: &str, value: Value| {
            let mut definition = widgets();
            *definition.pointer_mut(path).expect("it is there") = value;
            definition
        };
        for (what, definition) in [
            (
                "name is plural.group",
                change("/metadata/name", json!("gadgets.example.dev")),
            ),
            (
                "no storage version",
                change("/spec/versions/0/storage", json!(false)),
            ),
            (
                "two storage versions",
                change("/spec/versions/1/storage", json!(true)),
            ),
            ("scope", change("/spec/scope", json!("Everywhere"))),
            ("no versions", change("/spec/versions", json!([]))),
            (
                "schema without a type",
                change(
                    "/spec/versions/0/schema/openAPIV3Schema/properties/spec",
                    json!({"properties": {}}),
                ),
            ),
            (
                "default of the wrong type",
                change(
                    "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/color/default",
                    json!(5),
                ),
            ),
        ] {
            let answer = cluster
                .request(
                    "POST /apis/apiextensions.k8s.io/v1/customresourcedefinitions",
                    &definition,
                )
                .await;
            assert_eq!(
                answer.code,
                422,
                "{what} ({:?}): {}",
                cluster.way,
                answer.message()
            );
            assert_eq!(
                answer.reason(),
                "Invalid",
                "{what} ({:?}): {}",
                cluster.way,
                answer.message()
            );
        }
    });
}

#[test]
fn definition_is_deleted_after_its_objects() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        defined(cluster).await;
        place
            .set_up(&[
                ("POST widget", widget("free", 1)),
                ("POST widget", held(widget("held", 1))),
                ("DELETE crd/widgets.example.dev", Value::Null),
            ])
            .await;
        assert_eq!(
            place.get("widget").await.names(),
            ["held"],
            "what nothing holds goes first"
        );
        let refused = place.request("POST widget", &widget("late", 1)).await;
        assert_eq!(refused.code, 403);
        assert_eq!(refused.reason(), "Forbidden");
        place
            .set_up(&[(
                "MERGE widget/held",
                json!({"metadata": {"finalizers": null}}),
            )])
            .await;
        assert_eq!(place.get("crd/widgets.example.dev").await.code, 404);
        let gone = place.get("widget").await;
        assert_eq!(gone.code, 404);
        assert_eq!(gone.text.trim_end(), "404 page not found");
    });
}

/// Each deletion of an object used to start the clean-up again, one call deeper, until the stack
/// overflowed.
#[test]
fn definition_is_deleted_with_ten_thousand_objects() {
    const OBJECTS: usize = 10_000;
    in_process(async |cluster| {
        let place = cluster.place("a").await;
        defined(cluster).await;
        for number in 0..OBJECTS {
            let made = place
                .request("POST widget", &widget(&format!("w{number}"), 1))
                .await;
            assert_eq!(made.code, 201, "{}", made.message());
        }
        let deleted = place
            .request("DELETE crd/widgets.example.dev", &Value::Null)
            .await;
        assert_eq!(deleted.code, 200, "{}", deleted.message());
        assert_eq!(place.get("crd/widgets.example.dev").await.code, 404);
        assert_eq!(place.get("widget").await.code, 404);
        defined(cluster).await;
        assert_eq!(place.get("widget").await.names(), Vec::<String>::new());
    });
}

/// The release of each object used to list and decode all that were left.
#[test]
fn definition_is_deleted_after_the_last_finalizer_of_an_object() {
    const OBJECTS: usize = 2_000;
    in_process(async |cluster| {
        let place = cluster.place("a").await;
        defined(cluster).await;
        for number in 0..OBJECTS {
            let made = place
                .request("POST widget", &held(widget(&format!("w{number}"), 1)))
                .await;
            assert_eq!(made.code, 201, "{}", made.message());
        }
        place
            .set_up(&[("DELETE crd/widgets.example.dev", Value::Null)])
            .await;
        for number in 0..OBJECTS {
            assert_eq!(place.get("crd/widgets.example.dev").await.code, 200);
            let released = place
                .request(
                    &format!("MERGE widget/w{number}"),
                    &json!({"metadata": {"finalizers": null}}),
                )
                .await;
            assert_eq!(released.code, 200, "{}", released.message());
        }
        assert_eq!(place.get("crd/widgets.example.dev").await.code, 404);
    });
}

#[test]
fn tightened_schema_leaves_old_values_alone() {
    let tighter = |version: u8| {
        let path = format!(
            "/spec/versions/{version}/schema/openAPIV3Schema/properties/spec/properties/size/maximum"
        );
        json!({"op": "replace", "path": path, "value": 5})
    };
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        defined(cluster).await;
        let patch = json!([tighter(0), tighter(1)]);
        place
            .set_up(&[
                ("POST widget", widget("w", 9)),
                ("JSON crd/widgets.example.dev", patch),
            ])
            .await;
        for (patch, code) in [
            (json!({"spec": {"color": "blue"}}), 200),
            (json!({"spec": {"size": 8}}), 422),
            (json!({"spec": {"size": 4}}), 200),
            (json!({"spec": {"size": 9}}), 422),
        ] {
            let answer = place.request("MERGE widget/w", &patch).await;
            assert_eq!(
                answer.code,
                code,
                "{patch} ({:?}): {}",
                cluster.way,
                answer.message()
            );
        }
    });
}

#[test]
fn strategic_merge_of_custom_resources_is_refused() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        defined(cluster).await;
        place.set_up(&[("POST widget", widget("w", 1))]).await;
        let answer = place
            .request("STRATEGIC widget/w", &json!({"spec": {"size": 2}}))
            .await;
        assert_eq!(answer.code, 415);
        assert_eq!(answer.reason(), "UnsupportedMediaType");
        assert!(
            answer.message().contains("application/json-patch+json"),
            "{}",
            answer.message()
        );
    });
}
