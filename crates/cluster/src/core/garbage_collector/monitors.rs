//! Monitors: one metadata informer per deletable resource.
//!
//! Input: the served resources. Output: watch events, delivered to the collector.
//! Guarantees: a resource that cannot be listed does not block others; the monitor of a resource
//! that is no longer served is stopped.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bellerophon::informer::{
    CacheMode, EventHandler, HandlerRegistration, InformerOptions, Namespaces, SharedInformer,
    SharedInformerFactory, Tombstone, Transform,
};
use kube::ResourceExt;
use kube::core::{DynamicObject, PartialObjectMeta};
use tokio::time::timeout;

use super::GarbageCollector;
use crate::core::discovery::{ServedResource, ServedResources};

/// Sync timeout of new monitors. The collector continues without a monitor that is not synced.
const SYNC_TIMEOUT: Duration = Duration::from_secs(30);

/// Resources without a monitor. Mirrors DefaultIgnoredResources.
const IGNORED_RESOURCES: [(&str, &str); 2] = [("", "events"), ("events.k8s.io", "events")];

/// Objects are watched as `PartialObjectMetadata`.
type Metadata = PartialObjectMeta<DynamicObject>;

struct Monitor {
    /// Runs while it is here.
    _informer: SharedInformer<Metadata>,
    handler: HandlerRegistration,
}

/// The running monitors, by resource.
pub(super) struct Monitors {
    informers: SharedInformerFactory,
    running: HashMap<Arc<ServedResource>, Monitor>,
}

impl Monitors {
    /// No monitors yet.
    pub(super) fn new(informers: SharedInformerFactory) -> Self {
        Self {
            informers,
            running: HashMap::new(),
        }
    }

    /// Starts monitors of new resources, stops those of resources no longer served, and waits until
    /// the new ones are synced. Mirrors GarbageCollector.Sync and syncMonitors.
    pub(super) async fn sync(
        &mut self,
        served: &ServedResources,
        collector: &Arc<GarbageCollector>,
    ) {
        let unserved: Vec<_> = self
            .running
            .keys()
            .filter(|resource| !served.deletable.contains(resource))
            .cloned()
            .collect();
        for resource in unserved {
            if let Some(monitor) = self.running.remove(&resource) {
                // The handler first: an event of the stopping informer must not add an object
                // again.
                monitor.handler.remove();
            }
            tracing::debug!(
                resource = resource.group_resource(),
                "resource is no longer served, monitor stopped"
            );
            collector.remove_resource(&resource);
        }
        let mut new = Vec::new();
        for resource in &served.deletable {
            if !is_ignored(resource) && !self.running.contains_key(resource) {
                let monitor = self.start_monitor(resource, collector);
                new.push((resource.clone(), monitor.handler.clone()));
                self.running.insert(resource.clone(), monitor);
            }
        }
        for (resource, handler) in new {
            let resource = resource.group_resource();
            match timeout(SYNC_TIMEOUT, handler.wait_for_cache_sync()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => {
                    tracing::warn!(resource, %error, "monitor failed, resource is ignored");
                }
                Err(_) => {
                    tracing::warn!(
                        resource,
                        "monitor not synced in time, continuing without it"
                    );
                }
            }
        }
    }

    fn start_monitor(
        &self,
        resource: &Arc<ServedResource>,
        collector: &Arc<GarbageCollector>,
    ) -> Monitor {
        // The graph needs identity, owners, finalizers and the deletion timestamp of every object
        // in the cluster; the rest would multiply its memory.
        let transform = Transform::new(|object: &mut Metadata| {
            object.managed_fields_mut().clear();
            object.labels_mut().clear();
            object.annotations_mut().clear();
        });
        let informer = self.informers.informer::<Metadata>(InformerOptions {
            transform: Some(transform),
            cache_mode: Some(CacheMode::Decoded),
            namespaces: Some(Namespaces::All),
            ..InformerOptions::resource(resource.api_resource.clone())
        });
        let handler = informer.add_event_handler(GraphEventHandler {
            resource: resource.clone(),
            collector: collector.clone(),
        });
        Monitor {
            _informer: informer,
            handler,
        }
    }
}

fn is_ignored(resource: &ServedResource) -> bool {
    let resource = &resource.api_resource;
    IGNORED_RESOURCES.contains(&(&*resource.group, &*resource.plural))
}

/// Delivers the watch events of one resource to the collector.
struct GraphEventHandler {
    resource: Arc<ServedResource>,
    collector: Arc<GarbageCollector>,
}

impl EventHandler<Metadata> for GraphEventHandler {
    fn on_add(&self, object: &Arc<Metadata>, _: bool) {
        self.collector.applied(&self.resource, &object.metadata);
    }

    fn on_update(&self, _: &Arc<Metadata>, new: &Arc<Metadata>) {
        self.collector.applied(&self.resource, &new.metadata);
    }

    fn on_delete(&self, last: Tombstone<Metadata>) {
        if let Some(uid) = last.object.and_then(|object| object.uid()) {
            self.collector.deleted(&uid);
        }
    }
}
