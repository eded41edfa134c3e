//! Bringing copies in step: reads, decides for each namespace, writes in bounded parallel, reports.
//!
//! Holds: nothing is written or deleted that does not carry our mark or consent; a newer wish stops the one under way.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{Arc, Mutex, PoisonError},
};

use bellerophon::{
    ConditionStatus, EventRecorder, EventType, Failure, Lister, Note, ObjectKey, Outcome,
    ReconcileResult, Request, SetCondition, Step as Finalizing, WallClock, Writes, set_condition,
};
use futures_util::{StreamExt as _, stream};
use k8s_openapi::{
    api::core::v1::{Namespace, Secret},
    apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time},
};
use kube::{
    Api, Client, ResourceExt as _,
    api::{DeleteParams, ListParams, PostParams, Preconditions},
    core::PartialObjectMeta,
};
use tracing::info;

use crate::{
    choice::{ALLOW_TO, Consent, Verdict, choose},
    copy::{Content, Mark, OWNER_UID, Step, decide, digest},
    crd::{SecSynch, SecSynchStatus, SyncFailure},
};

/// How many copies are written at once.
const FAN_OUT: usize = 32;

/// How many failures a status names.
const FAILURES_MAX: usize = 10;

/// Objects a page when copies are listed.
const PAGE: u32 = 500;

/// What keeps a SecSynch until its copies are gone.
pub(crate) const FINALIZER: &str = "secsynch.tutorial.study.dev/copies";

/// The index of secrets by the SecSynch that made them.
pub(crate) const BY_OWNER: &str = "owner-uid";

/// What an operator may do only when told so at its start.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Allowed {
    /// Copy without the consent of the source, as the tutorial does.
    pub(crate) without_consent: bool,
    /// Copy into the namespaces of the cluster itself.
    pub(crate) into_system: bool,
}

/// Reads, decides, writes.
pub(crate) struct Synchroniser {
    pub(crate) client: Client,
    pub(crate) clock: WallClock,
    pub(crate) events: EventRecorder,
    pub(crate) synches: Lister<SecSynch>,
    pub(crate) secrets: Lister<PartialObjectMeta<Secret>>,
    pub(crate) namespaces: Lister<Namespace>,
    pub(crate) allowed: Allowed,
    /// The version of each copy whose content was seen to be right, by SecSynch and namespace. Lost in a restart, and read again.
    pub(crate) verified: Mutex<HashMap<ObjectKey, HashMap<String, String>>>,
}

/// What became of one copy.
enum Fate {
    InStep {
        version: String,
        wrote: bool,
    },
    Skipped,
    Failed {
        reason: &'static str,
        message: String,
        retry: bool,
    },
    /// Not looked at: something newer is wanted.
    Superseded,
}

/// One SecSynch under way.
struct Pass<'a> {
    synch: &'a SecSynch,
    writes: &'a Writes,
    content: &'a Content,
    mark: Mark<'a>,
    /// The version of the source that the cache had when the pass began.
    source_version: Option<String>,
}

/// What a pass came to.
#[derive(Default)]
struct Tally {
    synced: i64,
    wrote: usize,
    skipped: i64,
    failures: Vec<SyncFailure>,
    retry: bool,
    superseded: bool,
    verified: HashMap<String, String>,
}

impl Synchroniser {
    pub(crate) async fn reconcile(self: Arc<Self>, request: Request<SecSynch>) -> ReconcileResult {
        let Some(synch) = request.object.clone() else {
            self.remember(&request.key, HashMap::new());
            return Ok(Outcome::Done);
        };
        let api = Api::namespaced(self.client.clone(), &synch.namespace().unwrap_or_default());
        let work = async |step| match step {
            Finalizing::CleanUp => self.clean_up(&request, &synch).await,
            Finalizing::Apply => self.apply(&request, &synch).await,
        };
        request
            .writes()
            .finalizer(&api, &*synch, FINALIZER, work)
            .await
    }

