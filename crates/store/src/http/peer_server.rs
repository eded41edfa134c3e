//! The peer API: messages of other members.
//!
//! In: `POST /peer/v1/message` with cluster, sender and receiver as headers, and a message that a
//! snapshot may follow. Out: the member's response.
//! Guarantees: with TLS, the certificate proves the sender. Messages are bounded in size, snapshots
//! in the time between two parts.

use std::{io, sync::Arc, time::Duration};

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http::{HeaderMap, Method, Request, Response};
use http_body_util::BodyExt as _;
use hyper::body::Incoming;
use tokio::{sync::Semaphore, time::timeout};
use tracing::warn;

use super::{
    body::Body,
    listener::{Handler, PeerCertificate},
    query::invalid,
    respond,
};
use crate::{
    Member, PeerRequest, SnapshotStream,
    api::{ClusterId, MemberId, Reason, StoreError},
    tls,
};

pub(super) const PATH: &str = "/peer/v1/message";
pub(super) const CLUSTER: &str = "store-cluster";
pub(super) const FROM: &str = "store-from";
pub(super) const TO: &str = "store-to";
/// The bytes of the message. What follows them is a snapshot.
pub(super) const MESSAGE_BYTES: &str = "store-message-bytes";

/// Concurrent messages: a few per member.
const MESSAGES_MAX: usize = 256;

/// The wait for the next part of a message or snapshot.
const PART_TIMEOUT: Duration = Duration::from_secs(30);

/// Whether senders prove their identity.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PeerProof {
    /// By the name in their certificate.
    Certificate,
    /// Not at all: without TLS.
    None,
}

/// The peer API.
pub(crate) struct PeerApi {
    member: Member,
    proof: PeerProof,
    messages: Semaphore,
}

impl PeerApi {
    pub(crate) fn new(member: Member, proof: PeerProof) -> Self {
        Self {
            member,
            proof,
            messages: Semaphore::new(MESSAGES_MAX),
        }
    }

    async fn serve(
        &self,
        request: Request<Incoming>,
        certificate: PeerCertificate,
    ) -> Result<Response<Body>, StoreError> {
        if request.method() != Method::POST || request.uri().path() != PATH {
            return Err(respond::unknown_path(
                request.method(),
                request.uri().path(),
            ));
        }
        let head = Head::of(request.headers())?;
        self.prove(&head, certificate)?;
        let _permit = self.messages.try_acquire().map_err(|_| {
            StoreError::new(
                Reason::Busy,
                format!("{MESSAGES_MAX} messages of peers are in progress; retry later"),
            )
        })?;
        let mut parts = Parts {
            body: request.into_body(),
            rest: Bytes::new(),
        };
        let message = parts.message(head.message_bytes).await?;
        let response = self
            .member
            .handle_peer(PeerRequest {
                cluster: head.cluster,
                from: head.from,
                to: head.to,
                message,
                snapshot: Some(parts.into_snapshot()),
            })
            .await?;
        Ok(respond::bytes("application/octet-stream", response.message))
    }

    /// The certificate must be that of the sender.
    fn prove(&self, head: &Head, certificate: PeerCertificate) -> Result<(), StoreError> {
        if self.proof == PeerProof::None {
            return Ok(());
        }
        let is_sender = certificate
            .is_some_and(|certificate| tls::is_member(&certificate, head.from, &head.cluster));
        if is_sender {
            return Ok(());
        }
        let name = tls::member_name(head.from, &head.cluster);
        warn!(sender = head.from, cluster = %head.cluster, "peer without the certificate of its name");
        Err(StoreError::new(
            Reason::Forbidden,
            format!(
                "the certificate of the peer does not have the name {name}; issue it with that name"
            ),
        ))
    }
}

impl Handler for PeerApi {
    async fn handle(
        self: Arc<Self>,
        request: Request<Incoming>,
        certificate: PeerCertificate,
    ) -> Response<Body> {
        respond::result(self.serve(request, certificate).await)
    }
}

/// The headers of a message.
struct Head {
    cluster: ClusterId,
    from: MemberId,
    to: MemberId,
    message_bytes: usize,
}

impl Head {
    fn of(headers: &HeaderMap) -> Result<Self, StoreError> {
        let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok());
        let missing = |name: &str| invalid(format!("header {name} is missing or invalid"));
        let number = |name: &str| -> Result<u64, StoreError> {
            let number = text(name).and_then(|text| text.parse().ok());
            number.ok_or_else(|| missing(name))
        };
        let cluster = text(CLUSTER).and_then(|text| text.parse().ok());
        let message_bytes = number(MESSAGE_BYTES)?;
        let message_bytes = usize::try_from(message_bytes).unwrap_or(usize::MAX);
        if message_bytes > PeerRequest::MESSAGE_BYTES_MAX {
            return Err(StoreError::new(
                Reason::TooLarge,
                format!("the message of a peer has {message_bytes} bytes"),
            ));
        }
        Ok(Self {
            cluster: cluster.ok_or_else(|| missing(CLUSTER))?,
            from: number(FROM)?,
            to: number(TO)?,
            message_bytes,
        })
    }
}

/// The parts of a body as they arrive.
struct Parts {
    body: Incoming,
    /// What was received and not used yet.
    rest: Bytes,
}

impl Parts {
    async fn next(&mut self) -> io::Result<Option<Bytes>> {
        if !self.rest.is_empty() {
            return Ok(Some(std::mem::take(&mut self.rest)));
        }
        loop {
            let frame = timeout(PART_TIMEOUT, self.body.frame())
                .await
                .map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?;
            match frame.transpose().map_err(io::Error::other)? {
                None => return Ok(None),
                Some(frame) => {
                    if let Ok(data) = frame.into_data() {
                        return Ok(Some(data));
                    }
                }
            }
        }
    }

    /// The first bytes of the body.
    async fn message(&mut self, length: usize) -> Result<Bytes, StoreError> {
        let mut message = BytesMut::new();
        while message.len() < length {
            let part = self.next().await;
            let part =
                part.map_err(|error| invalid(format!("the message is incomplete: {error}")))?;
            let Some(mut part) = part else {
                return Err(invalid("the message is incomplete".to_owned()));
            };
            let missing = length - message.len();
            if part.len() > missing {
                self.rest = part.split_off(missing);
            }
            if message.is_empty() && part.len() == length {
                return Ok(part);
            }
            message.extend_from_slice(&part);
        }
        Ok(message.freeze())
    }

    /// The rest of the body.
    fn into_snapshot(self) -> SnapshotStream {
        Box::pin(stream::try_unfold(self, async |mut parts| {
            Ok(parts.next().await?.map(|part| (part, parts)))
        }))
    }
}
