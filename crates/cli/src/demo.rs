//! `bellerophon up --demo`: applies sample objects and prints what follows from them.
//!
//! Input: a ready cluster. Outputs: objects on the API server; on stdout a summary of each chain, or
//! with `-v` every record.

use std::io::{Write as _, stdout};
use std::time::Duration;

use bellerophon::ObjectKey;
use bellerophon::clock::Clock;
use bellerophon::trace::{Trace, TraceReader};
use bellerophon_operator::Operator;
use kube::Client;
use serde_json::{Value, json};
use tokio::time::Instant;

use crate::{
    chains::{self, ChainRoot},
    error::CliError,
    flags::OutputFormat,
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
        text: include_str!("../samples/service.yaml"),
    },
    Sample {
        operator: None,
        objects: &[(
            "Deployment.apps default/stable",
            "/apis/apps/v1/namespaces/default/deployments/stable",
        )],
        text: include_str!("../samples/deployment.yaml"),
    },
    Sample {
        operator: Some("icecream"),
        objects: &[(
            "Icecream.controller.nicoleh.io default/example-icecream",
            "/apis/controller.nicoleh.io/v1alpha1/namespaces/default/icecreams/example-icecream",
        )],
        text: include_str!("../samples/icecream.yaml"),
    },
    Sample {
        operator: Some("simple"),
        objects: &[(
            "BellerophonSimple.stable.simple-bellerophon.io default/philonoe",
            "/apis/stable.simple-bellerophon.io/v444beta989/namespaces/default/sheroes/philonoe",
        )],
        text: include_str!("../samples/shero.yaml"),
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
        text: include_str!("../samples/secsynch.yaml"),
    },
];

/// How often chains are looked at.
const CHAIN_INTERVAL: Duration = Duration::from_millis(500);

/// The time without a reconcile after which a chain is complete.
const QUIET: Duration = Duration::from_secs(2);

/// The time after which a chain is printed, complete or not.
const CHAIN_TIMEOUT: Duration = Duration::from_secs(30);

/// What is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Detail {
    /// A summary of each chain.
    Chains,
    /// Every event, enqueued key and write.
    Records,
}

/// Applies the samples of these operators, then prints what follows from them until it is
/// cancelled.
///
/// # Errors
/// The server rejects a sample, or stdout cannot be written.
pub(crate) async fn run(
    client: &Client,
    operators: &[Operator],
    trace: &Trace,
    clock: Clock,
    output: (OutputFormat, Detail),
) -> Result<(), CliError> {
    let (format, detail) = output;
    // Before the first apply, so that no record of the samples is missed.
    let reader = trace.subscribe();
    let is_running = |name: &str| operators.iter().any(|operator| operator.name == name);
    let mut roots = Vec::new();
    for sample in SAMPLES
        .iter()
        .filter(|sample| sample.operator.is_none_or(is_running))
    {
        let documents = sample.text.split("\n---\n");
        for ((object, path), document) in sample.objects.iter().zip(documents) {
            let command = format!("apply {object}, as kubectl apply would");
            if detail == Detail::Records {
                let command = TimelineEntry::Command(command.clone());
                print(format, [trace::with_time(clock.now(), &command)])?;
            }
            let at = Instant::now();
            let version = apply(client, path, document).await?;
            roots.push(root(object, command, version, at));
        }
    }
    match detail {
        Detail::Records => print_records(reader, &roots, clock, format).await,
        Detail::Chains => print_chains(trace, roots, format).await,
    }
}

/// The root of the chain of a sample.
fn root(object: &str, command: String, version: String, at: Instant) -> ChainRoot {
    let (kind, key) = object.split_once(' ').unwrap_or_default();
    let key = match key.split_once('/') {
        Some((namespace, name)) => ObjectKey::namespaced(namespace, name),
        None => ObjectKey::cluster(key),
    };
    ChainRoot {
        command,
        kind: kind.to_owned(),
        key,
        version,
        at,
    }
}

/// Prints every record of the samples and of what followed from them.
async fn print_records(
    mut reader: TraceReader,
    roots: &[ChainRoot],
    clock: Clock,
    format: OutputFormat,
) -> Result<(), CliError> {
    let selector = |root: &ChainRoot| {
        let kind = root.kind.split('.').next().unwrap_or_default();
        ObjectSelector::parse(&format!("{kind}/{}", root.key.name()), "default")
    };
    let mut timeline = Timeline::new(roots.iter().map(selector).collect());
    loop {
        let batch = reader.next().await;
        let records = batch.records.iter();
        let lines = records.flat_map(|record| trace::lines(&mut timeline, record, clock));
        print(format, lines)?;
    }
}

/// Prints a summary of each chain when it is complete.
async fn print_chains(
    trace: &Trace,
    mut roots: Vec<ChainRoot>,
    format: OutputFormat,
) -> Result<(), CliError> {
    while !roots.is_empty() {
        tokio::time::sleep(CHAIN_INTERVAL).await;
        let mut waiting = Vec::new();
        for root in roots {
            let effects = trace.effects(&root.kind, &root.key, &root.version);
            let reconciles = effects.reconciles.iter();
            let last = reconciles
                .map(|reconcile| reconcile.finished.as_ref().unwrap_or(&reconcile.started).at)
                .fold(root.at, Instant::max);
            if last.elapsed() > QUIET || root.at.elapsed() > CHAIN_TIMEOUT {
                print(format, chains::summary(&root, &effects))?;
            } else {
                waiting.push(root);
            }
        }
        roots = waiting;
    }
    print(
        format,
        ["every event and write: `bellerophon trace --follow`, or up --demo -v".to_owned()],
    )?;
    std::future::pending().await
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

/// Applies a sample, and returns its version.
async fn apply(client: &Client, path: &str, sample: &str) -> Result<String, CliError> {
    let request = http::Request::patch(format!("{path}?fieldManager=bellerophon-demo&force=true"))
        .header(http::header::CONTENT_TYPE, "application/apply-patch+yaml")
        .body(sample.as_bytes().to_vec())
        .expect("the path is a valid URI");
    let applied: Value = client
        .request(request)
        .await
        .map_err(CliError::context(&format!(
            "cannot apply the sample at {path}"
        )))?;
    let version = applied["metadata"]["resourceVersion"].as_str();
    Ok(version.unwrap_or_default().to_owned())
}
