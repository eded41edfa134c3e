//! Exec, attach and port-forward, from a client's request to its last byte.
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod client;
mod exec;
mod hostile;
mod kube_client;
mod negotiation;
mod port_forward;
mod server;
mod spdy;
mod timeouts;
mod websocket;

/// Bytes that differ from piece to piece, the same for the same seed.
fn pattern(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(length);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}
