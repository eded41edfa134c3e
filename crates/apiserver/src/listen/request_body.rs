//! Request bodies, read within limits of size, memory and time.
//!
//! Inputs: the body of an authorized request, and its flow (the user). Output: its bytes, counted
//! until they are dropped.
//!
//! Guarantees:
//! - A body is charged for the bytes that have arrived, not for its `Content-Length`: a flow that
//!   announces large bodies and does not send them takes nothing from others.
//! - No flow holds more than its share; `system:masters` is counted apart and never refused.
//! - A body that does not arrive within 10 s + 1 s per 64 KiB is refused with 504.
//! - Nothing waits for memory: beyond a limit, the request is refused with 429.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use bellerophon_apimachinery::error::ApiError;
use bellerophon_codec::decode::BODY_MAX_BYTES;
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use http_body_util::BodyExt as _;
use tokio::time::{Instant, timeout_at};

use crate::auth::{MASTERS, User};

/// The time for a body of any size.
const READ_TIMEOUT: Duration = Duration::from_secs(10);

/// A body gets one more second each time that many bytes have arrived.
const BYTES_PER_SECOND: u64 = 64 << 10;

/// The least that a body is charged: a single byte can hold a read buffer of the connection.
const CHARGE_MIN_BYTES: usize = 4 << 10;

/// `Retry-After` of a refused request, as of an overloaded kube-apiserver.
const RETRY_AFTER_SECONDS: u32 = 1;

/// The error of a body that is being read.
pub(crate) type BodyError = Box<dyn std::error::Error + Send + Sync>;

/// Limits of all bodies that are being read or processed.
#[derive(Clone, Copy, Debug)]
struct Limits {
    bytes_max: usize,
    flow_bytes_max: usize,
    flow_bodies_max: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            bytes_max: 128 << 20,
            flow_bytes_max: 16 << 20,
            flow_bodies_max: 128,
        }
    }
}

/// The request bodies in memory. Clones share one count.
#[derive(Clone, Debug, Default)]
pub(crate) struct RequestBodies {
    limits: Limits,
    usage: Arc<Mutex<Usage>>,
}

/// The current memory usage of bodies.
#[derive(Debug, Default)]
struct Usage {
    /// The bytes of all flows. Invariant: the sum of `flows`.
    bytes: usize,
    /// Invariant: every flow has at least one body.
    flows: HashMap<Arc<str>, FlowUsage>,
}

#[derive(Debug, Default)]
struct FlowUsage {
    bytes: usize,
    bodies: usize,
}

/// The bytes of a request body. They are counted until this is dropped.
#[derive(Debug, Default)]
pub(crate) struct RequestBody {
    pub(crate) bytes: Bytes,
    _reservation: Option<Reservation>,
}

/// A body that is counted.
#[derive(Debug)]
struct Reservation {
    limits: Limits,
    usage: Arc<Mutex<Usage>>,
    flow: Arc<str>,
    bytes: usize,
}

impl RequestBodies {
    /// Reads a body.
    ///
    /// # Errors
    /// 413 for a body above 3 MiB, 429 when the flow or the server holds too many bytes, 504 when
    /// it is sent too slowly, and 400 when the client aborts it.
    pub(crate) async fn read<B>(
        &self,
        body: B,
        user: &User,
        deadline: Instant,
    ) -> Result<RequestBody, ApiError>
    where
        B: http_body::Body,
        B::Error: Into<BodyError>,
    {
        if body.is_end_stream() {
            return Ok(RequestBody::default());
        }
        let mut reservation = if user.is_in(MASTERS) {
            None
        } else {
            Some(self.reserve(&user.name)?)
        };
        let started = Instant::now();
        let mut received = Received::default();
        let mut body = pin!(body);
        loop {
            let allowed = READ_TIMEOUT + Duration::from_secs(received.len() / BYTES_PER_SECOND);
            let frame = timeout_at(deadline.min(started + allowed), body.frame());
            let Some(frame) = frame.await.map_err(|_| ApiError::request_timeout())? else {
                break;
            };
            let Ok(data) = frame.map_err(unreadable)?.into_data() else {
                continue;
            };
            if received.len() + data.remaining() as u64 > BODY_MAX_BYTES as u64 {
                return Err(ApiError::TooLarge(format!("limit is {BODY_MAX_BYTES}")));
            }
            if let Some(reservation) = &mut reservation {
                reservation.grow(received.capacity_with(data.remaining()))?;
            }
            received.push(data);
        }
        Ok(RequestBody {
            bytes: received.into_bytes(),
            _reservation: reservation,
        })
    }

