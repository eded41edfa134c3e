//! Snapshots and purges, by bytes.
//!
//! In: commits of the state. Out: requests to openraft, which purges only what is in a snapshot.

use std::sync::Arc;

use openraft::{Raft, async_runtime::watch::WatchReceiver as _};

use super::{node::NodeOptions, state_machine::StateMachine, types::Types};
use crate::{log::Log, state::State};

/// Takes a snapshot when the log has grown by a number of bytes, and purges what is older than the
/// bytes that are kept.
pub(super) async fn maintain(
    raft: Raft<Types, StateMachine>,
    log: Log,
    state: Arc<State>,
    options: NodeOptions,
) {
    let mut snapshot_at = 0;
    let mut purged_for = None;
    loop {
        let changed = state.changed().notified();
        let mut changed = std::pin::pin!(changed);
        // Before the comparison, so that no change is missed between them.
        changed.as_mut().enable();
        let appended = log.read(|log| log.appended_bytes());
        if appended - snapshot_at >= options.snapshot_log_bytes {
            snapshot_at = appended;
            if raft.trigger().snapshot().await.is_err() {
                return;
            }
        }
        let snapshot = raft.data_metrics().borrow_watched().snapshot;
        if snapshot != purged_for {
            purged_for = snapshot;
            let index = log.read(|log| log.index_before_last_bytes(options.keep_log_bytes));
            if let (Some(snapshot), Some(index)) = (&purged_for, index) {
                let purge = raft.trigger().purge_log(index.min(snapshot.index)).await;
                if purge.is_err() {
                    return;
                }
            }
        }
        changed.await;
    }
}
