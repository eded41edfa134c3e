//! The client of kube-rs, over sockets.

use bellerophon_streaming::ConnectionOptions;
use futures_util::SinkExt;
use k8s_openapi::api::core::v1::Pod;
use kube::{
    Api, Client, Config,
    api::{AttachParams, TerminalSize},
};
use tokio::io::AsyncWriteExt;

use crate::{
    client::read_all,
    pattern,
    server::{ECHO, GREET, REFUSED, Server},
};

async fn pods() -> Api<Pod> {
    let (server, mut events) = Server::new(ConnectionOptions::default());
    let address = server.listen().await;
    // The tests do not read these events.
    tokio::spawn(async move { while events.recv().await.is_some() {} });
    let config = Config::new(format!("http://{address}").parse().unwrap());
    Api::namespaced(Client::try_from(config).unwrap(), "team-a")
}

#[tokio::test]
async fn exec_returns_output_and_exit_code() {
    let pods = pods().await;
    let parameters = AttachParams::default().stdout(true).stderr(true);
    let mut process = pods
        .exec("web", ["echo", "hello"], &parameters)
        .await
        .unwrap();
    let status = process.take_status().unwrap();
    let stdout = process.stdout().unwrap();
    let stderr = process.stderr().unwrap();
    let (stdout, stderr) = tokio::join!(read_all(stdout), read_all(stderr));
    assert_eq!(stdout, b"hello");
    assert_eq!(stderr, b"warning");
    let status = status.await.unwrap();
    assert_eq!(status.status.as_deref(), Some("Success"));
    process.join().await.unwrap();

    let mut process = pods.exec("web", ["exit", "7"], &parameters).await.unwrap();
    let status = process.take_status().unwrap().await.unwrap();
    assert_eq!(status.reason.as_deref(), Some("NonZeroExitCode"));
    let causes = status.details.unwrap().causes.unwrap();
    assert_eq!(causes[0].reason.as_deref(), Some("ExitCode"));
    assert_eq!(causes[0].message.as_deref(), Some("7"));

    let mut process = pods.exec("web", ["missing"], &parameters).await.unwrap();
    let status = process.take_status().unwrap().await.unwrap();
    assert_eq!(status.reason.as_deref(), Some("InternalError"));
    assert_eq!(status.code, Some(500));
}

#[tokio::test]
async fn ten_megabytes_of_stdin_come_back() {
    let pods = pods().await;
    let parameters = AttachParams::default()
        .stdin(true)
        .stderr(false)
        .max_stdin_buf_size(64 << 10)
        .max_stdout_buf_size(64 << 10);
    let mut process = pods.exec("web", ["cat"], &parameters).await.unwrap();
    let mut stdin = process.stdin().unwrap();
    let stdout = process.stdout().unwrap();
    let sent = pattern(5, 10 << 20);
    let bytes = sent.clone();
    let sending = tokio::spawn(async move {
        stdin.write_all(&bytes).await.unwrap();
        stdin.shutdown().await.unwrap();
    });
    let received = read_all(stdout).await;
    sending.await.unwrap();
    assert!(received == sent, "received {} bytes", received.len());
    process.join().await.unwrap();
}

#[tokio::test]
async fn attach_resizes_the_terminal() {
    let pods = pods().await;
    let parameters = AttachParams::interactive_tty();
    let mut process = pods.attach("web", &parameters).await.unwrap();
    let mut sizes = process.terminal_size().unwrap();
    for (width, height) in [(80, 24), (120, 40)] {
        sizes.send(TerminalSize { width, height }).await.unwrap();
    }
    let stdout = process.stdout().unwrap();
    assert_eq!(read_all(stdout).await, b"80x24\n120x40\n");
}

#[tokio::test]
async fn port_forward_carries_bytes_of_several_ports() {
    let pods = pods().await;
    let mut forwarder = pods.portforward("web", &[ECHO, GREET]).await.unwrap();
    let mut echo = forwarder.take_stream(ECHO).unwrap();
    let mut greet = forwarder.take_stream(GREET).unwrap();
    let sent = pattern(6, 1 << 20);
    let mut received = vec![0; sent.len()];
    let (mut reader, mut writer) = tokio::io::split(&mut echo);
    let (written, read) = tokio::join!(
        writer.write_all(&sent),
        tokio::io::AsyncReadExt::read_exact(&mut reader, &mut received),
    );
    written.unwrap();
    read.unwrap();
    assert!(received == sent);
    let mut greeting = [0; 5];
    let read = tokio::io::AsyncReadExt::read_exact(&mut greet, &mut greeting);
    read.await.unwrap();
    assert_eq!(&greeting, b"hello");
    drop(echo);
    drop(greet);
    forwarder.join().await.unwrap();
}

#[tokio::test]
async fn port_forward_ends_when_the_port_does() {
    let pods = pods().await;
    let mut forwarder = pods.portforward("web", &[GREET]).await.unwrap();
    let stream = forwarder.take_stream(GREET).unwrap();
    assert_eq!(read_all(stream).await, b"hello");
}

#[tokio::test]
async fn failure_to_dial_reaches_the_client() {
    let pods = pods().await;
    let mut forwarder = pods.portforward("web", &[REFUSED]).await.unwrap();
    let error = forwarder.take_error(REFUSED).unwrap().await.unwrap();
    assert_eq!(
        error,
        "error forwarding port 10 to pod web: connection refused"
    );
}

#[tokio::test]
async fn hundred_port_forwards_keep_their_bytes() {
    let pods = pods().await;
    let mut clients = tokio::task::JoinSet::new();
    for seed in 0..100 {
        let pods = pods.clone();
        clients.spawn(async move {
            let mut forwarder = pods.portforward("web", &[ECHO]).await.unwrap();
            let stream = forwarder.take_stream(ECHO).unwrap();
            let sent = pattern(seed, 1 << 20);
            let mut received = vec![0; sent.len()];
            let (mut reader, mut writer) = tokio::io::split(stream);
            let (written, read) = tokio::join!(
                writer.write_all(&sent),
                tokio::io::AsyncReadExt::read_exact(&mut reader, &mut received),
            );
            written.unwrap();
            read.unwrap();
            assert!(received == sent, "port-forward {seed}");
        });
    }
    while let Some(client) = clients.join_next().await {
        client.unwrap();
    }
}
