//! Deterministic simulation of a cluster: real members on simulated disks, clocks and network.

mod clients;
mod cluster;
mod faults;
mod histories;
mod members;
mod network;
mod operator;
mod planted;
mod scenario;
mod trace;
