//! `bellerophon new`: a project of an operator.
//!
//! In: a name, and what the custom resource is called. Out: a directory with a project that builds,
//! whose test passes, and that `bellerophon dev` runs.
//!
//! Guarantee: nothing is overwritten; a project that cannot be written completely is not left behind.

mod names; // names of projects, kinds and resources
mod template; // templates and their files

use std::{
    fs, io,
    io::Write,
    path::{Path, PathBuf},
};

use clap::Args;

use self::{
    names::Names,
    template::{GO, GO_WEBHOOK, PYTHON, Parts, RUST, RUST_WEBHOOK, TemplateFile},
};
use crate::error::CliError;

#[derive(Debug, Args)]
pub(crate) struct NewOptions {
    /// The name of the project and of its directory, such as team-controller
    #[arg(value_name = "NAME")]
    name: String,

    /// The API group of the custom resource
    #[arg(long, value_name = "GROUP", default_value = "example.com")]
    group: String,

    /// The kind of the custom resource; default: made of NAME
    #[arg(long, value_name = "KIND")]
    kind: Option<String>,

    /// Reconcile under a finalizer, for what is created outside of the cluster
    #[arg(long)]
    finalizer: bool,

    /// Add a mutating and a validating webhook, and their test
    #[arg(long)]
    webhook: bool,

    /// A checkout of the toolkit; default: the one that this binary was built from, else the
    /// crates of this version
    #[arg(long, value_name = "PATH")]
    toolkit: Option<PathBuf>,

    /// Write the operator in Go, with controller-runtime
    #[arg(long, conflicts_with_all = ["python", "finalizer", "toolkit"])]
    go: bool,

    /// Write the operator in Python, with kopf
    #[arg(long, conflicts_with_all = ["finalizer", "webhook", "toolkit"])]
    python: bool,
}

/// Writes a project.
///
/// # Errors
/// A name that Kubernetes or Cargo refuses, a directory that exists, or a toolkit that is none.
pub(crate) fn new(options: &NewOptions, out: &mut impl Write) -> Result<(), CliError> {
    let names = Names::new(&options.name, &options.group, options.kind.as_deref())?;
    let (language, files) = match options {
        NewOptions {
            go: true,
            webhook: true,
            ..
        } => ("Go", [GO, GO_WEBHOOK].concat()),
        NewOptions { go: true, .. } => ("Go", GO.to_vec()),
        NewOptions { python: true, .. } => ("Python", PYTHON.to_vec()),
        NewOptions { webhook: true, .. } => ("Rust", [RUST, &[RUST_WEBHOOK]].concat()),
        _ => ("Rust", RUST.to_vec()),
    };
    let toolkit = match language {
        "Rust" => toolkit(options.toolkit.as_deref())?,
        _ => None,
    };
    let directory = Path::new(&options.name);
    let parts = Parts {
        finalizer: options.finalizer,
        webhook: options.webhook,
    };
    write_project(directory, &files, |file| {
        template::render(file.text, &names, toolkit.as_deref(), parts)
    })?;
    if let Some(toolkit) = &toolkit {
        // The versions that the toolkit is tested with.
        let lock = fs::read(toolkit.join("Cargo.lock"));
        let written = lock.and_then(|lock| fs::write(directory.join("Cargo.lock"), lock));
        written.map_err(CliError::context("cannot copy the toolkit's Cargo.lock"))?;
    }
    let mut text = format!(
        "{} in {language}: {} {} in {} files\n",
        directory.display(),
        names.group,
        names.kind,
        files.iter().filter(|file| !file.is_hidden()).count(),
    );
    if let Some(toolkit) = &toolkit {
        text.push_str(&format!("toolkit: {}\n", toolkit.display()));
    }
    text.push_str(&format!("next: cd {} && bellerophon dev\n", options.name));
    out.write_all(text.as_bytes())
        .map_err(CliError::context("cannot write to stdout"))
}

/// The checkout of the toolkit, absolute.
fn toolkit(named: Option<&Path>) -> Result<Option<PathBuf>, CliError> {
    let is_toolkit = |path: &Path| path.join("crates/toolkit/Cargo.toml").is_file();
    match named {
        Some(path) => match fs::canonicalize(path) {
            Ok(path) if is_toolkit(&path) => Ok(Some(path)),
            _ => Err(CliError::Usage(format!(
                "--toolkit {}: it has no crates/toolkit",
                path.display()
            ))
            .with_hint("name a checkout of bellerophon")),
        },
        None => {
            let built_from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
            let built_from = fs::canonicalize(built_from).ok();
            Ok(built_from.filter(|path| is_toolkit(path)))
        }
    }
}

fn write_project(
    directory: &Path,
    files: &[TemplateFile],
    render: impl Fn(&TemplateFile) -> String,
) -> Result<(), CliError> {
    let step = format!("cannot create {}", directory.display());
    match fs::create_dir(directory) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
            return Err(CliError::Failed(format!("{} exists", directory.display()))
                .with_hint("choose another name, or remove it"));
        }
        Err(error) => return Err(CliError::context(&step)(error)),
    }
    for file in files {
        let path = directory.join(file.path);
        let written = match path.parent() {
            Some(parent) => fs::create_dir_all(parent),
            None => Ok(()),
        };
        if let Err(error) = written.and_then(|()| fs::write(&path, render(file))) {
            // The directory was made above, so all of it is ours.
            drop(fs::remove_dir_all(directory));
            return Err(CliError::context(&step)(error));
        }
    }
    Ok(())
}
