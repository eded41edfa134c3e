//! Handlers: who is told what changed, one task each.
//! In: a mailbox. Out: calls of one handler, one at a time.
//! Holds: a slow or panicking handler delays and ends nobody but itself; after removal no call begins.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{
    sync::watch,
    time::{Instant, Interval, MissedTickBehavior, interval_at},
};
use tokio_util::sync::CancellationToken;

use super::{
    core::Core,
    mailbox::{Calls, Mailbox},
    status::{Status, SyncError},
};
use crate::{
    CauseEvent,
    cached::{Cached, Warm},
    key::ObjectKey,
};
use kube::Resource;

/// Calls in a row before other tasks of the thread get their turn.
const CALLS_IN_A_ROW: usize = 64;

/// The shortest resync, as in client-go.
const RESYNC_MIN: Duration = Duration::from_secs(1);

/// The last that is known of a deleted object.
#[derive(Clone, Debug)]
pub struct Tombstone<K> {
    /// Which object.
    pub key: ObjectKey,
    /// Its last known form. It may be older than the deletion when that was found by a relist, and `None` when the
    /// object was never readable.
    pub object: Option<Arc<K>>,
}

/// Is told what changed in the cache of a [`SharedInformer`](crate::SharedInformer).
///
/// Calls come one at a time, those of one object in the order of its changes. Changes that a handler was too slow to be
/// told apart come as one, from the object it saw last to the newest. The cache has the change before the handler hears
/// of it, and may already be further. A handler enqueues and returns; it never waits.
pub trait EventHandler<K>: Send + Sync {
    /// An object is there that was not; `in_initial_list` if it was there when the handler began to listen.
    fn on_add(&self, object: &Arc<K>, in_initial_list: bool);

    /// An object changed. On a resync both are the same.
    fn on_update(&self, old: &Arc<K>, new: &Arc<K>);

    /// An object is gone, also when a relist found out.
    fn on_delete(&self, last: Tombstone<K>);
}

/// A change of an object, for whoever needs no more than its key.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange<'a> {
    /// Which object.
    pub key: &'a ObjectKey,
    /// What happened: added, updated, deleted or resync.
    pub event: CauseEvent,
    /// Its version after the change; of a deleted object, the last known.
    pub resource_version: Option<String>,
    /// It was added before the handler began to listen.
    pub in_initial_list: bool,
}

