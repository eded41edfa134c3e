//! Clusters on the embedded API server, in paused time: an hour of cluster life in milliseconds.

#![expect(clippy::unwrap_used, reason = "what helps a test may fail it")]

mod endpoints; // services and where their pods are
mod garbage; // what belongs to an object goes with it
mod histories; // whatever happened, the end is what the specs describe
mod life; // starting, stopping, starting again
mod look; // what tests ask of pods
mod namespaces; // what every one has, and how they go
mod nodes; // nodes and the pods on them
mod scheduler; // pods find their nodes
mod storage; // claims get volumes
mod upkeep; // roles, finished jobs, storage in use
mod workloads; // from what people ask for to pods
