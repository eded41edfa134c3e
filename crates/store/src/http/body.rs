//! Bodies of requests, bounded in size and time, and bodies of responses.

use std::{io, time::Duration};

use bytes::Bytes;
use futures_util::Stream;
use http_body::Frame;
use http_body_util::{
    BodyExt as _, Full, LengthLimitError, Limited, StreamBody, combinators::UnsyncBoxBody,
};
use hyper::body::Incoming;
use tokio::time::timeout;

use crate::api::{Reason, StoreError};

/// The body of a response.
pub(crate) type Body = UnsyncBoxBody<Bytes, io::Error>;

/// A body of 1 MiB over a line of 1 Mbit/s takes 9 s.
const READ_TIMEOUT: Duration = Duration::from_secs(15);

/// A body of known bytes.
pub(crate) fn full(bytes: impl Into<Bytes>) -> Body {
    Body::new(Full::new(bytes.into()).map_err(|never| match never {}))
}

/// A body whose frames are made while it is sent.
pub(crate) fn streamed(
    frames: impl Stream<Item = io::Result<Frame<Bytes>>> + Send + 'static,
) -> Body {
    Body::new(StreamBody::new(frames))
}

/// Reads a whole request body.
pub(crate) async fn read(body: Incoming, bytes_max: usize) -> Result<Bytes, StoreError> {
    let collected = timeout(READ_TIMEOUT, Limited::new(body, bytes_max).collect())
        .await
        .map_err(|_| {
            StoreError::new(
                Reason::Invalid,
                format!("the body of the request was not received within {READ_TIMEOUT:?}; send it faster"),
            )
        })?;
    let collected = collected.map_err(|error| {
        if error.is::<LengthLimitError>() {
            StoreError::new(
                Reason::TooLarge,
                format!("the body of the request has more than {bytes_max} bytes; send less"),
            )
        } else {
            StoreError::new(
                Reason::Invalid,
                format!("cannot read the body of the request: {error}; send it again"),
            )
        }
    })?;
    Ok(collected.to_bytes())
}
