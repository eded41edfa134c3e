//! Requests of clients and of the operator.

use std::{collections::BTreeSet, io, sync::Arc};

use bytes::Bytes;

use super::{Member, count};
use crate::{
    api::{
        Consistency, Item, Key, LIST_LIMIT_DEFAULT, LIST_LIMIT_MAX, ListPage, MemberId, Reason,
        Revision, StoreError, VALUE_BYTES_MAX, WriteResult,
    },
    entry::Command,
    raft::{Forward, Forwarded, Node},
    snapshot::SnapshotReader,
    watch::WatchStream,
};

/// A change of one key.
#[derive(Clone, PartialEq, Eq)]
pub enum Write {
    /// Sets a value.
    Put {
        /// The key.
        key: Key,
        /// The value.
        value: Bytes,
        /// Only if the key has this revision; 0: only if it does not exist.
        if_revision: Option<Revision>,
    },
    /// Deletes a key.
    Delete {
        /// The key.
        key: Key,
        /// Only if the key has this revision; 0: only if it does not exist.
        if_revision: Option<Revision>,
    },
}

/// A key as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadResult {
    /// The key, if it exists.
    pub item: Option<Item>,
    /// The revision of the store that was read.
    pub revision: Revision,
}

/// Which keys a list returns.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Range {
    /// Keys with this prefix.
    pub prefix: String,
    /// Keys from this one on; empty: from the first one on.
    pub start: String,
    /// Items at most; 0: the default.
    pub limit: usize,
}

impl Member {
    /// Writes a key. Returns when a quorum has the write on disk and this cluster's leader has
    /// applied it.
    ///
    /// # Errors
    ///
    /// `ConditionFailed` with the current revision; `NoLeader` if the write was not accepted;
    /// `Unknown` if it may have been.
    pub async fn write(&self, write: Write) -> Result<WriteResult, StoreError> {
        count(&self.shared.writes);
        let command = match write {
            Write::Put {
                key,
                value,
                if_revision,
            } => {
                check_value(&key, &value)?;
                Command::Put {
                    key,
                    value,
                    if_revision,
                }
            }
            Write::Delete { key, if_revision } => Command::Delete { key, if_revision },
        };
        match self.node()?.submit(Forward::Write(command)).await? {
            Forwarded::Written(result) => Ok(result),
            other => Err(unexpected(other)),
        }
    }

    /// Reads a key.
    ///
    /// # Errors
    ///
    /// `NoLeader` if a linearizable read cannot be confirmed by a quorum.
    pub async fn read(
        &self,
        key: &Key,
        consistency: Consistency,
    ) -> Result<ReadResult, StoreError> {
        count(&self.shared.reads);
        let node = self.consistent_node(consistency).await?;
        let (item, revision) = node.state().get(key).map_err(read_failed)?;
        Ok(ReadResult { item, revision })
    }

    /// Lists keys.
    ///
    /// # Errors
    ///
    /// As [`Member::read`].
    pub async fn list(
        &self,
        range: Range,
        consistency: Consistency,
    ) -> Result<ListPage, StoreError> {
        count(&self.shared.reads);
        let limit = match range.limit {
            0 => LIST_LIMIT_DEFAULT,
            limit => limit.min(LIST_LIMIT_MAX),
        };
        let node = self.consistent_node(consistency).await?;
        let page = node.state().list(&range.prefix, &range.start, limit);
        page.map_err(read_failed)
    }

    /// The node, once its state is as new as the consistency demands.
    async fn consistent_node(&self, consistency: Consistency) -> Result<Arc<Node>, StoreError> {
        let node = self.node()?;
        if consistency == Consistency::Stale {
            return Ok(node);
        }
        let index = match node.submit(Forward::ReadIndex).await? {
            Forwarded::ReadIndex(index) => index,
            other => return Err(unexpected(other)),
        };
        if node.wait_applied(index).await {
            return Ok(node);
        }
        Err(StoreError::new(
            Reason::NotReady,
            "this member has not applied the latest writes in time; use another member",
        ))
    }

