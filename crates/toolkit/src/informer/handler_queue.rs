//! Handler queue: the notifications that one handler has not received yet.
//! In: transitions of the store. Out: one notification after another, for one handler.
//! Guarantees: notifications of one object keep their order and have the right old and new state;
//! objects keep the order of their first pending change.
//!
//! Full: never. Pending changes of one object merge into one, from the state the handler received
//! last to the newest, and an object that was added and deleted in between is left out. So a queue
//! has at most one entry for each object that the handler knows or that exists, however slow the
//! handler is. (client-go's processorListener keeps every notification.)

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    sync::{Notify, watch},
    time::{Duration, Instant},
};

use super::store::Transition;
use crate::{cached::CachedObject, key::ObjectKey};

/// Queues up to this length are checked entry by entry in debug builds.
const FULLY_CHECKED_MAX: usize = 64;

/// The change from the state the handler received last to the current one.
#[derive(Debug)]
pub(crate) struct Notification {
    pub(crate) key: Arc<ObjectKey>,
    /// The state that the handler received last, if it knows the object.
    before: Option<CachedObject>,
    /// The last state of `before`, if it was deleted. Never set without `before`.
    gone: Option<CachedObject>,
    /// The current state. After a deletion it is another object of the same name.
    after: Option<CachedObject>,
    /// The object existed when the handler was added.
    pub(crate) in_initial_list: bool,
    /// Its position among the others.
    sequence: u64,
    /// When its oldest change was queued.
    since: Instant,
}

/// The calls of a handler for one object, in this order.
#[derive(Debug)]
pub(crate) struct Calls {
    pub(crate) delete: Option<CachedObject>,
    /// From the old to the new state.
    pub(crate) update: Option<(CachedObject, CachedObject)>,
    pub(crate) add: Option<CachedObject>,
}

impl Notification {
    pub(crate) fn calls(self) -> Calls {
        match (self.before, self.gone, self.after) {
            (Some(old), None, Some(new)) => Calls {
                delete: None,
                update: Some((old, new)),
                add: None,
            },
            (_, delete, add) => Calls {
                delete,
                update: None,
                add,
            },
        }
    }
}

#[derive(Debug)]
struct Inner {
    /// One for each key with a pending change.
    notifications: BTreeMap<Arc<ObjectKey>, Notification>,
    /// The keys of `notifications`, by their sequence.
    order: BTreeMap<u64, Arc<ObjectKey>>,
    next_sequence: u64,
    /// Notifications of the initial list that are queued or being delivered.
    initial_left: usize,
    /// Everything of the initial list is or was queued.
    initial_complete: bool,
}

#[derive(Debug)]
pub(crate) struct HandlerQueue {
    inner: Mutex<Inner>,
    arrived: Notify,
    /// The number of notifications.
    pub(crate) depth: Arc<AtomicUsize>,
    /// Whether the handler received the whole initial list.
    pub(crate) synced: watch::Sender<bool>,
}

impl HandlerQueue {
    pub(crate) fn new() -> Self {
        let inner = Inner {
            notifications: BTreeMap::new(),
            order: BTreeMap::new(),
            next_sequence: 0,
            initial_left: 0,
            initial_complete: false,
        };
        Self {
            inner: Mutex::new(inner),
            arrived: Notify::new(),
            depth: Arc::default(),
            synced: watch::Sender::new(false),
        }
    }

    /// Queues changes, or merges them with pending ones.
    pub(crate) fn push(&self, transitions: &[Transition], in_initial_list: bool) {
        if transitions.is_empty() {
            return;
        }
        let mut inner = self.lock();
        transitions
            .iter()
            .for_each(|transition| inner.merge(transition, in_initial_list));
        self.published(inner);
        self.arrived.notify_one();
    }

