//! Tables, the form that `kubectl get` requests: listed, read and watched.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    cluster::both_ways,
    custom::defined,
    objects::{cm, deployment, widget},
};

const SECOND: Duration = Duration::from_secs(1);

fn columns(table: &Value) -> Vec<&str> {
    table["columnDefinitions"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|column| column["name"].as_str())
        .collect()
}

fn first_cells(table: &Value) -> Vec<Value> {
    table["rows"]
        .as_array()
        .into_iter()
        .flatten()
        .map(|row| row["cells"][0].clone())
        .collect()
}

#[test]
fn table_has_the_columns_of_its_kind() {
    both_ways(async |cluster| {
        defined(cluster).await;
        let place = cluster.place("a").await;
        place
            .set_up(&[
                ("POST cm", cm("a", "1")),
                ("POST deploy", deployment("a", 1)),
                ("POST widget", widget("a", 1)),
            ])
            .await;
        for (path, expected) in [
            ("cm", &["Name", "Data", "Age"][..]),
            (
                "deploy",
                &[
                    "Name",
                    "Ready",
                    "Up-to-date",
                    "Available",
                    "Age",
                    "Containers",
                    "Images",
                    "Selector",
                ],
            ),
            ("widget", &["Name", "Age"]),
        ] {
            for path in [path.to_owned(), format!("{path}/a")] {
                let table = place
                    .request(&format!("TABLE {path}"), &Value::Null)
                    .await
                    .body;
                assert_eq!(table["kind"].as_str(), Some("Table"), "{path}");
                assert_eq!(columns(&table), expected.to_vec(), "{path}");
                let names: Vec<Value> = first_cells(&table)
                    .into_iter()
                    .filter(|name| name == "a")
                    .collect();
                assert_eq!(names, [json!("a")], "{path}");
                let row = &table["rows"]
                    .as_array()
                    .expect("rows")
                    .iter()
                    .find(|row| row["cells"][0] == "a")
                    .expect("its row")["object"];
                assert_eq!(
                    row["kind"].as_str(),
                    Some("PartialObjectMetadata"),
                    "{path}"
                );
                assert_eq!(row["metadata"]["name"].as_str(), Some("a"), "{path}");
                assert!(
                    row.get("spec").is_none() && row.get("data").is_none(),
                    "{path}"
                );
            }
        }
    });
}

#[test]
fn rows_include_the_requested_object() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        place.set_up(&[("POST cm", cm("a", "1"))]).await;
        for (include, object) in [
            ("", "PartialObjectMetadata"),
            ("Metadata", "PartialObjectMetadata"),
            ("Object", "ConfigMap"),
        ] {
            let table = place
                .request(&format!("TABLE cm/a?includeObject={include}"), &Value::Null)
                .await
                .body;
            assert_eq!(table["rows"][0]["object"]["kind"], object, "{include:?}");
        }
        let bare = place
            .request("TABLE cm/a?includeObject=None", &Value::Null)
            .await
            .body;
        assert_eq!(bare["rows"][0]["object"], Value::Null);
        assert_eq!(
            place
                .request("TABLE cm/a?includeObject=All", &Value::Null)
                .await
                .code,
            400
        );
    });
}

#[test]
fn watched_tables_describe_their_columns_once() {
    both_ways(async |cluster| {
        defined(cluster).await;
        let place = cluster.place("a").await;
        for (kind, made, change) in [
            ("cm", cm("a", "1"), json!({"data": {"more": "2"}})),
            ("widget", widget("a", 1), json!({"spec": {"size": 2}})),
        ] {
            let watching = place
                .watch_tables(&format!(
                    "{kind}?watch=1&timeoutSeconds=1&fieldSelector=metadata.name%3Da"
                ))
                .await;
            assert_eq!(watching.code, 200, "{kind}");
            let patch = format!("MERGE {kind}/a");
            let delete = format!("DELETE {kind}/a");
            place
                .set_up(&[
                    (&format!("POST {kind}"), made),
                    (&patch, change),
                    (&delete, Value::Null),
                ])
                .await;
            cluster.pass(SECOND).await;
            let events = watching.all().await;
            let types: Vec<&str> = events
                .iter()
                .filter_map(|event| event["type"].as_str())
                .collect();
            assert_eq!(
                types,
                ["ADDED", "MODIFIED", "DELETED"],
                "{kind} ({:?})",
                cluster.way
            );
            let described: Vec<bool> = events
                .iter()
                .map(|event| !columns(&event["object"]).is_empty())
                .collect();
            assert_eq!(described, [true, false, false], "{kind}");
            assert!(
                events.iter().all(|event| event["object"]["kind"] == "Table"
                    && first_cells(&event["object"]) == [json!("a")]),
                "{kind}"
            );
        }
    });
}

#[test]
fn paged_table_has_a_continue_token() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        place
            .set_up(&[
                ("POST cm", cm("a", "1")),
                ("POST cm", cm("b", "1")),
                ("POST cm", cm("c", "1")),
            ])
            .await;
        let mut names = Vec::new();
        let mut next = String::new();
        let mut remaining = Vec::new();
        loop {
            let page = place
                .request(&format!("TABLE cm?limit=2&continue={next}"), &Value::Null)
                .await;
            assert_eq!(page.code, 200, "{}", page.message());
            names.extend(first_cells(&page.body));
            remaining.push(page.body["metadata"]["remainingItemCount"].as_i64());
            match page.next() {
                Some(token) => token.clone_into(&mut next),
                None => break,
            }
        }
        assert_eq!(names, vec![json!("a"), json!("b"), json!("c")]);
        assert_eq!(remaining, vec![Some(1), None]);
    });
}
