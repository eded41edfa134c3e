//! Exec and attach over WebSocket channels.

use bytes::Bytes;

use super::{
    Connection, RemoteCommand, StreamOptions, TerminalSizes,
    status::{StatusFormat, StatusWriter},
};
use crate::{
    ConnectionOptions,
    upgrade::Io,
    websocket::{self, ChannelOptions, Channels, Codec},
};

const V5: &str = "v5.channel.k8s.io";
const V4: &str = "v4.channel.k8s.io";
const V4_BASE64: &str = "v4.base64.channel.k8s.io";
const V1: &str = "channel.k8s.io";
const V1_BASE64: &str = "base64.channel.k8s.io";

/// The protocols of the server. The empty name is that of clients that offer none.
pub(super) const PROTOCOLS: &[&str] = &[V5, V4, V4_BASE64, V1, V1_BASE64, ""];

const STDOUT_CHANNEL: u8 = 1;
const STDERR_CHANNEL: u8 = 2;
const ERROR_CHANNEL: u8 = 3;
const CHANNELS: u8 = 5;

pub(super) async fn open(
    io: Io,
    protocol: &str,
    streams: StreamOptions,
    options: &ConnectionOptions,
) -> RemoteCommand {
    // An empty message on the first channel of the server reports that the connection is there.
    let first = match (streams.stdout, streams.stderr) {
        (true, _) => STDOUT_CHANNEL,
        (false, true) => STDERR_CHANNEL,
        (false, false) => ERROR_CHANNEL,
    };
    let codec = match protocol {
        V4_BASE64 | V1_BASE64 => Codec::Base64,
        _ => Codec::Binary,
    };
    let format = match protocol {
        V5 | V4 | V4_BASE64 => StatusFormat::Object,
        _ => StatusFormat::Message,
    };
    let channel_options = ChannelOptions {
        codec,
        has_close_signal: protocol == V5,
        count: CHANNELS,
        greeting: vec![(first, Bytes::new())],
    };
    let socket = websocket::server(io, options).await;
    let (channels, opened) = Channels::spawn(socket, channel_options, options);
    let [stdin, stdout, stderr, error, resize] = opened
        .try_into()
        .expect("there are as many channels as were requested");
    let (stdin, _) = stdin.into_split();
    let (_, stdout) = stdout.into_split();
    let (_, stderr) = stderr.into_split();
    let (_, error) = error.into_split();
    let (resize, _) = resize.into_split();
    RemoteCommand {
        stdin: streams.stdin.then_some(stdin),
        stdout: streams.stdout.then_some(stdout),
        stderr: streams.stderr.then_some(stderr),
        sizes: TerminalSizes::new(Some(resize)),
        tty: streams.tty,
        status: StatusWriter {
            format,
            stream: Some(error),
        },
        held: Vec::new(),
        connection: Connection::WebSocket(channels),
    }
}
