//! Promises of the span around each reconcile, read the way a collector of logs reads it.
#![expect(
    clippy::unwrap_used,
    reason = "a failed expectation in a test is the failure of the test"
)]

mod harness;

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bellerophon::{
    Controller, ControllerOptions, Failure, Manager, ManagerOptions, Outcome, Request,
};
use bellerophon_apiserver::ApiServer;
use harness::{create, maps, run, settle};
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::Value;
use tracing_subscriber::fmt::format::FmtSpan;

#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<u8>>>);

impl io::Write for Lines {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn span_names_controller_object_causes_attempt_and_result() {
    let server = ApiServer::builder().seed(1).start().await.unwrap();
    let (client, lines) = (server.client(), Lines::default());
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .with_span_events(FmtSpan::CLOSE)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let maps = maps(&client);
    let options = ControllerOptions {
        reconcile_timeout: Some(Duration::from_secs(5)),
        ..ControllerOptions::default()
    };
    let controller = Controller::of(&maps)
        .with_options(options)
        .named("hero")
        .reconcile_with(async |request: Request<ConfigMap>| match request.attempt {
            1 => Err(Failure::retry("not yet")),
            2 => panic!("on purpose"),
            3 => std::future::pending().await,
            _ => Ok(Outcome::RequeueAfter(Duration::from_secs(3600))),
        });
    run(
        Manager::new(client.clone(), ManagerOptions::default())
            .cache(&maps)
            .controller(controller),
        async {
            create(&client, "icarus").await;
            settle().await;
            tokio::time::sleep(Duration::from_secs(10)).await;
        },
    )
    .await;
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let spans: Vec<_> = lines
        .iter()
        .filter(|line| line["fields"]["message"] == "close" && line["span"]["name"] == "reconcile")
        .collect();
    let told: Vec<_> = spans
        .iter()
        .map(|line| {
            [&line["span"]["attempt"], &line["span"]["result"]]
                .map(ToString::to_string)
                .join(" ")
        })
        .collect();
    assert_eq!(
        told,
        [
            r#"1 "error""#,
            r#"2 "error""#,
            r#"3 "error""#,
            r#"4 "requeue_after""#
        ]
    );
    for span in &spans {
        assert_eq!(
            [&span["span"]["controller"], &span["span"]["object"]],
            ["hero", "default/icarus"]
        );
    }
    let causes = |index: usize| spans[index]["span"]["causes"].as_str().unwrap();
    assert!(
        causes(0).starts_with("ConfigMap default/icarus added at "),
        "{}",
        causes(0)
    );
    assert_eq!(causes(1), "ConfigMap default/icarus retry");
    let failures: Vec<_> = lines
        .iter()
        .filter_map(|line| line["fields"]["failure"].as_str())
        .collect();
    assert_eq!(
        failures,
        [
            "not yet",
            "the reconcile panicked: on purpose",
            "the reconcile took longer than 5s"
        ]
    );
}
