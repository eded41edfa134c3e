//! Watches of impossible names and future versions.

use std::{thread::available_parallelism, time::Duration};

use http::Method;
use http_body_util::BodyExt as _;
use serde_json::{Value, json};

use crate::{
    client::{JSON, Response},
    target::Target,
};

const CONFIG_MAPS: &str = "/api/v1/namespaces/default/configmaps";

/// Each such watch used to occupy a thread of the server forever, even after SIGTERM.
#[tokio::test]
async fn watches_of_an_empty_name_occupy_no_thread() {
    let target = Target::start().await;
    let threads = available_parallelism().map_or(2, usize::from);
    let path = format!("{CONFIG_MAPS}?watch=1&fieldSelector=metadata.name%3D");
    let mut watches = Vec::new();
    for _ in 0..threads * 2 {
        let watch = target.admin.start(Method::GET, &path, JSON, "").await;
        assert_eq!(watch.status(), 200);
        watches.push(watch);
    }
    let object = json!({"metadata": {"name": "a"}});
    target.admin.create(CONFIG_MAPS, &object).await;
    for _ in 0..threads * 2 {
        let version = target.admin.get("/version").await;
        version
            .assert_status(200)
            .assert_within(Duration::from_secs(5));
    }
    target.assert_well().await;
    drop(watches);
}

/// The types of the events of a watch, and the last event.
fn events(response: &Response) -> (Vec<String>, Option<Value>) {
    response.assert_status(200);
    let text = String::from_utf8_lossy(&response.body);
    let events: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let types = events
        .iter()
        .map(|event| event["type"].as_str().expect("a type").to_owned())
        .collect();
    (types, events.last().cloned())
}

#[tokio::test]
async fn watch_of_a_future_version_is_not_answered_with_an_older_one() {
    let target = Target::start().await;
    let list = target.admin.get(CONFIG_MAPS).await.json();
    let version = list["metadata"]["resourceVersion"].as_str();
    let version: u64 = version.and_then(|v| v.parse().ok()).expect("a number");
    let watch = format!(
        "{CONFIG_MAPS}?watch=1&allowWatchBookmarks=true&timeoutSeconds=3&resourceVersion={}",
        version + 300
    );
    let initial = format!("{watch}&sendInitialEvents=true&resourceVersionMatch=NotOlderThan");
    let (initial, silent) = tokio::join!(target.admin.get(&initial), target.admin.get(&watch));
    let (types, last) = events(&initial);
    assert_eq!(types, ["ERROR"]);
    assert_eq!(last.expect("an event")["object"]["code"], 504);
    // A bookmark comes two seconds before the end; the server has not reached the version then.
    let (types, _) = events(&silent);
    assert_eq!(types, Vec::<String>::new());
    target.assert_well().await;
}

#[tokio::test]
async fn unread_watches_are_reset_after_their_timeout() {
    const WATCHES: usize = 20;
    let target = Target::start().await;
    let mut builder =
        hyper::client::conn::http2::Builder::new(hyper_util::rt::TokioExecutor::new());
    builder.initial_stream_window_size(0);
    let mut client = target.admin.clone();
    client.sender = target.endpoint.http2(&builder).await;
    let path = "/api/v1/namespaces?watch=1&timeoutSeconds=1";
    let mut watches = Vec::new();
    for _ in 0..WATCHES {
        let watch = client.start(Method::GET, path, JSON, "").await;
        assert_eq!(watch.status(), 200);
        watches.push(watch.into_body());
    }
    for watch in watches {
        let end = tokio::time::timeout(Duration::from_secs(10), watch.collect());
        let end = end.await.expect("the watch ends");
        assert!(end.is_err(), "the stream is reset");
    }
    target.assert_well().await;
}
