//! Replays against a small server in this process: which scenarios pass or fail, and the text of
//! differences.

use std::{
    collections::HashMap,
    convert::Infallible,
    fs,
    sync::{Arc, Mutex},
};

use bellerophon_conformance::{
    Corpus, Detail, InProcess, Options, Results, failures, replay, summary,
};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::{BodyExt, Full, StreamBody, combinators::UnsyncBoxBody};
use tower::service_fn;

type Body = UnsyncBoxBody<Bytes, Infallible>;

/// Keeps what is posted under its path, counts revisions, and streams two events to a watch of anything.
#[derive(Default)]
struct Store {
    objects: HashMap<String, String>,
    revision: u64,
}

fn answer(store: &Mutex<Store>, request: &Request<Full<Bytes>>, body: &[u8]) -> Response<Body> {
    let respond = |status: StatusCode, text: String| {
        let body = Full::from(text)
            .map_err(|never| match never {})
            .boxed_unsync();
        Response::builder()
            .status(status)
            .header("content-type", "application/json")
            .body(body)
            .expect("the answer is sound")
    };
    let path = request.uri().path().to_owned();
    let query = request.uri().query().unwrap_or_default();
    assert!(!path.ends_with("/panic"), "a panic of the server");
    if query.contains("watch") {
        let events = [
            r#"{"type":"ADDED","object":{"metadata":{"resourceVersion":"1"}}}"#,
            "\n{\"type\":",
            "\"DELETED\"}\n",
        ];
        let frames =
            events.map(|event| Ok::<_, Infallible>(http_body::Frame::data(Bytes::from(event))));
        let body = StreamBody::new(futures_util::StreamExt::chain(
            futures_util::stream::iter(frames),
            futures_util::stream::pending(),
        ));
        return Response::new(body.boxed_unsync());
    }
    let mut store = store
        .lock()
        .expect("nothing panics while it holds the lock");
    store.revision += 1;
    let revision = store.revision;
    match request.method().as_str() {
        "POST" => {
            store
                .objects
                .insert(path, String::from_utf8_lossy(body).into_owned());
            respond(
                StatusCode::CREATED,
                format!(
                    r#"{{"metadata":{{"resourceVersion":"{revision}"}},"agent":{:?}}}"#,
                    request.headers()["user-agent"]
                ),
            )
        }
        _ => match store.objects.get(&path) {
            Some(object) => respond(
                StatusCode::OK,
                format!(r#"{{"body":{object},"metadata":{{"resourceVersion":"{revision}"}}}}"#),
            ),
            None => respond(StatusCode::NOT_FOUND, "not found".to_owned()),
        },
    }
}

async fn results_of(scenarios: &str, without: &[&str]) -> Results {
    let folder = tempfile::tempdir().expect("a folder can be made");
    fs::create_dir(folder.path().join("own")).expect("a folder can be made");
    fs::write(folder.path().join("own/all.json"), format!("[{scenarios}]"))
        .expect("a file can be written");
    let corpus = Corpus::read(folder.path()).expect("the scenarios are sound");
    let store = Arc::new(Mutex::new(Store::default()));
    let service = service_fn(move |request: Request<Full<Bytes>>| {
        let store = store.clone();
        async move {
            let body = request
                .body()
                .clone()
                .collect()
                .await
                .map(|body| body.to_bytes())
                .unwrap_or_default();
            Ok::<_, Infallible>(answer(&store, &request, &body))
        }
    });
    let without: Vec<String> = without.iter().map(|key| (*key).to_owned()).collect();
    replay(
        &corpus,
        Arc::new(InProcess::new(service)),
        &Options {
            without,
            ..Options::nearby()
        },
    )
    .await
}

async fn check(steps: &str, differences: &[&str]) {
    let results = results_of(&format!(r#"{{"name":"n","steps":[{steps}]}}"#), &[]).await;
    assert_eq!(results.outcomes[0].differences, differences, "{steps}");
}

#[tokio::test]
async fn equal_answers_pass() {
    check(
        r#"{"do":"POST","path":"/x/{ns}","body":{"name":"{id}"},"save":{"rv":"metadata.resourceVersion"},
            "expect":{"status":201,"headers":{"content-type":"application/json"},"body":{"metadata":{"resourceVersion":"<rv1>"},"agent":"replay/1"}}},
           {"do":"GET","path":"/x/{ns}?resourceVersion={rv}",
            "expect":{"status":200,"headers":{"content-type":"application/json"},"body":{"body":{"name":"{id}"},"metadata":{"resourceVersion":"<rv2>"}}}}"#,
        &[],
    )
    .await;
}

#[tokio::test]
async fn differences_name_step_and_place() {
    check(
        r#"{"do":"GET","path":"/absent","ignore":["headers"],"expect":{"status":404,"body":"not found"}},
           {"do":"POST","path":"/x","body":"{}","headers":{"User-Agent":"other"},"only":["agent"],
            "expect":{"status":200,"headers":{"content-type":"application/json"},"body":{"agent":"replay/1"}}}"#,
        &["step 2 body.agent: expected \"replay/1\", got \"other\"", "step 2 status: expected 200, got 201"],
    )
    .await;
}

#[tokio::test]
async fn surplus_events_of_a_watch_are_seen() {
    let watch = r#"{"watch":"w","path":"/x/{ns}?watch=1","expect":{"status":200}}"#;
    let both =
        r#"{"type":"ADDED","object":{"metadata":{"resourceVersion":"<rv1>"}}},{"type":"DELETED"}"#;
    check(&format!(r#"{watch},{{"collect":"w","events":2,"ended":true,"expect":{{"status":200,"events":[{both}],"ended":false}}}}"#), &[])
        .await;
    let expected_none =
        format!(r#"{watch},{{"collect":"w","events":0,"expect":{{"status":200,"events":[]}}}}"#);
    let found = r#"step 2 events: expected [], got [{"type": "ADDED", "object": {"metadata": {"resourceVersion": "<rv1>"}}}, {"type": "DELETED"}]"#;
    check(&expected_none, &[found]).await;
}

#[tokio::test]
async fn panicking_server_fails_only_its_scenario() {
    let good = r#"{"name":"good","steps":[{"do":"GET","path":"/absent","only":[],"ignore":["headers"],"expect":{"status":404,"body":"not found"}}]}"#;
    let bad =
        r#"{"name":"bad","no_namespace":true,"steps":[{"do":"GET","path":"/panic","expect":{}}]}"#;
    let results = results_of(&format!("{good},{bad}"), &[]).await;
    assert_eq!(
        failures(&results, Detail::First),
        "FAIL own/all.json: bad\n     the server panicked\n"
    );
    assert_eq!(summary(&results), "own      1 of 2\n1 passed, 1 failed\n");
}

#[tokio::test]
async fn keys_left_out_are_not_compared() {
    let scenario = r#"{"name":"n","steps":[{"do":"POST","path":"/x","body":{},"expect":{"status":201,"body":{"agent":"replay/1"}}}]}"#;
    assert!(results_of(scenario, &[]).await.failed().next().is_some());
    assert!(
        results_of(scenario, &["headers", "metadata"])
            .await
            .failed()
            .next()
            .is_none()
    );
}

#[tokio::test]
async fn repeated_step_waits_for_its_value() {
    // Every GET counts up, so the third attempt has revision 6: two objects were set up, and one was posted.
    check(
        r#"{"do":"POST","path":"/x","body":{},"only":[],"ignore":["headers"],"expect":{"status":201,"body":{}}},
           {"do":"GET","path":"/x","repeat_until":{"path":"metadata.resourceVersion","value":6},"only":["metadata.resourceVersion"],"ignore":["headers"],
            "expect":{"status":200,"body":{"metadata":{"resourceVersion":"<rv2>"}}}}"#,
        &[],
    )
    .await;
}
