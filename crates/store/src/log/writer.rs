//! The writer of the log: one batch, one sync, then the acknowledgements.
//!
//! Guarantee: acknowledgements are called in the order of the operations, after the sync that
//! covers them, and after the first error only with that error.

use std::{io, sync::Arc};

use super::{Queue, Shared, failed, frame::Begin, lock, segments::Segments};
use crate::{
    disk::{Disk, Lane, on_lane},
    entry::LogId,
};

/// What was enqueued during the last sync.
struct Batch {
    queue: Queue,
    /// The log after the batch.
    after: Begin,
}

/// Writes until the log is closed or fails.
pub(super) async fn run(shared: Arc<Shared>, disk: Arc<dyn Disk>, mut segments: Segments) {
    loop {
        let Some(batch) = take(&shared) else {
            if lock(&shared.inner).queue.is_closed {
                return;
            }
            shared.pending.notified().await;
            continue;
        };
        let Batch { queue, after } = batch;
        let operations = queue.operations.0;
        let last_index = queue.last_index;
        let write = move |disk: &dyn Disk| {
            segments.write(disk, &operations, last_index)?;
            segments.advance(after);
            segments.remove_purged(disk, after.purged.map(|id: LogId| id.index))?;
            Ok(segments)
        };
        match on_lane(&disk, Lane::Log, write).await {
            Ok(written) => {
                segments = written;
                lock(&shared.inner).disk_bytes = segments.bytes();
                for ack in queue.acks {
                    ack(Ok(()));
                }
            }
            Err(error) => return fail(&shared, queue.acks, &error),
        }
    }
}

/// Takes the operations that are enqueued, if one of them waits for a sync or the log is closed.
fn take(shared: &Shared) -> Option<Batch> {
    let mut inner = lock(&shared.inner);
    let is_last = inner.queue.is_closed && !inner.queue.operations.0.is_empty();
    if !inner.queue.is_urgent && !is_last {
        return None;
    }
    let is_closed = inner.queue.is_closed;
    let queue = std::mem::take(&mut inner.queue);
    inner.queue.is_closed = is_closed;
    let after = inner.memory.begin();
    Some(Batch { queue, after })
}

fn fail(shared: &Shared, acks: Vec<super::Ack>, error: &io::Error) {
    tracing::error!(%error, "cannot write the log; nothing is acknowledged any more");
    let reason = error.to_string();
    let later = {
        let mut inner = lock(&shared.inner);
        inner.failed = Some(reason.clone());
        std::mem::take(&mut inner.queue.acks)
    };
    shared.stopped.notify_waiters();
    for ack in acks.into_iter().chain(later) {
        ack(Err(failed(&reason)));
    }
}
