//! Watches: where they begin, which events they deliver, when they end.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    answer::version_of,
    cluster::{Way, both_ways},
    objects::{cm, labelled},
    watching::{short, shorts},
};

const SECOND: Duration = Duration::from_secs(1);

#[test]
fn watches_begin_at_their_resource_version() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        let v = place
            .set_up(&[
                ("POST cm", cm("a", "1")),
                ("POST cm", cm("b", "1")),
                ("PUT cm/a", cm("a", "2")),
            ])
            .await;
        let added = format!("ADDED a@{} ADDED b@{}", v[2], v[1]);
        let now = v[2];
        for (query, expected) in [
            (String::new(), added.clone()),
            ("resourceVersion=0".to_owned(), added.clone()),
            (
                format!("resourceVersion={}", v[0]),
                format!("ADDED b@{} MODIFIED a@{}", v[1], v[2]),
            ),
            (format!("resourceVersion={now}"), String::new()),
            (format!("resourceVersion={}", now + 1000), String::new()),
            ("allowWatchBookmarks=true".to_owned(), added.clone()),
            (
                "sendInitialEvents=true&resourceVersionMatch=NotOlderThan".to_owned(),
                added.clone(),
            ),
            (
                "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
                    .to_owned(),
                format!("{added} BOOKMARK @{now}"),
            ),
            (
                format!(
                    "sendInitialEvents=true&resourceVersionMatch=NotOlderThan&resourceVersion={}",
                    v[0]
                ),
                added.clone(),
            ),
            (
                "sendInitialEvents=false&resourceVersionMatch=NotOlderThan".to_owned(),
                String::new(),
            ),
            (
                format!(
                    "sendInitialEvents=false&resourceVersionMatch=NotOlderThan&resourceVersion={}",
                    v[1]
                ),
                format!("MODIFIED a@{}", v[2]),
            ),
            (
                "fieldSelector=metadata.name%3Db".to_owned(),
                format!("ADDED b@{}", v[1]),
            ),
        ] {
            let watching = place
                .watch(&format!("cm?watch=true&timeoutSeconds=1&{query}"))
                .await;
            assert_eq!(watching.code, 200, "{query}");
            cluster.pass(SECOND).await;
            let events = watching.all().await;
            let delivered: Vec<String> = shorts(&events)
                .into_iter()
                .filter(|event| query.contains("Initial") || !event.starts_with("BOOKMARK"))
                .collect();
            let delivered: Vec<String> = delivered.into_iter().take(3).collect();
            assert_eq!(delivered.join(" "), expected, "{query} ({:?})", cluster.way);
        }
    });
}

/// A watch of an empty name used to be notified of every event of its namespace, to hand out none
/// of them and never to be pending again.
#[test]
fn watch_of_a_name_that_no_object_has_is_silent() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        for name in ["", "x%2Fy", "..", "missing"] {
            let watching = place
                .watch(&format!(
                    "cm?watch=1&timeoutSeconds=5&fieldSelector=metadata.name%3D{name}"
                ))
                .await;
            assert_eq!(watching.code, 200, "{name}");
            place
                .set_up(&[
                    ("POST cm", cm("a", "1")),
                    ("PUT cm/a", cm("a", "2")),
                    ("DELETE cm/a", Value::Null),
                ])
                .await;
            cluster.pass(SECOND * 6).await;
            assert_eq!(watching.all().await, Vec::<Value>::new(), "{name}");
            let listed = place
                .get(&format!("cm?fieldSelector=metadata.name%3D{name}"))
                .await;
            assert_eq!(listed.names(), Vec::<String>::new(), "{name}");
        }
    });
}

#[test]
fn end_of_initial_events_is_marked() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        place.set_up(&[("POST cm", cm("a", "1"))]).await;
        let mut watching =
            place.watch("cm?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true").await;
        let events = watching.first(2).await;
        let marked = &events[1]["object"];
        assert_eq!(marked["kind"].as_str(), Some("ConfigMap"));
        assert_eq!(marked["apiVersion"].as_str(), Some("v1"));
        assert_eq!(version_of(marked), place.now().await);
        assert_eq!(
            marked["metadata"]["annotations"],
            json!({"k8s.io/initial-events-end": "true"})
        );
        let later = place.set_up(&[("POST cm", cm("b", "1"))]).await;
        assert_eq!(
            short(&watching.first(3).await[2]),
            format!("ADDED b@{}", later[0])
        );
    });
}

