//! The command line.
//!
//! Input: the arguments of the process. Output: typed options, or help.

use std::{net::SocketAddr, path::PathBuf};

use clap::{
    ArgAction, Args, Parser, Subcommand, ValueEnum,
    error::ErrorKind::{DisplayHelp, DisplayHelpOnMissingArgumentOrSubcommand, DisplayVersion},
};

use bellerophon_cluster::Level;
use bellerophon_operator::Operator;

use crate::{
    dev::DevOptions,
    doctor::DoctorOptions,
    envtest::EnvtestOptions,
    error::CliError,
    hello::HelloOptions,
    kubeconfig::KubeconfigOptions,
    manifests::ManifestsFormat,
    new::NewOptions,
    operators,
    page::PageArguments,
    page_client::PageUrl,
    reboot::RebootArguments,
    shell::{CompletionsArguments, ManArguments},
    store::StoreArguments,
    top::TopOptions,
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

#[derive(Debug, Args)]
pub(crate) struct TraceOptions {
    /// The object, as KIND/NAME or NAME; objects that are written because of it are included.
    /// Default with --follow: all objects
    #[arg(value_name = "OBJECT", value_parser = object, required_unless_present = "follow")]
    pub(crate) object: Option<String>,

    /// Its namespace; default: the namespace of the kubeconfig
    #[arg(short, long, value_name = "NAMESPACE", value_parser = object)]
    pub(crate) namespace: Option<String>,

    /// Print new entries until Ctrl-C
    #[arg(short, long)]
    pub(crate) follow: bool,

    #[command(flatten)]
    pub(crate) source: TraceSource,
}

/// Where trace records come from.
#[derive(Debug, Args)]
pub(crate) struct TraceSource {
    /// The kubeconfig that `bellerophon up` wrote
    #[arg(long, value_name = "FILE", default_value = ".bellerophon/kubeconfig")]
    pub(crate) kubeconfig: PathBuf,

    /// The URL that `bellerophon run --page` printed, for operators on any cluster; replaces
    /// --kubeconfig
    #[arg(long, value_name = "URL")]
    pub(crate) page: Option<PageUrl>,
}

#[derive(Debug, Args)]
pub(crate) struct UpOptions {
    /// The address of the API server; port 0 selects a free port
    #[arg(long, value_name = "IP:PORT", default_value = "127.0.0.1:0", value_parser = address)]
    pub(crate) listen: SocketAddr,

    /// The kubeconfig to write, readable only by its owner
    #[arg(long, value_name = "FILE", default_value = ".bellerophon/kubeconfig")]
    pub(crate) kubeconfig: PathBuf,

    /// Which components run in addition to the API server
    #[arg(long, value_name = "WHAT", default_value = "full")]
    cluster: ClusterMode,

    /// The number of nodes; default: 3
    #[arg(long, value_name = "N")]
    nodes: Option<u16>,

    /// How nodes run pods: simulated by timers, or as local processes
    #[arg(long, value_name = "RUNTIME", default_value = "simulated")]
    pub(crate) runtime: NodeRuntime,

    /// The program that runs as the images of a pattern, such as 'busybox*=/bin/busybox'; needs
    /// --runtime process
    #[arg(long = "image", value_name = "PATTERN=PROGRAM")]
    pub(crate) images: Vec<String>,

    /// A YAML file with the programs of images, their arguments and environment; needs --runtime
    /// process
    #[arg(long = "images", value_name = "FILE")]
    pub(crate) images_file: Option<PathBuf>,

    /// Serve the HTTPS API of the kubelets on 127.0.0.1, the first node at this port, the next one
    /// at the next port; 0 chooses free ports. Clients need credentials and permissions
    #[arg(long, value_name = "PORT")]
    kubelet_port: Option<u16>,

    /// The operators to run: all, none, or a comma-separated list; default: all with --cluster
    /// full, otherwise none
    #[arg(long, value_name = "LIST")]
    operators: Option<String>,

    /// Apply sample objects and print what follows from each; with -v every event and write
    #[arg(long)]
    pub(crate) demo: bool,

    /// Record the trace into a file, which `bellerophon page FILE` shows
    #[arg(long, value_name = "FILE")]
    pub(crate) record: Option<PathBuf>,

    /// The address of the live page, on loopback; none: no page, and accepted writes are not
    /// recorded
    #[arg(long, value_name = "IP:PORT|none", default_value = "127.0.0.1:0", value_parser = page_address)]
    pub(crate) page: PageAddress,

    /// Allow the live page to write as the administrator: apply samples, scale, delete pods, switch
    /// nodes off, cut watches
    #[arg(long)]
    pub(crate) page_may_act: bool,

    /// Append the audit log of the API server to a file, as lines of JSON (audit.k8s.io/v1)
    #[arg(long, value_name = "FILE", requires = "audit_policy_file")]
    pub(crate) audit_log_path: Option<PathBuf>,

    /// The audit policy: which requests are logged, and how much of them
    #[arg(long, value_name = "FILE", requires = "audit_log_path")]
    pub(crate) audit_policy_file: Option<PathBuf>,

    /// Rotate the audit log before it is larger than this; 0 disables the rotation
    #[arg(
        long,
        value_name = "MEGABYTES",
        default_value_t = 100,
        requires = "audit_log_path"
    )]
    pub(crate) audit_log_maxsize: u64,

    /// How many rotated audit logs are kept; 0 keeps all
    #[arg(
        long,
        value_name = "N",
        default_value_t = 100,
        requires = "audit_log_path"
    )]
    pub(crate) audit_log_maxbackup: usize,

    /// How many days rotated audit logs are kept; 0 keeps them forever
    #[arg(
        long,
        value_name = "DAYS",
        default_value_t = 366,
        requires = "audit_log_path"
    )]
    pub(crate) audit_log_maxage: u32,

    /// The format of stdout: text, or one JSON object per line
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    pub(crate) output: OutputFormat,
}

