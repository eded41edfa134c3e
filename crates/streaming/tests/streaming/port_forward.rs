//! Port-forward over SPDY, over SPDY in WebSocket messages, and over WebSocket channels.

use std::time::Duration;

use bellerophon_streaming::{
    ConnectionOptions,
    spdy::{Connection, Headers},
};
use futures_util::{SinkExt, StreamExt};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    sync::mpsc::Receiver,
};
use tokio_tungstenite::tungstenite::Message;

use crate::{
    client::{exchange, forward, read_all, spdy, websocket},
    pattern,
    server::{COUNT, ECHO, GREET, REFUSED, STALL, Server},
};

fn server() -> (Server, Receiver<String>) {
    Server::new(ConnectionOptions::default())
}

async fn connect(server: &Server) -> Connection {
    spdy(server.connect(), "/portforward", "portforward.k8s.io").await
}

/// Hundred connections with a megabyte each, over one SPDY connection.
async fn hundred_connections(connection: Connection) {
    let connection = std::sync::Arc::new(connection);
    let mut clients = tokio::task::JoinSet::new();
    for request in 0..100 {
        let connection = std::sync::Arc::clone(&connection);
        clients.spawn(async move {
            let (data, errors) = forward(&connection, request, ECHO).await;
            let sent = pattern(request, 1 << 20);
            let received = exchange(data, sent.clone()).await;
            assert!(received == sent, "connection {request}");
            assert_eq!(read_all(errors).await, b"");
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
}

#[tokio::test]
async fn hundred_connections_over_spdy_keep_their_bytes() {
    let (server, mut events) = server();
    hundred_connections(connect(&server).await).await;
    assert_eq!(events.recv().await.unwrap(), "port-forward ended");
}

#[tokio::test]
async fn hundred_connections_over_a_tunnel_keep_their_bytes() {
    let (server, mut events) = server();
    let protocol = "SPDY/3.1+portforward.k8s.io";
    let socket = websocket(server.connect(), "/portforward", protocol).await;
    let io = crate::client::tunnel(socket);
    let connection = Connection::client(io, &ConnectionOptions::default());
    hundred_connections(connection).await;
    assert_eq!(events.recv().await.unwrap(), "port-forward ended");
}

#[tokio::test]
async fn streams_are_accepted_while_other_connections_end() {
    let (server, _events) = server();
    // Frames wait to be written most of the time.
    let io = server.connect_with_buffer(64);
    let connection = spdy(io, "/portforward", "portforward.k8s.io").await;
    let connection = std::sync::Arc::new(connection);
    let mut clients = tokio::task::JoinSet::new();
    for request in 0..800 {
        let connection = std::sync::Arc::clone(&connection);
        clients.spawn(async move {
            // Panics if the server rejects one of the streams.
            let (_data, errors) = forward(&connection, request, REFUSED).await;
            assert_ne!(read_all(errors).await, b"");
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
}

#[tokio::test]
async fn port_answers_after_the_client_ended_its_direction() {
    let (server, _events) = server();
    let connection = connect(&server).await;
    let (data, errors) = forward(&connection, 0, COUNT).await;
    let received = exchange(data, pattern(3, 100_000)).await;
    assert_eq!(received, b"100000");
    assert_eq!(read_all(errors).await, b"");
}

#[tokio::test]
async fn client_sends_after_the_port_ended_its_direction() {
    let (server, mut events) = server();
    let connection = connect(&server).await;
    let (mut data, _errors) = forward(&connection, 0, GREET).await;
    let mut greeting = Vec::new();
    data.read_to_end(&mut greeting).await.unwrap();
    assert_eq!(greeting, b"hello");
    data.write_all(b"still here").await.unwrap();
    data.shutdown().await.unwrap();
    assert_eq!(events.recv().await.unwrap(), "received still here");
}

/// kubectl up to 1.28 reads both streams to their end before it closes the local connection. It
/// waited forever for a client that waits for the end of the response.
#[tokio::test]
async fn errors_end_when_the_port_does() {
    let (server, mut events) = server();
    let connection = connect(&server).await;
    let (mut data, errors) = forward(&connection, 0, GREET).await;
    let mut greeting = Vec::new();
    data.read_to_end(&mut greeting).await.unwrap();
    assert_eq!(greeting, b"hello");
    let errors = tokio::time::timeout(Duration::from_secs(60), read_all(errors));
    assert_eq!(errors.await.unwrap(), b"");
    data.write_all(b"still here").await.unwrap();
    data.shutdown().await.unwrap();
    assert_eq!(events.recv().await.unwrap(), "received still here");
}

#[tokio::test]
async fn failure_to_dial_is_reported_and_others_continue() {
    let (server, _events) = server();
    let connection = connect(&server).await;
    let (data, errors) = forward(&connection, 0, REFUSED).await;
    let error = String::from_utf8(read_all(errors).await).unwrap();
    assert_eq!(
        error,
        "error forwarding port 10 to pod web: connection refused"
    );
    assert_eq!(read_all(data).await, b"");
    let (data, _errors) = forward(&connection, 1, COUNT).await;
    assert_eq!(exchange(data, b"abc".to_vec()).await, b"3");
}

#[tokio::test]
async fn client_that_resets_its_stream_ends_the_connection_to_the_port() {
    let (server, mut events) = server();
    let connection = connect(&server).await;
    let (mut data, errors) = forward(&connection, 0, GREET).await;
    data.write_all(b"abc").await.unwrap();
    let mut greeting = [0; 5];
    data.read_exact(&mut greeting).await.unwrap();
    data.reset();
    let event = events.recv().await.unwrap();
    assert!(event.starts_with("received"), "{event}");
    assert_eq!(read_all(errors).await, b"");
}

#[tokio::test(start_paused = true)]
async fn port_that_does_not_read_ends_after_the_client_is_gone() {
    let (server, mut events) = server();
    let connection = connect(&server).await;
    let (mut data, _errors) = forward(&connection, 0, STALL).await;
    data.write_all(&[0; 50_000]).await.unwrap();
    data.shutdown().await.unwrap();
    let start = tokio::time::Instant::now();
    drop(data);
    drop(connection);
    assert_eq!(events.recv().await.unwrap(), "port-forward ended");
    assert!(start.elapsed().as_secs() <= 60, "{:?}", start.elapsed());
}

#[tokio::test]
async fn streams_without_request_id_are_paired_by_their_ids() {
    let (server, _events) = server();
    let connection = connect(&server).await;
    let mut headers = Headers::from_iter([("port", "8"), ("streamType", "error")]);
    let _errors = connection.open(headers.clone()).await.unwrap();
    headers.insert("streamType", "data");
    let data = connection.open(headers).await.unwrap();
    assert_eq!(exchange(data, b"abcd".to_vec()).await, b"4");
}

#[tokio::test]
async fn streams_with_invalid_headers_are_reset() {
    let cases: &[&[(&str, &str)]] = &[
        &[("streamType", "data")],
        &[("streamType", "data"), ("port", "0")],
        &[("streamType", "data"), ("port", "65536")],
        &[("port", "80")],
        &[("port", "80"), ("streamType", "stdin")],
    ];
    let (server, _events) = server();
    let connection = connect(&server).await;
    for headers in cases {
        let opened = connection.open(headers.iter().copied().collect()).await;
        let error = opened.expect_err("the stream is rejected").kind();
        assert_eq!(error, std::io::ErrorKind::ConnectionRefused, "{headers:?}");
    }
}

#[tokio::test]
async fn channels_begin_with_their_port_and_end_together() {
    let (server, mut events) = server();
    let path = "/portforward?ports=9,10";
    let mut socket = websocket(server.connect(), path, "v4.channel.k8s.io").await;
    let mut received: Vec<Vec<u8>> = Vec::new();
    while let Some(Ok(message)) = socket.next().await {
        if let Message::Binary(bytes) = message {
            received.push(bytes.to_vec());
        }
    }
    let ports: [&[u8]; 4] = [&[0, 9, 0], &[1, 9, 0], &[2, 10, 0], &[3, 10, 0]];
    assert_eq!(received[..4], ports);
    received[4..].sort();
    let error = b"\x03error forwarding port 10 to pod web: connection refused";
    assert_eq!(received[4], b"\0hello");
    assert_eq!(received[5], error);
    assert_eq!(received.len(), 6);
    let event = loop {
        let event = events.recv().await.unwrap();
        if event.starts_with("port-forward") {
            break event;
        }
    };
    assert_eq!(event, "port-forward ended");
}

#[tokio::test]
async fn port_receives_all_before_a_closed_channel_ends() {
    let (server, mut events) = server();
    let path = "/portforward?port=11";
    let mut socket = websocket(server.connect(), path, "v4.base64.channel.k8s.io").await;
    for _ in 0..2 {
        // The port in both channels.
        let message = socket.next().await.unwrap().unwrap();
        assert!(message.is_text());
    }
    socket.send(Message::text("0YWJj")).await.unwrap();
    socket.close(None).await.unwrap();
    assert_eq!(events.recv().await.unwrap(), "received abc");
}
