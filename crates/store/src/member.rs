//! One member of a store: the facade over disk, log, state and Raft.
//!
//! In: requests of clients, of the operator and of other members. Out: results.
//!
//! Guarantees: an unformatted member serves its status and nothing else; it becomes part of a
//! cluster by an explicit request only. A formatted directory keeps its identity forever.

mod config;
mod format;
mod requests;
mod status;

use std::{
    io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

pub use config::{MemberConfig, Timing};
pub use format::RestoreOptions;
pub use requests::{Range, ReadResult, Write};
use tokio::sync::Notify;

use crate::{
    api::{Reason, StoreError},
    data_dir::{self, Formatted},
    disk::{Disk, Lane, on_lane},
    format_level::check_format_level,
    log::Log,
    raft::{Node, Parts, PeerRequest, PeerResponse, PeerTransport},
    state::State,
};

/// Why a member did not start.
#[derive(Debug, thiserror::Error)]
#[error("cannot open the store: {0}")]
pub struct OpenError(#[from] pub io::Error);

/// A member in this process. Clones are handles of the same one.
///
/// Dropping all handles does not stop it; call [`Member::shut_down`].
#[derive(Clone)]
pub struct Member {
    shared: Arc<Shared>,
}

struct Shared {
    config: MemberConfig,
    disk: Arc<dyn Disk>,
    transport: Arc<dyn PeerTransport>,
    phase: Mutex<Phase>,
    /// Notified when the node of a formatted directory runs.
    started: Notify,
    /// Held while the directory is formatted.
    formatting: Arc<tokio::sync::Mutex<()>>,
    reads: AtomicU64,
    writes: AtomicU64,
}

enum Phase {
    Unformatted,
    Formatted(Arc<Node>),
    /// The node that ran, if there was one.
    Stopped(Option<Arc<Node>>),
}

impl Member {
    /// Opens a data directory and starts its member.
    ///
    /// # Errors
    ///
    /// The directory is damaged, of a newer format, or not of a store; the message names the cause
    /// and what to do.
    pub async fn open(
        config: MemberConfig,
        disk: Arc<dyn Disk>,
        transport: Arc<dyn PeerTransport>,
    ) -> Result<Self, OpenError> {
        let member = Self {
            shared: Arc::new(Shared {
                config,
                disk,
                transport,
                phase: Mutex::new(Phase::Unformatted),
                started: Notify::new(),
                formatting: Arc::default(),
                reads: AtomicU64::default(),
                writes: AtomicU64::default(),
            }),
        };
        let disk = &member.shared.disk;
        if let Some(formatted) = on_lane(disk, Lane::State, data_dir::open).await? {
            member.start(formatted).await?;
        }
        Ok(member)
    }

    /// Starts the Raft node of a formatted directory.
    async fn start(&self, formatted: Formatted) -> io::Result<()> {
        let shared = &self.shared;
        let options = shared.config.state_options();
        let open = move |disk: &dyn Disk| State::open(disk, options);
        let state = Arc::new(on_lane(&shared.disk, Lane::State, open).await?);
        let meta = state.meta();
        check_format_level(meta.format_level)?;
        if meta.cluster != formatted.identity.cluster_id {
            let message = format!(
                "the state is of cluster {}, the directory of cluster {}; files were mixed up, \
                 replace the member",
                meta.cluster, formatted.identity.cluster_id
            );
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        let log = Log::open(Arc::clone(&shared.disk), shared.config.log_options()).await?;
        let parts = Parts {
            formatted,
            log,
            state,
            disk: Arc::clone(&shared.disk),
            transport: Arc::clone(&shared.transport),
        };
        let node = Node::start(parts, shared.config.node_options()).await?;
        *self.phase() = Phase::Formatted(Arc::new(node));
        shared.started.notify_waiters();
        Ok(())
    }

    /// Processes a request of another member.
    ///
    /// # Errors
    ///
    /// `WrongCluster` if the request is for another cluster or member; `Unformatted` before the
    /// member belongs to a cluster.
    pub async fn handle_peer(&self, request: PeerRequest) -> Result<PeerResponse, StoreError> {
        self.node()?.receive(request).await
    }

    /// Returns when the member stopped because of an error, with the error. The process must exit:
    /// the member acknowledges nothing any more.
    pub async fn failed(&self) -> String {
        loop {
            let started = self.shared.started.notified();
            let mut started = std::pin::pin!(started);
            // Before the check, so that no start is missed between them.
            started.as_mut().enable();
            if let Ok(node) = self.node() {
                return node.failed().await;
            }
            started.await;
        }
    }

    /// Hands leadership over, stops and makes everything durable. Takes at most a few election
    /// timeouts.
    pub async fn shut_down(&self) {
        // A node that is being started would run on.
        let _formatting = self.shared.formatting.lock().await;
        let Ok(node) = self.node() else {
            return;
        };
        // The node serves its peers until it has handed over: a new leader needs their messages.
        node.shut_down().await;
        *self.phase() = Phase::Stopped(Some(node));
    }

    fn node(&self) -> Result<Arc<Node>, StoreError> {
        match &*self.phase() {
            Phase::Formatted(node) => Ok(Arc::clone(node)),
            Phase::Unformatted => Err(StoreError::new(
                Reason::Unformatted,
                "the member belongs to no cluster yet; initialize, format or restore it",
            )),
            Phase::Stopped(_) => Err(StoreError::new(
                Reason::NotReady,
                "the member is stopping; use another member",
            )),
        }
    }

    fn phase(&self) -> MutexGuard<'_, Phase> {
        let phase = &self.shared.phase;
        phase.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}
