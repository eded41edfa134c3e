//! What the command line may say.
//! In: the process's arguments. Out: options in types, or help.
//! Holds: a flag exists only when it does something; anything else is misuse.

use std::{net::SocketAddr, path::PathBuf};

use clap::{
    ArgAction, Args, Parser, Subcommand, ValueEnum,
    error::ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion},
};

use bellerophon_cluster::Level;
use bellerophon_operator::Operator;

use crate::{failure::Failure, kubeconfig::KubeconfigOptions, operators, reboot::RebootArguments};

/// Write, run, test and watch Kubernetes controllers: a Kubernetes API on your laptop, with nothing else installed.
#[derive(Debug, Parser)]
#[command(name = "bellerophon", version, propagate_version = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,

    /// Log more to stderr: -v what happens, -vv every request, -vvv every detail; RUST_LOG has the last word
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    /// How log lines are written
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: Form,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a Kubernetes cluster, write a kubeconfig for it, and wait
    #[command(after_help = "State is in memory. Ctrl-C stops in order, a second one at once.")]
    Up(UpOptions),

    /// Print a kubeconfig that speaks for a service account
    #[command(
        after_help = "It holds a secret: `(umask 077; bellerophon kubeconfig --service-account default/robot > robot.yaml)`."
    )]
    Kubeconfig(KubeconfigOptions),

    /// Run operators on any cluster, until Ctrl-C
    #[command(
        after_help = "It installs nothing: what a cluster lacks is named with the command that adds it."
    )]
    Run(RunArguments),

    /// Print what a cluster must be given so that operators can run there, as YAML
    Manifests(ManifestsArguments),

    /// Look at reboots of nodes, and steer them
    Reboot(RebootArguments),

    /// Print how an object came to be: which event woke which controller, and what it wrote then
    #[command(
        after_help = "An event that no line before it writes came from a client, such as kubectl. Versions (at 42) link a write to its event."
    )]
    Trace(TraceOptions),
}

#[derive(Debug, Args)]
pub(crate) struct TraceOptions {
    /// The object, as KIND/NAME or NAME; what is made because of it belongs to its story
    #[arg(value_name = "OBJECT", value_parser = object)]
    pub(crate) object: String,

    /// Its namespace; the one of the kubeconfig unless said
    #[arg(short, long, value_name = "NAMESPACE", value_parser = object)]
    pub(crate) namespace: Option<String>,

    /// Go on as it happens, until Ctrl-C
    #[arg(short, long)]
    pub(crate) follow: bool,

    /// The kubeconfig that `bellerophon up` wrote
    #[arg(long, value_name = "FILE", default_value = ".bellerophon/kubeconfig")]
    pub(crate) kubeconfig: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct UpOptions {
    /// Where to serve HTTPS; port 0 takes a free one
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0", value_parser = address)]
    pub(crate) listen: SocketAddr,

    /// Where to write the kubeconfig, readable by you alone
    #[arg(long, value_name = "FILE", default_value = ".bellerophon/kubeconfig")]
    pub(crate) kubeconfig: PathBuf,

    /// What acts in the cluster besides its clients
    #[arg(long, value_name = "WHAT", default_value = "full")]
    cluster: Acting,

    /// How many simulated nodes run pods; 3 unless said
    #[arg(long, value_name = "N")]
    nodes: Option<u16>,

    /// Which operators run: all, none, or names separated by commas; all in a full cluster unless said, else none
    #[arg(long, value_name = "LIST")]
    operators: Option<String>,

    /// Apply sample objects and print what comes of them as it happens
    #[arg(long)]
    pub(crate) demo: bool,

    /// How facts are written to stdout: for people, or one JSON object a line
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: Form,
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// Operators by name, separated by commas, or all
    #[arg(value_name = "OPERATOR,…")]
    pub(crate) operators: String,

    /// The cluster's kubeconfig; otherwise KUBECONFIG, inside a pod its own cluster
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// The context in the kubeconfig; otherwise its current one
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,

    /// Watch only this namespace; otherwise all
    #[arg(long, value_name = "NS")]
    pub(crate) namespace: Option<String>,

    /// Turn on what an operator does only when told so; see its page in docs/operators
    #[arg(long = "allow", value_name = "SWITCH")]
    pub(crate) switches: Vec<String>,

    /// Work only while holding a lease, so that of several copies one works
    #[arg(long)]
    pub(crate) leader_elect: bool,

    /// How many objects each controller works on at once
    #[arg(long, value_name = "N", default_value = "2", value_parser = workers)]
    pub(crate) workers: usize,

    /// Where to serve /healthz, /readyz and /metrics; otherwise nowhere
    #[arg(long, value_name = "IP:PORT", value_parser = address)]
    pub(crate) metrics: Option<SocketAddr>,
}

#[derive(Debug, Args)]
pub(crate) struct ManifestsArguments {
    /// Operators by name, separated by commas, or all
    #[arg(value_name = "OPERATOR|all")]
    pub(crate) operators: String,

