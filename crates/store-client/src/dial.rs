//! Byte streams to endpoints.
//!
//! In: an endpoint. Out: a byte stream, over TCP or over whatever an implementation has, such as a
//! port-forward.

use std::io;

use futures_util::future::BoxFuture;
use tokio::{
    io::{AsyncRead, AsyncWrite},
    net::TcpStream,
};

use crate::endpoint::Endpoint;

/// A byte stream in both directions.
pub trait ByteStream: AsyncRead + AsyncWrite + Send + Unpin {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin> ByteStream for T {}

/// Opens byte streams. TLS, if any, is added by the client.
pub trait Dial: Send + Sync {
    /// Opens a byte stream to an endpoint. The client bounds the time.
    fn dial<'a>(&'a self, endpoint: &'a Endpoint)
    -> BoxFuture<'a, io::Result<Box<dyn ByteStream>>>;
}

/// Dials by TCP.
#[derive(Clone, Copy, Debug, Default)]
pub struct TcpDialer;

impl Dial for TcpDialer {
    fn dial<'a>(
        &'a self,
        endpoint: &'a Endpoint,
    ) -> BoxFuture<'a, io::Result<Box<dyn ByteStream>>> {
        Box::pin(async move {
            let stream = TcpStream::connect((endpoint.host.as_str(), endpoint.port)).await?;
            // Requests are small: waiting for more to send only delays them.
            stream.set_nodelay(true)?;
            Ok(Box::new(stream) as Box<dyn ByteStream>)
        })
    }
}
