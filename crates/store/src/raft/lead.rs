//! Requests of clients, which the leader answers.
//!
//! In: a request at any member. Out: its result, or why there is none.
//!
//! Guarantees: a request is forwarded once, and has a deadline. `NoLeader` and `Busy` mean that a
//! write was not accepted and never will be; `Unknown` means that it may have been.

use openraft::{
    ReadPolicy, ServerState,
    async_runtime::watch::WatchReceiver as _,
    errors::{ClientWriteError, RaftError},
};
use tokio::time::timeout;

use super::{
    message::{Forward, Forwarded, Message, Reply},
    node::Node,
    transport::{PeerAddress, TransportError},
    types::Types,
};
use crate::{
    api::{FormatLevels, Reason, StoreError},
    entry::{Command, Outcome},
    format_level::{FORMAT_LEVEL_MAX, FORMAT_LEVEL_MIN},
};

impl Node {
    /// Answers a request here, if this member leads, or at the leader.
    pub(crate) async fn submit(&self, request: Forward) -> Result<Forwarded, StoreError> {
        match self.leader()? {
            None => self.lead(request).await,
            Some(leader) => self.forward(&leader, request).await,
        }
    }

    /// The leader, unless it is this member.
    fn leader(&self) -> Result<Option<PeerAddress>, StoreError> {
        let metrics = self.raft.server_metrics();
        let metrics = metrics.borrow_watched();
        if metrics.state == ServerState::Leader {
            return Ok(None);
        }
        let leader = metrics.current_leader.filter(|id| *id != self.id());
        let address = leader.and_then(|id| {
            let node = metrics.membership_config.get_node(&id)?;
            Some(PeerAddress {
                member: id,
                address: node.addr.clone(),
            })
        });
        address.map(Some).ok_or_else(no_leader)
    }

    async fn forward(
        &self,
        leader: &PeerAddress,
        request: Forward,
    ) -> Result<Forwarded, StoreError> {
        let deadline = self.options.request_timeout;
        let is_read = request == Forward::ReadIndex;
        let message = Message::Forward(request);
        match self.peers.call(leader, message, None, deadline).await {
            Ok(Reply::Forward(result)) => result,
            Err(TransportError::Unreachable(_) | TransportError::Refused(_)) => Err(no_leader()),
            Ok(_) | Err(TransportError::Lost(_)) if is_read => Err(no_leader()),
            Ok(_) | Err(TransportError::Lost(_)) => Err(unknown("the leader did not respond")),
        }
    }

    /// Answers a request as the leader.
    pub(super) async fn lead(&self, request: Forward) -> Result<Forwarded, StoreError> {
        match request {
            Forward::Write(command) => forwarded(self.write(command).await?),
            Forward::ReadIndex => self.read_index().await.map(Forwarded::ReadIndex),
            Forward::AddLearner { id, address } => self.add_learner(id, address).await,
            Forward::ChangeMembership {
                voters,
                learners,
                expected_index,
            } => {
                let change = self.change_membership(voters, learners, expected_index);
                change.await.map(|()| Forwarded::Done)
            }
            Forward::TransferLeader(target) => {
                self.transfer_leader(target).await?;
                Ok(Forwarded::Done)
            }
            Forward::RaiseFormatLevel(level) => self.raise_format_level(level).await,
        }
    }

    async fn write(&self, command: Command) -> Result<Outcome, StoreError> {
        let write = self.raft.client_write(command);
        let result = timeout(self.options.request_timeout, write).await;
        match result {
            Err(_) => Err(unknown("no quorum acknowledged it in time")),
            Ok(Ok(response)) => Ok(response.data),
            Ok(Err(error)) => Err(write_error(&error)),
        }
    }

    async fn read_index(&self) -> Result<u64, StoreError> {
        let read = self.raft.get_read_linearizer(ReadPolicy::ReadIndex);
        match timeout(self.options.request_timeout, read).await {
            Ok(Ok(linearizer)) => Ok(linearizer.read_log_id().index()),
            Ok(Err(RaftError::Fatal(error))) => Err(StoreError::new(
                Reason::StorageFailed,
                format!("cannot read: this member stopped: {error}; use another member"),
            )),
            Ok(Err(RaftError::APIError(_))) | Err(_) => Err(no_leader()),
        }
    }

    async fn raise_format_level(&self, level: u32) -> Result<Forwarded, StoreError> {
        let metrics = self.metrics();
        for (id, node) in metrics.membership_config.nodes() {
            let levels = if *id == self.id() {
                supported_levels()
            } else {
                self.supported_levels_of(*id, &node.addr).await?
            };
            if !(levels.min..=levels.max).contains(&level) {
                return Err(StoreError::new(
                    Reason::Invalid,
                    format!(
                        "cannot raise the format level to {level}: member {id} supports {} to {}; \
                         upgrade it first",
                        levels.min, levels.max
                    ),
                ));
            }
        }
        forwarded(self.write(Command::RaiseFormatLevel(level)).await?)
    }

    async fn supported_levels_of(
        &self,
        id: u64,
        address: &str,
    ) -> Result<FormatLevels, StoreError> {
        let to = PeerAddress {
            member: id,
            address: address.to_owned(),
        };
        let deadline = self.options.election_max;
        match self
            .peers
            .call(&to, Message::FormatLevels, None, deadline)
            .await
        {
            Ok(Reply::FormatLevels(levels)) => Ok(levels),
            _ => Err(StoreError::new(
                Reason::Busy,
                format!("cannot raise the format level: member {id} does not respond; retry"),
            )),
        }
    }
}

pub(super) fn supported_levels() -> FormatLevels {
    FormatLevels {
        min: FORMAT_LEVEL_MIN,
        max: FORMAT_LEVEL_MAX,
    }
}

fn forwarded(outcome: Outcome) -> Result<Forwarded, StoreError> {
    match outcome {
        Outcome::Done | Outcome::FormatLevel(_) => Ok(Forwarded::Done),
        Outcome::Written(result) => Ok(Forwarded::Written(result)),
        Outcome::Allocated(id) => Ok(Forwarded::Allocated(id)),
        Outcome::ConditionFailed(current) => {
            let message = format!(
                "the key does not have the expected revision (now {current}); read it again and \
                 retry"
            );
            Err(StoreError::new(Reason::ConditionFailed, message).with_current(current))
        }
    }
}

pub(super) fn write_error(error: &RaftError<Types, ClientWriteError<Types>>) -> StoreError {
    match error {
        RaftError::APIError(ClientWriteError::ForwardToLeader(_)) => no_leader(),
        RaftError::APIError(ClientWriteError::LogEntryDiscarded(_)) => {
            unknown("the leader changed before it was committed")
        }
        RaftError::APIError(ClientWriteError::ChangeMembershipError(error)) => StoreError::new(
            Reason::Busy,
            format!("cannot change the membership: {error}"),
        ),
        RaftError::APIError(ClientWriteError::PreconditionFailed(_)) => StoreError::new(
            Reason::ConditionFailed,
            "the membership changed meanwhile; read the status again and retry",
        ),
        RaftError::Fatal(error) => unknown(&format!("this member stopped: {error}")),
    }
}

pub(super) fn no_leader() -> StoreError {
    StoreError::new(
        Reason::NoLeader,
        "no leader is known or reachable; retry, or check that a quorum of members runs",
    )
}

pub(super) fn unknown(cause: &str) -> StoreError {
    let message = format!("the outcome is unknown: {cause}; read before you retry");
    StoreError::new(Reason::Unknown, message)
}
