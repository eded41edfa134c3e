//! HTTP: paths, queries, media types, bodies.

pub(crate) mod body; // bytes, chunks or a stream
pub(crate) mod gzip; // compressed responses
pub(crate) mod negotiate; // media types
pub(crate) mod query; // query parameters
pub(crate) mod request_info; // verb and target of a request
pub(crate) mod response; // responses of single documents
pub(crate) mod route; // paths
mod yaml; // YAML as Go writes it
