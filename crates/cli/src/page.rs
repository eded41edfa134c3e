//! `bellerophon page`: shows a recorded trace in a browser.
//!
//! Inputs: a file of `bellerophon up --record`. Output: the URL of the page on stdout.

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;

use bellerophon::clock::Rng;
use bellerophon_page::{Page, PageOptions, Replay, Source};
use clap::Args;
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::error::CliError;
use crate::flags::OutputFormat;
use crate::signals::Signals;

/// The options of `bellerophon page`.
#[derive(Debug, Args)]
pub(crate) struct PageArguments {
    /// A file of `bellerophon up --record FILE`
    #[arg(value_name = "FILE")]
    file: PathBuf,

    /// The address of the page, on loopback; port 0 selects a free port
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0")]
    listen: SocketAddr,

    /// The format of stdout: text, or one JSON object per line
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    output: OutputFormat,
}

/// Serves a recorded trace until a signal.
///
/// # Errors
/// The file is not a trace, or the address cannot be bound.
pub(crate) async fn page(arguments: &PageArguments) -> Result<(), CliError> {
    let signal_error = || CliError::context("cannot listen for signals");
    let mut signals = Signals::listen().map_err(signal_error())?;
    let replay = Replay::read(&arguments.file).await.map_err(CliError::new)?;
    let page = Page::bind(PageOptions {
        address: arguments.listen,
        source: Source::Replay(Arc::new(replay)),
        actor: None,
        endpoint: None,
        rng: Rng::from_os(),
    })
    .await
    .map_err(CliError::new)?;
    let url = page.url();
    let mut out = std::io::stdout().lock();
    match arguments.output {
        OutputFormat::Text => writeln!(out, "{url}\nCtrl-C stops"),
        OutputFormat::Json => {
            writeln!(out, "{}", json!({ "event": "ready", "dashboard": url }))
        }
    }
    .and_then(|()| out.flush())
    .map_err(CliError::context("cannot write to stdout"))?;
    drop(out);
    let stop = CancellationToken::new();
    tokio::select! {
        () = page.serve(stop.clone()) => Ok(()),
        signal = signals.next() => signal.map_err(signal_error()),
    }
}
