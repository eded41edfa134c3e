//! Event handlers: who is notified of changes, one task each.
//! In: a handler queue. Out: calls of one handler, one at a time.
//! Guarantees: a slow or panicking handler delays no other; no call begins after the removal.

use std::{
    marker::PhantomData,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use bellerophon_kinds::{Kind, Object, downcast};
use tokio::{
    sync::watch,
    time::{Instant, Interval, MissedTickBehavior, interval_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    core::Core,
    handler_queue::{Calls, HandlerQueue},
    status::{Status, SyncError},
};
use crate::{
    cached::{CachedObject, DecodedLru},
    key::ObjectKey,
    queue::CauseEvent,
};

/// Calls in a row before other tasks of the thread run.
const CALLS_IN_A_ROW: usize = 64;

/// The shortest resync period, as in client-go.
const RESYNC_PERIOD_MIN: Duration = Duration::from_secs(1);

/// The last known state of a deleted object.
///
/// ```
/// use bellerophon::informer::Tombstone;
/// use k8s_openapi::api::core::v1::Pod;
///
/// /// The node whose capacity the deleted pod used.
/// fn node_of(deleted: &Tombstone<Pod>) -> Option<&str> {
///     let pod = deleted.object.as_ref()?;
///     pod.spec.as_ref()?.node_name.as_deref()
/// }
/// # let key = bellerophon::ObjectKey::namespaced("team-a", "web");
/// # assert_eq!(node_of(&Tombstone { key, object: None }), None);
/// ```
#[derive(Clone, Debug)]
pub struct Tombstone<K> {
    /// The key of the object.
    pub key: ObjectKey,
    /// Its last known state. It may be older than the deletion if a relist found that the object is
    /// missing, and is `None` if the object could never be decoded.
    pub object: Option<Arc<K>>,
}

/// Receives the changes of the cache of a [`SharedInformer`](super::SharedInformer).
///
/// Calls are made one at a time, those of one object in the order of its changes. Changes of one
/// object that accumulate while the handler is busy are merged into one call, from the state it
/// received last to the newest. The cache has the change before the handler is called, and may
/// already be newer. A handler enqueues and returns; it never blocks.
///
/// ```
/// use std::sync::Arc;
///
/// use bellerophon::informer::{EventHandler, SharedInformer, Tombstone};
/// use k8s_openapi::api::core::v1::Pod;
///
/// struct Log;
///
/// impl EventHandler<Pod> for Log {
///     fn on_add(&self, pod: &Arc<Pod>, _in_initial_list: bool) {
///         println!("added {:?}", pod.metadata.name);
///     }
///
///     fn on_update(&self, _old: &Arc<Pod>, new: &Arc<Pod>) {
///         println!("updated {:?}", new.metadata.name);
///     }
///
///     fn on_delete(&self, last: Tombstone<Pod>) {
///         println!("deleted {}", last.key);
///     }
/// }
///
/// fn follow(pods: &SharedInformer<Pod>) {
///     pods.add_event_handler(Log);
/// }
/// ```
pub trait EventHandler<K>: Send + Sync {
    /// An object was added; `in_initial_list` if it existed when the handler was added.
    fn on_add(&self, object: &Arc<K>, in_initial_list: bool);

    /// An object changed. On a resync both are the same.
    fn on_update(&self, old: &Arc<K>, new: &Arc<K>);

    /// An object was deleted, or a relist found that it is missing.
    fn on_delete(&self, last: Tombstone<K>);
}

/// A change of an object, for handlers that need no more than its key.
///
/// ```
/// use bellerophon::informer::{KeyChange, SharedInformer};
/// use bellerophon::queue::CauseEvent;
/// use k8s_openapi::api::core::v1::Pod;
///
/// fn log_deletions(pods: &SharedInformer<Pod>) {
///     pods.add_key_handler(|change: KeyChange<'_>| {
///         if change.event == CauseEvent::Deleted {
///             println!("{} is deleted", change.key);
///         }
///     });
/// }
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange<'a> {
    /// The key of the object.
    pub key: &'a ObjectKey,
    /// Added, updated, deleted or resync.
    pub event: CauseEvent,
    /// Its version after the change; of a deleted object, the last known.
    pub resource_version: Option<String>,
    /// The object existed when the handler was added.
    pub in_initial_list: bool,
}

/// An [`EventHandler`] without its type.
pub(crate) trait ObjectHandler: Send + Sync {
    fn on_add(&self, object: Object, in_initial_list: bool);
    fn on_update(&self, old: Object, new: Object);
    fn on_delete(&self, key: &ObjectKey, last: Object);
}

/// An [`EventHandler`] behind [`ObjectHandler`].
pub(crate) struct Typed<K, H> {
    pub(crate) handler: H,
    pub(crate) kind: PhantomData<fn() -> K>,
}

impl<K: Kind, H: EventHandler<K>> ObjectHandler for Typed<K, H> {
    fn on_add(&self, object: Object, in_initial_list: bool) {
        self.handler.on_add(&downcast(object), in_initial_list);
    }

    fn on_update(&self, old: Object, new: Object) {
        self.handler.on_update(&downcast(old), &downcast(new));
    }

    fn on_delete(&self, key: &ObjectKey, last: Object) {
        self.handler.on_delete(Tombstone {
            key: key.clone(),
            object: Some(downcast(last)),
        });
    }
}

/// A handler, by what it is called with.
pub(crate) enum Handler {
    Objects(Box<dyn ObjectHandler>),
    /// Objects are not decoded for it.
    Keys(Box<dyn Fn(KeyChange<'_>) + Send + Sync>),
}

/// One handler and its queue.
pub(crate) struct Slot {
    pub(crate) handler: Handler,
    pub(crate) queue: HandlerQueue,
    pub(crate) resync_period: Option<Duration>,
    /// Cancelled once the handler may be called. Until then its queue keeps the notifications.
    pub(crate) begun: CancellationToken,
    pub(crate) removed: CancellationToken,
}

impl Slot {
    /// Whether the handler is called as changes occur.
    pub(crate) fn is_served(&self) -> bool {
        self.begun.is_cancelled() && !self.removed.is_cancelled()
    }

    /// Calls the handler once it has begun, until it is removed, or until `finish` and the queue is
    /// empty.
    pub(crate) async fn deliver(self: Arc<Self>, core: Arc<Core>, finish: CancellationToken) {
        tokio::select! {
            biased;
            () = self.begun.cancelled() => {}
            () = self.removed.cancelled() => return,
            () = finish.cancelled() => return,
        }
        // Each handler has its own timer, so periods need not be reconciled with each other as in
        // client-go's sharedProcessor.
        let mut resync = self
            .resync_period
            .filter(|period| !period.is_zero())
            .map(resync_timer);
        loop {
            if !self.drain(&core.lru).await {
                return;
            }
            tokio::select! {
                biased;
                () = self.removed.cancelled() => return,
                () = self.queue.arrival() => {}
                // Reflectors have ended, so what is queued now is the rest.
                () = finish.cancelled() => {
                    self.drain(&core.lru).await;
                    return;
                }
                () = tick(resync.as_mut()) => core.resync(&self),
            }
        }
    }

    /// Whether the handler is still registered once the queue is empty.
    async fn drain(&self, lru: &DecodedLru) -> bool {
        let mut calls = 0;
        while !self.removed.is_cancelled() {
            let Some(notification) = self.queue.take() else {
                return true;
            };
            let key = notification.key.clone();
            let in_initial_list = notification.in_initial_list;
            let call = || self.call(&key, notification.calls(), in_initial_list, lru);
            if catch_unwind(AssertUnwindSafe(call)).is_err() {
                tracing::error!(%key, "an event handler panicked; continuing with the next object");
            }
            // After the call, also if it panicked: has_synced means that handlers returned.
            self.queue.delivered(in_initial_list);
            calls += 1;
            if calls % CALLS_IN_A_ROW == 0 {
                tokio::task::yield_now().await;
            }
        }
        false
    }

    fn call(&self, key: &ObjectKey, calls: Calls, in_initial_list: bool, lru: &DecodedLru) {
        let Calls {
            delete,
            update,
            add,
        } = calls;
        match &self.handler {
            Handler::Objects(handler) => {
                if let Some(last) = delete {
                    handler.on_delete(key, last.read(lru));
                }
                if let Some((old, new)) = update {
                    handler.on_update(old.read(lru), new.read(lru));
                }
                if let Some(object) = add {
                    handler.on_add(object.read(lru), in_initial_list);
                }
            }
            Handler::Keys(handler) => {
                // The version is read from the JSON; nothing is decoded for a handler of keys.
                let call = |event, object: CachedObject, in_initial_list| {
                    handler(KeyChange {
                        key,
                        event,
                        resource_version: object.resource_version(),
                        in_initial_list,
                    });
                };
                if let Some(last) = delete {
                    call(CauseEvent::Deleted, last, false);
                }
                if let Some((old, new)) = update {
                    let is_resync = old.is_same_version(&new);
                    let event = if is_resync {
                        CauseEvent::Resync
                    } else {
                        CauseEvent::Updated
                    };
                    call(event, new, false);
                }
                if let Some(object) = add {
                    call(CauseEvent::Added, object, in_initial_list);
                }
            }
        }
    }
}

fn resync_timer(period: Duration) -> Interval {
    let period = period.max(RESYNC_PERIOD_MIN);
    let mut timer = interval_at(Instant::now() + period, period);
    // A slow handler must not be given the resyncs that it missed.
    timer.set_missed_tick_behavior(MissedTickBehavior::Delay);
    timer
}

async fn tick(timer: Option<&mut Interval>) {
    match timer {
        Some(timer) => {
            timer.tick().await;
        }
        None => std::future::pending().await,
    }
}

/// The registration of a handler. Dropping it changes nothing: the handler stays until
/// [`HandlerRegistration::remove`].
///
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicUsize, Ordering};
///
/// # use bellerophon::informer::{FactoryOptions, InformerOptions, SharedInformerFactory};
/// # use k8s_openapi::api::core::v1::Namespace;
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let server = bellerophon_apiserver::ApiServer::builder().start().await?;
/// # let client = server.client();
/// # let informers = SharedInformerFactory::start(client, FactoryOptions::default());
/// # let namespaces = informers.informer::<Namespace>(InformerOptions::default());
/// let seen = Arc::new(AtomicUsize::new(0));
/// let counter = seen.clone();
/// let registration = namespaces.add_key_handler(move |_| {
///     counter.fetch_add(1, Ordering::SeqCst);
/// });
///
/// registration.wait_for_cache_sync().await?;
/// assert_eq!(seen.load(Ordering::SeqCst), namespaces.lister().len());
/// registration.remove();
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct HandlerRegistration {
    pub(crate) name: String,
    pub(crate) status: watch::Receiver<Status>,
    pub(crate) synced: watch::Receiver<bool>,
    pub(crate) depth: Arc<AtomicUsize>,
    pub(crate) removed: CancellationToken,
}

impl HandlerRegistration {
    /// Whether the handler returned from every object of the initial list.
    pub fn has_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Waits until the handler returned from every object of the initial list.
    ///
    /// # Errors
    /// The informer cannot list for a reason that a retry does not resolve, or it stopped, or the
    /// handler was removed.
    pub async fn wait_for_cache_sync(&self) -> Result<(), SyncError> {
        let mut status = self.status.clone();
        let mut synced = self.synced.clone();
        // First whether listing is possible at all: a handler without permission would wait
        // forever.
        Status::settled(&self.name, &mut status).await?;
        let stopped = || SyncError::Stopped {
            resource: self.name.clone(),
        };
        tokio::select! {
            biased;
            delivered = synced.wait_for(|synced| *synced) => {
                delivered.map(|_| ()).map_err(|_| stopped())
            }
            () = self.removed.cancelled() => Err(stopped()),
        }
    }

    /// Waits for the same, despite any problem; forever if the informer stops.
    pub(crate) async fn synced(&self) {
        if self
            .synced
            .clone()
            .wait_for(|synced| *synced)
            .await
            .is_err()
        {
            std::future::pending::<()>().await;
        }
    }

    /// Objects with a change that the handler has not received yet.
    pub fn backlog(&self) -> usize {
        self.depth.load(Ordering::Relaxed)
    }

    /// Removes the handler: no call begins afterwards; one that is running ends by itself.
    /// Repeating it is harmless.
    pub fn remove(&self) {
        self.removed.cancel();
    }
}
