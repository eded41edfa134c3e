//! Client library of the replicated key-value store: API types and HTTP client.

pub mod api;
