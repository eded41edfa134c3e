//! Logs on stderr.
//!
//! Inputs: verbosity and format. Effect: the global tracing subscriber is set.
//!
//! Guarantee: without RUST_LOG, dependencies log at level `info` at most, so that no header or body
//! of a request is logged.

use std::{
    env,
    io::{IsTerminal as _, stderr},
};

use tracing_subscriber::EnvFilter;

use crate::{error::CliError, flags::OutputFormat};

/// The environment variable that overrides the command line.
const FILTER_VARIABLE: &str = "RUST_LOG";

/// Sets the global subscriber.
///
/// # Errors
/// `RUST_LOG` is not a list of filters.
pub(crate) fn init(verbose: u8, format: OutputFormat) -> Result<(), CliError> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter(verbose)?)
        // stdout is for results, which scripts parse.
        .with_writer(stderr)
        .with_ansi(use_colours());
    match format {
        OutputFormat::Text => builder.init(),
        OutputFormat::Json => builder.json().flatten_event(true).init(),
    }
    Ok(())
}

fn filter(verbose: u8) -> Result<EnvFilter, CliError> {
    match env::var(FILTER_VARIABLE) {
        Ok(text) if !text.is_empty() => {
            let usage_error = |e| {
                CliError::Usage(format!(
                    "{FILTER_VARIABLE}={text:?} is not a list of log filters: {e}"
                ))
            };
            EnvFilter::try_new(&text)
                .map_err(|e| usage_error(e).with_hint("write it as in `info,bellerophon=debug`"))
        }
        _ => Ok(EnvFilter::new(level(verbose))),
    }
}

/// The filter for a number of `-v`. All crates of this repository have names that start with
/// `bellerophon`.
fn level(verbose: u8) -> &'static str {
    match verbose {
        0 => "warn",
        1 => "warn,bellerophon=info",
        // Dependencies stay at info: at debug, HTTP libraries log headers, which include tokens.
        2 => "info,bellerophon=debug",
        _ => "info,bellerophon=trace",
    }
}

/// Whether stderr is a terminal and NO_COLOR is not set.
fn use_colours() -> bool {
    stderr().is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
