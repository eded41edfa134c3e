//! The simulated network: delays, loses, repeats and reorders messages, and partitions members.
//!
//! In: requests of members, faults. Out: deliveries that are due.
//! Guarantee: deterministic for a seed and a sequence of calls.

use std::{
    collections::{BTreeMap, BTreeSet},
    io,
    sync::{Arc, Mutex, MutexGuard},
};

use bellerophon_store::{
    PeerAddress, PeerRequest, PeerResponse, PeerTransport, SnapshotStream, TransportError,
    api::{ClusterId, MemberId, StoreError},
};
use bytes::Bytes;
use futures_util::{StreamExt, future::BoxFuture, stream};
use rand::{RngExt, SeedableRng, rngs::StdRng};
use tokio::sync::oneshot;

use crate::trace::Trace;

/// The number of a machine: a disk and the process on it.
pub(crate) type Slot = usize;

type Answer = oneshot::Sender<Result<PeerResponse, TransportError>>;

/// What the network does to messages.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Quality {
    /// Delay of a message in milliseconds, at least and at most.
    pub(crate) delay: (u64, u64),
    /// Messages of 1,000 that are lost.
    pub(crate) lost: u32,
    /// Requests of 1,000 that are delivered twice.
    pub(crate) repeated: u32,
}

impl Quality {
    pub(crate) const GOOD: Self = Self {
        delay: (1, 6),
        lost: 0,
        repeated: 0,
    };
}

pub(crate) struct Network {
    inner: Mutex<Inner>,
    trace: Arc<Trace>,
}

struct Inner {
    now: u64,
    rng: StdRng,
    quality: Quality,
    /// Links that deliver nothing, by sender and receiver.
    cut: BTreeSet<(Slot, Slot)>,
    queue: BTreeMap<(u64, u64), Packet>,
    next: u64,
    /// Of lost messages: their senders wait until the deadline.
    waiting: Vec<Answer>,
    /// Requests that a process works on. Kept here, so that the end of a process resets its
    /// connections in a fixed order: a runtime drops its tasks in any order.
    accepted: BTreeMap<u64, (Slot, Slot, Answer)>,
}

pub(crate) enum Packet {
    Request(Parcel, Option<Answer>),
    Response {
        from: Slot,
        to: Slot,
        result: Result<PeerResponse, TransportError>,
        answer: Answer,
    },
}

/// A request in flight.
#[derive(Clone)]
pub(crate) struct Parcel {
    pub(crate) from_slot: Slot,
    pub(crate) to_slot: Slot,
    pub(crate) cluster: ClusterId,
    pub(crate) from: MemberId,
    pub(crate) to: MemberId,
    pub(crate) message: Bytes,
    pub(crate) snapshot: Option<Vec<Bytes>>,
    /// The transfer of the snapshot breaks after this many chunks.
    pub(crate) broken_after: Option<usize>,
}

impl Parcel {
    pub(crate) fn into_request(self) -> PeerRequest {
        let broken_after = self.broken_after;
        let snapshot = self.snapshot.map(|chunks| -> SnapshotStream {
            let whole = chunks.len();
            let kept = broken_after.map_or(whole, |after| after.min(whole));
            let kept_chunks = chunks.into_iter().take(kept).map(Ok);
            let error =
                (broken_after.is_some()).then(|| Err(io::ErrorKind::ConnectionReset.into()));
            Box::pin(stream::iter(kept_chunks.chain(error)))
        });
        PeerRequest {
            cluster: self.cluster,
            from: self.from,
            to: self.to,
            message: self.message,
            snapshot,
        }
    }
}

impl Network {
    pub(crate) fn new(seed: u64, trace: Arc<Trace>) -> Arc<Self> {
        Arc::new(Self {
            inner: Mutex::new(Inner {
                now: 0,
                rng: StdRng::seed_from_u64(seed),
                quality: Quality::GOOD,
                cut: BTreeSet::new(),
                queue: BTreeMap::new(),
                next: 0,
                waiting: Vec::new(),
                accepted: BTreeMap::new(),
            }),
            trace,
        })
    }

    pub(crate) fn transport(self: &Arc<Self>, slot: Slot) -> Arc<dyn PeerTransport> {
        Arc::new(SlotTransport {
            network: Arc::clone(self),
            slot,
        })
    }

    pub(crate) fn set_quality(&self, quality: Quality) {
        self.lock().quality = quality;
    }

    /// Cuts a link in one direction.
    pub(crate) fn cut(&self, from: Slot, to: Slot) {
        self.lock().cut.insert((from, to));
    }

    /// Repairs all links.
    pub(crate) fn heal(&self) {
        let mut inner = self.lock();
        inner.cut.clear();
        inner.quality = Quality::GOOD;
    }

    /// Advances the time and returns what is due.
    pub(crate) fn due(&self, now: u64) -> Vec<Packet> {
        let mut inner = self.lock();
        inner.now = now;
        let later = inner.queue.split_off(&(now + 1, 0));
        let due = std::mem::replace(&mut inner.queue, later);
        let mut packets = Vec::new();
        for packet in due.into_values() {
            let (from, to) = packet.link();
            if !inner.cut.contains(&(from, to)) {
                packets.push(packet);
            } else if let Some(answer) = packet.into_answer() {
                inner.waiting.push(answer);
            }
        }
        packets
    }

