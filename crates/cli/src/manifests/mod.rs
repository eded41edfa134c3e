//! `bellerophon manifests`: the objects that install operators in a cluster.
//!
//! Output: YAML documents on stdout, in the order in which they are to be applied; or a directory
//! with a kustomize base or an OLM bundle of the same objects.

mod bundle; // a bundle for the Operator Lifecycle Manager
mod kustomize; // a base for kustomize

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use bellerophon_operator::{Installation, manifests};
use clap::{Args, ValueEnum};
use serde::Serialize;
use serde_json::Value;

use crate::{error::CliError, operators};

#[derive(Debug, Args)]
pub(crate) struct ManifestsArguments {
    /// A comma-separated list of operators, or all
    #[arg(value_name = "OPERATOR|all")]
    operators: String,

    /// Print only CustomResourceDefinitions
    #[arg(long)]
    crds_only: bool,

    /// The container image of this binary
    #[arg(long, value_name = "IMAGE", default_value = concat!("bellerophon:", env!("CARGO_PKG_VERSION")))]
    image: String,

    /// Include a ServiceMonitor for the Prometheus Operator
    #[arg(long)]
    service_monitor: bool,

    /// Include the webhooks of operators that have some
    #[arg(long)]
    webhooks: bool,

    /// The form of the manifests
    #[arg(long, value_name = "FORMAT", default_value = "yaml", requires_ifs = [("kustomize", "out"), ("olm", "out")])]
    format: ManifestsFormat,

    /// The directory of the files of --format kustomize and olm, which is created
    #[arg(long, value_name = "DIR")]
    out: Option<PathBuf>,
}

/// The form of manifests.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum ManifestsFormat {
    /// YAML documents on stdout, for `kubectl apply`
    Yaml,
    /// A kustomize base: kustomization.yaml and its resources
    Kustomize,
    /// A bundle of the Operator Lifecycle Manager: registry+v1
    Olm,
}

/// A file to write: its path in the directory, and its text.
#[derive(Debug, PartialEq, Eq)]
struct ManifestFile {
    path: String,
    text: String,
}

impl ManifestFile {
    /// A file of YAML documents.
    fn yaml<'a>(
        path: impl Into<String>,
        documents: impl IntoIterator<Item = &'a Value>,
    ) -> Result<Self, CliError> {
        let documents: Result<Vec<String>, CliError> = documents.into_iter().map(yaml).collect();
        Ok(Self {
            path: path.into(),
            text: documents?.join("---\n"),
        })
    }
}

fn yaml(document: &impl Serialize) -> Result<String, CliError> {
    serde_saphyr::to_string(document).map_err(CliError::new)
}

/// Prints or writes manifests.
///
/// # Errors
/// An unknown operator, an operator that the format cannot install, or the output cannot be
/// written.
pub(crate) fn print(arguments: &ManifestsArguments, out: &mut impl Write) -> Result<(), CliError> {
    let installation = Installation {
        image: arguments.image.clone(),
        service_monitor: arguments.service_monitor,
        webhooks: arguments.webhooks,
        ..Installation::default()
    };
    let mut objects: Vec<Value> = Vec::new();
    let operators = operators::parse_list(&arguments.operators)?;
    for operator in &operators {
        for object in manifests(operator, &installation) {
            let is_selected = !arguments.crds_only || object["kind"] == "CustomResourceDefinition";
            // Operators may share objects, such as the namespace they are installed into.
            if is_selected && !objects.contains(&object) {
                objects.push(object);
            }
        }
    }
    let files = match arguments.format {
        ManifestsFormat::Yaml => return print_yaml(&objects, out),
        ManifestsFormat::Kustomize => kustomize::files(&objects)?,
        ManifestsFormat::Olm => {
            let package = match operators.as_slice() {
                [operator] => format!("bellerophon-{}", operator.name),
                _ => "bellerophon".to_owned(),
            };
            let summaries = operators.iter().map(|operator| operator.summary);
            let summaries: Vec<&str> = summaries.collect();
            bundle::files(&package, &summaries, &arguments.image, &objects)?
        }
    };
    let directory = arguments.out.as_deref().ok_or_else(|| {
        CliError::Usage("this format is a directory of files".to_owned())
            .with_hint("name it with --out DIR")
    })?;
    write_files(directory, &files)?;
    let written = writeln!(out, "{}: {} files", directory.display(), files.len());
    written.map_err(CliError::context("cannot write to stdout"))
}

fn print_yaml(objects: &[Value], out: &mut impl Write) -> Result<(), CliError> {
    for object in objects {
        let text = yaml(object)?;
        write!(out, "---\n{text}").map_err(CliError::context("cannot write to stdout"))?;
    }
    out.flush()
        .map_err(CliError::context("cannot write to stdout"))
}

fn write_files(directory: &Path, files: &[ManifestFile]) -> Result<(), CliError> {
    for file in files {
        let path = directory.join(&file.path);
        let step = format!("cannot write {}", path.display());
        let parent = path.parent().unwrap_or(directory);
        fs::create_dir_all(parent)
            .and_then(|()| fs::write(&path, &file.text))
            .map_err(CliError::context(&step))?;
    }
    Ok(())
}
