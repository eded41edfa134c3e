//! Client library of the replicated key-value store: API types and HTTP client.
//!
//! In: endpoints, a token, certificate authorities. Out: typed requests of the client API and of
//! the admin API.

mod admin; // requests of the admin API
pub mod api; // types of the API
mod call; // a request and its response
mod client; // requests with fail-over
mod connection; // one HTTP/2 connection per endpoint
mod dial; // byte streams to endpoints
mod endpoint; // addresses of members
mod error; // errors of the client
mod keys; // get, put, delete, list
mod options; // endpoints, credentials, bounds
mod response; // responses to results
mod snapshot; // download and verification of snapshots
mod tls; // TLS with a certificate authority
mod watch; // watches that resume

pub use admin::RestoreRequest;
pub use client::Client;
pub use dial::{ByteStream, Dial, TcpDialer};
pub use endpoint::Endpoint;
pub use error::ClientError;
pub use keys::{Found, ListOptions};
pub use options::{ClientOptions, Token};
pub use snapshot::{CHECKSUM_TRAILER, Checksum, SnapshotDownload};
pub use tls::{ClientTls, TlsError};
pub use watch::{Watch, WatchItem};