    /// Only the kinds they define
    #[arg(long)]
    pub(crate) crds_only: bool,

    /// The image of this binary, where the cluster finds it
    #[arg(long, value_name = "IMAGE", default_value = concat!("bellerophon:", env!("CARGO_PKG_VERSION")))]
    pub(crate) image: String,

    /// Also a ServiceMonitor, for clusters with the Prometheus operator
    #[arg(long)]
    pub(crate) service_monitor: bool,
}

/// A form for people or for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Form {
    Text,
    Json,
}

/// What acts in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Acting {
    /// Everything: also workloads, a scheduler, and nodes that run pods
    Full,
    /// What every API server needs: garbage collection, namespaces, service accounts, endpoints and the like
    Core,
    /// The bare API server: nothing happens that no client asked for
    None,
}

/// How many nodes a cluster has unless somebody says otherwise.
const NODES: u16 = 3;

impl UpOptions {
    /// How much of a cluster runs, and with how many nodes; `None` for a bare server.
    ///
    /// # Errors
    /// Nodes are asked for where nothing could run on them.
    pub(crate) fn cluster(&self) -> Result<Option<(Level, usize)>, Failure> {
        match (self.cluster, self.nodes) {
            (Acting::None, _) if self.demo => Err(Failure::Misused(
                "--demo needs a cluster that does something".to_owned(),
            )
            .advising("leave out --cluster none")),
            (Acting::Full, nodes) => Ok(Some((Level::Full, nodes.unwrap_or(NODES).into()))),
            (Acting::Core, None) => Ok(Some((Level::Core, 0))),
            (Acting::None, None) => Ok(None),
            (Acting::Core | Acting::None, Some(_)) => {
                Err(Failure::Misused("--nodes needs --cluster full".to_owned())
                    .advising("see `bellerophon up --help`"))
            }
        }
    }

    /// Which operators run.
    ///
    /// # Errors
    /// A name that no operator has.
    pub(crate) fn operators(&self) -> Result<Vec<Operator>, Failure> {
        let unless_said = if self.cluster == Acting::Full {
            "all"
        } else {
            "none"
        };
        operators::named(self.operators.as_deref().unwrap_or(unless_said))
    }
}

impl Arguments {
    /// Reads the command line. Asking for help or for the version, or for nothing at all, is answered here and ends the process.
    ///
    /// # Errors
    /// What is wrong with it.
    pub(crate) fn read() -> Result<Self, Failure> {
        Self::try_parse().map_err(|error| match error.kind() {
            DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand => error.exit(),
            _ => Failure::Misused(in_one_line(&error)).advising("see `bellerophon --help`"),
        })
    }
}

/// Clap explains in paragraphs; scripts and logs want a line.
fn in_one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let explained = text.split("\n\nUsage:").next().unwrap_or_default();
    let explained = explained.strip_prefix("error: ").unwrap_or(explained);
    let parts: Vec<&str> = explained
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    parts.join(" ")
}

