//! A Raft node: openraft with the store's log, state and network.
//!
//! Guarantees: starts only if log and state fit together; takes snapshots and purges the log by
//! size; stops by handing leadership over, then making everything durable.

use std::{io, sync::Arc, time::Duration};

use openraft::{
    Config, Raft, RaftMetrics, ServerState, SnapshotPolicy,
    async_runtime::watch::WatchReceiver as _, errors::Fatal,
};
use tokio::{
    sync::Mutex,
    task::JoinHandle,
    time::{MissedTickBehavior, interval, timeout},
};

use super::{
    log_store::LogStore,
    maintenance::maintain,
    network::Peers,
    recovery::check_recovery,
    runtime,
    state_machine::StateMachine,
    transport::PeerTransport,
    types::{Types, members},
};
use crate::{
    api::{Identity, MemberId, Membership, MembershipMember, Replication, Role},
    data_dir::Formatted,
    disk::Disk,
    log::Log,
    state::State,
};

/// Delays before an unreachable member is tried again: short enough that a restarted member is not
/// behind for long.
const BACKOFF: &str = "50ms 100ms 200ms ...500ms";

/// Entries in one message at most; the bytes are limited too.
const MESSAGE_ENTRIES_MAX: u64 = 4096;

/// How often it is checked whether openraft has stopped. Its metrics change several times with each
/// write, and a task that waits for changes would run each time.
const FAILURE_CHECK_INTERVAL: Duration = Duration::from_millis(100);

/// Settings of a node.
#[derive(Clone, Debug)]
pub(crate) struct NodeOptions {
    pub(crate) heartbeat: Duration,
    pub(crate) election_min: Duration,
    pub(crate) election_max: Duration,
    /// How long a request of a client may take.
    pub(crate) request_timeout: Duration,
    /// How long sending and installing a snapshot may take.
    pub(crate) snapshot_timeout: Duration,
    /// A snapshot is taken after this many bytes of entries.
    pub(crate) snapshot_log_bytes: u64,
    /// Bytes of entries that are kept before a snapshot, for members that lag.
    pub(crate) keep_log_bytes: usize,
    /// How many entries a learner may lag to become a voter.
    pub(crate) promotion_lag_max: u64,
    pub(crate) seed: u64,
}

/// What a node is made of.
pub(crate) struct Parts {
    pub(crate) formatted: Formatted,
    pub(crate) log: Log,
    pub(crate) state: Arc<State>,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) transport: Arc<dyn PeerTransport>,
}

/// A running node.
pub(crate) struct Node {
    pub(super) raft: Raft<Types, StateMachine>,
    pub(super) formatted: Formatted,
    pub(super) log: Log,
    pub(super) state: Arc<State>,
    pub(super) disk: Arc<dyn Disk>,
    pub(super) peers: Peers,
    pub(super) options: NodeOptions,
    /// Held while a snapshot is received and installed.
    pub(super) incoming: Arc<Mutex<()>>,
    machine: StateMachine,
    maintenance: JoinHandle<()>,
}

/// What a node knows about the cluster.
pub(crate) struct NodeStatus {
    pub(crate) role: Role,
    pub(crate) term: u64,
    pub(crate) leader: Option<MemberId>,
    pub(crate) last_log_index: u64,
    pub(crate) committed_index: u64,
    pub(crate) membership: Membership,
    pub(crate) replication: std::collections::BTreeMap<MemberId, Replication>,
    pub(crate) last_quorum_contact_ms: Option<u64>,
    pub(crate) snapshot_index: Option<u64>,
    /// Why the node stopped, if it did.
    pub(crate) failure: Option<String>,
}

