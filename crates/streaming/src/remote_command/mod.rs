//! The server side of exec and attach requests.
//!
//! Input: a request for an upgrade. Output: the streams of the command.
//!
//! ```no_run
//! use bellerophon_streaming::{ConnectionOptions, remote_command::{self, Outcome, StreamOptions}};
//! use http::{Request, Response};
//! use hyper::body::Incoming;
//! use tokio::io::AsyncWriteExt;
//!
//! fn exec(mut request: Request<Incoming>) -> Response<String> {
//!     let query = request.uri().query().unwrap_or_default();
//!     let streams = StreamOptions::from_query(query);
//!     let upgrade = remote_command::upgrade(&mut request, streams, &ConnectionOptions::default());
//!     if let Some(upgraded) = upgrade.upgraded {
//!         tokio::spawn(async move {
//!             let Ok(mut command) = upgraded.streams().await else { return };
//!             if let Some(stdout) = &mut command.stdout {
//!                 stdout.write_all(b"hello\n").await.ok();
//!             }
//!             command.finish(Outcome::Exited(7)).await;
//!         });
//!     }
//!     upgrade.response
//! }
//! ```

mod query;
mod resize;
mod spdy;
mod status;
mod websocket;

pub use query::StreamOptions;
pub use resize::{TerminalSize, TerminalSizes};
pub use status::Outcome;

use std::fmt;

use http::{Request, StatusCode};
use tokio_util::sync::CancellationToken;

use self::status::StatusWriter;
use crate::{
    ByteReader, ByteWriter, ConnectionOptions, Error, Upgrade,
    upgrade::{self, Accepted, Refusal},
    websocket::Channels,
};

/// Handles a request for exec or attach.
///
/// The response must be sent for the streams to exist. It is 101, or an error with the status,
/// headers and message of Kubernetes: 400 if none of stdin, stdout and stderr is requested or the
/// request is no upgrade, 403 if there is no common protocol.
pub fn upgrade<B>(
    request: &mut Request<B>,
    streams: StreamOptions,
    options: &ConnectionOptions,
) -> Upgrade<UpgradedCommand> {
    if !streams.stdin && !streams.stdout && !streams.stderr {
        let message = "you must specify at least 1 of stdin, stdout, stderr";
        return Upgrade::refused(Refusal::new(StatusCode::BAD_REQUEST, message));
    }
    let is_websocket = upgrade::is_websocket(request);
    let accepted = if is_websocket {
        upgrade::websocket(request, websocket::PROTOCOLS)
    } else {
        upgrade::spdy(request, spdy::PROTOCOLS)
    };
    match accepted {
        Err(refusal) => Upgrade::refused(refusal),
        Ok(Accepted {
            response,
            on_upgrade,
            protocol,
        }) => Upgrade {
            response,
            upgraded: Some(UpgradedCommand {
                on_upgrade,
                protocol,
                is_websocket,
                streams,
                options: options.clone(),
            }),
        },
    }
}

/// An exec or attach request that was accepted.
#[derive(Debug)]
pub struct UpgradedCommand {
    on_upgrade: hyper::upgrade::OnUpgrade,
    protocol: String,
    is_websocket: bool,
    streams: StreamOptions,
    options: ConnectionOptions,
}

impl UpgradedCommand {
    /// Waits until the response is sent and the client has created its streams.
    ///
    /// # Errors
    ///
    /// If the connection cannot be upgraded or ends, or if the client does not create its streams
    /// within the timeout. The connection is closed then; the client gets no message, since there is
    /// no stream for it.
    pub async fn streams(self) -> Result<RemoteCommand, Error> {
        let io = hyper_util::rt::TokioIo::new(self.on_upgrade.await?);
        if self.is_websocket {
            let command = websocket::open(io, &self.protocol, self.streams, &self.options);
            return Ok(command.await);
        }
        spdy::open(io, &self.protocol, self.streams, &self.options).await
    }
}

/// The streams of one exec or attach request.
///
/// Streams may be taken out and used by other tasks. What is written to `stdout` and `stderr` before
/// [`finish`](Self::finish) is called reaches the client before the status does. Dropping the
/// command without finishing it reports an internal error and closes the connection.
pub struct RemoteCommand {
    /// What the client sends to the command, if it was requested. It ends when the client ends it;
    /// protocols before WebSocket v5 end it only with the connection.
    pub stdin: Option<ByteReader>,
    /// The output of the command, if it was requested.
    pub stdout: Option<ByteWriter>,
    /// The errors of the command, if they were requested; never with a terminal.
    pub stderr: Option<ByteWriter>,
    /// The sizes of the client's terminal. Ends immediately if the protocol has no resizing.
    pub sizes: TerminalSizes,
    /// Whether the client requested a terminal.
    pub tty: bool,
    status: StatusWriter,
    /// Directions that are unused, and whose end would end the other direction in clients.
    held: Vec<ByteWriter>,
    connection: Connection,
}

/// The connection of a command.
enum Connection {
    Spdy(crate::spdy::Connection),
    WebSocket(Channels),
}

impl RemoteCommand {
    /// Cancelled once the client is gone, or the connection was idle for too long.
    pub fn closed(&self) -> CancellationToken {
        match &self.connection {
            Connection::Spdy(connection) => connection.closed(),
            Connection::WebSocket(channels) => channels.closed(),
        }
    }

    /// Sends the status, ends all streams, and waits until the client has closed the connection, at
    /// most the close timeout.
    pub async fn finish(self, outcome: Outcome) {
        let Self {
            stdin,
            stdout,
            stderr,
            sizes,
            status,
            held,
            connection,
            ..
        } = self;
        drop((stdout, stderr));
        // A client ends at the status, and loses output that comes after it.
        match &connection {
            Connection::Spdy(connection) => connection.drained().await,
            Connection::WebSocket(channels) => channels.drained().await,
        }
        status.write(&outcome).await;
        drop((stdin, sizes, held));
        match connection {
            Connection::Spdy(connection) => connection.close().await,
            Connection::WebSocket(channels) => channels.close().await,
        }
    }
}

impl fmt::Debug for RemoteCommand {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RemoteCommand")
            .field("stdin", &self.stdin)
            .field("stdout", &self.stdout)
            .field("stderr", &self.stderr)
            .field("tty", &self.tty)
            .finish_non_exhaustive()
    }
}
