//! Replays the recorded answers of a real API server: `cargo xtask conformance --help`.
//! Out: exit code 0 as known, 1 something differs, 2 misused; differences on stdout.

use std::{
    error::Error,
    fs,
    io::{Write, stdout},
    path::PathBuf,
    process::ExitCode,
    sync::Arc,
    time::{SystemTime, UNIX_EPOCH},
};

use bellerophon_conformance::{Corpus, Detail, Https, Options, Recorded, Results, failures, replay, summary};
use clap::Parser;

/// Replays the recorded answers of kube-apiserver 1.36.4 and prints what differs.
#[derive(Parser)]
#[command(name = "cargo xtask conformance")]
struct Arguments {
    /// The server to ask, which must be on loopback
    #[arg(long, value_name = "FILE")]
    kubeconfig: PathBuf,
    /// Only the scenarios of this folder; may be given more than once
    #[arg(long, value_name = "FOLDER")]
    folder: Vec<String>,
    /// Only the scenarios with this text in their name
    #[arg(long, value_name = "TEXT", default_value = "")]
    only: String,
    /// Print every difference, not the first three of a scenario
    #[arg(long)]
    diff: bool,
    /// Leave this key out everywhere, for example managedFields; may be given more than once
    #[arg(long, value_name = "KEY")]
    without: Vec<String>,
}

impl Arguments {
    fn wants(&self, recorded: &Recorded) -> bool {
        (self.folder.is_empty() || self.folder.contains(&recorded.folder)) && recorded.scenario.name.contains(&self.only)
    }

    fn detail(&self) -> Detail {
        if self.diff { Detail::All } else { Detail::First }
    }
}

#[tokio::main]
async fn main() -> ExitCode {
    let arguments = Arguments::parse();
    match run(&arguments).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::from(1),
        Err(error) => {
            eprintln!("conformance: {error}");
            ExitCode::from(1)
        }
    }
}

/// Whether nothing differs.
async fn run(arguments: &Arguments) -> Result<bool, Box<dyn Error>> {
    let corpus = Corpus::of_repository()?.filtered(|recorded| arguments.wants(recorded));
    let kubeconfig =
        fs::read_to_string(&arguments.kubeconfig).map_err(|e| format!("cannot read {}: {e}", arguments.kubeconfig.display()))?;
    let options = Options { without: arguments.without.clone(), ..Options::foreign(stamp()) };
    let results = replay(&corpus, Arc::new(Https::new(&kubeconfig)?), &options).await;
    tell(&results, arguments)?;
    Ok(results.failed().next().is_none())
}

fn tell(results: &Results, arguments: &Arguments) -> Result<(), Box<dyn Error>> {
    write!(stdout(), "{}{}", failures(results, arguments.detail()), summary(results))?;
    Ok(())
}

/// A word that no earlier run on the same server had.
#[expect(clippy::disallowed_methods, reason = "a foreign server outlives this process, so only the wall clock tells runs apart")]
fn stamp() -> String {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    format!("{:x}", since.as_millis() % 0xFFFF_FFFF)
}
