//! Rows of the state, as snapshots have them.

use bytes::Bytes;

use crate::{
    api::Revision,
    codec::{Malformed, Reader, Writer},
};

/// A row of the state.
pub(crate) enum Row {
    Key { key: String, record: Bytes },
    Event { revision: Revision, record: Bytes },
}

const KEY: u8 = 1;
const EVENT: u8 = 2;

impl Row {
    pub(crate) fn encode(&self, to: &mut Writer) {
        match self {
            Self::Key { key, record } => {
                to.u8(KEY);
                to.text(key);
                to.bytes(record);
            }
            Self::Event { revision, record } => {
                to.u8(EVENT);
                to.u64(*revision);
                to.bytes(record);
            }
        }
    }

    pub(crate) fn decode(from: &mut Reader) -> Result<Self, Malformed> {
        match from.u8()? {
            KEY => Ok(Self::Key {
                key: from.text()?,
                record: from.bytes()?,
            }),
            EVENT => Ok(Self::Event {
                revision: from.u64()?,
                record: from.bytes()?,
            }),
            _ => Err(from.malformed()),
        }
    }

    pub(crate) fn is_event(&self) -> bool {
        matches!(self, Self::Event { .. })
    }
}
