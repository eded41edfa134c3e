//! Prepare: from what a source hands over to what a cache keeps.
//! In: objects of a source. Out: the same, transformed and in the form of the cache.
//! Holds: an object on which the transform panics is passed over like one that cannot be decoded; both are counted and
//! reported.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering},
};

use kube::{Resource, ResourceExt};

use crate::{
    cached::Cached,
    fifo::Arrival,
    informer::{CacheForm, Change, core::Core},
    key::ObjectKey,
    source::{Page, Received, SourceEvent, Undecodable},
};

pub(crate) struct Prepare<K> {
    pub(crate) core: Arc<Core<K>>,
    pub(crate) transform: Change<K>,
    pub(crate) form: CacheForm,
}

impl<K: Resource + Send + Sync + 'static> Prepare<K> {
    pub(super) fn page(&self, page: Page<Received<K>>) -> Page<Arrival<K>> {
        let Page {
            objects,
            mut undecodable,
            resource_version,
            continue_token,
        } = page;
        let mut arrivals = Vec::with_capacity(objects.len());
        for object in objects {
            match self.arrival(object) {
                Ok(arrival) => arrivals.push(arrival),
                Err(failure) => undecodable.push(failure),
            }
        }
        undecodable
            .iter()
            .for_each(|undecodable| self.report(undecodable));
        Page {
            objects: arrivals,
            undecodable,
            resource_version,
            continue_token,
        }
    }

    pub(super) fn event(&self, event: SourceEvent<Received<K>>) -> SourceEvent<Arrival<K>> {
        let event = match event {
            SourceEvent::Applied(object) => self
                .arrival(object)
                .map_or_else(SourceEvent::Undecodable, SourceEvent::Applied),
            SourceEvent::Deleted {
                key,
                object,
                resource_version,
            } => {
                let last = object.and_then(|object| self.transformed(object).ok());
                let object = last.map(|last| Arrival {
                    key: key.clone(),
                    object: Cached::decoded(last.into_object()),
                });
                SourceEvent::Deleted {
                    key,
                    object,
                    resource_version,
                }
            }
            SourceEvent::Bookmark {
                resource_version,
                ends_initial_events,
            } => SourceEvent::Bookmark {
                resource_version,
                ends_initial_events,
            },
            SourceEvent::Undecodable(undecodable) => SourceEvent::Undecodable(undecodable),
        };
        if let SourceEvent::Undecodable(undecodable) = &event {
            self.report(undecodable);
        }
        event
    }

    fn arrival(&self, object: Received<K>) -> Result<Arrival<K>, Undecodable> {
        let key = ObjectKey::of(&*object);
        let Received { object, json } = self.transformed(object)?;
        let object = match (self.form, json) {
            (CacheForm::Compact { .. }, Some(json)) => {
                Cached::compact(json, object, &self.core.warm)
            }
            _ => Cached::decoded(object),
        };
        Ok(Arrival { key, object })
    }

    fn transformed(&self, mut received: Received<K>) -> Result<Received<K>, Undecodable> {
        match &self.transform {
            Change::None => Ok(received),
            // A source that leaves them out itself has nothing left to drop here.
            Change::StripManagedFields if received.managed_fields().is_empty() => Ok(received),
            Change::StripManagedFields => {
                received.object.managed_fields_mut().clear();
                Ok(received.into_object().into())
            }
            Change::By { function, repack } => {
                let (key, resource_version) =
                    (Some(ObjectKey::of(&*received)), received.resource_version());
                match catch_unwind(AssertUnwindSafe(|| function(&mut received.object))) {
                    Ok(()) if self.form == CacheForm::Decoded => Ok(received.into_object().into()),
                    Ok(()) => Ok(repack(received.into_object())),
                    Err(_) => Err(Undecodable {
                        key,
                        resource_version,
                        reason: "its transform panicked".into(),
                    }),
                }
            }
        }
    }

    fn report(&self, undecodable: &Undecodable) {
        self.core
            .counters
            .undecodable
            .fetch_add(1, Ordering::Relaxed);
        let object = undecodable.key.as_ref().map(tracing::field::display);
        tracing::warn!(
            kind = self.core.what,
            object,
            reason = undecodable.reason,
            "passing over an object that cannot be decoded"
        );
    }
}
