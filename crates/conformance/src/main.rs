//! Replays the recorded answers of a real API server: `cargo xtask conformance --help`.
//! Out: exit code 0 as known, 1 something differs, 2 misused; differences on stdout.

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
    Awaited, Corpus, Detail, Https, Options, Recorded, Results, document, failures, page, replay,
    replay_embedded, summary,
};
use clap::Parser;

/// Replays the recorded answers of kube-apiserver 1.36.4 and prints what differs.
///
/// Without a kubeconfig the embedded server is asked, in-process and over HTTPS, and held against the list of known differences.
#[derive(Parser)]
#[command(name = "cargo xtask conformance")]
struct Arguments {
    /// Ask the server of this kubeconfig, which must be on loopback
    #[arg(long, value_name = "FILE", conflicts_with_all = ["write_awaited", "write_docs"])]
    kubeconfig: Option<PathBuf>,
    /// Only the scenarios of this folder; may be given more than once
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["write_awaited", "write_docs"])]
    folder: Vec<String>,
    /// Only the scenarios with this text in their name
    #[arg(long, value_name = "TEXT", conflicts_with_all = ["write_awaited", "write_docs"])]
    only: Option<String>,
    /// Print every difference of every scenario, known or not
    #[arg(long)]
    diff: bool,
    /// Leave this key out everywhere, for example managedFields; may be given more than once
    #[arg(long, value_name = "KEY", conflicts_with_all = ["write_awaited", "write_docs"])]
    without: Vec<String>,
    /// Write the list of known differences anew; what newly fails is put where it can be sorted by hand
    #[arg(long)]
    write_awaited: bool,
    /// Write docs/conformance.md anew
    #[arg(long)]
    write_docs: bool,
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
    let ended = match &arguments.kubeconfig {
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

/// Whether a server that somebody else runs differs in nothing.
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
    let awaited = known(results, arguments)?;
    let verdict = awaited.judge(results, all.scenarios.iter().map(Recorded::title));
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
        fs::write(page(), document(results, &awaited))?;
    }
    Ok(verdict.is_as_known() && disagreements.is_empty())
}

/// The list of known differences, written anew first if that is wanted.
fn known(results: &Results, arguments: &Arguments) -> Result<Awaited, Box<dyn Error>> {
    let mut awaited = Awaited::of_repository()?;
    if arguments.write_awaited {
        awaited = awaited.following(results);
        awaited.write_to_repository()?;
    }
    Ok(awaited)
}

/// A word that no earlier run on the same server had.
#[expect(
    clippy::disallowed_methods,
    reason = "a foreign server outlives this process, so only the wall clock tells runs apart"
)]
fn stamp() -> String {
    let since = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    format!("{:x}", since.as_millis() % 0xFFFF_FFFF)
}
