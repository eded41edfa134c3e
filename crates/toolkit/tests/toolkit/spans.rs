//! The span of each reconcile, as a log collector receives it.

use std::io;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bellerophon::controller::ControllerOptions;
use bellerophon::prelude::*;
use k8s_openapi::api::core::v1::ConfigMap;
use serde_json::Value;
use tokio::time::sleep;
use tracing_subscriber::fmt::format::FmtSpan;

use crate::harness::{create, manager, maps, server};

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

async fn fail_three_times(req: Request<ConfigMap>) -> Result<Action, Error> {
    match req.attempt() {
        1 => Err(Error::retry("not yet")),
        2 => panic!("on purpose"),
        3 => std::future::pending().await,
        _ => Ok(Action::requeue_after(Duration::from_secs(3600))),
    }
}

/// Everything runs on the thread of the test, so a subscriber of this thread receives it all.
#[tokio::test(start_paused = true)]
async fn span_names_controller_object_causes_attempt_and_result() {
    let server = server().await;
    let client = server.client();
    let lines = Lines::default();
    let writer = lines.clone();
    let subscriber = tracing_subscriber::fmt()
        .json()
        .with_span_events(FmtSpan::CLOSE)
        .with_writer(move || writer.clone())
        .finish();
    let _guard = tracing::subscriber::set_default(subscriber);
    let mut mgr = manager(&client);
    let maps = maps(&mut mgr);
    let options = ControllerOptions {
        reconcile_timeout: Some(Duration::from_secs(5)),
        ..ControllerOptions::default()
    };
    mgr.controller::<ConfigMap>()
        .informer(&maps)
        .with_options(options)
        .name("hero")
        .reconcile(fail_three_times);
    let mut running = mgr.start();
    running.ready().await.unwrap();
    // A callsite that another thread registered while the subscriber was set may have missed it.
    tracing::callsite::rebuild_interest_cache();
    create(&client, "icarus").await;
    sleep(Duration::from_secs(12)).await;
    running.stop().await.unwrap();
    let text = String::from_utf8(lines.0.lock().unwrap().clone()).unwrap();
    let lines: Vec<Value> = text
        .lines()
        .map(|line| serde_json::from_str(line).unwrap())
        .collect();
    let is_reconcile =
        |line: &&Value| line["fields"]["message"] == "close" && line["span"]["name"] == "reconcile";
    let spans: Vec<_> = lines.iter().filter(is_reconcile).collect();
    let results: Vec<_> = spans
        .iter()
        .map(|line| format!("{} {}", line["span"]["attempt"], line["span"]["result"]))
        .collect();
    assert_eq!(
        results,
        [
            r#"1 "error""#,
            r#"2 "error""#,
            r#"3 "error""#,
            r#"4 "requeue_after""#
        ]
    );
    for span in &spans {
        assert_eq!(span["span"]["controller"], "hero");
        assert_eq!(span["span"]["object"], "default/icarus");
    }
    let causes = |index: usize| spans[index]["span"]["causes"].as_str().unwrap();
    assert!(
        causes(0).starts_with("ConfigMap default/icarus added at "),
        "{}",
        causes(0)
    );
    assert_eq!(causes(1), "ConfigMap default/icarus retry");
    let errors: Vec<_> = lines
        .iter()
        .filter_map(|line| line["fields"]["error"].as_str())
        .collect();
    assert_eq!(
        errors,
        [
            "not yet",
            "the reconcile panicked: on purpose",
            "the reconcile took longer than 5s"
        ]
    );
}
