//! Reflector: keeps one cache equal to one list on a server.
//! In: a source. Out: batches of deltas, written to the core of an informer.
//! Holds: the course is decided in [`phase`]; here it is only carried out. One reflector's failures slow no other one.

mod backoff; // how long to rest
mod phase; // what to do next
mod prepare; // what a cache keeps of what came

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use futures_util::{
    StreamExt,
    stream::{BoxStream, ReadyChunks},
};
use kube::Resource;
use tokio::time::{Instant, sleep, timeout};
use tokio_util::sync::CancellationToken;

pub use phase::InitialList;
use phase::{Course, Seen, Want};
pub(crate) use prepare::Prepare;

use crate::{
    clock::Entropy,
    fifo::{Arrival, BATCH_MAX, DeltaFifo, KnownKeys},
    informer::core::Scope,
    source::{ListWatch, SourceError, SourceEvent, WatchRequest},
};

/// How long an answer to a list may take.
const LIST_PATIENCE: Duration = Duration::from_secs(120);
/// How long a watch may take to open.
const OPEN_PATIENCE: Duration = Duration::from_secs(30);
/// A watch is asked to end after this time at least, and after twice this time at most.
const WATCH_TIMEOUT_MIN: Duration = Duration::from_secs(300);
/// A stream that ends within this time did not really work.
const YOUNG: Duration = Duration::from_secs(1);

pub(crate) struct Reflector<K> {
    pub(crate) source: Arc<dyn ListWatch<K>>,
    pub(crate) prepare: Arc<Prepare<K>>,
    pub(crate) scope: Scope,
    pub(crate) initial: InitialList,
    pub(crate) page_size: u32,
    pub(crate) entropy: Entropy,
}

/// An open watch; events that are there together are read together, each prepared before the next one is decoded.
struct OpenWatch<K> {
    chunks: ReadyChunks<BoxStream<'static, Result<SourceEvent<Arrival<K>>, SourceError>>>,
    opened: Instant,
    settled: bool,
}

impl<K: Resource + Send + Sync + 'static> Reflector<K> {
    /// Reflects until `stop`, which leaves the cache as it is. Takes over the objects that are `known` to be in it, and says
    /// in the end which ones are.
    pub(crate) async fn run(self, known: KnownKeys, stop: CancellationToken) -> KnownKeys {
        let mut fifo = DeltaFifo::knowing(known);
        let mut course = Course::new(self.initial, self.page_size);
        let mut watch = None;
        loop {
            let seen = tokio::select! {
                biased;
                () = stop.cancelled() => return fifo.into_known(),
                seen = self.carry_out(course.want(), &mut watch) => seen,
            };
            for seen in seen {
                self.note_failure(&seen);
                let (next, changes) = course.next(seen);
                changes.into_iter().for_each(|change| fifo.push(change));
                course = next;
            }
            self.flush(&mut fifo);
        }
    }

    fn flush(&self, fifo: &mut DeltaFifo<K>) {
        while let Some(batch) = fifo.pop() {
            self.prepare.core.apply(&self.scope, batch);
        }
    }

    async fn carry_out(
        &self,
        want: Want,
        watch: &mut Option<OpenWatch<K>>,
    ) -> Vec<Seen<Arrival<K>>> {
        match want {
            Want::Read { patience } => return read(watch.as_mut(), patience).await,
            _ => *watch = None,
        }
        let seen = match want {
            Want::List(request) => in_time(LIST_PATIENCE, self.source.list(request))
                .await
                .map(|page| Seen::Page(self.prepare.page(page))),
            Want::Watch(from) => {
                self.prepare
                    .core
                    .counters
                    .watches
                    .fetch_add(1, Ordering::Relaxed);
                let request = WatchRequest {
                    from,
                    timeout: backoff::jittered(WATCH_TIMEOUT_MIN, &self.entropy),
                };
                let opened = in_time(OPEN_PATIENCE, self.source.watch(request)).await;
                opened.map(|events| {
                    let prepare = self.prepare.clone();
                    let events = events
                        .map(move |event| event.map(|event| prepare.event(event)))
                        .boxed();
                    *watch = Some(OpenWatch {
                        chunks: events.ready_chunks(BATCH_MAX),
                        opened: Instant::now(),
                        settled: false,
                    });
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

    fn note_failure(&self, seen: &Seen<Arrival<K>>) {
        let Seen::Failed(error) = seen else { return };
        let core = &self.prepare.core;
        match error {
            SourceError::Expired(_) => {
                tracing::debug!(kind = core.what, scope = ?self.scope, %error, "listing again")
            }
            error => {
                tracing::warn!(kind = core.what, scope = ?self.scope, %error, "cannot list or watch, trying again")
            }
        }
        core.suffer(&self.scope, error);
    }
}

async fn read<K>(watch: Option<&mut OpenWatch<K>>, patience: Duration) -> Vec<Seen<Arrival<K>>> {
    let Some(OpenWatch {
        chunks,
        opened,
        settled,
    }) = watch
    else {
        return vec![Seen::Ended { young: true }];
    };
    match timeout(patience, chunks.next()).await {
        Ok(Some(events)) => {
            let news = (!*settled && opened.elapsed() >= YOUNG).then_some(Seen::Settled);
            *settled |= news.is_some();
            news.into_iter()
                .chain(
                    events
                        .into_iter()
                        .map(|event| event.map_or_else(Seen::Failed, Seen::Event)),
                )
                .collect()
        }
        Ok(None) => vec![Seen::Ended {
            young: opened.elapsed() < YOUNG,
        }],
        Err(_) => vec![Seen::Silent],
    }
}

async fn in_time<T>(
    patience: Duration,
    answer: impl Future<Output = Result<T, SourceError>>,
) -> Result<T, SourceError> {
    match timeout(patience, answer).await {
        Ok(answer) => answer,
        Err(_) => Err(SourceError::Unreachable(format!(
            "no answer within {} s",
            patience.as_secs()
        ))),
    }
}
