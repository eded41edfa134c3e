//! Formats an empty data directory for a member.
//!
//! Guarantees: only an unformatted member is formatted; the same request again succeeds; a crash
//! leaves the directory unformatted or formatted; a request that is cancelled, for example because
//! its connection was cut, is completed once it writes.

use std::{io, sync::Arc};

use tokio::sync::OwnedMutexGuard;

use super::{Member, Phase};
use crate::{
    api::{Identity, Reason, RestoreResult, Revision, StoreError},
    data_dir::{self, Formatted, INCOMING},
    disk::{Disk, Lane, on_lane},
    entry::{LogId, Members, StoredMembers, Vote},
    format_level::{FORMAT_LEVEL_MAX, FORMAT_LEVEL_MIN, check_format_level},
    log::{Log, LogOptions, Seed},
    raft::{IncomingFile, SnapshotStream, receive_stream},
    snapshot::{Decoder, hexadecimal},
    state::{Meta, State, StateOptions},
};

/// How a snapshot is restored.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RestoreOptions {
    /// SHA-256 that the snapshot must have, in hexadecimal.
    pub checksum: Option<String>,
    /// The restored store has a later revision, so that clients see no revision twice.
    pub min_revision: Revision,
}

/// The first entry of a cluster: its membership.
const FIRST_INDEX: u64 = 1;
const FIRST_TERM: u64 = 1;

/// Sizes of log and state.
#[derive(Clone, Copy)]
struct Sizes {
    log: LogOptions,
    state: StateOptions,
}

impl Member {
    /// Formats the directory as the only voter of a new cluster.
    ///
    /// # Errors
    ///
    /// `AlreadyFormatted` unless the directory is empty or has this identity.
    pub async fn initialize(&self, identity: Identity, address: String) -> Result<(), StoreError> {
        check_identity(&identity)?;
        let first = LogId {
            term: FIRST_TERM,
            leader: identity.member_id,
            index: FIRST_INDEX,
        };
        let mut meta = Meta::new(identity.cluster_id.clone(), FORMAT_LEVEL_MAX);
        set_only_voter(&mut meta, first, &identity, address);
        self.format_with(identity, move |disk, sizes| {
            State::create(disk, sizes.state, &meta)?;
            Log::create(disk, sizes.log, seed(first))
        })
        .await
    }

    /// Formats the directory for a member that the leader adds as a learner.
    ///
    /// # Errors
    ///
    /// As [`Member::initialize`].
    pub async fn format(&self, identity: Identity) -> Result<(), StoreError> {
        check_identity(&identity)?;
        let meta = Meta::new(identity.cluster_id.clone(), FORMAT_LEVEL_MIN);
        self.format_with(identity, move |disk, sizes| {
            State::create(disk, sizes.state, &meta)?;
            Log::create(disk, sizes.log, Seed::default())
        })
        .await
    }

    /// Formats the directory as the only voter of a new cluster with the data of a snapshot.
    ///
    /// # Errors
    ///
    /// As [`Member::initialize`]; `Invalid` if the snapshot is damaged or another one.
    pub async fn restore(
        &self,
        identity: Identity,
        address: String,
        options: RestoreOptions,
        snapshot: SnapshotStream,
    ) -> Result<RestoreResult, StoreError> {
        check_identity(&identity)?;
        self.check_unformatted()?;
        let guard = self.lock_formatting().await;
        self.check_unformatted()?;
        let invalid = |error: io::Error| {
            let message = format!("cannot restore the snapshot: {error}");
            StoreError::new(Reason::Invalid, message)
        };
        let disk = &self.shared.disk;
        receive_stream(disk, snapshot).await.map_err(invalid)?;
        let reader = Arc::clone(disk);
        let verify = move |_: &dyn Disk| verify(reader, options);
        let (mut meta, result) = on_lane(disk, Lane::State, verify).await.map_err(invalid)?;
        let last = meta.last_applied.map_or((0, 0), |id| (id.term, id.index));
        let first = LogId {
            term: last.0 + 1,
            leader: identity.member_id,
            index: last.1 + 1,
        };
        meta.cluster = identity.cluster_id.clone();
        meta.revision = result.revision;
        meta.compacted = result.revision;
        meta.history_bytes = 0;
        set_only_voter(&mut meta, first, &identity, address);
        let reader = Arc::clone(disk);
        self.format_locked(guard, identity, move |disk, sizes| {
            State::create(disk, sizes.state, &meta)?;
            let state = State::open(disk, sizes.state)?;
            let records = Decoder::new(IncomingFile::new(reader))?;
            let keys = records.filter(|record| !matches!(record, Ok(record) if record.is_event()));
            state.replace(meta, keys)?;
            state.finish();
            drop(state);
            Log::create(disk, sizes.log, seed(first))
        })
        .await?;
        let remove = |disk: &dyn Disk| disk.remove(INCOMING);
        if let Err(error) = on_lane(disk, Lane::State, remove).await {
            tracing::warn!(%error, "cannot remove the received snapshot; the next start does");
        }
        Ok(result)
    }

