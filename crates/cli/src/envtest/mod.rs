//! `bellerophon envtest`: a directory of test binaries for `KUBEBUILDER_ASSETS`.
//!
//! In: where, and which controllers run. Out: `ROOT/k8s/VERSION-OS-ARCH/` with `kube-apiserver`,
//! `etcd` and `kubectl`, all of them this binary. This layout is found by controller-runtime,
//! kubebuilder's suites, setup-envtest and kube-api-test.
//!
//! [`main`] is the entry of these programs: the file name of the first argument selects one.

mod etcd; // the process next to the API server
mod etcd_client; // the etcd calls of the API server
mod flags; // command lines of Go programs
mod kube_apiserver; // the API server
mod kubectl; // the kubectl commands that environments run
mod layout; // the directory
mod parent; // the end of the process that started this one
mod program; // shared by the programs
mod server_flags; // the flags of kube-apiserver

use std::{
    ffi::OsStr,
    io::{self, Write},
    path::{Path, PathBuf},
    process::ExitCode,
};

use bellerophon_cluster::Level;
use clap::{Args, ValueEnum};

use self::layout::Layout;
use crate::error::CliError;

/// The release whose API the embedded server has.
const KUBERNETES_VERSION: &str = "1.36.4";

#[derive(Debug, Args)]
pub(crate) struct EnvtestOptions {
    /// What to print: an overview, the path without a newline, or a line for the shell
    #[arg(long, value_name = "WHAT", default_value = "overview")]
    print: Print,

    /// The controllers that run in addition to the API server
    #[arg(long, value_name = "PROFILE", default_value = "none")]
    profile: Profile,

    /// The directory to create k8s/VERSION-OS-ARCH in; default: the user's data directory
    #[arg(long, value_name = "DIR")]
    bin_dir: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Print {
    /// What was created, and how to use it
    Overview,
    /// The directory, without a newline
    Path,
    /// `export KUBEBUILDER_ASSETS=…`
    Env,
}

/// The controllers of a control plane for tests, named as in `up --cluster`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Profile {
    /// None, as existing suites expect
    #[default]
    None,
    /// Garbage collector, namespaces, service accounts
    Core,
}

impl Profile {
    const ALL: [Self; 2] = [Self::None, Self::Core];

    fn name(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Core => "core",
        }
    }

    /// The level of the cluster; `None` for an API server only.
    fn level(self) -> Option<Level> {
        match self {
            Self::None => None,
            Self::Core => Some(Level::Core),
        }
    }
}

/// Creates the directory, and prints it.
///
/// # Errors
/// The directory cannot be written.
pub(crate) fn envtest(options: &EnvtestOptions, out: &mut impl Write) -> Result<(), CliError> {
    let root = match &options.bin_dir {
        Some(directory) => directory.clone(),
        None => layout::default_root()?,
    };
    let layout = Layout::new(&root, options.profile);
    let step = format!("cannot create {}", layout.directory().display());
    let directory = layout.create().map_err(|error| {
        CliError::context(&step)(error).with_hint("name another directory with --bin-dir")
    })?;
    let path = directory.display();
    let export = format!("export KUBEBUILDER_ASSETS='{path}'");
    let written = match options.print {
        Print::Path => write!(out, "{path}"),
        Print::Env => writeln!(out, "{export}"),
        Print::Overview => writeln!(
            out,
            "{path}\n  kube-apiserver, etcd, kubectl: Kubernetes {KUBERNETES_VERSION}, controllers: \
             {}\n\nTo use it in this shell:\n  {export}\nIn a project of kubebuilder, `make test` \
             also needs:\n  export ENVTEST_USE_ENV=1\nFor kube-api-test (Java):\n  export \
             KUBE_API_TEST_DIR='{}' KUBE_API_TEST_API_SERVER_VERSION={KUBERNETES_VERSION}",
            options.profile.name(),
            layout.root().display(),
        ),
    };
    written.map_err(CliError::context("cannot write to stdout"))
}

/// Runs a program of the directory; `None` if this process is none of them.
pub(crate) fn main(mut arguments: impl Iterator<Item = std::ffi::OsString>) -> Option<ExitCode> {
    let program = PathBuf::from(arguments.next()?);
    let name = program.file_name().and_then(OsStr::to_str)?;
    let name = name.strip_suffix(".exe").unwrap_or(name);
    if !layout::PROGRAMS.contains(&name) {
        return None;
    }
    let arguments: Vec<String> = arguments
        .map(|argument| argument.to_string_lossy().into_owned())
        .collect();
    let result = match name {
        "etcd" => etcd::main(arguments),
        "kubectl" => kubectl::main(arguments),
        _ => kube_apiserver::main(arguments, profile_of(&program)),
    };
    Some(match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            // A closed stderr is not a reason to fail differently.
            let _flushed = io::stdout().flush();
            error.report()
        }
    })
}

/// The profile of the directory of a program.
fn profile_of(program: &Path) -> Profile {
    let directory = program.parent().unwrap_or(Path::new("."));
    Layout::profile_in(directory)
}
