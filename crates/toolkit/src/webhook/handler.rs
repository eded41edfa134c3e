//! Handlers: what validates and mutates, with its type and without.

use std::future::Future;
use std::sync::Arc;

use bellerophon_kinds::{Kind, Object, downcast, encode};
use futures_util::future::BoxFuture;

use super::rejection::Rejection;
use super::review::{Exchange, Review};

/// Decides whether an object is admitted.
///
/// Every function and closure `Fn(&Review<K>, &K) -> Result<(), Rejection>` is one. A handler that
/// awaits something, or that has a lister or client of its own, implements the trait.
///
/// When an object is deleted, `object` is the one that is deleted.
///
/// ```
/// use bellerophon::prelude::*;
/// use bellerophon::webhook::{FailurePolicy, Rejection, Review, Validator};
/// use k8s_openapi::api::core::v1::{ConfigMap, Secret};
///
/// /// A ConfigMap must not have the name of a Secret.
/// struct NamesDiffer {
///     secrets: Lister<Secret>,
/// }
///
/// impl Validator<ConfigMap> for NamesDiffer {
///     async fn validate(
///         &self,
///         _review: &Review<ConfigMap>,
///         map: &ConfigMap,
///     ) -> Result<(), Rejection> {
///         match self.secrets.get(&ObjectKey::from_object(map)) {
///             Some(_) => Err(Rejection::denied("a Secret has this name")),
///             None => Ok(()),
///         }
///     }
/// }
///
/// fn setup(mgr: &mut Manager) {
///     let secrets = mgr.lister();
///     mgr.webhook::<ConfigMap>().validate(FailurePolicy::Fail, NamesDiffer { secrets });
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not validate `{K}`",
    note = "a validator is a `Fn(&Review<{K}>, &{K}) -> Result<(), Rejection>` whose parameters \
            have their types, or implements `Validator<{K}>`"
)]
pub trait Validator<K: Kind>: Send + Sync + 'static {
    /// Admits the object, or returns why not.
    fn validate(
        &self,
        review: &Review<K>,
        object: &K,
    ) -> impl Future<Output = Result<(), Rejection>> + Send;

    /// Whether it has side effects. Only [`SideEffects`] has.
    #[doc(hidden)]
    fn has_side_effects(&self) -> bool {
        false
    }
}

impl<K, F> Validator<K> for F
where
    K: Kind,
    F: Fn(&Review<K>, &K) -> Result<(), Rejection> + Send + Sync + 'static,
{
    fn validate(
        &self,
        review: &Review<K>,
        object: &K,
    ) -> impl Future<Output = Result<(), Rejection>> + Send {
        std::future::ready(self(review, object))
    }
}

/// Changes an object before it is validated and stored.
///
/// Every function and closure `Fn(&Review<K>, &mut K) -> Result<(), Rejection>` is one. A handler
/// that awaits something, or that has a lister or client of its own, implements the trait.
///
/// The API server may call it again after other webhooks, so it must be idempotent. Fields that `K`
/// does not know are never touched.
///
/// ```
/// use bellerophon::prelude::*;
/// use bellerophon::webhook::{FailurePolicy, Mutator, Rejection, Review};
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use kube::ResourceExt;
///
/// struct Labeller(String);
///
/// impl Mutator<ConfigMap> for Labeller {
///     async fn mutate(
///         &self,
///         _review: &Review<ConfigMap>,
///         map: &mut ConfigMap,
///     ) -> Result<(), Rejection> {
///         map.labels_mut().insert("team".into(), self.0.clone());
///         Ok(())
///     }
/// }
///
/// fn setup(mgr: &mut Manager) {
///     mgr.webhook::<ConfigMap>().mutate(FailurePolicy::Ignore, Labeller("heroes".into()));
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` does not mutate `{K}`",
    note = "a mutator is a `Fn(&Review<{K}>, &mut {K}) -> Result<(), Rejection>` whose parameters \
            have their types, or implements `Mutator<{K}>`"
)]
pub trait Mutator<K: Kind>: Send + Sync + 'static {
    /// Changes the object, or returns why the request is not admitted.
    fn mutate(
        &self,
        review: &Review<K>,
        object: &mut K,
    ) -> impl Future<Output = Result<(), Rejection>> + Send;

    /// Whether it has side effects. Only [`SideEffects`] has.
    #[doc(hidden)]
    fn has_side_effects(&self) -> bool {
        false
    }
}

impl<K, F> Mutator<K> for F
where
    K: Kind,
    F: Fn(&Review<K>, &mut K) -> Result<(), Rejection> + Send + Sync + 'static,
{
    fn mutate(
        &self,
        review: &Review<K>,
        object: &mut K,
    ) -> impl Future<Output = Result<(), Rejection>> + Send {
        std::future::ready(self(review, object))
    }
}

/// What a handler with side effects does when nothing will be stored.
///
/// ```
/// use bellerophon::webhook::OnDryRun;
///
/// assert_ne!(OnDryRun::Admit, OnDryRun::Deny);
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnDryRun {
    /// It is called, and leaves its side effects out by [`Review::dry_run`].
    Handle,
    /// It is not called; the request is admitted unchanged.
    Admit,
    /// It is not called; the request is denied.
    Deny,
}

