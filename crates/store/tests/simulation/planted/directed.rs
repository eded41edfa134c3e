//! Bugs of an operator, in the shortest sequence that shows them.

use std::sync::Arc;

use bellerophon_linearizability::{
    Consistency as Checked, Operation, Options, Outcome, Request, check_linearizability,
};
use bellerophon_store::{
    PeerAddress, PeerRequest, PeerResponse, PeerTransport, ReadResult, TransportError,
    api::{Identity, Reason, StoreError, WriteResult},
};
use futures_util::future::BoxFuture;

use super::transports::forged_heartbeats;
use crate::{
    cluster::{Cluster, Wrap},
    members::{get, grow, put},
    network::address,
};

/// A write is acknowledged by members 0 and 1. Then 0 is down, and 1 has lost its disk. Member 2
/// never had the write.
fn lose_a_disk() -> (Cluster, WriteResult) {
    let mut cluster = Cluster::new(1, Wrap::default());
    grow(&mut cluster, 3);
    for slot in [0, 1] {
        cluster.network.cut(slot, 2);
        cluster.network.cut(2, slot);
    }
    let written = put(&mut cluster, 0, "k", "v").unwrap();
    cluster.crash(0);
    cluster.replace_disk(1);
    cluster.network.heal();
    (cluster, written)
}

/// Whether the checker accepts a write and a later read.
fn check_read_after_write(
    value: &[u8],
    written: WriteResult,
    read: ReadResult,
) -> Result<(), String> {
    let operation = |request, outcome, time| Operation {
        key: "k".into(),
        request,
        outcome,
        invoked: time,
        finished: time + 1,
    };
    let request = Request::Put {
        value: value.into(),
        if_revision: None,
    };
    let revision = written.revision;
    let state = read.item.map(crate::clients::state);
    let outcome = Outcome::Read {
        state,
        revision: read.revision,
    };
    let history = [
        operation(request, Outcome::Written { revision }, 0),
        operation(Request::Get(Checked::Linearizable), outcome, 2),
    ];
    let checked = check_linearizability(&history, &Options::default());
    checked
        .map(|_| ())
        .map_err(|violation| violation.to_string())
}

/// A leader is isolated; the others elect another one and acknowledge a write. What does the
/// isolated one read?
fn depose_leader(wrap: Wrap) -> (WriteResult, Result<ReadResult, StoreError>) {
    let mut cluster = Cluster::new(1, wrap);
    grow(&mut cluster, 3);
    cluster.run(500);
    for slot in [1, 2] {
        cluster.network.cut(0, slot);
        cluster.network.cut(slot, 0);
    }
    cluster.run(2000);
    let written = put(&mut cluster, 1, "k", "new").unwrap();
    let read = get(&mut cluster, 0, "k");
    (written, read)
}

#[test]
fn deposed_leader_does_not_answer_reads() {
    let (_, read) = depose_leader(Wrap::default());
    assert_eq!(read.unwrap_err().reason(), Reason::NoLeader);
}

#[test]
fn read_of_a_deposed_leader_is_found() {
    let (written, read) = depose_leader(Wrap {
        transport: forged_heartbeats,
        ..Wrap::default()
    });
    let problem = check_read_after_write(b"new", written, read.unwrap()).unwrap_err();
    assert!(problem.contains("Linearizability violated"), "{problem}");
}

#[test]
fn member_id_on_an_empty_disk_loses_a_write() {
    let (mut cluster, written) = lose_a_disk();
    let identity = cluster.identity(cluster.machines[&1].member_id.unwrap());
    let formatted = cluster.call(1, |member| async move { member.format(identity).await });
    formatted.unwrap();
    cluster.run(3000);
    let read = get(&mut cluster, 2, "k").unwrap();
    let problem = check_read_after_write(b"v", written, read).unwrap_err();
    assert!(problem.contains("Linearizability violated"), "{problem}");
}

#[test]
fn lost_disk_without_its_id_loses_no_write() {
    let (mut cluster, _) = lose_a_disk();
    cluster.run(3000);
    let error = get(&mut cluster, 2, "k").unwrap_err();
    assert_eq!(error.reason(), Reason::NoLeader);
    cluster.start(0);
    cluster.run(2000);
    let read = get(&mut cluster, 2, "k").unwrap();
    assert_eq!(read.item.unwrap().value, b"v");
}

/// Another cluster adds a member of this one as its learner.
fn meet_another_cluster(wrap: Wrap) -> Cluster {
    let mut cluster = Cluster::new(1, wrap);
    grow(&mut cluster, 1);
    put(&mut cluster, 0, "k", "v").unwrap();
    let other = cluster.add_machine(1000);
    let identity = Identity {
        cluster_id: "cluster-b".parse().unwrap(),
        member_id: 2,
    };
    let initialized = cluster.call(other, move |member| async move {
        member.initialize(identity, address(other)).await
    });
    initialized.unwrap();
    // Elections raise the term above that of the first cluster.
    for _ in 0..5 {
        cluster.run(1000);
        cluster.kill(other);
        cluster.start(other);
    }
    cluster.run(1000);
    put(&mut cluster, other, "k", "other").unwrap();
    let added = cluster.call(other, |member| async move {
        member.add_learner(1, address(0)).await
    });
    added.unwrap();
    cluster.run(3000);
    cluster
}

#[test]
fn messages_of_another_cluster_are_refused() {
    let mut cluster = meet_another_cluster(Wrap::default());
    let read = get(&mut cluster, 0, "k").unwrap();
    assert_eq!(read.item.unwrap().value, b"v");
    put(&mut cluster, 0, "k", "v2").unwrap();
}

#[test]
fn accepted_messages_of_another_cluster_are_found() {
    let mut cluster = meet_another_cluster(Wrap {
        transport: |inner| Arc::new(ForgedCluster { inner }),
        ..Wrap::default()
    });
    let read = get(&mut cluster, 0, "k");
    let value = read.ok().and_then(|read| read.item).map(|item| item.value);
    assert_ne!(
        value.as_deref(),
        Some(&b"v"[..]),
        "the other cluster had no effect"
    );
}

/// Requests of every cluster look like those of the first one.
struct ForgedCluster {
    inner: Arc<dyn PeerTransport>,
}

impl PeerTransport for ForgedCluster {
    fn send(
        &self,
        to: PeerAddress,
        mut request: PeerRequest,
    ) -> BoxFuture<'static, Result<PeerResponse, TransportError>> {
        if to.member == 1 {
            request.cluster = "cluster-a".parse().unwrap();
        }
        self.inner.send(to, request)
    }
}
