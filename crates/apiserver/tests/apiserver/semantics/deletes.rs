//! Deletions: immediate, held by finalizers, with preconditions, of whole collections.

use serde_json::{Value, json};

use super::{
    cluster::both_ways,
    effect::{
        Effect::{ChangedAndDeleted, Deleted, Generation, Nothing, Version},
        check, row,
    },
    objects::{cm, deployment, held, labelled, pod},
};

#[test]
fn deletions_respect_finalizers_grace_and_conditions() {
    let delete_held = || {
        [
            ("POST cm", held(cm("a", "1"))),
            ("DELETE cm/a", Value::Null),
        ]
    };
    both_ways(async |cluster| {
        check(
            cluster,
            vec![
                row("deletion removes", [("POST cm", cm("a", "1"))], ("DELETE cm/a", Value::Null), (200, ""), Deleted),
                row("missing name is not found", [], ("DELETE cm/a", Value::Null), (404, "NotFound"), Nothing),
                row("finalizer holds a ConfigMap", [("POST cm", held(cm("a", "1")))], ("DELETE cm/a", Value::Null), (200, ""), Version),
                row(
                    "finalizer holds a Deployment in a new generation",
                    [("POST deploy", held(deployment("d", 1)))],
                    ("DELETE deploy/d", Value::Null),
                    (200, ""),
                    Generation,
                ),
                row("second deletion of a held object changes nothing", delete_held(), ("DELETE cm/a", Value::Null), (200, ""), Nothing),
                row("terminating object can be changed", delete_held(), ("MERGE cm/a", json!({"data": {"k": "2"}})), (200, ""), Version),
                row(
                    "terminating object takes no new finalizer",
                    delete_held(),
                    ("MERGE cm/a", json!({"metadata": {"finalizers": ["example.dev/hold", "example.dev/more"]}})),
                    (422, "Invalid"),
                    Nothing,
                ),
                row(
                    "last finalizer removed deletes",
                    delete_held(),
                    ("MERGE cm/a", json!({"metadata": {"finalizers": null}})),
                    (200, ""),
                    Deleted,
                ),
                row(
                    "finalizer removed before the deletion only changes",
                    [("POST cm", held(cm("a", "1")))],
                    ("MERGE cm/a", json!({"metadata": {"finalizers": null}})),
                    (200, ""),
                    Version,
                ),
                row(
                    "deletion time cannot be written",
                    [("POST cm", cm("a", "1"))],
                    ("MERGE cm/a", json!({"metadata": {"deletionTimestamp": "2001-01-01T00:00:00Z"}})),
                    (422, "Invalid"),
                    Nothing,
                ),
                row(
                    "other uid is a conflict",
                    [("POST cm", cm("a", "1"))],
                    ("DELETE cm/a", json!({"preconditions": {"uid": "other"}})),
                    (409, "Conflict"),
                    Nothing,
                ),
                row(
                    "same uid deletes",
                    [("POST cm", cm("a", "1"))],
                    ("DELETE cm/a", json!({"preconditions": {"uid": "{uid}"}})),
                    (200, ""),
                    Deleted,
                ),
                row(
                    "stale version is a conflict",
                    [("POST cm", cm("a", "1")), ("PUT cm/a", cm("a", "2"))],
                    ("DELETE cm/a", json!({"preconditions": {"resourceVersion": "{first}"}})),
                    (409, "Conflict"),
                    Nothing,
                ),
                row(
                    "same version deletes",
                    [("POST cm", cm("a", "1"))],
                    ("DELETE cm/a", json!({"preconditions": {"resourceVersion": "{rv}"}})),
                    (200, ""),
                    Deleted,
                ),
                row(
                    "foreground deletion waits for dependents",
                    [("POST cm", cm("a", "1"))],
                    ("DELETE cm/a", json!({"propagationPolicy": "Foreground"})),
                    (200, ""),
                    Version,
                ),
                row(
                    "orphaning waits for the collector",
                    [("POST cm", cm("a", "1"))],
                    ("DELETE cm/a", json!({"propagationPolicy": "Orphan"})),
                    (200, ""),
                    Version,
                ),
                row(
                    "background deletion does not wait",
                    [("POST cm", cm("a", "1"))],
                    ("DELETE cm/a", json!({"propagationPolicy": "Background"})),
                    (200, ""),
                    Deleted,
                ),
                row(
                    "unknown policy is refused",
                    [("POST cm", cm("a", "1"))],
                    ("DELETE cm/a", json!({"propagationPolicy": "Sideways"})),
                    (422, "Invalid"),
                    Nothing,
                ),
                row(
                    "old and new spelling together are refused",
                    [("POST cm", cm("a", "1"))],
                    ("DELETE cm/a", json!({"propagationPolicy": "Orphan", "orphanDependents": true})),
                    (422, "Invalid"),
                    Nothing,
                ),
                row("pod on no node is removed immediately", [("POST pod", pod("p"))], ("DELETE pod/p", Value::Null), (200, ""), ChangedAndDeleted),
                row(
                    "pod on a node is given time",
                    [(
                        "POST pod",
                        json!({"metadata": {"name": "p"}, "spec": {"nodeName": "n", "containers": [{"name": "c", "image": "i:1"}]}}),
                    )],
                    ("DELETE pod/p", Value::Null),
                    (200, ""),
                    Generation,
                ),
                row("namespace default stays", [], ("DELETE ns/default", Value::Null), (403, "Forbidden"), Nothing),
                row(
                    "namespace terminates before it goes",
                    [("POST ns", json!({"metadata": {"name": "short-lived"}}))],
                    ("DELETE ns/short-lived", Value::Null),
                    (200, ""),
                    Version,
                ),
                row(
                    "nothing new in a terminating namespace",
                    [("POST cm", cm("a", "1")), ("DELETE ns/{ns}", Value::Null)],
                    ("POST cm", cm("b", "1")),
                    (403, "Forbidden"),
                    Nothing,
                ),
                row(
                    "objects of a terminating namespace can be changed",
                    [("POST cm", cm("a", "1")), ("DELETE ns/{ns}", Value::Null)],
                    ("PUT cm/a", cm("a", "2")),
                    (200, ""),
                    Version,
                ),
            ],
        )
        .await;
    });
}

