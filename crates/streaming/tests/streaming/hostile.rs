//! SPDY peers that break the protocol, or use more than their share.

use std::time::Duration;

use bellerophon_streaming::{ConnectionOptions, spdy::Connection};
use proptest::prelude::*;
use tokio::{
    io::{AsyncRead, AsyncReadExt, AsyncWriteExt, DuplexStream, duplex},
    time::timeout,
};
use zlib_rs::{Deflate, DeflateFlush};

const SYN_STREAM: u16 = 1;
const RST_STREAM: u16 = 3;
const SETTINGS: u16 = 4;
const PING: u16 = 6;
const GOAWAY: u16 = 7;
const WINDOW_UPDATE: u16 = 9;

/// A server's connection, and the bytes of its client.
fn connect() -> (Connection, DuplexStream) {
    let (client, server) = duplex(64 << 10);
    let server = Connection::server(server, &ConnectionOptions::default());
    (server, client)
}

fn control(kind: u16, body: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x80, 3];
    frame.extend(kind.to_be_bytes());
    frame.extend(u32::try_from(body.len()).unwrap().to_be_bytes());
    frame.extend(body);
    frame
}

fn ping(id: u32) -> Vec<u8> {
    control(PING, &id.to_be_bytes())
}

fn data(id: u32, bytes: &[u8]) -> Vec<u8> {
    let mut frame = id.to_be_bytes().to_vec();
    frame.extend(u32::try_from(bytes.len()).unwrap().to_be_bytes());
    frame.extend(bytes);
    frame
}

/// The header blocks of a client.
struct Compressor(Deflate);

impl Compressor {
    fn new() -> Self {
        Self(Deflate::new(9, true, 15))
    }

    fn deflate(&mut self, block: &[u8]) -> Vec<u8> {
        let mut compressed = vec![0; block.len() + 64];
        let before = self.0.total_out();
        let flush = DeflateFlush::SyncFlush;
        self.0.compress(block, &mut compressed, flush).unwrap();
        compressed.truncate(usize::try_from(self.0.total_out() - before).unwrap());
        compressed
    }

    fn syn_stream(&mut self, id: u32, block: &[u8]) -> Vec<u8> {
        let mut body = id.to_be_bytes().to_vec();
        body.extend([0; 6]);
        body.extend(self.deflate(block));
        control(SYN_STREAM, &body)
    }
}

fn block(headers: &[(&str, &str)]) -> Vec<u8> {
    let mut block = u32::try_from(headers.len()).unwrap().to_be_bytes().to_vec();
    for text in headers.iter().flat_map(|(name, value)| [name, value]) {
        block.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
        block.extend(text.as_bytes());
    }
    block
}

/// The next frame: type, or 0 for data, and body.
async fn read_frame<R: AsyncRead + Unpin>(client: &mut R) -> (u16, Vec<u8>) {
    let mut header = [0; 8];
    client.read_exact(&mut header).await.unwrap();
    let length = u32::from_be_bytes([0, header[5], header[6], header[7]]);
    let mut body = vec![0; usize::try_from(length).unwrap()];
    client.read_exact(&mut body).await.unwrap();
    let kind = u16::from_be_bytes([header[2], header[3]]);
    let kind = if header[0] & 0x80 == 0 { 0 } else { kind };
    (kind, body)
}

/// Sends bytes and expects a GOAWAY with a protocol error, and the end of the connection.
async fn check_rejected(name: &str, bytes: &[u8]) {
    let (server, mut client) = connect();
    client.write_all(bytes).await.unwrap();
    let (kind, body) = read_frame(&mut client).await;
    assert_eq!(kind, GOAWAY, "{name}");
    assert_eq!(body[4..], [0, 0, 0, 1], "{name}");
    assert_eq!(client.read(&mut [0]).await.unwrap(), 0, "{name}");
    drop(client);
    server.closed().cancelled().await;
}

