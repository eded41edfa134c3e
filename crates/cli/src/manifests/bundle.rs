//! A bundle of the Operator Lifecycle Manager, in the format registry+v1.
//!
//! Input: the objects of operators. Output: `manifests/` with a ClusterServiceVersion, the
//! CustomResourceDefinitions and the objects that OLM applies as they are; `metadata/annotations.yaml`;
//! `bundle.Dockerfile` with the same annotations as labels.
//!
//! Guarantee: the permissions of the ClusterServiceVersion are those that the bindings of the objects
//! grant to service accounts. Namespaces, service accounts, roles and bindings are left to OLM, which
//! creates them.

use serde_json::{Map, Value, json};

use super::ManifestFile;
use crate::error::CliError;

const VERSION: &str = env!("CARGO_PKG_VERSION");

/// The channel of a version before 1.0.
const CHANNEL: &str = "alpha";

/// The prefix of the annotations of a bundle.
const ANNOTATION: &str = "operators.operatorframework.io.bundle";

/// The files of the bundle.
///
/// # Errors
/// An object that OLM cannot install, or that cannot be encoded.
pub(super) fn files(
    package: &str,
    summaries: &[&str],
    image: &str,
    objects: &[Value],
) -> Result<Vec<ManifestFile>, CliError> {
    let mut csv = service_version(package, summaries, image, objects)?;
    let mut files = Vec::new();
    for object in objects {
        let kind = text(&object["kind"]);
        let name = text(&object["metadata"]["name"]);
        let path = match kind {
            "CustomResourceDefinition" => format!("manifests/{name}.crd.yaml"),
            "Namespace" | "ServiceAccount" | "ClusterRoleBinding" | "Role" | "RoleBinding"
            | "Deployment" => continue,
            "ClusterRole" if binding_of(objects, "ClusterRoleBinding", name).is_some() => continue,
            "ClusterRole" | "Service" | "ServiceMonitor" => {
                format!("manifests/{name}.{}.yaml", kind.to_lowercase())
            }
            other => return Err(not_in_bundles(other, name)),
        };
        let mut object = object.clone();
        if let Some(metadata) = object["metadata"].as_object_mut() {
            // OLM applies it in the namespace of the operator.
            metadata.remove("namespace");
        }
        files.push(ManifestFile::yaml(path, [&object])?);
    }
    let deployments = deployments(objects);
    if deployments.is_empty() {
        let message = format!("{package} has no Deployment, which a bundle needs");
        return Err(CliError::Usage(message).with_hint("choose an operator with controllers"));
    }
    csv["spec"]["install"] = json!({
        "strategy": "deployment",
        "spec": {
            "clusterPermissions": permissions(objects, "ClusterRoleBinding", "ClusterRole"),
            "permissions": permissions(objects, "RoleBinding", "Role"),
            "deployments": deployments,
        },
    });
    let path = format!("manifests/{package}.clusterserviceversion.yaml");
    files.insert(0, ManifestFile::yaml(path, [&csv])?);
    let annotations = annotations(package);
    let document = json!({"annotations": annotations});
    files.push(ManifestFile::yaml(
        "metadata/annotations.yaml",
        [&document],
    )?);
    files.push(ManifestFile {
        path: "bundle.Dockerfile".to_owned(),
        text: dockerfile(&annotations),
    });
    Ok(files)
}

fn not_in_bundles(kind: &str, name: &str) -> CliError {
    let message = format!("OLM installs no {kind} ({name})");
    CliError::Usage(message).with_hint(
        "leave out the operator or option that needs it, and apply `bellerophon manifests` for it",
    )
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> impl Iterator<Item = &'a Value> {
    objects.iter().filter(move |object| object["kind"] == kind)
}

/// The binding that refers to a role.
fn binding_of<'a>(objects: &'a [Value], kind: &str, role: &str) -> Option<&'a Value> {
    of_kind(objects, kind).find(|binding| binding["roleRef"]["name"] == role)
}

/// The permissions that bindings of a kind grant to service accounts.
fn permissions(objects: &[Value], binding_kind: &str, role_kind: &str) -> Vec<Value> {
    let mut granted: Vec<(String, Vec<Value>)> = Vec::new();
    for role in of_kind(objects, role_kind) {
        let Some(binding) = binding_of(objects, binding_kind, text(&role["metadata"]["name"]))
        else {
            continue;
        };
        let account = text(&binding["subjects"][0]["name"]).to_owned();
        let rules = role["rules"].as_array().cloned().unwrap_or_default();
        match granted.iter_mut().find(|(known, _)| *known == account) {
            Some((_, known)) => known.extend(rules),
            None => granted.push((account, rules)),
        }
    }
    let permission =
        |(account, rules)| json!({"serviceAccountName": account, "rules": Value::Array(rules)});
    granted.into_iter().map(permission).collect()
}

