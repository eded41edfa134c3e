//! The options of `bellerophon up`: which cluster, nodes, operators and page.

use std::{net::SocketAddr, path::PathBuf};

use bellerophon_cluster::Level;
use bellerophon_operator::Operator;
use clap::{Args, ValueEnum};

use crate::{
    error::CliError,
    flags::{OutputFormat, address},
    operators,
};

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

/// An address, or `none`.
fn page_address(text: &str) -> Result<PageAddress, &'static str> {
    match text {
        "none" => Ok(PageAddress::None),
        text => address(text).map(PageAddress::Served),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;

    use super::*;
    use crate::arguments::{Arguments, Command};

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
}
