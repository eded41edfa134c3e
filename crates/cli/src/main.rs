//! The `bellerophon` binary: a Kubernetes API on your laptop.
//! In: a command line. Out: facts on stdout, logs and errors on stderr; exit code 0 done, 1 failed, 2 misused.

mod arguments; // what the command line may say
mod demo; // sample objects, and what comes of them
mod failure; // why a command ended early, in one line
mod kubeconfig; // `bellerophon kubeconfig`
mod logs; // events on stderr
mod manifests; // `bellerophon manifests`
mod operators; // which there are
mod ready; // the facts a user or a script waits for
mod reboot; // `bellerophon reboot`
mod run; // `bellerophon run`
mod stop; // signals that end a command
mod story; // the choreography around one object
mod trace; // `bellerophon trace`
mod up; // `bellerophon up`

use std::process::ExitCode;

use tokio::{runtime::Runtime, time::Instant};

use crate::{
    arguments::{Arguments, Command},
    failure::Failure,
};

/// A cluster in one process allocates all the time; with this allocator it needs a third less processor time.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    let started = Instant::now();
    match Arguments::read().and_then(|arguments| run(arguments, started)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => failure.tell(),
    }
}

fn run(arguments: Arguments, started: Instant) -> Result<(), Failure> {
    logs::begin(arguments.verbose, arguments.log_format)?;
    let runtime = Runtime::new().map_err(Failure::caused_by("cannot start the runtime"))?;
    match arguments.command {
        Command::Up(options) => runtime.block_on(up::up(&options, started)),
        Command::Kubeconfig(options) => runtime.block_on(kubeconfig::print(&options)),
        Command::Run(arguments) => runtime.block_on(run::run(&arguments)),
        Command::Manifests(arguments) => {
            manifests::print(&arguments, &mut std::io::stdout().lock())
        }
        Command::Reboot(arguments) => {
            runtime.block_on(reboot::reboot(&arguments, &mut std::io::stdout().lock()))
        }
        Command::Trace(options) => runtime.block_on(trace::trace(&options)),
    }
}
