//! What a read shows, by resourceVersion and resourceVersionMatch.

use std::time::Duration;

use serde_json::Value;

use super::{
    cluster::{Cluster, Place, Way, both_ways},
    objects::cm,
};

/// `a` was made at {1} and changed at {3}, `b` made at {2} and deleted at {4}. `{now}` is the
/// newest, `{future}` far beyond it.
async fn history(cluster: &Cluster) -> (Place<'_>, Vec<(String, u64)>) {
    let place = cluster.place("history").await;
    let made = place
        .set_up(&[
            ("POST cm", cm("a", "1")),
            ("POST cm", cm("b", "1")),
            ("PUT cm/a", cm("a", "2")),
            ("DELETE cm/b", Value::Null),
        ])
        .await;
    let mut versions: Vec<(String, u64)> = made
        .iter()
        .enumerate()
        .map(|(i, version)| (format!("{{{}}}", i + 1), *version))
        .collect();
    versions.push(("{now}".into(), made[3]));
    versions.push(("{future}".into(), made[3] + 1000));
    (place, versions)
}

fn fill(text: &str, versions: &[(String, u64)]) -> String {
    versions
        .iter()
        .fold(text.to_owned(), |text, (name, version)| {
            text.replace(name, &version.to_string())
        })
}

/// A list in short: `a=2 @7`.
fn shown(list: &Value) -> String {
    let items = list["items"]
        .as_array()
        .map(Vec::as_slice)
        .unwrap_or_default();
    let items: Vec<String> = items
        .iter()
        .map(|item| {
            format!(
                "{}={}",
                item["metadata"]["name"].as_str().unwrap_or_default(),
                item["data"]["k"].as_str().unwrap_or_default()
            )
        })
        .collect();
    format!(
        "{} @{}",
        items.join(" "),
        list["metadata"]["resourceVersion"]
            .as_str()
            .unwrap_or_default()
    )
    .trim_start()
    .to_owned()
}

#[test]
fn lists_show_the_requested_revision() {
    both_ways(async |cluster| {
        let (place, versions) = history(cluster).await;
        for (query, expected) in [
            ("", "a=2 @{now}"),
            ("resourceVersion=0", "a=2 @{now}"),
            ("resourceVersion={2}", "a=2 @{now}"),
            ("resourceVersion={now}", "a=2 @{now}"),
            ("limit=5", "a=2 @{now}"),
            ("limit=5&resourceVersion=0", "a=2 @{now}"),
            ("limit=5&resourceVersion={2}", "a=1 b=1 @{2}"),
            (
                "limit=5&resourceVersion={2}&resourceVersionMatch=NotOlderThan",
                "a=2 @{now}",
            ),
            ("resourceVersion={1}&resourceVersionMatch=Exact", "a=1 @{1}"),
            (
                "resourceVersion={2}&resourceVersionMatch=Exact",
                "a=1 b=1 @{2}",
            ),
            (
                "resourceVersion={3}&resourceVersionMatch=Exact",
                "a=2 b=1 @{3}",
            ),
            ("resourceVersion={4}&resourceVersionMatch=Exact", "a=2 @{4}"),
            (
                "resourceVersion=0&resourceVersionMatch=NotOlderThan",
                "a=2 @{now}",
            ),
            (
                "resourceVersion={1}&resourceVersionMatch=NotOlderThan",
                "a=2 @{now}",
            ),
            (
                "resourceVersion={2}&resourceVersionMatch=Exact&fieldSelector=metadata.name%3Db",
                "b=1 @{2}",
            ),
        ] {
            let answer = place.get(&fill(&format!("cm?{query}"), &versions)).await;
            assert_eq!(
                answer.code,
                200,
                "{query} ({:?}): {}",
                cluster.way,
                answer.message()
            );
            assert_eq!(
                shown(&answer.body),
                fill(expected, &versions),
                "{query} ({:?})",
                cluster.way
            );
        }
    });
}

#[test]
fn objects_are_not_older_than_requested() {
    both_ways(async |cluster| {
        let (place, versions) = history(cluster).await;
        for query in [
            "",
            "?resourceVersion=0",
            "?resourceVersion={1}",
            "?resourceVersion={now}",
        ] {
            let answer = place.get(&fill(&format!("cm/a{query}"), &versions)).await;
            assert_eq!(answer.code, 200, "{query} ({:?})", cluster.way);
            assert_eq!(
                answer.body["data"]["k"].as_str(),
                Some("2"),
                "{query} ({:?})",
                cluster.way
            );
        }
    });
}

