//! Relative links in Markdown.
//!
//! Input: the Markdown files. Output: links to files that do not exist, and pages of the book that
//! its table of contents leaves out.

use std::{collections::BTreeSet, path::Path};

use super::{File, Finding};

/// The table of contents of the book.
const SUMMARY: &str = "docs/SUMMARY.md";

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

/// The pages in the directory of the book that its table of contents does not link to.
pub(super) fn outside_of_the_book(files: &[File]) -> Vec<Finding> {
    let directory = SUMMARY.trim_end_matches("SUMMARY.md");
    let summary = files.iter().find(|file| file.path == SUMMARY);
    let listed: BTreeSet<String> = summary
        .into_iter()
        .flat_map(|summary| links(&summary.text))
        .map(|(_, target)| format!("{directory}{target}"))
        .collect();
    let is_page = |file: &&File| {
        file.path.starts_with(directory) && file.path.ends_with(".md") && file.path != SUMMARY
    };
    files
        .iter()
        .filter(is_page)
        .filter(|page| !listed.contains(&page.path))
        .map(|page| Finding {
            file: page.path.clone(),
            line: 0,
            problem: "is not a chapter of the book".to_owned(),
            fix: "add it to docs/SUMMARY.md",
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
    fn page_that_the_summary_leaves_out_is_found() {
        let file = |path: &str, text: &str| File {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        let files = [
            file(SUMMARY, "- [A](a.md)\n- [B](sub/b.md)"),
            file("docs/a.md", ""),
            file("docs/sub/b.md", ""),
            file("docs/sub/c.md", ""),
            file("README.md", ""),
        ];
        let found: Vec<String> = outside_of_the_book(&files)
            .into_iter()
            .map(|finding| finding.file)
            .collect();
        assert_eq!(found, ["docs/sub/c.md"]);
    }

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
