//! Import cycles between the top-level modules of a crate.
//!
//! Input: the sources of all crates. Output: one finding per cycle, at one of its imports.
//!
//! Guarantee: tests may import any module; files and blocks under `#[cfg(test)]` do not count.

use std::collections::{BTreeMap, BTreeSet};

use super::{File, Finding, Tree};

/// Where a module imports another one.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Import {
    file: String,
    /// Counted from 1.
    line: usize,
}

/// The imports of each module, by the imported module. The first import of a kind counts.
type Graph = BTreeMap<String, BTreeMap<String, Import>>;

/// The cycles of every crate: each `src/lib.rs`, or `src/main.rs` where there is none, is the root
/// of one.
pub(super) fn cycles(tree: &Tree) -> Vec<Finding> {
    let of_name = |name: &'static str| {
        tree.files
            .iter()
            .filter_map(move |file| file.path.strip_suffix(name))
            .filter(|source| source.ends_with("src/"))
    };
    let libraries: BTreeSet<&str> = of_name("lib.rs").collect();
    let programs = of_name("main.rs").filter(|source| !libraries.contains(source));
    let roots = libraries.iter().map(|source| (*source, "lib.rs"));
    roots
        .chain(programs.map(|source| (source, "main.rs")))
        .flat_map(|(source, root)| in_crate(tree, source, root))
        .collect()
}

fn in_crate(tree: &Tree, source: &str, root: &str) -> Vec<Finding> {
    let graph = graph(tree, source, root);
    let mut findings = Vec::new();
    let mut reported: BTreeSet<&str> = BTreeSet::new();
    for start in graph.keys() {
        if reported.contains(start.as_str()) {
            continue;
        }
        let Some(path) = path_back(&graph, start) else {
            continue;
        };
        let Import { file, line } = graph[path[0]][path[1]].clone();
        findings.push(Finding {
            file,
            line,
            problem: format!("modules import each other: {}", path.join(" -> ")),
            fix: "move the shared item to the lower module, or pass it as a value",
        });
        reported.extend(path);
    }
    findings
}

/// The shortest path from a module back to itself.
fn path_back<'g>(graph: &'g Graph, start: &'g str) -> Option<Vec<&'g str>> {
    let mut paths = vec![vec![start]];
    let mut seen = BTreeSet::new();
    while !paths.is_empty() {
        let mut longer = Vec::new();
        for path in paths {
            let last = path[path.len() - 1];
            for next in graph.get(last).into_iter().flat_map(BTreeMap::keys) {
                let extended = [path.as_slice(), &[next.as_str()]].concat();
                if next == start {
                    return Some(extended);
                }
                if seen.insert(next.as_str()) {
                    longer.push(extended);
                }
            }
        }
        paths = longer;
    }
    None
}

fn graph(tree: &Tree, source: &str, root: &str) -> Graph {
    let files: Vec<&File> = tree
        .files
        .iter()
        .filter(|file| file.path.starts_with(source) && file.path.ends_with(".rs"))
        .collect();
    let Some(root) = files
        .iter()
        .find(|file| file.path == format!("{source}{root}"))
    else {
        return Graph::new();
    };
    let modules = declared(&product_lines(&root.text));
    let test_files = test_files(&files);
    let mut graph = Graph::new();
    for file in files {
        let relative = &file.path[source.len()..];
        let module = relative
            .split('/')
            .next()
            .unwrap_or_default()
            .trim_end_matches(".rs");
        let is_test = test_files.iter().any(|prefix| {
            file.path == format!("{prefix}.rs") || file.path.starts_with(&format!("{prefix}/"))
        });
        if matches!(module, "lib" | "main") || is_test || !modules.contains(module) {
            continue;
        }
        let is_top = relative == format!("{module}.rs") || relative == format!("{module}/mod.rs");
        for (line, imported) in imports(&file.text, is_top) {
            if imported != module && modules.contains(imported.as_str()) {
                let import = Import {
                    file: file.path.clone(),
                    line,
                };
                graph
                    .entry(module.to_owned())
                    .or_default()
                    .entry(imported)
                    .or_insert(import);
            }
        }
    }
    graph
}

