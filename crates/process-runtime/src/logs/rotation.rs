//! Rotated log files: names, order and number.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

/// When log files are rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotationOptions {
    /// The size at which a file is rotated (`containerLogMaxSize`).
    pub max_size: u64,
    /// The number of files of a container, with the current one (`containerLogMaxFiles`).
    pub max_files: usize,
}

impl Default for RotationOptions {
    /// The defaults of the kubelet: 5 files of 10 MiB.
    fn default() -> Self {
        Self {
            max_size: 10 << 20,
            max_files: 5,
        }
    }
}

/// The name of the file that is rotated at that time; names sort by time.
pub(super) fn rotated_path(path: &Path, time: Timestamp) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(time.strftime(".%Y%m%d-%H%M%S.%9f").to_string());
    name.into()
}

/// The rotated files of a log, oldest first.
pub(super) fn rotated_files(path: &Path) -> io::Result<Vec<PathBuf>> {
    let dir = path.parent().unwrap_or(Path::new("."));
    let name = path.file_name().unwrap_or_default().as_encoded_bytes();
    let mut files = Vec::new();
    for entry in fs::read_dir(dir)? {
        let entry = entry?.path();
        let entry_name = entry.file_name().unwrap_or_default().as_encoded_bytes();
        let suffix = entry_name.strip_prefix(name);
        if suffix.is_some_and(|suffix| suffix.starts_with(b".")) {
            files.push(entry);
        }
    }
    files.sort();
    Ok(files)
}

/// Removes the oldest files, so that at most that number of rotated files is left.
pub(super) fn remove_oldest(path: &Path, rotated_max: usize) -> io::Result<()> {
    let files = rotated_files(path)?;
    let surplus = files.len().saturating_sub(rotated_max);
    for file in &files[..surplus] {
        fs::remove_file(file)?;
    }
    Ok(())
}