fn workers(text: &str) -> Result<usize, &'static str> {
    text.parse()
        .ok()
        .filter(|workers| (1..=1000).contains(workers))
        .ok_or("not a number from 1 to 1000")
}

/// Names of objects and kinds need no escaping in a path.
fn object(text: &str) -> Result<String, &'static str> {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-./:".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        Ok(text.to_owned())
    } else {
        Err("not a name, such as web or deployment/web")
    }
}

fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse()
        .map_err(|_| "not an IP address and a port, such as 127.0.0.1:6443 or [::1]:0")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn definition_of_the_command_line_is_sound() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn nodes_are_for_whole_clusters() {
        type Wanted = Result<Option<(Level, usize)>, ()>;
        let cases: &[(&[&str], Wanted)] = &[
            (&[], Ok(Some((Level::Full, 3)))),
            (&["--nodes", "0"], Ok(Some((Level::Full, 0)))),
            (
                &["--cluster", "full", "--nodes", "5000"],
                Ok(Some((Level::Full, 5000))),
            ),
            (&["--cluster", "core"], Ok(Some((Level::Core, 0)))),
            (&["--cluster", "none"], Ok(None)),
            (&["--cluster", "core", "--nodes", "1"], Err(())),
            (&["--cluster", "none", "--nodes", "1"], Err(())),
            (&["--cluster", "none", "--demo"], Err(())),
        ];
        for (line, wanted) in cases {
            let read = Arguments::try_parse_from([&["bellerophon", "up"], *line].concat())
                .expect("a command line");
            let Command::Up(options) = read.command else {
                panic!("another command")
            };
            assert_eq!(options.cluster().map_err(|_| ()), *wanted, "{line:?}");
        }
    }

    #[test]
    fn operators_come_with_whole_clusters_or_by_name() {
        let cases: &[(&[&str], Option<usize>)] = &[
            (&[], Some(operators::ALL.len())),
            (&["--operators", "none"], Some(0)),
            (&["--operators", "icecream"], Some(1)),
            (&["--cluster", "core"], Some(0)),
            (
                &["--cluster", "none", "--operators", "fruit,secsynch"],
                Some(2),
            ),
            (&["--operators", "vanilla"], None),
        ];
        for (line, wanted) in cases {
            let read = Arguments::try_parse_from([&["bellerophon", "up"], *line].concat())
                .expect("a command line");
            let Command::Up(options) = read.command else {
                panic!("another command")
            };
            assert_eq!(
                options.operators().ok().map(|found| found.len()),
                *wanted,
                "{line:?}"
            );
        }
    }

    #[test]
    fn misuse_is_told_in_one_line() {
        let cases: &[(&[&str], &str)] = &[
            (&["up", "--nodes", "-3"], "unexpected argument '-3' found"),
            (
                &["up", "--nodes", "many"],
                "invalid value 'many' for '--nodes <N>': invalid digit found in string",
            ),
            (
                &["up", "--cluster", "half"],
                "invalid value 'half' for '--cluster <WHAT>' [possible values: full, core, none]",
            ),
            (
                &["up", "--listen", "here"],
                "invalid value 'here' for '--listen <IP:PORT>': not an IP address and a port, such as 127.0.0.1:6443 or [::1]:0",
            ),
            (
                &["trace", "a b"],
                "invalid value 'a b' for '<OBJECT>': not a name, such as web or deployment/web",
            ),
            (&["down"], "unrecognized subcommand 'down'"),
            (
                &["kubeconfig", "--service-account", "robot"],
                "invalid value 'robot' for '--service-account <NAMESPACE/NAME>': not a namespace and a name, such as default/robot",
            ),
        ];
        for (line, wanted) in cases {
            let error =
                Arguments::try_parse_from([&["bellerophon"], *line].concat()).expect_err("misuse");
            let told = in_one_line(&error);
            assert!(
                told.starts_with(wanted) && !told.contains('\n'),
                "{line:?}: {told}"
            );
        }
    }
}
