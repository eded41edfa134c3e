//! Deterministic simulation of a cluster: real members on simulated disks, clocks and network.

#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod clients;
mod cluster;
mod faults;
mod histories;
mod members;
mod network;
mod operator;
mod planted;
mod refusals;
mod scenario;
mod trace;
