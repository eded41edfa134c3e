//! The `kubectl` of the drop-in: what test environments run, and a real kubectl for the rest.
//!
//! In: a command line of kubectl. Out: for `get ns NAME` and the commands of `config` that change a
//! kubeconfig, the result; any other command line replaces this process by the kubectl of the PATH.

mod command_line; // words and flags
mod config; // kubeconfig files
mod get; // `get ns NAME`

use std::{
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use command_line::CommandLine;

use crate::error::CliError;

/// Runs the program.
///
/// # Errors
/// The command fails, or there is no kubectl for it.
pub(super) fn main(arguments: Vec<String>) -> Result<(), CliError> {
    if let Some(line) = CommandLine::parse(&arguments) {
        let words: Vec<&str> = line.words.iter().map(String::as_str).collect();
        match words.as_slice() {
            ["get", "ns" | "namespace" | "namespaces", name] => return get::namespace(&line, name),
            ["config", words @ ..] => {
                if let Some(change) = config::Change::parse(words, &line) {
                    return config::run(&line, &change);
                }
            }
            _ => {}
        }
    }
    run_real(&arguments)
}

/// Replaces this process by the kubectl of the PATH.
fn run_real(arguments: &[String]) -> Result<(), CliError> {
    let Some(program) = real_kubectl() else {
        let what = arguments.join(" ");
        return Err(CliError::Failed(format!(
            "there is no kubectl on the PATH for `kubectl {what}`; this one has `get ns NAME` and \
             `config` only; install kubectl"
        )));
    };
    let mut command = Command::new(&program);
    command.args(arguments);
    let step = format!("cannot run {}", program.display());
    #[cfg(unix)]
    {
        use std::os::unix::process::CommandExt as _;
        Err(CliError::context(&step)(command.exec()))
    }
    #[cfg(not(unix))]
    {
        let status = command.status().map_err(CliError::context(&step))?;
        std::process::exit(status.code().unwrap_or(1))
    }
}

/// The first kubectl on the PATH that is not this program.
fn real_kubectl() -> Option<PathBuf> {
    let own = env::current_exe().and_then(fs::canonicalize).ok();
    let is_other = |path: &Path| {
        path.is_file()
            && fs::canonicalize(path)
                .ok()
                .is_some_and(|path| Some(path) != own)
    };
    let path = env::var_os("PATH")?;
    env::split_paths(&path)
        .map(|directory| directory.join("kubectl"))
        .find(|path| is_other(path))
}