#[tokio::test]
async fn malformed_frames_end_the_connection() {
    let syn = |block: &[u8]| Compressor::new().syn_stream(1, block);
    let mut truncated = block(&[("streamtype", "data")]);
    truncated.pop();
    let mut trailing = block(&[("streamtype", "data")]);
    trailing.push(0);
    let mut not_utf8 = block(&[("a", "b")]);
    *not_utf8.last_mut().unwrap() = 0xff;
    let cases: &[(&str, Vec<u8>)] = &[
        ("data without a stream", data(0, b"abc")),
        ("another version", vec![0x80, 2, 0, 6, 0, 0, 0, 4]),
        (
            "16 MB of control frame",
            vec![0x80, 3, 0, 1, 0, 255, 255, 255],
        ),
        ("stream 0", Compressor::new().syn_stream(0, &block(&[]))),
        ("no header block", control(SYN_STREAM, &[0, 0, 0, 1])),
        (
            "no zlib",
            control(SYN_STREAM, &[0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 9, 9, 9]),
        ),
        ("short ping", control(PING, &[1, 2, 3])),
        ("long ping", control(PING, &[0, 0, 0, 1, 0])),
        ("short reset", control(RST_STREAM, &[0, 0, 0, 1])),
        ("short goaway", control(GOAWAY, &[])),
        ("4 billion headers", syn(&[255, 255, 255, 255])),
        ("name of 4 GB", syn(&[0, 0, 0, 1, 255, 255, 255, 255])),
        ("empty block", syn(&[])),
        ("truncated block", syn(&truncated)),
        ("trailing bytes", syn(&trailing)),
        ("upper case", syn(&block(&[("Port", "80")]))),
        ("empty name", syn(&block(&[("", "80")]))),
        (
            "repeated name",
            syn(&block(&[("port", "80"), ("port", "81")])),
        ),
        ("not UTF-8", syn(&not_utf8)),
        ("10 MB of zeros", syn(&vec![0; 10 << 20])),
    ];
    for (name, bytes) in cases {
        check_rejected(name, bytes).await;
    }
}

#[tokio::test]
async fn block_that_inflates_beyond_the_limit_ends_the_connection() {
    let value = "x".repeat(1 << 20);
    let bytes = Compressor::new().syn_stream(1, &block(&[("port", &value)]));
    assert!(bytes.len() < 4096, "{}", bytes.len());
    check_rejected("1 MB of header", &bytes).await;
}

#[tokio::test]
async fn frames_without_meaning_are_ignored() {
    let (_server, mut client) = connect();
    let unknown = 99;
    let frames = [
        control(SETTINGS, &[0, 0, 0, 1, 0, 0, 0, 4, 0, 0, 0, 100]),
        control(WINDOW_UPDATE, &[0, 0, 0, 1, 0, 0, 255, 255]),
        control(unknown, &[1, 2, 3]),
        control(RST_STREAM, &[0, 0, 0, 77, 0, 0, 0, 5]),
        data(77, b"for a stream that does not exist"),
        // A reply to a ping of the server, which sent none.
        ping(2),
        ping(7),
    ];
    client.write_all(&frames.concat()).await.unwrap();
    assert_eq!(read_frame(&mut client).await, (PING, vec![0, 0, 0, 7]));
}

#[tokio::test]
async fn stream_with_an_invalid_id_is_reset_alone() {
    let (mut server, mut client) = connect();
    let mut compressor = Compressor::new();
    let headers = block(&[("streamtype", "data")]);
    let mut frames = Vec::new();
    for id in [5, 4, 3, 5, 7] {
        frames.extend(compressor.syn_stream(id, &headers));
    }
    client.write_all(&frames).await.unwrap();
    for id in [4, 3, 5] {
        let expected = (RST_STREAM, vec![0, 0, 0, id, 0, 0, 0, 1]);
        assert_eq!(read_frame(&mut client).await, expected);
    }
    assert_eq!(server.accept().await.unwrap().id(), 5);
    assert_eq!(server.accept().await.unwrap().id(), 7);
}

