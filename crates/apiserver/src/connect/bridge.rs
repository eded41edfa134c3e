//! Upgraded connections: bytes of a client and a backend, copied both ways.
//!
//! Guarantees: each direction holds at most 8 KiB; when one side ends, the other one is shut
//! down for writing and has ten seconds to end as well; a stop of the server ends both.

use std::{io, time::Duration};

use hyper::upgrade::OnUpgrade;
use hyper_util::rt::TokioIo;
use tokio::{
    io::{AsyncRead, AsyncWrite, AsyncWriteExt as _, copy, split},
    time::timeout,
};

/// How long the second direction stays open after the first has ended. Every protocol on these
/// connections ends both sides together; a peer that does not is disconnected.
const HALF_CLOSED_TIMEOUT: Duration = Duration::from_secs(10);

/// Copies between two connections once both are upgraded, until both have ended.
///
/// # Errors
/// A side does not upgrade, or fails.
pub(super) async fn bridge(
    client: OnUpgrade,
    backend: OnUpgrade,
) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
    let client = TokioIo::new(client.await?);
    let backend = TokioIo::new(backend.await?);
    copy_both_ways(client, backend).await?;
    Ok(())
}

async fn copy_both_ways<A, B>(client: A, backend: B) -> io::Result<()>
where
    A: AsyncRead + AsyncWrite,
    B: AsyncRead + AsyncWrite,
{
    let (client_reader, client_writer) = split(client);
    let (backend_reader, backend_writer) = split(backend);
    let mut up = std::pin::pin!(copy_to_end(client_reader, backend_writer));
    let mut down = std::pin::pin!(copy_to_end(backend_reader, client_writer));
    let rest = tokio::select! {
        ended = &mut up => {
            ended?;
            timeout(HALF_CLOSED_TIMEOUT, down).await
        }
        ended = &mut down => {
            ended?;
            timeout(HALF_CLOSED_TIMEOUT, up).await
        }
    };
    rest.unwrap_or(Ok(()))
}

async fn copy_to_end(
    mut reader: impl AsyncRead + Unpin,
    mut writer: impl AsyncWrite + Unpin,
) -> io::Result<()> {
    copy(&mut reader, &mut writer).await?;
    writer.shutdown().await
}

#[cfg(test)]
mod tests {
    use tokio::{
        io::{AsyncReadExt as _, duplex},
        time::Instant,
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn response_follows_the_end_of_the_request() {
        let (mut client, client_side) = duplex(1024);
        let (mut backend, backend_side) = duplex(1024);
        let talk = async {
            client.write_all(b"request").await.expect("it is open");
            client.shutdown().await.expect("it is open");
            let mut request = String::new();
            let read = backend.read_to_string(&mut request).await;
            read.expect("it is open");
            tokio::time::sleep(Duration::from_secs(9)).await;
            let response = request.to_uppercase();
            let written = backend.write_all(response.as_bytes()).await;
            written.expect("the other direction is open");
            drop(backend);
            let mut response = String::new();
            let read = client.read_to_string(&mut response).await;
            read.expect("it is open");
            response
        };
        let (response, ended) = tokio::join!(talk, copy_both_ways(client_side, backend_side));
        assert_eq!(response, "REQUEST");
        assert!(ended.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn backend_that_does_not_end_is_not_waited_for() {
        let (client, client_side) = duplex(1024);
        let (_backend, backend_side) = duplex(1024);
        drop(client);
        let started = Instant::now();
        let ended = copy_both_ways(client_side, backend_side).await;
        assert!(ended.is_ok());
        assert_eq!(started.elapsed(), HALF_CLOSED_TIMEOUT);
    }
}
