//! Writes the data directory of a new cluster from a snapshot, without serving it.

use std::{io, path::Path, sync::Arc};

use bytes::{Bytes, BytesMut};
use futures_util::{FutureExt as _, future::BoxFuture, stream};
use tokio::io::{AsyncRead, AsyncReadExt as _};

use crate::{
    Member, MemberConfig, OpenError, PeerAddress, PeerRequest, PeerResponse, PeerTransport,
    RestoreOptions, SnapshotStream, TransportError,
    api::{Identity, RestoreResult, StoreError},
    disk::FileDisk,
};

/// Bytes of the file that are read together.
const PART_BYTES: usize = 256 << 10;

/// Why a directory was not restored.
#[derive(Debug, thiserror::Error)]
pub enum RestoreError {
    /// The directory cannot be used.
    #[error("cannot use the data directory: {0}")]
    Directory(io::Error),
    /// The member cannot be opened.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// The snapshot was refused, or the directory is not empty.
    #[error(transparent)]
    Store(#[from] StoreError),
}

/// Formats an empty directory as the only voter of a new cluster with the data of a snapshot. The
/// directory is durable when this returns.
///
/// # Errors
/// The directory is not empty, or the snapshot is damaged or another one.
pub async fn restore_directory(
    directory: &Path,
    identity: Identity,
    address: String,
    options: RestoreOptions,
    snapshot: impl AsyncRead + Send + 'static,
) -> Result<RestoreResult, RestoreError> {
    let disk = FileDisk::open(directory).map_err(RestoreError::Directory)?;
    // The seed chooses election timeouts, and there are no elections.
    let config = MemberConfig::new(0);
    let member = Member::open(config, Arc::new(disk), Arc::new(NoPeers)).await?;
    let restored = member
        .restore(identity, address, options, parts(snapshot))
        .await;
    member.shut_down().await;
    Ok(restored?)
}

fn parts(file: impl AsyncRead + Send + 'static) -> SnapshotStream {
    Box::pin(stream::try_unfold(Box::pin(file), async |mut file| {
        let mut part = BytesMut::with_capacity(PART_BYTES);
        let count = file.read_buf(&mut part).await?;
        Ok::<_, io::Error>((count > 0).then(|| (Bytes::from(part), file)))
    }))
}

/// The transport of a member without peers.
struct NoPeers;

impl PeerTransport for NoPeers {
    fn send(
        &self,
        _to: PeerAddress,
        _request: PeerRequest,
    ) -> BoxFuture<'static, Result<PeerResponse, TransportError>> {
        let cause = "the member is being restored".to_owned();
        std::future::ready(Err(TransportError::Unreachable(cause))).boxed()
    }
}
