//! Builder: declares the webhooks of one kind.

use std::fmt;
use std::marker::PhantomData;
use std::panic::Location;
use std::time::Duration;

use bellerophon_kinds::Kind;
use kube::core::ApiResource;
use kube::core::Selector;
use serde_json::json;

use super::admission::AdmissionHandler;
use super::declaration::{Admission, Settings, Verb};
use super::handler::{AnyHandler, Mutator, Validator, any_mutator, any_validator};
use super::options::FailurePolicy;
use super::review::{GroupVersionKind, Operation};
use super::run::Webhooks;
use crate::cluster::Cluster;

/// Declares the webhooks of a kind. [`Manager::webhook`](crate::manager::Manager::webhook) returns it.
///
/// A setting applies to the verbs after it. Default: creations and updates of the object itself,
/// in all namespaces but `kube-system` and that of the webhook's own Service.
///
/// ```
/// use bellerophon::prelude::*;
/// use bellerophon::webhook::{FailurePolicy, Operation, Rejection, Review};
/// use k8s_openapi::api::core::v1::ConfigMap;
///
/// fn default(_review: &Review<ConfigMap>, map: &mut ConfigMap) -> Result<(), Rejection> {
///     map.immutable.get_or_insert(false);
///     Ok(())
/// }
///
/// fn keep(_review: &Review<ConfigMap>, map: &ConfigMap) -> Result<(), Rejection> {
///     match map.immutable {
///         Some(true) => Err(Rejection::denied("locked")),
///         _ => Ok(()),
///     }
/// }
///
/// fn setup(mgr: &mut Manager) {
///     mgr.webhook::<ConfigMap>()
///         .mutate(FailurePolicy::Ignore, default)
///         .operations([Operation::Delete])
///         .match_condition("not-the-garbage-collector", "request.userInfo.username != 'gc'")
///         .validate(FailurePolicy::Fail, keep);
/// }
/// ```
pub struct WebhookBuilder<'a, K> {
    cluster: &'a Cluster,
    webhooks: &'a mut Webhooks,
    settings: Settings,
    location: &'static Location<'static>,
    kind: PhantomData<fn(K)>,
}

impl<'a, K: Kind<DynamicType = ()>> WebhookBuilder<'a, K> {
    pub(crate) fn new(
        cluster: &'a Cluster,
        webhooks: &'a mut Webhooks,
        location: &'static Location<'static>,
    ) -> Self {
        Self {
            cluster,
            webhooks,
            settings: Settings::default(),
            location,
            kind: PhantomData,
        }
    }

