//! `bellerophon store status`: one row per endpoint.

use std::io::Write;

use bellerophon_store_client::{ClientError, Endpoint, api::Status};
use clap::Args;
use serde::Serialize;

use super::{connection::Connection, print_json, print_line};
use crate::{error::CliError, flags::OutputFormat};

#[derive(Debug, Args)]
pub(super) struct StatusArguments {
    /// The format of stdout: a table, or one JSON object per line
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    output: OutputFormat,

    #[command(flatten)]
    connection: Connection,
}

/// The status of one endpoint, or why there is none.
#[derive(Serialize)]
struct Row {
    endpoint: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    status: Option<Status>,
    #[serde(skip_serializing_if = "Option::is_none")]
    error: Option<String>,
}

/// Prints the status of every endpoint. Fails if none answers.
pub(super) async fn status(
    arguments: &StatusArguments,
    out: &mut impl Write,
) -> Result<(), CliError> {
    let client = arguments.connection.client()?;
    let mut last_error = None;
    let mut answers = 0;
    if arguments.output == OutputFormat::Text {
        print_line(
            out,
            "ENDPOINT\tSTATE\tMEMBER\tROLE\tTERM\tAPPLIED\tREVISION\tDATA BYTES\tVOTERS\tVERSION",
        )?;
    }
    for endpoint in client.endpoints() {
        let result = client.with_endpoint(endpoint.clone()).status().await;
        answers += usize::from(result.is_ok());
        let row = row(endpoint, &result);
        match arguments.output {
            OutputFormat::Json => print_json(out, &row)?,
            OutputFormat::Text => print_line(out, &text(&row))?,
        }
        last_error = result.err().or(last_error);
    }
    match last_error {
        Some(error) if answers == 0 => Err(CliError::new(error)),
        _ => Ok(()),
    }
}

fn row(endpoint: &Endpoint, result: &Result<Status, ClientError>) -> Row {
    Row {
        endpoint: endpoint.to_string(),
        status: result.as_ref().ok().cloned(),
        error: result.as_ref().err().map(ToString::to_string),
    }
}

fn text(row: &Row) -> String {
    let Some(status) = &row.status else {
        let error = row.error.as_deref().unwrap_or_default();
        return format!("{}\t{error}", row.endpoint);
    };
    let member = status.member_id.map_or("-".to_owned(), |id| id.to_string());
    let role = status
        .role
        .map_or("-".to_owned(), |role| format!("{role:?}"));
    let voters: Vec<String> = status
        .membership
        .voters
        .iter()
        .map(u64::to_string)
        .collect();
    let voters = if voters.is_empty() {
        "-".to_owned()
    } else {
        voters.join(",")
    };
    format!(
        "{}\t{:?}\t{member}\t{role}\t{}\t{}\t{}\t{}\t{voters}\t{}",
        row.endpoint,
        status.state,
        status.term,
        status.applied_index,
        status.revision,
        status.data_bytes,
        status.version
    )
}
