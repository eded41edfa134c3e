//! The Bellerophon operator on kube-runtime, and a comparison with the one on the toolkit.
//!
//! ```text
//! cargo run --release -p hero-kube-runtime -- run          # the operator, with the current kubeconfig
//! cargo xtask comparison                                   # both, measured; writes docs/comparison.md
//! ```
//!
//! Both operators use the same functions `observe`, `plan` and `apply` of the crate
//! `bellerophon-hero`. What differs is what calls them: caches, work queue and retries.

mod compare; // both operators in every scenario
mod counts; // requests and reconciles of one operator
mod kube_runtime_operator; // the operator on kube-runtime
mod operator_process; // one operator as a child process
mod proxy; // network faults between an operator and the API server
mod report; // docs/comparison.md
mod runs; // faults and results
mod scenario; // the steps of a scenario

use std::process::ExitCode;

const USAGE: &str = "usage: hero-kube-runtime run\n       \
                     hero-kube-runtime compare [--write FILE]";

/// Why a command failed.
type Failure = Box<dyn std::error::Error + Send + Sync>;

#[tokio::main]
async fn main() -> ExitCode {
    tracing_subscriber::fmt()
        .with_writer(std::io::stderr)
        .with_env_filter(tracing_subscriber::EnvFilter::from_default_env())
        .init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let result = match arguments[..] {
        ["run"] => operator_process::run("kube-runtime").await,
        ["operator", implementation] => operator_process::run(implementation).await,
        ["compare"] => compare::run(None).await,
        ["compare", "--write", file] => compare::run(Some(file)).await,
        _ => {
            report::print_error(USAGE);
            return ExitCode::from(2);
        }
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            report::print_error(&format!("hero-kube-runtime: {error}"));
            ExitCode::FAILURE
        }
    }
}
