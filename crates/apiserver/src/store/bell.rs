//! Bell: tells the readers of a shelf that there is more.
//! In: one ring a write. Out: every listener woken once, however often it rang meanwhile.
//! Holds: listeners are woken in the order in which they came to wait, so that a run with one seed can be repeated.

use std::{
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use tokio::sync::Notify;

/// What a write rings. Clones are the same bell.
#[derive(Clone, Debug, Default)]
pub(super) struct Bell(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    /// How often it rang.
    rung: AtomicU64,
    listeners: AtomicUsize,
    waiting: Notify,
}

impl Bell {
    /// Wakes everybody who waits; those who do not will not wait the next time.
    pub(super) fn ring(&self) {
        self.0.rung.fetch_add(1, Ordering::SeqCst);
        self.0.waiting.notify_waiters();
    }

    /// A listener that hears of rings from now on.
    pub(super) fn listen(&self) -> Listener {
        self.0.listeners.fetch_add(1, Ordering::Relaxed);
        Listener { heard: self.0.rung.load(Ordering::SeqCst), bell: self.clone() }
    }

    /// How many listen.
    pub(super) fn listeners(&self) -> usize {
        self.0.listeners.load(Ordering::Relaxed)
    }
}

/// One who is told.
#[derive(Debug)]
pub(super) struct Listener {
    bell: Bell,
    /// How often it had rung when this listener looked last.
    heard: u64,
}

impl Listener {
    /// Nothing that rang so far is news.
    pub(super) fn catch_up(&mut self) {
        self.heard = self.bell.0.rung.load(Ordering::SeqCst);
    }

    /// Resolves when it rang since the listener caught up; for ever waiting if it never rings again.
    pub(super) async fn rung(&mut self) {
        loop {
            let mut notified = pin!(self.bell.0.waiting.notified());
            // Registered before looking, so that no ring falls in between.
            notified.as_mut().enable();
            let rung = self.bell.0.rung.load(Ordering::SeqCst);
            if rung != self.heard {
                self.heard = rung;
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
    use std::sync::Mutex;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn listeners_are_woken_in_the_order_they_waited() {
        let (bell, woken) = (Bell::default(), Arc::new(Mutex::new(Vec::new())));
        let waiting: Vec<_> = (0..20)
            .map(|number| {
                let (mut listener, woken) = (bell.listen(), woken.clone());
                tokio::spawn(async move {
                    listener.rung().await;
                    woken.lock().expect("no test panicked").push(number);
                })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(bell.listeners(), 20);
        bell.ring();
        for task in waiting {
            task.await.expect("no test panicked");
        }
        assert_eq!(*woken.lock().expect("no test panicked"), (0..20).collect::<Vec<_>>());
        assert_eq!(bell.listeners(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn ring_is_heard_once_and_only_if_it_is_news() {
        let bell = Bell::default();
        bell.ring();
        let mut listener = bell.listen();
        let second = std::time::Duration::from_secs(1);
        assert!(tokio::time::timeout(second, listener.rung()).await.is_err(), "it rang before");
        bell.ring();
        bell.ring();
        listener.rung().await;
        assert!(tokio::time::timeout(second, listener.rung()).await.is_err(), "both were heard");
        bell.ring();
        listener.catch_up();
        assert!(tokio::time::timeout(second, listener.rung()).await.is_err(), "it caught up");
    }
}