    /// Queues a resync of each object without a pending change.
    pub(crate) fn push_resync<'a>(
        &self,
        objects: impl Iterator<Item = (&'a Arc<ObjectKey>, &'a CachedObject)>,
    ) {
        let mut inner = self.lock();
        for (key, object) in objects {
            // A pending change brings the object to the handler anyway.
            if !inner.notifications.contains_key(&**key) {
                let since = Instant::now();
                inner.insert(Notification {
                    key: key.clone(),
                    before: Some(object.clone()),
                    gone: None,
                    after: Some(object.clone()),
                    in_initial_list: false,
                    sequence: 0,
                    since,
                });
            }
        }
        self.published(inner);
        self.arrived.notify_one();
    }

    /// Marks the initial list as queued completely.
    pub(crate) fn complete_initial_list(&self) {
        let mut inner = self.lock();
        inner.initial_complete = true;
        self.published(inner);
    }

    /// Takes the oldest notification. [`HandlerQueue::delivered`] must follow once the handler
    /// returned.
    pub(crate) fn take(&self) -> Option<Notification> {
        let mut inner = self.lock();
        let (_, key) = inner.order.pop_first()?;
        let notification = inner
            .notifications
            .remove(&*key)
            .expect("each sequence has a notification");
        self.published(inner);
        Some(notification)
    }

    /// How long the oldest notification has been pending.
    pub(crate) fn lag(&self) -> Duration {
        let inner = self.lock();
        let oldest = inner
            .order
            .first_key_value()
            .and_then(|(_, key)| inner.notifications.get(&**key));
        oldest.map_or(Duration::ZERO, |notification| notification.since.elapsed())
    }

    /// The handler returned from a notification.
    pub(crate) fn delivered(&self, in_initial_list: bool) {
        if in_initial_list {
            let mut inner = self.lock();
            inner.initial_left -= 1;
            self.published(inner);
        }
    }

    /// Returns when something was queued since the last call.
    pub(crate) async fn arrival(&self) {
        self.arrived.notified().await;
    }

    fn published(&self, inner: MutexGuard<'_, Inner>) {
        debug_assert!(inner.is_consistent());
        self.depth
            .store(inner.notifications.len(), Ordering::Relaxed);
        let synced = inner.initial_complete && inner.initial_left == 0;
        // Receivers of `synced` run on other threads and may lock the queue.
        drop(inner);
        if synced {
            self.synced
                .send_if_modified(|was| !std::mem::replace(was, true));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Inner {
    fn merge(&mut self, transition: &Transition, in_initial_list: bool) {
        let (Transition::Applied { key, .. } | Transition::Deleted { key, .. }) = transition;
        let Some(notification) = self.notifications.get_mut(&**key) else {
            return self.insert(Notification::first(transition, in_initial_list));
        };
        match transition {
            Transition::Applied { after, .. } => notification.after = Some(after.clone()),
            Transition::Deleted { last, .. } => {
                notification.after = None;
                // The handler has never received the object: addition and deletion cancel each
                // other out.
                if notification.before.is_some() {
                    // The first deletion is that of the object the handler knows. Later ones
                    // concern objects of the same name that it never received.
                    notification.gone.get_or_insert_with(|| last.clone());
                } else {
                    self.forget(key);
                }
            }
        }
    }

    fn insert(&mut self, mut notification: Notification) {
        notification.sequence = self.next_sequence;
        self.next_sequence += 1;
        self.initial_left += usize::from(notification.in_initial_list);
        self.order
            .insert(notification.sequence, notification.key.clone());
        self.notifications
            .insert(notification.key.clone(), notification);
    }

    fn forget(&mut self, key: &ObjectKey) {
        if let Some(notification) = self.notifications.remove(key) {
            self.order.remove(&notification.sequence);
            self.initial_left -= usize::from(notification.in_initial_list);
        }
    }

    fn is_consistent(&self) -> bool {
        // Looking at every notification at every step would make debug builds quadratic.
        self.order.len() == self.notifications.len()
            && (self.notifications.len() > FULLY_CHECKED_MAX
                || self.notifications.values().all(|notification| {
                    notification.gone.is_none() || notification.before.is_some()
                }) && self
                    .notifications
                    .values()
                    .filter(|notification| notification.in_initial_list)
                    .count()
                    <= self.initial_left)
    }
}

impl Notification {
    fn first(transition: &Transition, in_initial_list: bool) -> Self {
        let (key, before, gone, after) = match transition {
            Transition::Applied { key, before, after } => (key, before.as_ref(), None, Some(after)),
            Transition::Deleted { key, before, last } => (key, Some(before), Some(last), None),
        };
        Self {
            key: key.clone(),
            before: before.cloned(),
            gone: gone.cloned(),
            after: after.cloned(),
            in_initial_list: in_initial_list && before.is_none(),
            sequence: 0,
            since: Instant::now(),
        }
    }
}

#[cfg(test)]
mod tests;