fn deployments(objects: &[Value]) -> Vec<Value> {
    let deployment = |object: &Value| {
        json!({
            "name": object["metadata"]["name"],
            "label": object["metadata"]["labels"],
            "spec": object["spec"],
        })
    };
    of_kind(objects, "Deployment").map(deployment).collect()
}

/// The ClusterServiceVersion, without its install strategy.
fn service_version(
    package: &str,
    summaries: &[&str],
    image: &str,
    objects: &[Value],
) -> Result<Value, CliError> {
    let summary = match summaries {
        [summary] => (*summary).to_owned(),
        _ => format!("{} operators of Bellerophon", summaries.len()),
    };
    let owned: Vec<Value> = of_kind(objects, "CustomResourceDefinition")
        .map(owned)
        .collect();
    let install_mode = |(mode, supported)| json!({"type": mode, "supported": supported});
    let install_modes = [
        ("OwnNamespace", false),
        ("SingleNamespace", false),
        ("MultiNamespace", false),
        ("AllNamespaces", true),
    ];
    Ok(json!({
        "apiVersion": "operators.coreos.com/v1alpha1",
        "kind": "ClusterServiceVersion",
        "metadata": {
            "name": format!("{package}.v{VERSION}"),
            "annotations": {
                "alm-examples": examples(&owned)?,
                "capabilities": "Basic Install",
                "categories": "Developer Tools",
                "containerImage": image,
                "description": summary,
            },
        },
        "spec": {
            "displayName": package,
            "description": summaries.join("\n\n"),
            "version": VERSION,
            "maturity": CHANNEL,
            "provider": {"name": "Bellerophon"},
            "keywords": ["operator", "controller"],
            "installModes": install_modes.map(install_mode),
            "customresourcedefinitions": {"owned": owned},
            "relatedImages": [{"name": "bellerophon", "image": image}],
        },
    }))
}

/// How a ClusterServiceVersion names a CustomResourceDefinition.
fn owned(crd: &Value) -> Value {
    let spec = &crd["spec"];
    let versions = spec["versions"].as_array();
    let stored = versions
        .into_iter()
        .flatten()
        .find(|version| version["storage"] == true);
    let stored = stored.unwrap_or(&Value::Null);
    let kind = text(&spec["names"]["kind"]);
    let description = text(&stored["schema"]["openAPIV3Schema"]["description"]);
    json!({
        "name": crd["metadata"]["name"],
        "kind": kind,
        "version": stored["name"],
        "displayName": kind,
        "description": match description { "" => kind, description => description },
    })
}

/// The samples of the repository that are custom resources of the bundle, as a JSON array.
fn examples(owned: &[Value]) -> Result<String, CliError> {
    let is_owned = |sample: &Value| {
        let matches = |crd: &&Value| {
            let group = text(&crd["name"]).split_once('.').map(|(_, group)| group);
            let version = format!("{}/{}", group.unwrap_or_default(), text(&crd["version"]));
            sample["kind"] == crd["kind"] && sample["apiVersion"] == version.as_str()
        };
        owned.iter().any(|crd| matches(&crd))
    };
    let mut examples: Vec<Value> = Vec::new();
    for text in SAMPLES {
        let documents: Vec<Value> = serde_saphyr::from_multiple(text).map_err(CliError::new)?;
        examples.extend(documents.into_iter().filter(is_owned));
    }
    serde_json::to_string(&examples).map_err(CliError::new)
}

/// The samples that have custom resources.
const SAMPLES: [&str; 6] = [
    include_str!("../../samples/icecream.yaml"),
    include_str!("../../samples/secsynch.yaml"),
    include_str!("../../samples/shero.yaml"),
    include_str!("../../samples/fruit.yaml"),
    include_str!("../../samples/reboot.yaml"),
    include_str!("../../samples/bellerophon.yaml"),
];

fn annotations(package: &str) -> Map<String, Value> {
    let entries = [
        ("mediatype.v1", "registry+v1"),
        ("manifests.v1", "manifests/"),
        ("metadata.v1", "metadata/"),
        ("package.v1", package),
        ("channels.v1", CHANNEL),
        ("channel.default.v1", CHANNEL),
    ];
    let annotation = |(name, value)| (format!("{ANNOTATION}.{name}"), json!(value));
    entries.into_iter().map(annotation).collect()
}

/// The image of the bundle: two directories and the labels.
fn dockerfile(annotations: &Map<String, Value>) -> String {
    let mut lines = vec!["FROM scratch".to_owned()];
    let label = |(name, value): (&String, &Value)| format!("LABEL {name}={}", text(value));
    lines.extend(annotations.iter().map(label));
    lines.push("COPY manifests /manifests/".to_owned());
    lines.push("COPY metadata /metadata/\n".to_owned());
    lines.join("\n")
}
