//! The peer transport as openraft's network.
//!
//! Guarantees: every request has a deadline. A commit position alone waits for entries to go with,
//! for [`COMMIT_DELAY_MAX`] at most.

use std::{future::Future, io::Read, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{
    Stream, StreamExt as _,
    future::BoxFuture,
    stream::{self, BoxStream},
};
use openraft::{
    BasicNode, OptionalSend, RaftNetworkFactory, RaftNetworkV2, Snapshot,
    errors::{NetworkError, RPCError, ReplicationClosed, StreamingError, Unreachable},
    network::{RPCOption, stream_append_sequential},
    raft::{
        AppendEntriesRequest, AppendEntriesResponse, SnapshotResponse, StreamAppendResult,
        TransferLeaderRequest, TransferLeaderResponse, VoteRequest, VoteResponse,
    },
};
use tokio::time::{Instant, timeout, timeout_at};

use super::{
    message::{Message, Reply, SnapshotOffer},
    state_machine::SnapshotData,
    transport::{PeerAddress, PeerRequest, PeerTransport, SnapshotStream, TransportError},
    types::{LeaderId, RaftVote, Types, log_id, stored_members, vote},
};
use crate::{
    api::Identity,
    disk::{Disk, Lane, on_lane},
};

/// Bytes of a snapshot that are read and sent at a time.
const CHUNK_BYTES: usize = 256 * 1024;

/// How long a commit position waits for entries that it can be sent with. With one client, that is
/// the time until its next write, and saves half of the messages. Followers apply the last writes
/// that much later, unless a linearizable read waits for them: its heartbeat has the position too.
const COMMIT_DELAY_MAX: Duration = Duration::from_millis(1);

/// Sends messages of this member.
#[derive(Clone)]
pub(super) struct Peers {
    pub(super) identity: Identity,
    pub(super) transport: Arc<dyn PeerTransport>,
    pub(super) disk: Arc<dyn Disk>,
    /// How long a message with entries may take: the sync of a slow disk, not only the network.
    pub(super) append_timeout: Duration,
}

impl Peers {
    /// Sends a message and waits for the response until the deadline.
    pub(super) async fn call(
        &self,
        to: &PeerAddress,
        message: Message,
        snapshot: Option<SnapshotStream>,
        deadline: Duration,
    ) -> Result<Reply, TransportError> {
        let request = PeerRequest {
            cluster: self.identity.cluster_id.clone(),
            from: self.identity.member_id,
            to: to.member,
            message: message.encode(),
            snapshot,
        };
        let response = timeout(deadline, self.transport.send(to.clone(), request)).await;
        let lost = |cause: String| TransportError::Lost(cause);
        let response = response.map_err(|_| lost(format!("no response in {deadline:?}")))??;
        Reply::decode(response.message).map_err(|error| lost(error.to_string()))
    }
}

impl RaftNetworkFactory<Types> for Peers {
    type Network = Peer;

    async fn new_client(&mut self, target: u64, node: &BasicNode) -> Peer {
        Peer {
            peers: self.clone(),
            to: PeerAddress {
                member: target,
                address: node.addr.clone(),
            },
        }
    }
}

/// Sends messages to one member.
pub(super) struct Peer {
    peers: Peers,
    to: PeerAddress,
}

impl Peer {
    async fn call(&self, message: Message, deadline: Duration) -> Result<Reply, RPCError<Types>> {
        let reply = self.peers.call(&self.to, message, None, deadline).await;
        reply.map_err(|error| rpc_error(&error))
    }
}

fn rpc_error(error: &TransportError) -> RPCError<Types> {
    match error {
        TransportError::Lost(_) => RPCError::Network(NetworkError::new(error)),
        TransportError::Unreachable(_) | TransportError::Refused(_) => {
            RPCError::Unreachable(Unreachable::new(error))
        }
    }
}

fn unexpected<T>() -> Result<T, RPCError<Types>> {
    let error = TransportError::Lost("the response is for another request".to_owned());
    Err(rpc_error(&error))
}

impl RaftNetworkV2<Types> for Peer {
    type SnapshotData = SnapshotData;

    async fn append_entries(
        &mut self,
        request: AppendEntriesRequest<Types>,
        option: RPCOption,
    ) -> Result<AppendEntriesResponse<Types>, RPCError<Types>> {
        let deadline = if request.entries.is_empty() {
            option.soft_ttl()
        } else {
            self.peers.append_timeout
        };
        match self.call(Message::Append(request), deadline).await? {
            Reply::Append(response) => Ok(response),
            _ => unexpected(),
        }
    }

    fn stream_append<'s, S>(
        &'s mut self,
        input: S,
        option: RPCOption,
    ) -> BoxFuture<'s, Result<AppendResults<'s>, RPCError<Types>>>
    where
        S: Stream<Item = AppendEntriesRequest<Types>> + OptionalSend + Unpin + 'static,
    {
        stream_append_sequential(self, Box::pin(delay_commits(input)), option)
    }

    async fn vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        match self.call(Message::Vote(request), option.soft_ttl()).await? {
            Reply::Vote(response) => Ok(response),
            _ => unexpected(),
        }
    }

    async fn pre_vote(
        &mut self,
        request: VoteRequest<Types>,
        option: RPCOption,
    ) -> Result<VoteResponse<Types>, RPCError<Types>> {
        match self
            .call(Message::PreVote(request), option.soft_ttl())
            .await?
        {
            Reply::Vote(response) => Ok(response),
            _ => unexpected(),
        }
    }

    async fn full_snapshot(
        &mut self,
        leader: RaftVote,
        snapshot: Snapshot<LeaderId, u64, BasicNode, SnapshotData>,
        cancel: impl Future<Output = ReplicationClosed> + OptionalSend + 'static,
        option: RPCOption,
    ) -> Result<SnapshotResponse<Types>, StreamingError<Types>> {
        let offer = Message::Snapshot(SnapshotOffer {
            vote: vote(&leader),
            last: snapshot.meta.last_log_id.as_ref().map(log_id),
            members: stored_members(&snapshot.meta.last_membership),
        });
        let chunks = chunks(Arc::clone(&self.peers.disk), snapshot.snapshot);
        let deadline = option.hard_ttl();
        let send = self.peers.call(&self.to, offer, Some(chunks), deadline);
        let reply = tokio::select! {
            biased;
            closed = cancel => return Err(closed.into()),
            reply = send => reply.map_err(|error| rpc_error(&error))?,
        };
        match reply {
            Reply::Snapshot(vote) => Ok(SnapshotResponse::new(vote)),
            _ => unexpected().map_err(Into::into),
        }
    }

    async fn transfer_leader(
        &mut self,
        request: TransferLeaderRequest<Types>,
        option: RPCOption,
    ) -> Result<TransferLeaderResponse<Types>, RPCError<Types>> {
        match self
            .call(Message::Transfer(request), option.soft_ttl())
            .await?
        {
            Reply::Transfer(response) => Ok(response),
            _ => unexpected(),
        }
    }
}

