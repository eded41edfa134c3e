//! `kubectl bellerophon`: the plugin of kubectl, which is this binary by the name
//! `kubectl-bellerophon`.
//!
//! Input: a command line, the kubeconfig of kubectl. Output: tables and lines on stdout.
//!
//! `status` and `reboot` work with every cluster. `why`, `queue` and `trace` read the trace that the
//! API server of `bellerophon up` serves.

mod status; // operators and their objects
mod why; // the causes of a write

use std::{
    ffi::{OsStr, OsString},
    io::{Write as _, stdout},
    path::{Path, PathBuf},
    process::ExitCode,
};

use clap::{Args, Parser, Subcommand};
use kube::Client;
use tokio::runtime::Runtime;

use crate::{
    error::CliError,
    flags::{self, OutputFormat},
    logs,
    reboot::{self, RebootArguments},
    run,
    signals::Signals,
    timeline::ObjectSelector,
    top, trace, usage,
};

/// The file name that selects the plugin.
const NAME: &str = "kubectl-bellerophon";

/// Show operators, why they reconcile, and reboots of nodes.
#[derive(Debug, Parser)]
#[command(name = NAME, bin_name = "kubectl bellerophon", version)]
pub(crate) struct PluginArguments {
    #[command(subcommand)]
    command: PluginCommand,
}

#[derive(Debug, Subcommand)]
enum PluginCommand {
    /// Print the operators of the cluster, their leaders, and objects that are not ready
    Status {
        #[command(flatten)]
        connection: Connection,
    },
    /// Print why an object has its current state: the write, the reconcile, its causes
    #[command(
        after_help = "Needs a cluster of `bellerophon up`. Example:\n  kubectl bellerophon why \
                      deployment/web"
    )]
    Why {
        /// The object, as KIND/NAME or NAME
        #[arg(value_name = "OBJECT", value_parser = flags::object)]
        object: String,
        /// How many of its newest writes to explain
        #[arg(long, value_name = "N", default_value = "1")]
        last: usize,
        #[command(flatten)]
        connection: Connection,
    },
    /// Print the work queues, reconciles and caches of controllers
    #[command(after_help = "Needs a cluster of `bellerophon up`.")]
    Queue {
        #[command(flatten)]
        connection: Connection,
    },
    /// Print the timeline of an object: watch events, enqueued controllers and their writes
    #[command(after_help = "Needs a cluster of `bellerophon up`.")]
    Trace {
        /// The object, as KIND/NAME or NAME
        #[arg(value_name = "OBJECT", value_parser = flags::object)]
        object: String,
        /// Print new entries until Ctrl-C
        #[arg(short, long)]
        follow: bool,
        #[command(flatten)]
        connection: Connection,
    },
    /// Show and control reboots of nodes
    Reboot(RebootArguments),
}

/// Where the cluster is, with the names of kubectl's flags.
#[derive(Debug, Args)]
struct Connection {
    /// The kubeconfig; default: KUBECONFIG, or ~/.kube/config
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// The context of the kubeconfig; default: its current context
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// The namespace; default: that of the context
    #[arg(short, long, value_name = "NAMESPACE", value_parser = flags::object)]
    namespace: Option<String>,
}

impl Connection {
    /// A client of the cluster, and the namespace to use.
    async fn connect(&self) -> Result<(Client, String), CliError> {
        let config = run::config(self.kubeconfig.as_deref(), self.context.as_deref()).await?;
        let namespace = self.namespace.clone();
        let namespace = namespace.unwrap_or_else(|| config.default_namespace.clone());
        Ok((Client::try_from(config).map_err(CliError::new)?, namespace))
    }
}

/// Runs the plugin; `None` if this process is not it.
pub(crate) fn main(mut arguments: impl Iterator<Item = OsString>) -> Option<ExitCode> {
    let program = arguments.next()?;
    let name = Path::new(&program).file_name().and_then(OsStr::to_str)?;
    if name.strip_suffix(".exe").unwrap_or(name) != NAME {
        return None;
    }
    let result = usage::parse_or_exit::<PluginArguments>().and_then(execute);
    Some(match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => error.report(),
    })
}

fn execute(arguments: PluginArguments) -> Result<(), CliError> {
    logs::init(0, OutputFormat::Text)?;
    let runtime = Runtime::new().map_err(CliError::context("cannot start the runtime"))?;
    runtime.block_on(async {
        match arguments.command {
            PluginCommand::Status { connection } => {
                let (client, _) = connection.connect().await?;
                print(&status::status(&client).await?)
            }
            PluginCommand::Why {
                object,
                last,
                connection,
            } => {
                let (client, namespace) = connection.connect().await?;
                let selector = ObjectSelector::parse(&object, &namespace);
                let lines = why::why(&client, &selector, last).await?;
                if lines.is_empty() {
                    let message = format!("no write of {object} in namespace {namespace} is known");
                    return Err(CliError::Failed(message).with_hint(
                        "name it as kubectl does; the cluster keeps the newest records only",
                    ));
                }
                print(&lines)
            }
            PluginCommand::Queue { connection } => {
                let (client, _) = connection.connect().await?;
                top::once(&client).await
            }
            PluginCommand::Trace {
                object,
                follow,
                connection,
            } => {
                let mut signals =
                    Signals::listen().map_err(CliError::context("cannot listen for signals"))?;
                let (client, namespace) = connection.connect().await?;
                let query = trace::Query {
                    object,
                    namespace,
                    follow,
                };
                trace::print(&client, &query, &mut signals).await
            }
            PluginCommand::Reboot(arguments) => {
                reboot::reboot(&arguments, &mut stdout().lock()).await
            }
        }
    })
}

fn print(lines: &[String]) -> Result<(), CliError> {
    let mut text = lines.join("\n");
    text.push('\n');
    match stdout().write_all(text.as_bytes()) {
        // The reader, such as `head`, has closed the pipe.
        Err(error) if error.kind() == std::io::ErrorKind::BrokenPipe => Ok(()),
        written => written.map_err(CliError::context("cannot write to stdout")),
    }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn command_line_definition_is_consistent() {
        PluginArguments::command().debug_assert();
    }

    #[test]
    fn other_names_are_not_the_plugin() {
        for name in ["bellerophon", "/usr/bin/kubectl", "kubectl-bellerophon2"] {
            assert!(main([OsString::from(name)].into_iter()).is_none(), "{name}");
        }
    }
}
