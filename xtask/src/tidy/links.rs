//! Relative links in documents lead to something.
//! In: one Markdown file. Out: links to files that are not there.

use std::path::Path;

use super::{File, Finding};

/// Links of `file` that lead nowhere below `root`.
pub(super) fn broken(file: &File, root: &Path) -> Vec<Finding> {
    if !file.path.ends_with(".md") {
        return Vec::new();
    }
    let folder = root
        .join(&file.path)
        .parent()
        .expect("a file is in a folder")
        .to_path_buf();
    let leads_nowhere = |(_, target): &(usize, String)| !folder.join(target).exists();
    links(&file.text)
        .into_iter()
        .filter(leads_nowhere)
        .map(|(line, target)| Finding {
            file: file.path.clone(),
            line,
            problem: format!("links to {target}, which does not exist"),
            fix: "correct the path, from the folder of this file",
        })
        .collect()
}

/// The relative targets of `[text](target)` outside fenced code, with their lines.
fn links(text: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let mut fenced = false;
    for (number, line) in text.lines().enumerate() {
        if line.trim_start().starts_with("```") {
            fenced = !fenced;
        }
        if fenced {
            continue;
        }
        let targets = line
            .split("](")
            .skip(1)
            .filter_map(|rest| rest.split_once(')'))
            .map(|(target, _)| target);
        let files = targets
            .filter_map(|target| target.split(['#', ' ']).next())
            .filter(|target| !target.is_empty());
        found.extend(
            files
                .filter(|target| !target.contains(':'))
                .map(|target| (number + 1, target.to_owned())),
        );
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_relative_targets_count() {
        let text = "[a](b.md) and [c](d/e.md#part)\n[w](https://example.dev) [m](mailto:x@example.dev) [p](#part)\n```\n[code](x.md)\n```\n[t](f.md \"title\")";
        let wanted = [(1, "b.md"), (1, "d/e.md"), (6, "f.md")]
            .map(|(line, target)| (line, target.to_owned()));
        assert_eq!(links(text), wanted);
    }
}