/// The results of messages with entries, in their order.
type AppendResults<'s> = BoxStream<'s, Result<StreamAppendResult<Types>, RPCError<Types>>>;

/// Leaves out requests without entries that are followed by another one within
/// [`COMMIT_DELAY_MAX`]: the later one has the newer commit position, and its result acknowledges
/// both. The last request of a stream is not delayed; a heartbeat is a stream of one.
fn delay_commits(
    input: impl Stream<Item = AppendEntriesRequest<Types>> + Unpin,
) -> impl Stream<Item = AppendEntriesRequest<Types>> {
    stream::unfold(input.fuse(), async |mut input| {
        let mut request = input.next().await?;
        let deadline = Instant::now() + COMMIT_DELAY_MAX;
        while request.entries.is_empty() {
            match timeout_at(deadline, input.next()).await {
                Ok(Some(next)) => request = next,
                Ok(None) | Err(_) => break,
            }
        }
        Some((request, input))
    })
}

/// The chunks of a snapshot, read one at a time where reading may block.
fn chunks(disk: Arc<dyn Disk>, snapshot: SnapshotData) -> SnapshotStream {
    let source = Some((disk, snapshot));
    Box::pin(stream::unfold(source, |source| async move {
        let (disk, mut snapshot) = source?;
        let read = move |_: &dyn Disk| {
            let mut chunk = Vec::with_capacity(CHUNK_BYTES);
            let mut limited = (&mut snapshot).take(CHUNK_BYTES as u64);
            limited.read_to_end(&mut chunk)?;
            Ok((Bytes::from(chunk), snapshot))
        };
        match on_lane(&disk, Lane::State, read).await {
            Err(error) => Some((Err(error), None)),
            Ok((chunk, _)) if chunk.is_empty() => None,
            Ok((chunk, snapshot)) => Some((Ok(chunk), Some((disk, snapshot)))),
        }
    }))
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt as _;
    use openraft::{EntryPayload, vote::RaftLeaderId as _};
    use tokio::{sync::mpsc, time::advance};

    use super::*;
    use crate::raft::types::{RaftEntry, RaftLogId};

    fn id(index: u64) -> RaftLogId {
        RaftLogId::new(LeaderId::new(1, 1), index)
    }

    /// A request that commits up to an index, with the entries after it.
    fn request(committed: u64, entries: u64) -> AppendEntriesRequest<Types> {
        let entry = |index| RaftEntry {
            log_id: id(index),
            payload: EntryPayload::Blank,
        };
        AppendEntriesRequest {
            vote: RaftVote::new_committed(1, 1),
            prev_log_id: Some(id(committed)),
            entries: (1..=entries).map(|n| entry(committed + n)).collect(),
            leader_commit: Some(id(committed)),
        }
    }

    /// A stream of requests that the test sends.
    fn requests() -> (
        mpsc::Sender<AppendEntriesRequest<Types>>,
        BoxStream<'static, AppendEntriesRequest<Types>>,
    ) {
        let (send, receive) = mpsc::channel(1);
        let input = stream::unfold(receive, async |mut receive| {
            Some((receive.recv().await?, receive))
        });
        (send, Box::pin(delay_commits(Box::pin(input))))
    }

    /// How many entries the next request has.
    async fn entries(
        sent: &mut (impl Stream<Item = AppendEntriesRequest<Types>> + Unpin),
    ) -> Option<usize> {
        sent.next().await.map(|request| request.entries.len())
    }

    #[tokio::test(start_paused = true)]
    async fn commit_is_sent_with_entries_that_follow() {
        let (send, mut sent) = requests();
        send.try_send(request(7, 0)).unwrap();
        assert!(sent.next().now_or_never().is_none());
        advance(COMMIT_DELAY_MAX / 2).await;
        send.try_send(request(7, 2)).unwrap();
        assert_eq!(entries(&mut sent).await, Some(2));
        drop(send);
        assert_eq!(entries(&mut sent).await, None);
    }

    #[tokio::test(start_paused = true)]
    async fn commit_without_entries_is_sent_after_the_delay() {
        let (send, mut sent) = requests();
        send.try_send(request(7, 0)).unwrap();
        let start = Instant::now();
        assert_eq!(entries(&mut sent).await, Some(0));
        assert!(start.elapsed() >= COMMIT_DELAY_MAX);
    }

    #[tokio::test(start_paused = true)]
    async fn last_request_of_a_stream_is_not_delayed() {
        let start = Instant::now();
        let heartbeat = stream::iter([request(7, 0)]);
        let mut sent = Box::pin(delay_commits(heartbeat));
        assert_eq!(entries(&mut sent).await, Some(0));
        assert_eq!(start.elapsed(), Duration::ZERO);
    }
}
