//! Informer: one cache and its reflectors, without the type of its objects.
//! In: one reflector per watched namespace. Out: the core that handles read.
//! Guarantees: it runs once; all its tasks have ended when [`Informer::run`] returns.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use bellerophon_kinds::KindCodec;
use kube::core::{ApiResource, TypeMeta};
use tokio::{sync::watch, task::JoinSet};
use tokio_util::{sync::CancellationToken, task::AbortOnDropHandle};

use super::{
    core::{Core, Scope},
    options::{CacheMode, ListWatchFn, Scopes, Settings},
};
use crate::{
    cached::DecodedLru,
    clock::Rng,
    fifo::KnownKeys,
    informer_stats::InformerStats,
    list_watch::ListWatchError,
    reflector::{Decoder, Output, Reflector, TransformFn},
    trace::{CacheSnapshot, Trace, TracedCache},
};

/// The configuration of an informer.
pub(super) struct InformerConfig {
    pub(super) resource: ApiResource,
    pub(super) codec: &'static KindCodec,
    pub(super) list_watch: ListWatchFn,
    pub(super) settings: Settings,
    pub(super) trace: Trace,
    pub(super) rng: Rng,
}

pub(crate) struct Informer {
    pub(crate) core: Arc<Core>,
    pub(crate) resource: ApiResource,
    pub(crate) codec: &'static KindCodec,
    list_watch: ListWatchFn,
    scopes: watch::Sender<Scopes>,
    settings: Mutex<Settings>,
    rng: Rng,
    started: AtomicBool,
}

impl Informer {
    pub(super) fn new(config: InformerConfig) -> Self {
        let lru = Arc::new(DecodedLru::new(config.settings.cache_mode().decoded_max()));
        Self {
            core: Arc::new(Core::new(&config.resource, lru, config.trace)),
            resource: config.resource,
            codec: config.codec,
            list_watch: config.list_watch,
            scopes: watch::Sender::new(Scopes::All),
            settings: Mutex::new(config.settings),
            rng: config.rng,
            started: AtomicBool::new(false),
        }
    }

