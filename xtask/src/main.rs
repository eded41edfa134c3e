//! Tasks of the repository: `cargo xtask` lists them.
//!
//! Exit codes: 0 success, 1 failure, 2 usage error.

use std::{env, process::ExitCode};

use xtask::tasks::{self, TaskError};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match tasks::run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(TaskError::Failed(message)) => {
            eprintln!("xtask: {message}");
            ExitCode::from(1)
        }
        Err(TaskError::Usage(message)) => {
            eprintln!("xtask: {message}\n\n{}", tasks::usage());
            ExitCode::from(2)
        }
    }
}
