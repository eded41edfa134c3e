//! The writes of a SecSynch's copies: created, replaced, verified, released and deleted, with
//! bounded concurrency.
//!
//! Guarantees: no Secret is written without the ownership label, or the `Adopt` policy and the
//! Secret's own consent; no Secret is deleted that was not created as a copy, except to create it
//! again; a newer spec or source stops the current run.

use std::collections::{BTreeMap, HashMap};

use bellerophon::client::{Precondition, ReconcileClient, WriteError, WriteOptions, Written};
use bellerophon::prelude::*;
use futures_util::{StreamExt as _, stream};
use k8s_openapi::{api::core::v1::Secret, apimachinery::pkg::apis::meta::v1::ObjectMeta};
use kube::{ResourceExt as _, core::PartialObjectMeta};

use crate::{
    copy::{
        CopyAction, CopyOwner, OWNER_UID, SecretContent, adopt, digest, is_adopted, plan_copy,
        release,
    },
    crd::{SecSynch, SyncFailure},
    destinations::{ACCEPT_FROM, ALLOW_TO, Destination},
};

/// The reason of a failure: the destination namespace does not accept copies of the source.
const NAMESPACE_NOT_ACCEPTED: &str = "NotAccepted";
/// The reason of a failure: an existing Secret does not accept to be replaced.
const SECRET_NOT_ACCEPTED: &str = "AdoptionNotAccepted";

/// The maximum number of concurrent writes of one SecSynch.
const CONCURRENCY_MAX: usize = 32;

/// The result for one copy.
enum CopyResult {
    UpToDate {
        resource_version: String,
        is_written: bool,
    },
    Skipped,
    Failed {
        reason: &'static str,
        message: String,
        /// Whether a retry can succeed without another event.
        retry: bool,
    },
    /// Not attempted: the spec or the source has changed since the run started.
    Superseded,
}

/// The results of all copies of one run.
#[derive(Default)]
pub(crate) struct SyncSummary {
    /// The number of copies that are up to date.
    pub(crate) synced: i64,
    /// The number of writes and deletions.
    pub(crate) written: usize,
    pub(crate) skipped: i64,
    pub(crate) failures: Vec<SyncFailure>,
    /// Whether a failure is to be retried.
    pub(crate) retry: bool,
    /// Whether a newer spec or source stopped the run.
    pub(crate) is_superseded: bool,
    /// The resource version of each copy that is up to date, by namespace.
    pub(crate) verified: HashMap<String, String>,
}

impl SyncSummary {
    /// The destinations that do not consent.
    pub(crate) fn not_accepted(&self) -> Vec<&str> {
        let is_consent = |failure: &&SyncFailure| {
            [NAMESPACE_NOT_ACCEPTED, SECRET_NOT_ACCEPTED].contains(&failure.reason.as_str())
        };
        let failures = self.failures.iter().filter(is_consent);
        failures.map(|failure| failure.namespace.as_str()).collect()
    }

    fn add(&mut self, namespace: String, result: CopyResult) {
        match result {
            CopyResult::UpToDate {
                resource_version,
                is_written,
            } => {
                self.synced += 1;
                self.written += usize::from(is_written);
                self.verified.insert(namespace, resource_version);
            }
            CopyResult::Skipped => self.skipped += 1,
            CopyResult::Failed {
                reason,
                message,
                retry,
            } => {
                self.retry |= retry;
                self.failures.push(SyncFailure {
                    namespace,
                    reason: reason.into(),
                    message,
                });
            }
            CopyResult::Superseded => self.is_superseded = true,
        }
    }
}

/// One run over all copies of a SecSynch.
pub(crate) struct SyncRun<'a> {
    pub(crate) client: &'a ReconcileClient,
    pub(crate) synches: &'a Lister<SecSynch>,
    pub(crate) secrets: &'a Lister<PartialObjectMeta<Secret>>,
    pub(crate) synch: &'a SecSynch,
    pub(crate) content: &'a SecretContent,
    pub(crate) owner: CopyOwner<'a>,
    /// The resource version of the source in the cache when the run started.
    pub(crate) source_version: Option<String>,
}

