//! Replays recorded responses of kube-apiserver: `cargo xtask conformance --help`.
//! Output: exit code 0 if the differences are the known ones, 1 if not, 2 usage error; differences on
//! stdout.

use std::{
    error::Error,
    fs,
    io::{Write, stdout},
    path::{Path, PathBuf},
    process::ExitCode,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use bellerophon_conformance::{
    Corpus, Detail, Https, KnownDifferences, Options, Recorded, Results, document, failures, page,
    record, replay, replay_embedded, serve_webhooks, summary,
};
use clap::Parser;

/// Replays recorded responses of kube-apiserver 1.36.4 and prints the differences.
///
/// Without a kubeconfig, requests go to the embedded server, in-process and over HTTPS, and the
/// differences are compared with the known ones.
#[derive(Parser)]
#[command(name = "cargo xtask conformance")]
struct Arguments {
    /// Send the requests to the server of this kubeconfig, which must be on loopback
    #[arg(long, value_name = "FILE", conflicts_with_all = ["write_known_differences", "write_docs"])]
    kubeconfig: Option<PathBuf>,
    /// Only the scenarios of this folder; may be given more than once
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["write_known_differences", "write_docs"])]
    folder: Vec<String>,
    /// Only the scenarios with this text in their name
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["write_known_differences", "write_docs"])]
    only: Option<String>,
    /// Print every difference of every scenario, known or not
    #[arg(long)]
    diff: bool,
    /// Leave this key out everywhere, for example managedFields; may be given more than once
    #[arg(long, value_name = "KEY", conflicts_with_all = ["write_known_differences", "write_docs"])]
    without: Vec<String>,
    /// Update the list of known differences; new failures go into a separate group
    #[arg(long)]
    write_known_differences: bool,
    /// Update docs/conformance.md
    #[arg(long)]
    write_docs: bool,
    /// Record the responses of the server of the kubeconfig in this file; may be given more than once
    #[arg(long, value_name = "FILE", requires = "kubeconfig")]
    record: Vec<PathBuf>,
    /// Serve the webhooks of scenarios to a server that is recorded, and write their certificate to this file
    #[arg(long, value_name = "FILE", conflicts_with_all = ["kubeconfig", "write_known_differences", "write_docs"])]
    serve_webhooks: Option<PathBuf>,
}

impl Arguments {
    fn wants(&self, recorded: &Recorded) -> bool {
        let in_folder = self.folder.is_empty() || self.folder.contains(&recorded.folder);
        in_folder
            && self
                .only
                .as_ref()
                .is_none_or(|text| recorded.scenario.name.contains(text))
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    if let Some(certificate) = &arguments.serve_webhooks {
        return match serve_webhooks(certificate).await {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("conformance: cannot serve webhooks: {error}");
                ExitCode::from(1)
            }
        };
    }
    let ended = match &arguments.kubeconfig {
        Some(kubeconfig) if !arguments.record.is_empty() => {
            record_all(kubeconfig, &arguments.record).await
        }
        Some(kubeconfig) => foreign(kubeconfig, &arguments).await,
        None => embedded(&arguments).await,
    };
    match ended {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("conformance: {error}");
            ExitCode::from(1)
        }
    }
}

/// Records the responses of another server.
async fn record_all(kubeconfig: &Path, files: &[PathBuf]) -> Result<bool, Box<dyn Error>> {
    let text = fs::read_to_string(kubeconfig)
        .map_err(|e| format!("cannot read {}: {e}", kubeconfig.display()))?;
    let transport = Https::new(&text)?;
    for (number, file) in files.iter().enumerate() {
        let options = Options::foreign(format!("{}r{number}", stamp()));
        let count = record(file, &transport, &options).await?;
        writeln!(stdout(), "{}: {count} scenarios recorded", file.display())?;
    }
    Ok(true)
}

/// Whether another server has no differences.
async fn foreign(kubeconfig: &Path, arguments: &Arguments) -> Result<bool, Box<dyn Error>> {
    let corpus = Corpus::of_repository()?.filtered(|recorded| arguments.wants(recorded));
    let text = fs::read_to_string(kubeconfig)
        .map_err(|e| format!("cannot read {}: {e}", kubeconfig.display()))?;
    let options = Options {
        without: arguments.without.clone(),
        ..Options::foreign(stamp())
    };
    let results = replay(&corpus, Arc::new(Https::new(&text)?), &options).await;
    let detail = if arguments.diff {
        Detail::All
    } else {
        Detail::First
    };
    write!(
        stdout(),
        "{}{}",
        failures(&results, detail),
        summary(&results)
    )?;
    Ok(results.failed().next().is_none())
}

/// Whether the embedded server differs in nothing but what is known.
async fn embedded(arguments: &Arguments) -> Result<bool, Box<dyn Error>> {
    let all = Corpus::of_repository()?;
    let corpus = all.clone().filtered(|recorded| arguments.wants(recorded));
    let options = Options {
        without: arguments.without.clone(),
        ..Options::nearby()
    };
    let both = replay_embedded(&corpus, &options).await?;
    let results = &both.https;
    let known_differences = known(results, arguments)?;
    let verdict = known_differences.verdict(results, all.scenarios.iter().map(Recorded::title));
    let details = if arguments.diff {
        failures(results, Detail::All)
    } else {
        verdict.to_string()
    };
    write!(stdout(), "{details}{}", summary(results))?;
    let disagreements = both.disagreements();
    for line in &disagreements {
        writeln!(stdout(), "{line}")?;
    }
    if arguments.write_docs {
        fs::write(page(), document(results, &known_differences))?;
    }
    Ok(verdict.is_as_known() && disagreements.is_empty())
}

/// The list of known differences, updated first if that is requested.
fn known(results: &Results, arguments: &Arguments) -> Result<KnownDifferences, Box<dyn Error>> {
    let mut known_differences = KnownDifferences::of_repository()?;
    if arguments.write_known_differences {
        known_differences = known_differences.following(results);
        known_differences.write_to_repository()?;
    }
    Ok(known_differences)
}

/// A word that no earlier run on the same server had.
#[expect(
    clippy::disallowed_methods,
    reason = "another server outlives this process, so only the wall clock distinguishes runs"
)]
fn stamp() -> String {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    format!("{:x}", since.as_millis() % 0xFFFF_FFFF)
}
