//! The files that tidy checks: text files, without build output and recorded data.

use std::{fs, path::Path};

/// A text file of the repository.
#[derive(Clone, Debug)]
pub struct File {
    /// The path relative to the root, with `/`.
    pub path: String,
    /// The content.
    pub text: String,
}

/// All checked files, sorted by path.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// The files.
    pub files: Vec<File>,
}

const EXTENSIONS: &[&str] = &[
    "rs", "md", "toml", "sh", "py", "js", "css", "html", "yaml", "yml",
];

/// Directories of build output, recorded data and local state.
const SKIPPED: &[&str] = &[
    "target",
    "vectors",
    "corpus",
    "seeds",
    "artifacts",
    "node_modules",
    ".git",
    ".bellerophon",
];

impl Tree {
    /// Reads the working tree below `root`.
    ///
    /// # Errors
    /// A directory or file cannot be read.
    pub fn read(root: &Path) -> Result<Self, String> {
        let mut files = Vec::new();
        walk(root, "", &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self { files })
    }
}

fn walk(root: &Path, directory: &str, files: &mut Vec<File>) -> Result<(), String> {
    let entries = fs::read_dir(root.join(directory))
        .map_err(|e| format!("cannot list {directory:?}: {e}"))?;
    for entry in entries {
        let entry = entry.map_err(|e| format!("cannot list {directory:?}: {e}"))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if directory.is_empty() {
            name.clone()
        } else {
            format!("{directory}/{name}")
        };
        if entry.path().is_dir() {
            if !SKIPPED.contains(&name.as_str()) {
                walk(root, &path, files)?;
            }
        } else if is_text(&path) {
            let text =
                fs::read_to_string(entry.path()).map_err(|e| format!("cannot read {path}: {e}"))?;
            files.push(File { path, text });
        }
    }
    Ok(())
}

fn is_text(path: &str) -> bool {
    path.starts_with(".ci/")
        || path
            .rsplit_once('.')
            .is_some_and(|(_, extension)| EXTENSIONS.contains(&extension))
}
