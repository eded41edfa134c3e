//! Webhook configurations and admission policies in the form in which requests are matched with
//! them: compiled when they are written, indexed by resource.
//! In: stored configurations, policies and bindings. Out: the ones that a request may concern.
//!
//! Guarantees: a configuration is in effect when its write is answered; a request sees one whole
//! state; without configurations a request costs one read of a lock.

mod conditions; // matchConditions
mod matching; // rules and selectors
mod metrics; // metrics of webhooks and policies
mod policy; // policies and bindings
mod webhook; // webhooks

pub(crate) use conditions::MatchConditions;
pub(crate) use matching::{Criteria, RuleTarget};
pub(crate) use metrics::{AdmissionMetrics, PolicyCheck, WebhookCall};
pub(crate) use policy::{Binding, Mutation, ParamRef, Policy, Rules, Validation};
pub(crate) use webhook::{ReviewVersion, Webhook};

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError, RwLock},
};

use bellerophon_codec::object::Object;
use bellerophon_storage::Range;
use bellerophon_storage::Revision;
use bellerophon_storage::Store;

const GROUP: &str = "admissionregistration.k8s.io";

/// A policy and its bindings, in the order of their names.
#[derive(Clone, Debug)]
pub(crate) struct BoundPolicy {
    pub(crate) policy: Arc<Policy>,
    pub(crate) bindings: Vec<Arc<Binding>>,
}

/// Configurations in their order, found by the resource of a request.
#[derive(Debug)]
pub(crate) struct Indexed<T> {
    all: Vec<T>,
    /// Places of those that may match a resource, by its plural name, in their order.
    by_resource: HashMap<String, Vec<usize>>,
    /// Places of those that may match any resource.
    of_any: Vec<usize>,
}

impl<T> Default for Indexed<T> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            by_resource: HashMap::new(),
            of_any: Vec::new(),
        }
    }
}

impl<T> Indexed<T> {
    fn new(all: Vec<T>, criteria: impl Fn(&T) -> &Criteria) -> Self {
        let mut by_resource: HashMap<String, Vec<usize>> = HashMap::new();
        let mut of_any = Vec::new();
        for (at, item) in all.iter().enumerate() {
            match criteria(item).resources() {
                None => of_any.push(at),
                Some(mut resources) => {
                    resources.sort_unstable();
                    resources.dedup();
                    for resource in resources {
                        by_resource.entry(resource.to_owned()).or_default().push(at);
                    }
                }
            }
        }
        for places in by_resource.values_mut() {
            places.extend(&of_any);
            places.sort_unstable();
        }
        Self {
            all,
            by_resource,
            of_any,
        }
    }

    /// Those that may match a resource, with their places among all.
    pub(crate) fn of(&self, plural: &str) -> impl Iterator<Item = (usize, &T)> {
        let places = self.by_resource.get(plural).unwrap_or(&self.of_any);
        places.iter().map(|at| (*at, &self.all[*at]))
    }

    fn is_empty(&self) -> bool {
        self.all.is_empty()
    }
}

/// Everything that is configured at one moment.
#[derive(Debug, Default)]
pub(crate) struct Configured {
    pub(crate) mutating_policies: Indexed<BoundPolicy>,
    pub(crate) mutating_webhooks: Indexed<Arc<Webhook>>,
    pub(crate) validating_policies: Indexed<BoundPolicy>,
    pub(crate) validating_webhooks: Indexed<Arc<Webhook>>,
}

impl Configured {
    /// Whether anything may change objects.
    pub(crate) fn mutates(&self) -> bool {
        !self.mutating_policies.is_empty() || !self.mutating_webhooks.is_empty()
    }

    /// Whether anything may deny requests after validation.
    pub(crate) fn validates(&self) -> bool {
        !self.validating_policies.is_empty() || !self.validating_webhooks.is_empty()
    }
}

/// The configuration in use.
#[derive(Debug, Default)]
pub(crate) struct AdmissionConfig {
    /// `None` if nothing is configured.
    current: RwLock<Option<Arc<Configured>>>,
    /// The compiled configurations, so that only those that are written are compiled.
    compiled: Mutex<Compiled>,
    pub(crate) metrics: AdmissionMetrics,
}

