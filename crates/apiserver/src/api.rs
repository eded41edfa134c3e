//! The server's state: what every verb works on.
//! Holds: one store, one clock, one source of randomness, one catalog per server; many servers live in one process without knowing each other.

use std::sync::Arc;

use crate::{
    auth::{Lookup, Source},
    entropy::Entropy,
    error::ApiError,
    kinds::Effect,
    object::{Clock, Object},
    registry::{Registry, Resource},
    store::{ObjectKey, Range, Scope, Store},
};

/// One API server, without its transport.
pub(crate) struct Api {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) registry: Registry,
    pub(crate) clock: Clock,
    pub(crate) entropy: Entropy,
}

impl Api {
    /// Takes what an object needs of the server's own stock, such as an address; gives it back at the end of a dry run.
    ///
    /// # Errors
    /// What is asked for is taken or does not exist.
    pub(crate) fn claim(&self, resource: &Resource, _new: &mut Object, _old: Option<&Object>, _dry_run: bool) -> Result<(), ApiError> {
        match resource.strategy.effect {
            Effect::None | Effect::Definition | Effect::Addresses => Ok(()),
        }
    }

    /// What a write changes in the server itself; done when the write is answered.
    pub(crate) async fn after_write(&self, resource: &Resource, _old: Option<&Object>, _new: Option<&Object>) {
        match resource.strategy.effect {
            Effect::None | Effect::Definition | Effect::Addresses => {}
        }
    }
}

impl Lookup for Api {
    fn get(&self, source: Source, namespace: &str, name: &str) -> Option<Arc<Object>> {
        let stored = self.store.get(&shelf_of(source), &ObjectKey::new(namespace, name))?;
        Some(Arc::new(stored.encoded.decode()))
    }

    fn list(&self, source: Source, namespace: &str) -> Vec<Arc<Object>> {
        let scope = if namespace.is_empty() { Scope::All } else { Scope::Namespace(namespace.to_owned()) };
        let listing = self.store.list(&shelf_of(source), &Range { scope, after: None }, None).expect("the newest state is always kept");
        listing.objects.iter().map(|stored| Arc::new(stored.encoded.decode())).collect()
    }
}

fn shelf_of(source: Source) -> String {
    format!("{}/{}", source.group(), source.resource())
}