    /// Removes every copy, found on the server itself: a cache may not show the last one yet.
    async fn clean_up(&self, request: &Request<SecSynch>, synch: &SecSynch) -> ReconcileResult {
        let uid = synch.uid().unwrap_or_default();
        let all = Api::<Secret>::all(self.client.clone());
        let mut params = ListParams::default()
            .labels(&format!("{OWNER_UID}={uid}"))
            .limit(PAGE);
        loop {
            let page = all.list_metadata(&params).await.map_err(Failure::retry)?;
            self.remove_all(
                request.writes(),
                page.items.iter().map(|copy| &copy.metadata),
            )
            .await?;
            match page.metadata.continue_ {
                Some(token) if !token.is_empty() => params = params.continue_token(&token),
                _ => break,
            }
        }
        self.remember(&request.key, HashMap::new());
        info!("{}: its copies are gone", request.key);
        Ok(Outcome::Done)
    }

    async fn apply(&self, request: &Request<SecSynch>, synch: &SecSynch) -> ReconcileResult {
        let (spec, uid) = (&synch.spec, synch.uid().unwrap_or_default());
        let source_key = ObjectKey::namespaced(&spec.source_namespace, &spec.secret_name);
        let cached = self.secrets.get(&source_key);
        let source = Api::<Secret>::namespaced(self.client.clone(), &spec.source_namespace)
            .get_opt(&spec.secret_name)
            .await;
        let source = source
            .map_err(Failure::retry)?
            .filter(|secret| secret.metadata.deletion_timestamp.is_none());
        let Some(source) = source else {
            return self
                .without_source(request, synch, "SourceMissing", "there is no such secret")
                .await;
        };
        let allow_to = source
            .annotations()
            .get(ALLOW_TO)
            .cloned()
            .unwrap_or_default();
        let implied = self.allowed.without_consent
            || synch.namespace().as_deref() == Some(&spec.source_namespace);
        let Some(content) = Content::of(source, &uid) else {
            let why = "secrets of this type are credentials of the cluster and are never copied";
            return self
                .without_source(request, synch, "NeverCopied", why)
                .await;
        };
        let namespaces = self.namespaces.list();
        let consent = Consent {
            implied,
            allow_to: &allow_to,
        };
        let chosen = choose(
            spec,
            namespaces.iter().map(|namespace| &**namespace),
            consent,
            self.allowed.into_system,
        );
        let source_name = source_key.to_string();
        let pass = Pass {
            synch,
            writes: request.writes(),
            content: &content,
            mark: Mark {
                owner_uid: &uid,
                source: &source_name,
            },
            source_version: cached.and_then(|cached| cached.resource_version()),
        };
        let mut tally = self.fan_out(&request.key, &pass, &chosen).await;
        if tally.superseded {
            // What superseded it has queued it again.
            return Ok(Outcome::Done);
        }
        tally.wrote += self
            .remove_strays(request.writes(), synch, &uid, |namespace| {
                chosen.get(namespace) == Some(&Verdict::Copy)
            })
            .await?;
        self.remember(&request.key, std::mem::take(&mut tally.verified));
        self.report(request, synch, chosen.len(), tally).await
    }

    /// Writes what is to be written, in bounded parallel.
    async fn fan_out(
        &self,
        key: &ObjectKey,
        pass: &Pass<'_>,
        chosen: &BTreeMap<String, Verdict>,
    ) -> Tally {
        let known = self
            .verified
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get(key)
            .cloned()
            .unwrap_or_default();
        let known = &known;
        let fates = stream::iter(chosen.clone()).map(|(namespace, verdict)| async move {
            let fate = match verdict {
                Verdict::Copy => {
                    self.bring_in_step(pass, &namespace, known.get(&namespace).map(String::as_str))
                        .await
                }
                Verdict::Missing => failed("NamespaceMissing", "there is no such namespace"),
                Verdict::Protected => {
                    failed("Protected", "the namespace belongs to the cluster itself")
                }
                Verdict::NotAllowed => failed(
                    "NotAllowed",
                    &format!("the secret does not allow it; annotate it with {ALLOW_TO}"),
                ),
            };
            (namespace, fate)
        });
        let mut tally = Tally::default();
        let mut fates = std::pin::pin!(fates.buffered(FAN_OUT));
        while let Some((namespace, fate)) = fates.next().await {
            tally.add(namespace, fate);
        }
        tally
    }