#[derive(Debug, Args)]
pub(crate) struct RunArguments {
    /// A comma-separated list of operators, or all
    #[arg(value_name = "OPERATOR,…")]
    pub(crate) operators: String,

    /// The kubeconfig; default: KUBECONFIG, or the service account of the pod
    #[arg(long, value_name = "FILE")]
    pub(crate) kubeconfig: Option<PathBuf>,

    /// The context of the kubeconfig; default: its current context
    #[arg(long, value_name = "NAME")]
    pub(crate) context: Option<String>,

    /// The only namespace to watch; default: all namespaces
    #[arg(long, value_name = "NS")]
    pub(crate) namespace: Option<String>,

    /// Enable a feature that is off by default; see docs/operators
    #[arg(long = "allow", value_name = "SWITCH")]
    pub(crate) feature_switches: Vec<String>,

    /// Elect a leader by a Lease, so that one of several replicas is active
    #[arg(long)]
    pub(crate) leader_elect: bool,

    /// The maximum number of concurrent reconciles of each controller
    #[arg(long, value_name = "N", default_value = "2", value_parser = workers)]
    pub(crate) workers: usize,

    /// The address of /healthz, /readyz and /metrics; default: not served
    #[arg(long, value_name = "IP:PORT", value_parser = address)]
    pub(crate) metrics: Option<SocketAddr>,

    /// The address of the live page, on loopback; its URL is printed. Default: not served
    #[arg(long, value_name = "IP:PORT", value_parser = address)]
    pub(crate) page: Option<SocketAddr>,

