//! Identity of clusters and members, and revisions.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

/// The id of a member. An id is used for one data directory only, ever; 0 is no member.
pub type MemberId = u64;

/// A global revision: rises by one with every write that changes something. 0 is the empty store.
pub type Revision = u64;

/// The id of a cluster: 1 to 63 lower-case letters, digits and dashes, usually a random UUID, so
/// that it is also a label of a DNS name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct ClusterId(String);

/// Why a text is not a [`ClusterId`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("cluster id {0:?} is not 1 to 63 lower-case letters, digits and dashes; use a UUID")]
pub struct InvalidClusterId(String);

impl ClusterId {
    /// The longest cluster id: one DNS label.
    pub const BYTES_MAX: usize = 63;

    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for ClusterId {
    type Err = InvalidClusterId;

    fn from_str(text: &str) -> Result<Self, InvalidClusterId> {
        let is_label =
            |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        let is_valid = (1..=Self::BYTES_MAX).contains(&text.len())
            && text.bytes().all(is_label)
            && !text.starts_with('-')
            && !text.ends_with('-');
        if is_valid {
            Ok(Self(text.to_owned()))
        } else {
            Err(InvalidClusterId(text.to_owned()))
        }
    }
}

impl TryFrom<String> for ClusterId {
    type Error = InvalidClusterId;

    fn try_from(text: String) -> Result<Self, InvalidClusterId> {
        text.parse()
    }
}

impl From<ClusterId> for String {
    fn from(id: ClusterId) -> Self {
        id.0
    }
}

impl fmt::Display for ClusterId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The identity of a data directory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Identity {
    /// The cluster that the directory belongs to.
    pub cluster_id: ClusterId,
    /// The member that the directory belongs to.
    pub member_id: MemberId,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cluster_ids_are_dns_labels() {
        for good in ["a", "0", "6f1c2f6e-7d0f-4a52-9f0e-2f3a4d5b6c7d"] {
            assert_eq!(good.parse::<ClusterId>().unwrap().as_str(), good);
        }
        let long = "a".repeat(ClusterId::BYTES_MAX + 1);
        for bad in ["", "-a", "a-", "A", "a.b", "a b", &long] {
            assert!(bad.parse::<ClusterId>().is_err(), "{bad:?}");
        }
    }
}
