//! Replicated key-value store on Raft, with an HTTP API.
