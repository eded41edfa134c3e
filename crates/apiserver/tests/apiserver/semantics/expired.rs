//! Expired revisions, continue tokens and watches.

use std::time::Duration;

use serde_json::{Value, json};

use super::{
    cluster::{Cluster, Place, both_ways},
    objects::cm,
    watching::shorts,
};

/// Longer than events are kept.
const FORGOTTEN: Duration = Duration::from_secs(301);

/// A namespace whose first revisions are forgotten: history goes when it is old and a newer write
/// comes.
async fn forgetful(cluster: &Cluster) -> (Place<'_>, Vec<u64>, String) {
    let place = cluster.place("a").await;
    let made = place
        .set_up(&[("POST cm", cm("a", "1")), ("POST cm", cm("b", "1"))])
        .await;
    let token = place
        .get("cm?limit=1")
        .await
        .next()
        .expect("there is more")
        .to_owned();
    place.set_up(&[("POST cm", cm("c", "1"))]).await;
    cluster.pass(FORGOTTEN).await;
    place.set_up(&[("PUT cm/b", cm("b", "2"))]).await;
    (place, made, token)
}

#[test]
fn forgotten_revisions_are_gone() {
    both_ways(async |cluster| {
        let (place, made, _) = forgetful(cluster).await;
        for (query, code, reason) in [
            (
                format!("resourceVersion={}&resourceVersionMatch=Exact", made[0]),
                410,
                "Expired",
            ),
            (
                format!("resourceVersion={}&limit=2", made[0]),
                410,
                "Expired",
            ),
            (
                "resourceVersion=1&resourceVersionMatch=Exact".to_owned(),
                410,
                "Expired",
            ),
            (format!("resourceVersion={}", made[0]), 200, ""),
            (
                format!(
                    "resourceVersion={}&resourceVersionMatch=NotOlderThan",
                    made[0]
                ),
                200,
                "",
            ),
        ] {
            let answer = place.get(&format!("cm?{query}")).await;
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
fn expired_token_is_returned_with_a_new_one() {
    both_ways(async |cluster| {
        let (place, _, token) = forgetful(cluster).await;
        let refused = place.get(&format!("cm?limit=1&continue={token}")).await;
        assert_eq!(refused.code, 410);
        assert_eq!(refused.reason(), "Expired");
        let fresh = refused.next().expect("a token to continue with");
        let page = place.get(&format!("cm?limit=1&continue={fresh}")).await;
        assert_eq!(page.code, 200);
        assert_eq!(page.names(), vec!["b".to_owned()]);
        assert_eq!(page.version(), place.now().await);
        assert_eq!(
            page.body["items"][0]["data"]["k"], "2",
            "the newest state, not the first page's"
        );
        let rest = place
            .get(&format!(
                "cm?limit=1&continue={}",
                page.next().expect("there is more")
            ))
            .await;
        assert_eq!(rest.names(), ["c"]);
    });
}

#[test]
fn token_of_a_collection_without_writes_expires() {
    both_ways(async |cluster| {
        let place = cluster.place("quiet").await;
        place
            .set_up(&[("POST cm", cm("a", "1")), ("POST cm", cm("b", "1"))])
            .await;
        let token = place
            .get("cm?limit=1")
            .await
            .next()
            .expect("there is more")
            .to_owned();
        cluster.pass(Duration::from_secs(200)).await;
        assert_eq!(
            place
                .get(&format!("cm?limit=1&continue={token}"))
                .await
                .code,
            200,
            "pages need not be read immediately"
        );
        cluster.place("busy").await;
        cluster.pass(Duration::from_secs(401)).await;
        let refused = place.get(&format!("cm?limit=1&continue={token}")).await;
        assert_eq!(
            refused.code, 410,
            "history is forgotten twice in ten minutes"
        );
        assert_eq!(
            refused.reason(),
            "Expired",
            "history is forgotten twice in ten minutes"
        );
        let page = place
            .get(&format!(
                "cm?limit=1&continue={}",
                refused.next().expect("a token to continue with")
            ))
            .await;
        assert_eq!(page.code, 200);
        assert_eq!(page.names(), vec!["b".to_owned()]);
    });
}

#[test]
fn watch_from_forgotten_revision_ends_with_an_error() {
    both_ways(async |cluster| {
        let (place, made, _) = forgetful(cluster).await;
        for version in [1, made[0]] {
            let watching = place
                .watch(&format!("cm?watch=1&resourceVersion={version}"))
                .await;
            assert_eq!(watching.code, 200, "the refusal is an event");
            let events = watching.all().await;
            assert_eq!(shorts(&events), ["ERROR 410"]);
            let status = &events[0]["object"];
            assert_eq!(status["kind"].as_str(), Some("Status"));
            assert_eq!(status["reason"].as_str(), Some("Expired"));
            assert!(
                status["message"].as_str().is_some_and(
                    |m| m.starts_with(&format!("too old resource version: {version} ("))
                ),
                "{status}"
            );
        }
    });
}

#[test]
fn revisions_of_the_last_75_seconds_are_kept() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        let made = place
            .set_up(&[("POST cm", cm("a", "1")), ("POST cm", cm("b", "1"))])
            .await;
        cluster.pass(Duration::from_secs(75)).await;
        let later = place.set_up(&[("PUT cm/a", cm("a", "2"))]).await;
        let then = place
            .get(&format!(
                "cm?resourceVersion={}&resourceVersionMatch=Exact",
                made[0]
            ))
            .await;
        assert_eq!(then.code, 200);
        assert_eq!(then.names(), vec!["a".to_owned()]);
        let events = place.events_since("cm", made[0]).await;
        assert_eq!(
            shorts(&events),
            [
                format!("ADDED b@{}", made[1]),
                format!("MODIFIED a@{}", later[0])
            ]
        );
    });
}

#[test]
fn objects_of_a_new_server_are_not_watch_history() {
    both_ways(async |cluster| {
        let events = cluster
            .watch("/api/v1/namespaces?watch=1&resourceVersion=1")
            .await
            .all()
            .await;
        assert_eq!(shorts(&events), ["ERROR 410"]);
        let exact = cluster
            .request(
                "GET /api/v1/namespaces?resourceVersion=1&resourceVersionMatch=Exact",
                &Value::Null,
            )
            .await;
        assert_eq!(exact.code, 410);
        assert_eq!(exact.body["status"].as_str(), json!("Failure").as_str());
    });
}
