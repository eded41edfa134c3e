//! The status of a member.

use std::sync::atomic::Ordering;

use super::{Member, Phase};
use crate::{
    api::{FormatLevels, MemberState, Membership, RequestCounts, SnapshotStatus, Status},
    format_level::{FORMAT_LEVEL_MAX, FORMAT_LEVEL_MIN},
    raft::Node,
};

impl Member {
    /// The status, as this member sees itself and the cluster.
    pub async fn status(&self) -> Status {
        let mut status = self.empty_status();
        match &*self.phase() {
            Phase::Unformatted => {}
            Phase::Formatted(node) => describe(&mut status, node),
            Phase::Stopped(Some(node)) => {
                describe(&mut status, node);
                status.message = "the member is stopping".to_owned();
            }
            Phase::Stopped(None) => {
                status.state = MemberState::Failed;
                status.message = "the data directory was not formatted; restart".to_owned();
            }
        }
        status
    }

    fn empty_status(&self) -> Status {
        Status {
            version: version(),
            supported_format_levels: FormatLevels {
                min: FORMAT_LEVEL_MIN,
                max: FORMAT_LEVEL_MAX,
            },
            format_level: 0,
            state: MemberState::Unformatted,
            cluster_id: None,
            member_id: None,
            role: None,
            term: 0,
            leader: None,
            last_log_index: 0,
            committed_index: 0,
            applied_index: 0,
            revision: 0,
            compacted_revision: 0,
            data_bytes: 0,
            log_bytes: 0,
            membership: Membership::default(),
            replication: Default::default(),
            requests: RequestCounts {
                reads: self.shared.reads.load(Ordering::Relaxed),
                writes: self.shared.writes.load(Ordering::Relaxed),
            },
            last_quorum_contact_ms: None,
            snapshot: None,
            message: String::new(),
        }
    }
}

/// The version of this program. A development build can report another one, so that tests upgrade
/// members with one program.
fn version() -> String {
    let reported = std::env::var("BELLEROPHON_STORE_VERSION");
    match reported {
        Ok(version) if cfg!(debug_assertions) => version,
        _ => env!("CARGO_PKG_VERSION").to_owned(),
    }
}

fn describe(status: &mut Status, node: &Node) {
    let raft = node.status();
    let meta = node.state().meta();
    let identity = node.identity();
    let is_member = raft.membership.members.contains_key(&identity.member_id);
    status.state = match (&raft.failure, is_member) {
        (Some(_), _) => MemberState::Failed,
        (None, true) => MemberState::Running,
        (None, false) => MemberState::Joining,
    };
    status.message = match &raft.failure {
        Some(failure) => format!("the member stopped: {failure}"),
        None if !is_member => "the member waits until the leader adds it".to_owned(),
        None => String::new(),
    };
    status.cluster_id = Some(identity.cluster_id.clone());
    status.member_id = Some(identity.member_id);
    status.format_level = meta.format_level;
    status.role = Some(raft.role);
    status.term = raft.term;
    status.leader = raft.leader;
    status.last_log_index = raft.last_log_index;
    status.committed_index = raft.committed_index;
    status.applied_index = meta.last_applied.map_or(0, |id| id.index);
    status.revision = meta.revision;
    status.compacted_revision = meta.compacted;
    status.data_bytes = meta.data_bytes;
    status.log_bytes = node.log_bytes();
    status.membership = raft.membership;
    status.replication = raft.replication;
    status.last_quorum_contact_ms = raft.last_quorum_contact_ms;
    status.snapshot = raft.snapshot_index.map(|index| SnapshotStatus {
        index,
        revision: meta.revision,
        bytes: meta.data_bytes,
    });
}
