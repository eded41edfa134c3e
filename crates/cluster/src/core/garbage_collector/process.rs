//! Workers' processing of one object: attempt to delete, attempt to orphan.
//!
//! Input: a uid from the work queue. Output: requests to the API server.
//! Guarantees: decisions are based on live reads, not on watch events; errors are retried with
//! back-off.

use std::sync::Arc;

use bellerophon::client::path_segment;
use bellerophon::trace::TraceEvent;
use futures_util::{StreamExt, TryStreamExt, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions, PropagationPolicy};
use kube::core::DynamicObject;
use kube::{Api, Error};
use serde_json::{Value, json};

use super::graph::{
    Candidate, DeletionState, Dependents, FOREGROUND, Node, ORPHAN, OwnerIdentity, Uid,
};
use super::plan::{Action, OwnerState, plan};
use super::{GarbageCollector, NAME, WorkItem};

/// Dependents of one object that are orphaned concurrently.
const ORPHAN_CONCURRENCY: usize = 20;

/// Why an object is retried.
#[derive(Debug, thiserror::Error)]
pub(super) enum RetryReason {
    #[error(transparent)]
    Client(#[from] Error),
    #[error("cannot look up owner {name}: kind {kind} is not served in {api_version}")]
    UnknownKind {
        api_version: String,
        kind: String,
        name: String,
    },
    #[error("an existing owner has not been observed yet")]
    OwnerNotObserved,
}

/// Result of looking up an owner.
enum OwnerLookup {
    Classified(OwnerState),
    /// The reference is invalid: a namespaced owner of a cluster-scoped dependent. Upstream:
    /// errNamespacedOwnerOfClusterScopedObject.
    NamespacedOwnerOfClusterScopedObject,
}

impl GarbageCollector {
    /// Deletes an object whose owners are gone, or completes its foreground deletion. Mirrors
    /// attemptToDeleteWorker.
    pub(super) async fn attempt_to_delete(&self, uid: &Uid) -> Result<(), RetryReason> {
        let candidate = self.graph().candidate(uid);
        match candidate {
            None => Ok(()),
            // Mirrors processDeletingDependentsItem: without blocking dependents the finalizer is
            // removed, otherwise the dependents are enqueued.
            Some(Candidate::DeletingDependents { object, blocking }) if blocking.is_empty() => {
                self.remove_finalizer(uid, &object, FOREGROUND).await
            }
            Some(Candidate::DeletingDependents { blocking, .. }) => {
                let deletes_dependents = |uid: &Uid| {
                    self.graph()
                        .get(uid)
                        .is_some_and(|object| object.deletion == DeletionState::Foreground)
                };
                blocking
                    .into_iter()
                    // A dependent that deletes its own dependents is enqueued when the last of them
                    // is gone.
                    .filter(|uid| !deletes_dependents(uid))
                    .for_each(|uid| self.queue.add(WorkItem::AttemptToDelete(uid)));
                Ok(())
            }
            Some(Candidate::UnverifiedOwners { object, dependents }) => {
                self.attempt_to_delete_item(uid, &object, dependents).await
            }
        }
    }

    /// Orphans the dependents of an object, then removes its orphan finalizer. Mirrors
    /// attemptToOrphanWorker.
    pub(super) async fn attempt_to_orphan(&self, uid: &Uid) -> Result<(), RetryReason> {
        let Some(owner) = self
            .graph()
            .get(uid)
            .filter(|object| object.deletion == DeletionState::Orphaning)
            .cloned()
        else {
            return Ok(());
        };
        let dependents: Vec<_> = self
            .graph()
            .dependents_of(uid)
            .map(|(uid, object)| (uid.clone(), object.clone()))
            .collect();
        stream::iter(dependents)
            .map(|(dependent, object)| async move {
                self.orphan_dependent(&dependent, &object, uid).await
            })
            .buffer_unordered(ORPHAN_CONCURRENCY)
            .try_collect::<()>()
            .await?;
        // Only after all dependents: a failed one is retried with the finalizer in place.
        self.remove_finalizer(uid, &owner, ORPHAN).await
    }

