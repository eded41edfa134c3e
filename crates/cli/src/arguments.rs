//! The command line: all commands, with the options that each of them declares.

use clap::{ArgAction, Parser, Subcommand};

use crate::{
    dev::DevOptions,
    doctor::DoctorOptions,
    envtest::EnvtestOptions,
    flags::OutputFormat,
    hello::HelloOptions,
    kubeconfig::KubeconfigOptions,
    manifests::ManifestsArguments,
    new::NewOptions,
    page::PageArguments,
    reboot::RebootArguments,
    run::RunArguments,
    shell::{CompletionsArguments, ManArguments},
    store::StoreArguments,
    top::TopOptions,
    trace::TraceOptions,
    up_options::UpOptions,
};

/// Run a local Kubernetes cluster in one process, and run operators on any cluster.
#[derive(Debug, Parser)]
#[command(name = "bellerophon", version, propagate_version = true)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    pub(crate) command: Command,

    /// Log more to stderr: -v info, -vv debug with every request, -vvv trace; RUST_LOG overrides it
    #[arg(short, long, global = true, action = ArgAction::Count)]
    pub(crate) verbose: u8,

    /// The format of logs
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text")]
    pub(crate) log_format: OutputFormat,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Start a Kubernetes cluster, write its kubeconfig, and run until Ctrl-C
    #[command(
        after_help = "Examples:\n  bellerophon up\n  bellerophon up --nodes 10 --operators \
                      icecream,secsynch\n  bellerophon up --cluster none --listen \
                      127.0.0.1:6443\n\nState is in memory. Ctrl-C stops gracefully, a second Ctrl-C immediately."
    )]
    Up(UpOptions),

    /// Print a kubeconfig for a service account
    #[command(
        after_help = "Example:\n  (umask 077; bellerophon kubeconfig --service-account \
                      default/robot > robot.yaml)\n\nThe output contains a token. Create the file \
                      readable only by its owner, as in the example."
    )]
    Kubeconfig(KubeconfigOptions),

    /// Run operators on any cluster until Ctrl-C
    #[command(
        after_help = "Examples:\n  bellerophon run icecream --page 127.0.0.1:0\n  bellerophon run \
                      icecream,secsynch --leader-elect --metrics 0.0.0.0:8080\n\nThe command \
                      installs nothing. If CRDs or permissions are missing, the error \
                      names the command that installs them."
    )]
    Run(RunArguments),

    /// Print the manifests that install operators, as YAML, a kustomize base or an OLM bundle
    #[command(
        after_help = "Examples:\n  bellerophon manifests icecream | kubectl apply -f -\n  \
                      bellerophon manifests all --format kustomize --out base\n  bellerophon \
                      manifests all --format olm --out bundle\n\nSee docs/packaging.md."
    )]
    Manifests(ManifestsArguments),

    /// Show and control reboots of nodes
    #[command(
        after_help = "Examples:\n  bellerophon reboot status\n  bellerophon reboot request node-1 \
                      --reason kernel"
    )]
    Reboot(RebootArguments),

    /// Run, use and administrate a replicated key-value store
    #[command(
        after_help = "Examples:\n  bellerophon store put greeting hello\n  bellerophon store get \
                      greeting\n\nSee docs/store.md."
    )]
    Store(StoreArguments),

    /// Print the timeline of an object: watch events, enqueued controllers and their writes
    #[command(
        after_help = "Examples:\n  bellerophon trace deployment/web\n  bellerophon trace --follow \
                      --page 'http://127.0.0.1:8080/#token=…'\n\nAn event without a preceding \
                      write is of another client, such as kubectl. Resource versions (at 42) link \
                      a write to its event."
    )]
    Trace(TraceOptions),

    /// Show the queues, reconciles and caches of a running cluster in the terminal until Ctrl-C
    #[command(
        after_help = "Examples:\n  bellerophon top\n  bellerophon top --once\n  bellerophon top \
                      --page 'http://127.0.0.1:8080/#token=…'\n\nIn a pipe, a table every second."
    )]
    Top(TopOptions),

    /// Show a recorded trace in a browser until Ctrl-C
    #[command(
        after_help = "Example:\n  bellerophon up --record trace.jsonl\n  bellerophon page \
                      trace.jsonl"
    )]
    Page(PageArguments),

    /// Check what this system offers to a cluster, and print what to change
    #[command(
        after_help = "Examples:\n  bellerophon doctor\n  bellerophon doctor --output \
                      json\n\nEach line is ok, warn or fail. Exit code 1 if a check fails: `bellerophon \
                      up` would not start."
    )]
    Doctor(DoctorOptions),

    /// Create a project of an operator, in Rust, Go or Python
    #[command(
        after_help = "Examples:\n  bellerophon new hero && cd hero && bellerophon dev\n  \
                      bellerophon new bucket --group storage.example.com --finalizer\n  \
                      bellerophon new hero --go\n\nNothing is overwritten. See docs/tutorial.md."
    )]
    New(NewOptions),

    /// Run the operator of this directory in a cluster of its own, and restart it when it changes
    #[command(
        after_help = "Example:\n  bellerophon new hero && cd hero && bellerophon dev\n\nA \
                      project in Rust, Go or Python, such as that of `bellerophon new`. CRDs, \
                      permissions and the YAML files of the project are applied, and applied again \
                      when they change. Objects stay while the operator is built again. The \
                      cluster has a live page; its address is printed. Ctrl-C stops everything."
    )]
    Dev(DevOptions),

    /// Create a directory of test binaries for Go, Java and others: kube-apiserver, etcd, kubectl
    #[command(
        after_help = "Examples:\n  export KUBEBUILDER_ASSETS=\"$(bellerophon envtest --print \
                      path)\"; go test ./...\n  bellerophon envtest --bin-dir bin  # for an IDE, \
                      in a project of kubebuilder\n\nThe programs are links to this binary. See \
                      docs/envtest.md."
    )]
    Envtest(EnvtestOptions),

    /// Print the completion script of a shell
    #[command(after_help = "Example:\n  bellerophon completions bash > \
                      ~/.local/share/bash-completion/completions/bellerophon")]
    Completions(CompletionsArguments),

    /// Write manual pages
    #[command(after_help = "Example:\n  bellerophon man ~/.local/share/man/man1")]
    Man(ManArguments),

    /// Serve HTTP: a program for samples and tests, to run in a pod
    #[command(
        after_help = "Example:\n  bellerophon hello --listen 127.0.0.1:8080\n\nEvery response \
                      names pod (POD_NAME), node (NODE_NAME) and client; POST /echo \
                      responds with the body of the request. The program of samples/web.yaml."
    )]
    Hello(HelloOptions),
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory as _;

    use super::*;

    #[test]
    fn command_line_definition_is_consistent() {
        Arguments::command().debug_assert();
    }

    #[test]
    fn help_of_every_command_has_an_example() {
        for command in Arguments::command().get_subcommands() {
            let help = command.get_after_help().map(ToString::to_string);
            let help = help.unwrap_or_default();
            assert!(help.contains("bellerophon "), "{}", command.get_name());
            assert!(help.starts_with("Example"), "{}", command.get_name());
        }
    }
}