impl SyncRun<'_> {
    /// Writes the copies in all allowed destinations. `verified` has the resource versions of
    /// copies that are known to be up to date.
    pub(crate) async fn sync_all(
        &self,
        destinations: &BTreeMap<String, Destination>,
        verified: &HashMap<String, String>,
    ) -> SyncSummary {
        let results = stream::iter(destinations.clone()).map(|(namespace, destination)| {
            let verified = verified.get(&namespace).map(String::as_str);
            async move {
                let result = self.sync(&namespace, destination, verified).await;
                (namespace, result)
            }
        });
        let mut summary = SyncSummary::default();
        // `buffered` keeps the order of namespaces, so that equal failures make an equal status.
        let mut results = std::pin::pin!(results.buffered(CONCURRENCY_MAX));
        while let Some((namespace, result)) = results.next().await {
            summary.add(namespace, result);
        }
        summary
    }

    async fn sync(
        &self,
        namespace: &str,
        destination: Destination,
        verified: Option<&str>,
    ) -> CopyResult {
        match destination {
            Destination::Allowed => self.sync_copy(namespace, verified).await,
            Destination::NamespaceMissing => {
                failed("NamespaceMissing", "the namespace does not exist")
            }
            Destination::Protected => failed("Protected", "the namespace is a system namespace"),
            Destination::NotAllowed => failed(
                "NotAllowed",
                &format!("the secret does not allow it; annotate it with {ALLOW_TO}"),
            ),
            Destination::NotAccepted => failed(
                NAMESPACE_NOT_ACCEPTED,
                &format!(
                    "the namespace does not accept secrets from {}; annotate it with {ACCEPT_FROM}",
                    self.owner.source_namespace
                ),
            ),
        }
    }

    async fn sync_copy(&self, namespace: &str, verified: Option<&str>) -> CopyResult {
        // Checked before each copy: with thousands of namespaces, a run takes long enough for the
        // source to change again.
        if self.is_superseded() {
            return CopyResult::Superseded;
        }
        let spec = &self.synch.spec;
        let key = ObjectKey::namespaced(namespace, &spec.secret_name);
        let cached = self.secrets.get(&key);
        let current = cached.as_ref().map(|secret| &secret.metadata);
        let action = plan_copy(
            current,
            &self.owner,
            &self.content.digest,
            spec.conflict_policy,
            verified,
        );
        match (action, current) {
            (CopyAction::UpToDate, Some(current)) => CopyResult::UpToDate {
                resource_version: current.resource_version.clone().unwrap_or_default(),
                is_written: false,
            },
            (CopyAction::Skip, _) => CopyResult::Skipped,
            (CopyAction::Conflict, _) => failed(
                "Exists",
                "another secret of this name exists; see conflictPolicy",
            ),
            (CopyAction::OwnedByAnother, _) => failed(
                "OwnedByAnother",
                "another SecSynch owns the secret of this name",
            ),
            (CopyAction::NotAccepted, _) => self.adoption_not_accepted(),
            (CopyAction::Release, Some(current)) => {
                match release_copy(self.client, current.clone()).await {
                    Ok(()) => self.adoption_not_accepted(),
                    Err(error) => error_result(&error),
                }
            }
            (CopyAction::Replace, Some(current)) => self.replace(current.clone()).await,
            (CopyAction::Adopt, Some(current)) => self.replace(adopt(current.clone())).await,
            (CopyAction::Verify, Some(_)) => self.verify(&key).await,
            (CopyAction::Create, _) | (_, None) => self.create(namespace).await,
        }
    }

    fn adoption_not_accepted(&self) -> CopyResult {
        failed(
            SECRET_NOT_ACCEPTED,
            &format!(
                "another secret of this name exists and does not accept copies from {}; annotate \
                 it with {ACCEPT_FROM}",
                self.owner.source_namespace
            ),
        )
    }

    /// Whether the spec or the source has changed since the run started.
    fn is_superseded(&self) -> bool {
        let Some(current) = self.synches.get(&ObjectKey::from_object(self.synch)) else {
            return true;
        };
        let spec = &self.synch.spec;
        let source_key = ObjectKey::namespaced(&spec.source_namespace, &spec.secret_name);
        let source = self.secrets.get(&source_key);
        current.metadata.generation != self.synch.metadata.generation
            || source.and_then(|source| source.resource_version()) != self.source_version
    }

    async fn create(&self, namespace: &str) -> CopyResult {
        self.create_with(ObjectMeta {
            name: Some(self.synch.spec.secret_name.clone()),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        })
        .await
    }

    async fn create_with(&self, metadata: ObjectMeta) -> CopyResult {
        let copy = self.content.to_copy(&self.owner, metadata);
        write_result(self.client.create(&copy).await)
    }

    async fn replace(&self, current: ObjectMeta) -> CopyResult {
        let copy = self.content.to_copy(&self.owner, current.clone());
        match self.client.update(&copy).await {
            Err(error) if is_immutable_field(&error) => {
                // The type of a Secret, and all of an immutable one, cannot change: it is deleted
                // if its UID is still the same, and created again.
                let recreated = ObjectMeta {
                    name: current.name.clone(),
                    namespace: current.namespace.clone(),
                    labels: current.labels.clone(),
                    annotations: current.annotations.clone(),
                    ..ObjectMeta::default()
                };
                match delete_copy(self.client, current).await {
                    Ok(()) => self.create_with(recreated).await,
                    Err(error) => error_result(&error),
                }
            }
            response => write_result(response),
        }
    }

    /// Reads a copy, and replaces it if its content differs.
    async fn verify(&self, key: &ObjectKey) -> CopyResult {
        match self.client.get::<Secret>(key).await {
            Ok(Some(current)) if digest(&current, self.owner.uid) == self.content.digest => {
                CopyResult::UpToDate {
                    resource_version: current.resource_version().unwrap_or_default(),
                    is_written: false,
                }
            }
            Ok(Some(current)) => self.replace(current.metadata.clone()).await,
            Ok(None) => self.create(key.namespace().unwrap_or_default()).await,
            Err(error) => error_result(&error),
        }
    }
}