    async fn attempt_to_delete_item(
        &self,
        uid: &Uid,
        object: &Node,
        dependents: Dependents,
    ) -> Result<(), RetryReason> {
        let api = object.resource.api(&self.client, object.key.namespace());
        // If the object is gone, its delete event updates the graph.
        let Some(live) = self.get_live(&api, uid, object).await? else {
            return Ok(());
        };
        let mut owner_states = Vec::new();
        let mut owner_not_observed = false;
        for owner in live.owner_references.iter().flatten() {
            match self.classify_owner(owner, object.key.namespace()).await? {
                OwnerLookup::Classified(state) => owner_states.push(state),
                OwnerLookup::NamespacedOwnerOfClusterScopedObject => return Ok(()),
            }
            // A reference that exists on the server but not in the graph is verified again later.
            owner_not_observed |= owner_states.last() == Some(&OwnerState::Solid)
                && self.graph().get(&owner.uid).is_none();
        }
        match plan(&live, &owner_states, dependents) {
            Action::Keep => {}
            Action::SetOwnerReferences(owners) => {
                self.patch_owner_references(&api, object, &live, &owners)
                    .await?
            }
            Action::Delete {
                propagation,
                unblocked,
            } => {
                let mut live = live;
                if let Some(owners) = unblocked {
                    self.patch_owner_references(&api, object, &live, &owners)
                        .await?;
                    // The patch changed the resource version, which is a precondition of the
                    // delete.
                    let Some(unblocked) = self.get_live(&api, uid, object).await? else {
                        return Ok(());
                    };
                    live = unblocked;
                }
                return self.delete(&api, object, &live, propagation).await;
            }
        }
        // An owner created and deleted while its watch was disconnected is never observed, so its
        // deletion would not enqueue the dependents.
        if owner_not_observed {
            Err(RetryReason::OwnerNotObserved)
        } else {
            Ok(())
        }
    }

    /// State of an owner, by the absent owner cache or a live read. Mirrors classifyReferences and
    /// isDangling.
    async fn classify_owner(
        &self,
        owner: &OwnerReference,
        namespace: Option<&str>,
    ) -> Result<OwnerLookup, RetryReason> {
        let resource = self
            .served()
            .find(&owner.api_version, &owner.kind)
            .ok_or_else(|| RetryReason::UnknownKind {
                api_version: owner.api_version.clone(),
                kind: owner.kind.clone(),
                name: owner.name.clone(),
            })?;
        let namespace = namespace.filter(|_| resource.namespaced);
        if resource.namespaced && namespace.is_none() {
            return Ok(OwnerLookup::NamespacedOwnerOfClusterScopedObject);
        }
        // Mirrors isDangling: the absent owner cache first, then a live read.
        let identity = OwnerIdentity::of(owner, namespace);
        if self.absent_owners().contains(&identity) {
            return Ok(OwnerLookup::Classified(OwnerState::Dangling));
        }
        let api = resource.api(&self.client, namespace);
        let found = match path_segment(&owner.name) {
            Some(name) => api.get_metadata_opt(&name).await?,
            // An owner reference may have any name, but an object may not.
            None => None,
        };
        let live = found
            .map(|found| found.metadata)
            .filter(|found| found.uid.as_ref() == Some(&owner.uid));
        Ok(OwnerLookup::Classified(match live {
            None => {
                // A uid is never reused, so the next dependents of this owner need no request.
                self.absent_owners().insert(identity);
                OwnerState::Dangling
            }
            Some(live) if DeletionState::of(&live) == DeletionState::Foreground => {
                OwnerState::WaitingForDependentsDeletion
            }
            Some(_) => OwnerState::Solid,
        }))
    }

    /// The live object; `None` if it is gone or replaced by another object of the same name.
    async fn get_live(
        &self,
        api: &Api<DynamicObject>,
        uid: &Uid,
        object: &Node,
    ) -> Result<Option<ObjectMeta>, Error> {
        // The key of an owner that was not observed is that of an owner reference.
        let Some(name) = path_segment(object.key.name()) else {
            return Ok(None);
        };
        let found = api.get_metadata_opt(&name).await?;
        Ok(found
            .map(|found| found.metadata)
            .filter(|found| found.uid.as_deref() == Some(&**uid)))
    }

