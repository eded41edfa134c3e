//! The client of the drop-in's API server for its `etcd`, which keeps objects between two starts.
//!
//! Guarantee: nothing fails without it. With another `etcd`, or none, objects are not kept.

use std::time::Duration;

use bytes::Bytes;
use http::{Method, Request, StatusCode, Uri, header::HOST};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::{net::TcpStream, time::timeout};
use tracing::warn;

use super::etcd::SNAPSHOT_PATH;

/// How long one request may take.
const REQUEST_MAX: Duration = Duration::from_millis(500);

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// The objects that an API server left; empty if there are none.
pub(super) async fn load(etcd: &Uri) -> Vec<u8> {
    match timeout(REQUEST_MAX, request(etcd, Method::GET, Bytes::new())).await {
        Ok(Ok((StatusCode::OK, body))) => body.to_vec(),
        // It is a real etcd, which has no such path.
        Ok(Ok(_)) => Vec::new(),
        Ok(Err(error)) => {
            warn!(%error, %etcd, "cannot reach etcd; objects are lost with this process");
            Vec::new()
        }
        Err(_) => {
            warn!(%etcd, "etcd does not answer; objects are lost with this process");
            Vec::new()
        }
    }
}

/// Leaves the objects for the next API server.
pub(super) async fn save(etcd: &Uri, snapshot: Vec<u8>) {
    // A client that stops both may stop etcd first.
    let _saved = timeout(REQUEST_MAX, request(etcd, Method::PUT, snapshot.into())).await;
}

async fn request(etcd: &Uri, method: Method, body: Bytes) -> Result<(StatusCode, Bytes), Failure> {
    let authority = etcd.authority().ok_or("a URL without a host")?;
    let host = authority.host().trim_matches(['[', ']']);
    let stream = TcpStream::connect((host, authority.port_u16().unwrap_or(2379))).await?;
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await?;
    let connection = tokio::spawn(connection);
    let request = Request::builder()
        .method(method)
        .uri(SNAPSHOT_PATH)
        .header(HOST, authority.as_str())
        .body(Full::new(body))?;
    let response = sender.send_request(request).await?;
    let status = response.status();
    let body = response.into_body().collect().await?.to_bytes();
    drop(sender);
    connection.await??;
    Ok((status, body))
}
