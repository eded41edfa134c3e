//! Apply: what is read and written for one object.
//!
//! In: a uid from the queue. Out: requests to the server.
//! Holds: decisions are made on what the server says now, not on what a watch said before; a failure is tried again.

use std::sync::Arc;

use bellerophon::TraceEvent;
use futures_util::{StreamExt, TryStreamExt, stream};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::api::{DeleteParams, Patch, PatchParams, Preconditions, PropagationPolicy};
use kube::core::DynamicObject;
use kube::{Api, Error};
use serde_json::{Value, json};

use super::graph::{Absent, Case, Deletion, FOREGROUND, ORPHAN, Observed, Uid};
use super::plan::{Action, Below, Verdict, plan};
use super::{Collector, NAME, Task};

/// How many dependents of one object are set free at once.
const ORPHANS_AT_ONCE: usize = 20;

/// Why an object has to be looked at again.
#[derive(Debug, thiserror::Error)]
pub(super) enum Again {
    #[error(transparent)]
    Client(#[from] Error),
    #[error("no kind {kind} is served in {api_version}, so nobody knows whether {name} exists")]
    UnknownKind {
        api_version: String,
        kind: String,
        name: String,
    },
    #[error("an owner exists that was never seen")]
    OwnerUnseen,
}

/// What could be found out about an owner.
enum Found {
    Judged(Verdict),
    /// The reference can mean nothing: a cluster-scoped object cannot belong to one in a namespace.
    Meaningless,
}

impl Collector {
    /// Finds out whether an object has lost its owners, or what it waits for, and acts on it.
    pub(super) async fn examine(&self, uid: &Uid) -> Result<(), Again> {
        let case = self.graph().case(uid);
        match case {
            None => Ok(()),
            Some(Case::Waiting { object, blocking }) if blocking.is_empty() => {
                self.release(uid, &object, FOREGROUND).await
            }
            Some(Case::Waiting { blocking, .. }) => {
                let waits = |uid: &Uid| {
                    self.graph()
                        .get(uid)
                        .is_some_and(|object| object.deletion == Deletion::Foreground)
                };
                blocking
                    .into_iter()
                    .filter(|uid| !waits(uid))
                    .for_each(|uid| self.queue.add(Task::Examine(uid)));
                Ok(())
            }
            Some(Case::Doubtful {
                object,
                has_dependents,
                dependent_waits,
            }) => {
                self.judge(
                    uid,
                    &object,
                    Below {
                        has_dependents,
                        dependent_waits,
                    },
                )
                .await
            }
        }
    }

    /// Sets free everything that names the object as owner, then lets the object go.
    pub(super) async fn orphan(&self, uid: &Uid) -> Result<(), Again> {
        let Some(owner) = self
            .graph()
            .get(uid)
            .filter(|object| object.deletion == Deletion::Orphaning)
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
            .map(|(dependent, object)| async move { self.set_free(&dependent, &object, uid).await })
            .buffer_unordered(ORPHANS_AT_ONCE)
            .try_collect::<()>()
            .await?;
        self.release(uid, &owner, ORPHAN).await
    }

    async fn judge(&self, uid: &Uid, object: &Observed, below: Below) -> Result<(), Again> {
        let api = object.kind.api(&self.client, object.key.namespace());
        // If it is gone, its watch will tell.
        let Some(now) = self.latest(&api, uid, object).await? else {
            return Ok(());
        };
        let mut verdicts = Vec::new();
        let mut unseen = false;
        for owner in now.owner_references.iter().flatten() {
            match self.look_for(owner, object.key.namespace()).await? {
                Found::Judged(verdict) => verdicts.push(verdict),
                Found::Meaningless => return Ok(()),
            }
            unseen |=
                verdicts.last() == Some(&Verdict::Solid) && self.graph().get(&owner.uid).is_none();
        }
        match plan(&now, &verdicts, below) {
            Action::Keep => {}
            Action::KeepWith(owners) => self.set_owners(&api, object, &now, &owners).await?,
            Action::Delete {
                propagation,
                unblocked,
            } => {
                let mut now = now;
                if let Some(owners) = unblocked {
                    self.set_owners(&api, object, &now, &owners).await?;
                    let Some(unblocked) = self.latest(&api, uid, object).await? else {
                        return Ok(());
                    };
                    now = unblocked;
                }
                return self.delete(&api, object, &now, propagation).await;
            }
        }
        // An owner that came and went while its watch was cut is never heard of, and its dependents never woken.
        if unseen {
            Err(Again::OwnerUnseen)
        } else {
            Ok(())
        }
    }