    /// Removes the reference to the owner from a dependent. Mirrors orphanDependents.
    async fn orphan_dependent(
        &self,
        uid: &Uid,
        object: &Node,
        owner: &Uid,
    ) -> Result<(), RetryReason> {
        let api = object.resource.api(&self.client, object.key.namespace());
        let Some(live) = self.get_live(&api, uid, object).await? else {
            return Ok(());
        };
        let remaining: Vec<_> = live
            .owner_references
            .iter()
            .flatten()
            .filter(|reference| *reference.uid != **owner)
            .cloned()
            .collect();
        if live
            .owner_references
            .as_ref()
            .is_none_or(|owners| owners.len() == remaining.len())
        {
            return Ok(());
        }
        self.patch_owner_references(&api, object, &live, &remaining)
            .await
    }

    async fn patch_owner_references(
        &self,
        api: &Api<DynamicObject>,
        object: &Node,
        live: &ObjectMeta,
        owners: &[OwnerReference],
    ) -> Result<(), RetryReason> {
        self.patch(api, object, live, json!({ "ownerReferences": owners }))
            .await
    }

    /// Removes a finalizer of the garbage collector. Mirrors removeFinalizer.
    async fn remove_finalizer(
        &self,
        uid: &Uid,
        object: &Node,
        finalizer: &str,
    ) -> Result<(), RetryReason> {
        let api = object.resource.api(&self.client, object.key.namespace());
        let Some(live) = self.get_live(&api, uid, object).await? else {
            return Ok(());
        };
        let remaining: Vec<_> = live
            .finalizers
            .iter()
            .flatten()
            .filter(|name| *name != finalizer)
            .collect();
        if live
            .finalizers
            .as_ref()
            .is_none_or(|finalizers| finalizers.len() == remaining.len())
        {
            return Ok(());
        }
        self.patch(&api, object, &live, json!({ "finalizers": remaining }))
            .await
    }

    /// Patches metadata. The uid and resourceVersion of the live object are preconditions.
    async fn patch(
        &self,
        api: &Api<DynamicObject>,
        object: &Node,
        live: &ObjectMeta,
        mut change: Value,
    ) -> Result<(), RetryReason> {
        change["uid"] = json!(live.uid);
        change["resourceVersion"] = json!(live.resource_version);
        let body = json!({ "metadata": change });
        match api
            .patch_metadata(
                object.key.name(),
                &PatchParams::default(),
                &Patch::Merge(&body),
            )
            .await
        {
            Ok(patched) => self.wrote(object, patched.metadata.resource_version),
            Err(Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    async fn delete(
        &self,
        api: &Api<DynamicObject>,
        object: &Node,
        live: &ObjectMeta,
        propagation: PropagationPolicy,
    ) -> Result<(), RetryReason> {
        let mut preconditions = Preconditions {
            uid: live.uid.clone(),
            resource_version: live.resource_version.clone(),
        };
        for _ in 0..2 {
            let params = DeleteParams {
                propagation_policy: Some(propagation.clone()),
                ..DeleteParams::default()
            };
            match api
                .delete(
                    object.key.name(),
                    &params.preconditions(preconditions.clone()),
                )
                .await
            {
                Ok(_) => {
                    self.wrote(object, None);
                    return Ok(());
                }
                Err(Error::Api(status)) if status.code == 404 => return Ok(()),
                Err(Error::Api(status))
                    if status.code == 409 && preconditions.resource_version.is_some() =>
                {
                    let Some(changed) = api
                        .get_metadata_opt(object.key.name())
                        .await?
                        .map(|found| found.metadata)
                    else {
                        return Ok(());
                    };
                    if changed.uid != live.uid || changed.owner_references != live.owner_references
                    {
                        return Err(Error::Api(status).into());
                    }
                    // The owner references, on which the decision is based, are unchanged. The
                    // second attempt has the uid precondition only.
                    preconditions.resource_version = None;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn wrote(&self, object: &Node, resource_version: Option<String>) {
        self.trace.record(|| TraceEvent::Wrote {
            controller: NAME.into(),
            reconciling: object.key.clone(),
            kind: kind_name(object),
            key: object.key.clone(),
            resource_version,
        });
    }
}

/// `Kind` or `Kind.group`, as in the trace of other controllers.
fn kind_name(object: &Node) -> Arc<str> {
    let kind = &object.resource.api_resource.kind;
    let group = &object.resource.api_resource.group;
    if group.is_empty() {
        kind.as_str().into()
    } else {
        format!("{kind}.{group}").into()
    }
}
