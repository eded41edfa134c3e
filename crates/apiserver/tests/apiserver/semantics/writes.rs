//! What writes do to an object's resourceVersion and generation, and what watchers see of it.

use serde_json::{Value, json};

use super::{
    cluster::both_ways,
    effect::{
        Effect::{Added, Generation, Nothing, Version},
        check, row,
    },
    objects::{cm, deployment, labelled, pod},
};

#[test]
fn writes_change_only_what_they_specify() {
    let lease =
        |holder: &str| json!({"metadata": {"name": "l"}, "spec": {"holderIdentity": holder}});
    let with = |mut object: Value, field: &str, value: Value| {
        object["metadata"][field] = value;
        object
    };
    both_ways(async |cluster| {
        check(
            cluster,
            vec![
                row("new object is added", [], ("POST cm", cm("a", "1")), (201, ""), Added),
                row("name taken is a conflict", [("POST cm", cm("a", "1"))], ("POST cm", cm("a", "2")), (409, "AlreadyExists"), Nothing),
                row("equal PUT writes nothing", [("POST cm", cm("a", "1"))], ("PUT cm/a", cm("a", "1")), (200, ""), Nothing),
                row(
                    "patch that changes nothing writes nothing",
                    [("POST cm", cm("a", "1"))],
                    ("MERGE cm/a", json!({"data": {"k": "1"}})),
                    (200, ""),
                    Nothing,
                ),
                row(
                    "JSON patch of tests alone writes nothing",
                    [("POST cm", cm("a", "1"))],
                    ("JSON cm/a", json!([{"op": "test", "path": "/data/k", "value": "1"}])),
                    (200, ""),
                    Nothing,
                ),
                row(
                    "failed JSON patch test writes nothing",
                    [("POST cm", cm("a", "1"))],
                    (
                        "JSON cm/a",
                        json!([{"op": "replace", "path": "/data/k", "value": "2"}, {"op": "test", "path": "/data/k", "value": "1"}]),
                    ),
                    (422, "Invalid"),
                    Nothing,
                ),
                row("kind without spec has no generation", [("POST cm", cm("a", "1"))], ("PUT cm/a", cm("a", "2")), (200, ""), Version),
                row(
                    "PUT without a version overwrites",
                    [("POST cm", cm("a", "1")), ("PUT cm/a", cm("a", "2"))],
                    ("PUT cm/a", cm("a", "3")),
                    (200, ""),
                    Version,
                ),
                row(
                    "PUT with version 0 overwrites",
                    [("POST cm", cm("a", "1"))],
                    ("PUT cm/a", with(cm("a", "2"), "resourceVersion", json!("0"))),
                    (200, ""),
                    Version,
                ),
                row(
                    "PUT with the current version is taken",
                    [("POST cm", cm("a", "1"))],
                    ("PUT cm/a", with(cm("a", "2"), "resourceVersion", json!("{rv}"))),
                    (200, ""),
                    Version,
                ),
                row(
                    "PUT with a stale version is a conflict",
                    [("POST cm", cm("a", "1")), ("PUT cm/a", cm("a", "2"))],
                    ("PUT cm/a", with(cm("a", "3"), "resourceVersion", json!("{first}"))),
                    (409, "Conflict"),
                    Nothing,
                ),
                row(
                    "patch with a stale version is a conflict",
                    [("POST cm", cm("a", "1")), ("PUT cm/a", cm("a", "2"))],
                    ("MERGE cm/a", json!({"metadata": {"resourceVersion": "{first}"}, "data": {"k": "3"}})),
                    (409, "Conflict"),
                    Nothing,
                ),
                row(
                    "PUT with another uid is a conflict",
                    [("POST cm", cm("a", "1"))],
                    ("PUT cm/a", with(cm("a", "2"), "uid", json!("other"))),
                    (409, "Conflict"),
                    Nothing,
                ),
                row(
                    "PUT with its own uid is taken",
                    [("POST cm", cm("a", "1"))],
                    ("PUT cm/a", with(cm("a", "2"), "uid", json!("{uid}"))),
                    (200, ""),
                    Version,
                ),
                row(
                    "version that is no number is an error",
                    [("POST cm", cm("a", "1"))],
                    ("PUT cm/a", with(cm("a", "2"), "resourceVersion", json!("x"))),
                    (500, ""),
                    Nothing,
                ),
                row(
                    "version on create is an error",
                    [],
                    ("POST cm", with(cm("a", "1"), "resourceVersion", json!("5"))),
                    (500, ""),
                    Nothing,
                ),
                row("PUT of a missing name is not found", [], ("PUT cm/a", cm("a", "1")), (404, "NotFound"), Nothing),
                row("patch of a missing name is not found", [], ("MERGE cm/a", json!({"data": {"k": "1"}})), (404, "NotFound"), Nothing),
                row("PUT of a missing Lease creates it", [], ("PUT lease/l", lease("x")), (201, ""), Added),
                row(
                    "PUT of a missing Lease with a uid is a conflict",
                    [],
                    ("PUT lease/l", with(lease("x"), "uid", json!("u"))),
                    (409, "Conflict"),
                    Nothing,
                ),
                row(
                    "PUT of a missing Role creates it",
                    [],
                    ("PUT role/r", json!({"metadata": {"name": "r"}, "rules": []})),
                    (201, ""),
                    Added,
                ),
                row("PUT of a Lease needs a version", [("POST lease", lease("x"))], ("PUT lease/l", lease("y")), (422, "Invalid"), Nothing),
                row(
                    "PUT of a disruption budget needs a version",
                    [(
                        "POST pdb",
                        json!({"metadata": {"name": "p"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"a": "b"}}}}),
                    )],
                    ("PUT pdb/p", json!({"metadata": {"name": "p"}, "spec": {"minAvailable": 2, "selector": {"matchLabels": {"a": "b"}}}})),
                    (422, "Invalid"),
                    Nothing,
                ),
                row(
                    "body of another name is refused",
                    [("POST cm", cm("a", "1"))],
                    ("PUT cm/a", cm("b", "2")),
                    (400, "BadRequest"),
                    Nothing,
                ),
                row(
                    "body of another namespace is refused",
                    [],
                    ("POST cm", with(cm("a", "1"), "namespace", json!("elsewhere"))),
                    (400, "BadRequest"),
                    Nothing,
                ),
                row("dry run of a create stores nothing", [], ("POST cm?dryRun=All", cm("a", "1")), (201, ""), Nothing),
                row(
                    "dry run of an update stores nothing",
                    [("POST cm", cm("a", "1"))],
                    ("PUT cm/a?dryRun=All", cm("a", "2")),
                    (200, ""),
                    Nothing,
                ),
                row(
                    "dry run of a deletion deletes nothing",
                    [("POST cm", cm("a", "1"))],
                    ("DELETE cm/a?dryRun=All", Value::Null),
                    (200, ""),
                    Nothing,
                ),
                row(
                    "dry run of a create takes a version, which storage would refuse",
                    [],
                    ("POST cm?dryRun=All", with(cm("a", "1"), "resourceVersion", json!("5"))),
                    (201, ""),
                    Nothing,
                ),
                row("dry run still checks", [], ("POST cm?dryRun=All", cm("A_B", "1")), (422, "Invalid"), Nothing),
                row("unknown dry run is refused", [], ("POST cm?dryRun=Some", cm("a", "1")), (422, "Invalid"), Nothing),
                row(
                    "strict unknown field is refused",
                    [],
                    ("POST cm?fieldValidation=Strict", json!({"metadata": {"name": "a"}, "dat": {}})),
                    (400, "BadRequest"),
                    Nothing,
                ),
                row("unknown field is dropped otherwise", [], ("POST cm", json!({"metadata": {"name": "a"}, "dat": {}})), (201, ""), Added),
                row(
                    "label of a Deployment keeps its generation",
                    [("POST deploy", deployment("d", 1))],
                    ("MERGE deploy/d", json!({"metadata": {"labels": {"x": "y"}}})),
                    (200, ""),
                    Version,
                ),
                row(
                    "annotation of a Deployment raises its generation",
                    [("POST deploy", deployment("d", 1))],
                    ("MERGE deploy/d", json!({"metadata": {"annotations": {"x": "y"}}})),
                    (200, ""),
                    Generation,
                ),
                row(
                    "spec of a Deployment raises its generation",
                    [("POST deploy", deployment("d", 1))],
                    ("MERGE deploy/d", json!({"spec": {"replicas": 2}})),
                    (200, ""),
                    Generation,
                ),
                row(
                    "status in a main write is ignored",
                    [("POST deploy", deployment("d", 1))],
                    ("MERGE deploy/d", json!({"status": {"replicas": 9}})),
                    (200, ""),
                    Nothing,
                ),
                row(
                    "status write keeps the generation",
                    [("POST deploy", deployment("d", 1))],
                    ("MERGE deploy/d/status", json!({"status": {"replicas": 9}})),
                    (200, ""),
                    Version,
                ),
                row(
                    "spec in a status write is ignored",
                    [("POST deploy", deployment("d", 1))],
                    ("MERGE deploy/d/status", json!({"spec": {"replicas": 9}})),
                    (200, ""),
                    Nothing,
                ),
                row(
                    "labels in a status write are ignored",
                    [("POST deploy", deployment("d", 1))],
                    ("MERGE deploy/d/status", json!({"metadata": {"labels": {"x": "y"}}})),
                    (200, ""),
                    Nothing,
                ),
                row(
                    "selector of a Deployment never changes",
                    [("POST deploy", deployment("d", 1))],
                    (
                        "MERGE deploy/d",
                        json!({"spec": {"selector": {"matchLabels": {"app": "e"}}, "template": {"metadata": {"labels": {"app": "e"}}}}}),
                    ),
                    (422, "Invalid"),
                    Nothing,
                ),
                row(
                    "creation time of an object stays",
                    [("POST cm", cm("a", "1"))],
                    ("MERGE cm/a", json!({"metadata": {"creationTimestamp": "2001-01-01T00:00:00Z"}})),
                    (200, ""),
                    Nothing,
                ),
                row(
                    "name of an object stays",
                    [("POST cm", cm("a", "1"))],
                    ("MERGE cm/a", json!({"metadata": {"name": "b"}})),
                    (400, "BadRequest"),
                    Nothing,
                ),
                row(
                    "annotations have a size",
                    [("POST cm", cm("a", "1"))],
                    ("MERGE cm/a", json!({"metadata": {"annotations": {"x": "y".repeat(257 * 1024)}}})),
                    (422, "Invalid"),
                    Nothing,
                ),
                row(
                    "immutable ConfigMap stays",
                    [("POST cm", json!({"metadata": {"name": "a"}, "immutable": true}))],
                    ("MERGE cm/a", json!({"data": {"k": "1"}})),
                    (422, "Invalid"),
                    Nothing,
                ),
                row(
                    "labels of an immutable ConfigMap may change",
                    [("POST cm", json!({"metadata": {"name": "a"}, "immutable": true}))],
                    ("MERGE cm/a", json!({"metadata": {"labels": {"x": "y"}}})),
                    (200, ""),
                    Version,
                ),
                row(
                    "type of a Secret stays",
                    [("POST secret", json!({"metadata": {"name": "s"}, "type": "a.dev/x"}))],
                    ("MERGE secret/s", json!({"type": "a.dev/y"})),
                    (422, "Invalid"),
                    Nothing,
                ),
                row(
                    "null in a merge patch removes",
                    [("POST cm", labelled("a", &json!({"x": "y"})))],
                    ("MERGE cm/a", json!({"metadata": {"labels": null}})),
                    (200, ""),
                    Version,
                ),
                row(
                    "image of a Pod raises its generation",
                    [("POST pod", pod("p"))],
                    ("JSON pod/p", json!([{"op": "replace", "path": "/spec/containers/0/image", "value": "i:2"}])),
                    (200, ""),
                    Generation,
                ),
                row(
                    "status of a Pod keeps its generation",
                    [("POST pod", pod("p"))],
                    ("MERGE pod/p/status", json!({"status": {"phase": "Running"}})),
                    (200, ""),
                    Version,
                ),
            ],
        )
        .await;
    });
}