    async fn bring_in_step(
        &self,
        pass: &Pass<'_>,
        namespace: &str,
        verified: Option<&str>,
    ) -> Fate {
        if self.is_superseded(pass) {
            return Fate::Superseded;
        }
        let name = &pass.synch.spec.secret_name;
        let there = self.secrets.get(&ObjectKey::namespaced(namespace, name));
        let there = there.as_ref().map(|there| &there.metadata);
        let secrets = Api::<Secret>::namespaced(self.client.clone(), namespace);
        match (
            decide(
                there,
                pass.mark.owner_uid,
                &pass.content.digest,
                pass.synch.spec.conflict_policy,
                verified,
            ),
            there,
        ) {
            (Step::Keep, Some(there)) => Fate::InStep {
                version: there.resource_version.clone().unwrap_or_default(),
                wrote: false,
            },
            (Step::Skip, _) => Fate::Skipped,
            (Step::Conflict, _) => failed(
                "Exists",
                "another secret of this name is there; see conflictPolicy",
            ),
            (Step::Rival, _) => failed(
                "OwnedByAnother",
                "another SecSynch made the secret of this name",
            ),
            (Step::Replace, Some(there)) => self.replace(pass, &secrets, there.clone()).await,
            (Step::Verify, Some(_)) => self.verify(pass, &secrets).await,
            (Step::Create, _) | (_, None) => self.create(pass, &secrets, namespace).await,
        }
    }

    /// Whether something newer is wanted than what the pass began with.
    fn is_superseded(&self, pass: &Pass<'_>) -> bool {
        let Some(now) = self.synches.get(&ObjectKey::of(pass.synch)) else {
            return true;
        };
        let spec = &pass.synch.spec;
        let source = self.secrets.get(&ObjectKey::namespaced(
            &spec.source_namespace,
            &spec.secret_name,
        ));
        now.metadata.generation != pass.synch.metadata.generation
            || source.and_then(|source| source.resource_version()) != pass.source_version
    }

    async fn create(&self, pass: &Pass<'_>, secrets: &Api<Secret>, namespace: &str) -> Fate {
        let metadata = ObjectMeta {
            name: Some(pass.synch.spec.secret_name.clone()),
            namespace: Some(namespace.to_owned()),
            ..ObjectMeta::default()
        };
        let made = secrets
            .create(&params(pass), &pass.content.copy(&pass.mark, metadata))
            .await;
        wrote(pass, made)
    }

    async fn replace(&self, pass: &Pass<'_>, secrets: &Api<Secret>, there: ObjectMeta) -> Fate {
        let (name, uid) = (pass.synch.spec.secret_name.clone(), there.uid.clone());
        let copy = pass.content.copy(&pass.mark, there);
        match secrets.replace(&name, &params(pass), &copy).await {
            Err(error) if cannot_change(&error) => {
                // Neither the type nor anything of an immutable secret can change: it is made anew, if it is still that one.
                let exactly = DeleteParams::default().preconditions(Preconditions {
                    uid,
                    resource_version: None,
                });
                match secrets.delete(&name, &exactly).await {
                    Ok(_) => {
                        self.create(pass, secrets, &copy.namespace().unwrap_or_default())
                            .await
                    }
                    Err(error) => fate_of(&error),
                }
            }
            answer => wrote(pass, answer),
        }
    }

    /// Looks whether a copy holds what it says.
    async fn verify(&self, pass: &Pass<'_>, secrets: &Api<Secret>) -> Fate {
        match secrets.get(&pass.synch.spec.secret_name).await {
            Ok(found) if digest(&found, pass.mark.owner_uid) == pass.content.digest => {
                Fate::InStep {
                    version: found.resource_version().unwrap_or_default(),
                    wrote: false,
                }
            }
            Ok(found) => self.replace(pass, secrets, found.metadata).await,
            Err(error) => fate_of(&error),
        }
    }