    /// A process begins to work on a request.
    pub(crate) fn accept(&self, link: (Slot, Slot), answer: Option<Answer>) -> u64 {
        let mut inner = self.lock();
        let number = inner.next;
        inner.next += 1;
        if let Some(answer) = answer {
            inner.accepted.insert(number, (link.0, link.1, answer));
        }
        number
    }

    /// Sends the response to a request back.
    pub(crate) fn respond(&self, number: u64, result: Result<PeerResponse, StoreError>) {
        let accepted = self.lock().accepted.remove(&number);
        if let Some((from, to, answer)) = accepted {
            let length = result.as_ref().map_or(0, |response| response.message.len());
            self.trace
                .record(format_args!("response {to}->{from} {length}"));
            self.send(Packet::Response {
                from: to,
                to: from,
                result: result.map_err(TransportError::Refused),
                answer,
            });
        }
    }

    /// A process ended: its connections are reset.
    pub(crate) fn reset(&self, slot: Slot) {
        let accepted = std::mem::take(&mut self.lock().accepted);
        let (ended, rest) = accepted.into_iter().partition(|(_, link)| link.1 == slot);
        self.lock().accepted = rest;
        let ended: BTreeMap<u64, (Slot, Slot, Answer)> = ended;
        for (from, to, answer) in ended.into_values() {
            self.send(Packet::Response {
                from: to,
                to: from,
                result: Err(TransportError::Lost("connection reset".to_owned())),
                answer,
            });
        }
    }

    /// Reports to the sender that nothing listens at the address.
    pub(crate) fn refuse(&self, link: (Slot, Slot), answer: Option<Answer>) {
        if let Some(answer) = answer {
            let (from, to) = link;
            self.send(Packet::Response {
                from: to,
                to: from,
                result: Err(TransportError::Unreachable("connection refused".to_owned())),
                answer,
            });
        }
    }

    fn send(&self, packet: Packet) {
        let mut inner = self.lock();
        let inner = &mut *inner;
        let quality = inner.quality;
        let link = packet.link();
        let is_lost = inner.rng.random_range(0..1000) < quality.lost;
        if is_lost || inner.cut.contains(&link) {
            if let Some(answer) = packet.into_answer() {
                inner.waiting.push(answer);
            }
            return;
        }
        if let Packet::Request(parcel, _) = &packet
            && inner.rng.random_range(0..1000) < quality.repeated
            && PeerRequest::is_repeatable(&parcel.message)
        {
            let copy = Packet::Request(parcel.clone(), None);
            inner.push(copy);
        }
        inner.push(packet);
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap()
    }
}

impl Inner {
    fn push(&mut self, packet: Packet) {
        let (least, most) = self.quality.delay;
        let due = self.now + self.rng.random_range(least..=most);
        self.queue.insert((due, self.next), packet);
        self.next += 1;
    }
}

impl Packet {
    fn link(&self) -> (Slot, Slot) {
        match self {
            Self::Request(parcel, _) => (parcel.from_slot, parcel.to_slot),
            Self::Response { from, to, .. } => (*from, *to),
        }
    }

    fn into_answer(self) -> Option<Answer> {
        match self {
            Self::Request(_, answer) => answer,
            Self::Response { answer, .. } => Some(answer),
        }
    }
}

/// The address of a slot.
pub(crate) fn address(slot: Slot) -> String {
    format!("slot-{slot}:7071")
}

fn slot(address: &str) -> Option<Slot> {
    let number = address.strip_prefix("slot-")?.strip_suffix(":7071")?;
    number.parse().ok()
}

struct SlotTransport {
    network: Arc<Network>,
    slot: Slot,
}

impl PeerTransport for SlotTransport {
    fn send(
        &self,
        to: PeerAddress,
        request: PeerRequest,
    ) -> BoxFuture<'static, Result<PeerResponse, TransportError>> {
        let network = Arc::clone(&self.network);
        let from_slot = self.slot;
        Box::pin(async move {
            let unreachable = || TransportError::Unreachable("no such address".to_owned());
            let to_slot = slot(&to.address).ok_or_else(unreachable)?;
            let snapshot = match request.snapshot {
                None => None,
                Some(stream) => Some(collect(stream).await?),
            };
            let parcel = Parcel {
                from_slot,
                to_slot,
                cluster: request.cluster,
                from: request.from,
                to: request.to,
                message: request.message,
                broken_after: network.broken_after(snapshot.as_ref()),
                snapshot,
            };
            let (answer, response) = oneshot::channel();
            network.trace.record(format_args!(
                "request {from_slot}->{to_slot} {:08x}",
                crc32fast::hash(&parcel.message)
            ));
            network.send(Packet::Request(parcel, Some(answer)));
            let lost = |_| TransportError::Lost("connection reset".to_owned());
            response.await.map_err(lost)?
        })
    }
}

impl Network {
    fn broken_after(&self, snapshot: Option<&Vec<Bytes>>) -> Option<usize> {
        let chunks = snapshot?.len();
        let mut inner = self.lock();
        let lost = inner.quality.lost;
        let is_broken = inner.rng.random_range(0..1000) < lost * 4;
        is_broken.then(|| inner.rng.random_range(0..=chunks))
    }
}

async fn collect(mut stream: SnapshotStream) -> Result<Vec<Bytes>, TransportError> {
    let mut chunks = Vec::new();
    while let Some(chunk) = stream.next().await {
        chunks.push(chunk.map_err(|error| TransportError::Lost(error.to_string()))?);
    }
    Ok(chunks)
}
