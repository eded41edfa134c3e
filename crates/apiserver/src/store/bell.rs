//! Bells: tell the readers of a shelf that there is more.
//! In: one ring a write, with the place of its event. Out: every listener to that part of the shelf woken once, however often it rang meanwhile.
//! Holds: a write costs nothing to those who listen to other parts; listeners are woken in the order in which they came to wait, so that a run
//! with one seed can be repeated.

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

/// The bells of one shelf: one for everything, and one for each namespace or object that somebody listens to.
/// Namespaces and objects have maps of their own, so that no name of one can be taken for the
/// other.
#[derive(Debug, Default)]
pub(super) struct Bells {
    everything: Bell,
    namespaces: HashMap<Box<str>, Bell>,
    objects: HashMap<ObjectKey, Bell>,
}

impl Bells {
    /// Counts an event for all it concerns, who are woken later, when the shelf can be read again.
    pub(super) fn count(&self, key: &ObjectKey, position: u64) -> Rung {
        let namespace = match key.namespace() {
            "" => None,
            namespace => self.namespaces.get(namespace).cloned(),
        };
        let object = self.objects.get(key).cloned();
        let rung = Rung([Some(self.everything.clone()), namespace, object]);
        rung.bells().for_each(|bell| bell.count(position));
        rung
    }

    /// A listener to a part of the shelf who has not yet heard of its newest `unheard` events, the last of them at `last`.
    pub(super) fn listen(&mut self, scope: &Scope, unheard: u64, last: u64) -> Listener {
        match scope {
            Scope::All => self.everything.listen(unheard, last),
            Scope::Namespace(namespace) => self
                .namespaces
                .entry(namespace.as_str().into())
                .or_default()
                .listen(unheard, last),
            Scope::Object(key) => self
                .objects
                .entry(key.clone())
                .or_default()
                .listen(unheard, last),
            Scope::Nothing => Bell::default().listen(unheard, last),
        }
    }

