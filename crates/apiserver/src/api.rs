//! The state of the server that verbs, admission and controllers share.
//! Guarantees: one store, one clock, one source of randomness and one catalog per server; several
//! servers in one process share nothing.

use std::{
    future::Future,
    pin::Pin,
    sync::{Arc, Mutex, PoisonError},
};

use tokio::sync::Notify;

use crate::{
    auth::{BindingIndex, Decoded, Lookup, Source, User},
    entropy::Entropy,
    error::ApiError,
    flow_control::FlowControl,
    kinds::{Addresses, Components, Effect, Reservation},
    limits::RequestLimits,
    object::{Clock, Object},
    registry::{Registry, Resource},
    store::{ObjectKey, Store},
};

/// A write that has been committed.
#[derive(Clone, Copy)]
pub(crate) struct WriteEvent<'a> {
    pub(crate) resource: &'a Resource,
    /// `None` for a creation.
    pub(crate) old: Option<&'a Object>,
    /// `None` for a deletion.
    pub(crate) new: Option<&'a Object>,
}

/// What the server does after a write and before it is answered. Mirrors the hooks `AfterCreate`,
/// `AfterUpdate` and `AfterDelete` of upstream's generic registry.
pub(crate) type AfterWrite =
    for<'a> fn(&'a Api, WriteEvent<'a>) -> Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// One API server, without its transport.
pub(crate) struct Api {
    pub(crate) store: Arc<dyn Store>,
    pub(crate) registry: Registry,
    pub(crate) clock: Clock,
    pub(crate) entropy: Entropy,
    /// Service addresses and node ports that are taken.
    addresses: Mutex<Addresses>,
    /// Roles and bindings, decoded.
    decoded: Decoded,
    role_bindings: BindingIndex,
    cluster_role_bindings: BindingIndex,
    /// Which requests are executed, and which wait.
    pub(crate) flow_control: Arc<FlowControl>,
    /// Notified when an APIService is written.
    pub(crate) api_services_changed: Notify,
    /// What runs with the server.
    pub(crate) components: Components,
    /// Runs after each write of a client, and after most writes of the server itself.
    pub(crate) after_write: AfterWrite,
}

/// Addresses that are allocated to an object until it is known whether the object is stored.
/// Released unless they are kept.
#[must_use = "addresses are released when the claim is dropped"]
pub(crate) struct Claim<'a> {
    api: &'a Api,
    reservation: Option<Reservation>,
}

impl Claim<'_> {
    /// The object is stored: its addresses stay allocated.
    pub(crate) fn keep(mut self) {
        if let Some(reservation) = self.reservation.take() {
            self.api.with_addresses(|a| a.commit(reservation));
        }
    }
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            self.api.with_addresses(|a| a.revert(reservation));
        }
    }
}

impl Api {
    /// A server over this store.
    pub(crate) fn new(
        store: Arc<dyn Store>,
        clock: Clock,
        entropy: Entropy,
        limits: RequestLimits,
        components: Components,
        after_write: AfterWrite,
    ) -> Self {
        Self {
            store,
            registry: Registry::default(),
            clock,
            entropy,
            addresses: Mutex::new(Addresses::new()),
            decoded: Decoded::default(),
            role_bindings: BindingIndex::new(Source::RoleBinding),
            cluster_role_bindings: BindingIndex::new(Source::ClusterRoleBinding),
            flow_control: Arc::new(FlowControl::new(limits)),
            api_services_changed: Notify::new(),
            components,
            after_write,
        }
    }

    /// Marks the addresses of a Service as allocated that was stored without a [`Claim`].
    pub(crate) fn adopt_addresses(&self, object: &Object) {
        self.with_addresses(|addresses| addresses.adopt(object));
    }

    /// Releases the addresses of a Service that is deleted.
    pub(crate) fn release_addresses(&self, object: &Object) {
        self.with_addresses(|addresses| addresses.release(object));
    }

    /// Allocates what an object needs, such as a Service address.
    ///
    /// # Errors
    /// What is asked for is taken or does not exist.
    pub(crate) fn claim(
        &self,
        resource: &Resource,
        new: &mut Object,
        old: Option<&Object>,
    ) -> Result<Claim<'_>, ApiError> {
        let reservation = match (resource.strategy.effect, old) {
            (
                Effect::None
                | Effect::Definition
                | Effect::Instance
                | Effect::FlowControl
                | Effect::ApiService,
                _,
            ) => None,
            (Effect::Addresses, None) => Some(self.with_addresses(|a| a.begin_create(new))?),
            (Effect::Addresses, Some(old)) => {
                Some(self.with_addresses(|a| a.begin_update(new, old))?)
            }
        };
        Ok(Claim {
            api: self,
            reservation,
        })
    }

    fn with_addresses<T>(&self, f: impl FnOnce(&mut Addresses) -> T) -> T {
        f(&mut self
            .addresses
            .lock()
            .unwrap_or_else(PoisonError::into_inner))
    }
}

impl Lookup for Api {
    fn get(&self, source: Source, namespace: &str, name: &str) -> Option<Arc<Object>> {
        let stored = self
            .store
            .get(&source.storage_name(), &ObjectKey::new(namespace, name))?;
        Some(self.decoded.of(source, &stored))
    }

    fn bindings_of(&self, user: &User, namespace: &str) -> Vec<Arc<Object>> {
        let (source, index) = match namespace {
            "" => (Source::ClusterRoleBinding, &self.cluster_role_bindings),
            _ => (Source::RoleBinding, &self.role_bindings),
        };
        index
            .of(user, namespace, &*self.store)
            .iter()
            .filter_map(|key| self.get(source, key.namespace(), key.name()))
            .collect()
    }
}
