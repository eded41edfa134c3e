//! Monitors: one watch of metadata for every kind that can be deleted, as kinds come and go.
//!
//! In: what the server serves. Out: every change of every object, told to the collector.
//! Holds: a kind that cannot be watched holds up no other; a kind that is no longer served is no longer watched.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use bellerophon::{
    CacheForm, EventHandler, HandlerHandle, HandlerOptions, InformerLease, InformerOptions,
    SharedInformerFactory, Tombstone, Transform,
};
use kube::ResourceExt;
use kube::core::{DynamicObject, PartialObjectMeta};
use tokio::time::timeout;

use super::Collector;
use crate::core::kinds::{Kind, Kinds};

/// How long new monitors may take to fill before the collector goes on without them.
const SYNC_MAX: Duration = Duration::from_secs(30);

/// Kinds whose objects own nothing and belong to nobody, as upstream: too many to be worth a graph.
const IGNORED: [(&str, &str); 2] = [("", "events"), ("events.k8s.io", "events")];

/// An object as the collector needs it.
type Metadata = PartialObjectMeta<DynamicObject>;

struct Monitor {
    _lease: InformerLease<Metadata>,
    handle: HandlerHandle,
}

/// The running monitors, by kind.
pub(super) struct Monitors {
    factory: SharedInformerFactory,
    running: HashMap<Arc<Kind>, Monitor>,
}

impl Monitors {
    /// None yet. Somebody runs the factory.
    pub(super) fn new(factory: SharedInformerFactory) -> Self {
        Self {
            factory,
            running: HashMap::new(),
        }
    }

    /// Watches these kinds and no others, and waits until new ones are known.
    pub(super) async fn follow(&mut self, kinds: &Kinds, collector: &Arc<Collector>) {
        let wanted = |kind: &Arc<Kind>| kinds.deletable.contains(kind);
        let unserved: Vec<_> = self
            .running
            .keys()
            .filter(|kind| !wanted(kind))
            .cloned()
            .collect();
        for kind in unserved {
            if let Some(monitor) = self.running.remove(&kind) {
                monitor.handle.remove();
            }
            tracing::debug!(
                kind = kind.group_resource(),
                "no longer served, no longer watched"
            );
            collector.forget_kind(&kind);
        }
        let mut new = Vec::new();
        for kind in kinds.deletable.iter().filter(|kind| !is_ignored(kind)) {
            if !self.running.contains_key(kind) {
                let monitor = self.monitor(kind, collector);
                new.push((kind.clone(), monitor.handle.clone()));
                self.running.insert(kind.clone(), monitor);
            }
        }
        for (kind, handle) in new {
            match timeout(SYNC_MAX, handle.wait_for_sync()).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!(%error, "garbage of this kind is not collected"),
                Err(_) => tracing::warn!(
                    kind = kind.group_resource(),
                    "not listed in time, garbage is collected without it"
                ),
            }
        }
    }

    fn monitor(&self, kind: &Arc<Kind>, collector: &Arc<Collector>) -> Monitor {
        let transform = Transform::by(|object: &mut Metadata| {
            object.managed_fields_mut().clear();
            object.labels_mut().clear();
            object.annotations_mut().clear();
        });
        let options = InformerOptions {
            transform,
            cache: CacheForm::Decoded,
            ..InformerOptions::default()
        };
        let lease = self
            .factory
            .cluster_informer::<Metadata>(kind.resource.clone(), options);
        let teller = Teller {
            kind: kind.clone(),
            collector: collector.clone(),
        };
        let handle = lease.add_handler(teller, HandlerOptions::default());
        Monitor {
            _lease: lease,
            handle,
        }
    }
}

fn is_ignored(kind: &Kind) -> bool {
    IGNORED.contains(&(&*kind.resource.group, &*kind.resource.plural))
}

/// Tells the collector of every change of one kind.
struct Teller {
    kind: Arc<Kind>,
    collector: Arc<Collector>,
}

impl EventHandler<Metadata> for Teller {
    fn on_add(&self, object: &Arc<Metadata>, _: bool) {
        self.collector.applied(&self.kind, &object.metadata);
    }

    fn on_update(&self, _: &Arc<Metadata>, new: &Arc<Metadata>) {
        self.collector.applied(&self.kind, &new.metadata);
    }

    fn on_delete(&self, last: Tombstone<Metadata>) {
        if let Some(uid) = last.object.and_then(|object| object.uid()) {
            self.collector.deleted(&uid);
        }
    }
}
