//! Requests of other members.
//!
//! Guarantees: a request is processed only if it is for this cluster and this member; a snapshot is
//! verified completely before it replaces anything; one snapshot is received at a time.

use std::{io, sync::Arc};

use futures_util::StreamExt;
use openraft::{Snapshot, errors::RaftError};

use super::{
    lead::supported_levels,
    message::{Message, Reply, SnapshotOffer},
    node::Node,
    state_machine::{IncomingFile, SnapshotData},
    transport::{PeerRequest, PeerResponse, SnapshotStream},
    types::{RaftSnapshotMeta, RaftVote, Types, raft_log_id, raft_stored_membership, raft_vote},
};
use crate::{
    api::{Reason, StoreError},
    data_dir::INCOMING,
    disk::{Disk, Lane, on_lane},
    format_level::check_format_level,
    snapshot::Decoder,
};

impl Node {
    pub(crate) async fn receive(&self, request: PeerRequest) -> Result<PeerResponse, StoreError> {
        self.check_addressee(&request)?;
        let message = Message::decode(request.message).map_err(|error| {
            let message = format!(
                "cannot read the message of member {}: {error}",
                request.from
            );
            StoreError::new(Reason::Invalid, message)
        })?;
        let reply = match message {
            Message::Append(request) => {
                Reply::Append(self.raft.append_entries(request).await.map_err(stopped)?)
            }
            Message::Vote(request) => Reply::Vote(self.raft.vote(request).await.map_err(stopped)?),
            Message::PreVote(request) => {
                Reply::Vote(self.raft.pre_vote(request).await.map_err(stopped)?)
            }
            Message::Transfer(request) => {
                let response = self.raft.handle_transfer_leader(request).await;
                Reply::Transfer(response.map_err(|error| stopped(RaftError::Fatal(error)))?)
            }
            Message::Snapshot(offer) => {
                Reply::Snapshot(self.receive_snapshot(offer, request.snapshot).await?)
            }
            Message::Forward(request) => Reply::Forward(self.lead(request).await),
            Message::FormatLevels => Reply::FormatLevels(supported_levels()),
        };
        Ok(PeerResponse {
            message: reply.encode(),
        })
    }

    fn check_addressee(&self, request: &PeerRequest) -> Result<(), StoreError> {
        let identity = &self.formatted.identity;
        if request.cluster == identity.cluster_id && request.to == identity.member_id {
            return Ok(());
        }
        let message = format!(
            "member {} of cluster {} refuses a request of member {} for member {} of cluster {}; \
             check the address",
            identity.member_id, identity.cluster_id, request.from, request.to, request.cluster
        );
        tracing::warn!(%message, "refused a request of another cluster or member");
        Err(StoreError::new(Reason::WrongCluster, message))
    }

    async fn receive_snapshot(
        &self,
        offer: SnapshotOffer,
        stream: Option<SnapshotStream>,
    ) -> Result<RaftVote, StoreError> {
        let failed = |error: io::Error| {
            StoreError::new(
                Reason::Invalid,
                format!("cannot receive a snapshot: {error}"),
            )
        };
        let stream = stream.ok_or_else(|| failed(io::ErrorKind::UnexpectedEof.into()))?;
        let lock = Arc::clone(&self.incoming).try_lock_owned();
        let guard = lock.map_err(|_| {
            let message = "another snapshot is being received; retry when it is installed";
            StoreError::new(Reason::Busy, message)
        })?;
        store(&self.disk, stream).await.map_err(failed)?;
        let data = SnapshotData::Received {
            file: IncomingFile::new(Arc::clone(&self.disk)),
            _lock: guard,
        };
        self.verify(&offer).await.map_err(failed)?;
        let snapshot = Snapshot {
            meta: RaftSnapshotMeta {
                last_log_id: offer.last.map(raft_log_id),
                last_membership: raft_stored_membership(&offer.members),
            },
            snapshot: data,
        };
        let vote = raft_vote(offer.vote);
        let installed = self.raft.install_full_snapshot(vote, snapshot).await;
        let response = installed.map_err(|error| stopped(RaftError::Fatal(error)))?;
        Ok(response.vote)
    }

    /// Reads the whole snapshot and compares it with what was offered.
    async fn verify(&self, offer: &SnapshotOffer) -> io::Result<()> {
        let offer = offer.clone();
        let cluster = self.formatted.identity.cluster_id.clone();
        let file = IncomingFile::new(Arc::clone(&self.disk));
        let verify = move |_: &dyn Disk| {
            let mut decoder = Decoder::new(file)?;
            let meta = decoder.meta().clone();
            check_format_level(meta.format_level)?;
            let is_offered = meta.cluster == cluster
                && meta.last_applied == offer.last
                && meta.members == offer.members;
            if !is_offered {
                return Err(io::Error::other("it is not the one that was offered"));
            }
            for record in decoder.by_ref() {
                record?;
            }
            decoder.footer().map(|_| ())
        };
        on_lane(&self.disk, Lane::State, verify).await
    }
}

/// Writes a stream to the file of received snapshots.
pub(crate) async fn store(disk: &Arc<dyn Disk>, mut stream: SnapshotStream) -> io::Result<()> {
    on_lane(disk, Lane::State, |disk| disk.create(INCOMING, 0)).await?;
    let mut offset = 0;
    while let Some(chunk) = stream.next().await {
        let chunk = chunk?;
        let length = chunk.len() as u64;
        let write = move |disk: &dyn Disk| disk.write_at(INCOMING, offset, &chunk);
        on_lane(disk, Lane::State, write).await?;
        offset += length;
    }
    Ok(())
}

fn stopped(error: RaftError<Types>) -> StoreError {
    let message = format!("this member stopped: {error}; restart it");
    StoreError::new(Reason::StorageFailed, message)
}
