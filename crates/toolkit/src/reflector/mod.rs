//! Reflector: keeps one cache equal to one list on a server.
//! In: a source. Out: batches of deltas, written to the core of an informer.
//! Holds: the course is decided in [`phase`]; here it is only carried out. One reflector's failures slow no other one.

mod backoff; // how long to rest
mod phase; // what to do next

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::{
    StreamExt,
    stream::{BoxStream, ReadyChunks},
};
use kube::{Resource, ResourceExt};
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

pub use phase::InitialList;
use phase::{Course, Seen, Want};

use crate::{
    clock::Entropy,
    fifo::{BATCH_MAX, Change, DeltaFifo},
    informer::core::{Core, Scope},
    key::ObjectKey,
    source::{ListWatch, SourceError, SourceEvent, Undecodable, WatchRequest},
};

/// How long an answer to a list may take.
const LIST_PATIENCE: Duration = Duration::from_secs(120);
/// How long a watch may take to open.
const OPEN_PATIENCE: Duration = Duration::from_secs(30);
/// A watch is asked to end after this time at least, and after twice this time at most.
const WATCH_TIMEOUT_MIN: Duration = Duration::from_secs(300);
/// A stream that ends within this time did not really work.
const YOUNG: Duration = Duration::from_secs(1);

/// Changes an object before it is cached.
pub(crate) type TransformFn<K> = Arc<dyn Fn(&mut K) + Send + Sync>;

pub(crate) struct Reflector<K> {
    pub(crate) source: Arc<dyn ListWatch<K>>,
    pub(crate) core: Arc<Core<K>>,
    pub(crate) scope: Scope,
    pub(crate) transform: TransformFn<K>,
    pub(crate) initial: InitialList,
    pub(crate) page_size: u32,
    pub(crate) entropy: Entropy,
}

/// An open watch; events that are there together are read together.
struct OpenWatch<K> {
    chunks: ReadyChunks<BoxStream<'static, Result<SourceEvent<K>, SourceError>>>,
    opened: Instant,
    settled: bool,
}