impl Node {
    /// Starts a node.
    ///
    /// # Errors
    ///
    /// `InvalidData` if log and state do not fit together.
    pub(crate) async fn start(parts: Parts, options: NodeOptions) -> io::Result<Self> {
        check_recovery(&parts.log, &parts.state.meta())?;
        let peers = Peers {
            identity: parts.formatted.identity.clone(),
            transport: parts.transport,
            disk: Arc::clone(&parts.disk),
            append_timeout: options.election_max,
        };
        let machine = StateMachine {
            state: Arc::clone(&parts.state),
            log: parts.log.clone(),
            disk: Arc::clone(&parts.disk),
            formatted: parts.formatted.clone(),
            changing: Arc::default(),
        };
        let store = LogStore {
            log: parts.log.clone(),
        };
        let id = parts.formatted.identity.member_id;
        let config = Arc::new(config(&options)?);
        let start = Raft::new(id, config, peers.clone(), store, machine.clone());
        let raft = runtime::with_seed(options.seed, start).await;
        let raft = raft.map_err(|error| io::Error::other(format!("cannot start: {error}")))?;
        let state = Arc::clone(&parts.state);
        let maintenance = maintain(raft.clone(), parts.log.clone(), state, options.clone());
        Ok(Self {
            raft,
            formatted: parts.formatted,
            log: parts.log,
            state: parts.state,
            disk: parts.disk,
            peers,
            options,
            incoming: Arc::default(),
            machine,
            maintenance: tokio::spawn(maintenance),
        })
    }

    pub(crate) fn identity(&self) -> &Identity {
        &self.formatted.identity
    }

    pub(crate) fn state(&self) -> &Arc<State> {
        &self.state
    }

    /// Bytes of the log on disk.
    pub(crate) fn log_bytes(&self) -> u64 {
        self.log.disk_bytes()
    }

    pub(super) fn id(&self) -> MemberId {
        self.formatted.identity.member_id
    }

    pub(super) fn metrics(&self) -> RaftMetrics<Types> {
        self.raft.metrics().borrow_watched().clone()
    }

    pub(crate) fn status(&self) -> NodeStatus {
        let metrics = self.metrics();
        let failure = metrics.running_state.err().and_then(failure);
        let last_log_index = metrics.last_log_index.unwrap_or(0);
        let last_contacts = metrics.heartbeat.unwrap_or_default();
        let replication = metrics.replication.unwrap_or_default().into_iter();
        let replication = replication
            .filter(|(id, _)| *id != self.id())
            .map(|(id, matched)| {
                let matched_index = matched.map_or(0, |id| id.index);
                let contact = last_contacts.get(&id).copied().flatten();
                let replication = Replication {
                    matched_index,
                    lag: last_log_index.saturating_sub(matched_index),
                    last_contact_ms: contact
                        .map(|at| milliseconds(openraft::Instant::elapsed(&*at))),
                };
                (id, replication)
            });
        NodeStatus {
            role: role(metrics.state),
            term: metrics.current_term,
            leader: metrics.current_leader,
            last_log_index,
            committed_index: metrics.local_committed.map_or(0, |id| id.index),
            membership: membership(&metrics.membership_config),
            replication: replication.collect(),
            last_quorum_contact_ms: metrics
                .last_quorum_acked
                .map(|at| milliseconds(openraft::Instant::elapsed(&*at))),
            snapshot_index: metrics.snapshot.map(|id| id.index),
            failure: self.log.failure().or(failure),
        }
    }

    /// Returns when the node stopped because of an error.
    pub(crate) async fn failed(&self) -> String {
        tokio::select! {
            biased;
            reason = self.log.failed() => reason,
            reason = self.raft_failed() => reason,
        }
    }

    async fn raft_failed(&self) -> String {
        let metrics = self.raft.metrics();
        let mut checks = interval(FAILURE_CHECK_INTERVAL);
        checks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        loop {
            checks.tick().await;
            let error = metrics.borrow_watched().running_state.clone().err();
            if let Some(failure) = error.and_then(failure) {
                return failure;
            }
        }
    }

    /// Hands leadership over, stops and makes everything durable.
    pub(crate) async fn shut_down(&self) {
        self.hand_over().await;
        if let Err(error) = self.raft.shutdown().await {
            tracing::warn!(%error, "raft did not stop in order");
        }
        self.maintenance.abort();
        match self.machine.sync_all().await {
            Ok(()) => self.state.finish(),
            Err(error) => {
                tracing::warn!(%error, "cannot sync the state; it is recovered from the log");
            }
        }
        self.log.close().await;
    }

