//! A disk in memory that loses what was not synced, tears writes and fails on request.
//!
//! In: a seed, crashes, faults at a call index. Out: possible contents of a real disk.
//!
//! Guarantees: deterministic for a seed and a sequence of calls. A crash keeps synced content and
//! a random subset of the later writes, each whole or torn at a sector, and a random prefix of the
//! later directory changes. A failed sync loses its writes permanently, even if a later sync
//! succeeds, as on Linux. A handle from before a crash cannot write any more.

mod file;
mod state_file;

use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use futures_util::future::BoxFuture;
use rand::{RngExt, SeedableRng, rngs::StdRng};
use redb::StorageBackend;

use super::{Disk, Job, Lane};
use file::SimulatedFile;
use state_file::StateFile;

/// What goes wrong at a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The call fails without effect. Later calls succeed.
    Eio,
    /// The call fails without effect for lack of space. Later calls succeed.
    Enospc,
    /// The power fails: the call has a part of its effect, and all later calls fail.
    Cut,
}

/// The content of a disk, which outlives the process that uses it.
pub struct SimulatedDisk {
    inner: Mutex<Inner>,
}

struct Inner {
    files: BTreeMap<u64, SimulatedFile>,
    names: BTreeMap<String, u64>,
    /// The names that a crash keeps.
    durable_names: BTreeMap<String, u64>,
    /// Changes of `names` since the last sync of the directory, in order.
    pending: Vec<NameChange>,
    next_file: u64,
    /// Rises with every crash, so that old handles are recognized.
    generation: u64,
    /// Calls that change something, since the disk was created.
    calls: u64,
    fault: Option<(u64, Fault)>,
    is_cut: bool,
    seed: u64,
    /// Of latencies and torn calls. Crashes have their own: how many writes they meet depends on
    /// redb.
    rng: StdRng,
}

#[derive(Clone)]
enum NameChange {
    Set(String, u64),
    Remove(String),
}

impl NameChange {
    fn apply(self, names: &mut BTreeMap<String, u64>) {
        match self {
            Self::Set(name, file) => {
                names.insert(name, file);
            }
            Self::Remove(name) => {
                names.remove(&name);
            }
        }
    }
}

