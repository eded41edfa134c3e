//! Members without faults: formatting, membership, leadership, watches, restore, refusals.

use std::time::Duration;

use bellerophon_store::{
    ReadResult, RestoreOptions, WatchItem, Write,
    api::{Consistency, Identity, Key, MemberState, Reason, Role, Status, StoreError, WriteResult},
};
use bytes::Bytes;
use futures_util::stream;
use rand::{SeedableRng, rngs::StdRng};

use crate::{
    cluster::{Cluster, Wrap},
    network::{Slot, address},
    operator::add_member,
};

pub(crate) fn put(
    cluster: &mut Cluster,
    slot: Slot,
    key: &str,
    value: &str,
) -> Result<WriteResult, StoreError> {
    let write = Write::Put {
        key: key.parse().unwrap(),
        value: value.to_owned().into(),
        if_revision: None,
    };
    cluster.call(slot, |member| async move { member.write(write).await })
}

pub(crate) fn get(cluster: &mut Cluster, slot: Slot, key: &str) -> Result<ReadResult, StoreError> {
    let key: Key = key.parse().unwrap();
    cluster.call(slot, |member| async move {
        member.read(&key, Consistency::Linearizable).await
    })
}

fn status(cluster: &mut Cluster, slot: Slot) -> Status {
    cluster.call(slot, |member| async move { member.status().await })
}

/// A cluster of voters at the first slots; the first one leads.
pub(crate) fn grow(cluster: &mut Cluster, members: usize) {
    let first = cluster.add_machine(1000);
    cluster.initialize(first);
    cluster.run(1000);
    let mut rng = StdRng::seed_from_u64(1);
    for _ in 1..members {
        let id = cluster.call(
            first,
            |member| async move { member.allocate_member_id().await },
        );
        let id = id.unwrap();
        let slot = add_member(cluster, id, &mut rng);
        let added = cluster.call(first, |member| async move {
            member.add_learner(id, address(slot)).await
        });
        added.unwrap();
        cluster.run(1000);
        let membership = status(cluster, first).membership;
        let mut voters = membership.voters;
        voters.insert(id);
        let changed = cluster.call(first, move |member| async move {
            let index = membership.index;
            member.change_membership(voters, [].into(), index).await
        });
        changed.unwrap();
    }
    cluster.run(500);
}

pub(crate) fn cluster(members: usize) -> Cluster {
    let mut cluster = Cluster::new(1, Wrap::default());
    grow(&mut cluster, members);
    cluster
}

pub(crate) fn identity(cluster: &str, member_id: u64) -> Identity {
    Identity {
        cluster_id: cluster.parse().unwrap(),
        member_id,
    }
}

#[test]
fn unformatted_member_serves_only_its_status() {
    let mut cluster = Cluster::new(1, Wrap::default());
    cluster.add_machine(1000);
    assert_eq!(status(&mut cluster, 0).state, MemberState::Unformatted);
    let error = put(&mut cluster, 0, "k", "v").unwrap_err();
    assert_eq!(error.reason(), Reason::Unformatted);
    let error = get(&mut cluster, 0, "k").unwrap_err();
    assert_eq!(error.reason(), Reason::Unformatted);
}

#[test]
fn formatting_again_is_idempotent_or_refused() {
    let cases = [
        (identity("a", 1), identity("a", 1), None),
        (
            identity("a", 1),
            identity("a", 2),
            Some(Reason::AlreadyFormatted),
        ),
        (
            identity("a", 1),
            identity("b", 1),
            Some(Reason::AlreadyFormatted),
        ),
        (identity("a", 0), identity("a", 1), None),
    ];
    for (first, second, expected) in cases {
        let mut cluster = Cluster::new(1, Wrap::default());
        cluster.add_machine(1000);
        for restarts in 0..2 {
            let identity = if restarts == 0 {
                first.clone()
            } else {
                second.clone()
            };
            let formatted = cluster.call(0, |member| async move {
                member.initialize(identity, address(0)).await
            });
            let reason = formatted.err().map(|error| error.reason());
            let is_zero = restarts == 0 && first.member_id == 0;
            let expected_now = if is_zero {
                Some(Reason::Invalid)
            } else if restarts == 0 {
                None
            } else {
                expected
            };
            assert_eq!(reason, expected_now, "{first:?} {second:?}");
            cluster.crash(0);
            cluster.start(0);
        }
    }
}

#[test]
fn three_members_serve_the_same_data() {
    let mut cluster = cluster(3);
    for slot in 0..3 {
        put(&mut cluster, slot, &format!("k{slot}"), "v").unwrap();
    }
    for slot in 0..3 {
        for key in 0..3 {
            let read = get(&mut cluster, slot, &format!("k{key}")).unwrap();
            assert_eq!(read.item.unwrap().value, b"v");
            assert_eq!(read.revision, 3);
        }
    }
}

