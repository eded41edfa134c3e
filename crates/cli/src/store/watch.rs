//! `bellerophon store watch`.

use std::io::Write;

use bellerophon_store_client::{
    WatchItem,
    api::{Event, Revision},
};
use clap::Args;

use super::{connection::Connection, print_json, print_line};
use crate::{error::CliError, flags::OutputFormat, signals::Signals};

#[derive(Debug, Args)]
pub(super) struct WatchArguments {
    /// Only keys with this prefix
    #[arg(value_name = "PREFIX", default_value = "")]
    prefix: String,

    /// Begin with the changes of this revision; default: with the next change
    #[arg(long, value_name = "REVISION")]
    from: Option<Revision>,

    /// The format of stdout: keys with their revisions, or one JSON object per line with values
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    output: OutputFormat,

    #[command(flatten)]
    connection: Connection,
}

pub(super) async fn watch(
    arguments: &WatchArguments,
    out: &mut impl Write,
) -> Result<(), CliError> {
    let mut signals = Signals::listen().map_err(CliError::context("cannot listen for signals"))?;
    let client = arguments.connection.client()?;
    let mut watch = client.watch(&arguments.prefix, arguments.from);
    loop {
        let item = tokio::select! {
            item = watch.next() => item,
            signal = signals.next() => {
                return signal.map_err(CliError::context("cannot listen for signals"));
            }
        };
        let item = item.map_err(CliError::context("the watch ended"))?;
        if let WatchItem::Event(event) = item {
            print(arguments.output, &event, out)?;
            out.flush()
                .map_err(CliError::context("cannot write to stdout"))?;
        }
    }
}

fn print(output: OutputFormat, event: &Event, out: &mut impl Write) -> Result<(), CliError> {
    if output == OutputFormat::Json {
        return print_json(out, event);
    }
    let line = match event {
        Event::Put {
            key,
            value,
            revision,
            ..
        } => format!("{revision}\tput\t{key}\t{} bytes", value.len()),
        Event::Delete { key, revision } => format!("{revision}\tdelete\t{key}"),
    };
    print_line(out, &line)
}
