//! The read task of a SPDY connection.

use std::{
    io,
    sync::{Arc, atomic::Ordering},
};

use tokio::{
    io::{AsyncBufReadExt, AsyncRead, AsyncReadExt, BufReader},
    sync::mpsc,
};

use super::{
    codec::Decoder,
    connection::{IncomingStream, Role, Shared},
    frame::{Control, FrameHeader, HEADER_BYTES, ProtocolError, reset},
    headers::Headers,
};
use crate::{
    activity::Activity,
    mux::{InputEnd, Mux},
};

/// The buffer of a connection, and so the largest piece of a data frame delivered, in bytes.
const BUFFER_BYTES: usize = 32 << 10;

/// The status of a GOAWAY after a protocol error of the peer.
const GOAWAY_PROTOCOL_ERROR: u32 = 1;

/// Reads frames, delivers data, and answers control frames.
pub(super) struct Reader<R> {
    pub(super) io: BufReader<R>,
    pub(super) decoder: Decoder,
    pub(super) mux: Arc<Mux>,
    pub(super) activity: Arc<Activity>,
    pub(super) shared: Arc<Shared>,
    pub(super) control: mpsc::Sender<Control>,
    pub(super) incoming: mpsc::Sender<IncomingStream>,
}

impl<R: AsyncRead + Unpin> Reader<R> {
    pub(super) fn buffered(io: R) -> BufReader<R> {
        BufReader::with_capacity(BUFFER_BYTES, io)
    }

    /// Runs until the peer closes, or breaks the protocol.
    pub(super) async fn run(mut self) -> io::Result<InputEnd> {
        match self.read_frames().await {
            Err(error) if error.kind() == io::ErrorKind::InvalidData => {
                let status = &self.shared.goaway_status;
                status.store(GOAWAY_PROTOCOL_ERROR, Ordering::Relaxed);
                Err(error)
            }
            // A connection that breaks needs no GOAWAY.
            _ => Ok(InputEnd::Aborted),
        }
    }

    async fn read_frames(&mut self) -> io::Result<()> {
        while !self.io.fill_buf().await?.is_empty() {
            let mut header = [0; HEADER_BYTES];
            self.io.read_exact(&mut header).await?;
            self.activity.touch();
            match FrameHeader::parse(header).map_err(invalid)? {
                FrameHeader::Data { id, fin, length } => {
                    self.deliver(id, length).await?;
                    if fin {
                        self.mux.end_input(id, InputEnd::Finished);
                    }
                }
                FrameHeader::Control {
                    kind,
                    flags,
                    length,
                } => {
                    let mut body = vec![0; length];
                    self.io.read_exact(&mut body).await?;
                    let control = self.decoder.decode(kind, flags, &body).map_err(invalid)?;
                    self.handle(control).await;
                }
            }
        }
        Ok(())
    }

    /// Delivers the bytes of a data frame as they come.
    async fn deliver(&mut self, id: u32, mut length: usize) -> io::Result<()> {
        while length > 0 {
            let available = self.io.fill_buf().await?;
            if available.is_empty() {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            let piece = available.len().min(length);
            self.mux.deliver(id, &available[..piece]).await;
            self.io.consume(piece);
            self.activity.touch();
            length -= piece;
        }
        Ok(())
    }

    async fn handle(&mut self, control: Control) {
        match control {
            Control::SynStream { id, headers, fin } => self.handle_stream(id, headers, fin).await,
            Control::SynReply { id, fin, .. } => {
                self.shared.reply(id, true);
                if fin {
                    self.mux.end_input(id, InputEnd::Finished);
                }
            }
            Control::RstStream { id, .. } => {
                self.shared.reply(id, false);
                self.mux.end_input(id, InputEnd::Reset);
            }
            // Pings of a client are odd, and those of a server even; others are replies.
            Control::Ping(id) if !self.shared.role.owns(id) => {
                self.send(Control::Ping(id)).await;
            }
            Control::Headers { id, fin: true } => self.mux.end_input(id, InputEnd::Finished),
            // Open streams continue until the peer closes the connection.
            Control::GoAway { .. } => self.shared.peer_is_leaving.store(true, Ordering::Relaxed),
            Control::Ping(_) | Control::Headers { .. } | Control::Ignored => {}
        }
    }

    async fn handle_stream(&mut self, id: u32, headers: Headers, fin: bool) {
        let is_valid = !self.shared.role.owns(id) && self.shared.accept_id(id);
        if !is_valid {
            let status = reset::PROTOCOL_ERROR;
            return self.send(Control::RstStream { id, status }).await;
        }
        let leaving = self.shared.peer_is_leaving.load(Ordering::Relaxed);
        let stream = if leaving { None } else { self.mux.open(id) };
        let Some(stream) = stream else {
            let status = reset::REFUSED_STREAM;
            return self.send(Control::RstStream { id, status }).await;
        };
        if fin {
            self.mux.end_input(id, InputEnd::Finished);
        }
        let control = self.control.clone();
        let stream = IncomingStream::new(id, headers, stream, control);
        // Fails if no more streams are accepted: dropping this one resets it.
        let _ = self.incoming.send(stream).await;
    }

    /// Queues a frame. The write task is gone only if the connection is.
    async fn send(&mut self, control: Control) {
        let _ = self.control.send(control).await;
    }
}

impl<R> Drop for Reader<R> {
    fn drop(&mut self) {
        self.shared.fail_replies();
    }
}

impl Role {
    /// Whether this side numbers its streams and pings so.
    fn owns(self, id: u32) -> bool {
        match self {
            Self::Client => id % 2 == 1,
            Self::Server => id.is_multiple_of(2),
        }
    }
}

fn invalid(error: ProtocolError) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, error)
}
