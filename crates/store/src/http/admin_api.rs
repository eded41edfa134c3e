//! The admin API: status, formatting, membership, snapshots.
//!
//! In: requests with the admin token. Out: calls of the member.
//! Guarantees: requests that change the cluster are bounded in time. A snapshot carries its
//! checksum after its last byte.

use std::{future::Future, io, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::{Stream, TryStreamExt as _, stream};
use http::{HeaderMap, HeaderValue, Method, Request, Response};
use http_body::Frame;
use http_body_util::BodyDataStream;
use hyper::body::Incoming;
use serde::{Serialize, de::DeserializeOwned};
use sha2::{Digest as _, Sha256};
use tokio::{task::spawn_blocking, time::timeout};

use super::{
    body::{self, Body},
    client_api::Api,
    query::{Query, invalid},
    respond,
};
use crate::{
    RestoreOptions, SnapshotReader,
    api::{
        AddLearnerRequest, AllocateResponse, ChangeMembershipRequest, FormatRequest, Identity,
        InitializeRequest, RaiseFormatLevelRequest, Reason, StoreError, TransferLeaderRequest,
    },
};
use bellerophon_store_client::{CHECKSUM_TRAILER, Checksum};

/// A JSON body: a membership of hundreds of members.
const BODY_BYTES_MAX: usize = 64 << 10;

/// A change of the cluster: longer than two elections and a transfer.
const CHANGE_TIMEOUT: Duration = Duration::from_secs(8);

/// Restoring a snapshot: 10 GB at 10 MB/s.
const RESTORE_TIMEOUT: Duration = Duration::from_secs(1000);

/// The admin API.
pub(crate) struct AdminApi {
    api: Arc<Api>,
}

impl AdminApi {
    pub(crate) fn new(api: Arc<Api>) -> Self {
        Self { api }
    }

    pub(crate) async fn serve(
        self,
        request: Request<Incoming>,
    ) -> Result<Response<Body>, StoreError> {
        let member = &self.api.member;
        let path = request.uri().path().to_owned();
        match (request.method(), path.as_str()) {
            (&Method::GET, "/admin/v1/status") => Ok(respond::json(&member.status().await)),
            (&Method::GET, "/admin/v1/snapshot") => self.snapshot().await,
            (&Method::POST, "/admin/v1/restore") => self.restore(request).await,
            (&Method::POST, "/admin/v1/initialize") => {
                let request: InitializeRequest = decode(request).await?;
                let identity = Identity {
                    cluster_id: request.cluster_id,
                    member_id: request.member_id,
                };
                done(member.initialize(identity, request.address)).await
            }
            (&Method::POST, "/admin/v1/format") => {
                let request: FormatRequest = decode(request).await?;
                let identity = Identity {
                    cluster_id: request.cluster_id,
                    member_id: request.member_id,
                };
                done(member.format(identity)).await
            }
            (&Method::POST, "/admin/v1/members:allocate") => {
                let member_id = bounded(member.allocate_member_id()).await?;
                Ok(respond::json(&AllocateResponse { member_id }))
            }
            (&Method::POST, "/admin/v1/members") => {
                let request: AddLearnerRequest = decode(request).await?;
                done(member.add_learner(request.id, request.address)).await
            }
            (&Method::PUT, "/admin/v1/membership") => {
                let request: ChangeMembershipRequest = decode(request).await?;
                let index = request.expected_membership_index;
                done(member.change_membership(request.voters, request.learners, index)).await
            }
            (&Method::POST, "/admin/v1/leader:transfer") => {
                let request: TransferLeaderRequest = decode(request).await?;
                done(member.transfer_leader(request.to)).await
            }
            (&Method::POST, "/admin/v1/format-level:raise") => {
                let request: RaiseFormatLevelRequest = decode(request).await?;
                done(member.raise_format_level(request.level)).await
            }
            (&Method::POST, "/admin/v1/compact") => done(member.compact()).await,
            (method, path) => Err(respond::unknown_path(method, path)),
        }
    }

    async fn snapshot(&self) -> Result<Response<Body>, StoreError> {
        let reader = self.api.member.snapshot().await?;
        let mut response = respond::bytes("application/octet-stream", Bytes::new());
        *response.body_mut() = body::streamed(with_checksum(reader));
        Ok(response)
    }

    async fn restore(&self, request: Request<Incoming>) -> Result<Response<Body>, StoreError> {
        let mut query = Query::of(request.uri())?;
        let identity = Identity {
            cluster_id: query.required("clusterId")?,
            member_id: query.required("memberId")?,
        };
        let address: String = query.required("address")?;
        let options = RestoreOptions {
            checksum: query.text("checksum"),
            min_revision: query.parsed("minRevision")?.unwrap_or(0),
        };
        query.end()?;
        let data = BodyDataStream::new(request.into_body()).map_err(io::Error::other);
        let member = &self.api.member;
        let restored = member.restore(identity, address, options, Box::pin(data));
        let restored = timeout(RESTORE_TIMEOUT, restored).await.map_err(|_| {
            StoreError::new(
                Reason::Unknown,
                format!(
                    "the snapshot was not restored within {RESTORE_TIMEOUT:?}; read the status"
                ),
            )
        })??;
        Ok(respond::json(&restored))
    }
}

/// The bytes of a snapshot, and their checksum as a trailer.
fn with_checksum(
    reader: SnapshotReader,
) -> impl Stream<Item = io::Result<Frame<Bytes>>> + Send + 'static {
    let start = Some((reader, Sha256::new()));
    stream::try_unfold(start, async |rest| {
        let Some((mut reader, mut hash)) = rest else {
            return Ok(None);
        };
        // Reading blocks on the disk.
        let read = spawn_blocking(move || (reader.next_chunk(), reader));
        let (chunk, reader) = read.await.map_err(io::Error::other)?;
        let Some(chunk) = chunk? else {
            let mut trailers = HeaderMap::new();
            let checksum = HeaderValue::from_str(&Checksum::of(hash).0)
                .expect("hexadecimal digits are valid in headers");
            trailers.insert(CHECKSUM_TRAILER, checksum);
            return Ok(Some((Frame::trailers(trailers), None)));
        };
        hash.update(&chunk);
        Ok(Some((Frame::data(chunk), Some((reader, hash)))))
    })
}

async fn decode<T: DeserializeOwned>(request: Request<Incoming>) -> Result<T, StoreError> {
    let body = body::read(request.into_body(), BODY_BYTES_MAX).await?;
    serde_json::from_slice(&body)
        .map_err(|error| invalid(format!("the body of the request is invalid: {error}")))
}

/// An empty JSON object after a change.
async fn done(
    change: impl Future<Output = Result<(), StoreError>>,
) -> Result<Response<Body>, StoreError> {
    #[derive(Serialize)]
    struct Done {}
    bounded(change).await?;
    Ok(respond::json(&Done {}))
}

async fn bounded<T>(change: impl Future<Output = Result<T, StoreError>>) -> Result<T, StoreError> {
    timeout(CHANGE_TIMEOUT, change).await.unwrap_or_else(|_| {
        Err(StoreError::new(
            Reason::Unknown,
            format!("the change was not committed within {CHANGE_TIMEOUT:?} and may still be; read the status"),
        ))
    })
}
