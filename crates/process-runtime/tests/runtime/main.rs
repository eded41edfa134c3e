//! Pods as processes: real namespaces, processes, sockets and terminals, in both tiers.

#![cfg(target_os = "linux")]

mod containers;
mod logs;
mod network;
mod orphans;
mod streams;
mod support;
mod volumes;
