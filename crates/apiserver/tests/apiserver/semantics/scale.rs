//! The `scale` subresource, of built-in kinds and of custom resources.

use serde_json::{Value, json};

use super::{
    cluster::both_ways,
    custom::defined,
    effect::{
        Effect::{Generation, Nothing},
        check, row,
    },
    objects::{deployment, widget},
};

/// A Scale as a whole.
fn scale(name: &str, version: &str, replicas: i64) -> Value {
    json!({"apiVersion": "autoscaling/v1", "kind": "Scale", "metadata": {"name": name, "resourceVersion": version}, "spec": {"replicas": replicas}})
}

#[test]
fn scale_changes_replicas_and_nothing_else() {
    let wanted = |replicas: i64| json!({"spec": {"replicas": replicas}});
    both_ways(async |cluster| {
        defined(cluster).await;
        let mut rows = Vec::new();
        for (kind, made) in [("deploy", deployment("a", 3)), ("widget", widget("a", 3))] {
            let line = |method: &str, query: &str| -> &'static str {
                format!("{method} {kind}/a/scale{query}").leak()
            };
            let setup = || [(&*format!("POST {kind}").leak(), made.clone())];
            rows.extend([
                row("patch scales", setup(), (line("MERGE", ""), wanted(5)), (200, ""), Generation),
                row("patch to the same changes nothing", setup(), (line("MERGE", ""), wanted(3)), (200, ""), Nothing),
                row(
                    "JSON patch scales",
                    setup(),
                    (line("JSON", ""), json!([{"op": "replace", "path": "/spec/replicas", "value": 2}])),
                    (200, ""),
                    Generation,
                ),
                row("replacement of this version scales", setup(), (line("PUT", ""), scale("a", "{rv}", 5)), (200, ""), Generation),
                row("replacement without a version scales", setup(), (line("PUT", ""), scale("a", "", 5)), (200, ""), Generation),
                row(
                    "replacement of another version is a conflict",
                    setup(),
                    (line("PUT", ""), scale("a", "1", 5)),
                    (409, "Conflict"),
                    Nothing,
                ),
                row("another name is refused", setup(), (line("PUT", ""), scale("b", "{rv}", 5)), (400, "BadRequest"), Nothing),
                row("negative number is invalid", setup(), (line("PUT", ""), scale("a", "{rv}", -1)), (422, "Invalid"), Nothing),
                row("text is no number", setup(), (line("MERGE", ""), json!({"spec": {"replicas": "5"}})), (422, "Invalid"), Nothing),
                row(
                    "another kind is refused",
                    setup(),
                    (line("PUT", ""), json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "a"}})),
                    (400, "BadRequest"),
                    Nothing,
                ),
                row("dry run changes nothing", setup(), (line("MERGE", "?dryRun=All"), wanted(5)), (200, ""), Nothing),
                row(
                    "labels are not a scale's to change",
                    setup(),
                    (line("MERGE", ""), json!({"metadata": {"labels": {"a": "b"}}})),
                    (200, ""),
                    Nothing,
                ),
                row("what is not there does not scale", [], (line("MERGE", ""), wanted(5)), (404, "NotFound"), Nothing),
                row("scale is not made", setup(), (line("POST", ""), scale("a", "", 5)), (405, "MethodNotAllowed"), Nothing),
                row("scale is not deleted", setup(), (line("DELETE", ""), Value::Null), (405, "MethodNotAllowed"), Nothing),
            ]);
        }
        rows.push(row(
            "schema bounds a scale",
            [("POST widget", widget("a", 3))],
            ("MERGE widget/a/scale", wanted(11)),
            (422, "Invalid"),
            Nothing,
        ));
        check(cluster, rows).await;
    });
}

#[test]
fn scale_shows_desired_and_actual_replicas() {
    both_ways(async |cluster| {
        defined(cluster).await;
        let place = cluster.place("a").await;
        place
            .set_up(&[
                ("POST deploy", deployment("a", 3)),
                ("MERGE deploy/a/status", json!({"status": {"replicas": 2}})),
                ("POST widget", widget("a", 3)),
                ("MERGE widget/a/status", json!({"status": {"ready": 2}})),
            ])
            .await;
        for (path, status) in [
            ("deploy/a", json!({"replicas": 2, "selector": "app=a"})),
            ("widget/a", json!({"replicas": 2})),
        ] {
            let object = place.get(path).await;
            let shown = place.get(&format!("{path}/scale")).await;
            assert_eq!(&shown.body["kind"], &json!("Scale"), "{path}");
            assert_eq!(
                &shown.body["apiVersion"],
                &json!("autoscaling/v1"),
                "{path}"
            );
            assert_eq!(&shown.body["spec"], &json!({"replicas": 3}), "{path}");
            assert_eq!(&shown.body["status"], &status, "{path}");
            for field in [
                "name",
                "namespace",
                "uid",
                "resourceVersion",
                "creationTimestamp",
            ] {
                assert_eq!(
                    shown.body["metadata"][field], object.body["metadata"][field],
                    "{path} {field}"
                );
            }
        }
    });
}