/// The lines that are compiled without tests, with their numbers; comments are empty.
fn product_lines(text: &str) -> Vec<(usize, &str)> {
    let mut lines = Vec::new();
    let mut in_tests = false;
    let mut after_attribute = false;
    for (number, line) in text.lines().enumerate() {
        if in_tests {
            // rustfmt puts the end of a top-level block at the start of a line.
            in_tests = line != "}";
            continue;
        }
        let is_attribute = line.trim() == "#[cfg(test)]";
        if after_attribute {
            in_tests = line.ends_with('{') && !line.starts_with(' ');
        } else if !is_attribute {
            let code = line.split("//").next().unwrap_or_default();
            lines.push((number + 1, code));
        }
        after_attribute = is_attribute;
    }
    lines
}

/// The modules that lines declare.
fn declared(lines: &[(usize, &str)]) -> BTreeSet<String> {
    lines
        .iter()
        .filter_map(|(_, line)| module_name(line))
        .map(str::to_owned)
        .collect()
}

fn module_name(line: &str) -> Option<&str> {
    let line = line.trim().strip_suffix(';')?;
    let (before, name) = line.rsplit_once("mod ")?;
    let is_declaration = before.is_empty() || before.starts_with("pub");
    is_declaration.then_some(name)
}

/// Files and directories, without extension, that `#[cfg(test)] mod name;` declares.
fn test_files(files: &[&File]) -> Vec<String> {
    let mut found = Vec::new();
    for file in files {
        let (directory, name) = file.path.rsplit_once('/').unwrap_or(("", &file.path));
        let stem = name.trim_end_matches(".rs");
        let below = if stem == "mod" || stem == "lib" {
            directory.to_owned()
        } else {
            format!("{directory}/{stem}")
        };
        let mut lines = file.text.lines();
        while let Some(line) = lines.next() {
            if line.trim() == "#[cfg(test)]"
                && let Some(name) = lines.next().and_then(|line| {
                    module_name(line.split("//").next().unwrap_or_default().trim_end())
                })
            {
                found.push(format!("{below}/{name}"));
            }
        }
    }
    found
}

/// The top-level modules that a file names after `crate::`, or after `super::` in a top-level file.
fn imports(text: &str, is_top: bool) -> Vec<(usize, String)> {
    let lines = product_lines(text);
    let mut found = Vec::new();
    for (at, (number, line)) in lines.iter().enumerate() {
        let roots = ["crate::", "super::"];
        for root in roots.iter().take(if is_top { 2 } else { 1 }) {
            for (start, _) in line.match_indices(root) {
                let is_path = line[..start]
                    .chars()
                    .next_back()
                    .is_some_and(|c| c.is_alphanumeric() || c == '_' || c == ':');
                if is_path {
                    continue;
                }
                let rest = &line[start + root.len()..];
                if rest.starts_with('{') {
                    let following = lines[at + 1..].iter().map(|(_, line)| *line);
                    found.extend(
                        group(std::iter::once(rest).chain(following))
                            .into_iter()
                            .map(|name| (*number, name)),
                    );
                } else {
                    found.push((*number, identifier(rest).to_owned()));
                }
            }
        }
    }
    found
}

fn identifier(text: &str) -> &str {
    let end = text
        .find(|c: char| !c.is_alphanumeric() && c != '_')
        .unwrap_or(text.len());
    &text[..end]
}

