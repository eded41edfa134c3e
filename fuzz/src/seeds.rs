//! The seeds: valid inputs of each target, one file each in `seeds/TARGET`.
//!
//! A finding that is fixed becomes a seed, so that every run tests it again.

use std::{fs, io, path::Path};

/// The seeds of a target, in the order of their file names.
///
/// # Errors
/// The directory of the target or a file cannot be read, or there is no file.
pub fn seeds(target: &str) -> io::Result<Vec<Vec<u8>>> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("seeds")
        .join(target);
    let entries = fs::read_dir(&directory)?.collect::<io::Result<Vec<_>>>()?;
    let mut paths: Vec<_> = entries.iter().map(fs::DirEntry::path).collect();
    paths.sort();
    if paths.is_empty() {
        let message = format!("{} is empty", directory.display());
        return Err(io::Error::new(io::ErrorKind::NotFound, message));
    }
    paths.iter().map(fs::read).collect()
}
