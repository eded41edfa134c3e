//! `cargo xtask check`: the checks of CI, cheapest first.
//!
//! Every step but `tidy` and `codecs` is one cargo command.

use std::path::Path;

use crate::{codecs, processes, tidy};

/// One step of `cargo xtask check`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// `cargo fmt --check`.
    Fmt,
    /// The rules of [`tidy`].
    Tidy,
    /// `cargo clippy` without warnings.
    Clippy,
    /// The operators contain no codecs of built-in types; see [`codecs`].
    Codecs,
    /// `cargo test`.
    Test,
    /// `cargo doc` without warnings.
    Doc,
}

const ALL: &[Step] = &[
    Step::Fmt,
    Step::Tidy,
    Step::Clippy,
    Step::Codecs,
    Step::Test,
    Step::Doc,
];

/// The steps with these names, or all steps without names.
///
/// # Errors
/// An unknown name.
pub fn select(names: &[String]) -> Result<Vec<Step>, String> {
    if names.is_empty() {
        return Ok(ALL.to_vec());
    }
    let find = |name: &String| {
        ALL.iter()
            .copied()
            .find(|step| step.name() == name)
            .ok_or_else(|| format!("unknown step {name:?}"))
    };
    names.iter().map(find).collect()
}

impl Step {
    /// Its name on the command line.
    pub fn name(self) -> &'static str {
        match self {
            Self::Fmt => "fmt",
            Self::Tidy => "tidy",
            Self::Clippy => "clippy",
            Self::Codecs => "codecs",
            Self::Test => "test",
            Self::Doc => "doc",
        }
    }

    /// Runs the step in the repository at `root`.
    ///
    /// # Errors
    /// The command that failed, or the findings of tidy.
    pub fn run(self, root: &Path) -> Result<(), String> {
        match self {
            Self::Fmt => cargo(root, &["fmt", "--all", "--check"], &[]),
            Self::Tidy => tidy::tidy(root)?.into_result(),
            Self::Clippy => cargo(
                root,
                &[
                    "clippy",
                    "--workspace",
                    "--all-targets",
                    "--",
                    "-D",
                    "warnings",
                ],
                &[],
            ),
            Self::Codecs => codecs::check(root),
            Self::Test => cargo(root, &["test", "--workspace"], &[]),
            Self::Doc => cargo(
                root,
                &["doc", "--workspace", "--no-deps"],
                &[("RUSTDOCFLAGS", "-D warnings")],
            ),
        }
    }
}

fn cargo(root: &Path, arguments: &[&str], environment: &[(&str, &str)]) -> Result<(), String> {
    let line = format!("cargo {}", arguments.join(" "));
    let status = processes::cargo()
        .args(arguments)
        .envs(environment.iter().copied())
        .current_dir(root)
        .status()
        .map_err(|e| format!("cannot start `{line}`: {e}"))?;
    if status.success() {
        Ok(())
    } else {
        Err(format!("`{line}` failed; run it alone to see its output"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn steps_are_selected_by_name() {
        assert_eq!(select(&[]).expect("all steps"), ALL);
        assert_eq!(
            select(&["doc".to_owned(), "fmt".to_owned()]).expect("two steps"),
            [Step::Doc, Step::Fmt]
        );
        assert!(select(&["everything".to_owned()]).is_err());
    }
}