    async fn hand_over(&self) {
        let metrics = self.metrics();
        if metrics.state != ServerState::Leader {
            return;
        }
        let voters: Vec<u64> = metrics.membership_config.voter_ids().collect();
        let replication = metrics.replication.unwrap_or_default().into_iter();
        let target = replication
            .filter(|(id, _)| *id != self.id() && voters.contains(id))
            .max_by_key(|(_, matched)| *matched);
        let Some((target, _)) = target else {
            return;
        };
        if let Err(error) = self.transfer_leader(target).await {
            tracing::warn!(%error, target, "leadership was not handed over");
        }
    }

    /// Returns when an entry is applied here.
    pub(crate) async fn wait_applied(&self, index: u64) -> bool {
        let wait = async {
            loop {
                let changed = self.state.changed().notified();
                let mut changed = std::pin::pin!(changed);
                // Before the comparison, so that no change is missed between them.
                changed.as_mut().enable();
                if self
                    .state
                    .meta()
                    .last_applied
                    .is_some_and(|id| id.index >= index)
                {
                    return;
                }
                changed.await;
            }
        };
        timeout(self.options.request_timeout, wait).await.is_ok()
    }

    /// Makes the state durable and purges the log before it.
    pub(crate) async fn trigger_snapshot(&self) -> io::Result<()> {
        let trigger = self.raft.trigger().snapshot().await;
        trigger.map_err(|error| io::Error::other(error.to_string()))
    }
}

/// Why a node failed; nothing if it was stopped in order.
fn failure(error: Fatal<Types>) -> Option<String> {
    match error {
        Fatal::Stopped => None,
        error => Some(error.to_string()),
    }
}

fn milliseconds(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}

fn role(state: ServerState) -> Role {
    match state {
        ServerState::Leader => Role::Leader,
        ServerState::Candidate => Role::Candidate,
        ServerState::Follower => Role::Follower,
        ServerState::Learner | ServerState::Shutdown => Role::Learner,
    }
}

fn membership(stored: &super::types::RaftStoredMembership) -> Membership {
    let current = members(stored.membership());
    let voters: std::collections::BTreeSet<_> = stored.voter_ids().collect();
    let learners = current.addresses.keys().copied();
    Membership {
        index: stored.log_id().as_ref().map_or(0, |id| id.index),
        learners: learners.filter(|id| !voters.contains(id)).collect(),
        voters,
        is_joint: current.configs.len() > 1,
        members: current
            .addresses
            .into_iter()
            .map(|(id, address)| (id, MembershipMember { address }))
            .collect(),
    }
}

fn config(options: &NodeOptions) -> io::Result<Config> {
    let config = Config {
        heartbeat_interval: milliseconds(options.heartbeat),
        election_timeout_min: milliseconds(options.election_min),
        election_timeout_max: milliseconds(options.election_max),
        install_snapshot_timeout: milliseconds(options.snapshot_timeout),
        max_payload_entries: MESSAGE_ENTRIES_MAX,
        // Snapshots and purges are decided by bytes, see `maintenance`.
        snapshot_policy: SnapshotPolicy::Never,
        max_in_snapshot_log_to_keep: u64::MAX,
        replication_lag_threshold: options.promotion_lag_max,
        // A member that cannot win does not disturb a leader.
        enable_pre_vote: Some(true),
        // A leader that reaches no quorum lets others be elected: openraft#2080.
        quorum_loss_probe_interval: Some(milliseconds(options.election_max) * 3),
        // How soon a member that was unreachable is tried again.
        backoff: BACKOFF.to_owned(),
        // The state may be behind after a restart, so a leader must be elected again.
        enable_leader_restore: Some(false),
        ..Config::default()
    };
    config
        .validate()
        .map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error.to_string()))
}
