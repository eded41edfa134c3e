//! Timeouts, in paused time: it advances only when no task can proceed.

use std::time::Duration;

use bellerophon_streaming::{
    ConnectionOptions,
    spdy::{Connection, Headers},
};
use futures_util::{SinkExt, StreamExt};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt, duplex},
    time::{Instant, sleep},
};
use tokio_tungstenite::tungstenite::{Bytes, Message};

use crate::{
    client::{open, read_all, spdy, websocket},
    server::Server,
};

const HOUR: Duration = Duration::from_secs(60 * 60);

#[tokio::test(start_paused = true)]
async fn client_has_thirty_seconds_to_create_its_streams() {
    let (server, mut events) = Server::new(ConnectionOptions::default());
    let path = "/exec?stdin=true&stdout=true&command=cat";
    let start = Instant::now();
    let connection = spdy(server.connect(), path, "v4.channel.k8s.io").await;
    let _errors = open(&connection, "error").await;
    let event = events.recv().await.unwrap();
    assert_eq!(event, "timed out waiting for client to create streams");
    assert_eq!(start.elapsed().as_secs(), 30);
    connection.closed().cancelled().await;
}

#[tokio::test(start_paused = true)]
async fn forwarded_connection_has_thirty_seconds_for_its_second_stream() {
    let (server, _events) = Server::new(ConnectionOptions::default());
    let start = Instant::now();
    let connection = spdy(server.connect(), "/portforward", "portforward.k8s.io").await;
    let headers = [("port", "7"), ("streamType", "error"), ("requestID", "3")];
    let errors = connection.open(Headers::from_iter(headers)).await.unwrap();
    let message = String::from_utf8(read_all(errors).await).unwrap();
    assert_eq!(message, "(request=3) timed out waiting for streams");
    assert_eq!(start.elapsed().as_secs(), 30);
}

#[tokio::test(start_paused = true)]
async fn idle_spdy_connection_is_closed_after_four_hours() {
    let (server, _events) = Server::new(ConnectionOptions::default());
    let connection = spdy(server.connect(), "/portforward", "portforward.k8s.io").await;
    sleep(3 * HOUR).await;
    // A refused stream is activity, too.
    assert!(connection.open(Headers::default()).await.is_err());
    let start = Instant::now();
    connection.closed().cancelled().await;
    assert_eq!(start.elapsed().as_secs(), 4 * HOUR.as_secs());
}

#[tokio::test(start_paused = true)]
async fn pings_do_not_keep_a_websocket_connection_from_being_idle() {
    let (server, mut events) = Server::new(ConnectionOptions::default());
    let path = "/exec?stdin=true&stdout=true&command=cat";
    let mut socket = websocket(server.connect(), path, "v5.channel.k8s.io").await;
    sleep(HOUR).await;
    socket.send(Message::binary(&b"\0abc"[..])).await.unwrap();
    let start = Instant::now();
    let (mut sink, mut source) = socket.split();
    let pinging = tokio::spawn(async move {
        while sink.send(Message::Ping(Bytes::new())).await.is_ok() {
            sleep(Duration::from_secs(5)).await;
        }
    });
    while let Some(Ok(_)) = source.next().await {}
    assert_eq!(start.elapsed().as_secs(), 4 * HOUR.as_secs());
    let copied = events.recv().await.unwrap();
    assert_eq!(copied, "copied Err(ConnectionAborted)");
    pinging.await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn server_pings_in_the_interval_it_is_given() {
    let options = ConnectionOptions {
        ping_interval: Some(Duration::from_secs(5)),
        ..ConnectionOptions::default()
    };
    let (mut client, server) = duplex(1024);
    let _server = Connection::server(server, &options);
    let start = Instant::now();
    for number in 1..=3 {
        let mut frame = [0; 12];
        client.read_exact(&mut frame).await.unwrap();
        assert_eq!(frame, [0x80, 3, 0, 6, 0, 0, 0, 4, 0, 0, 0, 2 * number]);
        assert_eq!(start.elapsed().as_secs(), u64::from(5 * number));
    }
    let (server, _events) = Server::new(options);
    let path = "/exec?stdin=true&stdout=true&command=cat";
    let mut socket = websocket(server.connect(), path, "v5.channel.k8s.io").await;
    let start = Instant::now();
    let first = socket.next().await.unwrap().unwrap();
    assert_eq!(first, Message::binary(&b"\x01"[..]));
    let ping = socket.next().await.unwrap().unwrap();
    assert!(ping.is_ping());
    assert_eq!(start.elapsed().as_secs(), 5);
}

#[tokio::test(start_paused = true)]
async fn client_that_does_not_close_is_cut_off() {
    let (server, mut events) = Server::new(ConnectionOptions::default());
    let path = "/exec?stdout=true&command=exit&command=0";
    let start = Instant::now();
    let mut socket = websocket(server.connect(), path, "v5.channel.k8s.io").await;
    // Nothing is read, and so the closing handshake does not happen.
    assert_eq!(events.recv().await.unwrap(), "finished");
    assert_eq!(start.elapsed().as_secs(), 30);
    let first = socket.next().await.unwrap().unwrap();
    assert_eq!(first, Message::binary(&b"\x01"[..]));
}

#[tokio::test(start_paused = true)]
async fn closing_gives_up_on_a_peer_that_does_not_read() {
    let (client, server) = duplex(1024);
    let options = ConnectionOptions::default();
    let mut server = Connection::server(server, &options);
    let mut raw = client;
    // A SYN_STREAM for stream 1 whose block has no headers: zlib, one stored block.
    let block = [0x78, 0x01, 0x00, 4, 0, 0xfb, 0xff, 0, 0, 0, 0];
    raw.write_all(&[0x80, 3, 0, 1, 0, 0, 0, 21, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0])
        .await
        .unwrap();
    raw.write_all(&block).await.unwrap();
    let mut stream = server.accept().await.unwrap().accept().await.unwrap();
    stream.write_all(&[0; 10_000]).await.unwrap();
    let start = Instant::now();
    server.close().await;
    assert_eq!(start.elapsed().as_secs(), 30);
}
