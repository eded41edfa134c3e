//! `bellerophon reboot`: how reboots of nodes stand, and what a person has to say about them.
//! In: names of nodes. Out: a table on stdout, or one line for each node that was told.

use std::{io::Write, path::PathBuf};

use bellerophon::WallClock;
use bellerophon_reboot::{
    Prefix,
    people::{People, PeopleError, Row},
};
use clap::{Args, Subcommand};
use jiff::Timestamp;
use kube::Client;
use serde::Serialize;

use crate::{arguments::Form, failure::Failure, run};

#[derive(Debug, Args)]
pub(crate) struct RebootArguments {
    #[command(subcommand)]
    what: What,

    /// The cluster's kubeconfig; otherwise KUBECONFIG, inside a pod its own cluster
    #[arg(long, global = true, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// The context in the kubeconfig; otherwise its current one
    #[arg(long, global = true, value_name = "NAME")]
    context: Option<String>,

    /// What the annotations begin with, as controller and agents have it; otherwise REBOOT_PREFIX, or reboot.bellerophon.io
    #[arg(long, global = true, value_name = "DOMAIN", value_parser = prefix)]
    prefix: Option<Prefix>,
}

fn prefix(text: &str) -> Result<Prefix, String> {
    Prefix::read(text).ok_or_else(|| "no DNS subdomain such as reboot.example.com".to_owned())
}

#[derive(Debug, Subcommand)]
enum What {
    /// Print how every node stands: who waits for what, and who holds a slot
    Status {
        /// For people, or one JSON object a line
        #[arg(long, value_name = "FORMAT", default_value = "text")]
        output: Form,
    },
    /// Ask for a reboot of nodes
    Request {
        #[arg(value_name = "NODE", required = true)]
        nodes: Vec<String>,
        /// Why, for people
        #[arg(long, default_value = "requested by hand")]
        reason: String,
    },
    /// Keep nodes from rebooting; those that are at it go on
    Pause {
        #[arg(value_name = "NODE", required = true)]
        nodes: Vec<String>,
    },
    /// Let paused nodes reboot again
    Resume {
        #[arg(value_name = "NODE", required = true)]
        nodes: Vec<String>,
    },
    /// Free the slots of nodes, whatever became of them
    #[command(
        after_help = "Look at the node first: a machine that was told already may still reboot."
    )]
    Release {
        #[arg(value_name = "NODE", required = true)]
        nodes: Vec<String>,
    },
}

/// Does what was asked.
///
/// # Errors
/// The cluster cannot be reached, there is no such node, or it holds no slot.
pub(crate) async fn reboot(
    arguments: &RebootArguments,
    out: &mut impl Write,
) -> Result<(), Failure> {
    let config = run::config(
        arguments.kubeconfig.as_deref(),
        arguments.context.as_deref(),
    )
    .await?;
    let client = Client::try_from(config).map_err(Failure::of)?;
    let prefix = arguments
        .prefix
        .clone()
        .map_or_else(bellerophon_reboot::prefix, Ok)
        .map_err(Failure::of)?;
    let (people, now) = (People::new(client, prefix), WallClock::system().now());
    match &arguments.what {
        What::Status { output } => {
            let rows = people.status().await.map_err(Failure::of)?;
            print(&rows, *output, now, out).map_err(Failure::caused_by("cannot write to stdout"))
        }
        What::Request { nodes, reason } => {
            each(
                nodes,
                "waits for its reboot",
                async |node| people.request(node, reason).await,
                out,
            )
            .await
        }
        What::Pause { nodes } => {
            each(
                nodes,
                "is paused",
                async |node| people.pause(node).await,
                out,
            )
            .await
        }
        What::Resume { nodes } => {
            each(
                nodes,
                "may reboot again",
                async |node| people.resume(node).await,
                out,
            )
            .await
        }
        What::Release { nodes } => {
            each(
                nodes,
                "has given back its slot",
                async |node| people.release(node, now).await,
                out,
            )
            .await
        }
    }
}

/// Tells each of these nodes something, and says so.
async fn each(
    nodes: &[String],
    done: &str,
    tell: impl AsyncFn(&str) -> Result<(), PeopleError>,
    out: &mut impl Write,
) -> Result<(), Failure> {
    for node in nodes {
        tell(node).await.map_err(Failure::of)?;
        writeln!(out, "node {node} {done}")
            .map_err(Failure::caused_by("cannot write to stdout"))?;
    }
    Ok(())
}

/// A row as programs read it.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    node: &'a str,
    state: &'a str,
    reason: &'a str,
    since: Option<String>,
    paused: bool,
    holds_slot: bool,
    last: Option<&'a str>,
}

fn print(rows: &[Row], form: Form, now: Timestamp, out: &mut impl Write) -> std::io::Result<()> {
    if form == Form::Text {
        writeln!(
            out,
            "{:<32} {:<10} {:<5} {:<20} {:>8}  LAST",
            "NODE", "STATE", "SLOT", "REASON", "FOR"
        )?;
    }
    for row in rows {
        let Row {
            node,
            state,
            reason,
            since,
            paused,
            holds_slot,
            last,
        } = row;
        if form == Form::Json {
            let last = last.as_ref().map(|(last, _)| last.as_str());
            let line = Line {
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
            .map(|(last, at)| format!("{last} {} ago", age(*at)))
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
    fn status_is_a_table_for_people_and_lines_for_programs() {
        let at = |second: i64| Timestamp::from_second(second).expect("a time");
        let row = Row {
            node: "a".into(),
            state: "Waiting",
            reason: "NoSlot".into(),
            since: Some(at(0)),
            paused: false,
            holds_slot: false,
            last: Some(("Done".into(), at(5))),
        };
        let told = |form| {
            let mut out = Vec::new();
            print(std::slice::from_ref(&row), form, at(65), &mut out).expect("it is written");
            String::from_utf8(out).expect("text")
        };
        let text = told(Form::Text);
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
        let line: serde_json::Value = serde_json::from_str(&told(Form::Json)).expect("a line");
        assert_eq!(
            (
                line["node"].as_str(),
                line["reason"].as_str(),
                line["holdsSlot"].as_bool()
            ),
            (Some("a"), Some("NoSlot"), Some(false))
        );
    }
}
