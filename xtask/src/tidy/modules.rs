//! Rust files that are not compiled: neither the root of a cargo target, nor declared by `mod`.
//!
//! Inputs: the tree and cargo's targets. Output: undeclared files.

use std::collections::{BTreeMap, BTreeSet};

use super::{File, Finding, Tree};

const DIRECTORIES: &[&str] = &["crates/", "xtask/", "fuzz/", "examples/"];

/// Files that no `mod` declares.
pub(super) fn undeclared(tree: &Tree, roots: &[String]) -> Vec<Finding> {
    let files: BTreeMap<&str, &File> = tree
        .files
        .iter()
        .filter(|f| is_rust(&f.path))
        .map(|f| (f.path.as_str(), f))
        .collect();
    let mut pending: Vec<(&str, bool)> = roots
        .iter()
        .map(String::as_str)
        .map(|path| (path, true))
        .collect();
    let mut declared = BTreeSet::new();
    while let Some((path, is_root)) = pending.pop() {
        let Some(file) = files.get(path).filter(|_| declared.insert(path.to_owned())) else {
            continue;
        };
        for path in declared_paths(file, is_root) {
            if let Some((path, _)) = files.get_key_value(path.as_str()) {
                pending.push((path, false));
            }
        }
    }
    let undeclared = files.keys().filter(|path| !declared.contains(**path));
    undeclared
        .map(|path| Finding {
            file: (*path).to_owned(),
            line: 0,
            problem: "no `mod` declares this file, so it is not compiled".to_owned(),
            fix: "declare it in its parent module, or delete it",
        })
        .collect()
}

fn is_rust(path: &str) -> bool {
    path.ends_with(".rs")
        && DIRECTORIES
            .iter()
            .any(|directory| path.starts_with(directory))
}

/// The possible paths of the modules that a file declares.
fn declared_paths(file: &File, is_root: bool) -> Vec<String> {
    let (directory, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
    let stem = name.trim_end_matches(".rs");
    let module_directory = if is_root || stem == "mod" {
        directory.to_owned()
    } else {
        format!("{directory}/{stem}")
    };
    let mut paths = Vec::new();
    let mut path_attribute = None;
    for line in file.text.lines().map(str::trim) {
        if let Some(path) = line
            .strip_prefix("#[path = \"")
            .and_then(|rest| rest.strip_suffix("\"]"))
        {
            path_attribute = Some(join(directory, path));
        } else if let Some(module) = module_of(line) {
            match path_attribute.take() {
                Some(path) => paths.push(path),
                None => paths.extend([
                    format!("{module_directory}/{module}.rs"),
                    format!("{module_directory}/{module}/mod.rs"),
                ]),
            }
        }
    }
    paths
}

/// A path relative to a directory, without `..`.
fn join(directory: &str, path: &str) -> String {
    let mut segments: Vec<&str> = directory.split('/').collect();
    for segment in path.split('/') {
        if segment == ".." {
            segments.pop();
        } else {
            segments.push(segment);
        }
    }
    segments.join("/")
}

/// The name in `mod name;`, with any visibility.
fn module_of(line: &str) -> Option<&str> {
    let line = match line.strip_prefix("pub") {
        Some(rest) if rest.starts_with('(') => rest.split_once(')')?.1.trim_start(),
        Some(rest) => rest.trim_start(),
        None => line,
    };
    let (name, _) = line.strip_prefix("mod ")?.split_once(';')?;
    name.chars()
        .all(|c| c.is_alphanumeric() || c == '_')
        .then_some(name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn undeclared_files_are_found() {
        let files = [
            (
                "crates/a/src/lib.rs",
                "mod one; // first\npub(crate) mod two;\n\
                 #[path = \"other/place.rs\"]\nmod three;\nmod inline { }\n\
                 #[path = \"../shared.rs\"]\nmod shared;",
            ),
            ("crates/a/shared.rs", ""),
            ("crates/a/src/one.rs", "pub mod deep;"),
            ("crates/a/src/one/deep.rs", ""),
            ("crates/a/src/two/mod.rs", "mod leaf;"),
            ("crates/a/src/two/leaf.rs", ""),
            ("crates/a/src/other/place.rs", ""),
            ("crates/a/src/lost.rs", "mod lost_too;"),
            ("crates/a/src/lost/lost_too.rs", ""),
        ];
        let files = files
            .map(|(path, text)| File {
                path: path.to_owned(),
                text: text.to_owned(),
            })
            .to_vec();
        let found = undeclared(&Tree { files }, &["crates/a/src/lib.rs".to_owned()]);
        let found: Vec<&str> = found.iter().map(|f| f.file.as_str()).collect();
        assert_eq!(
            found,
            ["crates/a/src/lost.rs", "crates/a/src/lost/lost_too.rs"]
        );
    }
}