    /// Serve the webhooks of the operators. With https://HOST:PORT, register them with this URL;
    /// without a value, with https://127.0.0.1:9443. With NAMESPACE/SERVICE, serve them on port 9443
    /// for this Service, which `manifests --webhooks` registers
    #[arg(
        long,
        value_name = "LOCATION",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = ""
    )]
    pub(crate) webhooks: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct ManifestsArguments {
    /// A comma-separated list of operators, or all
    #[arg(value_name = "OPERATOR|all")]
    pub(crate) operators: String,

    /// Print only CustomResourceDefinitions
    #[arg(long)]
    pub(crate) crds_only: bool,

    /// The container image of this binary
    #[arg(long, value_name = "IMAGE", default_value = concat!("bellerophon:", env!("CARGO_PKG_VERSION")))]
    pub(crate) image: String,

    /// Include a ServiceMonitor for the Prometheus Operator
    #[arg(long)]
    pub(crate) service_monitor: bool,

    /// Include the webhooks of operators that have some
    #[arg(long)]
    pub(crate) webhooks: bool,

    /// The form of the manifests
    #[arg(long, value_name = "FORMAT", default_value = "yaml", requires_ifs = [("kustomize", "out"), ("olm", "out")])]
    pub(crate) format: ManifestsFormat,

    /// The directory of the files of --format kustomize and olm, which is created
    #[arg(long, value_name = "DIR")]
    pub(crate) out: Option<PathBuf>,
}

/// The format of logs and results.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    Text,
    Json,
}

/// Where the live page is served, if it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PageAddress {
    Served(SocketAddr),
    None,
}

/// How nodes run pods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum NodeRuntime {
    /// Containers are timers; no process runs
    Simulated,
    /// Containers are local processes
    Process,
}

/// The components of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ClusterMode {
    /// All built-in controllers, the scheduler, and nodes
    Full,
    /// The core controllers: garbage collector, namespaces, service accounts, endpoints and others
    Core,
    /// Only the API server
    None,
}

/// The default number of nodes.
const NODES_DEFAULT: u16 = 3;

impl UpOptions {
    /// A whole cluster with simulated nodes and without operators, for `bellerophon dev`.
    pub(crate) fn of_dev(nodes: u16, kubeconfig: PathBuf) -> Self {
        Self {
            listen: SocketAddr::from(([127, 0, 0, 1], 0)),
            kubeconfig,
            cluster: ClusterMode::Full,
            nodes: Some(nodes),
            runtime: NodeRuntime::Simulated,
            images: Vec::new(),
            images_file: None,
            kubelet_port: None,
            operators: Some("none".to_owned()),
            demo: false,
            record: None,
            page: PageAddress::Served(SocketAddr::from(([127, 0, 0, 1], 0))),
            page_may_act: false,
            audit_log_path: None,
            audit_policy_file: None,
            audit_log_maxsize: 0,
            audit_log_maxbackup: 0,
            audit_log_maxage: 0,
            output: OutputFormat::Text,
        }
    }

    /// The level of the cluster and its number of nodes; `None` for an API server only.
    ///
    /// # Errors
    /// Options that need another mode.
    pub(crate) fn cluster(&self) -> Result<Option<(Level, usize)>, CliError> {
        match (self.cluster, self.nodes) {
            (ClusterMode::None, _) if self.demo => Err(CliError::Usage(
                "--demo needs --cluster full or core".to_owned(),
            )
            .with_hint("omit --cluster none")),
            (ClusterMode::Full, nodes) => {
                Ok(Some((Level::Full, nodes.unwrap_or(NODES_DEFAULT).into())))
            }
            // Without the scheduler nothing would be assigned to a node.
            (ClusterMode::Core, None) => Ok(Some((Level::Core, 0))),
            (ClusterMode::None, None) => Ok(None),
            (ClusterMode::Core | ClusterMode::None, Some(_)) => {
                Err(CliError::Usage("--nodes needs --cluster full".to_owned())
                    .with_hint("see `bellerophon up --help`"))
            }
        }
    }