impl SimulatedDisk {
    /// An empty disk.
    pub fn new(seed: u64) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::new(Inner {
                files: BTreeMap::new(),
                names: BTreeMap::new(),
                durable_names: BTreeMap::new(),
                pending: Vec::new(),
                next_file: 0,
                generation: 0,
                calls: 0,
                fault: None,
                is_cut: false,
                seed,
                rng: StdRng::seed_from_u64(seed),
            }),
        })
    }

    /// A handle for one process. Each job takes up to `latency_max`.
    pub fn attach(self: &Arc<Self>, latency_max: Duration) -> Arc<dyn Disk> {
        Arc::new(self.handle(latency_max))
    }

    fn handle(self: &Arc<Self>, latency_max: Duration) -> Attached {
        Attached {
            disk: Arc::clone(self),
            generation: self.lock().generation,
            latency_max,
        }
    }

    /// Ends the process and the power: handles stop to work, content that is not durable is lost
    /// or torn, and an injected fault is cleared.
    pub fn crash(&self) {
        let mut inner = self.lock();
        let inner = &mut *inner;
        inner.generation += 1;
        inner.is_cut = false;
        inner.fault = None;
        let mut rng = StdRng::seed_from_u64(inner.seed.wrapping_add(inner.generation));
        let kept = rng.random_range(0..=inner.pending.len());
        for change in inner.pending.drain(..).take(kept) {
            change.apply(&mut inner.durable_names);
        }
        inner.names.clone_from(&inner.durable_names);
        let names = &inner.names;
        inner
            .files
            .retain(|id, _| names.values().any(|named| named == id));
        for file in inner.files.values_mut() {
            file.crash(&mut rng);
        }
    }

    /// Ends the process only, as `kill -9` does: handles stop to work, content stays.
    pub fn detach(&self) {
        self.lock().generation += 1;
    }

    /// Calls so far that changed something.
    pub fn calls(&self) -> u64 {
        self.lock().calls
    }

    /// Makes the call with this index fail, counted as [`SimulatedDisk::calls`] does.
    pub fn inject(&self, call: u64, fault: Fault) {
        self.lock().fault = Some((call, fault));
    }

    /// Flips one bit of a file.
    pub fn flip_bit(&self, name: &str, byte: usize) {
        let mut inner = self.lock();
        if let Some(file) = inner.named(name) {
            file.flip_bit(byte);
        }
    }

    /// The length of a file, if it exists.
    pub fn length(&self, name: &str) -> Option<usize> {
        self.lock().named(name).map(|file| file.content.len())
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What a call does.
enum Effect {
    Whole,
    /// A part, then the power fails.
    Torn,
    Fail(io::Error),
}

impl Inner {
    fn named(&mut self, name: &str) -> Option<&mut SimulatedFile> {
        let id = self.names.get(name)?;
        self.files.get_mut(id)
    }

    fn file(&mut self, name: &str) -> io::Result<&mut SimulatedFile> {
        self.named(name).ok_or_else(|| missing(name))
    }

    /// Counts a call and decides its effect.
    fn call(&mut self) -> Effect {
        if self.is_cut {
            return Effect::Fail(io::Error::other("the power failed"));
        }
        let index = self.calls;
        self.calls += 1;
        match self.fault {
            Some((at, fault)) if at == index => match fault {
                Fault::Eio => Effect::Fail(io::Error::from_raw_os_error(5)),
                Fault::Enospc => Effect::Fail(io::Error::from_raw_os_error(28)),
                Fault::Cut => {
                    self.is_cut = true;
                    Effect::Torn
                }
            },
            _ => Effect::Whole,
        }
    }

    fn change_name(&mut self, change: NameChange) -> io::Result<()> {
        match self.call() {
            Effect::Fail(error) => Err(error),
            Effect::Torn => Err(io::Error::other("the power failed")),
            Effect::Whole => {
                change.clone().apply(&mut self.names);
                self.pending.push(change);
                Ok(())
            }
        }
    }

    fn new_file(&mut self, name: &str) -> io::Result<u64> {
        let id = self.next_file;
        self.next_file += 1;
        self.files.insert(id, SimulatedFile::default());
        self.change_name(NameChange::Set(name.to_owned(), id))?;
        Ok(id)
    }

    fn write(&mut self, id: u64, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let effect = self.call();
        let offset = usize::try_from(offset).map_err(io::Error::other)?;
        let file = self.files.get_mut(&id).ok_or_else(|| missing("file"))?;
        match effect {
            Effect::Fail(error) => Err(error),
            Effect::Whole => {
                file.write(offset, bytes);
                Ok(())
            }
            Effect::Torn => {
                let kept = self.rng.random_range(0..=bytes.len());
                file.write(offset, &bytes[..kept]);
                Err(io::Error::other("the power failed"))
            }
        }
    }

    fn set_len(&mut self, id: u64, length: u64) -> io::Result<()> {
        let effect = self.call();
        let length = usize::try_from(length).map_err(io::Error::other)?;
        let file = self.files.get_mut(&id).ok_or_else(|| missing("file"))?;
        match effect {
            Effect::Fail(error) => Err(error),
            Effect::Whole => {
                file.set_len(length);
                Ok(())
            }
            Effect::Torn => Err(io::Error::other("the power failed")),
        }
    }

    fn sync(&mut self, id: u64) -> io::Result<()> {
        let effect = self.call();
        let file = self.files.get_mut(&id).ok_or_else(|| missing("file"))?;
        match effect {
            Effect::Whole => {
                file.sync();
                Ok(())
            }
            Effect::Fail(error) => {
                file.fail_sync();
                Err(error)
            }
            Effect::Torn => Err(io::Error::other("the power failed")),
        }
    }
}

fn missing(name: &str) -> io::Error {
    io::Error::new(io::ErrorKind::NotFound, format!("{name}: not found"))
}

/// A [`SimulatedDisk`] as one process uses it.
pub(super) struct Attached {
    disk: Arc<SimulatedDisk>,
    generation: u64,
    latency_max: Duration,
}

impl Attached {
    fn inner(&self) -> io::Result<MutexGuard<'_, Inner>> {
        let inner = self.disk.lock();
        if inner.generation == self.generation {
            Ok(inner)
        } else {
            Err(io::Error::other("the process ended"))
        }
    }
}

