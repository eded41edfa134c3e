//! The buffers of one byte stream.

use std::task::Waker;

use bytes::{Bytes, BytesMut};

use super::InputEnd;

/// What is left to do for the output of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum OutputPhase {
    Open,
    /// The end follows the bytes that are buffered.
    Finishing,
    /// A reset follows; what was buffered is discarded.
    Resetting,
    /// The end was sent, or can no longer be sent.
    Ended,
}

/// The buffers of one byte stream.
pub(super) struct Channel {
    /// Received and not yet read.
    pub(super) input: BytesMut,
    /// What follows `input`; None while more may come.
    pub(super) input_end: Option<InputEnd>,
    pub(super) has_reader: bool,
    pub(super) reader: Option<Waker>,
    /// Written and not yet sent.
    pub(super) output: BytesMut,
    pub(super) output_phase: OutputPhase,
    pub(super) has_writer: bool,
    pub(super) writer: Option<Waker>,
    /// Whether the channel is in the queue of the connection.
    pub(super) is_queued: bool,
}

impl Default for Channel {
    fn default() -> Self {
        Self {
            input: BytesMut::new(),
            input_end: None,
            has_reader: true,
            reader: None,
            output: BytesMut::new(),
            output_phase: OutputPhase::Open,
            has_writer: true,
            writer: None,
            is_queued: false,
        }
    }
}

impl Channel {
    /// Takes output, at most `bytes_max` bytes. An empty buffer keeps no memory.
    pub(super) fn take_output(&mut self, bytes_max: usize) -> Bytes {
        let bytes = self.output.len().min(bytes_max);
        let taken = self.output.split_to(bytes).freeze();
        if self.output.is_empty() {
            self.output = BytesMut::new();
        }
        taken
    }

    /// Discards the output; returns the number of bytes.
    pub(super) fn end_output(&mut self) -> usize {
        self.output_phase = OutputPhase::Ended;
        std::mem::take(&mut self.output).len()
    }

    /// Notifies the reader and the writer.
    pub(super) fn wake(&mut self) {
        let wakers = [self.reader.take(), self.writer.take()];
        wakers.into_iter().flatten().for_each(Waker::wake);
    }
}
