//! SPDY connections, client against server, in memory.

use std::{io::ErrorKind, time::Duration};

use bellerophon_streaming::{
    ByteStream, ConnectionOptions,
    spdy::{Connection, Headers},
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex},
    time::timeout,
};

use crate::{client::read_all, pattern};

fn pair() -> (Connection, Connection) {
    let (client, server) = duplex(64 << 10);
    let options = ConnectionOptions::default();
    let client = Connection::client(client, &options);
    let server = Connection::server(server, &options);
    (client, server)
}

/// A stream that the client opens and the server accepts.
async fn stream(client: &Connection, server: &mut Connection) -> (ByteStream, ByteStream) {
    let headers = Headers::from_iter([("streamType", "data"), ("port", "80")]);
    let accepted = async {
        let incoming = server.accept().await.unwrap();
        assert_eq!(incoming.headers().get("streamtype"), Some("data"));
        assert_eq!(incoming.headers().get("Port"), Some("80"));
        assert_eq!(incoming.headers().get("missing"), None);
        incoming.accept().await.unwrap()
    };
    let (opened, accepted) = tokio::join!(client.open(headers), accepted);
    (opened.unwrap(), accepted)
}

/// Writes until nothing moves any more; returns the number of bytes.
async fn fill(stream: &mut ByteStream) -> usize {
    let mut written = 0;
    let piece = [0; 1024];
    // Time is paused: it advances only when no task can proceed.
    while let Ok(bytes) = timeout(Duration::from_secs(1), stream.write(&piece)).await {
        written += bytes.unwrap();
    }
    written
}

#[tokio::test]
async fn either_side_opens_streams() {
    let (mut client, mut server) = pair();
    let (mut near, far) = stream(&client, &mut server).await;
    near.write_all(b"from client").await.unwrap();
    drop(near);
    assert_eq!(read_all(far).await, b"from client");
    let (mut near, far) = stream(&server, &mut client).await;
    near.write_all(b"from server").await.unwrap();
    drop(near);
    assert_eq!(read_all(far).await, b"from server");
}

#[tokio::test]
async fn directions_end_independently() {
    let (client, mut server) = pair();
    let (mut near, mut far) = stream(&client, &mut server).await;
    near.write_all(b"question").await.unwrap();
    near.shutdown().await.unwrap();
    let mut received = Vec::new();
    far.read_to_end(&mut received).await.unwrap();
    assert_eq!(received, b"question");
    far.write_all(b"answer").await.unwrap();
    far.shutdown().await.unwrap();
    assert_eq!(read_all(&mut near).await, b"answer");
    let error = near.write_all(b"more").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn reset_reaches_the_reader_after_the_data() {
    let (client, mut server) = pair();
    let (mut near, mut far) = stream(&client, &mut server).await;
    near.write_all(b"abc").await.unwrap();
    let mut received = [0; 3];
    far.read_exact(&mut received).await.unwrap();
    near.reset();
    let error = far.read_u8().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionReset);
    let error = far.write_all(b"more").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn stream_that_is_not_accepted_is_refused() {
    let (client, mut server) = pair();
    let (opened, incoming) = tokio::join!(client.open(Headers::default()), async {
        drop(server.accept().await);
    });
    assert_eq!(opened.unwrap_err().kind(), ErrorKind::ConnectionRefused);
    let () = incoming;
    server.refuse_streams();
    let error = client.open(Headers::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::ConnectionRefused);
}

#[tokio::test]
async fn closing_sends_what_was_written() {
    let (client, mut server) = pair();
    let (mut near, far) = stream(&client, &mut server).await;
    let sent = pattern(4, 50_000);
    near.write_all(&sent).await.unwrap();
    let closing = tokio::spawn(client.close());
    assert!(read_all(far).await == sent);
    assert!(server.accept().await.is_none() || server.closed().is_cancelled());
    server.close().await;
    closing.await.unwrap();
    let error = near.write_all(b"more").await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

#[tokio::test]
async fn lost_connection_aborts_its_streams() {
    let (client_io, server_io) = duplex(64 << 10);
    let options = ConnectionOptions::default();
    let client = Connection::client(client_io, &options);
    let mut raw = server_io;
    let opening = tokio::spawn(async move { client.open(Headers::default()).await });
    let mut header = [0; 8];
    raw.read_exact(&mut header).await.unwrap();
    drop(raw);
    let error = opening.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BrokenPipe);
}

#[tokio::test(start_paused = true)]
async fn writer_waits_for_a_reader_that_does_not_read() {
    let (client, mut server) = pair();
    let (mut near, far) = stream(&client, &mut server).await;
    let written = fill(&mut near).await;
    // The buffers of both streams, of both connections, and of the pipe between them.
    assert!(written > 128 << 10, "{written}");
    assert!(written < 512 << 10, "{written}");
    let reading = tokio::spawn(read_all(far));
    near.shutdown().await.unwrap();
    assert_eq!(reading.await.unwrap().len(), written);
}

#[tokio::test(start_paused = true)]
async fn stalled_stream_holds_back_others_until_it_is_dropped() {
    let (client, mut server) = pair();
    let (mut stalled, stalled_far) = stream(&client, &mut server).await;
    let (mut other, other_far) = stream(&client, &mut server).await;
    fill(&mut stalled).await;
    other.write_all(b"abc").await.unwrap();
    other.shutdown().await.unwrap();
    let mut reading = tokio::spawn(read_all(other_far));
    let waited = timeout(Duration::from_secs(1), &mut reading).await;
    assert!(waited.is_err());
    drop(stalled_far);
    assert_eq!(reading.await.unwrap(), b"abc");
    let error = stalled.read_u8().await.unwrap_err();
    assert_ne!(error.kind(), ErrorKind::TimedOut);
}

#[tokio::test(start_paused = true)]
async fn buffers_of_all_streams_together_are_bounded() {
    let (client, mut server) = pair();
    let mut near = Vec::new();
    let mut far = Vec::new();
    for _ in 0..200 {
        let (a, b) = stream(&client, &mut server).await;
        near.push(a);
        far.push(b);
    }
    let mut written = 0;
    for stream in &mut near {
        written += fill(stream).await;
    }
    // 4 MiB of output at the client; the server has stopped reading at its first full stream.
    assert!(written > 4 << 20, "{written}");
    assert!(written < 5 << 20, "{written}");
    let mut readers = tokio::task::JoinSet::new();
    for stream in far {
        readers.spawn(read_all(stream));
    }
    drop(near);
    let mut received = 0;
    while let Some(bytes) = readers.join_next().await {
        received += bytes.unwrap().len();
    }
    assert_eq!(received, written);
}

#[tokio::test]
async fn streams_of_a_connection_are_limited() {
    let (client, mut server) = pair();
    let accepting = tokio::spawn(async move {
        let mut streams = Vec::new();
        while let Some(incoming) = server.accept().await {
            streams.push(incoming.accept().await.unwrap());
        }
    });
    let mut streams = Vec::new();
    for _ in 0..2048 {
        streams.push(client.open(Headers::default()).await.unwrap());
    }
    let error = client.open(Headers::default()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::QuotaExceeded);
    drop(client);
    accepting.await.unwrap();
}
