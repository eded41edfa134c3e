//! Files of one data directory, as a trait with two implementations.
//!
//! In: names of files, bytes. Out: bytes, durable after [`Disk::sync`].
//!
//! Guarantees of an implementation: after `sync` of a file, a crash keeps its content; after
//! `sync_directory`, a crash keeps creations, renames and removals; without them a crash may keep
//! or lose any part. A failed write or sync is final for the caller: the store acknowledges nothing
//! after it.

mod files;
pub mod simulated;

use std::{
    io,
    sync::{Arc, OnceLock},
};

use futures_util::future::BoxFuture;
use redb::StorageBackend;
use tokio::sync::oneshot;

pub use files::FileDisk;

/// Which queue a job waits in. Jobs of a lane run one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lane {
    /// Writes of the log, which clients wait for.
    Log,
    /// Syncs of the state, snapshots and formatting, which may take seconds.
    State,
}

/// Work that blocks.
pub type Job = Box<dyn FnOnce() + Send>;

/// The files of one data directory. Names have no path.
///
/// All methods but [`Disk::run`] block and are called within jobs, or before a member starts.
pub trait Disk: Send + Sync + 'static {
    /// The names of all files.
    fn list(&self) -> io::Result<Vec<String>>;

    /// The content of a file; an error of kind `NotFound` without it.
    fn read(&self, name: &str) -> io::Result<Vec<u8>>;

    /// Up to `length` bytes at an offset; fewer only at the end of the file.
    fn read_at(&self, name: &str, offset: u64, length: usize) -> io::Result<Vec<u8>>;

    /// Creates an empty file, or empties an existing one, and reserves space for `reserve` bytes,
    /// which read as zeros.
    fn create(&self, name: &str, reserve: u64) -> io::Result<()>;

    /// Writes bytes at an offset and extends the file if needed.
    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Cuts the file, or extends it by zeros.
    fn set_len(&self, name: &str, length: u64) -> io::Result<()>;

    /// Makes the content of a file durable.
    fn sync(&self, name: &str) -> io::Result<()>;

    /// Renames a file and replaces an existing one.
    fn rename(&self, from: &str, to: &str) -> io::Result<()>;

    /// Removes a file.
    fn remove(&self, name: &str) -> io::Result<()>;

    /// Makes creations, renames and removals durable.
    fn sync_directory(&self) -> io::Result<()>;

    /// Opens or creates a file for redb.
    fn open_state(&self, name: &str) -> io::Result<Box<dyn StorageBackend>>;

    /// Runs a job where it may block. Fails only if the disk is closed; then the job did not run.
    fn run(&self, lane: Lane, job: Job) -> BoxFuture<'static, io::Result<()>>;
}

/// Runs a function with the disk in a lane and returns its result.
pub(crate) async fn on_lane<T: Send + 'static>(
    disk: &Arc<dyn Disk>,
    lane: Lane,
    work: impl FnOnce(&dyn Disk) -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    let (send, result) = oneshot::channel();
    let handle = Arc::clone(disk);
    let job = Box::new(move || {
        // The receiver is gone if the caller was dropped, which needs no result.
        let _ = send.send(work(&*handle));
    });
    disk.run(lane, job).await?;
    result
        .await
        .map_err(|_| io::Error::other("a disk job panicked; restart the member"))?
}

/// Replaces a file as a whole: after a crash it has the old or the new content.
pub(crate) fn write_atomically(disk: &dyn Disk, name: &str, content: &[u8]) -> io::Result<()> {
    let temporary = format!("{name}.tmp");
    disk.create(&temporary, 0)?;
    disk.write_at(&temporary, 0, content)?;
    disk.sync(&temporary)?;
    disk.rename(&temporary, name)?;
    disk.sync_directory()
}

/// A file of redb that fails permanently after its first error, as redb ignores errors when it
/// closes a database.
#[derive(Debug)]
pub(crate) struct FailStop {
    inner: Box<dyn StorageBackend>,
    failure: Arc<OnceLock<String>>,
}

impl FailStop {
    pub(crate) fn new(inner: Box<dyn StorageBackend>) -> Self {
        Self {
            inner,
            failure: Arc::default(),
        }
    }

    /// The first error, once there is one.
    pub(crate) fn failure(&self) -> Arc<OnceLock<String>> {
        Arc::clone(&self.failure)
    }

    fn call<T>(&self, call: impl FnOnce(&dyn StorageBackend) -> io::Result<T>) -> io::Result<T> {
        check_failure(&self.failure)?;
        call(&*self.inner).inspect_err(|error| {
            // A concurrent call may have failed first, which is as good.
            let _ = self.failure.set(error.to_string());
        })
    }
}

/// Fails if there was an error before.
pub(crate) fn check_failure(failure: &OnceLock<String>) -> io::Result<()> {
    match failure.get() {
        None => Ok(()),
        Some(first) => Err(io::Error::other(format!(
            "the disk failed before: {first}; restart the member"
        ))),
    }
}

impl StorageBackend for FailStop {
    fn len(&self) -> io::Result<u64> {
        self.call(|inner| inner.len())
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.call(|inner| inner.read(offset, out))
    }

    fn set_len(&self, length: u64) -> io::Result<()> {
        self.call(|inner| inner.set_len(length))
    }

    fn sync_data(&self) -> io::Result<()> {
        self.call(|inner| inner.sync_data())
    }

    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.call(|inner| inner.write(offset, data))
    }

    fn close(&self) -> io::Result<()> {
        self.inner.close()
    }
}
