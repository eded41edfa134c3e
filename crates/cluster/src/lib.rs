//! The controllers of a Kubernetes control plane, its scheduler and simulated nodes.
//!
//! ```text
//! API server ⇄ kube::Client ⇄ one shared informer per kind
//!    ├→ core       garbage collector, namespace, service account, cluster roles, endpoints, …
//!    ├→ workloads  Deployment → ReplicaSet → Pod, StatefulSet, DaemonSet, Job, autoscaler, …
//!    ├→ scheduler  binds pods to nodes
//!    ├→ nodes      simulated kubelets, node lifecycle, taint eviction, pod garbage collection
//!    └→ metrics server
//! ```
//!
//! Each controller reads its caches, computes a plan without IO and applies it. Controllers do not
//! call each other; they communicate through the API server, so a cluster can be stopped at any
//! point and started again.
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
        reason = "the types of test tables are written where they are used"
    )
)]

mod cluster; // starts and stops all controllers
mod component; // user agents of the controllers
mod identity; // users and permissions of the controllers

mod api_errors; // classification of API errors
mod evict; // DisruptionTarget condition and delete
mod host_ports; // host ports of pods and their conflicts
mod index; // shared informers and indexes
mod label_selector; // label selectors in text form
mod node_affinity; // node selector and node affinity
mod notify; // event handler that notifies a task
mod quantity; // parsing and canonical form of quantities
mod taints; // taints and tolerations
mod tls; // certificates of servers, and accepted clients
mod trim; // cache transform for pods

mod core; // controllers of every level
mod metrics_server; // metrics.k8s.io
mod nodes; // simulated nodes and node lifecycle
mod scheduler; // binds pods to nodes
mod workloads; // Deployment, ReplicaSet, StatefulSet, DaemonSet, Job, CronJob, autoscaler

pub use cluster::{Builder, Cluster, ClusterError, Level};
pub use identity::{Identity, rbac_objects};
pub use nodes::{KubeletSockets, Kubelets, Nodes, ProcessNodes, UnknownNode};
