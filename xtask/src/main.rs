//! The tasks of this repository: `cargo xtask` lists them, `cargo xtask check` is what CI runs.
//! Out: exit code 0 done, 1 failed, 2 misused; problems on stderr.

use std::{env, process::ExitCode};

use xtask::tasks::{self, Failure};

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match tasks::run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Failed(why)) => {
            eprintln!("xtask: {why}");
            ExitCode::from(1)
        }
        Err(Failure::Misused(why)) => {
            eprintln!("xtask: {why}\n\n{}", tasks::usage());
            ExitCode::from(2)
        }
    }
}
