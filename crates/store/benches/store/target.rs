//! The loaded member: a leader that answers puts and gets over HTTP/2 without TLS.

use std::{error::Error, future::Future, io, net::SocketAddr, time::Duration};

use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::{Builder, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::{net::TcpStream, time::sleep};

use crate::processes::Usage;

pub(crate) type BenchError = Box<dyn Error + Send + Sync>;
pub(crate) type Connection = SendRequest<Full<Bytes>>;

/// A cluster under load.
pub(crate) trait Target {
    /// The address of the leader's client API.
    fn address(&self) -> SocketAddr;

    /// The request that writes a key.
    fn put(&self, key: &str, value: &Bytes) -> Request<Full<Bytes>>;

    /// The request that reads a key linearizably.
    fn get(&self, key: &str) -> Request<Full<Bytes>>;

    /// Syncs of the leader's log since its start.
    fn syncs(&self) -> impl Future<Output = Result<u64, BenchError>>;

    /// What all members used since their start.
    fn usage(&self) -> io::Result<Usage>;
}

/// An HTTP/2 connection.
pub(crate) async fn connect(address: SocketAddr) -> Result<Connection, BenchError> {
    let stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (sender, connection) = Builder::new(TokioExecutor::new())
        .handshake(TokioIo::new(stream))
        .await?;
    tokio::spawn(connection);
    Ok(sender)
}

/// The sum of the samples of a counter in a metrics page.
pub(crate) async fn counter(address: SocketAddr, name: &str) -> Result<u64, BenchError> {
    let stream = TcpStream::connect(address).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let request = Request::get("/metrics")
        .header("host", address.to_string())
        .body(Full::<Bytes>::default())?;
    let body = sender
        .send_request(request)
        .await?
        .into_body()
        .collect()
        .await?;
    let text = String::from_utf8(body.to_bytes().to_vec())?;
    let samples = text.lines().filter(|line| line.starts_with(name));
    let mut sum = 0.0;
    for sample in samples {
        let value = sample.rsplit(' ').next().unwrap_or_default();
        sum += value.parse::<f64>()?;
    }
    Ok(sum as u64)
}

/// A free port on loopback.
pub(crate) async fn free_port() -> Result<u16, BenchError> {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await?;
    Ok(listener.local_addr()?.port())
}

/// Waits for a condition.
pub(crate) async fn eventually(
    what: &str,
    mut condition: impl AsyncFnMut() -> bool,
) -> Result<(), BenchError> {
    for _ in 0..3000 {
        if condition().await {
            return Ok(());
        }
        sleep(Duration::from_millis(20)).await;
    }
    Err(format!("not in time: {what}").into())
}
