//! Exec and attach over SPDY.

use std::time::Duration;

use bellerophon_streaming::{ConnectionOptions, spdy::Headers};
use tokio::{io::AsyncWriteExt, time::timeout};

use crate::{
    client::{open, read_all, spdy},
    pattern,
    server::Server,
};

const SUCCESS: &str = r#"{"metadata":{},"status":"Success"}"#;

fn server() -> (Server, tokio::sync::mpsc::Receiver<String>) {
    Server::new(ConnectionOptions::default())
}

#[tokio::test]
async fn stdin_of_ten_megabytes_comes_back_over_spdy() {
    let (server, mut events) = server();
    let path = "/exec?stdin=true&stdout=true&command=cat";
    let connection = spdy(server.connect(), path, "v4.channel.k8s.io").await;
    let errors = open(&connection, "error").await;
    let stdin = open(&connection, "stdin").await;
    let stdout = open(&connection, "stdout").await;
    let sent = pattern(1, 10 << 20);
    let bytes = sent.clone();
    let (_, mut stdin) = stdin.into_split();
    let sending = tokio::spawn(async move {
        stdin.write_all(&bytes).await.unwrap();
        stdin.shutdown().await.unwrap();
    });
    let received = read_all(stdout).await;
    sending.await.unwrap();
    assert!(received == sent, "received {} bytes", received.len());
    assert_eq!(read_all(errors).await, SUCCESS.as_bytes());
    assert_eq!(events.recv().await.unwrap(), "copied Ok(10485760)");
    connection.close().await;
    assert_eq!(events.recv().await.unwrap(), "finished");
}

#[tokio::test]
async fn every_version_reports_failure_in_its_form() {
    let object = r#"{"metadata":{},"status":"Failure","message":"command terminated with non-zero exit code: exit status 7","reason":"NonZeroExitCode","details":{"causes":[{"reason":"ExitCode","message":"7"}]}}"#;
    let message = "command terminated with non-zero exit code: exit status 7";
    let cases = [
        ("v4.channel.k8s.io", object),
        ("v3.channel.k8s.io", message),
        ("v2.channel.k8s.io", message),
        ("channel.k8s.io", ""),
    ];
    for (protocol, expected) in cases {
        let (server, _events) = server();
        let path = "/exec?output=1&command=exit&command=7";
        let connection = spdy(server.connect(), path, protocol).await;
        let errors = open(&connection, "error").await;
        let stdout = open(&connection, "stdout").await;
        assert_eq!(read_all(stdout).await, b"", "{protocol}");
        let status = String::from_utf8(read_all(errors).await).unwrap();
        assert_eq!(status, expected, "{protocol}");
    }
}

#[tokio::test]
async fn command_that_is_dropped_reports_a_failure() {
    let (server, _events) = server();
    let path = "/exec?stdout=true&command=abandon";
    let connection = spdy(server.connect(), path, "v2.channel.k8s.io").await;
    let errors = open(&connection, "error").await;
    let stdout = open(&connection, "stdout").await;
    let status = String::from_utf8(read_all(errors).await).unwrap();
    let expected = "Internal error occurred: the command ended without a status";
    assert_eq!(status, expected);
    assert_eq!(read_all(stdout).await, b"");
}

#[tokio::test]
async fn stdout_and_stderr_arrive_before_the_status() {
    let (server, _events) = server();
    let path = "/exec?stdout=true&stderr=true&command=echo&command=hello";
    let connection = spdy(server.connect(), path, "v4.channel.k8s.io").await;
    let errors = open(&connection, "error").await;
    let stdout = open(&connection, "stdout").await;
    let stderr = open(&connection, "stderr").await;
    assert_eq!(read_all(errors).await, SUCCESS.as_bytes());
    assert_eq!(read_all(stdout).await, b"hello");
    assert_eq!(read_all(stderr).await, b"warning");
}

#[tokio::test]
async fn terminal_sizes_arrive_in_order() {
    let (server, _events) = server();
    let path = "/exec?stdout=true&tty=true&command=sizes&command=3";
    let connection = spdy(server.connect(), path, "v4.channel.k8s.io").await;
    let errors = open(&connection, "error").await;
    let stdout = open(&connection, "stdout").await;
    let mut resize = open(&connection, "resize").await;
    let sizes = r#"{"Width":80,"Height":24}{"Width":81,"Height":25}{"wid"#;
    resize.write_all(sizes.as_bytes()).await.unwrap();
    resize.write_all(br#"th":82,"height":26}"#).await.unwrap();
    assert_eq!(read_all(stdout).await, b"80x24\n81x25\n82x26\n");
    assert_eq!(read_all(errors).await, SUCCESS.as_bytes());
}

#[tokio::test]
async fn stdin_stays_open_until_the_client_ends_it() {
    let (server, mut events) = server();
    let path = "/exec?stdin=true&stdout=true&command=ignore-stdin";
    let connection = spdy(server.connect(), path, "v4.channel.k8s.io").await;
    let _errors = open(&connection, "error").await;
    let stdin = open(&connection, "stdin").await;
    let _stdout = open(&connection, "stdout").await;
    assert_eq!(events.recv().await.unwrap(), "started");
    // kubectl stops sending stdin when its other direction ends. What the server sent before its
    // second reply has arrived with it.
    for _ in 0..2 {
        let refused = connection.open(Headers::default()).await;
        assert!(refused.is_err());
    }
    let (from_server, _to_server) = stdin.into_split();
    let ended = timeout(Duration::ZERO, read_all(from_server)).await;
    assert!(ended.is_err());
}

#[tokio::test]
async fn command_learns_that_the_client_is_gone() {
    let (server, mut events) = server();
    let path = "/exec?stdout=true&command=ignore-stdin";
    let connection = spdy(server.connect(), path, "v4.channel.k8s.io").await;
    let _errors = open(&connection, "error").await;
    let _stdout = open(&connection, "stdout").await;
    assert_eq!(events.recv().await.unwrap(), "started");
    connection.close().await;
    assert_eq!(events.recv().await.unwrap(), "closed");
    assert_eq!(events.recv().await.unwrap(), "finished");
}

#[tokio::test]
async fn stream_of_unknown_type_is_accepted_and_ended() {
    let (server, _events) = server();
    let path = "/exec?stdout=true&command=echo&command=hello";
    let connection = spdy(server.connect(), path, "v4.channel.k8s.io").await;
    let unknown = open(&connection, "resize").await;
    assert_eq!(read_all(unknown).await, b"");
    let _errors = open(&connection, "error").await;
    let stdout = open(&connection, "stdout").await;
    assert_eq!(read_all(stdout).await, b"hello");
}
