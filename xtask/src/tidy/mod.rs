//! Rules of the repository that the compiler does not check, one file each.
//!
//! Input: the working tree. Output: findings with file, line, problem and fix.

mod cycles; // import cycles between modules of a crate
mod layers; // allowed dependencies between crates
mod links; // relative links in Markdown, chapters of the book
mod modules; // every Rust file is declared
mod text; // module docs, unfinished work, local paths, length
mod tree; // the checked files
mod vocabulary; // banned terms and their replacements

use std::{fmt, path::Path};

pub use tree::{File, Tree};

/// A violation of a rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The path of the file, relative to the root of the repository.
    pub file: String,
    /// The line, counted from 1; 0 for the whole file.
    pub line: usize,
    /// What violates the rule.
    pub problem: String,
    /// How to fix it.
    pub fix: &'static str,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            file,
            line,
            problem,
            fix,
        } = self;
        match line {
            0 => write!(f, "{file}: {problem}; {fix}"),
            line => write!(f, "{file}:{line}: {problem}; {fix}"),
        }
    }
}

/// All findings.
#[derive(Debug, Default)]
pub struct Report {
    /// Findings that fail the check.
    pub problems: Vec<Finding>,
    /// Findings that do not fail the check.
    pub advice: Vec<Finding>,
}

impl Report {
    /// Converts problems into an error.
    ///
    /// # Errors
    /// All problems, one per line.
    pub fn into_result(self) -> Result<(), String> {
        if self.problems.is_empty() {
            return Ok(());
        }
        let lines: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        Err(format!("tidy failed:\n{}", lines.join("\n")))
    }
}

/// Checks the whole repository.
///
/// # Errors
/// A file cannot be read, or cargo metadata fails.
pub fn tidy(root: &Path) -> Result<Report, String> {
    let tree = Tree::read(root)?;
    let workspace = layers::Workspace::read(root)?;
    let mut problems = modules::undeclared(&tree, &workspace.roots);
    problems.extend(layers::forbidden(&workspace.edges));
    problems.extend(cycles::cycles(&tree));
    problems.extend(tree.files.iter().flat_map(text::problems));
    problems.extend(tree.files.iter().flat_map(vocabulary::banned_terms));
    problems.extend(tree.files.iter().flat_map(|file| links::broken(file, root)));
    problems.extend(links::outside_of_the_book(&tree.files));
    Ok(Report {
        problems,
        advice: tree.files.iter().filter_map(text::too_long).collect(),
    })
}