    /// Removes copies that are no longer wanted, and tells how many.
    async fn remove_strays(
        &self,
        writes: &Writes,
        synch: &SecSynch,
        uid: &str,
        wanted: impl Fn(&str) -> bool,
    ) -> Result<usize, Failure> {
        let copies = self.secrets.by_index(BY_OWNER, uid)?;
        let is_stray = |copy: &ObjectMeta| {
            copy.name.as_ref() != Some(&synch.spec.secret_name)
                || !wanted(copy.namespace.as_deref().unwrap_or_default())
        };
        let strays: Vec<&ObjectMeta> = copies
            .iter()
            .map(|copy| &copy.metadata)
            .filter(|copy| is_stray(copy))
            .collect();
        self.remove_all(writes, strays.iter().copied()).await?;
        Ok(strays.len())
    }

    /// Deletes exactly these secrets. What is gone, or is another one by now, is done.
    async fn remove_all<'m>(
        &self,
        writes: &Writes,
        copies: impl Iterator<Item = &'m ObjectMeta>,
    ) -> Result<(), Failure> {
        let removals = stream::iter(copies.cloned().collect::<Vec<_>>()).map(|copy| async move {
            let (namespace, name) = (
                copy.namespace.clone().unwrap_or_default(),
                copy.name.clone().unwrap_or_default(),
            );
            let exactly = DeleteParams::default().preconditions(Preconditions {
                uid: copy.uid.clone(),
                resource_version: None,
            });
            match Api::<Secret>::namespaced(self.client.clone(), &namespace)
                .delete(&name, &exactly)
                .await
            {
                Ok(answer) => {
                    answer.map_left(|held| writes.wrote(&held)).map_right(|_| {
                        writes.deleted::<Secret>(ObjectKey::namespaced(namespace, name))
                    });
                    Ok(())
                }
                Err(kube::Error::Api(status)) if matches!(status.code, 404 | 409) => Ok(()),
                Err(error) => Err(Failure::retry(error)),
            }
        });
        let mut removals = std::pin::pin!(removals.buffer_unordered(FAN_OUT));
        let mut first = Ok(());
        while let Some(removed) = removals.next().await {
            first = first.and(removed);
        }
        first
    }

    /// There is nothing to copy: no copy may stay.
    async fn without_source(
        &self,
        request: &Request<SecSynch>,
        synch: &SecSynch,
        reason: &str,
        message: &str,
    ) -> ReconcileResult {
        let wrote = self
            .remove_strays(
                request.writes(),
                synch,
                &synch.uid().unwrap_or_default(),
                |_| false,
            )
            .await?;
        self.remember(&request.key, HashMap::new());
        let status = SecSynchStatus {
            synced: 0,
            total: 0,
            failed: 0,
            failures: vec![],
            ..synch.status.clone().unwrap_or_default()
        };
        self.write_status(request, synch, status, wrote, (false, reason, message))
            .await?;
        Ok(Outcome::Done)
    }

    async fn report(
        &self,
        request: &Request<SecSynch>,
        synch: &SecSynch,
        total: usize,
        mut tally: Tally,
    ) -> ReconcileResult {
        let (failed, total) = (tally.failures.len(), total as i64 - tally.skipped);
        tally.failures.truncate(FAILURES_MAX);
        let mut status = synch.status.clone().unwrap_or_default();
        (status.synced, status.total, status.failed) = (tally.synced, total, failed as i64);
        status.failures = tally.failures;
        let message = format!("{} of {total} copies are in step", status.synced);
        let ready = if failed == 0 {
            (true, "Synced", message.as_str())
        } else {
            (false, "SomeFailed", message.as_str())
        };
        self.write_status(request, synch, status, tally.wrote, ready)
            .await?;
        if tally.wrote > 0 {
            let note = format!(
                "secret {}/{} synced: {message}",
                synch.spec.source_namespace, synch.spec.secret_name
            );
            self.events.event(
                synch,
                Note {
                    type_: EventType::Normal,
                    reason: "Synced".into(),
                    action: "Synced".into(),
                    note,
                },
            );
        }
        info!("{}: {message}, {} written", request.key, tally.wrote);
        if tally.retry {
            Err(Failure::retry(format!(
                "{failed} of {total} copies could not be made"
            )))
        } else {
            Ok(Outcome::Done)
        }
    }

    async fn write_status(
        &self,
        request: &Request<SecSynch>,
        synch: &SecSynch,
        mut status: SecSynchStatus,
        wrote: usize,
        (holds, reason, message): (bool, &str, &str),
    ) -> Result<(), Failure> {
        let now = self.clock.now();
        if wrote > 0 {
            status.last_sync_time = Some(Time(now));
        }
        status.observed_generation = synch.metadata.generation;
        let holds = if holds {
            ConditionStatus::True
        } else {
            ConditionStatus::False
        };
        let set = SetCondition {
            type_: "Ready",
            status: holds,
            reason,
            message,
            observed_generation: synch.metadata.generation,
        };
        set_condition(&mut status.conditions, &set, now);
        if synch.status.as_ref() == Some(&status) {
            return Ok(());
        }
        let told = SecSynch {
            status: Some(status),
            ..synch.clone()
        };
        request
            .writes()
            .apply_status(
                &Api::namespaced(self.client.clone(), &synch.namespace().unwrap_or_default()),
                &told,
            )
            .await?;
        Ok(())
    }

    fn remember(&self, key: &ObjectKey, verified: HashMap<String, String>) {
        let mut all = self.verified.lock().unwrap_or_else(PoisonError::into_inner);
        if verified.is_empty() {
            all.remove(key);
        } else {
            all.insert(key.clone(), verified);
        }
    }
}

