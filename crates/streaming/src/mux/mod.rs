//! The byte streams of one connection, between their users and the tasks of the connection.
//!
//! Input: bytes that the read task delivers and that users write. Output: bytes that users read and
//! that the write task sends.
//!
//! Guarantees: bytes of a stream keep their order, and its end follows them; streams with output
//! take turns; buffers hold at most the bytes in [`Limits`], per stream and per connection.

mod channel;
mod stream;

use std::{
    collections::{HashMap, VecDeque},
    future::poll_fn,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    task::{Context, Poll, Waker},
};

use bytes::Bytes;

use self::channel::{Channel, OutputPhase};
pub use self::stream::{ByteReader, ByteStream, ByteWriter};

/// The largest piece of output, in bytes: the buffer of Go's `io.Copy`, and so the size of message
/// that clients see from Kubernetes.
const PIECE_BYTES_MAX: usize = 32 << 10;

/// The bounds of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// Open streams.
    pub(crate) streams: usize,
    /// Bytes that are received and not read, per stream and per connection.
    pub(crate) input_per_stream: usize,
    pub(crate) input: usize,
    /// Bytes that are written and not sent, per stream and per connection.
    pub(crate) output_per_stream: usize,
    pub(crate) output: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            streams: 2048,
            input_per_stream: 64 << 10,
            input: 4 << 20,
            output_per_stream: 64 << 10,
            output: 4 << 20,
        }
    }
}

/// How the input of a stream ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum InputEnd {
    /// The peer sent all it had.
    Finished,
    /// The peer reset the stream.
    Reset,
    /// The connection ended before.
    Aborted,
}

/// What the write task sends next.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Output {
    /// Bytes of a stream; `last` if the stream ends with them.
    Data { id: u32, bytes: Bytes, last: bool },
    /// The stream is abandoned.
    Reset { id: u32 },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Open,
    /// What is written is sent, nothing else is accepted, and input is discarded.
    Finishing,
    Closed(InputEnd),
}

/// The byte streams of one connection.
pub(crate) struct Mux {
    limits: Limits,
    state: Mutex<State>,
}

struct State {
    phase: Phase,
    channels: HashMap<u32, Channel>,
    /// Channels with output, in turn. Invariant: an open channel is in it once if its `is_queued`
    /// is set, else not at all.
    queue: VecDeque<u32>,
    /// Invariant: the sums of the input and output of all channels.
    input_bytes: usize,
    output_bytes: usize,
    /// Channels whose writers wait for the output of the connection to shrink.
    blocked: Vec<u32>,
    /// The read task, waiting for space; the write task, waiting for output.
    read_task: Option<Waker>,
    write_task: Option<Waker>,
    /// Who waits until all output was taken.
    drain: Option<Waker>,
}

