//! A write, and everything it changed: the answer, the object's resourceVersion and generation,
//! what watchers saw.
//! In: rows. Out: a failed assertion that names the row.

use std::panic::AssertUnwindSafe;

use futures_util::FutureExt as _;
use serde_json::{Value, json};

use super::{
    answer::{Answer, version_of},
    cluster::{Cluster, Place},
};

/// What a request does to the object it names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Effect {
    /// Nothing: same resourceVersion, or still absent; no event.
    Nothing,
    /// A new resourceVersion, the same generation, one MODIFIED.
    Version,
    /// A new resourceVersion, the next generation, one MODIFIED.
    Generation,
    /// It is there now: one ADDED.
    Added,
    /// It is gone: one DELETED.
    Deleted,
    /// It is gone after a last change: MODIFIED, DELETED.
    ChangedAndDeleted,
}

impl Effect {
    fn events(self) -> &'static [&'static str] {
        match self {
            Self::Nothing => &[],
            Self::Version | Self::Generation => &["MODIFIED"],
            Self::Added => &["ADDED"],
            Self::Deleted => &["DELETED"],
            Self::ChangedAndDeleted => &["MODIFIED", "DELETED"],
        }
    }
}

/// One case. In the body, `{rv}` and `{uid}` are those of the object before the request,
/// `{first}` for the revision after the first step of the setup.
pub(crate) struct Row {
    pub(crate) promise: &'static str,
    pub(crate) setup: Vec<(&'static str, Value)>,
    pub(crate) request: (&'static str, Value),
    pub(crate) answer: (u16, &'static str),
    pub(crate) effect: Effect,
}

/// A row on one line.
pub(crate) fn row<const N: usize>(
    promise: &'static str,
    setup: [(&'static str, Value); N],
    request: (&'static str, Value),
    answer: (u16, &'static str),
    effect: Effect,
) -> Row {
    Row {
        promise,
        setup: setup.to_vec(),
        request,
        answer,
        effect,
    }
}

/// Checks every row in its own namespace; all that fail are named, not only the first.
pub(crate) async fn check(cluster: &Cluster, rows: Vec<Row>) {
    let mut broken = Vec::new();
    for (i, row) in rows.iter().enumerate() {
        let place = cluster.place(&format!("row-{i}")).await;
        if AssertUnwindSafe(check_row(&place, row))
            .catch_unwind()
            .await
            .is_err()
        {
            broken.push(row.promise);
        }
    }
    assert!(broken.is_empty(), "broken promises: {broken:#?}");
}

async fn check_row(place: &Place<'_>, row: &Row) {
    let Row {
        promise,
        setup,
        request: (line, body),
        answer: (code, reason),
        effect,
    } = row;
    let way = place.cluster.way;
    let versions = place.set_up(setup).await;
    let (collection, object) = target(line, body);
    let before = place.get(&object).await;
    let start = place.now().await;
    let body = filled(body, &before, versions.first().copied().unwrap_or_default());
    let answer = place.request(line, &body).await;
    assert_eq!(
        answer.code,
        *code,
        "{promise} ({way:?}): {}",
        answer.message()
    );
    assert_eq!(
        answer.reason(),
        *reason,
        "{promise} ({way:?}): {}",
        answer.message()
    );

    let after = place.get(&object).await;
    let generation = |of: &Answer| {
        of.body["metadata"]["generation"]
            .as_i64()
            .unwrap_or_default()
    };
    let versions = (before.version(), after.version());
    match effect {
        Effect::Nothing => {
            assert_eq!(before.code, after.code, "{promise} ({way:?})");
            assert_eq!(versions.0, versions.1, "{promise} ({way:?})");
        }
        Effect::Version => {
            assert!(versions.1 > versions.0, "{promise} ({way:?}): {versions:?}");
            assert_eq!(
                generation(&after),
                generation(&before),
                "{promise} ({way:?})"
            );
        }
        Effect::Generation => {
            assert!(versions.1 > versions.0, "{promise} ({way:?}): {versions:?}");
            assert_eq!(
                generation(&after),
                generation(&before) + 1,
                "{promise} ({way:?})"
            );
        }
        Effect::Added => {
            assert_eq!(before.code, 404, "{promise} ({way:?})");
            assert_eq!(after.code, 200, "{promise} ({way:?})");
        }
        Effect::Deleted | Effect::ChangedAndDeleted => {
            assert_eq!(before.code, 200, "{promise} ({way:?})");
            assert_eq!(after.code, 404, "{promise} ({way:?})");
        }
    }
    check_events(place, promise, &collection, start, *effect, &after).await;
}

async fn check_events(
    place: &Place<'_>,
    promise: &str,
    collection: &str,
    start: u64,
    effect: Effect,
    after: &Answer,
) {
    let events = place.events_since(collection, start).await;
    let kinds: Vec<&str> = events
        .iter()
        .filter_map(|event| event["type"].as_str())
        .collect();
    assert_eq!(
        kinds,
        effect.events(),
        "{promise} ({:?})",
        place.cluster.way
    );
    let mut last = start;
    for event in &events {
        let version = version_of(&event["object"]);
        assert!(version > last, "{promise}: {version} after {last}");
        last = version;
    }
    if after.code == 200 && !events.is_empty() {
        assert_eq!(last, after.version(), "{promise}");
    }
}

/// The collection and the object that a request is about.
fn target(line: &str, body: &Value) -> (String, String) {
    let (method, path) = line.split_once(' ').expect("a method and a path");
    let path = path.split('?').next().unwrap_or_default();
    let mut parts = path.split('/');
    let collection = parts.next().unwrap_or_default().to_owned();
    let name = match method {
        "POST" => body["metadata"]["name"].as_str().unwrap_or("unnamed"),
        _ => parts.next().unwrap_or("unnamed"),
    };
    let object = format!("{collection}/{name}");
    (collection, object)
}

fn filled(body: &Value, before: &Answer, first: u64) -> Value {
    let of = |field: &str| {
        before.body["metadata"][field]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    };
    match body {
        Value::String(text) => {
            json!(
                text.replace("{rv}", &of("resourceVersion"))
                    .replace("{uid}", &of("uid"))
                    .replace("{first}", &first.to_string())
            )
        }
        Value::Array(list) => list
            .iter()
            .map(|item| filled(item, before, first))
            .collect(),
        Value::Object(map) => map
            .iter()
            .map(|(key, value)| (key.clone(), filled(value, before, first)))
            .collect(),
        other => other.clone(),
    }
}