type Kept<T> = HashMap<String, (Revision, Arc<T>)>;

#[derive(Debug, Default)]
struct Compiled {
    mutating_webhooks: Kept<Vec<Arc<Webhook>>>,
    validating_webhooks: Kept<Vec<Arc<Webhook>>>,
    mutating_policies: Kept<Policy>,
    validating_policies: Kept<Policy>,
}

impl AdmissionConfig {
    /// The current configurations; `None` if there are none.
    pub(crate) fn current(&self) -> Option<Arc<Configured>> {
        self.current
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Uses what is stored from now on.
    pub(crate) fn reload(&self, store: &dyn Store) {
        // Read under the lock, so that the last of several writers reads all writes.
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        let webhooks = |object: &Object| -> Vec<Arc<Webhook>> {
            let webhooks = webhook::webhooks_of(object).into_iter();
            webhooks.map(Arc::new).collect()
        };
        let mutating = compile(
            store,
            "mutatingwebhookconfigurations",
            &mut compiled.mutating_webhooks,
            webhooks,
        );
        let validating = compile(
            store,
            "validatingwebhookconfigurations",
            &mut compiled.validating_webhooks,
            webhooks,
        );
        let mutating_policies = compile(
            store,
            "mutatingadmissionpolicies",
            &mut compiled.mutating_policies,
            Policy::mutating,
        );
        let validating_policies = compile(
            store,
            "validatingadmissionpolicies",
            &mut compiled.validating_policies,
            Policy::validating,
        );
        let configured = Configured {
            mutating_policies: bound(store, mutating_policies, "mutatingadmissionpolicybindings"),
            mutating_webhooks: flat(&mutating),
            validating_policies: bound(
                store,
                validating_policies,
                "validatingadmissionpolicybindings",
            ),
            validating_webhooks: flat(&validating),
        };
        let is_any = configured.mutates() || configured.validates();
        *self.current.write().unwrap_or_else(PoisonError::into_inner) =
            is_any.then(|| Arc::new(configured));
    }
}

fn list(store: &dyn Store, plural: &str) -> Vec<Arc<bellerophon_storage::Stored>> {
    let collection = format!("{GROUP}/{plural}");
    let listing = store.list(&collection, &Range::default(), None);
    listing.expect("the newest state is always kept").objects
}

/// The stored objects in the order of their names, compiled if they have changed.
fn compile<T>(
    store: &dyn Store,
    plural: &str,
    kept: &mut Kept<T>,
    compile: impl Fn(&Object) -> T,
) -> Vec<Arc<T>> {
    let mut old = std::mem::take(kept);
    let mut all = Vec::new();
    for stored in list(store, plural) {
        let name = stored.key.name().to_owned();
        let item = match old.remove(&name) {
            Some((revision, item)) if revision == stored.revision => item,
            _ => Arc::new(compile(&stored.encoded.decode())),
        };
        all.push(item.clone());
        kept.insert(name, (stored.revision, item));
    }
    all
}

fn flat(configurations: &[Arc<Vec<Arc<Webhook>>>]) -> Indexed<Arc<Webhook>> {
    let all = configurations.iter().flat_map(|webhooks| webhooks.iter());
    Indexed::new(all.cloned().collect(), |webhook| &webhook.criteria)
}

/// Policies with their bindings; those without a binding have no effect.
fn bound(store: &dyn Store, policies: Vec<Arc<Policy>>, plural: &str) -> Indexed<BoundPolicy> {
    let mut bindings: HashMap<String, Vec<Arc<Binding>>> = HashMap::new();
    for stored in list(store, plural) {
        let binding = Arc::new(Binding::of(&stored.encoded.decode()));
        bindings
            .entry(binding.policy.clone())
            .or_default()
            .push(binding);
    }
    let bound = policies.into_iter().filter_map(|policy| {
        let bindings = bindings.remove(&policy.name)?;
        Some(BoundPolicy { policy, bindings })
    });
    Indexed::new(bound.collect(), |bound| &bound.policy.criteria)
}
