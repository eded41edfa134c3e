//! The files that tidy looks at: text that people write, not what tools produce or record.

use std::{fs, path::Path};

/// A text file of the repository.
#[derive(Clone, Debug)]
pub struct File {
    /// Its path from the root, with `/`.
    pub path: String,
    /// What it says.
    pub text: String,
}

/// Every file worth looking at, in order of path.
#[derive(Clone, Debug, Default)]
pub struct Tree {
    /// The files.
    pub files: Vec<File>,
}

const EXTENSIONS: &[&str] = &[
    "rs", "md", "toml", "sh", "py", "js", "css", "html", "yaml", "yml",
];

/// Folders of build output, recordings and local state.
const SKIPPED: &[&str] = &[
    "target",
    "vectors",
    "corpus",
    "artifacts",
    "node_modules",
    ".git",
    ".bellerophon",
];

impl Tree {
    /// Reads the working tree below `root`.
    ///
    /// # Errors
    /// A folder or file that cannot be read.
    pub fn read(root: &Path) -> Result<Self, String> {
        let mut files = Vec::new();
        walk(root, "", &mut files)?;
        files.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(Self { files })
    }
}

fn walk(root: &Path, folder: &str, files: &mut Vec<File>) -> Result<(), String> {
    let entries =
        fs::read_dir(root.join(folder)).map_err(|e| format!("cannot list {folder:?}: {e}"))?;
    for entry in entries {
        let entry = entry.map_err(|e| format!("cannot list {folder:?}: {e}"))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = if folder.is_empty() {
            name.clone()
        } else {
            format!("{folder}/{name}")
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
