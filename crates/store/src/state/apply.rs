//! Entries become changes of keys, events and metadata.
//!
//! Guarantee: deterministic. Members that applied the same entries have the same keys, revisions
//! and membership; only the length of the watch history is a setting of each member.

use std::io;

use bytes::Bytes;
use redb::{ReadableTable, Table, WriteTransaction};

use super::{EVENTS, KEYS, Meta, StateOptions, record, record::KeyRecord, redb_error};
use crate::{
    api::{Key, Revision, WriteResult},
    entry::{Command, Entry, Outcome, Payload, StoredMembers},
    format_level::FORMAT_LEVEL_MAX,
};

/// The tables and metadata within one transaction.
struct Applier<'a> {
    keys: Table<'a, &'static str, &'static [u8]>,
    events: Table<'a, u64, &'static [u8]>,
    meta: &'a mut Meta,
    options: StateOptions,
}

pub(super) fn apply(
    transaction: &WriteTransaction,
    meta: &mut Meta,
    entries: &[Entry],
    options: StateOptions,
) -> io::Result<Vec<Outcome>> {
    let mut applier = Applier {
        keys: transaction.open_table(KEYS).map_err(redb_error)?,
        events: transaction.open_table(EVENTS).map_err(redb_error)?,
        meta,
        options,
    };
    let mut outcomes = Vec::with_capacity(entries.len());
    for entry in entries {
        outcomes.push(applier.entry(entry)?);
    }
    applier.trim_history()?;
    Ok(outcomes)
}

impl Applier<'_> {
    fn entry(&mut self, entry: &Entry) -> io::Result<Outcome> {
        let outcome = match &entry.payload {
            Payload::Blank => Outcome::Done,
            Payload::Membership(members) => {
                self.meta.members = StoredMembers {
                    log_id: Some(entry.log_id),
                    members: members.clone(),
                };
                Outcome::Done
            }
            Payload::Command(command) => self.command(command, entry.log_id.index)?,
        };
        self.meta.last_applied = Some(entry.log_id);
        Ok(outcome)
    }

    fn command(&mut self, command: &Command, index: u64) -> io::Result<Outcome> {
        match command {
            Command::Put {
                key,
                value,
                if_revision,
            } => self.put(key, value, *if_revision),
            Command::Delete { key, if_revision } => self.delete(key, *if_revision),
            Command::AllocateMemberId => Ok(Outcome::Allocated(index)),
            Command::RaiseFormatLevel(level) => self.raise_format_level(*level),
            Command::Compact(revision) => {
                let until = (*revision).min(self.meta.revision);
                while self.meta.compacted < until {
                    self.forget_oldest()?;
                }
                Ok(Outcome::Done)
            }
        }
    }

    fn current(&self, key: &Key) -> io::Result<Option<KeyRecord>> {
        let record = self.keys.get(key.as_str()).map_err(redb_error)?;
        let Some(record) = record else {
            return Ok(None);
        };
        Ok(Some(KeyRecord::decode(Bytes::copy_from_slice(
            record.value(),
        ))?))
    }

    fn put(
        &mut self,
        key: &Key,
        value: &Bytes,
        if_revision: Option<Revision>,
    ) -> io::Result<Outcome> {
        let current = self.current(key)?;
        let revision = current.as_ref().map_or(0, |record| record.mod_revision);
        if if_revision.is_some_and(|expected| expected != revision) {
            return Ok(Outcome::ConditionFailed(revision));
        }
        let next = self.meta.revision + 1;
        let record = KeyRecord {
            create_revision: current
                .as_ref()
                .map_or(next, |record| record.create_revision),
            mod_revision: next,
            version: current.as_ref().map_or(1, |record| record.version + 1),
            value: value.clone(),
        };
        let old_bytes = current.map_or(0, |record| size(key, &record.value));
        self.keys
            .insert(key.as_str(), record.encode().as_slice())
            .map_err(redb_error)?;
        self.meta.data_bytes = self.meta.data_bytes + size(key, value) - old_bytes;
        self.record_event(&record::encode_put(key, &record))?;
        Ok(Outcome::Written(WriteResult {
            revision: next,
            create_revision: record.create_revision,
            mod_revision: next,
            version: record.version,
            deleted: false,
        }))
    }

    fn delete(&mut self, key: &Key, if_revision: Option<Revision>) -> io::Result<Outcome> {
        let current = self.current(key)?;
        let revision = current.as_ref().map_or(0, |record| record.mod_revision);
        if if_revision.is_some_and(|expected| expected != revision) {
            return Ok(Outcome::ConditionFailed(revision));
        }
        if let Some(record) = &current {
            self.keys.remove(key.as_str()).map_err(redb_error)?;
            self.meta.data_bytes -= size(key, &record.value);
            self.record_event(&record::encode_delete(key))?;
        }
        Ok(Outcome::Written(WriteResult {
            revision: self.meta.revision,
            create_revision: 0,
            mod_revision: 0,
            version: 0,
            deleted: current.is_some(),
        }))
    }

    fn raise_format_level(&mut self, level: u32) -> io::Result<Outcome> {
        if level > FORMAT_LEVEL_MAX {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                format!(
                    "the log raises the format level to {level}, but this program supports \
                     {FORMAT_LEVEL_MAX} at most; use a newer program"
                ),
            ));
        }
        self.meta.format_level = self.meta.format_level.max(level);
        Ok(Outcome::FormatLevel(self.meta.format_level))
    }

    /// Raises the revision by one and records its event.
    fn record_event(&mut self, event: &[u8]) -> io::Result<()> {
        self.meta.revision += 1;
        self.events
            .insert(self.meta.revision, event)
            .map_err(redb_error)?;
        self.meta.history_bytes += event.len() as u64;
        Ok(())
    }

    fn trim_history(&mut self) -> io::Result<()> {
        while self.meta.revision - self.meta.compacted > self.options.history_revisions
            || self.meta.history_bytes > self.options.history_bytes
        {
            self.forget_oldest()?;
        }
        Ok(())
    }

    /// Forgets the event of the oldest revision. Without one, all revisions are forgotten.
    fn forget_oldest(&mut self) -> io::Result<()> {
        let oldest = self.events.pop_first().map_err(redb_error)?;
        match oldest {
            None => {
                self.meta.compacted = self.meta.revision;
                self.meta.history_bytes = 0;
            }
            Some((revision, event)) => {
                self.meta.compacted = revision.value();
                self.meta.history_bytes -= event.value().len() as u64;
            }
        }
        Ok(())
    }
}

fn size(key: &Key, value: &Bytes) -> u64 {
    (key.as_str().len() + value.len()) as u64
}
