//! The reconciler: reads the source, selects destinations, writes copies, updates the status.
//!
//! Guarantees: values of Secrets are read when needed, held for one reconcile, and never logged,
//! recorded in Events or written to a status; a status shows whether a Secret of another namespace
//! exists only if that Secret allows copies.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use bellerophon::client::ReconcileClient;
use bellerophon::conditions::{
    ConditionStatus, ConditionUpdate, find_status_condition, remove_status_condition,
    set_status_condition,
};
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
    copies::{SyncRun, SyncSummary, remove_copies},
    copy::{CopyOwner, OWNER_UID, SecretContent},
    crd::{SecSynch, SecSynchStatus},
    destinations::{ALLOW_TO, Consent, Destination, select_destinations},
};

/// The condition that reports whether every copy is up to date.
const READY: &str = "Ready";
/// The condition that reports the consent of the destinations.
const ACCEPTED: &str = "Accepted";
/// The reason of the condition and the Event if a destination does not consent.
const NOT_ACCEPTED: &str = "NotAccepted";

/// The maximum number of failures in a status.
const FAILURES_MAX: usize = 10;

/// The finalizer that keeps a SecSynch until its copies are deleted.
pub(crate) const FINALIZER: &str = "secsynch.tutorial.study.dev/copies";

/// The feature switches of the operator.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FeatureSwitches {
    /// Copy without the consent of source and destinations, as the tutorial does.
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

/// Why nothing can be copied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Unavailable {
    /// The spec has an invalid name.
    InvalidSpec(&'static str),
    /// There is no source in the namespace of the SecSynch.
    SourceMissing,
    /// The source is a credential of the cluster.
    NeverCopied,
    /// There is no source in another namespace, or it does not allow copies. Which of them is not
    /// disclosed: permission to create a SecSynch is not permission to read Secrets elsewhere.
    SourceNotAvailable,
}