impl Disk for Attached {
    fn list(&self) -> io::Result<Vec<String>> {
        Ok(self.inner()?.names.keys().cloned().collect())
    }

    fn read(&self, name: &str) -> io::Result<Vec<u8>> {
        Ok(self.inner()?.file(name)?.content.clone())
    }

    fn read_at(&self, name: &str, offset: u64, length: usize) -> io::Result<Vec<u8>> {
        let mut inner = self.inner()?;
        let content = &inner.file(name)?.content;
        let start = usize::try_from(offset).map_err(io::Error::other)?;
        let start = start.min(content.len());
        let end = (start + length).min(content.len());
        Ok(content[start..end].to_vec())
    }

    fn create(&self, name: &str, reserve: u64) -> io::Result<()> {
        let mut inner = self.inner()?;
        let id = inner.new_file(name)?;
        if reserve > 0 {
            inner.set_len(id, reserve)?;
        }
        Ok(())
    }

    fn write_at(&self, name: &str, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let mut inner = self.inner()?;
        let id = *inner.names.get(name).ok_or_else(|| missing(name))?;
        inner.write(id, offset, bytes)
    }

    fn set_len(&self, name: &str, length: u64) -> io::Result<()> {
        let mut inner = self.inner()?;
        let id = *inner.names.get(name).ok_or_else(|| missing(name))?;
        inner.set_len(id, length)
    }

    fn sync(&self, name: &str) -> io::Result<()> {
        let mut inner = self.inner()?;
        let id = *inner.names.get(name).ok_or_else(|| missing(name))?;
        inner.sync(id)
    }

    fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        let mut inner = self.inner()?;
        let id = *inner.names.get(from).ok_or_else(|| missing(from))?;
        inner.change_name(NameChange::Set(to.to_owned(), id))?;
        // One call: a journaling file system renames as a whole.
        let change = NameChange::Remove(from.to_owned());
        change.clone().apply(&mut inner.names);
        inner.pending.push(change);
        Ok(())
    }

    fn remove(&self, name: &str) -> io::Result<()> {
        let mut inner = self.inner()?;
        inner.file(name)?;
        inner.change_name(NameChange::Remove(name.to_owned()))
    }

    fn sync_directory(&self) -> io::Result<()> {
        let mut inner = self.inner()?;
        match inner.call() {
            Effect::Fail(error) => Err(error),
            Effect::Torn => Err(io::Error::other("the power failed")),
            Effect::Whole => {
                inner.pending.clear();
                let names = inner.names.clone();
                inner.durable_names = names;
                Ok(())
            }
        }
    }

    fn open_state(&self, name: &str) -> io::Result<Box<dyn StorageBackend>> {
        let mut inner = self.inner()?;
        let id = match inner.names.get(name) {
            Some(id) => *id,
            None => inner.new_file(name)?,
        };
        drop(inner);
        let attached = self.disk.handle(self.latency_max);
        Ok(Box::new(StateFile { attached, id }))
    }

    fn run(&self, _: Lane, job: Job) -> BoxFuture<'static, io::Result<()>> {
        let latency = match self.inner() {
            Err(error) => return Box::pin(async { Err(error) }),
            Ok(_) if self.latency_max.is_zero() => Duration::ZERO,
            Ok(mut inner) => {
                let max = u64::try_from(self.latency_max.as_millis()).unwrap_or(u64::MAX);
                Duration::from_millis(inner.rng.random_range(0..=max))
            }
        };
        Box::pin(async move {
            if !latency.is_zero() {
                tokio::time::sleep(latency).await;
            }
            job();
            Ok(())
        })
    }
}
