//! Workload controllers: Deployment, ReplicaSet, ReplicationController, StatefulSet, DaemonSet,
//! Job, CronJob, PodDisruptionBudget and HorizontalPodAutoscaler.
//!
//! Each controller reads its caches, computes a plan without IO and applies it. Shared modules are
//! listed first.

mod api_writer; // writes of one reconcile
mod batch; // bursts of concurrent requests
mod claim; // adoption and release of children
mod counts; // counts in status fields
mod deletion_order; // which pods are deleted first on scale-down
mod enqueue; // owners affected by a change of a child
mod events; // constructors of events
mod int_or_percent; // values such as `25%`
mod pod_control; // creates and deletes pods with events
mod pods; // status of pods
mod revision; // ControllerRevisions
mod template; // pods and hashes of pod templates

mod cron_job; // CronJob controller
mod daemon_set; // DaemonSet controller
mod deployment; // Deployment controller
mod disruption; // PodDisruptionBudget controller
mod horizontal_pod_autoscaler; // HorizontalPodAutoscaler controller
mod job; // Job controller
mod replica_set; // ReplicaSet and ReplicationController controllers
mod stateful_set; // StatefulSet controller

#[cfg(test)]
mod test_objects; // builders of test objects

use bellerophon::manager::Manager;

/// Adds the workload controllers.
pub(crate) fn setup(mgr: &mut Manager) {
    deployment::setup(mgr);
    daemon_set::setup(mgr);
    stateful_set::setup(mgr);
    replica_set::setup(mgr);
    job::setup(mgr);
    cron_job::setup(mgr);
    disruption::setup(mgr);
    horizontal_pod_autoscaler::setup(mgr);
}
