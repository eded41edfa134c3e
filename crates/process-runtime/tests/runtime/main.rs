//! Pods as processes: real namespaces, processes, sockets and terminals, in both tiers.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "a failed test panics")]

mod containers;
mod logs;
mod network;
mod orphans;
mod streams;
mod support;
mod volumes;
