//! The Reboot operator on test clusters, with exactly its permissions, in virtual time.
//!
//! Assertions are about every revision of the Nodes, as a client observes them.

mod fixture; // a cluster with the accounts of controller and agents
mod known_defects; // defects of other reboot operators
mod random_faults; // rollouts with random faults
mod rollouts; // rollouts without faults, or with one
