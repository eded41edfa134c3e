//! Lists page by page.

use serde_json::{Value, json};

use super::{
    cluster::{Place, both_ways},
    objects::{cm, labelled},
};

async fn five(place: &Place<'_>) -> Vec<u64> {
    place
        .set_up(&["a", "b", "c", "d", "e"].map(|name| {
            (
                "POST cm",
                labelled(
                    name,
                    &json!({"odd": if "ace".contains(name) { "yes" } else { "no" }}),
                ),
            )
        }))
        .await
}

#[test]
fn pages_together_are_the_list() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        five(&place).await;
        for (query, pages, remaining) in [
            (
                "limit=2",
                vec!["ab", "cd", "e"],
                vec![Some(3), Some(1), None],
            ),
            ("limit=5", vec!["abcde"], vec![None]),
            ("limit=9", vec!["abcde"], vec![None]),
            ("limit=0", vec!["abcde"], vec![None]),
            ("limit=-1", vec!["abcde"], vec![None]),
            ("limit=2&resourceVersion=0", vec!["abcde"], vec![None]),
            (
                "limit=2&labelSelector=odd%3Dyes",
                vec!["ac", "e"],
                vec![None, None],
            ),
            (
                "limit=1&labelSelector=odd%3Dno",
                vec!["b", "d", ""],
                vec![None, None, None],
            ),
        ] {
            let mut shown = Vec::new();
            let mut left = Vec::new();
            let mut next = Some(String::new());
            while let Some(token) = next {
                let answer = place.get(&format!("cm?{query}{token}")).await;
                assert_eq!(answer.code, 200, "{query}: {}", answer.message());
                shown.push(answer.names().concat());
                left.push(answer.body["metadata"]["remainingItemCount"].as_i64());
                next = answer.next().map(|token| format!("&continue={token}"));
            }
            // Behind the last selected object kube-apiserver cannot know that nothing follows; an
            // empty last page is allowed, not required.
            if shown.len() < pages.len() && pages.last() == Some(&"") {
                shown.push(String::new());
                left.push(None);
            }
            assert_eq!(
                shown,
                pages.iter().map(ToString::to_string).collect::<Vec<_>>(),
                "{query} ({:?})",
                cluster.way
            );
            assert_eq!(left, remaining, "{query} ({:?})", cluster.way);
        }
    });
}

#[test]
fn all_pages_show_one_revision() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        let made = five(&place).await;
        let first = place.get("cm?limit=2").await;
        place
            .set_up(&[("DELETE cm/d", Value::Null), ("POST cm", cm("bb", "new"))])
            .await;
        let second = place
            .get(&format!(
                "cm?limit=3&continue={}",
                first.next().expect("there is more")
            ))
            .await;
        assert_eq!(
            second.names(),
            ["c", "d", "e"],
            "as it was when the first page was read"
        );
        assert_eq!(first.version(), made[4]);
        assert_eq!(second.version(), made[4]);
    });
}

#[test]
fn tokens_are_valid_for_their_own_list_only() {
    both_ways(async |cluster| {
        let place = cluster.place("a").await;
        let made = five(&place).await;
        let token = place
            .get("cm?limit=2")
            .await
            .next()
            .expect("there is more")
            .to_owned();
        for (query, code, reason) in [
            (
                format!("limit=2&continue={token}&resourceVersion=0"),
                200,
                "",
            ),
            (
                format!("limit=2&continue={token}&resourceVersion={}", made[1]),
                400,
                "BadRequest",
            ),
            (
                format!(
                    "continue={token}&resourceVersionMatch=Exact&resourceVersion={}",
                    made[1]
                ),
                422,
                "Invalid",
            ),
            (format!("continue={}", &token[1..]), 400, "BadRequest"),
            ("continue=e30".to_owned(), 400, "BadRequest"),
            (format!("watch=1&continue={token}"), 422, "Invalid"),
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
fn pages_cross_namespaces_in_key_order() {
    both_ways(async |cluster| {
        for (namespace, name) in [("x", "1"), ("x-y", "1"), ("z", "1")] {
            cluster
                .place(namespace)
                .await
                .set_up(&[("POST secret", json!({"metadata": {"name": name}}))])
                .await;
        }
        let mut seen = Vec::new();
        let mut token = String::new();
        loop {
            let page = cluster
                .request(&format!("GET /api/v1/secrets?limit=1{token}"), &Value::Null)
                .await;
            seen.push(
                page.body["items"][0]["metadata"]["namespace"]
                    .as_str()
                    .unwrap_or_default()
                    .to_owned(),
            );
            match page.next() {
                Some(next) => token = format!("&continue={next}"),
                None => break,
            }
        }
        assert_eq!(seen, ["x-y", "x", "z"]);
    });
}
