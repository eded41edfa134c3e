//! The `bellerophon` binary: a local Kubernetes cluster in one process, and operators on any
//! cluster.
//!
//! Input: a command line. Outputs: results on stdout, logs and errors on stderr. Exit codes: 0
//! success, 1 failure, 2 usage error.

// A group of modules imports nothing of the groups below it.

// What commands share.
mod chains; // summaries of what followed from a write
mod error; // errors as one line, and exit codes
mod flags; // flags and values of several commands
mod live_page; // the live page of a cluster or of operators
mod logs; // logs on stderr
mod memory; // freed memory is returned
mod operators; // the operators of this binary
mod page_actions; // `bellerophon up --page-may-act`
mod page_client; // a client of the page of `bellerophon run --page`
mod process_nodes; // nodes that run local processes
mod progress; // what a command waits for, on a terminal
mod ready; // the message of a ready cluster
mod signals; // SIGINT and SIGTERM
mod timeline; // the entries of `bellerophon trace`
mod up_options; // the options of `bellerophon up`
mod usage; // from arguments to options, help or a usage error
mod watches; // watches of controllers, which the live page may cut

// Commands.
mod demo; // `bellerophon up --demo`
mod dev; // `bellerophon dev`
mod doctor; // `bellerophon doctor`
mod envtest; // `bellerophon envtest`, and the programs that it links
mod hello; // `bellerophon hello`
mod kubeconfig; // `bellerophon kubeconfig`
mod manifests; // `bellerophon manifests`
mod new; // `bellerophon new`
mod page; // `bellerophon page`
mod reboot; // `bellerophon reboot`
mod run; // `bellerophon run`
mod shell; // `bellerophon completions` and `bellerophon man`
mod store; // `bellerophon store`
mod top; // `bellerophon top`
mod trace; // `bellerophon trace`
mod up; // `bellerophon up`

// Command lines.
mod arguments; // `bellerophon`
mod plugin; // `kubectl bellerophon`

#[cfg(test)]
mod documentation; // command lines and code blocks of the documentation
#[cfg(test)]
mod reference; // docs/reference/cli.md

use std::process::ExitCode;

use clap::CommandFactory as _;
use tokio::{runtime::Runtime, time::Instant};

use crate::{
    arguments::{Arguments, Command},
    demo::Detail,
    error::CliError,
    signals::Signals,
};

/// A cluster in one process allocates much: with mimalloc it needs a third less CPU time than with
/// the allocator of glibc.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    // Before anything else: a sandbox is created by a process with one thread.
    if let Some(code) = bellerophon_process_runtime::shim::main(std::env::args_os()) {
        return code;
    }
    if let Some(code) = envtest::main(std::env::args_os()) {
        return code;
    }
    if let Some(code) = plugin::main(std::env::args_os()) {
        return code;
    }
    let started = Instant::now();
    match usage::parse_or_exit::<Arguments>().and_then(|arguments| run(arguments, started)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    }
}

fn run(arguments: Arguments, started: Instant) -> Result<(), CliError> {
    logs::init(arguments.verbose, arguments.log_format)?;
    let runtime = match &arguments.command {
        Command::Store(_) => bellerophon_store::runtime(),
        _ => Runtime::new(),
    };
    let runtime = runtime.map_err(CliError::context("cannot start the runtime"))?;
    match arguments.command {
        Command::Up(options) => {
            let detail = match arguments.verbose {
                0 => Detail::Chains,
                _ => Detail::Records,
            };
            runtime.block_on(up::up(&options, detail, started))
        }
        Command::Kubeconfig(options) => runtime.block_on(kubeconfig::print(&options)),
        Command::Run(arguments) => {
            // The Manager shuts down at the first signal. This ends the process if it cannot.
            let _signals =
                Signals::listen().map_err(CliError::context("cannot listen for signals"))?;
            runtime.block_on(run::run(&arguments))
        }
        Command::Manifests(arguments) => {
            manifests::print(&arguments, &mut std::io::stdout().lock())
        }
        Command::Reboot(arguments) => {
            runtime.block_on(reboot::reboot(&arguments, &mut std::io::stdout().lock()))
        }
        Command::Doctor(options) => {
            runtime.block_on(doctor::doctor(&options, &mut std::io::stdout().lock()))
        }
        Command::Store(arguments) => {
            runtime.block_on(store::store(arguments, &mut std::io::stdout().lock()))
        }
        Command::Dev(options) => runtime.block_on(dev::dev(&options, started)),
        Command::New(options) => new::new(&options, &mut std::io::stdout().lock()),
        Command::Envtest(options) => envtest::envtest(&options, &mut std::io::stdout().lock()),
        Command::Completions(arguments) => shell::completions(
            &arguments,
            Arguments::command(),
            &mut std::io::stdout().lock(),
        ),
        Command::Man(arguments) => shell::man(&arguments, Arguments::command()),
        Command::Hello(options) => runtime.block_on(hello::hello(options)),
        Command::Page(arguments) => runtime.block_on(page::page(&arguments)),
        Command::Top(options) => runtime.block_on(top::top(&options)),
        Command::Trace(options) => runtime.block_on(trace::trace(&options)),
    }
}
