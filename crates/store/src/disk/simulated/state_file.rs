//! The file of redb on a simulated disk.

use std::{fmt, io};

use redb::StorageBackend;

use super::{Attached, file::SimulatedFile, missing};

/// The file of redb.
pub(super) struct StateFile {
    pub(super) attached: Attached,
    pub(super) id: u64,
}

impl fmt::Debug for StateFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "simulated file {}", self.id)
    }
}

impl StateFile {
    fn with<T>(&self, work: impl FnOnce(&SimulatedFile) -> io::Result<T>) -> io::Result<T> {
        let inner = self.attached.inner()?;
        work(inner.files.get(&self.id).ok_or_else(|| missing("state"))?)
    }
}

impl StorageBackend for StateFile {
    fn len(&self) -> io::Result<u64> {
        self.with(|file| Ok(file.content.len() as u64))
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.with(|file| {
            let start = usize::try_from(offset).map_err(io::Error::other)?;
            let range = file.content.get(start..start + out.len());
            out.copy_from_slice(range.ok_or(io::ErrorKind::UnexpectedEof)?);
            Ok(())
        })
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.attached.inner()?.set_len(self.id, length)
    }

    fn sync_data(&self) -> io::Result<()> {
        self.attached.inner()?.sync(self.id)
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.attached.inner()?.write(self.id, offset, data)
    }
}
