//! Real files: one directory, locked for one process, with a thread per lane.
//!
//! Guarantees: `sync` is fdatasync, `sync_directory` is fsync of the directory; the lock is held
//! until the last handle is dropped; lanes have bounded queues, and a full queue makes the caller
//! wait.

use std::{
    collections::HashMap,
    fs::{File, OpenOptions, TryLockError},
    io::{self, ErrorKind},
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
    thread,
};

use futures_util::future::BoxFuture;
use redb::{StorageBackend, backends::FileBackend};
use tokio::sync::{mpsc, oneshot};

use super::{Disk, Job, Lane};

/// Jobs that wait in a lane. The log has one job at a time, the state two or three.
const LANE_CAPACITY: usize = 16;

const LOCK: &str = "lock";

/// A data directory on a file system.
pub struct FileDisk {
    directory: PathBuf,
    /// Open files by name; a file stays open until it is renamed or removed.
    open: Mutex<HashMap<String, Arc<File>>>,
    log: LaneThread,
    state: LaneThread,
    /// Holds the lock of the directory.
    _lock: File,
}

impl FileDisk {
    /// Creates the directory if needed and locks it.
    ///
    /// # Errors
    ///
    /// `ResourceBusy` if another process has the directory.
    pub fn open(directory: impl Into<PathBuf>) -> io::Result<Self> {
        let directory = directory.into();
        std::fs::create_dir_all(&directory).map_err(|error| named(&directory, &error))?;
        let path = directory.join(LOCK);
        let lock = OpenOptions::new()
            .create(true)
            .truncate(false)
            .write(true)
            .open(&path)
            .map_err(|error| named(&path, &error))?;
        match lock.try_lock() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                let message = format!(
                    "data directory {} is used by another process; stop it first",
                    directory.display()
                );
                return Err(io::Error::new(ErrorKind::ResourceBusy, message));
            }
            Err(TryLockError::Error(error)) => return Err(named(&path, &error)),
        }
        Ok(Self {
            directory,
            open: Mutex::default(),
            log: LaneThread::start("store-log")?,
            state: LaneThread::start("store-state")?,
            _lock: lock,
        })
    }

    fn path(&self, name: &str) -> PathBuf {
        self.directory.join(name)
    }

    fn file(&self, name: &str) -> io::Result<Arc<File>> {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(file) = open.get(name) {
            return Ok(Arc::clone(file));
        }
        let path = self.path(name);
        let file = OpenOptions::new().read(true).write(true).open(&path);
        let file = Arc::new(file.map_err(|error| named(&path, &error))?);
        open.insert(name.to_owned(), Arc::clone(&file));
        Ok(file)
    }

    fn forget(&self, name: &str) {
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.remove(name);
    }

    fn named_error(&self, name: &str) -> impl Fn(io::Error) -> io::Error {
        let path = self.path(name);
        move |error| named(&path, &error)
    }
}

/// The error with the file that it is about.
fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

impl Disk for FileDisk {
    fn list(&self) -> io::Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in std::fs::read_dir(&self.directory)? {
            let name = entry?.file_name().to_string_lossy().into_owned();
            // Of the file system, and of this process.
            if name != LOCK && name != "lost+found" {
                names.push(name);
            }
        }
        names.sort();
        Ok(names)
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        std::fs::read(self.path(name)).map_err(self.named_error(name))
    }

    fn read_at(&self, name: &str, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let file = self.file(name)?;
        let mut buffer = vec![0; length];
        let mut filled = 0;
        while filled < length {
            match file.read_at(&mut buffer[filled..], offset + filled as u64) {
                Ok(0) => break,
                Ok(count) => filled += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.named_error(name)(error)),
            }
        }
        buffer.truncate(filled);
        Ok(buffer)
    }

    fn create(&self, name: &str, reserve: u64) -> io::Result<()> {
        let path = self.path(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(&path)
            .map_err(|error| named(&path, &error))?;
        if reserve > 0 {
            allocate(&file, reserve).map_err(|error| named(&path, &error))?;
        }
        let mut open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        open.insert(name.to_owned(), Arc::new(file));
        Ok(())
    }

    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let file = self.file(name)?;
        file.write_all_at(bytes, offset)
            .map_err(self.named_error(name))
    }

    fn set_len(&self, name: &str, length: u64) -> io::Result<()> {
        self.file(name)?
            .set_len(length)
            .map_err(self.named_error(name))
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        self.file(name)?.sync_data().map_err(self.named_error(name))
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        self.forget(from);
        self.forget(to);
        std::fs::rename(self.path(from), self.path(to)).map_err(self.named_error(from))
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        self.forget(name);
        std::fs::remove_file(self.path(name)).map_err(self.named_error(name))
    }

    fn sync_directory(&self) -> io::Result<()> {
        File::open(&self.directory)
            .and_then(|directory| directory.sync_all())
            .map_err(|error| named(&self.directory, &error))
    }

    fn open_state(&self, name: &str) -> io::Result<Box<dyn StorageBackend>> {
        let path = self.path(name);
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(&path)
            .map_err(|error| named(&path, &error))?;
        let backend = FileBackend::new(file).map_err(io::Error::other)?;
        Ok(Box::new(backend))
    }

    fn run(&self, lane: Lane, job: Job) -> BoxFuture<'static, io::Result<()>> {
        let lane = match lane {
            Lane::Log => self.log.jobs.clone(),
            Lane::State => self.state.jobs.clone(),
        };
        Box::pin(async move {
            let (done, finished) = oneshot::channel();
            let gone = || io::Error::other("the disk thread ended; restart the member");
            lane.send((job, done)).await.map_err(|_| gone())?;
            finished.await.map_err(|_| gone())
        })
    }
}

/// Reserves space, so that a sync has no file length to write. The content reads as zeros.
fn allocate(file: &File, length: u64) -> io::Result<()> {
    use rustix::{fs, io::Errno};
    match fs::fallocate(file, fs::FallocateFlags::empty(), 0, length) {
        Ok(()) => Ok(()),
        // Not every file system can reserve; the length alone is as good for correctness.
        Err(Errno::OPNOTSUPP | Errno::NOSYS) => file.set_len(length),
        Err(error) => Err(error.into()),
    }
}

/// A thread that runs jobs in order. It ends when the disk is dropped.
struct LaneThread {
    jobs: mpsc::Sender<(Job, oneshot::Sender<()>)>,
}

impl LaneThread {
    fn start(name: &str) -> io::Result<Self> {
        let (jobs, mut queue) = mpsc::channel::<(Job, oneshot::Sender<()>)>(LANE_CAPACITY);
        thread::Builder::new()
            .name(name.to_owned())
            .spawn(move || {
                while let Some((job, done)) = queue.blocking_recv() {
                    job();
                    // The receiver is gone if the caller was dropped, which needs no result.
                    let _ = done.send(());
                }
            })?;
        Ok(Self { jobs })
    }
}
