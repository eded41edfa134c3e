//! The state as openraft's state machine.
//!
//! A snapshot is a view of the state, which redb keeps while it is read; nothing is copied. To
//! build one is to make the state durable, after the log: then the entries before it may be purged.

use std::{
    io::{self, Read},
    sync::Arc,
};

use futures_util::{Stream, StreamExt};
use openraft::{
    OptionalSend, RaftSnapshotBuilder, Snapshot,
    storage::{ApplyResponder, EntryResponder, RaftStateMachine},
};
use tokio::sync::{Mutex, OwnedMutexGuard};

use super::types::{
    LeaderId, RaftLogId, RaftSnapshotMeta, RaftStoredMembership, Types, entry, log_id, raft_log_id,
    raft_stored_membership, stored_members,
};
use crate::{
    data_dir::{Formatted, INCOMING, write_identity},
    disk::{Disk, Lane, on_lane},
    entry::{Command, Entry, Payload},
    format_level::check_format_level,
    log::Log,
    snapshot::{Decoder, SnapshotReader},
    state::{Meta, State},
};

/// Entries in one transaction at most, so that the first of many is answered early.
const APPLY_ENTRIES_MAX: usize = 512;

type RaftSnapshot = Snapshot<LeaderId, u64, openraft::BasicNode, SnapshotData>;

/// What members exchange as a snapshot.
pub(crate) enum SnapshotData {
    /// The state of this member.
    View(Box<SnapshotReader>),
    /// A complete and verified snapshot of another member, in the file [`INCOMING`]. The file is
    /// not replaced before this is dropped.
    Received {
        file: IncomingFile,
        _lock: OwnedMutexGuard<()>,
    },
}

#[derive(Clone)]
pub(super) struct StateMachine {
    pub(super) state: Arc<State>,
    pub(super) log: Log,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) formatted: Formatted,
    /// Held while the state changes, and while log and state are made durable: a sync of the state
    /// covers everything that was applied, and none of it may be missing in the log.
    pub(super) changing: Arc<Mutex<()>>,
}

impl StateMachine {
    async fn apply_batch(
        &mut self,
        entries: &mut Vec<Entry>,
        responders: &mut Vec<Option<ApplyResponder<Types>>>,
    ) -> io::Result<()> {
        for entry in &*entries {
            if let Payload::Command(Command::RaiseFormatLevel(level)) = &entry.payload {
                self.record_format_level(*level).await?;
            }
        }
        let outcomes = {
            let _changing = self.changing.lock().await;
            self.state.apply(entries)?
        };
        entries.clear();
        for (responder, outcome) in responders.drain(..).zip(outcomes) {
            if let Some(responder) = responder {
                responder.send(outcome);
            }
        }
        Ok(())
    }

    /// The identity has a new level before the state does, so that an older program refuses it.
    async fn record_format_level(&mut self, level: u32) -> io::Result<()> {
        check_format_level(level)?;
        if level > self.formatted.format_level {
            self.formatted.format_level = level;
            let formatted = self.formatted.clone();
            let write = move |disk: &dyn Disk| write_identity(disk, &formatted);
            on_lane(&self.disk, Lane::State, write).await?;
        }
        Ok(())
    }

    /// Makes log and state durable.
    pub(super) async fn sync_all(&self) -> io::Result<()> {
        let _changing = self.changing.lock().await;
        self.sync().await
    }

    async fn sync(&self) -> io::Result<()> {
        // The log first: its entries and commit position are never behind a durable state.
        self.log.flush().await?;
        let state = Arc::clone(&self.state);
        on_lane(&self.disk, Lane::State, move |_| state.sync()).await
    }

    /// A view of the state, after it was made durable: openraft purges the log up to any snapshot
    /// that it has seen.
    async fn durable_view(&self) -> io::Result<RaftSnapshot> {
        let _changing = self.changing.lock().await;
        self.sync().await?;
        let reader = SnapshotReader::new(self.state.view()?)?;
        Ok(RaftSnapshot {
            meta: snapshot_meta(reader.meta()),
            snapshot: SnapshotData::View(Box::new(reader)),
        })
    }
}

