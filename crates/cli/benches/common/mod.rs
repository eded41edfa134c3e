//! Shared by the benchmarks of the binary: the server as a process, and a client.

pub(crate) mod client; // a minimal HTTP client
pub(crate) mod process; // the server as a process

pub(crate) type BenchError = Box<dyn std::error::Error + Send + Sync>;
