//! A SPDY/3.1 connection, as client or server.

use std::{
    collections::HashMap,
    fmt, io,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU32},
    },
};

use tokio::{
    io::{AsyncRead, AsyncWrite},
    sync::{mpsc, oneshot},
};
use tokio_util::sync::CancellationToken;

use super::{
    codec::{Decoder, Encoder},
    frame::Control,
    headers::Headers,
    reader::Reader,
    writer::Writer,
};
use crate::{
    ByteStream, ConnectionOptions,
    activity::Activity,
    mux::{Limits, Mux},
    session::{Context, Session},
};

/// Control frames that wait to be written. When it is full, the read task waits.
const CONTROL_FRAMES_MAX: usize = 64;

/// Streams that wait to be accepted. When it is full, the read task waits.
const INCOMING_MAX: usize = 16;

/// The largest ID of a stream.
const ID_MAX: u32 = 0x7fff_ffff;

/// Which side of the connection this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Client,
    Server,
}

/// A SPDY/3.1 connection, as client or server.
///
/// Two tasks read and write it. They run until the connection is [closed](Self::close) or dropped,
/// the peer closes it, the peer violates the protocol, or it is idle for too long. Dropping it
/// closes it in the background: what is written is still sent.
pub struct Connection {
    session: Session,
    mux: Arc<Mux>,
    shared: Arc<Shared>,
    control: mpsc::Sender<Control>,
    incoming: mpsc::Receiver<IncomingStream>,
}

impl Connection {
    /// The server's side of a connection.
    pub fn server<S>(io: S, options: &ConnectionOptions) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        Self::spawn(io, Role::Server, options)
    }

    /// The client's side of a connection.
    pub fn client<S>(io: S, options: &ConnectionOptions) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        Self::spawn(io, Role::Client, options)
    }

    fn spawn<S>(io: S, role: Role, options: &ConnectionOptions) -> Self
    where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let (read_half, write_half) = tokio::io::split(io);
        let (control, control_frames) = mpsc::channel(CONTROL_FRAMES_MAX);
        let (incoming_streams, incoming) = mpsc::channel(INCOMING_MAX);
        let mux = Mux::new(Limits::default());
        let shared = Arc::new(Shared::new(role));
        let activity = Arc::new(Activity::new());
        let reader = Reader {
            io: Reader::buffered(read_half),
            decoder: Decoder::new(),
            mux: Arc::clone(&mux),
            activity: Arc::clone(&activity),
            shared: Arc::clone(&shared),
            control: control.clone(),
            incoming: incoming_streams,
        };
        let writer = Writer {
            io: Writer::buffered(write_half),
            encoder: Encoder::new(),
            mux: Arc::clone(&mux),
            activity: Arc::clone(&activity),
            shared: Arc::clone(&shared),
            control: control_frames,
            ping_interval: options.ping_interval,
        };
        let context = Context {
            mux: Arc::clone(&mux),
            activity,
            options: options.clone(),
        };
        Self {
            session: Session::spawn(context, reader.run(), writer.run()),
            mux,
            shared,
            control,
            incoming,
        }
    }

    /// Opens a stream and waits until the peer accepts it. Sets no timeout.
    ///
    /// # Errors
    ///
    /// `ConnectionRefused` if the peer refuses the stream, `BrokenPipe` if the connection is
    /// closed, and `QuotaExceeded` if it has too many streams.
    pub async fn open(&self, headers: Headers) -> io::Result<ByteStream> {
        let closed = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        let slot = self.control.reserve().await.map_err(closed)?;
        let (stream, reply) = {
            let mut streams = self.shared.streams();
            let id = streams.next_id;
            if id > ID_MAX {
                return Err(io::ErrorKind::QuotaExceeded.into());
            }
            let stream = self.mux.open(id);
            let stream = stream.ok_or_else(|| io::Error::from(io::ErrorKind::QuotaExceeded))?;
            streams.next_id += 2;
            let (replied, reply) = oneshot::channel();
            streams.replies.retain(|_, waiting| !waiting.is_closed());
            streams.replies.insert(id, replied);
            // Sent under the lock, since the IDs on the wire must increase.
            slot.send(Control::SynStream {
                id,
                headers,
                fin: false,
            });
            (stream, reply)
        };
        match reply.await {
            Ok(true) => Ok(stream),
            Ok(false) => Err(io::ErrorKind::ConnectionRefused.into()),
            Err(_) => Err(io::ErrorKind::BrokenPipe.into()),
        }
    }

    /// The next stream that the peer opens; None once the connection has ended.
    pub async fn accept(&mut self) -> Option<IncomingStream> {
        self.incoming.recv().await
    }

    /// Refuses all streams that the peer opens from now on.
    pub fn refuse_streams(&mut self) {
        self.incoming.close();
        while self.incoming.try_recv().is_ok() {}
    }

    /// Cancelled once the connection has ended.
    pub fn closed(&self) -> CancellationToken {
        self.session.closed()
    }

    /// Returns once what was written to all streams is flushed: what is written then arrives
    /// after it. Streams take turns otherwise. Waits at most the close timeout.
    pub async fn drained(&self) {
        self.session.drained().await;
    }

    /// Ends all streams after what was written, sends GOAWAY, and waits until the peer has closed
    /// the connection too, at most the close timeout.
    pub async fn close(self) {
        self.session.close().await;
    }
}