    fn check_unformatted(&self) -> Result<(), StoreError> {
        match &*self.phase() {
            Phase::Unformatted => Ok(()),
            _ => Err(already_formatted()),
        }
    }

    async fn format_with(
        &self,
        identity: Identity,
        create: impl FnOnce(&dyn Disk, Sizes) -> io::Result<()> + Send + 'static,
    ) -> Result<(), StoreError> {
        let guard = self.lock_formatting().await;
        if let Phase::Formatted(node) = &*self.phase() {
            if *node.identity() == identity {
                return Ok(());
            }
            return Err(already_formatted());
        }
        self.format_locked(guard, identity, create).await
    }

    async fn lock_formatting(&self) -> OwnedMutexGuard<()> {
        Arc::clone(&self.shared.formatting).lock_owned().await
    }

    /// Formats and starts, also if the caller is cancelled: a directory that is formatted and whose
    /// node does not run needs a restart. The caller has checked the phase.
    async fn format_locked(
        &self,
        guard: OwnedMutexGuard<()>,
        identity: Identity,
        create: impl FnOnce(&dyn Disk, Sizes) -> io::Result<()> + Send + 'static,
    ) -> Result<(), StoreError> {
        let member = self.clone();
        let formatting = tokio::spawn(async move {
            let result = member.format_and_start(identity, create).await;
            drop(guard);
            result
        });
        formatting.await.unwrap_or_else(|error| {
            let message = format!("cannot format the data directory: {error}; restart the member");
            Err(StoreError::new(Reason::StorageFailed, message))
        })
    }

    async fn format_and_start(
        &self,
        identity: Identity,
        create: impl FnOnce(&dyn Disk, Sizes) -> io::Result<()> + Send + 'static,
    ) -> Result<(), StoreError> {
        let formatted = Formatted {
            identity,
            format_level: FORMAT_LEVEL_MAX,
        };
        let sizes = Sizes {
            log: self.shared.config.log_options(),
            state: self.shared.config.state_options(),
        };
        let written = formatted.clone();
        let format =
            move |disk: &dyn Disk| data_dir::format(disk, &written, |disk| create(disk, sizes));
        let failed = |error: io::Error| {
            let message = format!("cannot format the data directory: {error}; restart the member");
            StoreError::new(Reason::StorageFailed, message)
        };
        let mut result = on_lane(&self.shared.disk, Lane::State, format).await;
        if result.is_ok() {
            result = self.start(formatted).await;
        }
        result.map_err(|error| {
            // What is on disk now is known after a restart only.
            *self.phase() = Phase::Stopped(None);
            failed(error)
        })
    }
}

fn verify(disk: Arc<dyn Disk>, options: RestoreOptions) -> io::Result<(Meta, RestoreResult)> {
    let mut decoder = Decoder::new(IncomingFile::new(disk))?;
    for record in decoder.by_ref() {
        record?;
    }
    let footer = decoder.footer()?;
    let checksum = hexadecimal(&footer.checksum);
    if options
        .checksum
        .is_some_and(|expected| expected != checksum)
    {
        let message = format!("it has the checksum {checksum}, not the requested one");
        return Err(io::Error::new(io::ErrorKind::InvalidData, message));
    }
    let meta = decoder.meta().clone();
    check_format_level(meta.format_level)?;
    let result = RestoreResult {
        revision: meta.revision.max(options.min_revision) + 1,
        snapshot_revision: meta.revision,
        checksum,
        keys: footer.keys,
    };
    Ok((meta, result))
}

fn set_only_voter(meta: &mut Meta, first: LogId, identity: &Identity, address: String) {
    meta.last_applied = Some(first);
    meta.installed = Some(first);
    meta.members = StoredMembers {
        log_id: Some(first),
        members: Members {
            configs: vec![[identity.member_id].into()],
            addresses: [(identity.member_id, address)].into(),
        },
    };
}

/// A log after the first entry, and a vote of its term.
fn seed(first: LogId) -> Seed {
    Seed {
        vote: Some(Vote {
            term: first.term,
            candidate: first.leader,
            committed: false,
        }),
        purged: Some(first),
    }
}

fn check_identity(identity: &Identity) -> Result<(), StoreError> {
    if identity.member_id == 0 {
        let message = "member id 0 is not allowed; use an allocated id";
        return Err(StoreError::new(Reason::Invalid, message));
    }
    Ok(())
}

fn already_formatted() -> StoreError {
    StoreError::new(
        Reason::AlreadyFormatted,
        "the data directory already belongs to a member; use an empty directory",
    )
}
