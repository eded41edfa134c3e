//! The applied state: keys, values and watch history in redb.
//!
//! In: committed entries, in order. Out: outcomes, reads of one revision, events.
//!
//! Guarantees: a batch of entries, the position in the log, the membership and the revision are one
//! transaction. A commit is visible immediately and durable after [`State::sync`]; a crash goes back
//! to the last sync, and the log has the entries since then. Reads see one revision.

mod apply;
mod install;
mod read;
mod record;
mod row;

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use redb::{Database, Durability, ReadTransaction, ReadableDatabase, TableDefinition};
use tokio::sync::Notify;

use crate::{
    api::{ClusterId, Revision},
    codec::{Malformed, Reader, Writer},
    disk::{Disk, FailStop, check_failure},
    entry::{Entry, LogId, Outcome, StoredMembers},
};
pub(crate) use record::KeyRecord;
pub(crate) use row::Row;

/// The file of the state.
pub(crate) const STATE_FILE: &str = "state.redb";

/// Keys with their records.
pub(crate) const KEYS: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("keys");
/// Watch history: the event of each revision after the compacted one.
pub(crate) const EVENTS: TableDefinition<'static, u64, &[u8]> = TableDefinition::new("events");
/// One record: [`Meta`].
const META: TableDefinition<'static, &str, &[u8]> = TableDefinition::new("meta");
const META_KEY: &str = "meta";

/// Everything about the state that is not a key or an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Meta {
    /// The cluster that the state belongs to.
    pub(crate) cluster: ClusterId,
    pub(crate) format_level: u32,
    pub(crate) last_applied: Option<LogId>,
    /// The position of the last installed snapshot, which may be beyond the log after a crash.
    pub(crate) installed: Option<LogId>,
    pub(crate) members: StoredMembers,
    pub(crate) revision: Revision,
    /// Events up to this revision are gone.
    pub(crate) compacted: Revision,
    /// Bytes of keys and values.
    pub(crate) data_bytes: u64,
    /// Bytes of events.
    pub(crate) history_bytes: u64,
}

const META_VERSION: u8 = 1;

impl Meta {
    pub(crate) fn new(cluster: ClusterId, format_level: u32) -> Self {
        Self {
            cluster,
            format_level,
            last_applied: None,
            installed: None,
            members: StoredMembers::default(),
            revision: 0,
            compacted: 0,
            data_bytes: 0,
            history_bytes: 0,
        }
    }

    pub(crate) fn encode(&self, to: &mut Writer) {
        to.u8(META_VERSION);
        to.text(self.cluster.as_str());
        to.u32(self.format_level);
        to.option(self.last_applied, |to, id| id.encode(to));
        to.option(self.installed, |to, id| id.encode(to));
        self.members.encode(to);
        to.u64(self.revision);
        to.u64(self.compacted);
        to.u64(self.data_bytes);
        to.u64(self.history_bytes);
    }

    pub(crate) fn decode(from: &mut Reader) -> Result<Self, Malformed> {
        if from.u8()? != META_VERSION {
            return Err(from.malformed());
        }
        let cluster = from.text()?;
        Ok(Self {
            cluster: cluster.parse().map_err(|_| from.malformed())?,
            format_level: from.u32()?,
            last_applied: from.option(LogId::decode)?,
            installed: from.option(LogId::decode)?,
            members: StoredMembers::decode(from)?,
            revision: from.u64()?,
            compacted: from.u64()?,
            data_bytes: from.u64()?,
            history_bytes: from.u64()?,
        })
    }
}

/// Settings of the state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct StateOptions {
    /// Events that are kept at most.
    pub(crate) history_revisions: u64,
    /// Bytes of events that are kept at most.
    pub(crate) history_bytes: u64,
    /// Memory for pages of redb.
    pub(crate) cache_bytes: usize,
}

/// The state of a member.
pub(crate) struct State {
    database: Database,
    options: StateOptions,
    /// As of the last commit. Written while the write transaction is open, which there is one of.
    meta: Mutex<Meta>,
    /// Notified after every commit.
    changed: Notify,
    /// Set when the file must not be written any more.
    failure: Arc<OnceLock<String>>,
    /// Whether everything that was applied is durable, in the log too.
    is_finished: AtomicBool,
}

/// redb makes everything durable when it closes a database, which may be ahead of the log: without
/// [`State::finish`], a state is left as a crash would leave it.
impl Drop for State {
    fn drop(&mut self) {
        if !self.is_finished.load(Ordering::Relaxed) {
            // After an error it is set already.
            let _ = self.failure.set("the state was not closed".to_owned());
        }
    }
}