    fn reserve(&self, flow: &str) -> Result<Reservation, ApiError> {
        let mut usage = lock(&self.usage);
        let flow = match usage.flows.get_key_value(flow) {
            Some((_, held)) if held.bodies >= self.limits.flow_bodies_max => {
                return Err(too_many_requests());
            }
            Some((flow, _)) => flow.clone(),
            None => flow.into(),
        };
        usage.flows.entry(flow.clone()).or_default().bodies += 1;
        drop(usage);
        let mut reservation = Reservation {
            limits: self.limits,
            usage: self.usage.clone(),
            flow,
            bytes: 0,
        };
        reservation.grow(CHARGE_MIN_BYTES)?;
        Ok(reservation)
    }
}

impl Reservation {
    /// Charges the body `bytes` in all, or what it is charged already if that is more.
    fn grow(&mut self, bytes: usize) -> Result<(), ApiError> {
        let more = bytes.saturating_sub(self.bytes);
        if more == 0 {
            return Ok(());
        }
        let mut usage = lock(&self.usage);
        let Usage { bytes: all, flows } = &mut *usage;
        let flow = flows.get_mut(&self.flow).expect("this body is counted");
        let flow_is_full = flow.bytes + more > self.limits.flow_bytes_max;
        if flow_is_full || *all + more > self.limits.bytes_max {
            return Err(too_many_requests());
        }
        flow.bytes += more;
        *all += more;
        self.bytes += more;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        let mut usage = lock(&self.usage);
        usage.bytes -= self.bytes;
        let flow = usage.flows.get_mut(&self.flow);
        let flow = flow.expect("this body is counted");
        flow.bytes -= self.bytes;
        flow.bodies -= 1;
        if flow.bodies == 0 {
            usage.flows.remove(&self.flow);
        }
    }
}

/// The data of a body so far. One frame is kept as it is; more are copied into one buffer, since a
/// frame of one byte can hold a read buffer of the connection.
#[derive(Default)]
struct Received {
    first: Bytes,
    joined: BytesMut,
}

impl Received {
    fn len(&self) -> u64 {
        (self.first.len() + self.joined.len()) as u64
    }

    /// How many bytes are held once this many more have arrived.
    fn capacity_with(&self, more: usize) -> usize {
        let len = self.first.len() + self.joined.len() + more;
        if len <= self.joined.capacity() || (self.first.is_empty() && self.joined.is_empty()) {
            len.max(self.joined.capacity())
        } else {
            len.next_power_of_two().min(BODY_MAX_BYTES)
        }
    }

    fn push(&mut self, mut data: impl bytes::Buf) {
        if self.first.is_empty() && self.joined.is_empty() {
            self.first = data.copy_to_bytes(data.remaining());
            return;
        }
        let capacity = self.capacity_with(data.remaining());
        self.joined.reserve(capacity - self.joined.len());
        self.joined.put(std::mem::take(&mut self.first));
        self.joined.put(data);
    }

    fn into_bytes(self) -> Bytes {
        if self.joined.is_empty() {
            self.first
        } else {
            self.joined.freeze()
        }
    }
}

