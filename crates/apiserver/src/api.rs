//! The server's state: what every verb works on.
//! Holds: one store, one clock, one source of randomness, one catalog per server; many servers live in one process without knowing each other.

use std::sync::{Arc, Mutex, PoisonError};

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
    store::{Expect, ObjectKey, Store, Write},
    write::{Effects, put_of},
};

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
}

/// What an object takes of the server's stock until it is known whether the object is stored. Given back unless it is kept.
#[must_use = "what is claimed goes back when the claim is dropped"]
pub(crate) struct Claim<'a> {
    api: &'a Api,
    reservation: Option<Reservation>,
}

impl Claim<'_> {
    /// The object is stored: what it took stays taken.
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
        }
    }

    /// Stores the objects a fresh cluster has, as they are.
    ///
    /// # Errors
    /// The storage does not take them.
    pub(crate) async fn bootstrap(&self, objects: Vec<Object>) -> Result<(), String> {
        let catalog = self.registry.catalog();
        for object in objects {
            let (group, version) = object
                .api_version
                .split_once('/')
                .unwrap_or(("", &object.api_version));
            let resource = catalog
                .find_kind(group, version, &object.kind)
                .ok_or_else(|| format!("no kind {}", object.kind))?;
            if resource.strategy.effect == Effect::Addresses {
                self.with_addresses(|a| a.adopt(&object));
            }
            let key = ObjectKey::new(&object.meta.namespace, &object.meta.name);
            let write = Write {
                shelf: resource.shelf.clone(),
                key,
                expect: Expect::Absent,
                put: Some(put_of(&resource, &object)),
            };
            self.store
                .commit(write)
                .await
                .map_err(|e| format!("{} {}: {e:?}", object.kind, object.meta.name))?;
        }
        self.flow_control_written().await;
        // History begins with the first write of a client.
        self.store.compact(self.store.revision());
        Ok(())
    }

    /// Takes what an object needs of the server's stock, such as an address.
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

    /// What a write changes in the server itself; done when the write is answered.
    pub(crate) async fn after_write(
        &self,
        resource: &Resource,
        old: Option<&Object>,
        new: Option<&Object>,
        effects: Effects,
    ) {
        if effects == Effects::Deferred {
            return;
        }
        match (resource.strategy.effect, old, new) {
            (Effect::Addresses, Some(gone), None) => self.with_addresses(|a| a.release(gone)),
            (Effect::Definition, Some(gone), None) => self.definition_gone(gone).await,
            (Effect::Definition, _, Some(new)) => self.definition_written(&new.meta.name).await,
            (Effect::Instance, Some(_), None) => self.instance_gone(resource).await,
            (Effect::Instance, None, Some(_)) => self.instance_created(resource).await,
            (Effect::FlowControl, _, _) => self.flow_control_written().await,
            (Effect::ApiService, _, _) => self.api_services_written(),
            _ => {}
        }
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
