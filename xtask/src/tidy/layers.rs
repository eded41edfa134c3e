//! Dependencies between crates, by a table of allowed edges.
//!
//! Input: cargo metadata. Output: edges that are not in the table.
//!
//! Guarantee: toolkit and API server do not depend on each other; their tests may.

use std::{path::Path, process::Command};

use serde_json::Value;

use super::Finding;

/// A dependency of one workspace member on another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Edge {
    pub(super) from: String,
    pub(super) to: String,
    /// Whether it is a dev-dependency.
    pub(super) dev: bool,
}

/// The workspace, as cargo metadata describes it.
pub(super) struct Workspace {
    /// The root file of every target, relative to the root of the repository.
    pub(super) roots: Vec<String>,
    pub(super) edges: Vec<Edge>,
}

const KINDS: &str = "bellerophon-kinds";
const KINDS_DERIVE: &str = "bellerophon-kinds-derive";
const TOOLKIT: &str = "bellerophon";
const APIMACHINERY: &str = "bellerophon-apimachinery";
const CODEC: &str = "bellerophon-codec";
const STORAGE: &str = "bellerophon-storage";
const CRD: &str = "bellerophon-crd";
const RESOURCES: &str = "bellerophon-resources";
const APISERVER: &str = "bellerophon-apiserver";
const CEL: &str = "bellerophon-cel";
const STREAMING: &str = "bellerophon-streaming";
const CLUSTER: &str = "bellerophon-cluster";
const PROCESS_RUNTIME: &str = "bellerophon-process-runtime";
const PAGE: &str = "bellerophon-page";
const TESTKIT: &str = "bellerophon-testkit";
const CONFORMANCE: &str = "bellerophon-conformance";
const CLI: &str = "bellerophon-cli";
const STORE: &str = "bellerophon-store";
const STORE_CLIENT: &str = "bellerophon-store-client";
const LINEARIZABILITY: &str = "bellerophon-linearizability";
const HERO: &str = "bellerophon-hero";
const FUZZ: &str = "bellerophon-fuzz";
const OPERATOR: &str = "bellerophon-operator";
const OPERATORS: &[&str] = &[
    "bellerophon-icecream",
    "bellerophon-secsynch",
    "bellerophon-fruit",
    "bellerophon-simple",
    "bellerophon-reboot",
    HERO,
];

/// The allowed dependencies of each crate.
const ALLOWED: &[(&str, &[&str])] = &[
    (
        CLI,
        &[
            OPERATOR,
            CLUSTER,
            TESTKIT,
            APISERVER,
            TOOLKIT,
            PAGE,
            PROCESS_RUNTIME,
            STORE,
            STORE_CLIENT,
        ],
    ),
    (OPERATOR, &[TOOLKIT]),
    (PAGE, &[TOOLKIT]),
    (TESTKIT, &[OPERATOR, CLUSTER, APISERVER, TOOLKIT]),
    (
        CLUSTER,
        &[TOOLKIT, PROCESS_RUNTIME, STREAMING, RESOURCES, APIMACHINERY],
    ),
    (PROCESS_RUNTIME, &[]),
    (STORE, &[STORE_CLIENT]),
    (STORE_CLIENT, &[]),
    (LINEARIZABILITY, &[]),
    (STREAMING, &[]),
    (CONFORMANCE, &[APISERVER]),
    (FUZZ, &[APISERVER, CEL]),
    (TOOLKIT, &[KINDS, KINDS_DERIVE]),
    (KINDS, &[]),
    (KINDS_DERIVE, &[]),
    (
        APISERVER,
        &[RESOURCES, CRD, STORAGE, CODEC, CEL, APIMACHINERY],
    ),
    (RESOURCES, &[CODEC, CEL, APIMACHINERY]),
    (CRD, &[CODEC, CEL, APIMACHINERY]),
    (STORAGE, &[CODEC, APIMACHINERY]),
    (CODEC, &[APIMACHINERY]),
    (CEL, &[]),
    (APIMACHINERY, &[]),
    ("hero-kube-runtime", &[TOOLKIT, OPERATOR]),
    ("xtask", &[]),
];

/// Crates that every crate may have as dev-dependencies.
const FOR_TESTS: &[&str] = &[TESTKIT, CLUSTER, APISERVER, CONFORMANCE, LINEARIZABILITY];

fn is_operator(name: &str) -> bool {
    OPERATORS.contains(&name)
}

