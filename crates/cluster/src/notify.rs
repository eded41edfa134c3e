//! Event handler that notifies a task of any change, without the object.
//!
//! Guarantees: any number of changes while the task is busy result in one notification.

use std::sync::Arc;

use bellerophon::informer::{EventHandler, Tombstone};
use tokio::sync::Notify;

/// Notifies the waiting task of every add, update and delete.
pub(crate) struct NotifyOnChange(pub(crate) Arc<Notify>);

impl<K> EventHandler<K> for NotifyOnChange {
    fn on_add(&self, _: &Arc<K>, _: bool) {
        self.0.notify_one();
    }

    fn on_update(&self, _: &Arc<K>, _: &Arc<K>) {
        self.0.notify_one();
    }

    fn on_delete(&self, _: Tombstone<K>) {
        self.0.notify_one();
    }
}
