//! Client: typed reads and writes of a reconcile.
//!
//! In: objects and keys. Out: requests, and what the server stored.
//! Guarantees: kind and namespace come from the object; each successful write passes the
//! read-your-writes gate and the trace; what is already as desired is not written; a response is
//! decoded on demand only.

mod connect; // clients of clusters
mod difference; // merge patches
mod error; // failed requests
mod mapper; // kinds known at run time
mod options; // options of writes
mod path; // names in paths
mod request; // from an object to a request
mod subresource; // binding, eviction, scale, …
mod template; // many objects alike
mod write; // writes without types
mod written; // stored objects

use std::any::Any;
use std::fmt;
use std::sync::Arc;

use bellerophon_kinds::{Kind, downcast};
use kube::api::{ListParams, Patch};
use serde::Serialize;

pub use connect::connect;
pub(crate) use difference::difference;
pub use error::WriteError;
pub(crate) use mapper::RestMapper;
pub use options::{ConflictPolicy, Precondition, WriteOptions};
pub use path::path_segment;
pub use subresource::Subresource;
pub use template::Template;
pub use written::{OperationResult, Written};

use crate::ObjectKey;
use crate::gate::Core;
use crate::informer::kind_name;

/// Shared by all clients of one controller.
#[derive(Clone)]
pub(crate) struct ClientConfig {
    pub(crate) client: kube::Client,
    pub(crate) field_manager: Arc<str>,
    pub(crate) user_agent: Option<String>,
    pub(crate) mapper: RestMapper,
}

impl ClientConfig {
    /// The client of one reconcile.
    pub(crate) fn for_reconcile(
        self: &Arc<Self>,
        controller: Arc<Core>,
        reconciling: ObjectKey,
    ) -> ReconcileClient {
        ReconcileClient {
            config: self.clone(),
            gate: Some(Gate {
                controller,
                reconciling,
            }),
            options: WriteOptions::default(),
        }
    }
}

/// An object without its type.
type AnyObject = dyn Any + Send + Sync;

/// Where writes are recorded.
#[derive(Clone)]
struct Gate {
    controller: Arc<Core>,
    reconciling: ObjectKey,
}

/// Reads and writes objects of any kind, and records the writes: the reconciled object is not
/// reconciled again on a cache that does not show them yet.
///
/// [`Request::client`](crate::controller::Request::client) returns it. Kind and namespace are those
/// of the object, the field manager is that of the controller.
///
/// ```
/// use bellerophon::prelude::*;
/// use k8s_openapi::api::core::v1::ConfigMap;
/// use kube::ResourceExt;
///
/// async fn reconcile(req: Request<ConfigMap>) -> Result<Action, Error> {
///     if let Some(map) = req.object() {
///         let label = |new: &mut ConfigMap| {
///             new.labels_mut().insert("checked".into(), "true".into());
///         };
///         req.client().create_or_update(map, label).await?;
///     }
///     Ok(Action::await_change())
/// }
/// ```
#[derive(Clone)]
pub struct ReconcileClient {
    config: Arc<ClientConfig>,
    /// `None` outside of a reconcile.
    gate: Option<Gate>,
    options: WriteOptions,
}

impl ReconcileClient {
    /// A client outside of a reconcile, for runnables and commands: the same requests, without the
    /// read-your-writes gate.
    pub fn new(client: kube::Client, field_manager: impl Into<Arc<str>>) -> Self {
        let mapper = RestMapper::new(client.clone());
        Self {
            config: Arc::new(ClientConfig {
                client,
                field_manager: field_manager.into(),
                user_agent: None,
                mapper,
            }),
            gate: None,
            options: WriteOptions::default(),
        }
    }

    /// The same client with other options for its writes. Unset fields stay.
    #[must_use]
    pub fn with_options(&self, options: WriteOptions) -> Self {
        Self {
            options: options.or(&self.options),
            ..self.clone()
        }
    }

