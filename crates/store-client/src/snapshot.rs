//! Download of snapshots with verification, and upload.
//!
//! In: the response of a member. Out: the bytes of the snapshot.
//! Guarantees: a download is complete only if the member sent its checksum after the last byte, and
//! the checksum is that of the received bytes. A download without progress ends.

use std::{fmt, io, time::Duration};

use bytes::{Bytes, BytesMut};
use futures_util::stream;
use http_body::Frame;
use http_body_util::{BodyExt as _, StreamBody, combinators::UnsyncBoxBody};
use hyper::body::Incoming;
use sha2::{Digest as _, Sha256};
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _},
    time::timeout,
};

use crate::{
    call::Call, client::Client, connection::RequestBody, endpoint::Endpoint, error::ClientError,
};

/// The trailer of a download: SHA-256 of all bytes, in hexadecimal.
pub const CHECKSUM_TRAILER: &str = "store-snapshot-sha256";

/// A whole upload: 10 GB at 10 MB/s.
pub(crate) const TRANSFER_TIMEOUT: Duration = Duration::from_secs(1000);

/// The wait for the next part of a download. The member first makes a snapshot.
const PART_TIMEOUT: Duration = Duration::from_secs(60);

/// Bytes of a file that are read and sent together.
const PART_BYTES: usize = 256 << 10;

/// SHA-256, in hexadecimal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Checksum(pub String);

impl Checksum {
    /// The result of a hash.
    pub fn of(hash: Sha256) -> Self {
        let mut text = String::with_capacity(64);
        for byte in hash.finalize() {
            text.push_str(&format!("{byte:02x}"));
        }
        Self(text)
    }
}

impl fmt::Display for Checksum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A complete and verified download.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotDownload {
    /// Where it came from.
    pub endpoint: Endpoint,
    /// Its size.
    pub bytes: u64,
    /// Its checksum.
    pub checksum: Checksum,
}

impl Client {
    /// Downloads a snapshot of the state. It contains every write that was acknowledged before.
    ///
    /// # Errors
    /// See [`ClientError`]. What was written before an error is not a snapshot.
    pub async fn snapshot(
        &self,
        to: &mut (impl AsyncWrite + Unpin),
    ) -> Result<SnapshotDownload, ClientError> {
        let call = Call::read("/admin/v1/snapshot".to_owned());
        let (endpoint, response) = self.stream(&call).await?;
        let mut download = Download {
            endpoint,
            body: response.into_body(),
            hash: Sha256::new(),
            bytes: 0,
            announced: None,
        };
        while let Some(part) = download.next().await? {
            to.write_all(&part).await.map_err(write_error)?;
        }
        to.flush().await.map_err(write_error)?;
        download.verified()
    }
}

fn write_error(cause: io::Error) -> ClientError {
    ClientError::Io {
        action: "write the snapshot".to_owned(),
        cause,
    }
}

struct Download {
    endpoint: Endpoint,
    body: Incoming,
    hash: Sha256,
    bytes: u64,
    /// The checksum that the member sent.
    announced: Option<Checksum>,
}

impl Download {
    async fn next(&mut self) -> Result<Option<Bytes>, ClientError> {
        loop {
            let frame = timeout(PART_TIMEOUT, self.body.frame())
                .await
                .map_err(|_| self.damaged(format!("no data for {PART_TIMEOUT:?}")))?;
            let frame = match frame {
                None => return Ok(None),
                Some(Err(error)) => return Err(self.damaged(error.to_string())),
                Some(Ok(frame)) => frame,
            };
            match frame.into_data() {
                Ok(data) => {
                    self.hash.update(&data);
                    self.bytes += data.len() as u64;
                    return Ok(Some(data));
                }
                Err(frame) => {
                    let trailers = frame.into_trailers().unwrap_or_default();
                    let checksum = trailers.get(CHECKSUM_TRAILER);
                    let text = checksum.and_then(|value| value.to_str().ok());
                    self.announced = text.map(|text| Checksum(text.to_owned()));
                }
            }
        }
    }

    fn verified(self) -> Result<SnapshotDownload, ClientError> {
        let Some(announced) = self.announced.clone() else {
            return Err(self.damaged("it ended before its checksum".to_owned()));
        };
        let checksum = Checksum::of(self.hash.clone());
        if checksum != announced {
            let cause = format!("checksum is {checksum}, but the member sent {announced}");
            return Err(self.damaged(cause));
        }
        Ok(SnapshotDownload {
            endpoint: self.endpoint,
            bytes: self.bytes,
            checksum,
        })
    }

    fn damaged(&self, cause: String) -> ClientError {
        ClientError::Damaged {
            endpoint: self.endpoint.to_string(),
            cause,
        }
    }
}

/// A request body that is read from a file while it is sent.
pub(crate) fn upload_body(file: impl AsyncRead + Send + 'static) -> RequestBody {
    let parts = stream::try_unfold(Box::pin(file), async |mut file| {
        let mut part = BytesMut::with_capacity(PART_BYTES);
        let count = file.read_buf(&mut part).await?;
        Ok::<_, io::Error>((count > 0).then(|| (Frame::data(part.freeze()), file)))
    });
    UnsyncBoxBody::new(StreamBody::new(parts))
}