    /// Adds the settings of another request. Returns the name of a setting that contradicts the
    /// others, or that comes after the start.
    pub(super) fn merge(&self, settings: Settings) -> Option<&'static str> {
        let mut current = self.settings();
        if self.started.load(Ordering::SeqCst) {
            return (!current.has(&settings)).then_some("a setting changed after the start");
        }
        let contradiction = current.merge(settings);
        self.core.lru.set_max(current.cache_mode().decoded_max());
        contradiction
    }

    /// Whether a transform function changes objects, so that the cache has other ones than the
    /// server.
    pub(crate) fn modifies_objects(&self) -> bool {
        matches!(
            self.settings().transform().function,
            TransformFn::Function(_)
        )
    }

    /// Returns the stats without keeping the informer alive.
    pub(crate) fn stats_while_alive(
        self: &Arc<Self>,
    ) -> impl Fn() -> Option<InformerStats> + Send + 'static {
        // Weak, or the metrics registry would keep every informer of the process alive.
        let informer = Arc::downgrade(self);
        move || informer.upgrade().map(|informer| informer.core.stats())
    }

    /// Changes the watched namespaces, also while it runs. Objects of namespaces that are no longer
    /// watched are deleted from the cache; the others stay.
    pub(super) fn set_scopes(&self, scopes: Scopes) {
        self.scopes.send_if_modified(|current| {
            let changed = *current != scopes;
            *current = scopes;
            changed
        });
    }

    /// Runs the informer until `stop`. Reflectors stop first, then handlers receive what is
    /// pending; all tasks have ended when this returns. Dropping the future aborts them.
    pub(super) async fn run(self: Arc<Self>, stop: CancellationToken) {
        let was_started = self.started.swap(true, Ordering::SeqCst);
        debug_assert!(!was_started, "an informer is run once");
        // Fixed from here on: `merge` rejects changes once `started` is set.
        let settings = self.settings().clone();
        let is_dynamic = self.codec.resource().is_none() && !self.codec.is_metadata_only();
        let decoder = Arc::new(Decoder {
            codec: self.codec,
            types: is_dynamic.then(|| TypeMeta {
                api_version: self.resource.api_version.clone(),
                kind: self.resource.kind.clone(),
            }),
            transform: settings.transform().function,
            keeps_json: settings.cache_mode() != CacheMode::Decoded,
            lru: self.core.lru.clone(),
        });
        let mut scopes = self.scopes.subscribe();
        let finish = CancellationToken::new();
        let mut running = BTreeMap::new();
        let mut handlers = JoinSet::new();
        loop {
            // Marked as seen before it is acted on, so a change in between is not lost.
            let watched = scopes.borrow_and_update().set();
            self.core.set_scopes(&watched);
            self.follow(&watched, &mut running, &decoder, &settings, &stop)
                .await;
            for slot in self.core.unserved() {
                handlers.spawn(slot.deliver(self.core.clone(), finish.clone()));
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => break,
                _ = scopes.changed() => {}
                () = self.core.handler_added.notified() => {}
                Some(_) = handlers.join_next() => {}
            }
        }
        // Reflectors end first. Then nothing is queued any more, and the handlers can finish what
        // is pending.
        for reflector in running.into_values() {
            reflector.stopped().await;
        }
        self.core.stop();
        finish.cancel();
        while handlers.join_next().await.is_some() {}
        self.core.drop_handlers();
    }

    /// Stops reflectors of scopes that are no longer watched and starts those of new ones. Objects
    /// that a new reflector will list stay, and its list decides on them; the others are removed.
    async fn follow(
        &self,
        scopes: &BTreeSet<Scope>,
        running: &mut BTreeMap<Scope, RunningReflector>,
        decoder: &Arc<Decoder>,
        settings: &Settings,
        stop: &CancellationToken,
    ) {
        let mut left = KnownKeys::new();
        let unwatched: Vec<_> = running
            .keys()
            .filter(|scope| !scopes.contains(*scope))
            .cloned()
            .collect();
        for scope in unwatched {
            if let Some(reflector) = running.remove(&scope) {
                // Awaited, because a stopping reflector may still write; its keys are known only
                // afterwards.
                left.extend(reflector.stopped().await);
            }
        }
        for scope in scopes {
            if running.contains_key(scope) {
                continue;
            }
            let listed = |namespace: Option<&str>| scope.is_none() || namespace == scope.as_deref();
            let (known, others) = left.into_iter().partition(|key| listed(key.namespace()));
            left = others;
            let reflector = Reflector {
                source: (self.list_watch)(scope.as_deref()),
                decoder: decoder.clone(),
                output: self.output(scope.clone()),
                initial: settings.initial_list(),
                page_size: settings.page_size(),
                rng: self.rng.clone(),
                awaited: self.core.awaited.clone(),
            };
            let stop = stop.child_token();
            let task = AbortOnDropHandle::new(tokio::spawn(reflector.run(known, stop.clone())));
            running.insert(scope.clone(), RunningReflector { stop, task });
        }
        self.core.remove(left);
    }

    /// The sink of the reflector of a scope.
    fn output(&self, scope: Scope) -> Box<dyn Fn(Output) + Send + Sync> {
        let core = self.core.clone();
        Box::new(move |output| match output {
            Output::Batch(batch) => core.apply(&scope, batch),
            Output::Watch => {
                core.counters.watches.fetch_add(1, Ordering::Relaxed);
            }
            Output::Undecodable(skipped) => {
                core.counters.undecodable.fetch_add(1, Ordering::Relaxed);
                let key = skipped.key.as_ref().map(tracing::field::display);
                let reason = skipped.reason;
                tracing::warn!(
                    resource = core.name,
                    key,
                    reason,
                    "skipping an undecodable object"
                );
            }
            Output::Failed(error) => {
                let resource = &core.name;
                match &error {
                    // An expired version is part of the protocol and not a problem of the server.
                    ListWatchError::Expired(_) => {
                        tracing::debug!(resource, ?scope, %error, "listing again");
                    }
                    error => {
                        tracing::warn!(resource, ?scope, %error, "cannot list or watch, retrying");
                    }
                }
                core.failed(&scope, &error);
            }
        })
    }

    fn settings(&self) -> MutexGuard<'_, Settings> {
        self.settings.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl TracedCache for Informer {
    fn snapshot(&self) -> CacheSnapshot {
        CacheSnapshot {
            kind: self.core.kind.clone(),
            stats: self.core.stats(),
            resource_version: self.core.newest_version(),
        }
    }
}

struct RunningReflector {
    stop: CancellationToken,
    task: AbortOnDropHandle<KnownKeys>,
}

impl RunningReflector {
    /// Stops it, and returns the keys that it leaves in the cache.
    async fn stopped(self) -> KnownKeys {
        self.stop.cancel();
        self.task.await.unwrap_or_else(|error| {
            tracing::error!(%error, "a reflector ended unexpectedly");
            KnownKeys::new()
        })
    }
}