#[test]
fn watches_that_make_no_sense_are_refused() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        for (query, code, reason) in [
            ("sendInitialEvents=true", 422, "Invalid"),
            (
                "sendInitialEvents=true&resourceVersionMatch=Exact",
                422,
                "Invalid",
            ),
            (
                "resourceVersionMatch=NotOlderThan&resourceVersion=1",
                422,
                "Invalid",
            ),
            ("resourceVersion=x", 500, ""),
            ("labelSelector=a%3D%3D%3Db", 400, "BadRequest"),
            ("fieldSelector=spec.nothing%3Db", 400, "BadRequest"),
            ("timeoutSeconds=x", 400, "BadRequest"),
        ] {
            let answer = place.get(&format!("cm?watch=1&{query}")).await;
            assert_eq!(
                answer.code,
                code,
                "{query} ({:?}): {}",
                cluster.way,
                answer.message()
            );
            assert_eq!(
                answer.reason(),
                reason,
                "{query} ({:?}): {}",
                cluster.way,
                answer.message()
            );
        }
    });
}

#[test]
fn selector_decides_what_an_event_looks_like() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        let of = |app: &str, k: &str| json!({"metadata": {"name": "a", "labels": {"app": app}}, "data": {"k": k}});
        let start = place.now().await;
        let v = place
            .set_up(&[
                ("POST cm", of("other", "1")),
                ("PUT cm/a", of("mine", "2")),
                ("PUT cm/a", of("mine", "3")),
                ("PUT cm/a", of("other", "4")),
                ("PUT cm/a", of("mine", "5")),
                ("DELETE cm/a", Value::Null),
                ("POST cm", of("other", "6")),
                ("DELETE cm/a", Value::Null),
            ])
            .await;
        let events = place
            .events_since("cm?labelSelector=app%3Dmine", start)
            .await;
        let delivered: Vec<String> = events
            .iter()
            .map(|e| {
                format!(
                    "{} {} k={}",
                    e["type"].as_str().unwrap_or_default(),
                    version_of(&e["object"]),
                    e["object"]["data"]["k"].as_str().unwrap_or_default()
                )
            })
            .collect();
        assert_eq!(
            delivered,
            [
                format!("ADDED {} k=2", v[1]),
                format!("MODIFIED {} k=3", v[2]),
                // Leaving the selection shows the old body with the new version.
                format!("DELETED {} k=3", v[3]),
                format!("ADDED {} k=5", v[4]),
                format!("DELETED {} k=5", v[5]),
            ]
        );
    });
}

#[test]
fn watch_ends_cleanly_at_its_time() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        let watching = place.watch("cm?watch=1&timeoutSeconds=5").await;
        cluster.pass(SECOND * 4).await;
        assert_eq!(watching.ended(), None);
        cluster.pass(SECOND * 2).await;
        assert_eq!(watching.all().await, Vec::<Value>::new());
    });
}

#[test]
fn endless_time_is_no_error() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        let watching = place
            .watch("cm?watch=1&timeoutSeconds=9223372036854775807")
            .await;
        assert_eq!(watching.code, 200, "it used to be an overflow");
    });
}

#[test]
fn watch_without_a_time_ends_within_an_hour() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        let watching = place.watch("cm?watch=1").await;
        cluster.pass(SECOND * 1799).await;
        assert_eq!(watching.ended(), None);
        cluster.pass(SECOND * 1802).await;
        assert_eq!(watching.all().await, Vec::<Value>::new());
    });
}

#[test]
fn bookmarks_are_sent_every_minute_and_before_the_end() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        let start = place.now().await;
        let watching = place
            .watch(&format!(
                "cm?watch=1&allowWatchBookmarks=true&resourceVersion={start}&timeoutSeconds=200"
            ))
            .await;
        let unmarked = place
            .watch(&format!(
                "cm?watch=1&resourceVersion={start}&timeoutSeconds=200"
            ))
            .await;
        cluster.pass(SECOND * 90).await;
        // A write of another kind moves the bookmark, not the watch.
        let other = place
            .set_up(&[("POST secret", json!({"metadata": {"name": "s"}}))])
            .await;
        cluster.pass(SECOND * 120).await;
        let delivered = watching.all_in_time().await;
        let at = |version: u64| format!("BOOKMARK @{version}");
        let texts: Vec<String> = delivered.iter().map(|(_, event)| short(event)).collect();
        assert_eq!(
            texts,
            [at(start), at(other[0]), at(other[0]), at(other[0])],
            "{:?}",
            cluster.way
        );
        let times: Vec<f64> = delivered
            .iter()
            .map(|(time, _)| time.as_secs_f64().round())
            .collect();
        // A socket takes its own time.
        assert!(
            cluster.way == Way::Https || times == [60., 120., 180., 198.],
            "{times:?}"
        );
        let object = &delivered[0].1["object"];
        assert_eq!(object["kind"].as_str(), Some("ConfigMap"));
        assert_eq!(object["apiVersion"].as_str(), Some("v1"));
        assert!(object.get("data").is_none() && object["metadata"].get("name").is_none());
        assert!(
            unmarked.all().await.is_empty(),
            "bookmarks are sent only if requested"
        );
    });
}

