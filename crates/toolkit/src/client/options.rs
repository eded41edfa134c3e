//! Options of writes.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::api::{DeleteParams, Preconditions, PropagationPolicy};
use serde_json::{Value, json};

/// How server-side apply handles fields of another field manager.
///
/// ```
/// use bellerophon::client::{ConflictPolicy, WriteOptions};
/// use bellerophon::prelude::*;
/// use k8s_openapi::api::apps::v1::Deployment;
///
/// /// Fails with a conflict if an autoscaler or another manager owns a field of `desired`.
/// async fn apply(req: &Request<Deployment>, desired: &Deployment) -> Result<(), Error> {
///     let cooperative = WriteOptions {
///         on_conflict: Some(ConflictPolicy::Fail),
///         ..WriteOptions::default()
///     };
///     req.client().with_options(cooperative).apply(desired).await?;
///     Ok(())
/// }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ConflictPolicy {
    /// Takes them over. This is the default, as for every controller that is the authority on its
    /// fields.
    #[default]
    Force,
    /// Fails with a conflict.
    Fail,
}

/// The precondition of a write, checked by the server.
///
/// ```
/// use bellerophon::client::{Precondition, WriteOptions};
///
/// // A newer version of the object is deleted; another object of the same name is not.
/// let same_object = WriteOptions {
///     precondition: Some(Precondition::Uid),
///     ..WriteOptions::default()
/// };
/// assert_eq!(same_object.precondition, Some(Precondition::Uid));
/// assert_eq!(Precondition::default(), Precondition::Version);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Precondition {
    /// The object has the UID and the version it was read with. This is the default.
    #[default]
    Version,
    /// The object has the UID it was read with, in any version.
    Uid,
    /// Nothing: whatever has the name is written.
    None,
}

impl Precondition {
    /// Adds it to a merge patch.
    pub(super) fn set(self, patch: &mut Value, metadata: &ObjectMeta) {
        if self != Self::None {
            // The API server rejects a patch whose uid or resourceVersion differs from the stored
            // one.
            patch["metadata"]["uid"] = json!(metadata.uid);
        }
        if self == Self::Version {
            patch["metadata"]["resourceVersion"] = json!(metadata.resource_version);
        }
    }
}

/// Settings of the writes of a [`ReconcileClient`](super::ReconcileClient). `None` keeps the
/// present setting.
///
/// ```
/// use bellerophon::client::{Precondition, WriteOptions};
/// use bellerophon::prelude::*;
/// use k8s_openapi::api::core::v1::Pod;
///
/// async fn evict(req: &Request<Pod>, pod: &Pod) -> Result<(), Error> {
///     let any_version = WriteOptions {
///         precondition: Some(Precondition::Uid),
///         ..WriteOptions::default()
///     };
///     Ok(req.client().with_options(any_version).delete(pod).await?)
/// }
/// ```
#[derive(Clone, Debug, Default)]
pub struct WriteOptions {
    /// The field manager; default: that of the controller.
    pub field_manager: Option<String>,
    /// How server-side apply handles fields of others; default: takes them over.
    pub on_conflict: Option<ConflictPolicy>,
    /// The precondition of `create_or_update`, `create_or_apply` and `delete`; default: UID and
    /// version.
    pub precondition: Option<Precondition>,
    /// The propagation policy of a delete; default: that of the kind.
    pub propagation: Option<PropagationPolicy>,
    /// Whether the server only validates; default: false.
    pub dry_run: Option<bool>,
    /// The grace period of a deletion in seconds; default: that of the kind.
    pub grace_period_seconds: Option<u32>,
}

impl WriteOptions {
    pub(super) fn or(self, base: &Self) -> Self {
        Self {
            field_manager: self.field_manager.or_else(|| base.field_manager.clone()),
            on_conflict: self.on_conflict.or(base.on_conflict),
            precondition: self.precondition.or(base.precondition),
            propagation: self.propagation.or_else(|| base.propagation.clone()),
            dry_run: self.dry_run.or(base.dry_run),
            grace_period_seconds: self.grace_period_seconds.or(base.grace_period_seconds),
        }
    }

    pub(super) fn on_conflict(&self) -> ConflictPolicy {
        self.on_conflict.unwrap_or_default()
    }

    pub(super) fn precondition(&self) -> Precondition {
        self.precondition.unwrap_or_default()
    }

    pub(super) fn delete_params(&self, metadata: &ObjectMeta) -> DeleteParams {
        let version = metadata.resource_version.clone();
        let preconditions = match self.precondition() {
            Precondition::Version => Some((metadata.uid.clone(), version)),
            Precondition::Uid => Some((metadata.uid.clone(), None)),
            Precondition::None => None,
        };
        let preconditions = preconditions.map(|(uid, resource_version)| Preconditions {
            uid,
            resource_version,
        });
        DeleteParams {
            dry_run: self.dry_run == Some(true),
            grace_period_seconds: self.grace_period_seconds,
            propagation_policy: self.propagation.clone(),
            preconditions,
        }
    }
}