    /// A name that distinguishes this webhook from others of the same kind and verb. Default: none.
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.settings.name = Some(name.into());
        self
    }

    /// The operations that it is called for. Default: `Create` and `Update`.
    pub fn operations(mut self, operations: impl IntoIterator<Item = Operation>) -> Self {
        self.settings.operations = operations.into_iter().collect();
        self
    }

    /// The subresource that it is called for, instead of the object itself: `status`, for example.
    pub fn subresource(mut self, name: impl Into<String>) -> Self {
        self.settings.subresource = Some(name.into());
        self
    }

    /// Only objects whose labels match, before or after the request.
    pub fn object_selector(mut self, selector: impl Into<Selector>) -> Self {
        self.settings.object_selector = Some(label_selector(&selector.into()));
        self
    }

    /// Only objects in namespaces whose labels match.
    pub fn namespace_selector(mut self, selector: impl Into<Selector>) -> Self {
        let selector = label_selector(&selector.into());
        let expressions = selector["matchExpressions"].as_array().cloned();
        self.settings
            .namespace_selector
            .extend(expressions.unwrap_or_default());
        self
    }

    /// Only requests for which a CEL expression over `object`, `oldObject`, `request` and
    /// `authorizer` is true. Requests that it leaves out cost no call.
    pub fn match_condition(
        mut self,
        name: impl Into<String>,
        expression: impl Into<String>,
    ) -> Self {
        let condition = (name.into(), expression.into());
        self.settings.match_conditions.push(condition);
        self
    }

    /// How long the API server waits, 1 to 30 seconds. Default: 10 seconds. The handler has half a
    /// second less.
    pub fn timeout(mut self, timeout: Duration) -> Self {
        self.settings.timeout = timeout;
        self
    }

    /// Calls it also for objects in `kube-system` and in the namespace of its own Service.
    ///
    /// With [`FailurePolicy::Fail`] and a kind that its own pods need, the webhook cannot start
    /// again once it is down.
    pub fn system_namespaces(mut self) -> Self {
        self.settings.includes_system_namespaces = true;
        self
    }

    /// Decides whether objects are admitted.
    pub fn validate(self, failure_policy: FailurePolicy, validator: impl Validator<K>) -> Self {
        let has_side_effects = validator.has_side_effects();
        let handler = any_validator(validator);
        self.declare(Verb::Validate, failure_policy, has_side_effects, handler)
    }

    /// Changes objects before they are validated and stored.
    pub fn mutate(self, failure_policy: FailurePolicy, mutator: impl Mutator<K>) -> Self {
        let has_side_effects = mutator.has_side_effects();
        let handler = any_mutator(mutator);
        if self.settings.operations.contains(&Operation::Delete) {
            let message = "an object that is deleted cannot be mutated: declare other operations";
            self.cluster.errors.add(message.to_owned(), self.location);
        }
        self.declare(Verb::Mutate, failure_policy, has_side_effects, handler)
    }

    /// Converts the kind from and to another version of it: `K` is the hub, through which all
    /// versions are converted.
    ///
    /// What `S` cannot hold is kept in an annotation, [`CONVERSION_DATA`], and restored on the way
    /// back as far as it does not contradict what a client changed in `S`. So the conversion of
    /// `K` to `S` and back loses nothing.
    ///
    /// ```
    /// use bellerophon::prelude::*;
    /// use kube::CustomResource;
    /// use schemars::JsonSchema;
    /// use serde::{Deserialize, Serialize};
    ///
    /// mod v1alpha1 {
    /// #   use super::*;
    ///     #[derive(CustomResource, Clone, Debug, Deserialize, JsonSchema, Serialize)]
    ///     #[kube(group = "example.org", version = "v1alpha1", kind = "Hero", plural = "heroes")]
    ///     #[kube(namespaced, derive = "Kind")]
    ///     pub struct HeroSpec {
    ///         pub horse: String,
    ///     }
    /// }
    ///
    /// #[derive(CustomResource, Clone, Debug, Deserialize, JsonSchema, Serialize)]
    /// #[kube(group = "example.org", version = "v1", kind = "Hero", plural = "heroes")]
    /// #[kube(namespaced, derive = "Kind")]
    /// struct HeroSpec {
    ///     horses: Vec<String>,
    /// }
    ///
    /// impl From<v1alpha1::Hero> for Hero {
    ///     fn from(hero: v1alpha1::Hero) -> Self {
    ///         let horses = vec![hero.spec.horse];
    ///         Self { metadata: hero.metadata, spec: HeroSpec { horses } }
    ///     }
    /// }
    ///
    /// impl From<Hero> for v1alpha1::Hero {
    ///     fn from(hero: Hero) -> Self {
    ///         let horse = hero.spec.horses.first().cloned().unwrap_or_default();
    ///         Self { metadata: hero.metadata, spec: v1alpha1::HeroSpec { horse } }
    ///     }
    /// }
    ///
    /// fn setup(mgr: &mut Manager) {
    ///     mgr.webhook::<Hero>().convert::<v1alpha1::Hero>();
    /// }
    /// # fn main() {}
    /// ```
    ///
    /// [`CONVERSION_DATA`]: super::CONVERSION_DATA
    pub fn convert<S>(self) -> Self
    where
        S: Kind<DynamicType = ()> + TryFrom<K, Error: fmt::Display>,
        K: TryFrom<S, Error: fmt::Display>,
    {
        let is_new = self
            .webhooks
            .service
            .add_conversion(self.cluster.metrics(), |conversions| {
                conversions.add::<K, S>()
            });
        let resource = ApiResource::erase::<K>(&());
        let name = format!("{}.{}", resource.plural, resource.group);
        let kind = &resource.kind;
        let declarations = &mut self.webhooks.declarations;
        if !declarations.converted.contains(&name) {
            declarations.converted.push(name);
        }
        if !is_new {
            let message = format!(
                "a conversion of {kind} is declared twice, or with two hubs: {} and {}",
                resource.api_version,
                S::api_version(&())
            );
            self.cluster.errors.add(message, self.location);
        }
        self
    }

    /// The part of a declaration that does not depend on the handler.
    fn declare(
        self,
        verb: Verb,
        failure_policy: FailurePolicy,
        has_side_effects: bool,
        handler: AnyHandler,
    ) -> Self {
        let codec = K::codec();
        let resource = ApiResource::erase::<K>(&());
        let handler = AdmissionHandler {
            codec,
            kind: GroupVersionKind {
                group: resource.group.clone(),
                version: resource.version.clone(),
                kind: resource.kind.clone(),
            },
            handler,
        };
        let admission = Admission {
            verb,
            resource,
            scope: codec.scope(),
            failure_policy,
            has_side_effects,
            settings: self.settings.clone(),
        };
        let name = admission.name();
        let metrics = self.cluster.metrics();
        if !self.webhooks.declare(admission, handler, metrics) {
            let message = format!("two webhooks are named {name}; name one of them");
            self.cluster.errors.add(message, self.location);
        }
        self
    }
}

/// A selector as a LabelSelector of expressions.
fn label_selector(selector: &Selector) -> serde_json::Value {
    let selector: k8s_openapi::apimachinery::pkg::apis::meta::v1::LabelSelector =
        selector.clone().into();
    json!(selector)
}

impl<K> fmt::Debug for WebhookBuilder<'_, K> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("WebhookBuilder").finish_non_exhaustive()
    }
}
