//! Every Rust file is part of a program: a target of cargo, or declared by `mod` in a file that is.
//! In: the tree and cargo's targets. Out: files that would never be compiled.

use std::collections::{BTreeMap, BTreeSet};

use super::{File, Finding, Tree};

const FOLDERS: &[&str] = &["crates/", "xtask/", "fuzz/", "examples/"];

/// Files no `mod` leads to.
pub(super) fn undeclared(tree: &Tree, roots: &[String]) -> Vec<Finding> {
    let files: BTreeMap<&str, &File> = tree
        .files
        .iter()
        .filter(|f| is_rust(&f.path))
        .map(|f| (f.path.as_str(), f))
        .collect();
    // Fuzz targets belong to a workspace of their own, which cargo does not describe from here.
    let fuzz = files
        .keys()
        .copied()
        .filter(|path| path.starts_with("fuzz/fuzz_targets/"));
    let mut open: Vec<(&str, bool)> = roots
        .iter()
        .map(String::as_str)
        .chain(fuzz)
        .map(|path| (path, true))
        .collect();
    let mut reached = BTreeSet::new();
    while let Some((path, is_root)) = open.pop() {
        let Some(file) = files.get(path).filter(|_| reached.insert(path.to_owned())) else {
            continue;
        };
        for place in declared(file, is_root) {
            if let Some((path, _)) = files.get_key_value(place.as_str()) {
                open.push((path, false));
            }
        }
    }
    let lost = files.keys().filter(|path| !reached.contains(**path));
    lost.map(|path| Finding {
        file: (*path).to_owned(),
        line: 0,
        problem: "no `mod` leads to this file, so it is never compiled".to_owned(),
        fix: "declare it in its parent module or delete it",
    })
    .collect()
}

fn is_rust(path: &str) -> bool {
    path.ends_with(".rs") && FOLDERS.iter().any(|folder| path.starts_with(folder))
}

/// The places where the modules that `file` declares may be.
fn declared(file: &File, is_root: bool) -> Vec<String> {
    let (folder, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
    let stem = name.trim_end_matches(".rs");
    let below = if is_root || stem == "mod" {
        folder.to_owned()
    } else {
        format!("{folder}/{stem}")
    };
    let mut places = Vec::new();
    let mut given = None;
    for line in file.text.lines().map(str::trim) {
        if let Some(path) = line
            .strip_prefix("#[path = \"")
            .and_then(|rest| rest.strip_suffix("\"]"))
        {
            given = Some(format!("{folder}/{path}"));
        } else if let Some(module) = module_of(line) {
            match given.take() {
                Some(place) => places.push(place),
                None => places.extend([
                    format!("{below}/{module}.rs"),
                    format!("{below}/{module}/mod.rs"),
                ]),
            }
        }
    }
    places
}

/// The name in `mod name;`, whatever its visibility.
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
    fn only_undeclared_files_are_found() {
        let files = [
            (
                "crates/a/src/lib.rs",
                "mod one; // first\npub(crate) mod two;\n#[path = \"odd/place.rs\"]\nmod three;\nmod inline { }",
            ),
            ("crates/a/src/one.rs", "pub mod deep;"),
            ("crates/a/src/one/deep.rs", ""),
            ("crates/a/src/two/mod.rs", "mod leaf;"),
            ("crates/a/src/two/leaf.rs", ""),
            ("crates/a/src/odd/place.rs", ""),
            ("crates/a/src/lost.rs", "mod lost_too;"),
            ("crates/a/src/lost/lost_too.rs", ""),
            ("fuzz/fuzz_targets/parse.rs", ""),
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
