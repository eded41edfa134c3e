//! `bellerophon reboot`: shows and controls reboots of nodes.
//!
//! Inputs: names of nodes. Output: a table on stdout, or one line per node.

use std::{io::Write, path::PathBuf};

use bellerophon::client::connect;
use bellerophon::clock::Clock;
use bellerophon_reboot::{
    AnnotationPrefix,
    commands::{CommandError, NodeRebootStatus, RebootCommands},
};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde::Serialize;

use crate::{error::CliError, flags::OutputFormat, run};

#[derive(Debug, Args)]
pub(crate) struct RebootArguments {
    #[command(subcommand)]
    command: RebootCommand,

    /// The kubeconfig; default: KUBECONFIG, or the service account of the pod
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// The context of the kubeconfig; default: its current context
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,

    /// The annotation prefix of controller and agents; default: REBOOT_PREFIX, or
    /// reboot.bellerophon.io
    #[arg(long, global = true, value_name = "DOMAIN", value_parser = parse_prefix)]
    prefix: Option<AnnotationPrefix>,
}

fn parse_prefix(text: &str) -> Result<AnnotationPrefix, &'static str> {
    AnnotationPrefix::parse(text).ok_or("not a DNS subdomain, such as reboot.example.com")
}

#[derive(Debug, Subcommand)]
enum RebootCommand {
    /// Print the state of every node, why it waits, and whether it holds a slot
    Status {
        /// The format of stdout: text, or one JSON object per line
        #[arg(long, value_name = "FORMAT", default_value = "text")]
        output: OutputFormat,
    },
    /// Request a reboot of nodes
    Request {
        #[arg(value_name = "NODE", required = true)]
        nodes: Vec<String>,
        /// The reason of the request
        #[arg(long, default_value = "requested by hand")]
        reason: String,
    },
    /// Exclude nodes from reboots; a reboot in progress continues
    Pause {
        #[arg(value_name = "NODE", required = true)]
        nodes: Vec<String>,
    },
    /// Allow paused nodes to reboot again
    Resume {
        #[arg(value_name = "NODE", required = true)]
        nodes: Vec<String>,
    },
    /// Release the slots of nodes in any state
    #[command(
        after_help = "Inspect the node first: if its reboot has started, it may still reboot."
    )]
    Release {
        #[arg(value_name = "NODE", required = true)]
        nodes: Vec<String>,
    },
}

/// Runs the command.
///
/// # Errors
/// The cluster cannot be reached, a node does not exist, or it holds no slot.
pub(crate) async fn reboot(
    arguments: &RebootArguments,
    out: &mut impl Write,
) -> Result<(), CliError> {
    let config = run::config(
        arguments.kubeconfig.as_deref(),
        arguments.context.as_deref(),
    )
    .await?;
    let client = connect(config).map_err(CliError::new)?;
    let prefix = arguments
        .prefix
        .clone()
        .map_or_else(bellerophon_reboot::prefix, Ok)
        .map_err(CliError::new)?;
    let commands = RebootCommands::new(client, prefix);
    let now = Clock::system().now();
    match &arguments.command {
        RebootCommand::Status { output } => {
            let statuses = commands.status().await.map_err(CliError::new)?;
            print(&statuses, *output, now, out).map_err(CliError::context("cannot write to stdout"))
        }
        RebootCommand::Request { nodes, reason } => {
            for_each(
                nodes,
                "waits for its reboot",
                async |node| commands.request(node, reason).await,
                out,
            )
            .await
        }
        RebootCommand::Pause { nodes } => {
            for_each(
                nodes,
                "is paused",
                async |node| commands.pause(node).await,
                out,
            )
            .await
        }
        RebootCommand::Resume { nodes } => {
            for_each(
                nodes,
                "may reboot again",
                async |node| commands.resume(node).await,
                out,
            )
            .await
        }
        RebootCommand::Release { nodes } => {
            for_each(
                nodes,
                "has released its slot",
                async |node| commands.release(node, now).await,
                out,
            )
            .await
        }
    }
}

/// Runs an operation for each node, and prints its result.
async fn for_each(
    nodes: &[String],
    result: &str,
    operation: impl AsyncFn(&str) -> Result<(), CommandError>,
    out: &mut impl Write,
) -> Result<(), CliError> {
    for node in nodes {
        // One after the other: the output shows how far the command came if a node fails.
        operation(node).await.map_err(CliError::new)?;
        writeln!(out, "node {node} {result}")
            .map_err(CliError::context("cannot write to stdout"))?;
    }
    Ok(())
}

/// The status of a node as JSON.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonStatus<'a> {
    node: &'a str,
    state: &'a str,
    reason: &'a str,
    since: Option<String>,
    paused: bool,
    holds_slot: bool,
    last: Option<&'a str>,
}

fn print(
    statuses: &[NodeRebootStatus],
    format: OutputFormat,
    now: Timestamp,
    out: &mut impl Write,
) -> std::io::Result<()> {
    if format == OutputFormat::Text {
        writeln!(
            out,
            "{:<32} {:<10} {:<5} {:<20} {:>8}  LAST",
            "NODE", "STATE", "SLOT", "REASON", "FOR"
        )?;
    }
    for status in statuses {
        let NodeRebootStatus {
            node,
            state,
            reason,
            since,
            paused,
            holds_slot,
            last,
        } = status;
        if format == OutputFormat::Json {
            let last = last.as_ref().map(|(result, _)| result.as_str());
            let line = JsonStatus {
                node,
                state,
                reason,
                since: since.map(|since| since.to_string()),
                paused: *paused,
                holds_slot: *holds_slot,
                last,
            };
            writeln!(out, "{}", serde_json::to_string(&line)?)?;
            continue;
        }
        let age = |time: Timestamp| format!("{}s", now.duration_since(time).as_secs().max(0));
        let last = last
            .as_ref()
            .map(|(result, at)| format!("{result} {} ago", age(*at)))
            .unwrap_or_default();
        let state = if *paused && *state == "Idle" {
            "Paused"
        } else {
            state
        };
        let slot = if *holds_slot { "yes" } else { "" };
        writeln!(
            out,
            "{node:<32} {state:<10} {slot:<5} {reason:<20} {:>8}  {last}",
            since.map(age).unwrap_or_default()
        )?;
    }
    out.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn status_is_printed_as_table_or_json_lines() {
        let at = |second: i64| Timestamp::from_second(second).expect("a time");
        let status = NodeRebootStatus {
            node: "a".into(),
            state: "Waiting",
            reason: "NoSlot".into(),
            since: Some(at(0)),
            paused: false,
            holds_slot: false,
            last: Some(("Done".into(), at(5))),
        };
        let printed = |format| {
            let mut out = Vec::new();
            print(std::slice::from_ref(&status), format, at(65), &mut out)
                .expect("a write to memory succeeds");
            String::from_utf8(out).expect("UTF-8")
        };
        let text = printed(OutputFormat::Text);
        let words: Vec<&str> = text
            .lines()
            .last()
            .expect("a row")
            .split_whitespace()
            .collect();
        assert_eq!(
            words,
            ["a", "Waiting", "NoSlot", "65s", "Done", "60s", "ago"]
        );
        let line: serde_json::Value =
            serde_json::from_str(&printed(OutputFormat::Json)).expect("JSON");
        assert_eq!(line["node"], "a");
        assert_eq!(line["reason"], "NoSlot");
        assert_eq!(line["holdsSlot"], false);
    }
}
