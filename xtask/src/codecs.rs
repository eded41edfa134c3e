//! Codecs: no operator compiles the decoder or encoder of a built-in Kubernetes type.
//!
//! Decoding and encoding these types is the most expensive code to compile in a controller, so
//! `crates/kinds` compiles it once. `Api<K>`, `serde_json::from_value` and the like compile it
//! again in the crate that uses them.
//!
//! Inputs: the libraries of the operators. Output: the codecs that they contain.
//! Guarantee: symbols of both mangling schemes are recognised; other tools than cargo are not
//! needed.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use serde_json::Value;

/// The packages whose libraries must not contain codecs.
const PACKAGES: &[&str] = &[
    "bellerophon-operator",
    "bellerophon-fruit",
    "bellerophon-hero",
    "bellerophon-icecream",
    "bellerophon-reboot",
    "bellerophon-secsynch",
    "bellerophon-simple",
];

/// The modules of k8s-openapi with built-in kinds and their parts. The types of `apimachinery`,
/// such as `ObjectMeta` and `Condition`, are parts of custom resources too.
const BUILT_IN: &[&str] = &["api", "apiextensions_apiserver"];

/// The number of codecs of a package that an error names.
const SHOWN_MAX: usize = 3;

/// Builds the libraries of the operators and checks that they contain no codec of a built-in type.
///
/// # Errors
/// The build failed, or the codecs that a library contains.
pub fn check(root: &Path) -> Result<(), String> {
    let mut problems = Vec::new();
    for (package, rlib) in build(root)? {
        let bytes = fs::read(&rlib).map_err(|e| format!("cannot read {}: {e}", rlib.display()))?;
        let codecs = codecs(&bytes);
        if !codecs.is_empty() {
            let first: Vec<&str> = codecs.iter().take(SHOWN_MAX).map(String::as_str).collect();
            let count = codecs.len();
            problems.push(format!(
                "{package} compiles {count} codecs: {}",
                first.join(", ")
            ));
        }
    }
    if problems.is_empty() {
        return Ok(());
    }
    problems.push(
        "use ReconcileClient, Lister, Index or bellerophon::kinds::{decode, encode} instead of \
         kube::Api and serde_json, and #[kube(crates(serde_json = \
         \"bellerophon_operator::crd_json\"))] for custom resources"
            .to_owned(),
    );
    Err(problems.join("\n"))
}

/// Builds the libraries, and returns the package and path of each.
///
/// They are built with optimisation: without it, rustc links generic code that a dependency has
/// instantiated already, so a second codec would not be visible.
fn build(root: &Path) -> Result<Vec<(&'static str, PathBuf)>, String> {
    let mut command = Command::new(env!("CARGO"));
    command.args([
        "build",
        "--lib",
        "--message-format",
        "json-render-diagnostics",
    ]);
    for package in PACKAGES {
        let optimised = format!("profile.dev.package.{package}.opt-level=2");
        command.args(["--package", package, "--config", &optimised]);
    }
    let output = command
        .current_dir(root)
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| format!("cannot start cargo: {e}"))?;
    if !output.status.success() {
        return Err("the libraries of the operators cannot be built, see above".to_owned());
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let built: Vec<_> = messages.lines().filter_map(rlib).collect();
    match PACKAGES
        .iter()
        .find(|package| !built.iter().any(|(built, _)| built == *package))
    {
        Some(package) => Err(format!("cargo built no library of {package}")),
        None => Ok(built),
    }
}

/// The package and the library that a message of cargo names.
fn rlib(message: &str) -> Option<(&'static str, PathBuf)> {
    let message: Value = serde_json::from_str(message).ok()?;
    if message["reason"] != "compiler-artifact" {
        return None;
    }
    let target = message["target"]["name"].as_str()?.replace('_', "-");
    let package = PACKAGES.iter().find(|package| **package == target)?;
    let files = message["filenames"].as_array()?.iter();
    let rlib = files
        .filter_map(Value::as_str)
        .find(|file| file.ends_with(".rlib"))?;
    Some((package, rlib.into()))
}

