//! `bellerophon doctor`: what this system offers to a cluster, and what to change.
//!
//! Output: one line per check on stdout. Guarantee: nothing is changed.

mod checks;

use std::{
    fmt,
    io::{self, Write},
    path::PathBuf,
};

use clap::Args;
use serde::Serialize;

use crate::{error::CliError, flags::OutputFormat};

#[derive(Debug, Args)]
pub(crate) struct DoctorOptions {
    /// The kubeconfig that `bellerophon up` is to write
    #[arg(long, value_name = "FILE", default_value = ".bellerophon/kubeconfig")]
    kubeconfig: PathBuf,

    /// The format of stdout: text, or one JSON object per line
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    output: OutputFormat,
}

/// What a check found.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
enum CheckStatus {
    Ok,
    /// The cluster starts, but lacks something.
    Warn,
    /// The cluster does not start.
    Fail,
}

impl fmt::Display for CheckStatus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Fail => "fail",
        })
    }
}

/// The result of a check. Names and fields keep their meaning across releases.
#[derive(Debug, Serialize)]
struct Check {
    #[serde(rename = "check")]
    name: &'static str,
    status: CheckStatus,
    /// What was found and, unless the status is ok, what to do.
    message: String,
}

impl Check {
    fn new(name: &'static str, status: CheckStatus, message: impl Into<String>) -> Self {
        let message = message.into();
        Self {
            name,
            status,
            message,
        }
    }

    fn ok(name: &'static str, message: impl Into<String>) -> Self {
        Self::new(name, CheckStatus::Ok, message)
    }

    fn warn(name: &'static str, message: impl Into<String>) -> Self {
        Self::new(name, CheckStatus::Warn, message)
    }

    fn fail(name: &'static str, message: impl Into<String>) -> Self {
        Self::new(name, CheckStatus::Fail, message)
    }

    fn write(&self, format: OutputFormat, out: &mut impl Write) -> io::Result<()> {
        match format {
            OutputFormat::Json => writeln!(out, "{}", serde_json::to_string(self)?),
            OutputFormat::Text => {
                let Self {
                    name,
                    status,
                    message,
                } = self;
                writeln!(out, "{status:<4}  {name:<10}  {message}")
            }
        }
    }
}

/// Runs the checks and prints their results.
///
/// # Errors
/// A check failed, or stdout cannot be written.
pub(crate) async fn doctor(options: &DoctorOptions, out: &mut impl Write) -> Result<(), CliError> {
    let mut failed = Vec::new();
    for check in checks::run(&options.kubeconfig).await? {
        check
            .write(options.output, out)
            .map_err(CliError::context("cannot write to stdout"))?;
        if check.status == CheckStatus::Fail {
            failed.push(check.name);
        }
    }
    if failed.is_empty() {
        return Ok(());
    }
    let message = format!("checks failed: {}", failed.join(", "));
    Err(CliError::Failed(message))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn check_is_one_line_of_text_or_json() {
        let check = Check::warn("limits", "no cgroup");
        let written = |format| {
            let mut out = Vec::new();
            check.write(format, &mut out).expect("written to memory");
            String::from_utf8(out).expect("UTF-8")
        };
        assert_eq!(written(OutputFormat::Text), "warn  limits      no cgroup\n");
        assert_eq!(
            written(OutputFormat::Json),
            "{\"check\":\"limits\",\"status\":\"warn\",\"message\":\"no cgroup\"}\n"
        );
    }
}
