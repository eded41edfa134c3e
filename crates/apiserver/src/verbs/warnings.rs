//! What a client is warned of while its request runs.
//! Holds: refusals carry the warnings too; nothing is said twice.

use std::sync::{Arc, Mutex, PoisonError};

/// The warnings of one request, in the order they came up. Clones share them.
#[derive(Clone, Debug, Default)]
pub(crate) struct Warnings {
    said: Arc<Mutex<Vec<String>>>,
}

impl Warnings {
    /// Adds warnings that were not given yet.
    pub(crate) fn add(&self, warnings: impl IntoIterator<Item = String>) {
        let mut said = self.said.lock().unwrap_or_else(PoisonError::into_inner);
        for warning in warnings {
            if !said.contains(&warning) {
                said.push(warning);
            }
        }
    }

    /// All of them, once.
    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut *self.said.lock().unwrap_or_else(PoisonError::into_inner))
    }
}
