//! Workloads: kinds that make pods from a template.
//! In: their objects on the way into storage. Out: complete and checked ones, one strategy a kind.

mod cron_job; // jobs at given times
mod daemon_set; // a pod on every node
mod deployment; // replicas, rolled out
mod job; // work that ends
mod job_policy; // when pods of a job count as failed, when the job as done
mod job_status; // what a job's controller may say
mod job_update; // what may change in a job
mod replicas; // ReplicaSets and ReplicationControllers
mod revision; // past templates
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
