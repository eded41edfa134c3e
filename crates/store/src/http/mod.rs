//! The HTTP API of a member: client API, admin API, peer API, health and metrics.
//!
//! In: connections on three listeners. Out: calls of [`Member`](crate::Member) and their results.
//! Guarantees: every connection, request and body is bounded in size and time. Errors are JSON with
//! a reason. No response or log contains a token.

mod admin_api; // status, membership, snapshots
mod auth; // bearer tokens
mod body; // bodies of requests and responses
mod client_api; // keys and lists
mod health;
mod listener; // connections to requests
mod metrics; // Prometheus metrics
mod peer_client; // requests to other members
mod peer_server; // requests of other members
mod query; // paths and queries
mod respond; // results to responses
mod watch; // watch streams // liveness, readiness, metrics

pub(crate) use auth::Tokens;
pub use auth::{TokenError, TokenFiles};
pub(crate) use client_api::Api;
pub(crate) use health::HealthApi;
pub(crate) use listener::{Limits, Listener, TlsSource};
pub(crate) use metrics::Metrics;
pub(crate) use peer_client::HttpTransport;
pub(crate) use peer_server::{PeerApi, PeerProof};
