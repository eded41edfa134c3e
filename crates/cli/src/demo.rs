//! `bellerophon up --demo`: applies sample objects and prints their timelines.
//!
//! Input: a ready cluster. Outputs: objects on the API server, lines on stdout.

use std::io::{Write as _, stdout};

use bellerophon::clock::Clock;
use bellerophon::trace::Trace;
use bellerophon_operator::Operator;
use kube::Client;
use serde_json::json;

use crate::{
    arguments::OutputFormat,
    error::CliError,
    timeline::{ObjectSelector, Timeline, TimelineEntry},
    trace,
};

/// A sample file.
struct Sample {
    /// The operator of its custom resources; `None` for built-in resources.
    operator: Option<&'static str>,
    /// The object and the URL path of each document, in order.
    objects: &'static [(&'static str, &'static str)],
    text: &'static str,
}

const SAMPLES: [Sample; 5] = [
    Sample {
        operator: None,
        objects: &[(
            "Service default/stable",
            "/api/v1/namespaces/default/services/stable",
        )],
        text: include_str!("../../../samples/service.yaml"),
    },
    Sample {
        operator: None,
        objects: &[(
            "Deployment.apps default/stable",
            "/apis/apps/v1/namespaces/default/deployments/stable",
        )],
        text: include_str!("../../../samples/deployment.yaml"),
    },
    Sample {
        operator: Some("icecream"),
        objects: &[(
            "Icecream.controller.nicoleh.io default/example-icecream",
            "/apis/controller.nicoleh.io/v1alpha1/namespaces/default/icecreams/example-icecream",
        )],
        text: include_str!("../../../samples/icecream.yaml"),
    },
    Sample {
        operator: Some("simple"),
        objects: &[(
            "BellerophonSimple.stable.simple-bellerophon.io default/philonoe",
            "/apis/stable.simple-bellerophon.io/v444beta989/namespaces/default/sheroes/philonoe",
        )],
        text: include_str!("../../../samples/shero.yaml"),
    },
    Sample {
        operator: Some("secsynch"),
        objects: &[
            ("Namespace team-a", "/api/v1/namespaces/team-a"),
            (
                "Secret default/shared-login",
                "/api/v1/namespaces/default/secrets/shared-login",
            ),
            (
                "SecSynch.tutorial.study.dev default/shared-login",
                "/apis/tutorial.study.dev/v1alpha1/namespaces/default/secsynches/shared-login",
            ),
        ],
        text: include_str!("../../../samples/secsynch.yaml"),
    },
];

/// Applies the samples of these operators, then prints their timelines until it is cancelled.
///
/// # Errors
/// The server rejects a sample, or stdout cannot be written.
pub(crate) async fn run(
    client: &Client,
    operators: &[Operator],
    bus: &Trace,
    clock: Clock,
    format: OutputFormat,
) -> Result<(), CliError> {
    // Before the first apply, so that no record of the samples is missed.
    let mut reader = bus.subscribe();
    let is_running = |name: &str| operators.iter().any(|operator| operator.name == name);
    let mut selectors = Vec::new();
    for sample in SAMPLES
        .iter()
        .filter(|sample| sample.operator.is_none_or(is_running))
    {
        let documents = sample.text.split("\n---\n");
        for ((object, path), document) in sample.objects.iter().zip(documents) {
            let command = format!("apply {object}, as kubectl apply would");
            let command = TimelineEntry::Command(command);
            print(format, [trace::with_time(clock.now(), &command)])?;
            apply(client, path, document).await?;
            let (kind, key) = object.split_once(' ').unwrap_or_default();
            let kind = kind.split('.').next().unwrap_or_default();
            let name = key.rsplit('/').next().unwrap_or_default();
            selectors.push(ObjectSelector::parse(&format!("{kind}/{name}"), "default"));
        }
    }
    let mut timeline = Timeline::new(selectors);
    loop {
        let batch = reader.next().await;
        let records = batch.records.iter();
        let lines = records.flat_map(|record| trace::lines(&mut timeline, record, clock));
        print(format, lines)?;
    }
}

fn print(format: OutputFormat, lines: impl IntoIterator<Item = String>) -> Result<(), CliError> {
    let mut out = stdout().lock();
    let mut write = |text: &str| match format {
        OutputFormat::Text => writeln!(out, "{text}"),
        OutputFormat::Json => writeln!(out, "{}", json!({ "event": "trace", "text": text })),
    };
    lines
        .into_iter()
        .try_for_each(|text| write(text.trim_end()))
        .and_then(|()| out.flush())
        .map_err(CliError::context("cannot write to stdout"))
}

async fn apply(client: &Client, path: &str, sample: &str) -> Result<(), CliError> {
    let request = http::Request::patch(format!("{path}?fieldManager=bellerophon-demo&force=true"))
        .header(http::header::CONTENT_TYPE, "application/apply-patch+yaml")
        .body(sample.as_bytes().to_vec())
        .expect("the path is a valid URI");
    client
        .request_text(request)
        .await
        .map_err(CliError::context(&format!(
            "cannot apply the sample at {path}"
        )))?;
    Ok(())
}
