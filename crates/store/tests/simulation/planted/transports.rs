//! Transports that answer for other members.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex},
};

use bellerophon_store::{PeerAddress, PeerRequest, PeerResponse, PeerTransport, TransportError};
use bytes::Bytes;
use futures_util::future::BoxFuture;

/// The kind of a message that appends entries, and the response that it succeeded.
const APPEND: u8 = 1;
const SUCCESS: &[u8] = &[1, 1];

fn is_append(request: &PeerRequest) -> bool {
    request.message.get(1) == Some(&APPEND)
}

/// Heartbeats end with an entry count of zero.
fn is_heartbeat(request: &PeerRequest) -> bool {
    is_append(request) && request.message.ends_with(&[0; 4])
}

fn success() -> Result<PeerResponse, TransportError> {
    Ok(PeerResponse {
        message: Bytes::from_static(SUCCESS),
    })
}

/// A heartbeat that succeeded once is acknowledged from then on, whether or not it arrives: a
/// leader never notices that it was deposed, and serves reads.
pub(super) fn forged_heartbeats(inner: Arc<dyn PeerTransport>) -> Arc<dyn PeerTransport> {
    Arc::new(ForgedHeartbeats {
        inner,
        succeeded: Arc::default(),
    })
}

struct ForgedHeartbeats {
    inner: Arc<dyn PeerTransport>,
    succeeded: Arc<Mutex<BTreeSet<(u64, Bytes)>>>,
}

impl PeerTransport for ForgedHeartbeats {
    fn send(
        &self,
        to: PeerAddress,
        request: PeerRequest,
    ) -> BoxFuture<'static, Result<PeerResponse, TransportError>> {
        if !is_heartbeat(&request) {
            return self.inner.send(to, request);
        }
        let heartbeat = (to.member, request.message.clone());
        let sent = self.inner.send(to, request);
        let succeeded = Arc::clone(&self.succeeded);
        Box::pin(async move {
            if succeeded.lock().unwrap().contains(&heartbeat) {
                tokio::spawn(sent);
                return success();
            }
            let result = sent.await;
            if result == success() {
                succeeded.lock().unwrap().insert(heartbeat);
            }
            result
        })
    }
}

/// The first messages with entries to each member are acknowledged, but not delivered: it counts
/// as caught up before it is.
pub(super) fn forged_replication(inner: Arc<dyn PeerTransport>) -> Arc<dyn PeerTransport> {
    Arc::new(ForgedReplication {
        inner,
        forged: Mutex::default(),
    })
}

/// Messages that are not delivered, per member.
const FORGED: u32 = 12;

struct ForgedReplication {
    inner: Arc<dyn PeerTransport>,
    forged: Mutex<BTreeMap<u64, u32>>,
}

impl PeerTransport for ForgedReplication {
    fn send(
        &self,
        to: PeerAddress,
        request: PeerRequest,
    ) -> BoxFuture<'static, Result<PeerResponse, TransportError>> {
        if is_append(&request) && !is_heartbeat(&request) {
            let mut forged = self.forged.lock().unwrap();
            let count = forged.entry(to.member).or_default();
            if *count < FORGED {
                *count += 1;
                return Box::pin(async { success() });
            }
        }
        self.inner.send(to, request)
    }
}
