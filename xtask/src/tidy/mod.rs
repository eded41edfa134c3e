//! The rules a compiler does not check, one file each.
//! In: the working tree. Out: findings that name place, problem and fix.

mod layers; // which crate may depend on which
mod links; // relative links in documents
mod modules; // every file is declared
mod text; // heads, unfinished work, private paths, length
mod tree; // the files that are looked at

use std::{fmt, path::Path};

pub use tree::{File, Tree};

/// Something untidy: where, what, and how to put it right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The file, from the root of the repository.
    pub file: String,
    /// The line, counted from 1; 0 for the file as a whole.
    pub line: usize,
    /// What is wrong.
    pub problem: String,
    /// What to do about it.
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

/// All that was found: problems must be fixed, advice may be weighed.
#[derive(Debug, Default)]
pub struct Report {
    /// What must be put right.
    pub problems: Vec<Finding>,
    /// What is worth a thought.
    pub advice: Vec<Finding>,
}

impl Report {
    /// The problems as one error text.
    ///
    /// # Errors
    /// Every problem, a line each.
    pub fn into_result(self) -> Result<(), String> {
        if self.problems.is_empty() {
            return Ok(());
        }
        let lines: Vec<String> = self.problems.iter().map(ToString::to_string).collect();
        Err(format!("not tidy:\n{}", lines.join("\n")))
    }
}

/// Looks at the whole repository.
///
/// # Errors
/// A file that cannot be read, or a workspace cargo cannot describe.
pub fn tidy(root: &Path) -> Result<Report, String> {
    let tree = Tree::read(root)?;
    let workspace = layers::Workspace::read(root)?;
    let mut problems = modules::undeclared(&tree, &workspace.roots);
    problems.extend(layers::forbidden(&workspace.edges));
    problems.extend(tree.files.iter().flat_map(text::problems));
    problems.extend(tree.files.iter().flat_map(|file| links::broken(file, root)));
    Ok(Report {
        problems,
        advice: tree.files.iter().filter_map(text::too_long).collect(),
    })
}
