//! The reconciler: reads the source, selects destinations, writes copies, updates the status.
//!
//! Guarantee: values of Secrets are read when needed, held for one reconcile, and never logged,
//! recorded in Events or written to a status.

use std::{
    collections::HashMap,
    sync::{Mutex, PoisonError},
};

use bellerophon::client::ReconcileClient;
use bellerophon::conditions::{ConditionStatus, ConditionUpdate, set_status_condition};
use bellerophon::finalizer;
use bellerophon::index::Index;
use bellerophon::prelude::*;
use k8s_openapi::{
    api::core::v1::{Namespace, Secret},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{ResourceExt as _, api::ListParams, core::PartialObjectMeta};
use tracing::info;

use crate::{
    copies::{SyncRun, SyncSummary, delete_copies},
    copy::{CopyOwner, OWNER_UID, SecretContent},
    crd::{SecSynch, SecSynchStatus},
    destinations::{ALLOW_TO, Consent, Destination, select_destinations},
};

/// The maximum number of failures in a status.
const FAILURES_MAX: usize = 10;

/// The finalizer that keeps a SecSynch until its copies are deleted.
pub(crate) const FINALIZER: &str = "secsynch.tutorial.study.dev/copies";

/// The feature switches of the operator.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FeatureSwitches {
    /// Copy without the consent of the source, as the tutorial does.
    pub(crate) without_consent: bool,
    /// Copy into system namespaces.
    pub(crate) into_system: bool,
}

/// Reconciles one SecSynch.
pub(crate) struct SecSynchReconciler {
    pub(crate) synches: Lister<SecSynch>,
    pub(crate) secrets: Lister<PartialObjectMeta<Secret>>,
    /// Secrets by the UID of the SecSynch that owns them.
    pub(crate) copies: Index<PartialObjectMeta<Secret>>,
    pub(crate) namespaces: Lister<Namespace>,
    pub(crate) features: FeatureSwitches,
    /// The resource version of each copy whose content was compared and found equal, by SecSynch
    /// and namespace. Lost in a restart: copies are then read and compared again.
    pub(crate) verified: Mutex<HashMap<ObjectKey, HashMap<String, String>>>,
}

/// The `Ready` condition of a SecSynch.
struct ReadyCondition<'a> {
    is_ready: bool,
    reason: &'a str,
    message: &'a str,
}

impl Reconciler<SecSynch> for SecSynchReconciler {
    async fn reconcile(&self, req: Request<SecSynch>) -> Result<Action, Error> {
        let Some(synch) = req.object() else {
            self.set_verified(req.key(), HashMap::new());
            return Ok(Action::await_change());
        };
        let work = async |event| match event {
            finalizer::Event::Cleanup => self.clean_up(&req, synch).await,
            finalizer::Event::Apply => self.apply(&req, synch).await,
        };
        req.client().finalizer(synch, FINALIZER, work).await
    }
}

impl SecSynchReconciler {
    /// Deletes every copy. They are listed from the server, since the cache may not have the last
    /// one yet.
    async fn clean_up(&self, req: &Request<SecSynch>, synch: &SecSynch) -> Result<Action, Error> {
        let uid = synch.uid().unwrap_or_default();
        let owned = ListParams::default().labels(&format!("{OWNER_UID}={uid}"));
        let copies = req
            .client()
            .list::<PartialObjectMeta<Secret>>(None, &owned)
            .await?;
        let copies = copies.iter().map(|copy| copy.metadata.clone()).collect();
        delete_copies(req.client(), copies).await?;
        self.set_verified(req.key(), HashMap::new());
        info!(secsynch = %req.key(), "deleted all copies");
        Ok(Action::await_change())
    }

    async fn apply(&self, req: &Request<SecSynch>, synch: &SecSynch) -> Result<Action, Error> {
        let spec = &synch.spec;
        let uid = synch.uid().unwrap_or_default();
        let source_key = ObjectKey::namespaced(&spec.source_namespace, &spec.secret_name);
        // Read before the source itself, so that a later change supersedes this run.
        let cached_source = self.secrets.get(&source_key);
        // From the server: the cache has only the metadata of Secrets.
        let source = req.client().get::<Secret>(&source_key).await?;
        let source = source.filter(|secret| secret.metadata.deletion_timestamp.is_none());
        let Some(source) = source else {
            let message = "the source secret does not exist";
            return self
                .delete_without_source(req, synch, "SourceMissing", message)
                .await;
        };
        let annotations = source.annotations();
        let allow_to = annotations.get(ALLOW_TO).cloned().unwrap_or_default();
        let Some(content) = SecretContent::new(Secret::clone(&source), &uid) else {
            let message =
                "secrets of this type are credentials of the cluster and are never copied";
            return self
                .delete_without_source(req, synch, "NeverCopied", message)
                .await;
        };
        let consent = Consent {
            is_implied: self.features.without_consent
                || synch.namespace().as_deref() == Some(&spec.source_namespace),
            allow_to: &allow_to,
        };
        let namespaces = self.namespaces.list();
        let destinations = select_destinations(
            spec,
            namespaces.iter().map(|namespace| &**namespace),
            consent,
            self.features.into_system,
        );
        let source_name = source_key.to_string();
        let run = SyncRun {
            client: req.client(),
            synches: &self.synches,
            secrets: &self.secrets,
            synch,
            content: &content,
            owner: CopyOwner {
                uid: &uid,
                source: &source_name,
            },
            source_version: cached_source.and_then(|source| source.resource_version()),
        };
        let verified = self.verified(req.key());
        let mut summary = run.sync_all(&destinations, &verified).await;
        if summary.is_superseded {
            // The event of the newer spec or source has enqueued the key.
            return Ok(Action::await_change());
        }
        // After the copies are written: a Secret of a former name is still there for pods until the
        // new one exists.
        summary.written += self
            .delete_stale_copies(req.client(), synch, |namespace| {
                destinations.get(namespace) == Some(&Destination::Allowed)
            })
            .await?;
        self.set_verified(req.key(), std::mem::take(&mut summary.verified));
        self.report(req, synch, destinations.len(), summary).await
    }

