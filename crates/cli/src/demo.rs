//! `bellerophon up --demo`: sample objects, and what comes of them as it happens.
//! In: a ready cluster. Out: objects on the server, lines on stdout.

use std::io::{Write as _, stdout};

use bellerophon::{TraceBus, WallClock};
use bellerophon_operator::Operator;
use kube::Client;
use serde_json::json;

use crate::{
    arguments::Form,
    failure::Failure,
    story::{Line, Story, Subject},
    trace,
};

/// A file of samples, for whoever acts on it.
struct Sample {
    /// The operator without which it is nothing but an object; `None` for what every cluster acts on.
    operator: Option<&'static str>,
    /// What its documents are, in order, and where they are applied.
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

/// Applies the samples that these operators act on, then tells what happens, until something else ends the command.
///
/// # Errors
/// The server refuses a sample, or nobody can be told.
pub(crate) async fn run(
    client: &Client,
    operators: &[Operator],
    bus: &TraceBus,
    clock: WallClock,
    form: Form,
) -> Result<(), Failure> {
    let mut reader = bus.subscribe();
    let runs = |name: &str| operators.iter().any(|operator| operator.name == name);
    let mut subjects = Vec::new();
    for sample in SAMPLES
        .iter()
        .filter(|sample| sample.operator.is_none_or(runs))
    {
        for ((what, path), document) in sample.objects.iter().zip(sample.text.split("\n---\n")) {
            let command = Line::Command(format!("apply {what}, as kubectl apply would"));
            tell(form, [trace::timed(clock.now(), &command)])?;
            apply(client, path, document).await?;
            let (kind, name) = what.split_once(' ').unwrap_or_default();
            let (kind, name) = (
                kind.split('.').next().unwrap_or_default(),
                name.rsplit('/').next().unwrap_or_default(),
            );
            subjects.push(Subject::parse(&format!("{kind}/{name}"), "default"));
        }
    }
    let mut story = Story::of(subjects);
    loop {
        let batch = reader.next().await;
        tell(
            form,
            batch
                .records
                .iter()
                .flat_map(|record| trace::lines(&mut story, record, clock)),
        )?;
    }
}

fn tell(form: Form, lines: impl IntoIterator<Item = String>) -> Result<(), Failure> {
    let mut out = stdout().lock();
    let mut write = |text: &str| match form {
        Form::Text => writeln!(out, "{text}"),
        Form::Json => writeln!(out, "{}", json!({ "event": "trace", "text": text })),
    };
    let told = lines
        .into_iter()
        .try_for_each(|text| write(text.trim_end()));
    told.and_then(|()| out.flush())
        .map_err(Failure::caused_by("cannot write to stdout"))
}

async fn apply(client: &Client, path: &str, sample: &str) -> Result<(), Failure> {
    let request = http::Request::patch(format!("{path}?fieldManager=bellerophon-demo&force=true"))
        .header(http::header::CONTENT_TYPE, "application/apply-patch+yaml")
        .body(sample.as_bytes().to_vec())
        .expect("a path and a body make a request");
    client
        .request_text(request)
        .await
        .map_err(Failure::caused_by(&format!(
            "cannot apply the sample at {path}"
        )))?;
    Ok(())
}
