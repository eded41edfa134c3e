//! The files of a run: the running input of each worker, and findings.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// The files of one worker.
#[derive(Clone, Debug)]
pub(crate) struct Artifacts {
    directory: PathBuf,
    target: &'static str,
    seed: u64,
}

impl Artifacts {
    /// Creates the directory.
    pub(crate) fn new(directory: &Path, target: &'static str, seed: u64) -> io::Result<Self> {
        fs::create_dir_all(directory)?;
        Ok(Self {
            directory: directory.to_owned(),
            target,
            seed,
        })
    }

    /// The file with the input that is running.
    pub(crate) fn current(&self) -> PathBuf {
        self.directory
            .join(format!("{}-{}.current", self.target, self.seed))
    }

    /// Writes a finding and returns its path.
    pub(crate) fn write(&self, input: &[u8], number: usize) -> io::Result<PathBuf> {
        let path = self
            .directory
            .join(format!("{}-{}-{number}", self.target, self.seed));
        fs::write(&path, input)?;
        Ok(path)
    }

    /// Makes a finding of the input that was running, and returns its path.
    pub(crate) fn write_current(&self) -> io::Result<PathBuf> {
        let path = self
            .directory
            .join(format!("{}-{}-crash", self.target, self.seed));
        fs::copy(self.current(), &path)?;
        Ok(path)
    }

    /// Removes the file of the running input.
    pub(crate) fn remove_current(&self) -> io::Result<()> {
        fs::remove_file(self.current())
    }
}