impl fmt::Debug for Connection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Connection")
            .field("role", &self.shared.role)
            .finish_non_exhaustive()
    }
}

/// A stream that the peer opened and that is not yet accepted. Dropping it resets the stream.
pub struct IncomingStream {
    id: u32,
    headers: Headers,
    /// None once the stream is accepted.
    stream: Option<ByteStream>,
    control: mpsc::Sender<Control>,
}

impl IncomingStream {
    pub(super) fn new(
        id: u32,
        headers: Headers,
        stream: ByteStream,
        control: mpsc::Sender<Control>,
    ) -> Self {
        Self {
            id,
            headers,
            stream: Some(stream),
            control,
        }
    }

    /// The ID of the stream.
    pub fn id(&self) -> u32 {
        self.id
    }

    /// The headers with which the peer opened the stream.
    pub fn headers(&self) -> &Headers {
        &self.headers
    }

    /// Accepts the stream.
    ///
    /// # Errors
    ///
    /// `BrokenPipe` if the connection is closed.
    pub async fn accept(mut self) -> io::Result<ByteStream> {
        let reply = Control::SynReply {
            id: self.id,
            headers: Headers::default(),
            fin: false,
        };
        let closed = |_| io::Error::from(io::ErrorKind::BrokenPipe);
        self.control.send(reply).await.map_err(closed)?;
        let stream = self.stream.take();
        Ok(stream.expect("a stream is taken only when it is accepted"))
    }
}

impl fmt::Debug for IncomingStream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IncomingStream")
            .field("id", &self.id)
            .field("headers", &self.headers)
            .finish_non_exhaustive()
    }
}

impl Drop for IncomingStream {
    fn drop(&mut self) {
        if let Some(stream) = self.stream.take() {
            stream.reset();
        }
    }
}

/// What a connection and its tasks share.
pub(super) struct Shared {
    pub(super) role: Role,
    /// Whether the peer sent GOAWAY.
    pub(super) peer_is_leaving: AtomicBool,
    /// The status of our own GOAWAY.
    pub(super) goaway_status: AtomicU32,
    streams: Mutex<Streams>,
}

pub(super) struct Streams {
    /// The ID of the next stream of this side.
    next_id: u32,
    next_ping: u32,
    /// The last stream of the peer; 0 before the first.
    last_accepted_id: u32,
    /// Streams of this side that wait for a SYN_REPLY. Invariant: no longer than the open streams,
    /// except for those that are abandoned, which the next stream removes.
    replies: HashMap<u32, oneshot::Sender<bool>>,
}

impl Shared {
    pub(super) fn new(role: Role) -> Self {
        let first_id = match role {
            Role::Client => 1,
            Role::Server => 2,
        };
        Self {
            role,
            peer_is_leaving: AtomicBool::new(false),
            goaway_status: AtomicU32::new(0),
            streams: Mutex::new(Streams {
                next_id: first_id,
                next_ping: first_id,
                last_accepted_id: 0,
                replies: HashMap::new(),
            }),
        }
    }

    fn streams(&self) -> MutexGuard<'_, Streams> {
        self.streams.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether the ID of a new stream of the peer is larger than those before.
    pub(super) fn accept_id(&self, id: u32) -> bool {
        let mut streams = self.streams();
        let is_next = id > streams.last_accepted_id;
        if is_next {
            streams.last_accepted_id = id;
        }
        is_next
    }

    pub(super) fn last_accepted_id(&self) -> u32 {
        self.streams().last_accepted_id
    }

    pub(super) fn next_ping(&self) -> u32 {
        let mut streams = self.streams();
        let id = streams.next_ping;
        streams.next_ping = id.checked_add(2).unwrap_or(2 - id % 2);
        id
    }

    /// Completes the opening of a stream, if it waits for a reply.
    pub(super) fn reply(&self, id: u32, is_accepted: bool) {
        if let Some(waiting) = self.streams().replies.remove(&id) {
            // Fails if the opening was cancelled.
            let _ = waiting.send(is_accepted);
        }
    }

    /// Fails the opening of all streams that wait for a reply.
    pub(super) fn fail_replies(&self) {
        self.streams().replies.clear();
    }
}
