//! Channels in WebSocket messages: `channel.k8s.io` and its relatives.
//!
//! Every message begins with the number of its channel. Mirrors `wsstream.Conn`: messages for
//! unknown channels are ignored, as is invalid base64; a wrong close signal ends the connection.

use std::{io, sync::Arc};

use base64::{Engine, engine::general_purpose::STANDARD};
use bytes::{BufMut, Bytes, BytesMut};
use futures_util::{
    SinkExt, StreamExt,
    stream::{SplitSink, SplitStream},
};
use tokio::{
    io::{AsyncRead, AsyncWrite},
    time::{Instant, interval_at},
};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Error, Message},
};
use tokio_util::sync::CancellationToken;

use super::normal_closure;
use crate::{
    ByteStream, ConnectionOptions,
    activity::Activity,
    mux::{InputEnd, Limits, Mux, Output},
    session::{Context, Session},
};

/// The channel of a close signal; its data is the number of the channel that ends.
const CLOSE_SIGNAL: u8 = 255;

/// How messages carry data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    /// The channel as a byte, then the data.
    Binary,
    /// The channel as a character, `0` for 0, then the data in base64.
    Base64,
}

/// What a protocol with channels is.
#[derive(Debug)]
pub(crate) struct ChannelOptions {
    pub(crate) codec: Codec,
    /// Whether clients end a channel by a signal.
    pub(crate) has_close_signal: bool,
    /// The number of channels, at most 255.
    pub(crate) count: u8,
    /// Messages that the server sends first, each with its channel.
    pub(crate) greeting: Vec<(u8, Bytes)>,
}

/// A WebSocket connection with channels.
pub(crate) struct Channels {
    session: Session,
}

impl Channels {
    /// Runs the connection; returns it with its channels, in order.
    pub(crate) fn spawn<S>(
        socket: WebSocketStream<S>,
        channels: ChannelOptions,
        options: &ConnectionOptions,
    ) -> (Self, Vec<ByteStream>)
    where
        S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
    {
        let mux = Mux::new(Limits::default());
        let activity = Arc::new(Activity::new());
        let streams = (0..channels.count).map(|number| {
            let stream = mux.open(number.into());
            stream.expect("a new connection has room for its channels")
        });
        let streams = streams.collect();
        let (sink, source) = socket.split();
        let reader = Reader {
            source,
            mux: Arc::clone(&mux),
            activity: Arc::clone(&activity),
            codec: channels.codec,
            has_close_signal: channels.has_close_signal,
            count: channels.count,
        };
        let writer = Writer {
            sink,
            mux: Arc::clone(&mux),
            activity: Arc::clone(&activity),
            codec: channels.codec,
            options: options.clone(),
        };
        let context = Context {
            mux,
            activity,
            options: options.clone(),
        };
        let session = Session::spawn(context, reader.run(), writer.run(channels.greeting));
        (Self { session }, streams)
    }

    /// Cancelled once the connection has ended.
    pub(crate) fn closed(&self) -> CancellationToken {
        self.session.closed()
    }

    /// Returns once what was written is flushed.
    pub(crate) async fn drained(&self) {
        self.session.drained().await;
    }

    /// Sends what was written and a normal closure, and waits until the client has closed.
    pub(crate) async fn close(self) {
        self.session.close().await;
    }
}

struct Reader<S> {
    source: SplitStream<WebSocketStream<S>>,
    mux: Arc<Mux>,
    activity: Arc<Activity>,
    codec: Codec,
    has_close_signal: bool,
    count: u8,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Reader<S> {
    async fn run(mut self) -> io::Result<InputEnd> {
        let mut end = InputEnd::Aborted;
        while let Some(message) = self.source.next().await {
            match message {
                Ok(Message::Binary(bytes)) => self.receive(&bytes).await?,
                Ok(Message::Text(text)) => self.receive(text.as_bytes()).await?,
                // The next read sends the reply and ends.
                Ok(Message::Close(_)) => end = InputEnd::Finished,
                Ok(_) => {}
                Err(Error::ConnectionClosed | Error::AlreadyClosed | Error::Io(_)) => break,
                Err(error) => return Err(io::Error::other(error)),
            }
        }
        Ok(end)
    }

    async fn receive(&mut self, message: &[u8]) -> io::Result<()> {
        self.activity.touch();
        let Some((&first, data)) = message.split_first() else {
            return Ok(());
        };
        if self.has_close_signal && first == CLOSE_SIGNAL {
            return self.end(data);
        }
        match self.codec {
            Codec::Binary => self.mux.deliver(first.into(), data).await,
            Codec::Base64 => {
                let channel = first.wrapping_sub(b'0');
                if let Ok(decoded) = STANDARD.decode(data) {
                    self.mux.deliver(channel.into(), &decoded).await;
                }
            }
        }
        self.activity.touch();
        Ok(())
    }

    fn end(&self, data: &[u8]) -> io::Result<()> {
        let invalid = |message| Err(io::Error::new(io::ErrorKind::InvalidData, message));
        let &[channel] = data else {
            return invalid("a close signal is not followed by a single channel byte");
        };
        if channel >= self.count {
            return invalid("a close signal is for an unknown channel");
        }
        self.mux.end_input(channel.into(), InputEnd::Finished);
        Ok(())
    }
}

struct Writer<S> {
    sink: SplitSink<WebSocketStream<S>, Message>,
    mux: Arc<Mux>,
    activity: Arc<Activity>,
    codec: Codec,
    options: ConnectionOptions,
}

impl<S: AsyncRead + AsyncWrite + Unpin> Writer<S> {
    async fn run(mut self, greeting: Vec<(u8, Bytes)>) -> io::Result<()> {
        let sent = self.send_all(greeting).await;
        sent.map_err(io::Error::other)
    }

    async fn send_all(&mut self, greeting: Vec<(u8, Bytes)>) -> Result<(), Error> {
        for (channel, bytes) in greeting {
            self.sink.feed(encode(self.codec, channel, &bytes)).await?;
        }
        let mut pings = self.options.ping_interval.map(|period| {
            let first = Instant::now() + period;
            interval_at(first, period)
        });
        loop {
            while let Some(output) = self.mux.output_now() {
                self.send(output).await?;
            }
            self.sink.flush().await?;
            let ping = async {
                match pings.as_mut() {
                    Some(interval) => interval.tick().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                output = self.mux.output() => match output {
                    Some(output) => self.send(output).await?,
                    None => break,
                },
                _ = ping => self.sink.send(Message::Ping(Bytes::new())).await?,
            }
        }
        let close = Message::Close(Some(normal_closure()));
        self.sink.send(close).await
    }

    async fn send(&mut self, output: Output) -> Result<(), Error> {
        // The end of a single channel cannot be sent: clients know no signal for it.
        let Output::Data { id, bytes, .. } = output else {
            return Ok(());
        };
        if bytes.is_empty() {
            return Ok(());
        }
        let channel = u8::try_from(id).expect("channels have at most 8 bits");
        self.sink.feed(encode(self.codec, channel, &bytes)).await?;
        self.activity.touch();
        Ok(())
    }
}

fn encode(codec: Codec, channel: u8, data: &[u8]) -> Message {
    match codec {
        Codec::Binary => {
            let mut message = BytesMut::with_capacity(1 + data.len());
            message.put_u8(channel);
            message.put_slice(data);
            Message::Binary(message.freeze())
        }
        Codec::Base64 => {
            let mut message = String::from(char::from(b'0'.wrapping_add(channel)));
            STANDARD.encode_string(data, &mut message);
            Message::text(message)
        }
    }
}
