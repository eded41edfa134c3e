//! Copies between a client and the port that it requested.

use std::{future::Future, io, pin::pin, time::Duration};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, copy};
use tokio_util::sync::CancellationToken;
use tracing::{debug, trace};

use super::{ErrorSink, ForwardedConnection};
use crate::{ByteReader, ByteStream, ByteWriter};

/// One forwarded connection.
pub(super) struct Relay {
    pub(super) target: String,
    pub(super) has_half_close: bool,
    /// Cancelled once the client is gone.
    pub(super) closed: CancellationToken,
    /// How long the port may take to receive what the client has sent, once it is gone.
    pub(super) close_timeout: Duration,
}

impl Relay {
    pub(super) async fn run<F, S>(self, connection: ForwardedConnection, dialed: F)
    where
        F: Future<Output = io::Result<S>>,
        S: AsyncRead + AsyncWrite,
    {
        let ForwardedConnection { port, data, errors } = connection;
        let target = &self.target;
        let dialed = tokio::select! {
            dialed = dialed => dialed,
            () = self.closed.cancelled() => return,
        };
        let stream = match dialed {
            Ok(stream) => stream,
            Err(error) => {
                let message = format!("error forwarding port {port} to {target}: {error}");
                debug!(port, target, %error, "cannot dial a forwarded port");
                errors.report(&message).await;
                return;
            }
        };
        let (mut reader, mut writer) = data.into_split();
        let expired = async {
            self.closed.cancelled().await;
            tokio::time::sleep(self.close_timeout).await;
        };
        let copied = tokio::select! {
            copied = self.copy(&mut reader, &mut writer, errors, stream) => copied,
            () = expired => Err(io::ErrorKind::TimedOut.into()),
        };
        if let Err(error) = copied {
            debug!(port, target, %error, "a forwarded connection broke");
            ByteStream::from_split(reader, writer).reset();
        }
    }

    async fn copy<S>(
        &self,
        reader: &mut ByteReader,
        writer: &mut ByteWriter,
        errors: ErrorSink,
        stream: S,
    ) -> io::Result<()>
    where
        S: AsyncRead + AsyncWrite,
    {
        let (mut from_port, mut to_port) = tokio::io::split(stream);
        let mut send = pin!(async {
            copy(reader, &mut to_port).await?;
            to_port.shutdown().await
        });
        let mut receive = pin!(async {
            copy(&mut from_port, writer).await?;
            writer.shutdown().await?;
            // kubectl closes the local connection only once it knows that there is no error.
            drop(errors);
            Ok(())
        });
        tokio::select! {
            sent = &mut send => {
                sent?;
                tokio::select! {
                    received = receive => received,
                    // The client got all there was to get.
                    () = self.closed.cancelled() => Ok(()),
                }
            }
            received = &mut receive => {
                received?;
                // Without half-close the client cannot see that the port has closed, and would
                // never close its own direction.
                if self.has_half_close {
                    // kubectl resets the stream once the port has closed.
                    if let Err(error) = send.await {
                        trace!(%error, "not all that the client sent reached the port");
                    }
                }
                Ok(())
            }
        }
    }
}
