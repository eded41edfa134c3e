//! A kustomize base.
//!
//! Input: the objects of operators. Output: `kustomization.yaml`, and its resources in a file per
//! operator, one for namespaces and one for CustomResourceDefinitions.
//!
//! Guarantee: every object is in exactly one file, and every file is a resource of the base.

use serde_json::{Value, json};

use super::ManifestFile;
use crate::error::CliError;

/// The file of objects that belong to no single operator.
const ROLES: &str = "roles.yaml";

/// The files of the base.
///
/// # Errors
/// An object cannot be encoded.
pub(super) fn files(objects: &[Value]) -> Result<Vec<ManifestFile>, CliError> {
    let mut groups: Vec<(String, Vec<&Value>)> = Vec::new();
    for object in objects {
        let name = file_of(object);
        match groups.iter_mut().find(|(known, _)| *known == name) {
            Some((_, objects)) => objects.push(object),
            None => groups.push((name, vec![object])),
        }
    }
    let resources: Vec<&String> = groups.iter().map(|(name, _)| name).collect();
    let kustomization = json!({
        "apiVersion": "kustomize.config.k8s.io/v1beta1",
        "kind": "Kustomization",
        "resources": resources,
    });
    let mut files = vec![ManifestFile::yaml("kustomization.yaml", [&kustomization])?];
    for (name, objects) in groups {
        files.push(ManifestFile::yaml(name, objects)?);
    }
    Ok(files)
}

fn file_of(object: &Value) -> String {
    match object["kind"].as_str() {
        Some("CustomResourceDefinition") => "crds.yaml".to_owned(),
        Some("Namespace") => "namespaces.yaml".to_owned(),
        _ => match object["metadata"]["labels"]["app.kubernetes.io/name"].as_str() {
            Some(operator) => format!("{operator}.yaml"),
            None => ROLES.to_owned(),
        },
    }
}
