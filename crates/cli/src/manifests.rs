//! `bellerophon manifests`: the objects that install operators in a cluster.
//!
//! Output: YAML documents on stdout, in the order in which they are to be applied.

use std::io::Write;

use bellerophon_operator::{Installation, manifests};
use serde_json::Value;

use crate::{arguments::ManifestsArguments, error::CliError, operators};

/// Prints manifests.
///
/// # Errors
/// An unknown operator, or stdout cannot be written.
pub(crate) fn print(arguments: &ManifestsArguments, out: &mut impl Write) -> Result<(), CliError> {
    let installation = Installation {
        image: arguments.image.clone(),
        service_monitor: arguments.service_monitor,
        ..Installation::default()
    };
    let mut printed: Vec<Value> = Vec::new();
    for operator in operators::parse_list(&arguments.operators)? {
        for object in manifests(&operator, &installation) {
            let is_selected = !arguments.crds_only || object["kind"] == "CustomResourceDefinition";
            // Operators may share objects, such as the namespace they are installed into.
            if is_selected && !printed.contains(&object) {
                printed.push(object);
            }
        }
    }
    for object in &printed {
        let text = serde_saphyr::to_string(object).map_err(CliError::new)?;
        write!(out, "---\n{text}").map_err(CliError::context("cannot write to stdout"))?;
    }
    out.flush()
        .map_err(CliError::context("cannot write to stdout"))
}
