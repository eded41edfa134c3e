//! Scheduler: assigns pods to nodes.
//!
//! In: pods without a node, nodes, assigned pods. Out: bindings; conditions and events of
//! unschedulable pods; evictions of preemption victims.
//! Guarantees: scheduling cycles run one at a time, each on a cache that contains all earlier
//! assignments; binding cycles run concurrently, and a failed binding is undone in the cache.

mod cache; // nodes and their pods, with aggregates
mod pod_info; // scheduling information of pods
mod resources; // requests and allocatable
mod selectors; // node selectors and pod selectors

mod event_handlers; // informer events into the state
mod queue; // active, back-off and unschedulable pods
mod state; // cache, queue and assumed pods

mod diagnosis; // why nodes are not feasible
mod filter; // filter plugins
mod pdb; // disruption budgets
mod preemption; // victims for a pod of higher priority
mod scheduling_cycle; // filter, score, select a node
mod score; // score plugins
mod volume_binding; // node affinity of volumes

mod actions; // bindings, conditions, evictions
#[cfg(test)]
mod tests; // scheduling cycles on small clusters

use std::sync::Arc;

use bellerophon::clock::Rng;
use bellerophon::informer::{InformerOptions, Lister};
use bellerophon::manager::Manager;
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use k8s_openapi::api::storage::v1::StorageClass;
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};
use tokio_util::sync::CancellationToken;

use self::actions::Actions;
use self::event_handlers::EventHandlers;
use self::pod_info::PendingPod;
use self::scheduling_cycle::{CycleInputs, ScheduleResult, schedule_pod};
use self::state::SharedState;
use self::volume_binding::VolumeBinding;
use crate::component::Component;
use crate::index;

pub(crate) use self::resources::pod_requests;

/// The maximum number of concurrent actions. At the limit no scheduling cycle starts.
const MAX_CONCURRENT_ACTIONS: usize = 32;

/// Scheduling cycles between two yields to other tasks of the thread.
const CYCLES_PER_YIELD: usize = 8;

/// Adds the scheduler to the manager.
pub(crate) fn setup(mgr: &mut Manager) {
    let state = Arc::new(SharedState::default());
    let handlers = EventHandlers {
        state: state.clone(),
        trace: mgr.trace().clone(),
    };
    let pods = index::pods(mgr);
    let namespaces = mgr.informer::<Namespace>(InformerOptions::default());
    let nodes = mgr.informer::<Node>(InformerOptions::default());
    let volumes = mgr.informer::<PersistentVolume>(InformerOptions::default());
    let claims = mgr.informer::<PersistentVolumeClaim>(InformerOptions::default());
    let registrations = [
        namespaces.add_event_handler(handlers.clone()),
        nodes.add_event_handler(handlers.clone()),
        volumes.add_event_handler(handlers.clone()),
        claims.add_event_handler(handlers.clone()),
        pods.add_event_handler(handlers),
    ];
    let scheduler = Scheduler {
        actions: Arc::new(Actions {
            client: Component::Scheduler.client(mgr, pod_info::SCHEDULER_NAME),
            clock: mgr.clock(),
            recorder: Component::Scheduler.recorder(mgr, pod_info::SCHEDULER_NAME),
            pods: pods.lister(),
            state: state.clone(),
            trace: mgr.trace().clone(),
        }),
        state,
        volumes: VolumeBinding {
            claims: claims.lister(),
            volumes: volumes.lister(),
            classes: mgr.lister::<StorageClass>(),
        },
        budgets: mgr.lister::<PodDisruptionBudget>(),
        rng: mgr.rng().clone(),
    };
    mgr.add("scheduler", async move |stop: CancellationToken| {
        // Cycles must not start on a partial cache.
        for registration in registrations {
            let synced = registration.wait_for_cache_sync();
            match stop.run_until_cancelled(synced).await {
                None => return Ok(()),
                Some(synced) => synced?,
            }
        }
        scheduler.run(stop).await;
        Ok(())
    });
}

struct Scheduler {
    state: Arc<SharedState>,
    actions: Arc<Actions>,
    volumes: VolumeBinding,
    budgets: Lister<PodDisruptionBudget>,
    rng: Rng,
}

impl Scheduler {
    /// Runs scheduling cycles until cancelled, then waits for the running actions.
    async fn run(&self, stop: CancellationToken) {
        let mut running = JoinSet::new();
        loop {
            for _ in 0..CYCLES_PER_YIELD {
                if running.len() >= MAX_CONCURRENT_ACTIONS {
                    break;
                }
                let Some((pending, result)) = self.schedule_one() else {
                    break;
                };
                let actions = self.actions.clone();
                running.spawn(async move { actions.run(pending, result).await });
            }
            let has_capacity = running.len() < MAX_CONCURRENT_ACTIONS;
            // In a separate block, so that the lock is released before the await below.
            let (has_ready_pods, deadline) = {
                let state = self.state.lock();
                let has_ready_pods = state.queue.has_ready_pods(Instant::now());
                (has_ready_pods, state.queue.next_deadline())
            };
            tokio::select! {
                // Finished actions first: they permit new cycles.
                biased;
                () = stop.cancelled() => break,
                Some(joined) = running.join_next() => {
                    log_join_error(joined);
                    while let Some(joined) = running.try_join_next() {
                        log_join_error(joined);
                    }
                }
                () = tokio::task::yield_now(), if has_ready_pods && has_capacity => {}
                () = self.state.changed.notified() => {}
                () = sleep_until(deadline.unwrap_or_else(Instant::now)), if deadline.is_some() => {}
            }
        }
        while let Some(joined) = running.join_next().await {
            log_join_error(joined);
        }
    }

    /// Runs the scheduling cycle of the next pod, if there is one, and applies the result to the
    /// state. Mirrors `ScheduleOne` up to the binding cycle.
    fn schedule_one(&self) -> Option<(Arc<PendingPod>, ScheduleResult)> {
        let mut state = self.state.lock();
        let state = &mut *state;
        let pending = state.queue.pop(Instant::now())?;
        let inputs = CycleInputs {
            volume_selectors: self.volumes.node_selectors(&pending),
            budgets: &self.budgets,
            rng: &self.rng,
        };
        let result = schedule_pod(&mut state.cache, &pending, &inputs);
        match &result {
            // Under the same lock as the decision: the next cycle must see these resources as used.
            ScheduleResult::Scheduled { node } => state.assume_pod(&pending, node),
            ScheduleResult::Unschedulable(error) => {
                state.handle_fit_error(&pending, error, Instant::now());
            }
        }
        Some((pending, result))
    }
}

/// Logs an action that panicked. Its pod stays in flight until the next update of the pod.
fn log_join_error(joined: Result<(), JoinError>) {
    if let Err(error) = joined {
        tracing::error!(%error, "scheduler action panicked");
    }
}
