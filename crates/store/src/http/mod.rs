//! The HTTP API of a member: client API, admin API, peer API, health and metrics.
//!
//! In: connections on three listeners. Out: calls of [`Member`](crate::Member) and their results.
//! Guarantees: every connection, request and body is bounded in size and time. Errors are JSON with
//! a reason. No response or log contains a token.

mod listener; // connections to requests
mod body; // bodies of requests and responses
mod respond; // results to responses
mod query; // paths and queries
mod auth; // bearer tokens
mod metrics; // Prometheus metrics
mod client_api; // keys and lists
mod watch; // watch streams
mod admin_api; // status, membership, snapshots
mod peer_server; // requests of other members
mod peer_client; // requests to other members
mod health; // liveness, readiness, metrics

pub(crate) use admin_api::AdminApi;
pub(crate) use auth::Tokens;
pub(crate) use client_api::Api;
pub(crate) use health::HealthApi;
pub(crate) use listener::{Handler, Limits, Listener};
pub(crate) use metrics::Metrics;
pub(crate) use peer_client::HttpTransport;
pub(crate) use peer_server::PeerApi;
