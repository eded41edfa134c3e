//! Events on stderr.
//! In: how much and in which form. Out: nothing; the process's subscriber is set.
//! Holds: without RUST_LOG, foreign libraries never log more than what they find important, so no header or body gets out.

use std::{
    env,
    io::{IsTerminal as _, stderr},
};

use tracing_subscriber::EnvFilter;

use crate::{arguments::Form, failure::Failure};

/// The environment variable that overrules the command line.
const VARIABLE: &str = "RUST_LOG";

/// Starts logging.
///
/// # Errors
/// `RUST_LOG` is not a list of filters.
pub(crate) fn begin(verbose: u8, form: Form) -> Result<(), Failure> {
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter(verbose)?)
        .with_writer(stderr)
        .with_ansi(in_colour());
    match form {
        Form::Text => builder.init(),
        Form::Json => builder.json().flatten_event(true).init(),
    }
    Ok(())
}

fn filter(verbose: u8) -> Result<EnvFilter, Failure> {
    match env::var(VARIABLE) {
        Ok(text) if !text.is_empty() => {
            let misused = |e| {
                Failure::Misused(format!(
                    "{VARIABLE}={text:?} is not a list of log filters: {e}"
                ))
            };
            EnvFilter::try_new(&text)
                .map_err(|e| misused(e).advising("write it as in `info,bellerophon=debug`"))
        }
        _ => Ok(EnvFilter::new(level(verbose))),
    }
}

/// The filter for a number of `-v`. The crates of this repository all have names that start with `bellerophon`.
fn level(verbose: u8) -> &'static str {
    match verbose {
        0 => "warn",
        1 => "warn,bellerophon=info",
        2 => "info,bellerophon=debug",
        _ => "info,bellerophon=trace",
    }
}

/// Colours are for people who look at a terminal and have not asked for none.
fn in_colour() -> bool {
    stderr().is_terminal() && env::var_os("NO_COLOR").is_none_or(|value| value.is_empty())
}