/// The first names of the paths in a group `{a::b, c::{d, e}}`, which may span several lines.
fn group<'t>(lines: impl Iterator<Item = &'t str>) -> Vec<String> {
    let mut names = Vec::new();
    let mut depth = 0;
    let mut at_start = false;
    for line in lines {
        for (at, c) in line.char_indices() {
            match c {
                '{' => {
                    depth += 1;
                    at_start = depth == 1;
                }
                '}' => depth -= 1,
                ',' => at_start = depth == 1,
                c if at_start && (c.is_alphanumeric() || c == '_') => {
                    names.push(identifier(&line[at..]).to_owned());
                    at_start = false;
                }
                _ => {}
            }
            if depth == 0 {
                return names;
            }
        }
    }
    names
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A crate with these files below `src`.
    fn found(files: &[(&str, &str)]) -> Vec<String> {
        found_in("crates/apiserver", files)
    }

    fn found_in(directory: &str, files: &[(&str, &str)]) -> Vec<String> {
        let tree = Tree {
            files: files
                .iter()
                .map(|(path, text)| File {
                    path: format!("{directory}/src/{path}"),
                    text: (*text).to_owned(),
                })
                .collect(),
        };
        let prefix = "modules import each other: ";
        cycles(&tree)
            .into_iter()
            .map(|finding| {
                let problem = finding.problem.replace(prefix, "");
                format!("{}:{} {problem}", finding.file, finding.line)
            })
            .collect()
    }

    const LIB: (&str, &str) = ("lib.rs", "mod low;\nmod middle;\nmod high;\n");

    #[test]
    fn downward_imports_are_no_cycle() {
        let files = [
            LIB,
            ("low.rs", "pub(crate) struct A;\n"),
            ("middle/mod.rs", "use crate::low::A;\n"),
            ("high.rs", "use crate::{low::A, middle::{B, C}};\n"),
        ];
        assert_eq!(found(&files), [""; 0]);
    }

    #[test]
    fn planted_cycle_is_found_with_its_path() {
        let files = [
            LIB,
            (
                "low.rs",
                "//! Low.\n\nuse std::fmt;\nuse crate::{\n    high::C,\n};\n",
            ),
            ("middle/mod.rs", "mod part;\n"),
            ("middle/part.rs", "fn f() -> crate::low::A {}\n"),
            ("high.rs", "use super::middle::B;\n"),
        ];
        assert_eq!(
            found(&files),
            ["crates/apiserver/src/high.rs:1 high -> middle -> low -> high"]
        );
    }

    #[test]
    fn every_crate_is_checked_also_one_without_a_library() {
        let files = [
            ("main.rs", "mod low;\nmod high;\n\nfn main() {}\n"),
            ("low.rs", "use crate::high::C;\n"),
            ("high.rs", "use crate::low::A;\n"),
        ];
        assert_eq!(
            found_in("examples/new", &files),
            ["examples/new/src/high.rs:1 high -> low -> high"]
        );
    }

    #[test]
    fn imports_of_tests_do_not_count() {
        let files = [
            LIB,
            (
                "low.rs",
                "#[cfg(test)]\nmod model;\n\n#[cfg(test)]\nmod tests {\n    use crate::high::C;\n}\n",
            ),
            ("low/model.rs", "use crate::high::C;\n"),
            ("high.rs", "use crate::low::A; // crate::low\n"),
        ];
        assert_eq!(found(&files), [""; 0]);
    }

    #[test]
    fn code_behind_a_test_module_counts() {
        let files = [
            LIB,
            (
                "low.rs",
                "#[cfg(test)]\nmod tests {\n    fn f() {}\n}\n\nuse crate::high::C;\n",
            ),
            ("high.rs", "use crate::low::A;\n"),
        ];
        assert_eq!(
            found(&files),
            ["crates/apiserver/src/high.rs:1 high -> low -> high"]
        );
    }

    #[test]
    fn names_of_a_group_are_the_first_of_each_path() {
        let text = "{\n    a::{b::C, d},\n    e,\n    f::g,\n};";
        assert_eq!(group(text.lines()), ["a", "e", "f"]);
    }
}