impl Mux {
    pub(crate) fn new(limits: Limits) -> Arc<Self> {
        Arc::new(Self {
            limits,
            state: Mutex::new(State {
                phase: Phase::Open,
                channels: HashMap::new(),
                queue: VecDeque::new(),
                input_bytes: 0,
                output_bytes: 0,
                blocked: Vec::new(),
                read_task: None,
                write_task: None,
                drain: None,
            }),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a stream; None if there are too many, or the connection is closing.
    pub(crate) fn open(self: &Arc<Self>, id: u32) -> Option<ByteStream> {
        let mut state = self.state();
        let has_room = state.channels.len() < self.limits.streams;
        if state.phase != Phase::Open || !has_room || state.channels.contains_key(&id) {
            return None;
        }
        state.channels.insert(id, Channel::default());
        drop(state);
        Some(ByteStream::new(Arc::clone(self), id))
    }

    /// Hands received bytes to the reader of a stream, waiting until there is space for all of
    /// them. Discards them if there is no reader.
    pub(crate) async fn deliver(&self, id: u32, mut bytes: &[u8]) {
        poll_fn(|context| self.poll_deliver(context, id, &mut bytes)).await;
    }

    fn poll_deliver(&self, context: &Context<'_>, id: u32, bytes: &mut &[u8]) -> Poll<()> {
        let mut guard = self.state();
        let state = &mut *guard;
        if state.phase != Phase::Open {
            return Poll::Ready(());
        }
        let Some(channel) = state.channels.get_mut(&id) else {
            return Poll::Ready(());
        };
        if !channel.has_reader || channel.input_end.is_some() {
            return Poll::Ready(());
        }
        let space = self.limits.input_per_stream - channel.input.len();
        let space = space.min(self.limits.input - state.input_bytes);
        let (now, later) = bytes.split_at(space.min(bytes.len()));
        channel.input.extend_from_slice(now);
        state.input_bytes += now.len();
        *bytes = later;
        if let Some(reader) = channel.reader.take() {
            reader.wake();
        }
        if later.is_empty() {
            return Poll::Ready(());
        }
        state.read_task = Some(context.waker().clone());
        Poll::Pending
    }

    /// The peer ended its direction of a stream, or all of it.
    pub(crate) fn end_input(&self, id: u32, end: InputEnd) {
        let mut state = self.state();
        let Some(channel) = state.channels.get_mut(&id) else {
            return;
        };
        channel.input_end.get_or_insert(end);
        let mut discarded = 0;
        if end == InputEnd::Reset {
            discarded = channel.end_output();
        }
        channel.wake();
        state.release_output(discarded);
        state.settle(id);
    }

    /// The next output; None once the connection is finishing and all output was taken.
    pub(crate) async fn output(&self) -> Option<Output> {
        poll_fn(|context| {
            let mut state = self.state();
            if let Some(output) = state.next_output() {
                return Poll::Ready(Some(output));
            }
            if state.phase != Phase::Open {
                return Poll::Ready(None);
            }
            state.write_task = Some(context.waker().clone());
            Poll::Pending
        })
        .await
    }

    /// The next output, if there is any now.
    pub(crate) fn output_now(&self) -> Option<Output> {
        self.state().next_output()
    }

    /// Returns once all output was taken. Streams take turns, so only what is written after this
    /// follows what was written to other streams before. At most one caller at a time.
    pub(crate) async fn drained(&self) {
        poll_fn(|context| {
            let mut state = self.state();
            if state.output_bytes == 0 {
                return Poll::Ready(());
            }
            state.drain = Some(context.waker().clone());
            Poll::Pending
        })
        .await;
    }

    /// Ends all streams after what is written. Input is discarded from now on.
    pub(crate) fn finish(&self) {
        let mut state = self.state();
        if state.phase == Phase::Open {
            state.phase = Phase::Finishing;
        }
        let ids: Vec<u32> = state.channels.keys().copied().collect();
        for id in ids {
            state.finish_output(id);
        }
        state.wake_all();
    }

    /// The connection is gone: readers get what was received and then `end`, writers an error.
    pub(crate) fn close(&self, end: InputEnd) {
        let mut state = self.state();
        state.phase = Phase::Closed(end);
        state.queue.clear();
        let ids: Vec<u32> = state.channels.keys().copied().collect();
        for id in ids {
            let channel = state.channels.get_mut(&id).expect("ids are of channels");
            let discarded = channel.end_output();
            channel.is_queued = false;
            state.release_output(discarded);
            state.settle(id);
        }
        state.wake_all();
    }
}

impl State {
    fn next_output(&mut self) -> Option<Output> {
        while let Some(id) = self.queue.pop_front() {
            // The channel is gone if the peer has reset it.
            let Some(channel) = self.channels.get_mut(&id) else {
                continue;
            };
            channel.is_queued = false;
            if channel.output_phase == OutputPhase::Resetting {
                channel.output_phase = OutputPhase::Ended;
                channel.input_end.get_or_insert(InputEnd::Reset);
                self.settle(id);
                return Some(Output::Reset { id });
            }
            let bytes = channel.take_output(PIECE_BYTES_MAX);
            let is_last = channel.output.is_empty();
            let last = is_last && channel.output_phase == OutputPhase::Finishing;
            if last {
                channel.output_phase = OutputPhase::Ended;
            }
            if !is_last {
                self.enqueue(id);
            }
            self.release_output(bytes.len());
            if let Some(writer) = self.channels.get_mut(&id).and_then(|c| c.writer.take()) {
                writer.wake();
            }
            self.settle(id);
            if last || !bytes.is_empty() {
                return Some(Output::Data { id, bytes, last });
            }
        }
        None
    }

    /// Gives a channel its turn in the output.
    fn enqueue(&mut self, id: u32) {
        if let Some(channel) = self.channels.get_mut(&id)
            && !channel.is_queued
        {
            channel.is_queued = true;
            self.queue.push_back(id);
        }
        if let Some(task) = self.write_task.take() {
            task.wake();
        }
    }

    /// Ends the output of a channel after what is written.
    fn finish_output(&mut self, id: u32) {
        let Some(channel) = self.channels.get_mut(&id) else {
            return;
        };
        if channel.output_phase == OutputPhase::Open {
            channel.output_phase = OutputPhase::Finishing;
            self.enqueue(id);
        }
    }

    fn release_output(&mut self, bytes: usize) {
        self.output_bytes -= bytes;
        if self.output_bytes == 0
            && let Some(waiting) = self.drain.take()
        {
            waiting.wake();
        }
        for id in std::mem::take(&mut self.blocked) {
            if let Some(writer) = self.channels.get_mut(&id).and_then(|c| c.writer.take()) {
                writer.wake();
            }
        }
    }

    fn release_input(&mut self, bytes: usize) {
        self.input_bytes -= bytes;
        if let Some(task) = self.read_task.take() {
            task.wake();
        }
    }

    /// Removes a channel that neither side uses. Resets it if only the peer still does.
    fn settle(&mut self, id: u32) {
        let is_closed = matches!(self.phase, Phase::Closed(_));
        let Some(channel) = self.channels.get_mut(&id) else {
            return;
        };
        if channel.has_reader || channel.has_writer {
            return;
        }
        let is_sent = channel.output_phase == OutputPhase::Ended;
        if is_closed || (is_sent && channel.input_end.is_some()) {
            let output = channel.output.len();
            self.channels.remove(&id);
            self.release_output(output);
        } else if is_sent {
            channel.output_phase = OutputPhase::Resetting;
            self.enqueue(id);
        }
    }

    fn wake_all(&mut self) {
        for channel in self.channels.values_mut() {
            channel.wake();
        }
        let tasks = [self.read_task.take(), self.write_task.take()];
        tasks.into_iter().flatten().for_each(Waker::wake);
    }
}