    /// Watches keys with a prefix, from a revision on; without one, from now on.
    ///
    /// # Errors
    ///
    /// `Compacted` if the history does not reach back to the revision.
    pub fn watch(&self, prefix: &str, from: Option<Revision>) -> Result<WatchStream, StoreError> {
        let state = Arc::clone(self.node()?.state());
        WatchStream::new(state, prefix, from)
    }

    /// A snapshot of this member's state, for a backup.
    ///
    /// # Errors
    ///
    /// As [`Member::read`]: a backup has every write that was acknowledged before.
    pub async fn snapshot(&self) -> Result<SnapshotReader, StoreError> {
        let node = self.consistent_node(Consistency::Linearizable).await?;
        let view = node.state().view().map_err(read_failed)?;
        SnapshotReader::new(view).map_err(read_failed)
    }

    /// Reserves a member id that no member had or will get again.
    pub async fn allocate_member_id(&self) -> Result<MemberId, StoreError> {
        let request = Forward::Write(Command::AllocateMemberId);
        match self.node()?.submit(request).await? {
            Forwarded::Allocated(id) => Ok(id),
            other => Err(unexpected(other)),
        }
    }

    /// Adds a learner. Returns when the membership is committed, not when it has caught up.
    pub async fn add_learner(&self, id: MemberId, address: String) -> Result<(), StoreError> {
        let request = Forward::AddLearner { id, address };
        self.node()?.submit(request).await.map(|_| ())
    }

    /// Replaces voters and learners. Members in neither set are removed.
    ///
    /// # Errors
    ///
    /// `ConditionFailed` if the membership is not the expected one; `Busy` if a new voter lags or a
    /// change is in progress; after `Unknown`, read the status and repeat the request.
    pub async fn change_membership(
        &self,
        voters: BTreeSet<MemberId>,
        learners: BTreeSet<MemberId>,
        expected_index: u64,
    ) -> Result<(), StoreError> {
        let request = Forward::ChangeMembership {
            voters,
            learners,
            expected_index,
        };
        self.node()?.submit(request).await.map(|_| ())
    }

    /// Makes a voter the leader. Returns when it is.
    pub async fn transfer_leader(&self, to: MemberId) -> Result<(), StoreError> {
        let request = Forward::TransferLeader(to);
        self.node()?.submit(request).await.map(|_| ())
    }

    /// Raises the format level of the cluster, if every member supports it.
    pub async fn raise_format_level(&self, level: u32) -> Result<(), StoreError> {
        let request = Forward::RaiseFormatLevel(level);
        self.node()?.submit(request).await.map(|_| ())
    }

    /// Forgets the watch history up to the current revision, on all members, and makes the state
    /// of this member durable, so that its log can be purged.
    pub async fn compact(&self) -> Result<(), StoreError> {
        let node = self.node()?;
        let request = Forward::Write(Command::Compact(node.state().revision()));
        node.submit(request).await?;
        node.trigger_snapshot().await.map_err(read_failed)
    }
}

fn check_value(key: &Key, value: &Bytes) -> Result<(), StoreError> {
    if value.len() <= VALUE_BYTES_MAX {
        return Ok(());
    }
    let message = format!(
        "the value of {key} has {} bytes; at most {VALUE_BYTES_MAX} are allowed",
        value.len()
    );
    Err(StoreError::new(Reason::TooLarge, message))
}

fn read_failed(error: io::Error) -> StoreError {
    let message = format!("cannot read the state: {error}; use another member");
    StoreError::new(Reason::StorageFailed, message)
}

fn unexpected(result: Forwarded) -> StoreError {
    let message = format!("the leader returned {result:?}, which is not a result of the request");
    StoreError::new(Reason::Unknown, message)
}
