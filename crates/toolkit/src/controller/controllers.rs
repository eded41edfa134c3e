//! Controllers: those of one Manager, by their names.

use std::collections::BTreeMap;
use std::fmt;
use std::panic::Location;
use std::time::Duration;

use super::{Controller, ControllerOptions};
use crate::informer::SetupErrors;
use crate::leader::Leadership;

/// The controllers of a Manager.
pub(crate) struct Controllers {
    /// Settings, where a controller sets nothing else.
    pub(super) options: ControllerOptions,
    pub(super) leadership: Leadership,
    /// The names of controllers, and where they were described.
    names: BTreeMap<String, &'static Location<'static>>,
    ready: Vec<Controller>,
}

impl Controllers {
    pub(crate) fn new(options: ControllerOptions, leadership: Leadership) -> Self {
        Self {
            options,
            leadership,
            names: BTreeMap::new(),
            ready: Vec::new(),
        }
    }

    /// Reserves the name of a controller.
    pub(super) fn claim_name(
        &mut self,
        name: &str,
        location: &'static Location<'static>,
        errors: &SetupErrors,
    ) {
        if let Some(first) = self.names.get(name) {
            let message = format!("two controllers are named {name:?}; the first is at {first}");
            errors.add(message, location);
        } else {
            self.names.insert(name.to_owned(), location);
        }
    }

    pub(super) fn add(&mut self, controller: Controller) {
        self.ready.push(controller);
    }

    /// The longest that any controller waits for its caches.
    pub(crate) fn cache_sync_timeout(&self) -> Option<Duration> {
        self.ready
            .iter()
            .map(|controller| controller.cache_sync_timeout)
            .max()
    }
}

impl IntoIterator for Controllers {
    type Item = Controller;
    type IntoIter = std::vec::IntoIter<Controller>;

    fn into_iter(self) -> Self::IntoIter {
        self.ready.into_iter()
    }
}

impl fmt::Debug for Controllers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.ready).finish()
    }
}