#[test]
fn learner_serves_linearizable_reads() {
    let mut cluster = cluster(1);
    let mut rng = StdRng::seed_from_u64(1);
    let id = cluster.call(0, |member| async move { member.allocate_member_id().await });
    let slot = add_member(&mut cluster, id.clone().unwrap(), &mut rng);
    assert_eq!(status(&mut cluster, slot).state, MemberState::Joining);
    let added = cluster.call(0, move |member| async move {
        member.add_learner(id.unwrap(), address(slot)).await
    });
    added.unwrap();
    cluster.run(1000);
    put(&mut cluster, 0, "k", "v").unwrap();
    let read = get(&mut cluster, slot, "k").unwrap();
    assert_eq!(read.item.unwrap().value, b"v");
    assert_eq!(status(&mut cluster, slot).role, Some(Role::Learner));
}

#[test]
fn stop_of_the_leader_hands_leadership_over() {
    let mut cluster = cluster(3);
    assert_eq!(status(&mut cluster, 0).role, Some(Role::Leader));
    let term = status(&mut cluster, 0).term;
    cluster.call(0, |member| async move { member.shut_down().await });
    cluster.kill(0);
    let status = status(&mut cluster, 1);
    assert_eq!(status.term, term + 1);
    assert_ne!(status.leader, Some(1));
    put(&mut cluster, 1, "k", "v").unwrap();
}

#[test]
fn leadership_moves_to_the_requested_member() {
    let mut cluster = cluster(3);
    for slot in [1, 2, 0] {
        let id = cluster.machines[&slot].member_id.unwrap();
        let moved = cluster.call(
            2,
            move |member| async move { member.transfer_leader(id).await },
        );
        moved.unwrap();
        cluster.run(100);
        assert_eq!(status(&mut cluster, slot).role, Some(Role::Leader));
        put(&mut cluster, 0, "k", "v").unwrap();
    }
    let error = cluster.call(0, |member| async move { member.transfer_leader(99).await });
    assert_eq!(error.unwrap_err().reason(), Reason::Invalid);
}

#[test]
fn membership_change_is_a_compare_and_set() {
    let mut cluster = cluster(2);
    let membership = status(&mut cluster, 0).membership;
    let voters = membership.voters.clone();
    let change = |index: u64, voters: std::collections::BTreeSet<u64>| {
        move |member: bellerophon_store::Member| async move {
            member.change_membership(voters, [].into(), index).await
        }
    };
    let cases = [
        (
            membership.index - 1,
            voters.clone(),
            Some(Reason::ConditionFailed),
        ),
        (membership.index, [1, 99].into(), Some(Reason::Invalid)),
        (membership.index, [].into(), Some(Reason::Invalid)),
        (membership.index, [1].into(), None),
        (membership.index, voters, Some(Reason::ConditionFailed)),
    ];
    for (index, voters, expected) in cases {
        let name = format!("{index} {voters:?}");
        let changed = cluster.call(0, change(index, voters));
        assert_eq!(
            changed.err().map(|error| error.reason()),
            expected,
            "{name}"
        );
    }
    let membership = status(&mut cluster, 0).membership;
    assert_eq!(membership.voters, [1].into());
    assert_eq!(membership.members.len(), 1);
}

#[test]
fn lagging_learner_is_not_promoted() {
    let mut cluster = cluster(1);
    let mut rng = StdRng::seed_from_u64(1);
    let id = cluster
        .call(0, |member| async move { member.allocate_member_id().await })
        .unwrap();
    let slot = add_member(&mut cluster, id, &mut rng);
    cluster.crash(slot);
    let added = cluster.call(0, move |member| async move {
        member.add_learner(id, address(slot)).await
    });
    added.unwrap();
    for _ in 0..10 {
        put(&mut cluster, 0, "k", "v").unwrap();
    }
    let index = status(&mut cluster, 0).membership.index;
    let changed = cluster.call(0, move |member| async move {
        member
            .change_membership([1, id].into(), [].into(), index)
            .await
    });
    assert_eq!(changed.unwrap_err().reason(), Reason::Busy);
}

#[test]
fn watch_delivers_events_from_a_revision_on() {
    let mut cluster = cluster(1);
    for number in 0..3 {
        put(&mut cluster, 0, "k", &number.to_string()).unwrap();
    }
    put(&mut cluster, 0, "other", "").unwrap();
    let items = cluster.call(0, |member| async move {
        let mut stream = member.watch("k", Some(2)).unwrap();
        [stream.next().await.unwrap(), stream.next().await.unwrap()]
    });
    let WatchItem::Events(events) = &items[0] else {
        panic!("{items:?}");
    };
    let revisions: Vec<u64> = events.iter().map(|event| event.revision()).collect();
    assert_eq!(revisions, [2, 3]);
    assert_eq!(items[1], WatchItem::Progress(4));
    cluster
        .call(0, |member| async move { member.compact().await })
        .unwrap();
    let error = cluster.call(0, |member| async move { member.watch("k", Some(2)).err() });
    let error = error.unwrap();
    assert_eq!(error.reason(), Reason::Compacted);
    assert_eq!(error.0.current, Some(4));
}