/// The codecs whose symbols an object file or archive contains.
fn codecs(bytes: &[u8]) -> BTreeSet<String> {
    let is_symbol = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.$".contains(byte);
    bytes
        .split(|byte| !is_symbol(byte))
        .filter(|symbol| symbol.starts_with(b"_ZN") || symbol.starts_with(b"_R"))
        .filter_map(|symbol| codec(std::str::from_utf8(symbol).ok()?))
        .collect()
}

/// The codec that a mangled symbol belongs to.
fn codec(symbol: &str) -> Option<String> {
    let codec = if symbol.contains("Deserialize") && symbol.contains("visit_map") {
        "decoder"
    } else if symbol.contains("Serialize") && symbol.contains("9serialize") {
        "encoder"
    } else {
        return None;
    };
    let (_, rest) = symbol.split_once("k8s_openapi")?;
    let path = path(rest);
    // The first segment is the version of the API: v1_36.
    let is_built_in = path.get(1).is_some_and(|module| BUILT_IN.contains(module));
    is_built_in.then(|| format!("{codec} of {}", path[1..].join("::")))
}

/// The segments of the path that follows the name of a crate in a mangled symbol: `..v1..Pod`, or
/// `2v13Pod` with the length of each.
fn path(rest: &str) -> Vec<&str> {
    if let Some(rest) = rest.strip_prefix("..") {
        let end = rest.find('$').unwrap_or(rest.len());
        return rest[..end].split("..").collect();
    }
    let mut segments = Vec::new();
    let mut rest = rest;
    loop {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let Ok(length) = rest[..digits].parse::<usize>() else {
            return segments;
        };
        let Some(segment) = rest[digits..].get(..length) else {
            return segments;
        };
        segments.push(segment);
        rest = &rest[digits + length..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DECODER: &str = "_ZN150_$LT$$LT$k8s_openapi..v1_36..api..apps..v1..deployment..Deployment\
        $u20$as$u20$serde_core..de..Deserialize$GT$..deserialize..Visitor$u20$as$u20$\
        serde_core..de..Visitor$GT$9visit_map17h04a9fa7c62cdb926E";

    #[test]
    fn codecs_of_built_in_types_are_found_in_both_manglings() {
        let deployment = "api::apps::v1::deployment::Deployment";
        assert_eq!(codec(DECODER), Some(format!("decoder of {deployment}")));
        let encoder = "_ZN120_$LT$k8s_openapi..v1_36..api..apps..v1..deployment..Deployment\
            $u20$as$u20$serde_core..ser..Serialize$GT$9serialize17h04a9fa7c62cdb926E";
        assert_eq!(codec(encoder), Some(format!("encoder of {deployment}")));
        let v0 = "_RINvXNvXsNtNtNtNtNtCsabc_11k8s_openapi5v1_363api4apps2v110deployment\
            10DeploymentNtNtCs1_10serde_core2de11Deserialize11deserialize7VisitorNtB_7Visitor\
            9visit_mapNtNtCs2_10serde_json2de9MapAccessE";
        assert_eq!(codec(v0), Some(format!("decoder of {deployment}")));
    }

    #[test]
    fn codecs_of_metadata_and_other_functions_are_allowed() {
        for symbol in [
            DECODER.replace("api..apps", "apimachinery..pkg"),
            DECODER.replace("k8s_openapi", "icecream"),
            DECODER.replace("9visit_map", "2eq"),
        ] {
            assert_eq!(codec(&symbol), None, "{symbol}");
        }
    }

    #[test]
    fn symbols_are_found_between_other_bytes() {
        let bytes = [b"\0lib\xff".as_slice(), DECODER.as_bytes(), b"\0_ZN3foo\0"].concat();
        assert_eq!(codecs(&bytes).len(), 1);
        assert!(codecs(b"k8s_openapi..v1_36..api").is_empty());
    }
}
