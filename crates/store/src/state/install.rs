//! A snapshot replaces the state as a whole.
//!
//! Guarantee: all or nothing. The replacement is one durable transaction.

use std::io;

use redb::Durability;

use super::{EVENTS, KEYS, Meta, Row, State, redb_error, write_meta};

impl State {
    /// Replaces keys, events and metadata.
    ///
    /// # Errors
    ///
    /// The state is unchanged if the rows end with an error.
    pub(crate) fn replace(
        &self,
        meta: Meta,
        rows: impl Iterator<Item = io::Result<Row>>,
    ) -> io::Result<()> {
        let mut transaction = self.database.begin_write().map_err(redb_error)?;
        transaction
            .set_durability(Durability::Immediate)
            .map_err(redb_error)?;
        transaction.delete_table(KEYS).map_err(redb_error)?;
        transaction.delete_table(EVENTS).map_err(redb_error)?;
        {
            let mut keys = transaction.open_table(KEYS).map_err(redb_error)?;
            let mut events = transaction.open_table(EVENTS).map_err(redb_error)?;
            for row in rows {
                match row? {
                    Row::Key { key, record } => {
                        keys.insert(key.as_str(), &record[..]).map_err(redb_error)?;
                    }
                    Row::Event { revision, record } => {
                        events.insert(revision, &record[..]).map_err(redb_error)?;
                    }
                }
            }
        }
        write_meta(&transaction, &meta)?;
        transaction.commit().map_err(redb_error)?;
        *self.lock() = meta;
        self.changed.notify_waiters();
        Ok(())
    }
}
