//! Notifiers of the watchers of a collection.
//! In: one call per write, with the position of its event. Out: every listener of that scope is
//! notified once, however many events came meanwhile.
//! Guarantees: a write costs nothing to listeners of other scopes; listeners are notified in the
//! order in which they began to wait, so that a run with one seed can be repeated.

use std::{
    collections::HashMap,
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use tokio::sync::Notify;

use super::{ObjectKey, Scope};

/// The notifiers of one collection: one for everything, and one for each namespace or object that
/// is watched. Namespaces and objects have separate maps, so that no name of one can be taken for
/// the other.
#[derive(Debug, Default)]
pub(super) struct Notifiers {
    everything: Notifier,
    namespaces: HashMap<Box<str>, Notifier>,
    objects: HashMap<ObjectKey, Notifier>,
}

impl Notifiers {
    /// Counts an event on all notifiers that it concerns. Listeners are notified later, when the
    /// lock is released.
    pub(super) fn count(&self, key: &ObjectKey, position: u64) -> Notification {
        let namespace = match key.namespace() {
            "" => None,
            namespace => self.namespaces.get(namespace).cloned(),
        };
        let object = self.objects.get(key).cloned();
        let events = Notification([Some(self.everything.clone()), namespace, object]);
        events
            .notifiers()
            .for_each(|notifier| notifier.count(position));
        events
    }

    /// A listener to a scope with `pending` newest events that it has not read, the last of them at
    /// `last`.
    pub(super) fn listen(&mut self, scope: &Scope, pending: u64, last: u64) -> Listener {
        match scope {
            Scope::All => self.everything.listen(pending, last),
            Scope::Namespace(namespace) => self
                .namespaces
                .entry(namespace.as_str().into())
                .or_default()
                .listen(pending, last),
            Scope::Object(key) => self
                .objects
                .entry(key.clone())
                .or_default()
                .listen(pending, last),
            Scope::Nothing => Notifier::default().listen(pending, last),
        }
    }

    /// Removes the notifier of a scope without listeners.
    pub(super) fn clear(&mut self, scope: &Scope) {
        let unused = |notifier: &Notifier| notifier.listeners() == 0;
        match scope {
            Scope::All | Scope::Nothing => {}
            Scope::Namespace(namespace) => {
                if self.namespaces.get(namespace.as_str()).is_some_and(unused) {
                    self.namespaces.remove(namespace.as_str());
                }
            }
            Scope::Object(key) => {
                if self.objects.get(key).is_some_and(unused) {
                    self.objects.remove(key);
                }
            }
        }
    }
}

/// The notifiers that an event was counted on.
#[derive(Debug)]
pub(super) struct Notification([Option<Notifier>; 3]);

impl Notification {
    fn notifiers(&self) -> impl Iterator<Item = &Notifier> {
        self.0.iter().flatten()
    }

    /// Notifies all waiting listeners; those that do not wait find the event pending.
    pub(super) fn notify(&self) {
        self.notifiers()
            .for_each(|notifier| notifier.0.waiting.notify_waiters());
    }
}

/// The notifier of one scope. Clones share state.
#[derive(Clone, Debug, Default)]
struct Notifier(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// The number of events so far.
    events: AtomicU64,
    /// Where the last of these events is.
    last: AtomicU64,
    listeners: AtomicUsize,
    waiting: Notify,
}

impl Notifier {
    fn count(&self, position: u64) {
        self.0.last.store(position, Ordering::SeqCst);
        self.0.events.fetch_add(1, Ordering::SeqCst);
    }

    fn listen(&self, pending: u64, last: u64) -> Listener {
        self.0.listeners.fetch_add(1, Ordering::Relaxed);
        self.0.last.fetch_max(last, Ordering::SeqCst);
        Listener {
            acknowledged: self.0.events.load(Ordering::SeqCst).wrapping_sub(pending),
            notifier: self.clone(),
        }
    }

    fn listeners(&self) -> usize {
        self.0.listeners.load(Ordering::Relaxed)
    }
}

/// A watcher of a scope.
#[derive(Debug)]
pub(super) struct Listener {
    notifier: Notifier,
    /// The number of events that this listener has read; wraps below 0 for events from before the
    /// notifier.
    acknowledged: u64,
}

impl Listener {
    /// The number of events that it has not read. Exact while the collection is locked for reading.
    pub(super) fn pending(&self) -> u64 {
        self.notifier
            .0
            .events
            .load(Ordering::SeqCst)
            .wrapping_sub(self.acknowledged)
    }

    /// Where the last event is.
    pub(super) fn last(&self) -> u64 {
        self.notifier.0.last.load(Ordering::SeqCst)
    }

    /// Acknowledges this many events.
    pub(super) fn acknowledge(&mut self, events: u64) {
        self.acknowledged = self.acknowledged.wrapping_add(events);
    }

    /// How many listen to the same part.
    pub(super) fn listeners(&self) -> usize {
        self.notifier.listeners()
    }

    /// Resolves when events are pending; never, if there is no further event.
    pub(super) async fn changed(&self) {
        loop {
            let mut notified = pin!(self.notifier.0.waiting.notified());
            // Registered before the check, so that no notification is lost in between.
            notified.as_mut().enable();
            if self.pending() != 0 {
                return;
            }
            notified.await;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.notifier.0.listeners.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Mutex, time::Duration};

    use super::*;

    fn key() -> ObjectKey {
        ObjectKey::new("a", "x")
    }

    async fn is_notified(listener: &Listener) -> bool {
        tokio::time::timeout(Duration::from_secs(1), listener.changed())
            .await
            .is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn listeners_are_notified_in_the_order_they_waited() {
        let mut notifiers = Notifiers::default();
        let notified = Arc::new(Mutex::new(Vec::new()));
        let waiting: Vec<_> = (0..20)
            .map(|number| {
                let listener = notifiers.listen(&Scope::All, 0, 0);
                let notified = notified.clone();
                tokio::spawn(async move {
                    listener.changed().await;
                    notified.lock().expect("no test panicked").push(number);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(notifiers.everything.listeners(), 20);
        notifiers.count(&key(), 1).notify();
        for task in waiting {
            task.await.expect("no test panicked");
        }
        assert_eq!(
            *notified.lock().expect("no test panicked"),
            (0..20).collect::<Vec<_>>()
        );
        assert_eq!(notifiers.everything.listeners(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn events_are_pending_until_they_are_acknowledged() {
        let mut notifiers = Notifiers::default();
        notifiers.count(&key(), 0).notify();
        let mut listener = notifiers.listen(&Scope::All, 0, 0);
        assert!(!is_notified(&listener).await, "it rang before");
        notifiers.count(&key(), 1).notify();
        notifiers.count(&key(), 2).notify();
        assert!(is_notified(&listener).await);
        assert_eq!(listener.pending(), 2);
        assert_eq!(listener.last(), 2);
        listener.acknowledge(1);
        assert!(is_notified(&listener).await, "one is left");
        listener.acknowledge(1);
        assert!(!is_notified(&listener).await, "both were acknowledged");
        assert_eq!(
            notifiers.listen(&Scope::All, 2, 2).pending(),
            2,
            "a watch from the past has pending events"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn listeners_are_notified_of_their_scope_only() {
        let mut notifiers = Notifiers::default();
        let scopes = [
            Scope::Namespace("a".into()),
            Scope::Object(key()),
            Scope::Object(ObjectKey::new("", "a")),
            Scope::Object(ObjectKey::new("a", "")),
            Scope::Nothing,
            Scope::All,
        ];
        let listeners = scopes.each_ref().map(|scope| notifiers.listen(scope, 0, 0));
        notifiers.count(&key(), 0).notify();
        notifiers.count(&ObjectKey::new("a", "y"), 1).notify();
        notifiers.count(&ObjectKey::new("", "a"), 2).notify();
        assert_eq!(
            listeners.each_ref().map(Listener::pending),
            [2, 1, 1, 0, 0, 3]
        );
        drop(listeners);
        scopes.iter().for_each(|scope| notifiers.clear(scope));
        assert!(notifiers.namespaces.is_empty(), "no listener is left");
        assert!(notifiers.objects.is_empty(), "no listener is left");
    }
}