fn is_allowed(edge: &Edge) -> bool {
    let Edge { from, to, dev } = edge;
    // A crate may depend on itself to enable a feature in its tests.
    if *dev && from == to {
        return true;
    }
    if *dev && FOR_TESTS.contains(&to.as_str()) {
        return true;
    }
    if is_operator(from) {
        return [TOOLKIT, OPERATOR].contains(&to.as_str())
            || (from == HERO
                && ([STORE_CLIENT, APIMACHINERY].contains(&to.as_str()) || (*dev && to == STORE)));
    }
    if is_operator(to) {
        return [CLI, FUZZ].contains(&from.as_str()) || (to == HERO && from == "hero-kube-runtime");
    }
    ALLOWED
        .iter()
        .any(|(name, below)| name == from && below.contains(&to.as_str()))
}

/// Dependencies that are not in the table.
pub(super) fn forbidden(edges: &[Edge]) -> Vec<Finding> {
    let forbidden = edges.iter().filter(|edge| !is_allowed(edge));
    forbidden
        .map(|Edge { from, to, .. }| Finding {
            file: "Cargo.toml".to_owned(),
            line: 0,
            problem: format!("{from} must not depend on {to}"),
            fix: "move the code to a lower layer, \
                  or add the edge to xtask/src/tidy/layers.rs and ARCHITECTURE.md",
        })
        .collect()
}

impl Workspace {
    /// Runs cargo metadata.
    pub(super) fn read(root: &Path) -> Result<Self, String> {
        let output = Command::new(env!("CARGO"))
            .args([
                "metadata",
                "--no-deps",
                "--offline",
                "--format-version",
                "1",
            ])
            .current_dir(root)
            .output()
            .map_err(|e| format!("cannot start cargo metadata: {e}"))?;
        if !output.status.success() {
            return Err(format!(
                "cargo metadata failed: {}",
                String::from_utf8_lossy(&output.stderr).trim()
            ));
        }
        let metadata: Value = serde_json::from_slice(&output.stdout)
            .map_err(|e| format!("cannot read cargo metadata: {e}"))?;
        Ok(Self {
            roots: roots(&metadata, root),
            edges: edges(&metadata),
        })
    }
}

fn roots(metadata: &Value, root: &Path) -> Vec<String> {
    let targets = list(metadata, "packages").flat_map(|package| list(package, "targets"));
    let sources = targets.filter_map(|target| target["src_path"].as_str());
    sources
        .filter_map(|source| Path::new(source).strip_prefix(root).ok())
        .map(|path| path.to_string_lossy().replace('\\', "/"))
        .collect()
}

fn edges(metadata: &Value) -> Vec<Edge> {
    let mut edges = Vec::new();
    for package in list(metadata, "packages") {
        // Only workspace members are path dependencies.
        for dependency in
            list(package, "dependencies").filter(|dependency| dependency["path"].is_string())
        {
            let name = |value: &Value| value["name"].as_str().unwrap_or_default().to_owned();
            edges.push(Edge {
                from: name(package),
                to: name(dependency),
                dev: dependency["kind"] == "dev",
            });
        }
    }
    edges
}

fn list<'a>(value: &'a Value, key: &str) -> impl Iterator<Item = &'a Value> {
    value[key].as_array().into_iter().flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_downward_edges_are_allowed() {
        let cases = [
            (CLI, APISERVER, false, true),
            (CLI, "bellerophon-simple", false, true),
            (FUZZ, "bellerophon-reboot", false, true),
            (FUZZ, TOOLKIT, false, false),
            ("bellerophon-simple", TOOLKIT, false, true),
            ("bellerophon-simple", TESTKIT, true, true),
            ("bellerophon-simple", TESTKIT, false, false),
            (CLUSTER, APISERVER, true, true),
            (CLUSTER, APISERVER, false, false),
            (APISERVER, TOOLKIT, false, false),
            (APISERVER, TOOLKIT, true, false),
            (APISERVER, CONFORMANCE, true, true),
            (APISERVER, RESOURCES, false, true),
            (RESOURCES, CRD, false, false),
            (CRD, RESOURCES, false, false),
            (STORAGE, APISERVER, false, false),
            (APIMACHINERY, CODEC, false, false),
            (CLUSTER, PROCESS_RUNTIME, false, true),
            (PROCESS_RUNTIME, TOOLKIT, false, false),
            (TOOLKIT, APISERVER, false, false),
            (TOOLKIT, APISERVER, true, true),
            (TOOLKIT, KINDS, false, true),
            (KINDS, TOOLKIT, false, false),
            (STREAMING, CLUSTER, false, false),
            (TESTKIT, OPERATOR, false, true),
            (TOOLKIT, "bellerophon-simple", false, false),
            ("bellerophon-new", TOOLKIT, false, false),
        ];
        for (from, to, dev, allowed) in cases {
            let found = forbidden(&[Edge {
                from: from.to_owned(),
                to: to.to_owned(),
                dev,
            }]);
            assert_eq!(found.is_empty(), allowed, "{from} -> {to}, dev: {dev}");
        }
    }
}
