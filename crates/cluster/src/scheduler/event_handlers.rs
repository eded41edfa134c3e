//! Event handlers: keep the scheduler's cache and queue up to date from informers.
//!
//! In: events of pods, nodes, namespaces, volumes and claims. Out: updates of the shared state and
//! queueing hints for unschedulable pods.

use std::sync::Arc;

use bellerophon::ObjectKey;
use bellerophon::informer::{EventHandler, Tombstone};
use bellerophon::trace::{Trace, TraceEvent};
use k8s_openapi::api::core::v1::{Namespace, Node, PersistentVolume, PersistentVolumeClaim, Pod};
use kube::ResourceExt;
use tokio::time::Instant;

use super::diagnosis::UnschedulableReasons;
use super::pod_info::SCHEDULER_NAME;
use super::resources::Resources;
use super::state::{SharedState, is_responsible_for, is_terminated, is_terminating};

/// Applies informer events to the shared state.
#[derive(Clone)]
pub(crate) struct EventHandlers {
    pub(crate) state: Arc<SharedState>,
    pub(crate) trace: Trace,
}

impl EventHandlers {
    /// Records in the trace that a pod was added to the scheduling queue.
    fn trace_enqueued(&self, pod: &Pod) {
        let is_unassigned = pod
            .spec
            .as_ref()
            .is_none_or(|spec| spec.node_name.is_none());
        if is_unassigned && is_responsible_for(pod) && !is_terminating(pod) && !is_terminated(pod) {
            self.trace.record(|| TraceEvent::Enqueued {
                controller: SCHEDULER_NAME.into(),
                key: ObjectKey::from_object(pod),
                cause_kind: "Pod".into(),
                cause_key: ObjectKey::from_object(pod),
                cause_version: pod.resource_version(),
            });
        }
    }
}

impl EventHandler<Pod> for EventHandlers {
    fn on_add(&self, pod: &Arc<Pod>, _: bool) {
        self.trace_enqueued(pod);
        self.state
            .update(|state| state.update_pod(pod, Instant::now()));
    }

    fn on_update(&self, old: &Arc<Pod>, new: &Arc<Pod>) {
        let is_same = old.spec == new.spec
            && old.metadata.labels == new.metadata.labels
            && is_terminating(old) == is_terminating(new)
            && is_terminated(old) == is_terminated(new);
        // Most updates change only the status, which scheduling does not depend on.
        if !is_same {
            self.trace_enqueued(new);
            self.state.update(|state| {
                if !state.confirm_assumed_pod(new) {
                    state.update_pod(new, Instant::now());
                }
            });
        }
    }

    fn on_delete(&self, last: Tombstone<Pod>) {
        if let Some(uid) = last.object.and_then(|pod| pod.uid()) {
            self.state.update(|state| state.delete_pod(&uid));
        }
    }
}

impl EventHandler<Node> for EventHandlers {
    fn on_add(&self, node: &Arc<Node>, _: bool) {
        self.state.update(|state| {
            state.cache.update_node(node.clone());
            // A new node can resolve every reason.
            state.queue.record_event(UnschedulableReasons::ALL);
        });
    }

    fn on_update(&self, old: &Arc<Node>, new: &Arc<Node>) {
        let resolves = resolved_by_node_update(old, new);
        self.state.update(|state| {
            state.cache.update_node(new.clone());
            state.queue.record_event(resolves);
        });
    }

    fn on_delete(&self, last: Tombstone<Node>) {
        self.state.update(|state| {
            state.cache.remove_node(last.key.name());
            // With fewer domains the global minimum of a spread constraint may be higher.
            state
                .queue
                .record_event(UnschedulableReasons::TOPOLOGY_SPREAD);
        });
    }
}

impl EventHandler<Namespace> for EventHandlers {
    fn on_add(&self, namespace: &Arc<Namespace>, _: bool) {
        let labels = namespace.metadata.labels.clone().unwrap_or_default();
        self.state.update(|state| {
            state
                .cache
                .set_namespace_labels(namespace.name_any(), Some(labels));
        });
    }

    fn on_update(&self, _: &Arc<Namespace>, new: &Arc<Namespace>) {
        self.on_add(new, false);
    }

    fn on_delete(&self, last: Tombstone<Namespace>) {
        self.state.update(|state| {
            state
                .cache
                .set_namespace_labels(last.key.name().to_owned(), None);
        });
    }
}

// A deleted volume or claim makes no pod schedulable, so deletions are ignored.
macro_rules! volume_event_handlers {
    ($($kind:ty),*) => {$(
        impl EventHandler<$kind> for EventHandlers {
            fn on_add(&self, _: &Arc<$kind>, _: bool) {
                let resolves = UnschedulableReasons::UNBOUND_VOLUMES
                    .union(UnschedulableReasons::VOLUME_NODE_AFFINITY);
                self.state.update(|state| state.queue.record_event(resolves));
            }

            fn on_update(&self, _: &Arc<$kind>, new: &Arc<$kind>) {
                self.on_add(new, false);
            }

            fn on_delete(&self, _: Tombstone<$kind>) {}
        }
    )*};
}

volume_event_handlers!(PersistentVolume, PersistentVolumeClaim);

/// The reasons that an update of a node can resolve. Mirrors `NodeSchedulingPropertiesChange`.
fn resolved_by_node_update(old: &Node, new: &Node) -> UnschedulableReasons {
    let allocatable = |node: &Node| {
        Resources::from_list(
            node.status
                .as_ref()
                .and_then(|status| status.allocatable.as_ref()),
        )
    };
    // spec.unschedulable has the same effect as its taint.
    let taints = |node: &Node| {
        node.spec
            .as_ref()
            .map(|spec| (spec.taints.clone(), spec.unschedulable))
    };
    let allocatable_changed = allocatable(old) != allocatable(new);
    let labels_changed = old.metadata.labels != new.metadata.labels;
    let taints_changed = taints(old) != taints(new);
    UnschedulableReasons::RESOLVED_BY_NODE_ALLOCATABLE
        .when(allocatable_changed)
        .union(UnschedulableReasons::RESOLVED_BY_NODE_LABEL.when(labels_changed))
        .union(UnschedulableReasons::RESOLVED_BY_NODE_TAINT.when(taints_changed))
}