    /// The port of the first kubelet; `None` if kubelets have no sockets.
    ///
    /// # Errors
    /// A cluster without nodes.
    pub(crate) fn kubelet_port(&self) -> Result<Option<u16>, CliError> {
        if self.kubelet_port.is_some() && self.cluster != ClusterMode::Full {
            return Err(
                CliError::Usage("--kubelet-port needs --cluster full".to_owned())
                    .with_hint("see `bellerophon up --help`"),
            );
        }
        Ok(self.kubelet_port)
    }

    /// Whether nodes run local processes.
    ///
    /// # Errors
    /// Options that need another runtime or mode.
    pub(crate) fn runs_processes(&self) -> Result<bool, CliError> {
        let runs_processes = self.runtime == NodeRuntime::Process;
        if runs_processes && self.cluster != ClusterMode::Full {
            return Err(
                CliError::Usage("--runtime process needs --cluster full".to_owned())
                    .with_hint("see `bellerophon up --help`"),
            );
        }
        let has_images = !self.images.is_empty() || self.images_file.is_some();
        if has_images && !runs_processes {
            return Err(
                CliError::Usage("--image and --images need --runtime process".to_owned())
                    .with_hint("add --runtime process"),
            );
        }
        Ok(runs_processes)
    }

    /// The address of the live page; `None` if it is not served.
    ///
    /// # Errors
    /// Options that need the page.
    pub(crate) fn page_address(&self) -> Result<Option<SocketAddr>, CliError> {
        match (self.page, self.cluster) {
            (PageAddress::None, _) if self.page_may_act => Err(CliError::Usage(
                "--page-may-act needs the live page".to_owned(),
            )
            .with_hint("omit --page none")),
            // Without controllers there is nothing to trace.
            (PageAddress::None, _) | (_, ClusterMode::None) => Ok(None),
            (PageAddress::Served(address), _) => Ok(Some(address)),
        }
    }

    /// The operators to run.
    ///
    /// # Errors
    /// An unknown operator.
    pub(crate) fn operators(&self) -> Result<Vec<Operator>, CliError> {
        let default = match self.cluster {
            ClusterMode::Full => "all",
            ClusterMode::Core | ClusterMode::None => "none",
        };
        operators::parse_list(self.operators.as_deref().unwrap_or(default))
    }
}

/// Parses the command line of the process. Prints help or a version, and exits, if requested.
///
/// # Errors
/// A usage error.
pub(crate) fn parse_or_exit<P: Parser>() -> Result<P, CliError> {
    P::try_parse().map_err(|error| match error.kind() {
        // clap prints these to stdout with exit code 0; they are results, not errors.
        DisplayHelp | DisplayVersion | DisplayHelpOnMissingArgumentOrSubcommand => error.exit(),
        _ => {
            let mut command = P::command();
            command.build();
            let name = command.get_bin_name().unwrap_or("bellerophon");
            CliError::Usage(in_one_line(&error)).with_hint(&format!("see `{name} --help`"))
        }
    })
}

/// The message of a clap error without its usage, as one line.
fn in_one_line(error: &clap::Error) -> String {
    let text = error.render().to_string();
    // An error is one line on stderr; the usage is what --help prints.
    let message = text.split("\n\nUsage:").next().unwrap_or_default();
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let lines: Vec<&str> = message
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty())
        .collect();
    lines.join(" ")
}

fn workers(text: &str) -> Result<usize, &'static str> {
    text.parse()
        .ok()
        .filter(|workers| (1..=1000).contains(workers))
        .ok_or("not a number from 1 to 1000")
}

/// Accepts only characters that need no escaping in a URL.
pub(crate) fn object(text: &str) -> Result<String, &'static str> {
    // Names of Kubernetes objects have no other characters, except in RBAC, so nothing needs
    // escaping.
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-./:".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        Ok(text.to_owned())
    } else {
        Err("not a name, such as web or deployment/web")
    }
}

/// An IP address and a port.
pub(crate) fn address(text: &str) -> Result<SocketAddr, &'static str> {
    text.parse()
        .map_err(|_| "not an IP address and a port, such as 127.0.0.1:6443 or [::1]:0")
}

