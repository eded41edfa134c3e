//! The loops that make a Kubernetes API server a cluster.
//!
//! ```text
//! API server ⇄ kube::Client ⇄ one informer a kind, shared by all loops
//!                                ├→ core       garbage, namespaces, service accounts, roles, endpoints, …
//!                                ├→ workloads  Deployment → ReplicaSet → Pod, StatefulSet, DaemonSet, Job, CronJob, …
//!                                ├→ scheduler  Pod → node
//!                                └→ nodes      simulated kubelets, and what follows when one is lost
//! ```
//!
//! Each loop is a small controller of its own: it reads its caches, makes a pure plan and applies it. Loops know nothing of
//! each other; they only watch and command the API server, so a cluster can be stopped at any point and started again.
//!
//! ```no_run
//! use bellerophon_cluster::{Cluster, Level};
//!
//! # async fn example(client: kube::Client) -> Result<(), Box<dyn std::error::Error>> {
//! let mut cluster = Cluster::builder(client).level(Level::Full).nodes(3).start();
//! cluster.ready().await?;
//! cluster.stop().await?;
//! # Ok(())
//! # }
//! ```

#![cfg_attr(
    test,
    expect(
        clippy::type_complexity,
        reason = "tables of cases say what they hold where they stand"
    )
)]

mod cluster; // starting and stopping all of it
mod component; // who the loops are to the server
mod context; // what every loop is given
mod evict; // how a pod is ended for the sake of others
mod fit; // which nodes a pod asks for
mod index; // how loops find what belongs together
mod slim; // what loops read of pods
mod tolerate; // which pods taints concern
mod wake; // something changed, whatever it was

mod core; // what every cluster does
mod nodes; // where pods run
mod scheduler; // which node a pod runs on
mod workloads; // from what people ask for to pods

pub use cluster::{Builder, Cluster, ClusterError, Level};
pub use nodes::{Nodes, UnknownNode};
