//! `bellerophon up --demo`: sample objects, and what comes of them as it happens.
//! In: a ready cluster. Out: objects on the server, lines on stdout.

use std::io::{Write as _, stdout};

use bellerophon::{TraceBus, WallClock};
use kube::Client;
use serde_json::json;

use crate::{
    arguments::Form,
    failure::Failure,
    story::{Line, Story, Subject},
    trace,
};

/// The samples: what each is, where it is applied, and itself.
const SAMPLES: [(&str, &str, &str); 2] = [
    ("Service default/stable", "/api/v1/namespaces/default/services/stable", include_str!("../../../samples/service.yaml")),
    (
        "Deployment.apps default/stable",
        "/apis/apps/v1/namespaces/default/deployments/stable",
        include_str!("../../../samples/deployment.yaml"),
    ),
];

/// Applies the samples, then tells what happens, until something else ends the command.
///
/// # Errors
/// The server refuses a sample, or nobody can be told.
pub(crate) async fn run(client: &Client, bus: &TraceBus, clock: WallClock, form: Form) -> Result<(), Failure> {
    let mut reader = bus.subscribe();
    for (what, path, sample) in SAMPLES {
        let command = Line::Command(format!("apply {what}, as kubectl apply would"));
        tell(form, [trace::timed(clock.now(), &command)])?;
        apply(client, path, sample).await?;
    }
    // The samples share their name.
    let mut story = Story::of(Some(Subject::parse("stable", "default")));
    loop {
        let batch = reader.next().await;
        tell(form, batch.records.iter().flat_map(|record| trace::lines(&mut story, record, clock)))?;
    }
}

fn tell(form: Form, lines: impl IntoIterator<Item = String>) -> Result<(), Failure> {
    let mut out = stdout().lock();
    let mut write = |text: &str| match form {
        Form::Text => writeln!(out, "{text}"),
        Form::Json => writeln!(out, "{}", json!({ "event": "trace", "text": text })),
    };
    let told = lines.into_iter().try_for_each(|text| write(text.trim_end()));
    told.and_then(|()| out.flush()).map_err(Failure::caused_by("cannot write to stdout"))
}

async fn apply(client: &Client, path: &str, sample: &str) -> Result<(), Failure> {
    let request = http::Request::patch(format!("{path}?fieldManager=bellerophon-demo&force=true"))
        .header(http::header::CONTENT_TYPE, "application/apply-patch+yaml")
        .body(sample.as_bytes().to_vec())
        .expect("a path and a body make a request");
    client.request_text(request).await.map_err(Failure::caused_by(&format!("cannot apply the sample at {path}")))?;
    Ok(())
}