/// An address, or `none`.
fn page_address(text: &str) -> Result<PageAddress, &'static str> {
    match text {
        "none" => Ok(PageAddress::None),
        text => address(text).map(PageAddress::Served),
    }
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

    #[test]
    fn nodes_need_a_full_cluster() {
        type Expected = Result<Option<(Level, usize)>, ()>;
        let cases: &[(&[&str], Expected)] = &[
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
        for (line, expected) in cases {
            let parsed = Arguments::try_parse_from([&["bellerophon", "up"], *line].concat())
                .expect("a command line");
            let Command::Up(options) = parsed.command else {
                panic!("not `up`")
            };
            assert_eq!(options.cluster().map_err(|_| ()), *expected, "{line:?}");
        }
    }

    #[test]
    fn images_need_the_process_runtime() {
        let cases: &[(&[&str], Result<bool, ()>)] = &[
            (&[], Ok(false)),
            (&["--runtime", "process"], Ok(true)),
            (&["--runtime", "process", "--image", "a=b"], Ok(true)),
            (&["--image", "a=b"], Err(())),
            (&["--images", "images.yaml"], Err(())),
            (&["--runtime", "process", "--cluster", "core"], Err(())),
        ];
        for (line, expected) in cases {
            let parsed = Arguments::try_parse_from([&["bellerophon", "up"], *line].concat())
                .expect("a command line");
            let Command::Up(options) = parsed.command else {
                panic!("not `up`")
            };
            let found = options.runs_processes().map_err(|_| ());
            assert_eq!(found, *expected, "{line:?}");
        }
    }

    #[test]
    fn actions_need_the_page() {
        let loopback = |port: u16| Ok(Some(([127, 0, 0, 1], port).into()));
        type Expected = Result<Option<SocketAddr>, ()>;
        let cases: &[(&[&str], Expected)] = &[
            (&[], loopback(0)),
            (
                &["--page", "127.0.0.1:8080", "--page-may-act"],
                loopback(8080),
            ),
            (&["--page", "none"], Ok(None)),
            (&["--cluster", "none"], Ok(None)),
            (&["--page", "none", "--page-may-act"], Err(())),
        ];
        for (line, expected) in cases {
            let parsed = Arguments::try_parse_from([&["bellerophon", "up"], *line].concat())
                .expect("a command line");
            let Command::Up(options) = parsed.command else {
                panic!("not `up`")
            };
            let found = options.page_address().map_err(|_| ());
            assert_eq!(found, *expected, "{line:?}");
        }
    }

    #[test]
    fn operators_run_by_default_in_full_clusters_only() {
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
        for (line, expected) in cases {
            let parsed = Arguments::try_parse_from([&["bellerophon", "up"], *line].concat())
                .expect("a command line");
            let Command::Up(options) = parsed.command else {
                panic!("not `up`")
            };
            assert_eq!(
                options.operators().ok().map(|operators| operators.len()),
                *expected,
                "{line:?}"
            );
        }
    }

    #[test]
    fn usage_errors_are_one_line() {
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
                "invalid value 'here' for '--listen <IP:PORT>': \
                 not an IP address and a port, such as 127.0.0.1:6443 or [::1]:0",
            ),
            (
                &["trace", "a b"],
                "invalid value 'a b' for '[OBJECT]': not a name, such as web or deployment/web",
            ),
            (&["down"], "unrecognized subcommand 'down'"),
            (
                &["kubeconfig", "--service-account", "robot"],
                "invalid value 'robot' for '--service-account <NAMESPACE/NAME>': \
                 not a namespace and a name, such as default/robot",
            ),
        ];
        for (line, expected) in cases {
            let error = Arguments::try_parse_from([&["bellerophon"], *line].concat())
                .expect_err("a usage error");
            let message = in_one_line(&error);
            assert!(message.starts_with(expected), "{line:?}: {message}");
            assert!(!message.contains('\n'), "{line:?}: {message}");
        }
    }
}