#[test]
fn deletion_answers_a_status_or_the_object() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        for (setup, line, kind) in [
            (("POST cm", cm("a", "1")), "DELETE cm/a", "Status"),
            (("POST cm", held(cm("b", "1"))), "DELETE cm/b", "ConfigMap"),
            (("POST pod", pod("p")), "DELETE pod/p", "Pod"),
            (
                (
                    "POST svc",
                    json!({"metadata": {"name": "s"}, "spec": {"ports": [{"port": 80}]}}),
                ),
                "DELETE svc/s",
                "Service",
            ),
        ] {
            place.set_up(&[setup]).await;
            let answer = place.request(line, &Value::Null).await;
            assert_eq!(answer.code, 200, "{line}");
            assert_eq!(answer.body["kind"].as_str(), Some(kind), "{line}");
        }
    });
}

#[test]
fn terminating_object_has_a_deletion_timestamp() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        place
            .set_up(&[
                ("POST cm", held(cm("a", "1"))),
                ("DELETE cm/a", Value::Null),
            ])
            .await;
        let meta = place.get("cm/a").await.body["metadata"].clone();
        assert!(meta["deletionTimestamp"].is_string());
        assert_eq!(meta["deletionGracePeriodSeconds"], 0);
        let last = place
            .request("MERGE cm/a", &json!({"metadata": {"finalizers": null}}))
            .await;
        assert_eq!(
            last.body["metadata"]["resourceVersion"], meta["resourceVersion"],
            "the last answer carries the old version"
        );
    });
}

#[test]
fn collection_is_deleted_by_selector_and_listed() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        let of = |app: &str| json!({"app": app});
        let made = place
            .set_up(&[
                ("POST cm", labelled("a", &of("x"))),
                ("POST cm", labelled("b", &of("y"))),
                ("POST cm", labelled("c", &of("x"))),
            ])
            .await;
        let answer = place
            .request("DELETE cm?labelSelector=app%3Dx", &Value::Null)
            .await;
        assert_eq!(answer.code, 200);
        assert_eq!(answer.body["kind"].as_str(), Some("ConfigMapList"));
        assert_eq!(answer.names(), ["a", "c"]);
        assert_eq!(place.get("cm").await.names(), ["b"]);
        let events = place.events_since("cm", made[2]).await;
        assert_eq!(
            events
                .iter()
                .map(|event| event["type"].as_str().unwrap_or_default())
                .collect::<Vec<_>>(),
            ["DELETED", "DELETED"]
        );
    });
}
