//! Exec and attach over SPDY.
//!
//! The client creates a stream for each of stdin, stdout and stderr that it requested, one for
//! errors, and since v3 one for the sizes of its terminal. The header `streamType` names them.

use std::collections::HashMap;

use tokio::time::timeout;
use tracing::debug;

use super::{
    Connection, RemoteCommand, StreamOptions, TerminalSizes,
    status::{StatusFormat, StatusWriter},
};
use crate::{ByteReader, ByteStream, ByteWriter, ConnectionOptions, Error, spdy, upgrade::Io};

const V4: &str = "v4.channel.k8s.io";
const V3: &str = "v3.channel.k8s.io";
const V2: &str = "v2.channel.k8s.io";
const V1: &str = "channel.k8s.io";

/// The protocols of the server.
pub(super) const PROTOCOLS: &[&str] = &[V4, V3, V2, V1];

const STREAM_TYPE: &str = "streamType";
const STDIN: &str = "stdin";
const STDOUT: &str = "stdout";
const STDERR: &str = "stderr";
const ERROR: &str = "error";
const RESIZE: &str = "resize";

pub(super) async fn open(
    io: Io,
    protocol: &str,
    streams: StreamOptions,
    options: &ConnectionOptions,
) -> Result<RemoteCommand, Error> {
    let mut connection = spdy::Connection::server(io, options);
    let has_resizing = matches!(protocol, V4 | V3);
    let expected = [
        (STDIN, streams.stdin),
        (STDOUT, streams.stdout),
        (STDERR, streams.stderr),
        (ERROR, true),
        (RESIZE, streams.tty && has_resizing),
    ];
    let expected = expected.iter().filter(|(_, is_expected)| *is_expected);
    let types: Vec<&str> = expected.map(|(name, _)| *name).collect();
    let opened = accept(&mut connection, &types);
    let opened = timeout(options.stream_creation_timeout, opened).await;
    let mut opened = Streams {
        opened: opened.map_err(|_| Error::StreamTimeout)??,
        unused_writers: Vec::new(),
    };
    connection.refuse_streams();
    let stdin = opened.reader(STDIN);
    let stdout = opened.writer(STDOUT);
    let stderr = opened.writer(STDERR);
    let error = opened.take(ERROR);
    let sizes = opened.reader(RESIZE);
    let mut held = opened.unused_writers;
    let mut status = error.map(|stream| stream.into_split().1);
    if protocol == V1 {
        // Kept from the first kubelets by v1ProtocolHandler: the error stream ends before the
        // command starts, and so does the unused direction of stdin.
        status = None;
        held.clear();
    }
    Ok(RemoteCommand {
        stdin,
        stdout,
        stderr,
        sizes: TerminalSizes::new(sizes),
        tty: streams.tty,
        status: StatusWriter {
            format: match protocol {
                V4 => StatusFormat::Object,
                _ => StatusFormat::Message,
            },
            stream: status,
        },
        held,
        connection: Connection::Spdy(connection),
    })
}

/// Accepts streams until there is one of every type.
async fn accept(
    connection: &mut spdy::Connection,
    types: &[&'static str],
) -> Result<HashMap<&'static str, ByteStream>, Error> {
    let mut opened = HashMap::new();
    while opened.len() < types.len() {
        let incoming = connection.accept().await;
        let incoming = incoming.ok_or_else(|| std::io::Error::from(CLOSED))?;
        let stream_type = incoming.headers().get(STREAM_TYPE).unwrap_or_default();
        let name = types.iter().find(|name| **name == stream_type);
        if name.is_none() {
            debug!(stream_type, "unexpected stream type");
        }
        // A client waits for the reply to every stream, also to one that is not used.
        let stream = incoming.accept().await?;
        if let Some(name) = name {
            opened.insert(*name, stream);
        }
    }
    Ok(opened)
}

const CLOSED: std::io::ErrorKind = std::io::ErrorKind::UnexpectedEof;

/// The streams of a client, by type.
struct Streams {
    opened: HashMap<&'static str, ByteStream>,
    /// A client that sees the end of stdin stops sending it, so the unused directions stay open.
    unused_writers: Vec<ByteWriter>,
}

impl Streams {
    fn take(&mut self, name: &str) -> Option<ByteStream> {
        self.opened.remove(name)
    }

    fn reader(&mut self, name: &str) -> Option<ByteReader> {
        let (reader, writer) = self.take(name)?.into_split();
        self.unused_writers.push(writer);
        Some(reader)
    }

    fn writer(&mut self, name: &str) -> Option<ByteWriter> {
        let (_, writer) = self.take(name)?.into_split();
        Some(writer)
    }
}
