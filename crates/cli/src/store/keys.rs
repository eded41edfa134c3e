//! `bellerophon store get`, `put`, `delete` and `list`.

use std::{
    fs,
    io::{Read as _, Write},
    path::PathBuf,
};

use bellerophon_store_client::{
    ListOptions,
    api::{Consistency, Item, Key, Revision, WriteResult},
};
use clap::Args;
use serde::Serialize;

use super::{
    connection::{Connection, cannot_read},
    print_json, print_line,
};
use crate::{error::CliError, flags::OutputFormat};

/// Items per request of `list`.
const PAGE: usize = 1000;

#[derive(Debug, Args)]
pub(super) struct GetArguments {
    #[arg(value_name = "KEY", value_parser = key)]
    key: Key,

    /// Read the state of the member that answers, which may be old
    #[arg(long)]
    stale: bool,

    /// The format of stdout: the value as it is, or JSON with the value in base64
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    output: OutputFormat,

    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Args)]
pub(super) struct PutArguments {
    #[arg(value_name = "KEY", value_parser = key)]
    key: Key,

    /// The value; default: standard input
    #[arg(value_name = "VALUE")]
    value: Option<String>,

    /// The file of the value
    #[arg(long, value_name = "FILE", conflicts_with = "value")]
    file: Option<PathBuf>,

    /// Write only if the key has this modification revision; 0: only if it does not exist
    #[arg(long, value_name = "REVISION")]
    if_revision: Option<Revision>,

    /// The format of stdout
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    output: OutputFormat,

    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Args)]
pub(super) struct DeleteArguments {
    #[arg(value_name = "KEY", value_parser = key)]
    key: Key,

    /// Delete only if the key has this modification revision
    #[arg(long, value_name = "REVISION")]
    if_revision: Option<Revision>,

    /// The format of stdout
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    output: OutputFormat,

    #[command(flatten)]
    connection: Connection,
}

#[derive(Debug, Args)]
pub(super) struct ListArguments {
    /// Only keys with this prefix
    #[arg(value_name = "PREFIX", default_value = "")]
    prefix: String,

    /// Read the state of the member that answers, which may be old
    #[arg(long)]
    stale: bool,

    /// The format of stdout: keys with their revisions, or one JSON object per line with values
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    output: OutputFormat,

    #[command(flatten)]
    connection: Connection,
}

/// Accepts a key.
fn key(text: &str) -> Result<Key, String> {
    text.parse().map_err(|error| format!("{error}"))
}

fn consistency(stale: bool) -> Consistency {
    if stale {
        Consistency::Stale
    } else {
        Consistency::Linearizable
    }
}

pub(super) async fn get(arguments: &GetArguments, out: &mut impl Write) -> Result<(), CliError> {
    let client = arguments.connection.client()?;
    let key = &arguments.key;
    let found = client
        .get(key, consistency(arguments.stale))
        .await
        .map_err(CliError::context(&format!("cannot read key {key}")))?;
    let Some(item) = found.item else {
        return Err(CliError::Failed(format!("key {key} does not exist"))
            .with_hint("`bellerophon store list` prints the keys"));
    };
    match arguments.output {
        OutputFormat::Json => print_json(out, &item),
        OutputFormat::Text => out
            .write_all(&item.value)
            .and_then(|()| out.flush())
            .map_err(CliError::context("cannot write to stdout")),
    }
}

pub(super) async fn put(arguments: PutArguments, out: &mut impl Write) -> Result<(), CliError> {
    let client = arguments.connection.client()?;
    let key = &arguments.key;
    let value = match (arguments.value, &arguments.file) {
        (Some(value), _) => value.into_bytes(),
        (None, Some(path)) => fs::read(path).map_err(cannot_read(path))?,
        (None, None) => {
            let mut value = Vec::new();
            std::io::stdin()
                .read_to_end(&mut value)
                .map_err(CliError::context("cannot read the value from stdin"))?;
            value
        }
    };
    let result = client
        .put(key, value, arguments.if_revision)
        .await
        .map_err(CliError::context(&format!("cannot write key {key}")))?;
    match arguments.output {
        OutputFormat::Json => print_json(out, &result),
        OutputFormat::Text => print_line(out, &format!("revision {}", result.revision)),
    }
}

pub(super) async fn delete(
    arguments: &DeleteArguments,
    out: &mut impl Write,
) -> Result<(), CliError> {
    let client = arguments.connection.client()?;
    let key = &arguments.key;
    let result: WriteResult = client
        .delete(key, arguments.if_revision)
        .await
        .map_err(CliError::context(&format!("cannot delete key {key}")))?;
    match arguments.output {
        OutputFormat::Json => print_json(out, &result),
        OutputFormat::Text if result.deleted => {
            print_line(out, &format!("revision {}", result.revision))
        }
        OutputFormat::Text => print_line(out, &format!("key {key} did not exist")),
    }
}

/// An item with the revision of its page.
#[derive(Serialize)]
struct Listed<'a> {
    #[serde(flatten)]
    item: &'a Item,
    revision: Revision,
}

pub(super) async fn list(arguments: &ListArguments, out: &mut impl Write) -> Result<(), CliError> {
    let client = arguments.connection.client()?;
    let mut options = ListOptions {
        prefix: arguments.prefix.clone(),
        limit: Some(PAGE),
        consistency: consistency(arguments.stale),
        ..ListOptions::default()
    };
    loop {
        let page = client
            .list(&options)
            .await
            .map_err(CliError::context("cannot list keys"))?;
        for item in &page.items {
            let revision = page.revision;
            match arguments.output {
                OutputFormat::Json => print_json(out, &Listed { item, revision })?,
                OutputFormat::Text => {
                    let line = format!(
                        "{}\tmodified at {}, version {}, {} bytes",
                        item.key,
                        item.mod_revision,
                        item.version,
                        item.value.len()
                    );
                    print_line(out, &line)?;
                }
            }
        }
        match page.continue_from {
            Some(start) => options.start = Some(start),
            None => return Ok(()),
        }
    }
}