    async fn look_for(
        &self,
        owner: &OwnerReference,
        namespace: Option<&str>,
    ) -> Result<Found, Again> {
        let kind = self
            .kinds()
            .find(&owner.api_version, &owner.kind)
            .ok_or_else(|| Again::UnknownKind {
                api_version: owner.api_version.clone(),
                kind: owner.kind.clone(),
                name: owner.name.clone(),
            })?;
        let namespace = namespace.filter(|_| kind.namespaced);
        if kind.namespaced && namespace.is_none() {
            return Ok(Found::Meaningless);
        }
        let named = Absent::named(owner, namespace);
        if self.absent().contains(&named) {
            return Ok(Found::Judged(Verdict::Dangling));
        }
        let found = kind
            .api(&self.client, namespace)
            .get_metadata_opt(&owner.name)
            .await?;
        Ok(Found::Judged(
            match found
                .map(|found| found.metadata)
                .filter(|found| found.uid.as_ref() == Some(&owner.uid))
            {
                None => {
                    self.absent().insert(named);
                    Verdict::Dangling
                }
                Some(found) if Deletion::of(&found) == Deletion::Foreground => Verdict::Waiting,
                Some(_) => Verdict::Solid,
            },
        ))
    }

    /// The object as the server has it; `None` if it is gone, also when another one has its name.
    async fn latest(
        &self,
        api: &Api<DynamicObject>,
        uid: &Uid,
        object: &Observed,
    ) -> Result<Option<ObjectMeta>, Error> {
        let found = api.get_metadata_opt(object.key.name()).await?;
        Ok(found
            .map(|found| found.metadata)
            .filter(|found| found.uid.as_deref() == Some(&**uid)))
    }

    async fn set_free(&self, uid: &Uid, object: &Observed, owner: &Uid) -> Result<(), Again> {
        let api = object.kind.api(&self.client, object.key.namespace());
        let Some(now) = self.latest(&api, uid, object).await? else {
            return Ok(());
        };
        let left: Vec<_> = now
            .owner_references
            .iter()
            .flatten()
            .filter(|reference| *reference.uid != **owner)
            .cloned()
            .collect();
        if now
            .owner_references
            .as_ref()
            .is_none_or(|owners| owners.len() == left.len())
        {
            return Ok(());
        }
        self.set_owners(&api, object, &now, &left).await
    }

    async fn set_owners(
        &self,
        api: &Api<DynamicObject>,
        object: &Observed,
        now: &ObjectMeta,
        owners: &[OwnerReference],
    ) -> Result<(), Again> {
        self.patch(api, object, now, json!({ "ownerReferences": owners }))
            .await
    }

    /// Takes a finalizer of ours away.
    async fn release(&self, uid: &Uid, object: &Observed, finalizer: &str) -> Result<(), Again> {
        let api = object.kind.api(&self.client, object.key.namespace());
        let Some(now) = self.latest(&api, uid, object).await? else {
            return Ok(());
        };
        let left: Vec<_> = now
            .finalizers
            .iter()
            .flatten()
            .filter(|name| *name != finalizer)
            .collect();
        if now
            .finalizers
            .as_ref()
            .is_none_or(|finalizers| finalizers.len() == left.len())
        {
            return Ok(());
        }
        self.patch(&api, object, &now, json!({ "finalizers": left }))
            .await
    }

    /// Changes metadata of exactly the object that was read.
    async fn patch(
        &self,
        api: &Api<DynamicObject>,
        object: &Observed,
        now: &ObjectMeta,
        mut change: Value,
    ) -> Result<(), Again> {
        change["uid"] = json!(now.uid);
        change["resourceVersion"] = json!(now.resource_version);
        let body = json!({ "metadata": change });
        match api
            .patch_metadata(
                object.key.name(),
                &PatchParams::default(),
                &Patch::Merge(&body),
            )
            .await
        {
            Ok(written) => self.wrote(object, written.metadata.resource_version),
            Err(Error::Api(status)) if status.code == 404 => {}
            Err(error) => return Err(error.into()),
        }
        Ok(())
    }

    async fn delete(
        &self,
        api: &Api<DynamicObject>,
        object: &Observed,
        now: &ObjectMeta,
        propagation: PropagationPolicy,
    ) -> Result<(), Again> {
        let mut preconditions = Preconditions {
            uid: now.uid.clone(),
            resource_version: now.resource_version.clone(),
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
                    if changed.uid != now.uid || changed.owner_references != now.owner_references {
                        return Err(Error::Api(status).into());
                    }
                    // It changes all the time, but not in what the decision was made on.
                    preconditions.resource_version = None;
                }
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    fn wrote(&self, object: &Observed, resource_version: Option<String>) {
        self.trace.record(|| TraceEvent::Wrote {
            controller: NAME.into(),
            reconciling: object.key.clone(),
            kind: kind_name(object),
            key: object.key.clone(),
            resource_version,
        });
    }
}

/// How traces name the kind.
fn kind_name(object: &Observed) -> Arc<str> {
    let kind = &object.kind.resource.kind;
    let group = &object.kind.resource.group;
    if group.is_empty() {
        kind.as_str().into()
    } else {
        format!("{kind}.{group}").into()
    }
}
