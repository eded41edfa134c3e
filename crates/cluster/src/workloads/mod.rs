//! Workloads: from what people ask for to pods.
//!
//! In: Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs, CronJobs, disruption budgets, pods. Out: pods and statuses.
//! Each loop reads its caches, makes a pure plan and applies it; what they share stands first.

mod batch; // many requests, few at first
mod claim; // which objects belong to an owner
mod hand; // writes
mod note; // what people are told
mod pod_control; // creating and deleting pods
mod pods; // what a loop asks of a pod
mod rank; // which pods go first
mod revision; // templates to go back to
mod share; // numbers in percent
mod template; // pods made from templates
mod wake; // whom a change concerns

mod cron_job; // jobs at their times
mod daemon_set; // one pod on every node
mod deployment; // one template at a time, rolled out
mod disruption; // how many pods may be taken away
mod job; // pods that are to end well
mod replica_set; // so many equal pods
mod stateful_set; // members with names and storage

#[cfg(test)]
mod samples; // objects for tests

use crate::context::{Context, Loop};

/// The loops of this level, in the order in which they start.
pub(crate) fn controllers(ctx: &Context) -> Vec<Loop> {
    vec![
        deployment::controller(ctx),
        daemon_set::controller(ctx),
        stateful_set::controller(ctx),
        replica_set::replica_sets(ctx),
        replica_set::replication_controllers(ctx),
        job::controller(ctx),
        cron_job::controller(ctx),
        disruption::controller(ctx),
    ]
}
