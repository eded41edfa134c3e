//! `bellerophon top`: queues, reconciles and caches of a running cluster, in the terminal.
//!
//! Inputs: a kubeconfig, keys. Output: a screen, or in a pipe a table every second.
//!
//! The API server of `bellerophon up` serves the records at a non-resource path, to clients with
//! permission to get it; `bellerophon run --page` serves them with its page. Guarantees: memory is bounded by the number of controllers; the terminal is
//! restored at the end, after an error too.

mod numbers; // numbers of controllers and caches
mod screen; // the interactive screen
mod table; // the plain table

use std::io::{ErrorKind, IsTerminal as _, Write as _, stdout};

use clap::Args;
use crossterm::event::EventStream;
use futures_util::{AsyncBufReadExt as _, Stream, StreamExt as _, TryStreamExt as _};
use kube::Client;
use ratatui::DefaultTerminal;

use crate::error::CliError;
use crate::flags::TraceSource;
use crate::signals::Signals;
use crate::trace::{PATH, connect};
use numbers::Numbers;
use screen::{Screen, Step};

/// The options of `bellerophon top`.
#[derive(Debug, Args)]
pub(crate) struct TopOptions {
    /// Print a table once and exit
    #[arg(long)]
    once: bool,

    #[command(flatten)]
    source: TraceSource,
}

/// Shows the state of a cluster until a signal or the key q.
///
/// # Errors
/// The kubeconfig cannot be read, or the server cannot be reached or has no trace.
pub(crate) async fn top(options: &TopOptions) -> Result<(), CliError> {
    let mut signals = Signals::listen().map_err(CliError::context("cannot listen for signals"))?;
    let (client, _) = connect(&options.source, None).await?;
    let lines = records(&client, true).await?;
    if options.once || !stdout().is_terminal() {
        return print(lines, &mut signals, options.once).await;
    }
    let mut terminal = ratatui::try_init().map_err(CliError::context("cannot use the terminal"))?;
    let shown = show(lines, &mut signals, &mut terminal).await;
    ratatui::restore();
    shown
}

/// Prints the table once.
///
/// # Errors
/// The server cannot be reached or has no trace.
pub(crate) async fn once(client: &Client) -> Result<(), CliError> {
    let mut signals = Signals::listen().map_err(CliError::context("cannot listen for signals"))?;
    print(records(client, true).await?, &mut signals, true).await
}

/// The records of a cluster in the trace format, one per line: those that it keeps, and with `follow`
/// new ones.
///
/// # Errors
/// The server cannot be reached or has no trace.
pub(crate) async fn records(
    client: &Client,
    follow: bool,
) -> Result<impl Stream<Item = std::io::Result<String>> + Unpin + use<>, CliError> {
    let request = http::Request::get(format!("{PATH}?format=json&follow={follow}"))
        .body(Vec::new())
        .map_err(CliError::context("cannot build the request"))?;
    let response = client.request_stream(request).await.map_err(|error| {
        let hint = "only a cluster of `bellerophon up` and `bellerophon run --page` have a trace";
        CliError::context("cannot read the trace")(error).with_hint(hint)
    })?;
    // A stream of lines is not `Unpin` if its reader is not.
    Ok(Box::pin(response.lines()))
}

/// The next line of the trace; `None` at its end and after a signal.
async fn next(
    lines: &mut (impl Stream<Item = std::io::Result<String>> + Unpin),
    signals: &mut Signals,
) -> Result<Option<String>, CliError> {
    tokio::select! {
        line = lines.try_next() => {
            line.map_err(CliError::context("the server closed the connection"))
        }
        signal = signals.next() => {
            signal.map_err(CliError::context("cannot listen for signals"))?;
            Ok(None)
        }
    }
}

/// Prints tables, one after another.
async fn print(
    mut lines: impl Stream<Item = std::io::Result<String>> + Unpin,
    signals: &mut Signals,
    once: bool,
) -> Result<(), CliError> {
    let mut numbers = Numbers::default();
    while let Some(line) = next(&mut lines, signals).await? {
        if !numbers.add_line(&line) {
            continue;
        }
        let mut out = stdout().lock();
        match write!(out, "{}", table::text(&numbers)).and_then(|()| out.flush()) {
            Err(error) if error.kind() == ErrorKind::BrokenPipe => return Ok(()),
            written => written.map_err(CliError::context("cannot write to stdout"))?,
        }
        if once {
            return Ok(());
        }
    }
    Ok(())
}

/// Draws the screen until it is left.
async fn show(
    mut lines: impl Stream<Item = std::io::Result<String>> + Unpin,
    signals: &mut Signals,
    terminal: &mut DefaultTerminal,
) -> Result<(), CliError> {
    let failed = || CliError::context("cannot use the terminal");
    let mut numbers = Numbers::default();
    let mut screen = Screen::default();
    let mut events = EventStream::new();
    loop {
        terminal
            .draw(|frame| screen.draw(&numbers, frame))
            .map_err(failed())?;
        loop {
            let step = tokio::select! {
                line = next(&mut lines, signals) => match line? {
                    Some(line) if numbers.add_line(&line) => Step::Draw,
                    Some(_) => Step::Wait,
                    None => Step::Leave,
                },
                event = events.next() => match event {
                    Some(event) => screen.handle(&event.map_err(failed())?),
                    None => Step::Leave,
                },
            };
            match step {
                Step::Wait => {}
                Step::Draw => break,
                Step::Leave => return Ok(()),
            }
        }
    }
}
