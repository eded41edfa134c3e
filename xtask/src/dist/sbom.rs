//! The software bill of materials: CycloneDX 1.5 in JSON.
//!
//! Input: `cargo metadata` and Cargo.lock. Output: the packages that are compiled into the program or
//! run while it is built, with licenses, checksums and dependencies. Packages that only tests need are
//! not in it.
//!
//! Guarantee: it has no time and no random number, so that the same sources give the same text.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    process::Command,
};

use serde_json::{Value, json};

/// The package of the program.
const PROGRAM: &str = "bellerophon-cli";

/// The bill of materials of the program for a target.
///
/// # Errors
/// Cargo fails, or its output has no such program.
pub(super) fn generate(root: &Path, target: &str) -> Result<String, String> {
    let mut command = Command::new(env!("CARGO"));
    command
        .args(["metadata", "--format-version", "1", "--locked"])
        .args(["--filter-platform", target])
        .current_dir(root);
    let metadata: Value = serde_json::from_slice(&super::output(&mut command)?)
        .map_err(|error| format!("cargo metadata: {error}"))?;
    let lock = fs::read_to_string(root.join("Cargo.lock"))
        .map_err(|error| format!("cannot read Cargo.lock: {error}"))?;
    let bom = bill(&metadata, &checksums(&lock))?;
    let text = serde_json::to_string_pretty(&bom).map_err(|error| error.to_string())?;
    Ok(text + "\n")
}

/// The checksums of Cargo.lock, by name and version.
fn checksums(lock: &str) -> BTreeMap<(String, String), String> {
    let value = |line: &str, key: &str| {
        let value = line.strip_prefix(key)?.strip_prefix(" = \"")?;
        value.strip_suffix('"').map(str::to_owned)
    };
    let mut checksums = BTreeMap::new();
    for package in lock.split("[[package]]") {
        let find = |key| package.lines().find_map(|line| value(line, key));
        if let (Some(name), Some(version), Some(checksum)) =
            (find("name"), find("version"), find("checksum"))
        {
            checksums.insert((name, version), checksum);
        }
    }
    checksums
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn items(value: &Value) -> impl Iterator<Item = &Value> {
    value.as_array().into_iter().flatten()
}

fn bill(metadata: &Value, checksums: &BTreeMap<(String, String), String>) -> Result<Value, String> {
    let packages: BTreeMap<&str, &Value> = items(&metadata["packages"])
        .map(|package| (text(&package["id"]), package))
        .collect();
    let edges: BTreeMap<&str, Vec<&str>> = items(&metadata["resolve"]["nodes"])
        .map(|node| (text(&node["id"]), dependencies(node)))
        .collect();
    let program = packages
        .iter()
        .find(|(_, package)| package["name"] == PROGRAM)
        .map(|(id, _)| *id)
        .ok_or_else(|| format!("cargo metadata has no package {PROGRAM}"))?;
    let mut reached = BTreeSet::new();
    let mut next = vec![program];
    while let Some(id) = next.pop() {
        if reached.insert(id) {
            next.extend(edges.get(id).into_iter().flatten());
        }
    }
    let purl_of = |id: &&str| packages.get(id).map(|package| purl(package));
    let component_of = |id: &str| {
        packages
            .get(id)
            .map(|package| component(package, checksums))
    };
    let mut root = component_of(program).unwrap_or_default();
    root["type"] = json!("application");
    let mut components: Vec<Value> = reached
        .iter()
        .filter(|id| **id != program)
        .filter_map(|id| component_of(id))
        .collect();
    components.sort_by_key(|component| text(&component["bom-ref"]).to_owned());
    let mut graph: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for id in &reached {
        if let Some(purl) = purl_of(id) {
            let below = edges.get(id).into_iter().flatten();
            graph.insert(purl, below.filter_map(purl_of).collect());
        }
    }
    let dependency = |(purl, below)| json!({"ref": purl, "dependsOn": below});
    Ok(json!({
        "$schema": "http://cyclonedx.org/schema/bom-1.5.schema.json",
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": root},
        "components": components,
        "dependencies": graph.into_iter().map(dependency).collect::<Vec<_>>(),
    }))
}

/// The packages that a package needs to be built and to run; not those of its tests.
fn dependencies(node: &Value) -> Vec<&str> {
    let is_used = |dependency: &&Value| {
        items(&dependency["dep_kinds"]).any(|kind| matches!(text(&kind["kind"]), "" | "build"))
    };
    items(&node["deps"])
        .filter(is_used)
        .map(|dependency| text(&dependency["pkg"]))
        .collect()
}

/// The package URL, which is also the reference within the document.
fn purl(package: &Value) -> String {
    let name = text(&package["name"]);
    // A plus sign starts the build metadata of a version, and is a space in some readers.
    let version = text(&package["version"]).replace('+', "%2B");
    format!("pkg:cargo/{name}@{version}")
}

fn component(package: &Value, checksums: &BTreeMap<(String, String), String>) -> Value {
    let name = text(&package["name"]);
    let version = text(&package["version"]);
    let purl = purl(package);
    let mut component = json!({
        "type": "library",
        "bom-ref": purl,
        "name": name,
        "version": version,
        "purl": purl,
    });
    // The form with a slash is older than SPDX expressions in Cargo.
    let license = text(&package["license"])
        .replace(" / ", " OR ")
        .replace('/', " OR ");
    if !license.is_empty() {
        component["licenses"] = json!([{"expression": license}]);
    }
    if let Some(checksum) = checksums.get(&(name.to_owned(), version.to_owned())) {
        component["hashes"] = json!([{"alg": "SHA-256", "content": checksum}]);
    }
    component
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sbom() -> Value {
        let text = generate(&crate::root(), "x86_64-unknown-linux-gnu").expect("an SBOM");
        assert_eq!(
            generate(&crate::root(), "x86_64-unknown-linux-gnu").as_deref(),
            Ok(text.as_str()),
            "it is deterministic"
        );
        serde_json::from_str(&text).expect("JSON")
    }

    #[test]
    fn sbom_of_the_program_is_complete_and_consistent() {
        let sbom = sbom();
        assert_eq!(sbom["bomFormat"], "CycloneDX");
        assert_eq!(sbom["metadata"]["component"]["name"], PROGRAM);
        let mut refs = BTreeSet::from([text(&sbom["metadata"]["component"]["bom-ref"])]);
        let mut names = BTreeSet::new();
        for component in items(&sbom["components"]) {
            let name = text(&component["name"]);
            names.insert(name);
            assert!(refs.insert(text(&component["bom-ref"])), "{name} twice");
            assert!(component["licenses"][0]["expression"].is_string(), "{name}");
            let expression = text(&component["licenses"][0]["expression"]);
            assert!(!expression.contains('/'), "{name}: {expression}");
            let is_ours = name.starts_with("bellerophon");
            assert_eq!(component["hashes"].is_null(), is_ours, "{name}");
        }
        let mut described = BTreeSet::new();
        for dependency in items(&sbom["dependencies"]) {
            described.insert(text(&dependency["ref"]));
            for below in items(&dependency["dependsOn"]) {
                assert!(refs.contains(text(below)), "{below} is unknown");
            }
        }
        assert_eq!(described, refs);
        for used in ["tokio", "bellerophon", "ring", "cc"] {
            assert!(names.contains(used), "{used} is missing");
        }
        for unused in ["proptest", "libtest-mimic", "shuttle", "kube-runtime"] {
            assert!(!names.contains(unused), "{unused} is of tests only");
        }
    }
}
