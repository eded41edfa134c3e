//! The log as openraft's log storage.

use std::{
    fmt::Debug,
    io,
    ops::{Bound, RangeBounds},
};

use openraft::{
    LogState, OptionalSend, RaftLogReader,
    storage::{IOFlushed, RaftLogStorage},
};

use super::types::{
    RaftEntry, RaftLogId, RaftVote, Types, entry, log_id, raft_entry, raft_log_id, raft_vote, vote,
};
use crate::log::{Ack, Log};

/// Bytes of entries in one message to a member: large enough to use the network, small enough to
/// be sent within a heartbeat interval.
const MESSAGE_BYTES_MAX: usize = 1024 * 1024;

#[derive(Clone)]
pub(super) struct LogStore {
    pub(super) log: Log,
}

impl LogStore {
    fn entries(&self, start: u64, end: u64, bytes_max: usize) -> Vec<RaftEntry> {
        let entries = self.log.read(|log| log.entries(start, end, bytes_max));
        entries.into_iter().map(raft_entry).collect()
    }
}

impl RaftLogReader<Types> for LogStore {
    async fn try_get_log_entries<RB>(&mut self, range: RB) -> io::Result<Vec<RaftEntry>>
    where
        RB: RangeBounds<u64> + Clone + Debug + OptionalSend,
    {
        let start = match range.start_bound() {
            Bound::Included(start) => *start,
            Bound::Excluded(before) => before + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(last) => last + 1,
            Bound::Excluded(end) => *end,
            Bound::Unbounded => u64::MAX,
        };
        Ok(self.entries(start, end, usize::MAX))
    }

    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> io::Result<Vec<RaftEntry>> {
        Ok(self.entries(start, end, MESSAGE_BYTES_MAX))
    }

    async fn read_vote(&mut self) -> io::Result<Option<RaftVote>> {
        Ok(self.log.read(|log| log.vote).map(raft_vote))
    }
}

impl RaftLogStorage<Types> for LogStore {
    type LogReader = Self;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types>> {
        Ok(self.log.read(|log| LogState {
            last_purged_log_id: log.purged.map(raft_log_id),
            last_log_id: log.last().map(raft_log_id),
        }))
    }

    async fn get_log_reader(&mut self) -> Self {
        self.clone()
    }

    async fn save_vote(&mut self, new: &RaftVote) -> io::Result<()> {
        self.log.save_vote(vote(new)).await
    }

    async fn save_committed(&mut self, committed: Option<RaftLogId>) -> io::Result<()> {
        match committed {
            None => Ok(()),
            Some(id) => self.log.save_committed(log_id(&id)),
        }
    }

    async fn read_committed(&mut self) -> io::Result<Option<RaftLogId>> {
        Ok(self.log.read(|log| log.committed).map(raft_log_id))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types>) -> io::Result<()>
    where
        I: IntoIterator<Item = RaftEntry> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let ack: Ack = Box::new(|result| callback.io_completed(result));
        self.log.append(entries.into_iter().map(entry), ack)
    }

    async fn truncate_after(&mut self, last: Option<RaftLogId>) -> io::Result<()> {
        self.log.truncate(last.as_ref().map(log_id))
    }

    async fn purge(&mut self, id: RaftLogId) -> io::Result<()> {
        self.log.purge(log_id(&id))
    }
}