#[tokio::test]
async fn streams_beyond_the_limit_are_refused() {
    let (mut server, client) = connect();
    let accepting = tokio::spawn(async move {
        let mut streams = Vec::new();
        while let Some(incoming) = server.accept().await {
            streams.push(incoming.accept().await.unwrap());
        }
        streams.len()
    });
    let (mut reader, mut writer) = tokio::io::split(client);
    let sending = tokio::spawn(async move {
        let mut compressor = Compressor::new();
        for number in 0..2050 {
            let frame = compressor.syn_stream(2 * number + 1, &block(&[]));
            writer.write_all(&frame).await.unwrap();
        }
        writer
    });
    let mut refused = Vec::new();
    while refused.len() < 2 {
        let (kind, body) = read_frame(&mut reader).await;
        if kind == RST_STREAM {
            refused.push(body);
        }
    }
    assert_eq!(
        refused,
        [[0, 0, 16, 1, 0, 0, 0, 3], [0, 0, 16, 3, 0, 0, 0, 3]]
    );
    drop(sending.await.unwrap());
    drop(reader);
    assert_eq!(accepting.await.unwrap(), 2048);
}

#[tokio::test(start_paused = true)]
async fn peer_that_reads_no_replies_is_held_back() {
    let (_server, mut client) = connect();
    let mut sent = 0;
    let pings: Vec<u8> = (0..1000).flat_map(|n| ping(2 * n + 1)).collect();
    while let Ok(written) = timeout(Duration::from_secs(1), client.write(&pings)).await {
        sent += written.unwrap();
    }
    // The buffers of the pipe and of the connection, in both directions.
    assert!(sent < 512 << 10, "{sent}");
}

#[tokio::test(start_paused = true)]
async fn largest_data_frame_is_delivered_in_pieces() {
    let (mut server, mut client) = connect();
    let mut compressor = Compressor::new();
    let frame = compressor.syn_stream(1, &block(&[]));
    client.write_all(&frame).await.unwrap();
    let mut stream = server.accept().await.unwrap().accept().await.unwrap();
    let frame = data(1, &vec![9; (1 << 24) - 1]);
    let mut sent = 0;
    while let Ok(written) = timeout(Duration::from_secs(1), client.write(&frame[sent..])).await {
        sent += written.unwrap();
    }
    assert!(sent < 512 << 10, "{sent}");
    let (_reader, mut writer) = tokio::io::split(client);
    let sending = tokio::spawn(async move { writer.write_all(&frame[sent..]).await });
    let mut received = 0;
    let mut buffer = vec![0; 64 << 10];
    while received < (1 << 24) - 1 {
        received += stream.read(&mut buffer).await.unwrap();
    }
    sending.await.unwrap().unwrap();
}

/// Valid frames and noise, in any order.
fn frames() -> impl Strategy<Value = Vec<u8>> {
    let body = prop::collection::vec(any::<u8>(), 0..64);
    let piece = prop_oneof![
        (0u16..12, body.clone()).prop_map(|(kind, body)| control(kind, &body)),
        (0u32..8, body.clone()).prop_map(|(id, body)| data(id, &body)),
        (0u32..8, body.clone()).prop_map(|(id, block)| Compressor::new().syn_stream(id, &block)),
        (0u32..8, "[a-z]{0,9}", "[ -~]{0,9}")
            .prop_map(|(id, n, v)| Compressor::new().syn_stream(id, &block(&[(&n, &v)]))),
        any::<u32>().prop_map(ping),
        body,
    ];
    prop::collection::vec(piece, 0..16).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]

    #[test]
    fn any_bytes_end_the_connection_cleanly(bytes in frames()) {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_time()
            .start_paused(true)
            .build()
            .unwrap();
        runtime.block_on(async {
            let (mut server, client) = connect();
            let closed = server.closed();
            let (mut reader, mut writer) = tokio::io::split(client);
            tokio::spawn(async move {
                while let Some(incoming) = server.accept().await {
                    if let Ok(mut stream) = incoming.accept().await {
                        tokio::spawn(async move { stream.read_to_end(&mut Vec::new()).await });
                    }
                }
            });
            let reading = tokio::spawn(async move { reader.read_to_end(&mut Vec::new()).await });
            // The server may close while the bytes are sent.
            let _ = writer.write_all(&bytes).await;
            let _ = writer.shutdown().await;
            reading.await.unwrap().unwrap();
            closed.cancelled().await;
        });
    }
}
