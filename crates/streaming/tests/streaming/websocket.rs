//! Exec and attach over WebSocket channels.

use base64::{Engine, engine::general_purpose::STANDARD};
use bellerophon_streaming::ConnectionOptions;
use futures_util::{SinkExt, StreamExt};
use tokio::sync::mpsc::Receiver;
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Bytes, Message, protocol::CloseFrame},
};

use crate::{
    client::{Io, websocket},
    pattern,
    server::Server,
};

fn server() -> (Server, Receiver<String>) {
    Server::new(ConnectionOptions::default())
}

/// Messages until the connection ends, written as `channel:text`; the close code at the end.
async fn receive_all(socket: &mut WebSocketStream<Io>) -> Vec<String> {
    let mut received = Vec::new();
    while let Some(Ok(message)) = socket.next().await {
        received.push(match message {
            Message::Binary(bytes) => {
                let text = String::from_utf8_lossy(&bytes[1..]);
                format!("{}:{text}", bytes[0])
            }
            Message::Text(text) => format!("text {text}"),
            Message::Close(Some(CloseFrame { code, .. })) => format!("close {code}"),
            Message::Pong(bytes) => format!("pong {}", String::from_utf8_lossy(&bytes)),
            other => format!("{other:?}"),
        });
    }
    received
}

fn binary(channel: u8, data: &[u8]) -> Message {
    let mut message = vec![channel];
    message.extend(data);
    Message::binary(message)
}

#[tokio::test]
async fn every_protocol_reports_in_its_form() {
    let object = r#"3:{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code: exit status 7","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#;
    let message = "3:command terminated with non-zero exit code: exit status 7";
    let encode = |message: &str| {
        let (channel, text) = message.split_once(':').unwrap();
        format!("text {channel}{}", STANDARD.encode(text))
    };
    let cases = [
        ("v5.channel.k8s.io", "1:".to_owned(), object.to_owned()),
        ("v4.channel.k8s.io", "1:".to_owned(), object.to_owned()),
        ("channel.k8s.io", "1:".to_owned(), message.to_owned()),
        ("", "1:".to_owned(), message.to_owned()),
        ("v4.base64.channel.k8s.io", encode("1:"), encode(object)),
        ("base64.channel.k8s.io", encode("1:"), encode(message)),
    ];
    for (protocol, first, status) in cases {
        let (server, _events) = server();
        let path = "/exec?stdout=true&command=exit&command=7";
        let mut socket = websocket(server.connect(), path, protocol).await;
        let received = receive_all(&mut socket).await;
        assert_eq!(
            received,
            [first, status, "close 1000".to_owned()],
            "{protocol}"
        );
    }
}

#[tokio::test]
async fn first_message_is_on_the_lowest_writable_channel() {
    let cases = [
        ("stdin=1&stdout=1&stderr=1", "1:"),
        ("stdin=1&stderr=1", "2:"),
        ("stdin=1", "3:"),
    ];
    for (query, expected) in cases {
        let (server, _events) = server();
        let path = format!("/exec?{query}&command=exit&command=0");
        let mut socket = websocket(server.connect(), &path, "v5.channel.k8s.io").await;
        let received = receive_all(&mut socket).await;
        assert_eq!(received[0], expected, "{query}");
    }
}

