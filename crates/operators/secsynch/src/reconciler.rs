//! The reconciler: reads the source, selects destinations, writes copies, updates the status.
//!
//! Guarantee: values of Secrets are read when needed, held for one reconcile, and never logged,
//! recorded in Events or written to a status.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, PoisonError},
};

use bellerophon::{
    ConditionStatus, EventRecorder, EventType, Failure, Lister, Note, ObjectKey, Outcome,
    ReconcileResult, Request, SetCondition, Step, WallClock, Writes, set_condition,
};
use k8s_openapi::{
    api::core::v1::{Namespace, Secret},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{Api, Client, ResourceExt as _, api::ListParams, core::PartialObjectMeta};
use tracing::info;

use crate::{
    copies::{SyncRun, SyncSummary, delete_copies},
    copy::{CopyOwner, OWNER_UID, SecretContent},
    crd::{SecSynch, SecSynchStatus},
    destinations::{ALLOW_TO, Consent, Destination, select_destinations},
};

/// The maximum number of failures in a status.
const FAILURES_MAX: usize = 10;

/// The page size of lists of copies.
const PAGE_SIZE: u32 = 500;

/// The finalizer that keeps a SecSynch until its copies are deleted.
pub(crate) const FINALIZER: &str = "secsynch.tutorial.study.dev/copies";

/// The index of Secrets by the UID of the SecSynch that owns them.
pub(crate) const BY_OWNER: &str = "owner-uid";

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
    pub(crate) client: Client,
    pub(crate) clock: WallClock,
    pub(crate) events: EventRecorder,
    pub(crate) synches: Lister<SecSynch>,
    pub(crate) secrets: Lister<PartialObjectMeta<Secret>>,
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

impl SecSynchReconciler {
    pub(crate) async fn reconcile(self: Arc<Self>, request: Request<SecSynch>) -> ReconcileResult {
        let Some(synch) = request.object.clone() else {
            self.set_verified(&request.key, HashMap::new());
            return Ok(Outcome::Done);
        };
        let api = Api::namespaced(self.client.clone(), &synch.namespace().unwrap_or_default());
        let work = async |step| match step {
            Step::CleanUp => self.clean_up(&request, &synch).await,
            Step::Apply => self.apply(&request, &synch).await,
        };
        request
            .writes()
            .finalizer(&api, &*synch, FINALIZER, work)
            .await
    }

    /// Deletes every copy. They are listed from the server, since the cache may not have the last
    /// one yet.
    async fn clean_up(&self, request: &Request<SecSynch>, synch: &SecSynch) -> ReconcileResult {
        let uid = synch.uid().unwrap_or_default();
        let secrets = Api::<Secret>::all(self.client.clone());
        let mut params = ListParams::default()
            .labels(&format!("{OWNER_UID}={uid}"))
            .limit(PAGE_SIZE);
        loop {
            let page = secrets
                .list_metadata(&params)
                .await
                .map_err(Failure::retry)?;
            let copies = page.items.into_iter().map(|copy| copy.metadata).collect();
            delete_copies(&self.client, request.writes(), copies).await?;
            match page.metadata.continue_ {
                Some(token) if !token.is_empty() => params = params.continue_token(&token),
                _ => break,
            }
        }
        self.set_verified(&request.key, HashMap::new());
        info!(secsynch = %request.key, "deleted all copies");
        Ok(Outcome::Done)
    }

    async fn apply(&self, request: &Request<SecSynch>, synch: &SecSynch) -> ReconcileResult {
        let spec = &synch.spec;
        let uid = synch.uid().unwrap_or_default();
        let source_key = ObjectKey::namespaced(&spec.source_namespace, &spec.secret_name);
        // Read before the source itself, so that a later change supersedes this run.
        let cached_source = self.secrets.get(&source_key);
        let source = Api::<Secret>::namespaced(self.client.clone(), &spec.source_namespace)
            .get_opt(&spec.secret_name)
            .await
            .map_err(Failure::retry)?
            .filter(|secret| secret.metadata.deletion_timestamp.is_none());
        let Some(source) = source else {
            let message = "the source secret does not exist";
            return self
                .delete_without_source(request, synch, "SourceMissing", message)
                .await;
        };
        let annotations = source.annotations();
        let allow_to = annotations.get(ALLOW_TO).cloned().unwrap_or_default();
        let Some(content) = SecretContent::new(source, &uid) else {
            let message =
                "secrets of this type are credentials of the cluster and are never copied";
            return self
                .delete_without_source(request, synch, "NeverCopied", message)
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
            client: &self.client,
            synches: &self.synches,
            secrets: &self.secrets,
            synch,
            writes: request.writes(),
            content: &content,
            owner: CopyOwner {
                uid: &uid,
                source: &source_name,
            },
            source_version: cached_source.and_then(|source| source.resource_version()),
        };
        let verified = self.verified(&request.key);
        let mut summary = run.sync_all(&destinations, &verified).await;
        if summary.is_superseded {
            // The event of the newer spec or source has enqueued the key.
            return Ok(Outcome::Done);
        }
        summary.written += self
            .delete_stale_copies(request.writes(), synch, |namespace| {
                destinations.get(namespace) == Some(&Destination::Allowed)
            })
            .await?;
        self.set_verified(&request.key, std::mem::take(&mut summary.verified));
        self.report(request, synch, destinations.len(), summary)
            .await
    }

    /// Deletes copies with a former name or in a namespace that is no longer a destination.
    /// Returns their number.
    async fn delete_stale_copies(
        &self,
        writes: &Writes,
        synch: &SecSynch,
        is_destination: impl Fn(&str) -> bool,
    ) -> Result<usize, Failure> {
        let uid = synch.uid().unwrap_or_default();
        let copies = self.secrets.by_index(BY_OWNER, &uid)?;
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
        delete_copies(&self.client, writes, stale).await?;
        Ok(count)
    }

    /// Deletes all copies because their source cannot be copied.
    async fn delete_without_source(
        &self,
        request: &Request<SecSynch>,
        synch: &SecSynch,
        reason: &str,
        message: &str,
    ) -> ReconcileResult {
        let deleted = self
            .delete_stale_copies(request.writes(), synch, |_| false)
            .await?;
        self.set_verified(&request.key, HashMap::new());
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
        self.write_status(request, synch, status, deleted, ready)
            .await?;
        Ok(Outcome::Done)
    }

    async fn report(
        &self,
        request: &Request<SecSynch>,
        synch: &SecSynch,
        destinations: usize,
        summary: SyncSummary,
    ) -> ReconcileResult {
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
        self.write_status(request, synch, status, written, ready)
            .await?;
        if written > 0 {
            let spec = &synch.spec;
            let source = format!("{}/{}", spec.source_namespace, spec.secret_name);
            let event = Note {
                type_: EventType::Normal,
                reason: "Synced".into(),
                action: "Synced".into(),
                note: format!("secret {source} synced: {message}"),
            };
            self.events.event(synch, event);
        }
        info!(secsynch = %request.key, synced, total, failed, written, "reconciled");
        if summary.retry {
            let message = format!("{failed} of {total} copies could not be written");
            return Err(Failure::retry(message));
        }
        Ok(Outcome::Done)
    }

    async fn write_status(
        &self,
        request: &Request<SecSynch>,
        synch: &SecSynch,
        mut status: SecSynchStatus,
        written: usize,
        ready: ReadyCondition<'_>,
    ) -> Result<(), Failure> {
        let now = self.clock.now();
        if written > 0 {
            status.last_sync_time = Some(Time(now));
        }
        status.observed_generation = synch.metadata.generation;
        let condition = SetCondition {
            type_: "Ready",
            status: if ready.is_ready {
                ConditionStatus::True
            } else {
                ConditionStatus::False
            },
            reason: ready.reason,
            message: ready.message,
            observed_generation: synch.metadata.generation,
        };
        set_condition(&mut status.conditions, &condition, now);
        if synch.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let updated = SecSynch {
            status: Some(status),
            ..synch.clone()
        };
        let namespace = synch.namespace().unwrap_or_default();
        let synches = Api::namespaced(self.client.clone(), &namespace);
        request.writes().apply_status(&synches, &updated).await?;
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