/// The bookmark used to name the requested version, so that the client lost everything up to there.
#[test]
fn watch_from_the_future_is_silent_until_then() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        let future = place.now().await + 2;
        let watching = place
            .watch(&format!(
                "cm?watch=1&allowWatchBookmarks=true&resourceVersion={future}&timeoutSeconds=130"
            ))
            .await;
        assert_eq!(watching.code, 200);
        place.set_up(&[("POST cm", cm("early", "1"))]).await;
        cluster.pass(SECOND * 70).await;
        let v = place
            .set_up(&[("POST cm", cm("last", "1")), ("POST cm", cm("first", "1"))])
            .await;
        assert_eq!(v[0], future);
        cluster.pass(SECOND * 60).await;
        let delivered = shorts(&watching.all().await);
        let bookmark = format!("BOOKMARK @{}", v[1]);
        assert_eq!(
            delivered,
            [format!("ADDED first@{}", v[1]), bookmark.clone(), bookmark],
            "{:?}",
            cluster.way
        );
    });
}

#[test]
fn initial_events_of_a_future_revision_time_out() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        place.set_up(&[("POST cm", cm("a", "1"))]).await;
        let future = place.now().await + 1000;
        let query = format!(
            "cm?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true&resourceVersion={future}&timeoutSeconds=30"
        );
        let answer = place
            .request_in_time(&format!("GET {query}"), &Value::Null)
            .await;
        assert_eq!(answer.code, 200);
        assert_eq!(answer.body["type"], "ERROR");
        let status = &answer.body["object"];
        assert_eq!(status["code"], 504);
        assert_eq!(status["reason"], "Timeout");
        assert_eq!(
            status["details"]["causes"][0]["reason"],
            "ResourceVersionTooLarge"
        );
    });
}

#[test]
fn short_watch_has_a_bookmark_before_its_end() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        let start = place.now().await;
        let watching = place
            .watch(&format!(
                "cm?watch=1&allowWatchBookmarks=true&resourceVersion={start}&timeoutSeconds=30"
            ))
            .await;
        cluster.pass(SECOND * 30).await;
        assert_eq!(
            shorts(&watching.all().await),
            [format!("BOOKMARK @{start}")]
        );
    });
}

#[test]
fn all_watchers_see_the_same_order() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        let start = place.now().await;
        let mut watchers = Vec::new();
        for _ in 0..8 {
            watchers.push(
                place
                    .watch(&format!("cm?watch=1&resourceVersion={start}"))
                    .await,
            );
        }
        let names: Vec<String> = (0..20).map(|i| format!("n{i}")).collect();
        futures_util::future::join_all(
            names
                .iter()
                .map(|name| async { place.set_up(&[("POST cm", cm(name, "1"))]).await }),
        )
        .await;
        let first = watchers[0].first(20).await;
        for other in &mut watchers[1..] {
            assert_eq!(other.first(20).await, first);
        }
        let versions: Vec<u64> = first
            .iter()
            .map(|event| version_of(&event["object"]))
            .collect();
        assert!(versions.is_sorted_by(|a, b| a < b), "{versions:?}");
    });
}

#[test]
fn old_watch_paths_are_served() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        let v = place
            .set_up(&[("POST cm", cm("a", "1")), ("POST cm", cm("b", "1"))])
            .await;
        for (path, count) in [
            ("/api/v1/watch/namespaces/a/configmaps", 2),
            ("/api/v1/watch/namespaces/a/configmaps/b", 1),
        ] {
            let events = cluster.watch(path).await.first(count).await;
            assert_eq!(
                short(&events[count - 1]),
                format!("ADDED b@{}", v[1]),
                "{path}"
            );
        }
    });
}

#[test]
fn named_object_is_read_even_when_a_watch_is_requested() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        place
            .set_up(&[("POST cm", labelled("a", &json!({})))])
            .await;
        let answer = place.get("cm/a?watch=true").await;
        assert_eq!(answer.code, 200);
        assert_eq!(answer.body["kind"].as_str(), Some("ConfigMap"));
    });
}