#[test]
fn generated_names_have_a_base_and_five_characters() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        let long = "b".repeat(70);
        for (base, kept) in [("web-", "web-"), (long.as_str(), &long[..58])] {
            let made = place
                .request("POST cm", &json!({"metadata": {"generateName": base}}))
                .await;
            assert_eq!(made.code, 201, "{}", made.message());
            let name = made.body["metadata"]["name"].as_str().expect("a name");
            let suffix = name.strip_prefix(kept).expect("the base comes first");
            assert!(
                suffix.len() == 5
                    && suffix
                        .chars()
                        .all(|c| "bcdfghjklmnpqrstvwxz2456789".contains(c)),
                "{name}"
            );
            assert_eq!(made.body["metadata"]["generateName"], base);
        }
        let unnamed = place.request("POST cm", &json!({"metadata": {}})).await;
        assert_eq!(unnamed.code, 422);
        assert_eq!(unnamed.causes(), vec!["FieldValueRequired"]);
    });
}

#[test]
fn warnings_are_sent_as_headers() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        let made = place
            .request("POST cm", &json!({"metadata": {"name": "a"}, "dat": {}}))
            .await;
        let warning = made
            .headers
            .get("warning")
            .and_then(|value| value.to_str().ok());
        assert_eq!(warning, Some(r#"299 - "unknown field \"dat\"""#));
    });
}
