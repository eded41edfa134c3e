//! Relative links in Markdown.
//!
//! Input: one Markdown file. Output: links to files that do not exist.

use std::path::Path;

use super::{File, Finding};

/// The broken links of a file.
pub(super) fn broken(file: &File, root: &Path) -> Vec<Finding> {
    if !file.path.ends_with(".md") {
        return Vec::new();
    }
    let directory = root
        .join(&file.path)
        .parent()
        .expect("a file has a directory")
        .to_path_buf();
    let is_broken = |(_, target): &(usize, String)| !directory.join(target).exists();
    links(&file.text)
        .into_iter()
        .filter(is_broken)
        .map(|(line, target)| Finding {
            file: file.path.clone(),
            line,
            problem: format!("links to {target}, which does not exist"),
            fix: "correct the path, relative to the directory of this file",
        })
        .collect()
}

/// The relative targets of `[text](target)` outside of fenced code, with their lines.
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
    fn only_relative_targets_are_checked() {
        let text = "[a](b.md) and [c](d/e.md#part)\n\
                    [w](https://example.dev) [m](mailto:x@example.dev) [p](#part)\n\
                    ```\n[code](x.md)\n```\n\
                    [t](f.md \"title\")";
        let expected = [(1, "b.md"), (1, "d/e.md"), (6, "f.md")]
            .map(|(line, target)| (line, target.to_owned()));
        assert_eq!(links(text), expected);
    }
}
