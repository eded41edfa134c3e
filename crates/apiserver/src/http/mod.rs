//! HTTP: from requests to typed calls of verbs, and from their outcome to bytes.

pub(crate) mod answer; // outcomes to responses
pub(crate) mod body; // bytes, chunks or a stream
mod gzip; // compressed responses
mod list_body; // lists that are encoded while they are sent
pub(crate) mod negotiate; // media types
pub(crate) mod query; // query parameters
pub(crate) mod request_body; // request bodies within limits
pub(crate) mod route; // paths
mod yaml; // YAML as Go writes it