fn backup(cluster: &mut Cluster, slot: Slot) -> Vec<Bytes> {
    cluster.call(slot, |member| async move {
        let mut reader = member.snapshot().await.unwrap();
        let mut chunks = Vec::new();
        while let Some(chunk) = reader.next_chunk().unwrap() {
            chunks.push(chunk);
        }
        chunks
    })
}

#[test]
fn restore_is_a_new_cluster_with_later_revisions() {
    let mut cluster = cluster(3);
    put(&mut cluster, 0, "k", "v").unwrap();
    let chunks = backup(&mut cluster, 1);
    let checksum = bellerophon_store::verify_snapshot(&chunks.concat()[..])
        .unwrap()
        .checksum;
    let slot = cluster.add_machine(1000);
    let restore = |options: RestoreOptions, chunks: Vec<Bytes>| {
        move |member: bellerophon_store::Member| async move {
            let stream = Box::pin(stream::iter(chunks.into_iter().map(Ok)));
            let identity = identity("restored", 7);
            member
                .restore(identity, address(slot), options, stream)
                .await
        }
    };
    let wrong = RestoreOptions {
        checksum: Some("00".to_owned()),
        min_revision: 0,
    };
    let refused = cluster.call(slot, restore(wrong, chunks.clone()));
    assert_eq!(refused.unwrap_err().reason(), Reason::Invalid);
    let cut = chunks[..chunks.len() - 1].to_vec();
    let refused = cluster.call(slot, restore(RestoreOptions::default(), cut));
    assert_eq!(refused.unwrap_err().reason(), Reason::Invalid);
    assert_eq!(status(&mut cluster, slot).state, MemberState::Unformatted);
    let options = RestoreOptions {
        checksum: Some(checksum),
        min_revision: 500,
    };
    let result = cluster
        .call(slot, restore(options, chunks.clone()))
        .unwrap();
    assert_eq!(result.revision, 501);
    assert_eq!(result.snapshot_revision, 1);
    cluster.run(1000);
    for _ in 0..2 {
        let read = get(&mut cluster, slot, "k").unwrap();
        assert_eq!(read.item.unwrap().value, b"v");
        assert_eq!(read.revision, 501);
        let status = status(&mut cluster, slot);
        assert_eq!(status.membership.voters, [7].into());
        assert_eq!(status.cluster_id.unwrap().as_str(), "restored");
        cluster.crash(slot);
        cluster.start(slot);
        cluster.run(1000);
    }
    let error = cluster.call(
        slot,
        |member| async move { member.watch("", Some(2)).err() },
    );
    assert_eq!(error.unwrap().reason(), Reason::Compacted);
    let refused = cluster.call(slot, restore(RestoreOptions::default(), chunks));
    assert_eq!(refused.unwrap_err().reason(), Reason::AlreadyFormatted);
    assert_eq!(put(&mut cluster, slot, "k", "w").unwrap().revision, 502);
}

#[test]
fn format_level_is_raised_if_all_members_support_it() {
    let mut cluster = cluster(3);
    let raised = cluster.call(
        1,
        |member| async move { member.raise_format_level(1).await },
    );
    raised.unwrap();
    let refused = cluster.call(
        1,
        |member| async move { member.raise_format_level(9).await },
    );
    assert_eq!(refused.unwrap_err().reason(), Reason::Invalid);
    cluster.crash(2);
    let refused = cluster.call(
        1,
        |member| async move { member.raise_format_level(1).await },
    );
    assert_eq!(refused.unwrap_err().reason(), Reason::Busy);
}

/// A connection that was cut between the format and the start of the node left a member that
/// rejected every later request as `StorageFailed`.
#[test]
fn cancelled_format_is_completed() {
    let mut cancelled = 0;
    for step in 0..40 {
        let mut cluster = Cluster::new(step, Wrap::default());
        let slot = cluster.add_machine(1000);
        let identity = cluster.identity(1);
        let is_cancelled = cluster.block_on(slot, |member| async move {
            let time = Duration::from_millis(step);
            let first = tokio::time::timeout(time, member.format(identity.clone()));
            let is_cancelled = first.await.is_err();
            member.format(identity).await.unwrap();
            assert_eq!(member.status().await.state, MemberState::Joining, "{step}");
            is_cancelled
        });
        cancelled += u32::from(is_cancelled);
    }
    assert!((2..40).contains(&cancelled), "{cancelled}");
}
