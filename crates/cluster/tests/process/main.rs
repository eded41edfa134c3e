//! Tests of pods as local processes on the embedded API server, with real processes in real time.

#![cfg(target_os = "linux")]
#![expect(clippy::unwrap_used, reason = "helpers of tests may panic")]

mod bad_input; // programs and specs that do not work
mod ephemeral; // ephemeral containers
mod handlers; // pods of both runtimes on one node
mod host_network; // pods with the network of their node
mod life; // start, restart and end of pods
mod network; // Services and connections
mod nodes; // nodes without power
mod probes; // startup, readiness and liveness
mod stop; // graceful termination
mod support; // clusters and pods of tests
mod volumes; // volumes, and files that become variables