fn snapshot_meta(meta: &Meta) -> RaftSnapshotMeta {
    RaftSnapshotMeta {
        last_log_id: meta.last_applied.map(raft_log_id),
        last_membership: raft_stored_membership(&meta.members),
    }
}

impl RaftSnapshotBuilder<Types> for StateMachine {
    type SnapshotData = SnapshotData;

    async fn build_snapshot(&mut self) -> io::Result<RaftSnapshot> {
        self.durable_view().await
    }
}

impl RaftStateMachine<Types> for StateMachine {
    type SnapshotData = SnapshotData;
    type SnapshotBuilder = Self;

    async fn applied_state(&mut self) -> io::Result<(Option<RaftLogId>, RaftStoredMembership)> {
        let meta = self.state.meta();
        let last_applied = meta.last_applied.map(raft_log_id);
        Ok((last_applied, raft_stored_membership(&meta.members)))
    }

    async fn apply<S>(&mut self, mut stream: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types>>> + Unpin + OptionalSend,
    {
        let mut entries = Vec::new();
        let mut responders = Vec::new();
        while let Some(item) = stream.next().await {
            let (next, responder) = item?;
            entries.push(entry(next));
            responders.push(responder);
            if entries.len() == APPLY_ENTRIES_MAX {
                self.apply_batch(&mut entries, &mut responders).await?;
            }
        }
        if entries.is_empty() {
            return Ok(());
        }
        self.apply_batch(&mut entries, &mut responders).await
    }

    async fn get_snapshot_builder(&mut self) -> Self {
        self.clone()
    }

    async fn install_snapshot(
        &mut self,
        meta: &RaftSnapshotMeta,
        snapshot: SnapshotData,
    ) -> io::Result<()> {
        let expected = meta.clone();
        let state = Arc::clone(&self.state);
        let cluster = self.formatted.identity.cluster_id.clone();
        let install = move |disk: &dyn Disk| {
            let is_received = matches!(snapshot, SnapshotData::Received { .. });
            let decoder = Decoder::new(snapshot)?;
            let mut meta = decoder.meta().clone();
            check_format_level(meta.format_level)?;
            let is_expected = meta.cluster == cluster
                && meta.last_applied == expected.last_log_id.as_ref().map(log_id)
                && meta.members == stored_members(&expected.last_membership);
            if !is_expected {
                return Err(io::Error::new(
                    io::ErrorKind::InvalidData,
                    "the received snapshot is not the announced one; transfer it again",
                ));
            }
            meta.installed = meta.last_applied;
            let level = meta.format_level;
            state.replace(meta, decoder)?;
            if is_received {
                disk.remove(INCOMING)?;
            }
            Ok(level)
        };
        let changing = self.changing.lock().await;
        let level = on_lane(&self.disk, Lane::State, install).await?;
        drop(changing);
        self.record_format_level(level).await
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<RaftSnapshot>> {
        if self.state.meta().last_applied.is_none() {
            return Ok(None);
        }
        self.durable_view().await.map(Some)
    }
}

/// The file [`INCOMING`] as bytes.
pub(crate) struct IncomingFile {
    disk: Arc<dyn Disk>,
    offset: u64,
}

impl IncomingFile {
    pub(crate) fn new(disk: Arc<dyn Disk>) -> Self {
        Self { disk, offset: 0 }
    }
}

impl Read for IncomingFile {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.disk.read_at(INCOMING, self.offset, buffer.len())?;
        buffer[..bytes.len()].copy_from_slice(&bytes);
        self.offset += bytes.len() as u64;
        Ok(bytes.len())
    }
}

impl Read for SnapshotData {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Self::View(reader) => reader.read(buffer),
            Self::Received { file, .. } => file.read(buffer),
        }
    }
}