#[test]
fn reads_that_make_no_sense_are_refused() {
    both_ways(async |cluster| {
        let (place, versions) = history(cluster).await;
        for (path, code, reason) in [
            ("cm?resourceVersionMatch=Exact", 422, "Invalid"),
            ("cm?resourceVersionMatch=NotOlderThan", 422, "Invalid"),
            (
                "cm?resourceVersion=0&resourceVersionMatch=Exact",
                422,
                "Invalid",
            ),
            (
                "cm?resourceVersion={1}&resourceVersionMatch=Roughly",
                422,
                "Invalid",
            ),
            ("cm?resourceVersion=x", 400, "BadRequest"),
            ("cm?resourceVersion=-1", 400, "BadRequest"),
            (
                "cm?resourceVersion=99999999999999999999999",
                400,
                "BadRequest",
            ),
            ("cm/a?resourceVersion=x", 500, ""),
            ("cm?sendInitialEvents=true", 422, "Invalid"),
            ("cm?limit=x", 400, "BadRequest"),
            ("cm?continue=x", 400, "BadRequest"),
            ("cm/missing", 404, "NotFound"),
        ] {
            let answer = place.get(&fill(path, &versions)).await;
            assert_eq!(
                answer.code,
                code,
                "{path} ({:?}): {}",
                cluster.way,
                answer.message()
            );
            assert_eq!(
                answer.reason(),
                reason,
                "{path} ({:?}): {}",
                cluster.way,
                answer.message()
            );
        }
        let missing = place.get("cm?resourceVersionMatch=Exact").await;
        assert_eq!(missing.causes(), ["FieldValueForbidden"]);
        let elsewhere = place
            .get("/api/v1/namespaces/no-such-place/configmaps")
            .await;
        assert_eq!(elsewhere.code, 200);
        assert_eq!(elsewhere.names().len(), 0);
    });
}

#[test]
fn future_revision_is_waited_for_three_seconds() {
    both_ways(async |cluster| {
        let (place, versions) = history(cluster).await;
        for path in [
            "cm/a?resourceVersion={future}",
            "cm?resourceVersion={future}",
            "cm?resourceVersion={future}&resourceVersionMatch=Exact",
        ] {
            let line = format!("GET {}", place.path(&fill(path, &versions)));
            let (answer, waited) = cluster.request_in_time(&line, &Value::Null).await;
            assert_eq!(answer.code, 504, "{path}");
            assert_eq!(answer.reason(), "Timeout", "{path}");
            assert_eq!(answer.causes(), vec!["ResourceVersionTooLarge"], "{path}");
            assert_eq!(answer.body["details"]["retryAfterSeconds"], 1, "{path}");
            assert!(
                waited >= Duration::from_secs(3),
                "{path} ({:?}): {waited:?}",
                cluster.way
            );
            // A socket takes its own time.
            assert!(
                cluster.way == Way::Https || waited < Duration::from_millis(3200),
                "{path}: {waited:?}"
            );
        }
    });
}

#[test]
fn future_revision_is_answered_once_reached() {
    both_ways(async |cluster| {
        let (place, versions) = history(cluster).await;
        let next = versions
            .iter()
            .find(|(name, _)| name == "{now}")
            .expect("it is there")
            .1
            + 1;
        let path = format!("cm?resourceVersion={next}");
        let write = async { place.set_up(&[("POST cm", cm("c", "1"))]).await };
        let (answer, _) = tokio::join!(place.get(&path), write);
        assert_eq!(answer.code, 200);
        assert_eq!(answer.names(), vec!["a".to_owned(), "c".to_owned()]);
    });
}

#[test]
fn items_of_lists_carry_no_kind() {
    both_ways(async |cluster| {
        let (place, _) = history(cluster).await;
        let list = place.get("cm").await.body;
        assert_eq!(list["kind"].as_str(), Some("ConfigMapList"));
        assert_eq!(list["apiVersion"].as_str(), Some("v1"));
        assert!(
            list["items"][0].get("kind").is_none() && list["items"][0].get("apiVersion").is_none()
        );
    });
}
