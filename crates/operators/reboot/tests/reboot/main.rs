//! The Reboot operator on whole clusters, with exactly its rights, in virtual time.
//!
//! What is judged is what the cluster shows at every revision, from outside.

mod defects; // what others got wrong
mod rig; // a cluster, its controller and its agents
mod rollouts; // what it promises
mod storms; // the same while everything else goes wrong
