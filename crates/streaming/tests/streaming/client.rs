//! A client of the protocols: HTTP upgrades, SPDY streams, WebSocket messages.

use bellerophon_streaming::{
    ByteStream, ConnectionOptions,
    spdy::{Connection, Headers},
};
use futures_util::{SinkExt, StreamExt};
use http::{Request, Response};
use http_body_util::{BodyExt, Empty};
use hyper::{body::Bytes, client::conn::http1, upgrade::Upgraded};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio_tungstenite::{
    WebSocketStream,
    tungstenite::{Message, protocol::Role},
};

pub(crate) type Io = TokioIo<Upgraded>;

/// The headers of a request for WebSocket.
pub(crate) const WEBSOCKET: &[(&str, &str)] = &[
    ("connection", "Upgrade"),
    ("upgrade", "websocket"),
    ("sec-websocket-version", "13"),
    ("sec-websocket-key", "dGhlIHNhbXBsZSBub25jZQ=="),
];

/// The headers of a request for SPDY.
pub(crate) const SPDY: &[(&str, &str)] = &[("connection", "Upgrade"), ("upgrade", "SPDY/3.1")];

/// Sends a request; returns the response, and the connection if it was upgraded.
pub(crate) async fn request<S>(
    io: S,
    method: &str,
    path: &str,
    headers: &[&[(&str, &str)]],
) -> (Response<String>, Option<Io>)
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let (mut sender, connection) = http1::handshake(TokioIo::new(io)).await.unwrap();
    tokio::spawn(connection.with_upgrades());
    let mut builder = Request::builder().method(method).uri(path);
    for (name, value) in headers.iter().copied().flatten() {
        builder = builder.header(*name, *value);
    }
    let request = builder.body(Empty::<Bytes>::new()).unwrap();
    let mut response = sender.send_request(request).await.unwrap();
    if response.status() == 101 {
        let upgraded = hyper::upgrade::on(&mut response).await.unwrap();
        let response = response.map(|_| String::new());
        return (response, Some(TokioIo::new(upgraded)));
    }
    let (parts, body) = response.into_parts();
    let body = body.collect().await.unwrap().to_bytes();
    let body = String::from_utf8(body.to_vec()).unwrap();
    (Response::from_parts(parts, body), None)
}

/// Opens a WebSocket connection with a protocol; none if it is empty.
pub(crate) async fn websocket<S>(io: S, path: &str, protocol: &str) -> WebSocketStream<Io>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let offered = [("sec-websocket-protocol", protocol)];
    let offered = if protocol.is_empty() {
        &[]
    } else {
        &offered[..]
    };
    let (response, io) = request(io, "GET", path, &[WEBSOCKET, offered]).await;
    let chosen = response.headers().get("sec-websocket-protocol");
    let chosen = chosen.map(|value| value.to_str().unwrap());
    assert_eq!(chosen.unwrap_or_default(), protocol);
    let accept = &response.headers()["sec-websocket-accept"];
    assert_eq!(accept, "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=");
    let io = io.expect("the request is accepted");
    WebSocketStream::from_raw_socket(io, Role::Client, None).await
}

/// Opens a SPDY connection with a protocol.
pub(crate) async fn spdy<S>(io: S, path: &str, protocol: &str) -> Connection
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let offered = [("x-stream-protocol-version", protocol)];
    let (response, io) = request(io, "POST", path, &[SPDY, &offered]).await;
    assert_eq!(response.headers()["x-stream-protocol-version"], protocol);
    assert_eq!(response.headers()["upgrade"], "SPDY/3.1");
    let io = io.expect("the request is accepted");
    Connection::client(io, &ConnectionOptions::default())
}

/// Opens a stream of exec or attach.
pub(crate) async fn open(connection: &Connection, stream_type: &str) -> ByteStream {
    let headers = Headers::from_iter([("streamType", stream_type)]);
    connection.open(headers).await.unwrap()
}

/// Opens the streams of a forwarded connection: data and errors.
pub(crate) async fn forward(
    connection: &Connection,
    request: u64,
    port: u16,
) -> (ByteStream, ByteStream) {
    let request = request.to_string();
    let port = port.to_string();
    let mut headers = Headers::from_iter([("requestID", &*request), ("port", &*port)]);
    headers.insert("streamType", "error");
    let mut errors = connection.open(headers.clone()).await.unwrap();
    errors.shutdown().await.unwrap();
    headers.insert("streamType", "data");
    let data = connection.open(headers).await.unwrap();
    (data, errors)
}

/// All that a stream sends.
pub(crate) async fn read_all<R: AsyncRead + Unpin>(mut reader: R) -> Vec<u8> {
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).await.unwrap();
    bytes
}

/// Sends bytes and ends the direction, while it receives all that the peer sends.
pub(crate) async fn exchange<S>(stream: S, bytes: Vec<u8>) -> Vec<u8>
where
    S: AsyncRead + AsyncWrite + Send + Unpin + 'static,
{
    let (reader, mut writer) = tokio::io::split(stream);
    let sent = tokio::spawn(async move {
        writer.write_all(&bytes).await.unwrap();
        writer.shutdown().await.unwrap();
        writer
    });
    let received = read_all(reader).await;
    sent.await.unwrap();
    received
}

/// The bytes in the binary messages of a WebSocket connection, as client-go's TunnelingConnection.
pub(crate) fn tunnel(socket: WebSocketStream<Io>) -> impl AsyncRead + AsyncWrite + Send + 'static {
    let (mut sink, mut source) = socket.split();
    let (near, far) = tokio::io::duplex(64 << 10);
    let (mut far_reader, mut far_writer) = tokio::io::split(far);
    tokio::spawn(async move {
        while let Some(Ok(message)) = source.next().await {
            if let Message::Binary(bytes) = message {
                far_writer.write_all(&bytes).await.unwrap();
            }
        }
        let _ = far_writer.shutdown().await;
    });
    tokio::spawn(async move {
        let mut buffer = vec![0; 32 << 10];
        while let Ok(bytes @ 1..) = far_reader.read(&mut buffer).await {
            let message = Message::binary(buffer[..bytes].to_vec());
            sink.send(message).await.unwrap();
        }
        let _ = sink.close().await;
    });
    near
}
