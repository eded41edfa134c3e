//! `bellerophon manifests`: what a cluster is given so that operators can run there.
//! Out: YAML documents on stdout, in the order in which they are to be applied.

use std::io::Write;

use bellerophon_operator::{Installation, manifests};
use serde_json::Value;

use crate::{arguments::ManifestsArguments, failure::Failure, operators};

/// Prints manifests.
///
/// # Errors
/// A name that no operator has, or nobody can be told.
pub(crate) fn print(arguments: &ManifestsArguments, out: &mut impl Write) -> Result<(), Failure> {
    let installation = Installation {
        image: arguments.image.clone(),
        service_monitor: arguments.service_monitor,
        ..Installation::default()
    };
    let mut printed: Vec<Value> = Vec::new();
    for operator in operators::named(&arguments.operators)? {
        for object in manifests(&operator, &installation) {
            let wanted = !arguments.crds_only || object["kind"] == "CustomResourceDefinition";
            if wanted && !printed.contains(&object) {
                printed.push(object);
            }
        }
    }
    for object in &printed {
        let text = serde_saphyr::to_string(object).map_err(Failure::of)?;
        write!(out, "---\n{text}").map_err(Failure::caused_by("cannot write to stdout"))?;
    }
    out.flush()
        .map_err(Failure::caused_by("cannot write to stdout"))
}