impl Tally {
    fn add(&mut self, namespace: String, fate: Fate) {
        match fate {
            Fate::InStep { version, wrote } => {
                self.synced += 1;
                self.wrote += usize::from(wrote);
                self.verified.insert(namespace, version);
            }
            Fate::Skipped => self.skipped += 1,
            Fate::Failed {
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
            Fate::Superseded => self.superseded = true,
        }
    }
}

fn params(pass: &Pass<'_>) -> PostParams {
    PostParams {
        field_manager: Some(pass.writes.controller().to_owned()),
        ..PostParams::default()
    }
}

fn wrote(pass: &Pass<'_>, answer: Result<Secret, kube::Error>) -> Fate {
    match answer {
        Ok(copy) => {
            pass.writes.wrote(&copy);
            Fate::InStep {
                version: copy.resource_version().unwrap_or_default(),
                wrote: true,
            }
        }
        Err(error) => fate_of(&error),
    }
}

/// A failure that waits for something to change, not for time to pass.
fn failed(reason: &'static str, message: &str) -> Fate {
    Fate::Failed {
        reason,
        message: message.to_owned(),
        retry: false,
    }
}

/// Whether a write was refused because of what can never change in a secret.
fn cannot_change(error: &kube::Error) -> bool {
    let kube::Error::Api(status) = error else {
        return false;
    };
    let causes = status.details.iter().flat_map(|details| &details.causes);
    status.code == 422
        && causes
            .into_iter()
            .any(|cause| matches!(cause.field.as_str(), "type" | "data" | "immutable"))
}

/// What an error means for one copy. The server's words name objects, never what a secret holds.
fn fate_of(error: &kube::Error) -> Fate {
    let kube::Error::Api(status) = error else {
        return Fate::Failed {
            reason: "Unreachable",
            message: "the API server could not be reached".into(),
            retry: true,
        };
    };
    let has_cause = |wanted: &str| {
        status
            .details
            .iter()
            .flat_map(|details| &details.causes)
            .any(|cause| cause.reason == wanted)
    };
    match status.code {
        403 if has_cause("NamespaceTerminating") => {
            failed("NamespaceTerminating", "the namespace is going")
        }
        404 => failed("NamespaceMissing", "the namespace is gone"),
        409 => Fate::Failed {
            reason: "Changed",
            message: "somebody else wrote the secret at the same time".into(),
            retry: true,
        },
        // A 422 echoes values, and values of secrets are told to nobody.
        422 => Fate::Failed {
            reason: "Invalid",
            message: "the API server refuses the copy as invalid".into(),
            retry: true,
        },
        _ => Fate::Failed {
            reason: "Refused",
            message: status.message.clone(),
            retry: true,
        },
    }
}