    /// Deletes copies with a former name or in a namespace that is no longer a destination.
    /// Returns their number.
    async fn delete_stale_copies(
        &self,
        client: &ReconcileClient,
        synch: &SecSynch,
        is_destination: impl Fn(&str) -> bool,
    ) -> Result<usize, Error> {
        let uid = synch.uid().unwrap_or_default();
        let copies = self.copies.get(&uid);
        let is_stale = |copy: &ObjectMeta| {
            copy.name.as_ref() != Some(&synch.spec.secret_name)
                || !is_destination(copy.namespace.as_deref().unwrap_or_default())
        };
        let stale: Vec<ObjectMeta> = copies
            .iter()
            .map(|copy| &copy.metadata)
            .filter(|copy| is_stale(copy))
            .cloned()
            .collect();
        let count = stale.len();
        delete_copies(client, stale).await?;
        Ok(count)
    }

    /// Deletes all copies because their source cannot be copied.
    async fn delete_without_source(
        &self,
        req: &Request<SecSynch>,
        synch: &SecSynch,
        reason: &str,
        message: &str,
    ) -> Result<Action, Error> {
        let deleted = self
            .delete_stale_copies(req.client(), synch, |_| false)
            .await?;
        self.set_verified(req.key(), HashMap::new());
        let status = SecSynchStatus {
            synced: 0,
            total: 0,
            failed: 0,
            failures: vec![],
            ..synch.status.clone().unwrap_or_default()
        };
        let ready = ReadyCondition {
            is_ready: false,
            reason,
            message,
        };
        self.write_status(req, synch, status, deleted, ready)
            .await?;
        Ok(Action::await_change())
    }

    async fn report(
        &self,
        req: &Request<SecSynch>,
        synch: &SecSynch,
        destinations: usize,
        summary: SyncSummary,
    ) -> Result<Action, Error> {
        let SyncSummary {
            synced,
            written,
            mut failures,
            ..
        } = summary;
        let failed = failures.len();
        let total = destinations as i64 - summary.skipped;
        failures.truncate(FAILURES_MAX);
        let mut status = synch.status.clone().unwrap_or_default();
        status.synced = synced;
        status.total = total;
        status.failed = failed as i64;
        status.failures = failures;
        let message = format!("{synced} of {total} copies are up to date");
        let is_ready = failed == 0;
        let ready = ReadyCondition {
            is_ready,
            reason: if is_ready { "Synced" } else { "SomeFailed" },
            message: &message,
        };
        self.write_status(req, synch, status, written, ready)
            .await?;
        if written > 0 {
            let spec = &synch.spec;
            let source = format!("{}/{}", spec.source_namespace, spec.secret_name);
            let note = format!("secret {source} synced: {message}");
            req.recorder()
                .event(synch, Event::normal("Synced", "Synced", note));
        }
        info!(secsynch = %req.key(), synced, total, failed, written, "reconciled");
        // After the status, which names the failed namespaces while retries go on.
        if summary.retry {
            let message = format!("{failed} of {total} copies could not be written");
            return Err(Error::retry(message));
        }
        Ok(Action::await_change())
    }

    async fn write_status(
        &self,
        req: &Request<SecSynch>,
        synch: &SecSynch,
        mut status: SecSynchStatus,
        written: usize,
        ready: ReadyCondition<'_>,
    ) -> Result<(), Error> {
        let now = req.now();
        if written > 0 {
            status.last_sync_time = Some(Time(now));
        }
        status.observed_generation = synch.metadata.generation;
        let is_ready = match ready.is_ready {
            true => ConditionStatus::True,
            false => ConditionStatus::False,
        };
        let condition = ConditionUpdate::new("Ready", is_ready, ready.reason)
            .message(ready.message)
            .observed(synch);
        set_status_condition(&mut status.conditions, condition, now);
        req.client().apply_status(synch, &status).await?;
        Ok(())
    }

    fn verified(&self, key: &ObjectKey) -> HashMap<String, String> {
        let all = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(key).cloned().unwrap_or_default()
    }

    fn set_verified(&self, key: &ObjectKey, verified: HashMap<String, String>) {
        let mut all = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        if verified.is_empty() {
            all.remove(key);
        } else {
            all.insert(key.clone(), verified);
        }
    }
}
