//! Records of keys and events, as the tables have them.

use bytes::Bytes;

use crate::{
    api::{Event, Item, Key, Revision},
    codec::{Malformed, Reader, Writer},
};

/// The value and revisions of a key.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct KeyRecord {
    pub(crate) create_revision: Revision,
    pub(crate) mod_revision: Revision,
    pub(crate) version: u64,
    pub(crate) value: Bytes,
}

impl KeyRecord {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut writer = Writer(Vec::with_capacity(32 + self.value.len()));
        writer.u64(self.create_revision);
        writer.u64(self.mod_revision);
        writer.u64(self.version);
        writer.bytes(&self.value);
        writer.0
    }

    pub(crate) fn decode(record: Bytes) -> Result<Self, Malformed> {
        let mut reader = Reader::new(record, "key record");
        let decoded = Self {
            create_revision: reader.u64()?,
            mod_revision: reader.u64()?,
            version: reader.u64()?,
            value: reader.bytes()?,
        };
        reader.finish()?;
        Ok(decoded)
    }

    pub(crate) fn into_item(self, key: Key) -> Item {
        Item {
            key,
            value: self.value.into(),
            create_revision: self.create_revision,
            mod_revision: self.mod_revision,
            version: self.version,
        }
    }
}

const PUT: u8 = 1;
const DELETE: u8 = 2;

/// The record of a put.
pub(super) fn encode_put(key: &Key, record: &KeyRecord) -> Vec<u8> {
    let length = 32 + key.as_str().len() + record.value.len();
    let mut writer = Writer(Vec::with_capacity(length));
    writer.u8(PUT);
    writer.text(key.as_str());
    writer.u64(record.create_revision);
    writer.u64(record.version);
    writer.bytes(&record.value);
    writer.0
}

/// The record of a delete.
pub(super) fn encode_delete(key: &Key) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.u8(DELETE);
    writer.text(key.as_str());
    writer.0
}

/// The event of a record at a revision, if its key has the prefix.
pub(super) fn decode_event(
    record: &[u8],
    revision: Revision,
    prefix: &str,
) -> Result<Option<Event>, Malformed> {
    let mut reader = Reader::new(Bytes::copy_from_slice(record), "event record");
    let kind = reader.u8()?;
    let key = reader.text()?;
    if !key.starts_with(prefix) {
        return Ok(None);
    }
    let key = Key::try_from(key).map_err(|_| reader.malformed())?;
    let event = match kind {
        PUT => Event::Put {
            key,
            revision,
            create_revision: reader.u64()?,
            version: reader.u64()?,
            value: reader.bytes()?.into(),
        },
        DELETE => Event::Delete { key, revision },
        _ => return Err(reader.malformed()),
    };
    reader.finish()?;
    Ok(Some(event))
}
