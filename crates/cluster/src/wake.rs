//! Wake: a handler that only says that something changed.
//!
//! In: changes of any kind. Out: one notification for any number of them.

use std::sync::Arc;

use bellerophon::{EventHandler, Tombstone};
use tokio::sync::Notify;

/// Wakes whoever waits, once for any number of changes.
pub(crate) struct Wake(pub(crate) Arc<Notify>);

impl<K> EventHandler<K> for Wake {
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