    /// Applies an object by server-side apply. The fields it sets become those of the field
    /// manager, also if another one had them.
    ///
    /// Whatever has the name is written, also an object that the cache does not have yet and that
    /// belongs to another owner. Use [`create_or_apply`](Self::create_or_apply) for objects that
    /// the reconciled one owns.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn apply<K: Kind>(&self, object: &K) -> Result<Written<K>, WriteError> {
        Ok(self.apply_erased(object, K::codec()).await?.into())
    }

    /// Makes an object as desired, if it is still as it was when the desired one was planned.
    ///
    /// `current` is the object in the cache. Without it, the desired object is created, so that an
    /// object of its name which the cache does not have yet is not taken over. Otherwise the desired
    /// object is applied with the UID and version of the current one, so that it reaches neither a
    /// later version nor another object of its name; see [`field@WriteOptions::precondition`].
    ///
    /// Both are server-side apply: a field that a later desired object leaves out is removed. They
    /// need the permissions `create` and `patch`.
    ///
    /// # Errors
    /// The server refuses. A conflict ([`WriteError::is_conflict`]) means that the object changed,
    /// was deleted or exists already: read it again and plan again.
    ///
    /// ```
    /// use bellerophon::prelude::*;
    /// use k8s_openapi::api::core::v1::ConfigMap;
    ///
    /// async fn write(
    ///     req: &Request<ConfigMap>,
    ///     children: &Lister<ConfigMap>,
    ///     desired: &ConfigMap,
    /// ) -> Result<(), Error> {
    ///     let current = children.get(&ObjectKey::from_object(desired));
    ///     // Here: return if `current` has another owner.
    ///     req.client().create_or_apply(current.as_deref(), desired).await?;
    ///     Ok(())
    /// }
    /// ```
    pub async fn create_or_apply<K: Kind>(
        &self,
        current: Option<&K>,
        desired: &K,
    ) -> Result<Written<K>, WriteError> {
        let codec = K::codec();
        let response = match current {
            Some(current) => self.apply_if_current(current, desired, codec).await?,
            None => self.create_by_apply(desired, codec).await?,
        };
        Ok(response.into())
    }

    /// Applies only the status of an object, as [`apply`](Self::apply) does. No request is sent if
    /// `object` has this status.
    ///
    /// # Errors
    /// The server refuses, or the object does not exist.
    pub async fn apply_status<K: Kind>(
        &self,
        object: &K,
        status: &impl Serialize,
    ) -> Result<Written<K>, WriteError> {
        let status = serde_json::to_vec(status).map_err(kube::Error::SerdeError);
        Ok(self
            .apply_status_erased(object, K::codec(), status)
            .await?
            .into())
    }

    /// Creates an object.
    ///
    /// # Errors
    /// The server refuses, or an object of this name exists.
    pub async fn create<K: Kind>(&self, object: &K) -> Result<Written<K>, WriteError> {
        Ok(self.create_erased(object, K::codec()).await?.into())
    }

    /// Replaces an object (PUT). The version in its metadata makes the server refuse the update if
    /// another client changed the object.
    ///
    /// # Errors
    /// The server refuses, or the object changed.
    pub async fn update<K: Kind>(&self, object: &K) -> Result<Written<K>, WriteError> {
        Ok(self.update_erased(object, K::codec()).await?.into())
    }

    /// Makes an object as `mutate` changes it: the current one, or `object` if there is none.
    ///
    /// The current object is taken from the controller's cache of the kind if it is there, else
    /// from the server. No request is sent if `mutate` changes nothing. A change is sent as a merge
    /// patch with the version it was made from, so that no change of others is lost.
    ///
    /// # Errors
    /// The server refuses, or another client changed the object.
    pub async fn create_or_update<K: Kind>(
        &self,
        object: &K,
        mutate: impl FnOnce(&mut K),
    ) -> Result<Written<K>, WriteError> {
        let codec = K::codec();
        match self.current(object, codec).await? {
            Some(current) => {
                let current = downcast::<K>(current);
                let mut desired = K::clone(&current);
                mutate(&mut desired);
                Ok(self
                    .patch_difference(&*current, &desired, codec)
                    .await?
                    .into())
            }
            None => {
                let mut desired = object.clone();
                mutate(&mut desired);
                Ok(self.create_erased(&desired, codec).await?.into())
            }
        }
    }

    /// Patches what differs between two states of one object, as a merge patch. No request is sent
    /// if nothing does.
    ///
    /// # Errors
    /// The server refuses, or another client changed the object.
    pub async fn patch_from<K: Kind>(
        &self,
        current: &K,
        desired: &K,
    ) -> Result<Written<K>, WriteError> {
        Ok(self
            .patch_difference(current, desired, K::codec())
            .await?
            .into())
    }

    /// Patches what differs between the status and metadata of two states of one object, as a merge
    /// patch of the `status` subresource. No request is sent if nothing does.
    ///
    /// # Errors
    /// The server refuses, or another client changed the object.
    pub async fn patch_status_from<K: Kind>(
        &self,
        current: &K,
        desired: &K,
    ) -> Result<Written<K>, WriteError> {
        Ok(self
            .patch_status_difference(current, desired, K::codec())
            .await?
            .into())
    }

    /// An object encoded once, to create many like it.
    ///
    /// # Errors
    /// The object cannot be encoded.
    pub async fn template<K: Kind>(&self, object: &K) -> Result<Template<K>, WriteError> {
        let codec = K::codec();
        let target = self.target_of("create", object, codec).await?;
        let body = self.body(&target, object, codec)?;
        Ok(Template::new(target, body))
    }

    /// Creates an object of a template, whose name the server generates.
    ///
    /// # Errors
    /// The server refuses.
    pub async fn create_from_template<K: Kind>(
        &self,
        template: &Template<K>,
    ) -> Result<Written<K>, WriteError> {
        let body = template.body.clone();
        Ok(self.create_body(&template.target, body).await?.into())
    }

    /// Patches an object.
    ///
    /// # Errors
    /// The server refuses, or the object does not exist.
    pub async fn patch<K: Kind>(
        &self,
        object: &K,
        patch: &Patch<impl Serialize + fmt::Debug>,
    ) -> Result<Written<K>, WriteError> {
        let target = self.target_of("patch", object, K::codec()).await?;
        // The API server rejects `force` on every other type of patch.
        let params = self.patch_params(matches!(patch, Patch::Apply(_)));
        let request = kube::core::Request::new(&*target.path).patch(&target.name, &params, patch);
        let response = self.send(&target, request).await?;
        Ok(self
            .recorded(&target, response, OperationResult::Updated)
            .into())
    }

    /// Deletes exactly the object that was read: no later version and no other object of its name.
    /// An object that is deleted already is no error.
    ///
    /// # Errors
    /// The server refuses, or the object changed since it was read.
    pub async fn delete<K: Kind>(&self, object: &K) -> Result<(), WriteError> {
        match self.delete_erased(object, K::codec()).await {
            // The desired state is reached, by whichever client.
            Err(error) if error.is_not_found() => Ok(()),
            result => result,
        }
    }

    /// As [`delete`](Self::delete), but an object that is deleted already is an error.
    ///
    /// # Errors
    /// The server refuses, or the object does not exist or changed since it was read.
    pub async fn delete_existing<K: Kind>(&self, object: &K) -> Result<(), WriteError> {
        self.delete_erased(object, K::codec()).await
    }

    /// A subresource of objects, such as `binding`, `eviction` or `scale`.
    pub fn subresource(&self, name: &'static str) -> Subresource {
        Subresource {
            client: self.clone(),
            name,
        }
    }

    /// An object from the server; `None` if it does not exist. Caches are read through
    /// [`Lister`](crate::informer::Lister).
    ///
    /// # Errors
    /// The server refuses, or the object cannot be decoded.
    pub async fn get<K: Kind<DynamicType = ()>>(
        &self,
        key: &ObjectKey,
    ) -> Result<Option<Arc<K>>, WriteError> {
        let target = self.static_target("get", key.clone(), K::codec())?;
        let found = self.get_erased(&target, K::codec()).await?;
        Ok(found.map(downcast))
    }

    /// The objects of a namespace, or of all, from the server, in the order of the server. Pages
    /// are followed to the end.
    ///
    /// # Errors
    /// The server refuses, or an object cannot be decoded.
    pub async fn list<K: Kind<DynamicType = ()>>(
        &self,
        namespace: Option<&str>,
        params: &ListParams,
    ) -> Result<Vec<Arc<K>>, WriteError> {
        let key = ObjectKey::new(namespace, "");
        let target = self.static_target("list", key, K::codec())?;
        let found = self.list_erased(&target, K::codec(), params).await?;
        Ok(found.into_iter().map(downcast).collect())
    }

    /// The plain client. Its writes bypass the read-your-writes gate: report them with
    /// [`record_write`](Self::record_write) and [`record_delete`](Self::record_delete), or the next
    /// reconcile may act on a cache without them.
    pub fn kube(&self) -> &kube::Client {
        &self.config.client
    }

    /// Records a write that another client made; `answer` is the server's response.
    pub fn record_write<K: Kind>(&self, answer: &K) {
        let codec = K::codec();
        let metadata = answer.meta();
        if let Some(kind) = self.kind_of(answer, codec) {
            let version = metadata.resource_version.clone().unwrap_or_default();
            self.wrote(kind, ObjectKey::from_object(answer), Some(version));
        }
    }

    /// Records a deletion that another client made and that is complete: no finalizer holds the
    /// object.
    pub fn record_delete<K: Kind<DynamicType = ()>>(&self, key: &ObjectKey) {
        let resource = K::codec().resource().expect("the type knows its kind");
        self.wrote(kind_name(&resource), key.clone(), None);
    }

    /// The field manager of its writes.
    pub fn field_manager(&self) -> &str {
        self.options
            .field_manager
            .as_deref()
            .unwrap_or(&self.config.field_manager)
    }
}

impl fmt::Debug for ReconcileClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ReconcileClient")
            .field("field_manager", &self.field_manager())
            .finish_non_exhaustive()
    }
}