impl State {
    /// Creates a state with no keys.
    pub(crate) fn create(disk: &dyn Disk, options: StateOptions, meta: &Meta) -> io::Result<()> {
        let backend = FailStop::new(disk.open_state(STATE_FILE)?);
        let failure = backend.failure();
        let database = open_database(backend, options)?;
        let transaction = database.begin_write().map_err(redb_error)?;
        transaction.open_table(KEYS).map_err(redb_error)?;
        transaction.open_table(EVENTS).map_err(redb_error)?;
        write_meta(&transaction, meta)?;
        transaction.commit().map_err(redb_error)?;
        drop(database);
        check_failure(&failure)
    }

    /// Opens the state as of its last sync.
    pub(crate) fn open(disk: &dyn Disk, options: StateOptions) -> io::Result<Self> {
        let backend = FailStop::new(disk.open_state(STATE_FILE)?);
        let failure = backend.failure();
        let database = open_database(backend, options)?;
        let transaction = database.begin_read().map_err(redb_error)?;
        let meta = read_meta(&transaction)?;
        Ok(Self {
            database,
            options,
            meta: Mutex::new(meta),
            changed: Notify::new(),
            failure,
            is_finished: AtomicBool::new(false),
        })
    }

    /// The position, membership and revision as of the last commit.
    pub(crate) fn meta(&self) -> Meta {
        self.lock().clone()
    }

    /// The revision as of the last commit.
    pub(crate) fn revision(&self) -> Revision {
        self.lock().revision
    }

    /// Notified after every commit.
    pub(crate) fn changed(&self) -> &Notify {
        &self.changed
    }

    /// Applies committed entries in one transaction.
    ///
    /// # Errors
    ///
    /// The state is unchanged, and the member must stop.
    pub(crate) fn apply(&self, entries: &[Entry]) -> io::Result<Vec<Outcome>> {
        let mut meta = self.meta();
        let mut transaction = self.database.begin_write().map_err(redb_error)?;
        transaction
            .set_durability(Durability::None)
            .map_err(redb_error)?;
        let outcomes = apply::apply(&transaction, &mut meta, entries, self.options)?;
        write_meta(&transaction, &meta)?;
        transaction.commit().map_err(redb_error)?;
        *self.lock() = meta;
        self.changed.notify_waiters();
        Ok(outcomes)
    }

    /// Makes everything that was applied durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        let mut transaction = self.database.begin_write().map_err(redb_error)?;
        transaction
            .set_durability(Durability::Immediate)
            .map_err(redb_error)?;
        transaction.commit().map_err(redb_error)
    }

    /// Lets the database be closed in order, after the last sync.
    pub(crate) fn finish(&self) {
        self.is_finished.store(true, Ordering::Relaxed);
    }

    /// A view of one revision.
    pub(crate) fn view(&self) -> io::Result<ReadTransaction> {
        self.database.begin_read().map_err(redb_error)
    }

    fn lock(&self) -> MutexGuard<'_, Meta> {
        self.meta.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn open_database(backend: FailStop, options: StateOptions) -> io::Result<Database> {
    Database::builder()
        .set_cache_size(options.cache_bytes)
        .create_with_backend(backend)
        .map_err(redb_error)
}

pub(crate) fn read_meta(transaction: &ReadTransaction) -> io::Result<Meta> {
    let table = transaction.open_table(META).map_err(redb_error)?;
    let record = table.get(META_KEY).map_err(redb_error)?;
    let record = record.ok_or(Malformed("state metadata"))?;
    let mut reader = Reader::new(record.value().to_vec().into(), "state metadata");
    Ok(Meta::decode(&mut reader)?)
}

fn write_meta(transaction: &redb::WriteTransaction, meta: &Meta) -> io::Result<()> {
    let mut writer = Writer::default();
    meta.encode(&mut writer);
    let mut table = transaction.open_table(META).map_err(redb_error)?;
    table
        .insert(META_KEY, writer.0.as_slice())
        .map_err(redb_error)?;
    Ok(())
}

/// Any error of redb as an IO error that names the file.
pub(crate) fn redb_error(error: impl Into<redb::Error>) -> io::Error {
    match error.into() {
        redb::Error::Io(error) => io::Error::new(error.kind(), format!("{STATE_FILE}: {error}")),
        error => io::Error::other(format!("{STATE_FILE}: {error}")),
    }
}

#[cfg(test)]
mod tests;