/// Who is called, and with what.
pub(crate) enum Handler<K> {
    Objects(Box<dyn EventHandler<K>>),
    /// Objects are not decoded for it.
    Keys(Box<dyn Fn(KeyChange<'_>) + Send + Sync>),
}

/// How a handler wants to be called.
#[derive(Clone, Debug, Default)]
pub struct HandlerOptions {
    /// Every object is reported as updated to itself once in this time, which is a second at least; zero never does.
    /// `None` leaves it to the informer's options.
    pub resync: Option<Duration>,
}

/// One handler and its mailbox.
pub(crate) struct Slot<K> {
    pub(crate) handler: Handler<K>,
    pub(crate) mailbox: Mailbox<K>,
    pub(crate) options: HandlerOptions,
    /// Cancelled once the handler may be called. Until then its mailbox keeps what is to be told.
    pub(crate) begun: CancellationToken,
    pub(crate) removed: CancellationToken,
}

impl<K> Slot<K> {
    /// Whether the handler is to be told of changes as they come.
    pub(crate) fn is_served(&self) -> bool {
        self.begun.is_cancelled() && !self.removed.is_cancelled()
    }
}

impl<K: Resource + Send + Sync + 'static> Slot<K> {
    /// Calls the handler once it began, until it is removed, or until `finish` and the mailbox is empty.
    pub(crate) async fn deliver(self: Arc<Self>, core: Arc<Core<K>>, finish: CancellationToken) {
        tokio::select! {
            biased;
            () = self.begun.cancelled() => {}
            () = self.removed.cancelled() => return,
            () = finish.cancelled() => return,
        }
        let mut resync = self
            .options
            .resync
            .filter(|period| !period.is_zero())
            .map(resync_timer);
        loop {
            if !self.drain(&core.warm).await {
                return;
            }
            tokio::select! {
                biased;
                () = self.removed.cancelled() => return,
                () = self.mailbox.arrival() => {}
                () = finish.cancelled() => {
                    self.drain(&core.warm).await;
                    return;
                }
                () = tick(resync.as_mut()) => core.remind(&self),
            }
        }
    }

    /// Whether the handler is still wanted once the mailbox is empty.
    async fn drain(&self, warm: &Warm<K>) -> bool {
        let mut calls = 0;
        while !self.removed.is_cancelled() {
            let Some(notice) = self.mailbox.take() else {
                return true;
            };
            let (key, in_initial_list) = (notice.key.clone(), notice.in_initial_list);
            if catch_unwind(AssertUnwindSafe(|| {
                self.call(&key, notice.calls(), in_initial_list, warm)
            }))
            .is_err()
            {
                tracing::error!(%key, "an event handler panicked; it goes on with the next object");
            }
            self.mailbox.told(in_initial_list);
            calls += 1;
            if calls % CALLS_IN_A_ROW == 0 {
                tokio::task::yield_now().await;
            }
        }
        false
    }

    fn call(&self, key: &ObjectKey, calls: Calls<K>, in_initial_list: bool, warm: &Warm<K>) {
        let Calls {
            delete,
            update,
            add,
        } = calls;
        match &self.handler {
            Handler::Objects(handler) => {
                if let Some(last) = delete {
                    handler.on_delete(Tombstone {
                        key: key.clone(),
                        object: Some(last.read(warm)),
                    });
                }
                if let Some((old, new)) = update {
                    handler.on_update(&old.read(warm), &new.read(warm));
                }
                if let Some(object) = add {
                    handler.on_add(&object.read(warm), in_initial_list);
                }
            }
            Handler::Keys(tell) => {
                let tell = |event, object: Cached<K>, in_initial_list| {
                    tell(KeyChange {
                        key,
                        event,
                        resource_version: object.resource_version(),
                        in_initial_list,
                    });
                };
                if let Some(last) = delete {
                    tell(CauseEvent::Deleted, last, false);
                }
                if let Some((old, new)) = update {
                    tell(
                        if old.is_same_version(&new) {
                            CauseEvent::Resync
                        } else {
                            CauseEvent::Updated
                        },
                        new,
                        false,
                    );
                }
                if let Some(object) = add {
                    tell(CauseEvent::Added, object, in_initial_list);
                }
            }
        }
    }
}

fn resync_timer(period: Duration) -> Interval {
    let period = period.max(RESYNC_MIN);
    let mut timer = interval_at(Instant::now() + period, period);
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

/// A handler's registration. Dropping it changes nothing: the handler stays until [`HandlerHandle::remove`].
#[derive(Clone, Debug)]
pub struct HandlerHandle {
    pub(crate) what: String,
    pub(crate) status: watch::Receiver<Status>,
    pub(crate) synced: watch::Receiver<bool>,
    pub(crate) depth: Arc<AtomicUsize>,
    pub(crate) removed: CancellationToken,
}

impl HandlerHandle {
    /// Whether the handler returned from every object of the initial list.
    pub fn has_synced(&self) -> bool {
        *self.synced.borrow()
    }

    /// Waits until the handler returned from every object of the initial list.
    ///
    /// # Errors
    /// The informer cannot list for a reason that waiting does not mend, or it stopped, or the handler was removed.
    pub async fn wait_for_sync(&self) -> Result<(), SyncError> {
        let (mut status, mut synced) = (self.status.clone(), self.synced.clone());
        Status::settled(&self.what, &mut status).await?;
        let stopped = || SyncError::Stopped {
            what: self.what.clone(),
        };
        tokio::select! {
            biased;
            told = synced.wait_for(|synced| *synced) => told.map(|_| ()).map_err(|_| stopped()),
            () = self.removed.cancelled() => Err(stopped()),
        }
    }

    /// Waits for the same, whatever stands in the way; for ever if the informer stops.
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

    /// Objects with a change that the handler was not told yet.
    pub fn backlog(&self) -> usize {
        self.depth.load(Ordering::Relaxed)
    }

    /// Ends the registration: no call begins afterwards; one that is under way ends by itself. Repeating it is harmless.
    pub fn remove(&self) {
        self.removed.cancel();
    }
}
