//! The log in memory: the entries of the segments, in the order of the indexes.
//!
//! Guarantees: entries have no holes and begin after the purged one; reads need no disk.

use std::{collections::VecDeque, io};

use super::frame::{Begin, Operation};
use crate::entry::{Entry, LogId, Vote};

/// The log of a member. Bounded by snapshots: entries are purged once the state has them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Memory {
    pub(crate) vote: Option<Vote>,
    pub(crate) committed: Option<LogId>,
    pub(crate) purged: Option<LogId>,
    /// Invariant: the indexes rise by one, the first follows `purged`.
    entries: VecDeque<Entry>,
    /// Encoded lengths of `entries`, in the same order.
    lengths: VecDeque<usize>,
    /// The sum of `lengths`.
    bytes: usize,
    /// Bytes of all entries that were appended since the log was opened.
    appended_bytes: u64,
    /// While segments are read: entries up to this index were in a segment that is gone. They must
    /// be purged by a later operation.
    unread: Option<u64>,
}

impl Memory {
    pub(crate) fn last(&self) -> Option<LogId> {
        self.entries
            .back()
            .map(|entry| entry.log_id)
            .or(self.purged)
    }

    pub(crate) fn appended_bytes(&self) -> u64 {
        self.appended_bytes
    }

    pub(super) fn begin(&self) -> Begin {
        Begin {
            vote: self.vote,
            committed: self.committed,
            purged: self.purged,
            last: self.last(),
        }
    }

    fn first_index(&self) -> u64 {
        self.entries
            .front()
            .map_or_else(|| next_index(self.last()), |entry| entry.log_id.index)
    }

    /// The entries with indexes from `start` to before `end` that are in the log, up to a number
    /// of bytes, but at least one.
    pub(crate) fn entries(&self, start: u64, end: u64, bytes_max: usize) -> Vec<Entry> {
        let first = self.first_index();
        let skip = usize::try_from(start.saturating_sub(first)).unwrap_or(usize::MAX);
        let count = usize::try_from(end.saturating_sub(start.max(first))).unwrap_or(usize::MAX);
        let mut bytes = 0;
        let mut taken = Vec::new();
        let range = self
            .entries
            .iter()
            .zip(&self.lengths)
            .skip(skip)
            .take(count);
        for (entry, length) in range {
            bytes += length;
            if bytes > bytes_max && !taken.is_empty() {
                break;
            }
            taken.push(entry.clone());
        }
        taken
    }

    /// The highest index such that the entries after it have at most `bytes` bytes.
    pub(crate) fn index_before_last_bytes(&self, bytes: usize) -> Option<u64> {
        let mut sum = 0;
        for (entry, length) in self.entries.iter().zip(&self.lengths).rev() {
            sum += length;
            if sum > bytes {
                return Some(entry.log_id.index);
            }
        }
        None
    }

    /// Applies an operation.
    ///
    /// # Errors
    ///
    /// The operation does not continue the log: a hole, or a change of a purged entry.
    pub(super) fn apply(&mut self, operation: Operation, length: usize) -> io::Result<()> {
        match operation {
            Operation::Begin(begin) => self.check_begin(begin)?,
            Operation::Append(entry) => self.append(entry, length)?,
            Operation::Vote(vote) => self.vote = Some(vote),
            Operation::Committed(id) => self.committed = Some(id),
            Operation::Truncate(after) => self.truncate(after),
            Operation::Purge(id) => self.purge(id),
        }
        debug_assert!(self.is_consistent());
        Ok(())
    }

    /// A segment begins: it repeats what the log is, or is the first one that is left.
    fn check_begin(&mut self, begin: Begin) -> io::Result<()> {
        if self.vote.is_none() && self.last().is_none() {
            self.vote = begin.vote;
            self.committed = begin.committed;
            self.purged = begin.purged;
            if begin.last > begin.purged {
                self.purged = begin.last;
                self.unread = begin.last.map(|id| id.index);
            }
            return Ok(());
        }
        if begin.last != self.last() || begin.vote != self.vote {
            return Err(invalid("a segment does not continue the one before it"));
        }
        Ok(())
    }

    fn append(&mut self, entry: Entry, length: usize) -> io::Result<()> {
        let expected = next_index(self.last());
        if self.last().is_some() && entry.log_id.index != expected {
            let message = format!(
                "entry {} does not follow index {}",
                entry.log_id,
                expected.wrapping_sub(1)
            );
            return Err(invalid(&message));
        }
        self.bytes += length;
        self.appended_bytes += length as u64;
        self.lengths.push_back(length);
        self.entries.push_back(entry);
        Ok(())
    }

    fn truncate(&mut self, after: Option<LogId>) {
        let after_index = after.map(|id| id.index);
        while let Some(entry) = self.entries.back() {
            if Some(entry.log_id.index) <= after_index {
                break;
            }
            self.entries.pop_back();
            self.bytes -= self.lengths.pop_back().expect("every entry has a length");
        }
        if self.entries.is_empty() && after_index < self.unread {
            self.purged = after;
            self.unread = after_index;
        }
    }

    fn purge(&mut self, id: LogId) {
        while let Some(entry) = self.entries.front() {
            if entry.log_id.index > id.index {
                break;
            }
            self.entries.pop_front();
            self.bytes -= self.lengths.pop_front().expect("every entry has a length");
        }
        if self.purged.is_none_or(|purged| purged.index < id.index) {
            self.purged = Some(id);
        }
        if self.unread <= Some(id.index) {
            self.unread = None;
        }
    }

    /// Fails if entries are missing: a segment is gone that was not purged.
    pub(super) fn finish_reading(&self) -> io::Result<()> {
        match self.unread {
            None => Ok(()),
            Some(index) => Err(invalid(&format!(
                "the entries up to index {index} are in no segment; a log file was removed"
            ))),
        }
    }

    fn is_consistent(&self) -> bool {
        let Some((first, last)) = self.entries.front().zip(self.entries.back()) else {
            return self.bytes == 0 && self.lengths.is_empty();
        };
        let count = self.entries.len();
        let follows = self.purged.is_none() || first.log_id.index == next_index(self.purged);
        follows
            && count == self.lengths.len()
            && first.log_id.index + count as u64 == last.log_id.index + 1
    }
}

fn next_index(id: Option<LogId>) -> u64 {
    id.map_or(0, |id| id.index + 1)
}

fn invalid(message: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, message)
}
