//! The state of the server that verbs, admission and controllers share.
//! Guarantees: one store, one clock, one source of randomness and one catalog per server; several
//! servers in one process share nothing.

use std::{
    future::Future,
    hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher},
    pin::Pin,
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
};

use bellerophon_apimachinery::error::ApiError;
use bellerophon_codec::object::Object;
use bellerophon_resources::kinds::{Addresses, Components, Effect, Reservation};
use bellerophon_storage::{ObjectKey, Store};
use tokio::sync::{Notify, Semaphore, SemaphorePermit};

use crate::{
    admission_config::AdmissionConfig,
    auth::{BindingIndex, Decoded, Lookup, Source, User},
    clock::Clock,
    entropy::Entropy,
    flow_control::FlowControl,
    limits::RequestLimits,
    options::AuthorizationMode,
    registry::{Registry, Resource},
    webhook_client::WebhookTransport,
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

/// Runs after a write and before its response is sent. Mirrors the hooks `AfterCreate`,
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
    /// The components that run with the server.
    pub(crate) components: Components,
    /// The authorization mode.
    pub(crate) authorization: AuthorizationMode,
    /// Admission plugins that do not run.
    pub(crate) disabled_admission_plugins: Vec<String>,
    /// Serializes the writes that are charged to the quotas of a namespace.
    pub(crate) quota_semaphores: QuotaSemaphores,
    /// Webhooks and policies, compiled.
    pub(crate) admission_config: AdmissionConfig,
    /// Calls webhooks; set when the server starts.
    webhook_transport: OnceLock<Arc<dyn WebhookTransport>>,
    /// This state, for values that outlive a borrow of it.
    handle: OnceLock<Weak<Self>>,
    /// Runs after each write of a client, and after most writes of the server itself.
    pub(crate) after_write: AfterWrite,
}

/// Semaphores by namespace: at most one write of a namespace at a time is charged to its quotas.
pub(crate) struct QuotaSemaphores {
    /// One per shard of the namespaces, by hash.
    shards: Vec<Semaphore>,
    hasher: BuildHasherDefault<DefaultHasher>,
}

impl Default for QuotaSemaphores {
    fn default() -> Self {
        const SHARDS: usize = 64;
        Self {
            shards: (0..SHARDS).map(|_| Semaphore::new(1)).collect(),
            hasher: BuildHasherDefault::default(),
        }
    }
}

impl QuotaSemaphores {
    /// Waits for earlier writes of the namespace; the permit is released when it is dropped.
    pub(crate) async fn acquire(&self, namespace: &str) -> SemaphorePermit<'_> {
        let hash = self.hasher.hash_one(namespace);
        let shard = (hash % self.shards.len() as u64) as usize;
        let permit = self.shards[shard].acquire().await;
        permit.expect("the semaphores are never closed")
    }
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
    /// Whether an admission plugin runs, by its name in kube-apiserver.
    pub(crate) fn runs_admission_plugin(&self, plugin: &str) -> bool {
        let disabled = &self.disabled_admission_plugins;
        !disabled.iter().any(|name| name == plugin)
    }

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
            authorization: AuthorizationMode::default(),
            disabled_admission_plugins: Vec::new(),
            quota_semaphores: QuotaSemaphores::default(),
            admission_config: AdmissionConfig::default(),
            webhook_transport: OnceLock::new(),
            handle: OnceLock::new(),
            after_write,
        }
    }

    /// The same state, shared: it can call webhooks and give handles to itself.
    pub(crate) fn shared(self, webhooks: Arc<dyn WebhookTransport>) -> Arc<Self> {
        let api = Arc::new(self);
        let is_new = api.webhook_transport.set(webhooks).is_ok();
        debug_assert!(is_new, "a state is shared once");
        let is_new = api.handle.set(Arc::downgrade(&api)).is_ok();
        debug_assert!(is_new, "a state is shared once");
        api
    }

    /// A handle of this state; of none if it is not shared.
    pub(crate) fn handle(&self) -> Weak<Self> {
        self.handle.get().cloned().unwrap_or_default()
    }

    /// Calls webhooks; `None` if the state is not that of a server.
    pub(crate) fn webhook_transport(&self) -> Option<&Arc<dyn WebhookTransport>> {
        self.webhook_transport.get()
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
    /// The requested value is in use or out of range.
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
                | Effect::ApiService
                | Effect::Admission,
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
    fn authorization_mode(&self) -> AuthorizationMode {
        self.authorization
    }

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
