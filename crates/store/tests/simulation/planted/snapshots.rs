//! A transport that removes the membership from snapshots.

use std::sync::Arc;

use bellerophon_store::{
    PeerAddress, PeerRequest, PeerResponse, PeerTransport, SnapshotStream, TransportError,
};
use bytes::Bytes;
use futures_util::{StreamExt, future::BoxFuture, stream};
use sha2::{Digest, Sha256};

pub(super) fn without_membership(inner: Arc<dyn PeerTransport>) -> Arc<dyn PeerTransport> {
    Arc::new(WithoutMembership { inner })
}

struct WithoutMembership {
    inner: Arc<dyn PeerTransport>,
}

impl PeerTransport for WithoutMembership {
    fn send(
        &self,
        to: PeerAddress,
        mut request: PeerRequest,
    ) -> BoxFuture<'static, Result<PeerResponse, TransportError>> {
        let Some(stream) = request.snapshot.take() else {
            return self.inner.send(to, request);
        };
        let inner = Arc::clone(&self.inner);
        Box::pin(async move {
            let snapshot = strip_snapshot(&collect(stream).await);
            // Version, kind, vote and position.
            let position_at = 2 + 17;
            let members_at = skip_log_id(&request.message, position_at);
            let message = strip_members(&request.message, members_at);
            request.message = message.into();
            let chunks = [Ok(Bytes::from(snapshot))];
            request.snapshot = Some(Box::pin(stream::iter(chunks)));
            inner.send(to, request).await
        })
    }
}

async fn collect(mut stream: SnapshotStream) -> Vec<u8> {
    let mut bytes = Vec::new();
    while let Some(chunk) = stream.next().await {
        bytes.extend_from_slice(&chunk.unwrap());
    }
    bytes
}

fn word(bytes: &[u8], at: usize) -> usize {
    u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize
}

/// Where an optional position ends.
fn skip_log_id(bytes: &[u8], at: usize) -> usize {
    at + 1 + usize::from(bytes[at]) * 24
}

/// Where a membership and its position end.
fn skip_members(bytes: &[u8], at: usize) -> usize {
    let mut at = skip_log_id(bytes, at);
    let configs = word(bytes, at);
    at += 4;
    for _ in 0..configs {
        at += 4 + word(bytes, at) * 8;
    }
    let addresses = word(bytes, at);
    at += 4;
    for _ in 0..addresses {
        at += 8;
        at += 4 + word(bytes, at);
    }
    at
}

/// The bytes with an empty membership at an offset.
fn strip_members(bytes: &[u8], at: usize) -> Vec<u8> {
    let end = skip_members(bytes, at);
    let mut stripped = bytes[..at].to_vec();
    // No position, no sets of voters, no addresses.
    stripped.extend_from_slice(&[0; 9]);
    stripped.extend_from_slice(&bytes[end..]);
    stripped
}

fn frame(payload: &[u8]) -> Vec<u8> {
    let mut frame = u32::try_from(payload.len()).unwrap().to_le_bytes().to_vec();
    frame.extend_from_slice(&crc32fast::hash(payload).to_le_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// The snapshot with an empty membership in its header, and a valid footer.
fn strip_snapshot(bytes: &[u8]) -> Vec<u8> {
    let header_end = 16 + word(bytes, 8);
    let header = &bytes[16..header_end];
    // Kind, version, cluster, format level, position, position of the installed snapshot.
    let cluster_end = 2 + 4 + word(header, 2);
    let members_at = skip_log_id(header, skip_log_id(header, cluster_end + 4));
    let header = strip_members(header, members_at);
    // The footer has a kind, two counts and a checksum.
    let footer_at = bytes.len() - (8 + 1 + 16 + 32);
    let mut stripped = bytes[..8].to_vec();
    stripped.extend_from_slice(&frame(&header));
    stripped.extend_from_slice(&bytes[header_end..footer_at]);
    let mut footer = bytes[footer_at + 8..bytes.len() - 32].to_vec();
    footer.extend_from_slice(&Sha256::digest(&stripped));
    stripped.extend_from_slice(&frame(&footer));
    stripped
}
