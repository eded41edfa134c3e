//! Deterministic simulation of a cluster: real members on simulated disks, clocks and network.

mod clients;
mod cluster;
mod histories;
mod network;
mod operator;
mod scenario;
mod trace;