fn lock(usage: &Mutex<Usage>) -> MutexGuard<'_, Usage> {
    // Counters stay consistent when a holder panics: no step between two changes can.
    usage.lock().unwrap_or_else(PoisonError::into_inner)
}

fn unreadable(error: impl Into<BodyError>) -> ApiError {
    let error = error.into();
    ApiError::BadRequest(format!(
        "the body of the request could not be read: {error}"
    ))
}

fn too_many_requests() -> ApiError {
    ApiError::TooManyRequests {
        message: "Too many requests, please try again later.".into(),
        retry_after_seconds: RETRY_AFTER_SECONDS,
        causes: Vec::new(),
    }
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use futures_util::{FutureExt as _, StreamExt as _, stream};
    use http_body::Frame;
    use http_body_util::{Full, StreamBody};

    use super::*;

    const FAR: Duration = Duration::from_secs(60);

    fn user(name: &str) -> User {
        User {
            name: name.into(),
            ..User::default()
        }
    }

    fn admin() -> User {
        User {
            groups: vec![MASTERS.into()],
            ..user("admin")
        }
    }

    /// A body of these chunks that never ends.
    fn unfinished(chunks: Vec<Bytes>) -> impl http_body::Body<Data = Bytes, Error = Infallible> {
        let frames = stream::iter(chunks).map(|chunk| Ok(Frame::data(chunk)));
        StreamBody::new(frames.chain(stream::pending()))
    }

    /// A body of chunks of this size, one per interval.
    fn trickle(
        count: usize,
        size: usize,
        interval: Duration,
    ) -> impl http_body::Body<Data = Bytes, Error = Infallible> {
        let frames = stream::iter(0..count).then(move |_| async move {
            tokio::time::sleep(interval).await;
            Ok(Frame::data(Bytes::from(vec![b'x'; size])))
        });
        StreamBody::new(frames)
    }

    async fn read_full(
        bodies: &RequestBodies,
        user: &User,
        size: usize,
    ) -> Result<RequestBody, ApiError> {
        let body = Full::new(Bytes::from(vec![b'x'; size]));
        bodies.read(body, user, Instant::now() + FAR).await
    }

    fn refused(result: Result<RequestBody, ApiError>) -> bool {
        result.is_err_and(|error| error.code() == 429 && error.retry_after_seconds() == Some(1))
    }

    fn held_bytes(bodies: &RequestBodies) -> usize {
        lock(&bodies.usage).bytes
    }

    #[tokio::test(start_paused = true)]
    async fn half_sent_body_is_refused_after_10_seconds() {
        let bodies = RequestBodies::default();
        let started = Instant::now();
        let body = unfinished(vec![Bytes::from_static(b"{")]);
        let result = bodies.read(body, &user("bob"), started + FAR).await;
        let error = result.expect_err("the body never ends");
        assert_eq!(error.code(), 504);
        let message = error.to_status()["message"].clone();
        assert_eq!(
            message,
            "Timeout: request did not complete within the allotted timeout"
        );
        assert_eq!(started.elapsed(), READ_TIMEOUT);
        assert_eq!(held_bytes(&bodies), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn body_of_64_kib_per_second_is_read() {
        let bodies = RequestBodies::default();
        let deadline = Instant::now() + FAR;
        let steady = trickle(40, 64 << 10, Duration::from_secs(1));
        let read = bodies.read(steady, &user("bob"), deadline).await;
        assert_eq!(read.expect("it is in time").bytes.len(), 40 * (64 << 10));
        let slow = trickle(40, 32 << 10, Duration::from_secs(1));
        let read = bodies.read(slow, &user("bob"), Instant::now() + FAR).await;
        assert_eq!(read.expect_err("it is too slow").code(), 504);
    }

    #[tokio::test(start_paused = true)]
    async fn body_does_not_outlive_the_deadline_of_its_request() {
        let bodies = RequestBodies::default();
        let started = Instant::now();
        let deadline = started + Duration::from_secs(2);
        let body = unfinished(Vec::new());
        let result = bodies.read(body, &admin(), deadline).await;
        assert_eq!(result.expect_err("the body never ends").code(), 504);
        assert_eq!(started.elapsed(), Duration::from_secs(2));
    }

    #[tokio::test(start_paused = true)]
    async fn frames_are_joined_in_order() {
        let bodies = RequestBodies::default();
        for size in [1, 1000, 5000] {
            let text: Vec<u8> = (0..size).map(|i| b'a' + (i % 26) as u8).collect();
            for frame in [1, 7, 4096] {
                let chunks: Vec<_> = text.chunks(frame).map(Bytes::copy_from_slice).collect();
                let frames =
                    stream::iter(chunks).map(|chunk| Ok::<_, Infallible>(Frame::data(chunk)));
                let body = StreamBody::new(frames);
                let read = bodies.read(body, &user("bob"), Instant::now() + FAR).await;
                assert_eq!(read.expect("a body").bytes, text, "{size} by {frame}");
            }
        }
    }

    #[tokio::test(start_paused = true)]
    async fn body_above_3_mib_is_too_large() {
        let bodies = RequestBodies::default();
        let largest = read_full(&bodies, &user("bob"), BODY_MAX_BYTES).await;
        assert_eq!(largest.expect("a body").bytes.len(), BODY_MAX_BYTES);
        let larger = read_full(&bodies, &user("bob"), BODY_MAX_BYTES + 1).await;
        assert_eq!(larger.expect_err("too large").code(), 413);
        assert_eq!(held_bytes(&bodies), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn flow_with_128_bodies_is_refused_and_others_are_not() {
        let bodies = RequestBodies::default();
        let deadline = Instant::now() + FAR;
        let bob = user("bob");
        let mut half_sent: Vec<_> = (0..128)
            .map(|_| Box::pin(bodies.read(unfinished(Vec::new()), &bob, deadline)))
            .collect();
        for read in &mut half_sent {
            assert!(read.now_or_never().is_none(), "it waits for the body");
        }
        assert!(refused(read_full(&bodies, &bob, 10).await));
        assert!(read_full(&bodies, &user("alice"), 10).await.is_ok());
        assert!(read_full(&bodies, &admin(), 10).await.is_ok());
        drop(half_sent);
        assert!(read_full(&bodies, &bob, 10).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn flow_is_charged_for_what_it_sent() {
        let bodies = RequestBodies::default();
        let bob = user("bob");
        let mut read = Vec::new();
        for _ in 0..5 {
            let body = read_full(&bodies, &bob, BODY_MAX_BYTES).await;
            read.push(body.expect("15 MiB are below the limit"));
        }
        assert!(refused(read_full(&bodies, &bob, BODY_MAX_BYTES).await));
        assert!(read_full(&bodies, &bob, 1 << 20).await.is_ok());
        assert!(
            read_full(&bodies, &user("alice"), BODY_MAX_BYTES)
                .await
                .is_ok()
        );
        read.pop();
        assert!(read_full(&bodies, &bob, BODY_MAX_BYTES).await.is_ok());
        drop(read);
        assert_eq!(held_bytes(&bodies), 0);
        assert!(lock(&bodies.usage).flows.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn all_flows_together_hold_128_mib() {
        let bodies = RequestBodies::default();
        let mut read = Vec::new();
        for flow in 0..42 {
            let body = read_full(&bodies, &user(&flow.to_string()), BODY_MAX_BYTES).await;
            read.push(body.expect("126 MiB are below the limit"));
        }
        assert!(refused(
            read_full(&bodies, &user("bob"), BODY_MAX_BYTES).await
        ));
        for _ in 0..50 {
            let body = read_full(&bodies, &admin(), BODY_MAX_BYTES).await;
            read.push(body.expect("system:masters is counted apart"));
        }
    }
}
