//! Reads of the state: one key, a page of keys, a page of events.

use std::{io, ops::Bound};

use bytes::Bytes;
use redb::ReadableDatabase;

use super::{EVENTS, KEYS, KeyRecord, State, read_meta, record, redb_error};
use crate::api::{Event, Item, Key, ListPage, Revision};

/// Bytes of values in a page, beyond which it ends: what a client holds in memory.
const PAGE_BYTES_MAX: usize = 4 * 1024 * 1024;

/// Events in a page, so that a watch over many other keys yields.
const PAGE_EVENTS_MAX: usize = 1000;

/// Events in the order of their revisions.
pub(crate) struct EventPage {
    /// Events of keys with the prefix.
    pub(crate) events: Vec<Event>,
    /// Every event up to this revision was considered.
    pub(crate) until: Revision,
    /// The compacted revision: events up to it are gone.
    pub(crate) compacted: Revision,
}

impl State {
    /// A key and the revision of the state that it was read from.
    pub(crate) fn get(&self, key: &Key) -> io::Result<(Option<Item>, Revision)> {
        let transaction = self.database.begin_read().map_err(redb_error)?;
        let revision = read_meta(&transaction)?.revision;
        let table = transaction.open_table(KEYS).map_err(redb_error)?;
        let record = table.get(key.as_str()).map_err(redb_error)?;
        let Some(record) = record else {
            return Ok((None, revision));
        };
        let record = KeyRecord::decode(Bytes::copy_from_slice(record.value()))?;
        Ok((Some(record.into_item(key.clone())), revision))
    }

    /// The keys with a prefix, from `start` on, up to a number of items and bytes.
    pub(crate) fn list(&self, prefix: &str, start: &str, limit: usize) -> io::Result<ListPage> {
        let transaction = self.database.begin_read().map_err(redb_error)?;
        let mut page = ListPage {
            revision: read_meta(&transaction)?.revision,
            ..ListPage::default()
        };
        let table = transaction.open_table(KEYS).map_err(redb_error)?;
        let first = if start > prefix { start } else { prefix };
        let range = table
            .range::<&str>((Bound::Included(first), Bound::Unbounded))
            .map_err(redb_error)?;
        let mut bytes = 0;
        for pair in range {
            let (key, record) = pair.map_err(redb_error)?;
            let key = key.value();
            if !key.starts_with(prefix) {
                break;
            }
            if page.items.len() == limit || bytes > PAGE_BYTES_MAX {
                page.continue_from = Some(key.to_owned());
                break;
            }
            bytes += record.value().len();
            let record = KeyRecord::decode(Bytes::copy_from_slice(record.value()))?;
            let key = Key::try_from(key.to_owned()).map_err(io::Error::other)?;
            page.items.push(record.into_item(key));
        }
        Ok(page)
    }

    /// The events from a revision on. With a compacted `from` the page has no events.
    pub(crate) fn events(&self, from: Revision, prefix: &str) -> io::Result<EventPage> {
        let transaction = self.database.begin_read().map_err(redb_error)?;
        let meta = read_meta(&transaction)?;
        let mut page = EventPage {
            events: Vec::new(),
            until: meta.revision.max(from.saturating_sub(1)),
            compacted: meta.compacted,
        };
        if from <= meta.compacted {
            return Ok(page);
        }
        let table = transaction.open_table(EVENTS).map_err(redb_error)?;
        let mut bytes = 0;
        for (count, pair) in table.range(from..).map_err(redb_error)?.enumerate() {
            let (revision, event) = pair.map_err(redb_error)?;
            let revision = revision.value();
            if count == PAGE_EVENTS_MAX || bytes > PAGE_BYTES_MAX {
                page.until = revision - 1;
                break;
            }
            bytes += event.value().len();
            page.events
                .extend(record::decode_event(event.value(), revision, prefix)?);
        }
        Ok(page)
    }
}
