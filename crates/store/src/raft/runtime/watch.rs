//! A watch channel that notifies its receivers in the order in which they began to wait.

use std::{
    ops::Deref,
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
};

use openraft::{
    OptionalSend, OptionalSync,
    async_runtime::watch::{RecvError, SendError, Watch, WatchReceiver, WatchSender},
};
use tokio::sync::Notify;

/// The channel.
pub(crate) struct NotifyWatch;

struct Channel<T> {
    value: RwLock<T>,
    /// Rises with every change of `value`.
    version: AtomicU64,
    changed: Notify,
    senders: AtomicUsize,
    receivers: AtomicUsize,
}

/// The sending half.
pub(crate) struct NotifySender<T>(Arc<Channel<T>>);

/// The receiving half.
pub(crate) struct NotifyReceiver<T> {
    channel: Arc<Channel<T>>,
    seen: u64,
}

/// A borrowed value. Senders wait until it is dropped.
pub(crate) struct Borrowed<'a, T>(RwLockReadGuard<'a, T>);

impl<T> Deref for Borrowed<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> Channel<T> {
    fn borrow(&self) -> Borrowed<'_, T> {
        Borrowed(self.value.read().unwrap_or_else(PoisonError::into_inner))
    }
}

impl<T> Clone for NotifySender<T> {
    fn clone(&self) -> Self {
        self.0.senders.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(&self.0))
    }
}

impl<T> Drop for NotifySender<T> {
    fn drop(&mut self) {
        if self.0.senders.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.0.changed.notify_waiters();
        }
    }
}

impl<T> NotifyReceiver<T> {
    fn new(channel: &Arc<Channel<T>>) -> Self {
        channel.receivers.fetch_add(1, Ordering::Relaxed);
        Self {
            channel: Arc::clone(channel),
            seen: channel.version.load(Ordering::Acquire),
        }
    }
}

impl<T> Clone for NotifyReceiver<T> {
    fn clone(&self) -> Self {
        let mut clone = Self::new(&self.channel);
        clone.seen = self.seen;
        clone
    }
}

impl<T> Drop for NotifyReceiver<T> {
    fn drop(&mut self) {
        self.channel.receivers.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Watch for NotifyWatch {
    type Sender<T: OptionalSend + OptionalSync> = NotifySender<T>;
    type Receiver<T: OptionalSend + OptionalSync> = NotifyReceiver<T>;
    type Ref<'a, T: OptionalSend + 'a> = Borrowed<'a, T>;

    fn channel<T: OptionalSend + OptionalSync>(init: T) -> (NotifySender<T>, NotifyReceiver<T>) {
        let channel = Arc::new(Channel {
            value: RwLock::new(init),
            version: AtomicU64::new(0),
            changed: Notify::new(),
            senders: AtomicUsize::new(1),
            receivers: AtomicUsize::new(0),
        });
        let receiver = NotifyReceiver::new(&channel);
        (NotifySender(channel), receiver)
    }
}

impl<T: OptionalSend + OptionalSync> WatchSender<NotifyWatch, T> for NotifySender<T> {
    fn send(&self, value: T) -> Result<(), SendError<T>> {
        if self.0.receivers.load(Ordering::Acquire) == 0 {
            return Err(SendError(value));
        }
        self.send_if_modified(|current| {
            *current = value;
            true
        });
        Ok(())
    }

    fn send_if_modified<F>(&self, modify: F) -> bool
    where
        F: FnOnce(&mut T) -> bool,
    {
        let is_modified = {
            let mut value = self.0.value.write().unwrap_or_else(PoisonError::into_inner);
            let is_modified = modify(&mut value);
            if is_modified {
                self.0.version.fetch_add(1, Ordering::AcqRel);
            }
            is_modified
        };
        if is_modified {
            self.0.changed.notify_waiters();
        }
        is_modified
    }

    fn borrow_watched(&self) -> Borrowed<'_, T> {
        self.0.borrow()
    }

    fn subscribe(&self) -> NotifyReceiver<T> {
        NotifyReceiver::new(&self.0)
    }
}

impl<T: OptionalSend + OptionalSync> WatchReceiver<NotifyWatch, T> for NotifyReceiver<T> {
    async fn changed(&mut self) -> Result<(), RecvError> {
        loop {
            let notified = self.channel.changed.notified();
            let mut notified = std::pin::pin!(notified);
            // Before the comparison, so that no change is missed between them.
            notified.as_mut().enable();
            let version = self.channel.version.load(Ordering::Acquire);
            if version != self.seen {
                self.seen = version;
                return Ok(());
            }
            if self.channel.senders.load(Ordering::Acquire) == 0 {
                return Err(RecvError(()));
            }
            notified.await;
        }
    }

    fn borrow_watched(&self) -> Borrowed<'_, T> {
        self.channel.borrow()
    }

    fn borrow_and_update(&mut self) -> Borrowed<'_, T> {
        let value = self.channel.borrow();
        self.seen = self.channel.version.load(Ordering::Acquire);
        value
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn receivers_are_notified_in_waiting_order() {
        let (sender, receiver) = NotifyWatch::channel(0);
        let order = Arc::new(std::sync::Mutex::new(Vec::new()));
        let mut tasks = Vec::new();
        for number in 0..20 {
            let mut receiver = receiver.clone();
            let order = Arc::clone(&order);
            tasks.push(tokio::spawn(async move {
                receiver.changed().await.unwrap();
                order.lock().unwrap().push(number);
            }));
        }
        tokio::task::yield_now().await;
        sender.send(1).unwrap();
        for task in tasks {
            task.await.unwrap();
        }
        assert_eq!(*order.lock().unwrap(), (0..20).collect::<Vec<_>>());
    }

    #[tokio::test]
    async fn last_value_is_seen_after_senders_are_gone() {
        let (sender, mut receiver) = NotifyWatch::channel(0);
        sender.send(7).unwrap();
        drop(sender);
        assert!(receiver.changed().await.is_ok());
        assert_eq!(*receiver.borrow_watched(), 7);
        assert!(receiver.changed().await.is_err());
    }
}