/// A handler with side effects: it changes something besides the object under review.
///
/// A handler without this wrapper is registered with `sideEffects: None`, and is called for dry
/// runs as for all other requests. This one is registered with `NoneOnDryRun`, and states what
/// happens then.
///
/// ```
/// use bellerophon::prelude::*;
/// use bellerophon::webhook::{FailurePolicy, OnDryRun, Rejection, Review, SideEffects, Validator};
/// use k8s_openapi::api::core::v1::ConfigMap;
///
/// /// Reserves the name of a ConfigMap in a system outside of the cluster.
/// struct Reserve;
///
/// impl Validator<ConfigMap> for Reserve {
///     async fn validate(&self, review: &Review<ConfigMap>, _: &ConfigMap) -> Result<(), Rejection> {
///         println!("reserved {}", review.name());
///         Ok(())
///     }
/// }
///
/// fn setup(mgr: &mut Manager) {
///     let reserve = SideEffects::new(Reserve, OnDryRun::Admit);
///     mgr.webhook::<ConfigMap>().validate(FailurePolicy::Fail, reserve);
/// }
/// ```
#[derive(Clone, Debug)]
pub struct SideEffects<H> {
    handler: H,
    on_dry_run: OnDryRun,
}

impl<H> SideEffects<H> {
    /// A handler with side effects, and what it does on a dry run.
    pub fn new(handler: H, on_dry_run: OnDryRun) -> Self {
        Self {
            handler,
            on_dry_run,
        }
    }

    /// The result of a dry run that the handler is not called for.
    fn without_a_call(&self, is_dry_run: bool) -> Option<Result<(), Rejection>> {
        match self.on_dry_run {
            _ if !is_dry_run => None,
            OnDryRun::Handle => None,
            OnDryRun::Admit => Some(Ok(())),
            OnDryRun::Deny => Some(Err(Rejection::denied(
                "this webhook has side effects and does not support dry runs",
            ))),
        }
    }
}

impl<K: Kind, H: Validator<K>> Validator<K> for SideEffects<H> {
    async fn validate(&self, review: &Review<K>, object: &K) -> Result<(), Rejection> {
        match self.without_a_call(review.dry_run()) {
            Some(result) => result,
            None => self.handler.validate(review, object).await,
        }
    }

    fn has_side_effects(&self) -> bool {
        true
    }
}

impl<K: Kind, H: Mutator<K>> Mutator<K> for SideEffects<H> {
    async fn mutate(&self, review: &Review<K>, object: &mut K) -> Result<(), Rejection> {
        match self.without_a_call(review.dry_run()) {
            Some(result) => result,
            None => self.handler.mutate(review, object).await,
        }
    }

    fn has_side_effects(&self) -> bool {
        true
    }
}

/// The encoding of an object before and after a mutation.
pub(crate) struct Mutation {
    pub(crate) before: Vec<u8>,
    pub(crate) after: Vec<u8>,
}

/// A handler without its types: given the request, the old object and the object, it returns what
/// it did to the object; `None` if it does not change objects.
pub(crate) type AnyHandler = Arc<
    dyn Fn(
            Arc<Exchange>,
            Option<Object>,
            Object,
        ) -> BoxFuture<'static, Result<Option<Mutation>, Rejection>>
        + Send
        + Sync,
>;

pub(crate) fn any_validator<K: Kind>(validator: impl Validator<K>) -> AnyHandler {
    let validator = Arc::new(validator);
    Arc::new(move |exchange, old, object| {
        let validator = validator.clone();
        Box::pin(async move {
            let review = Review::<K>::new(exchange, old);
            validator.validate(&review, &downcast::<K>(object)).await?;
            Ok(None)
        })
    })
}

pub(crate) fn any_mutator<K: Kind>(mutator: impl Mutator<K>) -> AnyHandler {
    let mutator = Arc::new(mutator);
    Arc::new(move |exchange, old, object| {
        let mutator = mutator.clone();
        Box::pin(async move {
            let review = Review::<K>::new(exchange, old);
            let mut object = Arc::unwrap_or_clone(downcast::<K>(object));
            let before = encoded(&object)?;
            mutator.mutate(&review, &mut object).await?;
            let after = encoded(&object)?;
            Ok(Some(Mutation { before, after }))
        })
    })
}

fn encoded<K: Kind>(object: &K) -> Result<Vec<u8>, Rejection> {
    let encoded = encode(object);
    encoded.map_err(|error| Rejection::failed(format!("cannot encode the object: {error}")))
}
