//! Keys, values, lists and watch events of the client API.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use super::{Revision, base64_bytes};

/// The longest key in bytes: keys are copied into every log entry, event and list.
pub const KEY_BYTES_MAX: usize = 1024;

/// The longest value in bytes: the limit of an object in etcd is 1.5 MiB.
pub const VALUE_BYTES_MAX: usize = 1024 * 1024;

/// Items in a page if the request has no limit.
pub const LIST_LIMIT_DEFAULT: usize = 500;

/// Items in a page at most. A page also ends when its values reach 4 MiB.
pub const LIST_LIMIT_MAX: usize = 10_000;

/// A key: 1 to [`KEY_BYTES_MAX`] bytes of UTF-8 text.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Key(String);

/// Why a text is not a [`Key`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("key has {bytes} bytes; use 1 to {KEY_BYTES_MAX}")]
pub struct InvalidKey {
    /// The length of the text.
    pub bytes: usize,
}

impl Key {
    /// The key as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for Key {
    type Err = InvalidKey;

    fn from_str(text: &str) -> Result<Self, InvalidKey> {
        text.to_owned().try_into()
    }
}

impl TryFrom<String> for Key {
    type Error = InvalidKey;

    fn try_from(text: String) -> Result<Self, InvalidKey> {
        if (1..=KEY_BYTES_MAX).contains(&text.len()) {
            Ok(Self(text))
        } else {
            Err(InvalidKey { bytes: text.len() })
        }
    }
}

impl From<Key> for String {
    fn from(key: Key) -> Self {
        key.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// How current a read is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Consistency {
    /// At least as new as every write that was acknowledged before the read began.
    #[default]
    Linearizable,
    /// The applied state of the member that answers, which may be old.
    Stale,
}

/// The result of a put or a delete.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct WriteResult {
    /// The revision of the store after the write.
    pub revision: Revision,
    /// The revision at which the key was created. 0 after a delete.
    pub create_revision: Revision,
    /// The revision of the key's last write. 0 after a delete.
    pub mod_revision: Revision,
    /// Writes of the key since its creation. 0 after a delete.
    pub version: u64,
    /// Whether a delete found the key.
    pub deleted: bool,
}

/// A key with its value and revisions.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Item {
    /// The key.
    pub key: Key,
    /// The value; base64 in JSON.
    #[serde(with = "base64_bytes")]
    pub value: Vec<u8>,
    /// The revision at which the key was created.
    pub create_revision: Revision,
    /// The revision of the last write.
    pub mod_revision: Revision,
    /// Writes since the creation, which is 1.
    pub version: u64,
}

/// Values may be secret, so only their length is printed.
impl fmt::Debug for Item {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Item")
            .field("key", &self.key)
            .field("value_bytes", &self.value.len())
            .field("create_revision", &self.create_revision)
            .field("mod_revision", &self.mod_revision)
            .field("version", &self.version)
            .finish()
    }
}

/// A page of a list, in the order of the keys. All items of a page are of one revision.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ListPage {
    /// The revision of the page.
    pub revision: Revision,
    /// The items.
    pub items: Vec<Item>,
    /// The `start` of the next page; absent on the last page. Later pages may be of a later
    /// revision, which they name.
    #[serde(rename = "continue", skip_serializing_if = "Option::is_none", default)]
    pub continue_from: Option<String>,
}

/// A change of a key, as watches deliver it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "UPPERCASE",
    rename_all_fields = "camelCase"
)]
pub enum Event {
    /// The key was written.
    Put {
        /// The key.
        key: Key,
        /// The new value; base64 in JSON.
        #[serde(with = "base64_bytes")]
        value: Vec<u8>,
        /// The revision of the write.
        revision: Revision,
        /// The revision at which the key was created; equal to `revision` for a new key.
        create_revision: Revision,
        /// Writes since the creation.
        version: u64,
    },
    /// The key was deleted.
    Delete {
        /// The key.
        key: Key,
        /// The revision of the delete.
        revision: Revision,
    },
}

impl Event {
    /// The key that changed.
    pub fn key(&self) -> &Key {
        match self {
            Self::Put { key, .. } | Self::Delete { key, .. } => key,
        }
    }

    /// The revision of the change.
    pub fn revision(&self) -> Revision {
        match self {
            Self::Put { revision, .. } | Self::Delete { revision, .. } => *revision,
        }
    }
}

/// Values may be secret, so they are not printed.
impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self {
            Self::Put { .. } => "Put",
            Self::Delete { .. } => "Delete",
        };
        f.debug_struct(name)
            .field("key", self.key())
            .field("revision", &self.revision())
            .finish()
    }
}

/// A line of a watch stream.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
pub enum WatchLine {
    /// A change.
    Event(Event),
    /// All events up to a revision were delivered: the watch can be resumed from the next one.
    Progress {
        /// `PROGRESS`.
        #[serde(rename = "type")]
        kind: ProgressKind,
        /// The revision.
        revision: Revision,
    },
    /// The stream ends with this error.
    Error {
        /// `ERROR`.
        #[serde(rename = "type")]
        kind: ErrorKind,
        /// What happened.
        error: super::ErrorBody,
    },
}

/// The type of a progress line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ProgressKind {
    /// `PROGRESS`.
    #[serde(rename = "PROGRESS")]
    Progress,
}

/// The type of an error line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ErrorKind {
    /// `ERROR`.
    #[serde(rename = "ERROR")]
    Error,
}
