//! Workloads: kinds with a pod template.
//! In: their objects that are written. Out: defaulted and validated ones, one strategy per kind.

mod cron_job; // jobs on a schedule
mod daemon_set; // a pod on every node
mod deployment; // replicas, rolled out
mod job; // pods that run to completion
mod job_policy; // policies of jobs
mod job_status; // updates of the status of jobs
mod job_update; // updates of jobs
mod replicas; // ReplicaSets and ReplicationControllers
mod revision; // ControllerRevisions
mod rollout; // counts and percentages, strategies
mod stateful_set; // replicas with names and claims
mod template; // pod templates, inside others and alone

pub use cron_job::CRON_JOB;
pub use daemon_set::DAEMON_SET;
pub use deployment::DEPLOYMENT;
pub use job::JOB;
pub use replicas::{REPLICA_SET, REPLICATION_CONTROLLER};
pub use revision::CONTROLLER_REVISION;
pub use stateful_set::STATEFUL_SET;
pub use template::POD_TEMPLATE;

#[cfg(test)]
mod tests;