    /// Takes away the bell of a part to which nobody listens any more.
    pub(super) fn clear(&mut self, scope: &Scope) {
        let unused = |bell: &Bell| bell.listeners() == 0;
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

/// The bells that an event was counted on.
#[derive(Debug)]
pub(super) struct Rung([Option<Bell>; 3]);

impl Rung {
    fn bells(&self) -> impl Iterator<Item = &Bell> {
        self.0.iter().flatten()
    }

    /// Wakes everybody who waits; those who do not will not wait the next time.
    pub(super) fn wake(&self) {
        self.bells()
            .for_each(|bell| bell.0.waiting.notify_waiters());
    }
}

/// What the events of one part ring. Clones are the same bell.
#[derive(Clone, Debug, Default)]
struct Bell(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// How often it rang: once an event.
    rung: AtomicU64,
    /// Where the last of these events is.
    last: AtomicU64,
    listeners: AtomicUsize,
    waiting: Notify,
}

impl Bell {
    fn count(&self, position: u64) {
        self.0.last.store(position, Ordering::SeqCst);
        self.0.rung.fetch_add(1, Ordering::SeqCst);
    }

    fn listen(&self, unheard: u64, last: u64) -> Listener {
        self.0.listeners.fetch_add(1, Ordering::Relaxed);
        self.0.last.fetch_max(last, Ordering::SeqCst);
        Listener {
            heard: self.0.rung.load(Ordering::SeqCst).wrapping_sub(unheard),
            bell: self.clone(),
        }
    }

    fn listeners(&self) -> usize {
        self.0.listeners.load(Ordering::Relaxed)
    }
}

/// One who is told.
#[derive(Debug)]
pub(super) struct Listener {
    bell: Bell,
    /// How often it had rung when this listener looked last; less than nothing for events from before the bell.
    heard: u64,
}

impl Listener {
    /// How many events it has not heard of. Exact while the shelf is locked for reading.
    pub(super) fn unheard(&self) -> u64 {
        self.bell
            .0
            .rung
            .load(Ordering::SeqCst)
            .wrapping_sub(self.heard)
    }

    /// Where the last event is.
    pub(super) fn last(&self) -> u64 {
        self.bell.0.last.load(Ordering::SeqCst)
    }

    /// So many more events are no news.
    pub(super) fn hear(&mut self, events: u64) {
        self.heard = self.heard.wrapping_add(events);
    }

    /// How many listen to the same part.
    pub(super) fn listeners(&self) -> usize {
        self.bell.listeners()
    }

    /// Resolves when there is news; for ever waiting if it never rings again.
    pub(super) async fn news(&self) {
        loop {
            let mut notified = pin!(self.bell.0.waiting.notified());
            // Registered before looking, so that no ring falls in between.
            notified.as_mut().enable();
            if self.unheard() != 0 {
                return;
            }
            notified.await;
        }
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.bell.0.listeners.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Mutex, time::Duration};

    use super::*;

    fn key() -> ObjectKey {
        ObjectKey::new("a", "x")
    }

    async fn is_told(listener: &Listener) -> bool {
        tokio::time::timeout(Duration::from_secs(1), listener.news())
            .await
            .is_ok()
    }

    #[tokio::test(start_paused = true)]
    async fn listeners_are_woken_in_the_order_they_waited() {
        let (mut bells, woken) = (Bells::default(), Arc::new(Mutex::new(Vec::new())));
        let waiting: Vec<_> = (0..20)
            .map(|number| {
                let (listener, woken) = (bells.listen(&Scope::All, 0, 0), woken.clone());
                tokio::spawn(async move {
                    listener.news().await;
                    woken.lock().expect("no test panicked").push(number);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(bells.everything.listeners(), 20);
        bells.count(&key(), 1).wake();
        for task in waiting {
            task.await.expect("no test panicked");
        }
        assert_eq!(
            *woken.lock().expect("no test panicked"),
            (0..20).collect::<Vec<_>>()
        );
        assert_eq!(bells.everything.listeners(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn events_are_news_until_they_are_heard() {
        let mut bells = Bells::default();
        bells.count(&key(), 0).wake();
        let mut listener = bells.listen(&Scope::All, 0, 0);
        assert!(!is_told(&listener).await, "it rang before");
        bells.count(&key(), 1).wake();
        bells.count(&key(), 2).wake();
        assert!(is_told(&listener).await);
        assert_eq!((listener.unheard(), listener.last()), (2, 2));
        listener.hear(1);
        assert!(is_told(&listener).await, "one is left");
        listener.hear(1);
        assert!(!is_told(&listener).await, "both were heard");
        assert_eq!(
            bells.listen(&Scope::All, 2, 2).unheard(),
            2,
            "who begins in the past has the past to hear of"
        );
    }

    #[tokio::test(start_paused = true)]
    async fn only_what_concerns_a_part_is_news_to_its_listeners() {
        let mut bells = Bells::default();
        let scopes = [
            Scope::Namespace("a".into()),
            Scope::Object(key()),
            Scope::Object(ObjectKey::new("", "a")),
            Scope::Object(ObjectKey::new("a", "")),
            Scope::Nothing,
            Scope::All,
        ];
        let listeners = scopes.each_ref().map(|scope| bells.listen(scope, 0, 0));
        bells.count(&key(), 0).wake();
        bells.count(&ObjectKey::new("a", "y"), 1).wake();
        bells.count(&ObjectKey::new("", "a"), 2).wake();
        assert_eq!(
            listeners.each_ref().map(Listener::unheard),
            [2, 1, 1, 0, 0, 3]
        );
        drop(listeners);
        scopes.iter().for_each(|scope| bells.clear(scope));
        assert!(bells.namespaces.is_empty(), "nobody listens");
        assert!(bells.objects.is_empty(), "nobody listens");
    }
}