impl<K: Resource + Send + Sync + 'static> Reflector<K> {
    /// Reflects until `stop`, which leaves the cache as it is, or `retire`, which takes the objects out of it.
    pub(crate) async fn run(self, stop: CancellationToken, retire: CancellationToken) {
        let mut fifo = DeltaFifo::new();
        let mut course = Course::new(self.initial, self.page_size);
        let mut watch = None;
        loop {
            let seen = tokio::select! {
                biased;
                () = stop.cancelled() => return,
                () = retire.cancelled() => break,
                seen = self.carry_out(course.want(), &mut watch) => seen,
            };
            for seen in seen {
                let (next, changes) = course.next(self.prepared(seen));
                changes.into_iter().for_each(|change| fifo.push(change));
                course = next;
            }
            self.flush(&mut fifo);
        }
        fifo.push(Change::Replaced { objects: Vec::new(), unreadable: Vec::new(), resource_version: String::new() });
        self.flush(&mut fifo);
    }

    fn flush(&self, fifo: &mut DeltaFifo<K>) {
        while let Some(batch) = fifo.pop() {
            self.core.apply(&self.scope, batch);
        }
    }

    async fn carry_out(&self, want: Want, watch: &mut Option<OpenWatch<K>>) -> Vec<Seen<K>> {
        match want {
            Want::Read { patience } => return read(watch.as_mut(), patience).await,
            _ => *watch = None,
        }
        let seen = match want {
            Want::List(request) => in_time(LIST_PATIENCE, self.source.list(request)).await.map(Seen::Page),
            Want::Watch(from) => {
                self.core.counters.watches.fetch_add(1, Ordering::Relaxed);
                let request = WatchRequest { from, timeout: backoff::jittered(WATCH_TIMEOUT_MIN, &self.entropy) };
                let opened = in_time(OPEN_PATIENCE, self.source.watch(request)).await;
                opened.map(|events| {
                    *watch = Some(OpenWatch { chunks: events.ready_chunks(BATCH_MAX), opened: Instant::now(), settled: false });
                    Seen::Opened
                })
            }
            Want::Rest(delay) => {
                sleep(backoff::jittered(delay, &self.entropy)).await;
                Ok(Seen::Rested)
            }
            Want::Read { .. } => Ok(Seen::Silent),
        };
        vec![seen.unwrap_or_else(Seen::Failed)]
    }

    /// Transforms objects, and counts and reports what cannot be used.
    fn prepared(&self, seen: Seen<K>) -> Seen<K> {
        match seen {
            Seen::Page(mut page) => {
                let objects = std::mem::take(&mut page.objects);
                for object in objects {
                    match self.transformed(object) {
                        Ok(object) => page.objects.push(object),
                        Err(undecodable) => page.undecodable.push(undecodable),
                    }
                }
                page.undecodable.iter().for_each(|undecodable| self.report(undecodable));
                Seen::Page(page)
            }
            Seen::Event(event) => Seen::Event(self.prepared_event(event)),
            Seen::Failed(error) => {
                match &error {
                    SourceError::Expired(_) => tracing::debug!(kind = self.core.what, scope = ?self.scope, %error, "listing again"),
                    error => tracing::warn!(kind = self.core.what, scope = ?self.scope, %error, "cannot list or watch, trying again"),
                }
                self.core.suffer(&self.scope, &error);
                Seen::Failed(error)
            }
            other => other,
        }
    }

    fn prepared_event(&self, event: SourceEvent<K>) -> SourceEvent<K> {
        let event = match event {
            SourceEvent::Applied(object) => self.transformed(object).map_or_else(SourceEvent::Undecodable, SourceEvent::Applied),
            SourceEvent::Deleted { key, object, resource_version } => {
                let object = object.and_then(|object| self.transformed(object).ok());
                SourceEvent::Deleted { key, object, resource_version }
            }
            other => other,
        };
        if let SourceEvent::Undecodable(undecodable) = &event {
            self.report(undecodable);
        }
        event
    }

    fn transformed(&self, mut object: K) -> Result<K, Undecodable> {
        let (key, resource_version) = (Some(ObjectKey::of(&object)), object.resource_version());
        match catch_unwind(AssertUnwindSafe(|| (self.transform)(&mut object))) {
            Ok(()) => Ok(object),
            Err(_) => Err(Undecodable { key, resource_version, reason: "its transform panicked".into() }),
        }
    }

    fn report(&self, undecodable: &Undecodable) {
        self.core.counters.undecodable.fetch_add(1, Ordering::Relaxed);
        let object = undecodable.key.as_ref().map(tracing::field::display);
        tracing::warn!(kind = self.core.what, object, reason = undecodable.reason, "passing over an object that cannot be decoded");
    }
}

async fn read<K>(watch: Option<&mut OpenWatch<K>>, patience: Duration) -> Vec<Seen<K>> {
    let Some(OpenWatch { chunks, opened, settled }) = watch else { return vec![Seen::Ended { young: true }] };
    match timeout(patience, chunks.next()).await {
        Ok(Some(events)) => {
            let news = (!*settled && opened.elapsed() >= YOUNG).then_some(Seen::Settled);
            *settled |= news.is_some();
            news.into_iter().chain(events.into_iter().map(|event| event.map_or_else(Seen::Failed, Seen::Event))).collect()
        }
        Ok(None) => vec![Seen::Ended { young: opened.elapsed() < YOUNG }],
        Err(_) => vec![Seen::Silent],
    }
}

async fn in_time<T>(patience: Duration, answer: impl Future<Output = Result<T, SourceError>>) -> Result<T, SourceError> {
    match timeout(patience, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(SourceError::Unreachable(format!("no answer within {} s", patience.as_secs()))),
    }
}