#[tokio::test]
async fn close_signal_ends_stdin_and_output_follows() {
    let (server, mut events) = server();
    let path = "/exec?stdin=true&stdout=true&command=cat";
    let mut socket = websocket(server.connect(), path, "v5.channel.k8s.io").await;
    socket.send(binary(0, b"hello ")).await.unwrap();
    socket.send(binary(0, b"")).await.unwrap();
    socket.send(binary(0, b"world")).await.unwrap();
    socket.send(binary(255, &[0])).await.unwrap();
    let received = receive_all(&mut socket).await;
    let output: String = received
        .iter()
        .filter_map(|m| m.strip_prefix("1:"))
        .collect();
    assert_eq!(output, "hello world");
    assert_eq!(events.recv().await.unwrap(), "copied Ok(11)");
    let end = &received[received.len() - 2..];
    assert_eq!(
        end,
        [r#"3:{"metadata":{},"status":"Success"}"#, "close 1000"]
    );
}

#[tokio::test]
async fn closing_the_connection_ends_stdin_before_v5() {
    let (server, mut events) = server();
    let path = "/exec?stdin=true&stdout=true&command=cat";
    let mut socket = websocket(server.connect(), path, "v4.base64.channel.k8s.io").await;
    let hello = format!("0{}", STANDARD.encode("hello"));
    socket.send(Message::text(hello)).await.unwrap();
    // Invalid base64 and unknown channels are ignored, as in Kubernetes.
    socket.send(Message::text("0###")).await.unwrap();
    socket.send(Message::text("zAAAA")).await.unwrap();
    while let Some(Ok(message)) = socket.next().await {
        if message == Message::text(format!("1{}", STANDARD.encode("hello"))) {
            break;
        }
    }
    socket.close(None).await.unwrap();
    assert_eq!(events.recv().await.unwrap(), "copied Ok(5)");
    assert_eq!(events.recv().await.unwrap(), "finished");
}

#[tokio::test]
async fn ten_megabytes_in_one_message_come_back_in_small_ones() {
    let (server, _events) = server();
    let path = "/exec?stdin=true&stdout=true&command=cat";
    let socket = websocket(server.connect(), path, "v5.channel.k8s.io").await;
    let (mut sink, mut source) = socket.split();
    let sent = pattern(2, 10 << 20);
    let message = binary(0, &sent);
    let sending = tokio::spawn(async move {
        sink.send(message).await.unwrap();
        sink.send(binary(255, &[0])).await.unwrap();
        sink
    });
    let mut received = Vec::<u8>::new();
    let mut largest = 0;
    let mut channels = Vec::new();
    while let Some(Ok(message)) = source.next().await {
        let Message::Binary(bytes) = message else {
            continue;
        };
        channels.push(bytes[0]);
        if bytes[0] == 1 {
            largest = largest.max(bytes.len());
            received.extend(&bytes[1..]);
        }
    }
    drop(sending.await.unwrap());
    assert!(received == sent, "received {} bytes", received.len());
    assert!(largest <= 1 + (32 << 10), "{largest}");
    // Clients end at the status.
    let status = channels.iter().position(|channel| *channel == 3);
    assert_eq!(status, Some(channels.len() - 1));
}

#[tokio::test]
async fn pings_are_answered() {
    let (server, _events) = server();
    let path = "/exec?stdin=true&stdout=true&command=cat";
    let mut socket = websocket(server.connect(), path, "v5.channel.k8s.io").await;
    let ping = Message::Ping(Bytes::from_static(b"5"));
    socket.send(ping).await.unwrap();
    let first = socket.next().await.unwrap().unwrap();
    assert_eq!(first, binary(1, b""));
    let pong = socket.next().await.unwrap().unwrap();
    assert_eq!(pong, Message::Pong(Bytes::from_static(b"5")));
}

#[tokio::test]
async fn invalid_close_signal_ends_the_connection() {
    for data in [&[][..], &[0, 1], &[5]] {
        let (server, mut events) = server();
        let path = "/exec?stdin=true&stdout=true&command=cat";
        let mut socket = websocket(server.connect(), path, "v5.channel.k8s.io").await;
        socket.send(binary(255, data)).await.unwrap();
        let received = receive_all(&mut socket).await;
        assert_eq!(received, ["1:", "close 1000"], "{data:?}");
        let copied = events.recv().await.unwrap();
        assert_eq!(copied, "copied Err(ConnectionAborted)", "{data:?}");
    }
}

#[tokio::test]
async fn message_over_the_limit_ends_the_connection() {
    let options = ConnectionOptions {
        message_bytes_max: 1 << 20,
        ..ConnectionOptions::default()
    };
    let (server, mut events) = Server::new(options);
    let path = "/exec?stdin=true&stdout=true&command=cat";
    let mut socket = websocket(server.connect(), path, "v5.channel.k8s.io").await;
    let message = binary(0, &vec![0; 2 << 20]);
    // The server ends the connection while the message is sent.
    let _ = socket.send(message).await;
    let copied = events.recv().await.unwrap();
    assert_eq!(copied, "copied Err(ConnectionAborted)");
}

#[tokio::test]
async fn terminal_sizes_arrive_over_websocket() {
    let (server, _events) = server();
    let path = "/attach?stdin=true&stdout=true&tty=true";
    let mut socket = websocket(server.connect(), path, "v4.channel.k8s.io").await;
    for size in [
        r#"{"Width":80,"Height":24}"#,
        r#"{"Width":120,"Height":40}"#,
    ] {
        socket.send(binary(4, size.as_bytes())).await.unwrap();
    }
    let received = receive_all(&mut socket).await;
    let output: String = received
        .iter()
        .filter_map(|m| m.strip_prefix("1:"))
        .collect();
    assert_eq!(output, "80x24\n120x40\n");
}