fn write_result(response: Result<Written<Secret>, WriteError>) -> CopyResult {
    match response {
        Ok(copy) => CopyResult::UpToDate {
            resource_version: copy.metadata().resource_version.clone().unwrap_or_default(),
            is_written: true,
        },
        Err(error) => error_result(&error),
    }
}

/// Deletes copies with a UID precondition, and releases adopted ones. A copy that no longer exists,
/// or was recreated, is done. All are attempted; the first error is returned.
pub(crate) async fn remove_copies(
    client: &ReconcileClient,
    copies: Vec<ObjectMeta>,
) -> Result<(), Error> {
    let removals = stream::iter(copies).map(|copy| async move {
        if is_adopted(&copy) {
            return release_copy(client, copy).await.map_err(Error::from);
        }
        match delete_copy(client, copy).await {
            Err(error) if !error.is_conflict() => Err(Error::from(error)),
            _ => Ok(()),
        }
    });
    let mut removals = std::pin::pin!(removals.buffer_unordered(CONCURRENCY_MAX));
    let mut result = Ok(());
    while let Some(removal) = removals.next().await {
        result = result.and(removal);
    }
    result
}

/// Removes the marks of an adopted Secret, if it has this UID and owner. Its content stays.
async fn release_copy(client: &ReconcileClient, metadata: ObjectMeta) -> Result<(), WriteError> {
    let name = metadata.name.as_deref().unwrap_or_default();
    let key = ObjectKey::new(metadata.namespace.as_deref(), name);
    let owner_of = |metadata: &ObjectMeta| metadata.labels.as_ref()?.get(OWNER_UID).cloned();
    let current = client.get::<Secret>(&key).await?;
    let current = current.filter(|current| {
        current.metadata.uid == metadata.uid && owner_of(&current.metadata) == owner_of(&metadata)
    });
    let Some(current) = current else {
        return Ok(());
    };
    let mut released = Secret::clone(&current);
    released.metadata = release(released.metadata);
    client.update(&released).await.map(drop)
}

/// Deletes a Secret if it has this UID.
async fn delete_copy(client: &ReconcileClient, metadata: ObjectMeta) -> Result<(), WriteError> {
    let with_uid = WriteOptions {
        precondition: Some(Precondition::Uid),
        ..WriteOptions::default()
    };
    let copy = PartialObjectMeta::<Secret> {
        metadata,
        ..PartialObjectMeta::default()
    };
    client.with_options(with_uid).delete(&copy).await
}

/// A failure that only another event can change.
fn failed(reason: &'static str, message: &str) -> CopyResult {
    CopyResult::Failed {
        reason,
        message: message.to_owned(),
        retry: false,
    }
}

/// Whether a write was rejected because it changes an immutable field of a Secret.
fn is_immutable_field(error: &WriteError) -> bool {
    let Some(status) = error.status() else {
        return false;
    };
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 422
        && causes.any(|cause| matches!(cause.field.as_str(), "type" | "data" | "immutable"))
}

/// The result of a failed request. Messages never contain values of Secrets.
fn error_result(error: &WriteError) -> CopyResult {
    let Some(status) = error.status() else {
        return CopyResult::Failed {
            reason: "Unreachable",
            message: "the API server could not be reached".into(),
            retry: true,
        };
    };
    let mut causes = status.details.iter().flat_map(|details| &details.causes);
    match status.code {
        403 if causes.any(|cause| cause.reason == "NamespaceTerminating") => {
            failed("NamespaceTerminating", "the namespace is terminating")
        }
        // The creation of a namespace enqueues the SecSynch, so a retry is not needed.
        404 => failed("NamespaceMissing", "the namespace does not exist"),
        409 => CopyResult::Failed {
            reason: "Changed",
            message: "the secret was modified concurrently".into(),
            retry: true,
        },
        // The message of a 422 quotes field values, which may be those of the Secret.
        422 => CopyResult::Failed {
            reason: "Invalid",
            message: "the API server rejects the copy as invalid".into(),
            retry: true,
        },
        _ => CopyResult::Failed {
            reason: "Refused",
            message: status.message.clone(),
            retry: true,
        },
    }
}