impl Unavailable {
    fn reason(self) -> &'static str {
        match self {
            Self::InvalidSpec(_) => "InvalidSpec",
            Self::SourceMissing => "SourceMissing",
            Self::NeverCopied => "NeverCopied",
            Self::SourceNotAvailable => "SourceNotAvailable",
        }
    }

    pub(crate) fn message(self) -> String {
        match self {
            Self::InvalidSpec(field) => format!("spec.{field} is not a valid name"),
            Self::SourceMissing => "the source secret does not exist".to_owned(),
            Self::NeverCopied => {
                "secrets of this type are credentials of the cluster and are never copied"
                    .to_owned()
            }
            Self::SourceNotAvailable => format!(
                "the source secret does not exist or does not allow copies; its annotation is \
                 {ALLOW_TO}"
            ),
        }
    }
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
    /// Deletes or releases every copy. They are listed from the server, since the cache may not have the last
    /// one yet.
    async fn clean_up(&self, req: &Request<SecSynch>, synch: &SecSynch) -> Result<Action, Error> {
        let uid = synch.uid().unwrap_or_default();
        let owned = ListParams::default().labels(&format!("{OWNER_UID}={uid}"));
        let copies = req
            .client()
            .list::<PartialObjectMeta<Secret>>(None, &owned)
            .await?;
        let copies = copies.iter().map(|copy| copy.metadata.clone()).collect();
        remove_copies(req.client(), copies).await?;
        self.set_verified(req.key(), HashMap::new());
        info!(secsynch = %req.key(), "removed all copies");
        Ok(Action::await_change())
    }

    async fn apply(&self, req: &Request<SecSynch>, synch: &SecSynch) -> Result<Action, Error> {
        let spec = &synch.spec;
        let uid = synch.uid().unwrap_or_default();
        if let Some(field) = spec.invalid_field() {
            let unavailable = Unavailable::InvalidSpec(field);
            return self.remove_all(req, synch, unavailable).await;
        }
        let source_key = ObjectKey::namespaced(&spec.source_namespace, &spec.secret_name);
        // Read before the source itself, so that a later change supersedes this run.
        let cached_source = self.secrets.get(&source_key);
        // From the server: the cache has only the metadata of Secrets.
        let source = req.client().get::<Secret>(&source_key).await?;
        let source = source.filter(|secret| secret.metadata.deletion_timestamp.is_none());
        let metadata = source.as_ref().map(|source| &source.metadata);
        let assessment = assess(synch, metadata, &self.namespaces.list(), self.features);
        let (destinations, source) = match (assessment, &source) {
            (Ok(destinations), Some(source)) => (destinations, source),
            (Ok(_), None) => {
                return self
                    .remove_all(req, synch, Unavailable::SourceMissing)
                    .await;
            }
            (Err(unavailable), _) => return self.remove_all(req, synch, unavailable).await,
        };
        let Some(content) = SecretContent::new(Secret::clone(source), &uid) else {
            let unavailable = Unavailable::NeverCopied;
            return self.remove_all(req, synch, unavailable).await;
        };
        let run = SyncRun {
            client: req.client(),
            synches: &self.synches,
            secrets: &self.secrets,
            synch,
            content: &content,
            owner: CopyOwner {
                uid: &uid,
                source_namespace: &spec.source_namespace,
                source_name: &spec.secret_name,
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
            .remove_stale_copies(req.client(), synch, |namespace| {
                destinations.get(namespace) == Some(&Destination::Allowed)
            })
            .await?;
        self.set_verified(req.key(), std::mem::take(&mut summary.verified));
        self.report(req, synch, destinations.len(), summary).await
    }

    /// Removes copies with a former name or in a namespace that is no longer a destination.
    /// Returns their number.
    async fn remove_stale_copies(
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
        remove_copies(client, stale).await?;
        Ok(count)
    }

    /// Removes all copies because their source cannot be copied.
    async fn remove_all(
        &self,
        req: &Request<SecSynch>,
        synch: &SecSynch,
        unavailable: Unavailable,
    ) -> Result<Action, Error> {
        let removed = self
            .remove_stale_copies(req.client(), synch, |_| false)
            .await?;
        self.set_verified(req.key(), HashMap::new());
        let mut status = SecSynchStatus {
            synced: 0,
            total: 0,
            failed: 0,
            failures: vec![],
            ..synch.status.clone().unwrap_or_default()
        };
        remove_status_condition(&mut status.conditions, ACCEPTED);
        let ready = ConditionUpdate::new(READY, ConditionStatus::False, unavailable.reason())
            .message(unavailable.message());
        self.write_status(req, synch, status, removed, vec![ready])
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
        let missing_consent = missing_consent(synch, &summary.not_accepted());
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
        let ready = match failed {
            0 => ConditionUpdate::new(READY, ConditionStatus::True, "Synced"),
            _ => ConditionUpdate::new(READY, ConditionStatus::False, "SomeFailed"),
        };
        let accepted = match &missing_consent {
            None => ConditionUpdate::new(ACCEPTED, ConditionStatus::True, "Accepted")
                .message("every destination accepts its copy"),
            Some(message) => ConditionUpdate::new(ACCEPTED, ConditionStatus::False, NOT_ACCEPTED)
                .message(message),
        };
        let conditions = vec![ready.message(&message), accepted];
        self.write_status(req, synch, status, written, conditions)
            .await?;
        if let Some(note) = missing_consent.filter(|note| !is_reported(synch, note)) {
            let event = Event::warning(NOT_ACCEPTED, "Sync", note);
            req.recorder().event(synch, event);
        }
        if written > 0 {
            let spec = &synch.spec;
            let source = format!("{}/{}", spec.source_namespace, spec.secret_name);
            let note = format!("secret {source} synced: {message}");
            req.recorder()
                .event(synch, Event::normal("Synced", "Synced", note));
        }
        info!(secsynch = %req.key(), synced, total, failed, written, "reconciled");
        // After the status, which names the failed namespaces while retries continue.
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
        conditions: Vec<ConditionUpdate>,
    ) -> Result<(), Error> {
        let now = req.now();
        if written > 0 {
            status.last_sync_time = Some(Time(now));
        }
        status.observed_generation = synch.metadata.generation;
        for condition in conditions {
            set_status_condition(&mut status.conditions, condition.observed(synch), now);
        }
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

/// The destinations of a SecSynch whose source has this metadata, `None` if there is none.
///
/// # Errors
/// Why nothing can be copied.
pub(crate) fn assess(
    synch: &SecSynch,
    source: Option<&ObjectMeta>,
    namespaces: &[Arc<Namespace>],
    features: FeatureSwitches,
) -> Result<BTreeMap<String, Destination>, Unavailable> {
    let spec = &synch.spec;
    let annotations = source.and_then(|source| source.annotations.as_ref());
    let allow_to = annotations.and_then(|annotations| annotations.get(ALLOW_TO));
    let consent = Consent {
        is_waived: features.without_consent,
        synch_namespace: synch.metadata.namespace.as_deref().unwrap_or_default(),
        allow_to: allow_to.map(String::as_str).unwrap_or_default(),
    };
    let namespaces = namespaces.iter().map(|namespace| &**namespace);
    let destinations = select_destinations(spec, namespaces, consent, features.into_system);
    let is_disclosed = consent.is_implied_by_source(spec)
        || destinations
            .values()
            .any(|destination| destination.is_allowed_by_source());
    match (is_disclosed, source) {
        (true, Some(_)) => Ok(destinations),
        (true, None) => Err(Unavailable::SourceMissing),
        (false, _) => Err(Unavailable::SourceNotAvailable),
    }
}

/// Which destinations do not consent; `None` if all do.
pub(crate) fn missing_consent(synch: &SecSynch, not_accepted: &[&str]) -> Option<String> {
    let source = &synch.spec.source_namespace;
    let count = not_accepted.len();
    let names = not_accepted[..count.min(FAILURES_MAX)].join(", ");
    match count {
        0 => None,
        1 => Some(format!("{names} does not accept copies from {source}")),
        2..=FAILURES_MAX => Some(format!("{names} do not accept copies from {source}")),
        _ => Some(format!(
            "{count} namespaces do not accept copies from {source}, among them {names}"
        )),
    }
}

/// Whether the `Accepted` condition has this message already.
fn is_reported(synch: &SecSynch, message: &str) -> bool {
    let status = synch.status.as_ref();
    let accepted = status.and_then(|status| find_status_condition(&status.conditions, ACCEPTED));
    accepted.is_some_and(|condition| condition.message == message)
}
