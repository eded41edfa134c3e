//! Reflector: keeps a cache equal to a list on a server (client-go's Reflector.ListAndWatch).
//! In: a source. Out: batches of deltas and what happened on the way, to a callback.
//! Guarantees: [`state`] decides, this module only performs the operations. The failures of one
//! reflector delay no other one.

mod backoff; // delays after failures
mod decode; // from JSON to what a cache keeps
mod state; // the state machine

use std::{sync::Arc, time::Duration};

use futures_util::{
    StreamExt,
    stream::{BoxStream, ReadyChunks},
};
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use decode::ReceivedEvent;
pub(crate) use decode::{Decoder, TransformFn, Undecodable};
pub use state::InitialList;
use state::{Input, Operation, ReflectorState};

use crate::{
    clock::Rng,
    fifo::{BATCH_MAX, Batch, DeltaFifo, KnownKeys},
    list_watch::{ListWatch, ListWatchError, WatchRequest},
};

/// How long the response to a list may take.
const LIST_TIMEOUT: Duration = Duration::from_secs(120);
/// How long a watch may take to open.
const WATCH_OPEN_TIMEOUT: Duration = Duration::from_secs(30);
/// The server is requested to end a watch after this time at least, and after twice this time at
/// most, as in client-go.
const WATCH_TIMEOUT_MIN: Duration = Duration::from_secs(300);
/// A stream that ends within this time counts as a failure.
const SHORT_LIVED: Duration = Duration::from_secs(1);

/// An output of a reflector.
#[derive(Debug)]
pub(crate) enum Output {
    /// Deltas to apply to the store.
    Batch(Batch),
    /// A watch is requested.
    Watch,
    /// An object is skipped.
    Undecodable(Undecodable),
    /// A list or watch failed; it is retried.
    Failed(ListWatchError),
}

pub(crate) struct Reflector {
    pub(crate) source: Arc<dyn ListWatch>,
    pub(crate) decoder: Arc<Decoder>,
    pub(crate) output: Box<dyn Fn(Output) + Send + Sync>,
    pub(crate) initial: InitialList,
    pub(crate) page_size: u32,
    pub(crate) rng: Rng,
    /// Notified, repeatedly, while a controller waits for what the cache does not show yet.
    pub(crate) awaited: Arc<Notify>,
}

/// An open watch. Events that are received together are read together, each decoded and compacted
/// before the next one.
struct OpenWatch {
    chunks: ReadyChunks<BoxStream<'static, Result<ReceivedEvent, ListWatchError>>>,
    opened: Instant,
    established: bool,
}

impl Reflector {
    /// Reflects until `stop`, which leaves the cache as it is. Takes over the objects that are
    /// `known` to be in it, and returns those that are at the end.
    pub(crate) async fn run(self, known: KnownKeys, stop: CancellationToken) -> KnownKeys {
        let mut fifo = DeltaFifo::with_known(known);
        let mut state = ReflectorState::new(self.initial, self.page_size);
        let mut watch = None;
        loop {
            let inputs = tokio::select! {
                biased;
                () = stop.cancelled() => return fifo.into_known(),
                inputs = self.perform(state.operation(), &mut watch) => inputs,
            };
            for input in inputs {
                self.report(&input);
                let (next, changes) = state.next(input);
                changes.into_iter().for_each(|change| fifo.push(change));
                state = next;
            }
            // Drained before the next read, which bounds the queue.
            while let Some(batch) = fifo.pop() {
                (self.output)(Output::Batch(batch));
            }
        }
    }

    async fn perform(&self, operation: Operation, watch: &mut Option<OpenWatch>) -> Vec<Input> {
        match operation {
            Operation::Read { timeout } => return read(watch.as_mut(), timeout).await,
            // Dropped before the next request, so that a reflector never has two watches.
            _ => *watch = None,
        }
        let input = match operation {
            Operation::List(request) => {
                let page = within(LIST_TIMEOUT, self.source.list(request)).await;
                page.map(|page| Input::Page(self.decoder.page(page)))
            }
            Operation::Watch(from) => {
                (self.output)(Output::Watch);
                // As client-go: spread, so that the watches of many clients do not end at the same
                // time.
                let timeout = backoff::jittered(WATCH_TIMEOUT_MIN, &self.rng);
                let request = WatchRequest { from, timeout };
                let opened = within(WATCH_OPEN_TIMEOUT, self.source.watch(request)).await;
                opened.map(|events| {
                    let decoder = self.decoder.clone();
                    let decoded = move |event| decoder.event(event);
                    let events = events.map(move |event| event.map(&decoded)).boxed();
                    *watch = Some(OpenWatch {
                        // Whatever has arrived becomes one batch: one lock of the store for a
                        // thousand events instead of a thousand locks.
                        chunks: events.ready_chunks(BATCH_MAX),
                        opened: Instant::now(),
                        established: false,
                    });
                    Input::Opened
                })
            }
            Operation::BackOff {
                delay,
                delay_if_awaited,
            } => {
                self.back_off(delay, delay_if_awaited).await;
                Ok(Input::BackedOff)
            }
            Operation::Read { .. } => Ok(Input::TimedOut),
        };
        vec![input.unwrap_or_else(Input::Failed)]
    }

    /// Sleeps for the delay, or for the shorter one if a controller waits for the cache.
    async fn back_off(&self, delay: Duration, delay_if_awaited: Duration) {
        let start = Instant::now();
        let end = start + backoff::jittered(delay, &self.rng);
        let end_if_awaited = start + backoff::jittered(delay_if_awaited, &self.rng);
        sleep_until(end_if_awaited.min(end)).await;
        tokio::select! {
            () = sleep_until(end) => {}
            () = self.awaited.notified() => {}
        }
    }

    fn report(&self, input: &Input) {
        let skipped = match input {
            Input::Failed(error) => return (self.output)(Output::Failed(error.clone())),
            Input::Event(ReceivedEvent::Undecodable(skipped)) => std::slice::from_ref(skipped),
            Input::Page(page) => &page.undecodable,
            _ => return,
        };
        for undecodable in skipped {
            (self.output)(Output::Undecodable(undecodable.clone()));
        }
    }
}

async fn read(watch: Option<&mut OpenWatch>, limit: Duration) -> Vec<Input> {
    let Some(OpenWatch {
        chunks,
        opened,
        established,
    }) = watch
    else {
        return vec![Input::Ended { short_lived: true }];
    };
    match timeout(limit, chunks.next()).await {
        Ok(Some(events)) => {
            let is_new = !*established && opened.elapsed() >= SHORT_LIVED;
            *established |= is_new;
            let first = is_new.then_some(Input::Established);
            let events = events
                .into_iter()
                .map(|event| event.map_or_else(Input::Failed, Input::Event));
            first.into_iter().chain(events).collect()
        }
        Ok(None) => vec![Input::Ended {
            short_lived: opened.elapsed() < SHORT_LIVED,
        }],
        Err(_) => vec![Input::TimedOut],
    }
}

async fn within<T>(
    limit: Duration,
    response: impl Future<Output = Result<T, ListWatchError>>,
) -> Result<T, ListWatchError> {
    match timeout(limit, response).await {
        Ok(response) => response,
        Err(_) => {
            let reason = format!("no response within {} s", limit.as_secs());
            Err(ListWatchError::Unreachable(reason))
        }
    }
}
