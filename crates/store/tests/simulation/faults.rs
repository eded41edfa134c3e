//! A disk error at every call: nothing is acknowledged afterwards, and the next start has
//! everything that was acknowledged.

use std::{sync::Arc, time::Duration};

use bellerophon_store::{
    Member, PeerAddress, PeerRequest, PeerResponse, PeerTransport, TransportError, Write,
    api::{Consistency, Identity, Key, MemberState},
    disk::simulated::{Fault, SimulatedDisk},
};
use futures_util::future::BoxFuture;
use tokio::{
    runtime::{Builder, Runtime},
    time::sleep,
};

use crate::cluster::config;

/// Enough for several segments and snapshots.
const WRITES: u64 = 25;

/// A member without peers.
struct NoPeers;

impl PeerTransport for NoPeers {
    fn send(
        &self,
        _: PeerAddress,
        _: PeerRequest,
    ) -> BoxFuture<'static, Result<PeerResponse, TransportError>> {
        let error = TransportError::Unreachable("there are no peers".to_owned());
        Box::pin(async { Err(error) })
    }
}

fn runtime() -> Runtime {
    let mut builder = Builder::new_current_thread();
    builder.enable_time().start_paused(true).build().unwrap()
}

async fn open(disk: &Arc<SimulatedDisk>) -> Result<Member, String> {
    let member = Member::open(config(1), disk.attach(Duration::ZERO), Arc::new(NoPeers)).await;
    member.map_err(|error| error.to_string())
}

fn key(number: u64) -> Key {
    format!("key-{number}").parse().unwrap()
}

async fn initialize(member: &Member) -> Result<(), String> {
    let identity = Identity {
        cluster_id: "faults".parse().unwrap(),
        member_id: 1,
    };
    let initialized = member.initialize(identity, "slot-0:7071".to_owned()).await;
    initialized.map_err(|error| error.to_string())
}

async fn write(member: &Member, number: u64) -> bool {
    let write = Write::Put {
        key: key(number),
        value: vec![b'x'; 40].into(),
        if_revision: Some(0),
    };
    member.write(write).await.is_ok()
}

/// Opens, initializes, writes and stops. Returns the keys whose writes were acknowledged.
async fn session(disk: &Arc<SimulatedDisk>, fails_at: Option<u64>) -> Vec<u64> {
    let mut acknowledged = Vec::new();
    let Ok(member) = open(disk).await else {
        return acknowledged;
    };
    if initialize(&member).await.is_err() {
        return acknowledged;
    }
    // The election.
    sleep(Duration::from_secs(1)).await;
    for number in 0..WRITES {
        let has_failed = fails_at.is_some_and(|call| disk.calls() > call);
        if write(&member, number).await {
            assert!(!has_failed, "acknowledged {number} after call {fails_at:?}");
            acknowledged.push(number);
        }
        // Background work, such as snapshots, finishes before the next write.
        sleep(Duration::from_millis(50)).await;
        if fails_at.is_some_and(|call| disk.calls() > call) {
            assert_eq!(
                member.status().await.state,
                MemberState::Failed,
                "{fails_at:?}"
            );
        }
    }
    member.shut_down().await;
    acknowledged
}

/// Every acknowledged write is there after a restart, and the member takes new ones.
async fn check_restart(disk: &Arc<SimulatedDisk>, acknowledged: &[u64]) -> Result<(), String> {
    let member = open(disk).await?;
    if member.status().await.state == MemberState::Unformatted {
        if !acknowledged.is_empty() {
            return Err("the directory is unformatted".to_owned());
        }
        initialize(&member).await?;
    }
    sleep(Duration::from_secs(1)).await;
    for number in acknowledged {
        let read = member.read(&key(*number), Consistency::Linearizable).await;
        let read = read.map_err(|error| error.to_string())?;
        if read.item.is_none() {
            return Err(format!("the acknowledged key {number} is lost"));
        }
    }
    if !write(&member, WRITES + 1).await {
        return Err("the restarted member takes no writes".to_owned());
    }
    Ok(())
}

#[test]
fn disk_error_at_any_call_loses_no_acknowledged_write() {
    let disk = SimulatedDisk::new(1);
    let acknowledged = runtime().block_on(session(&disk, None));
    assert_eq!(acknowledged.len() as u64, WRITES);
    let calls = disk.calls();
    assert!(calls > 100, "{calls}");
    let mut problems = Vec::new();
    for call in 0..calls {
        for fault in [Fault::Eio, Fault::Enospc, Fault::Cut] {
            let disk = SimulatedDisk::new(call);
            disk.inject(call, fault);
            let acknowledged = runtime().block_on(session(&disk, Some(call)));
            disk.crash();
            let restart = runtime().block_on(check_restart(&disk, &acknowledged));
            if let Err(problem) = restart {
                problems.push(format!("{fault:?} at call {call}: {problem}"));
            }
        }
    }
    assert_eq!(problems, Vec::<String>::new());
}

#[test]
fn crash_during_recovery_loses_no_acknowledged_write() {
    for seed in 0..50 {
        let disk = SimulatedDisk::new(seed);
        let acknowledged = runtime().block_on(session(&disk, None));
        disk.crash();
        for calls in 0..20 {
            disk.inject(disk.calls() + calls, Fault::Cut);
            // It may fail or not, depending on the number of calls that a start needs.
            let _ = runtime().block_on(check_restart(&disk, &acknowledged));
            disk.crash();
        }
        let restart = runtime().block_on(async {
            let member = open(&disk).await?;
            sleep(Duration::from_secs(1)).await;
            for number in &acknowledged {
                let read = member.read(&key(*number), Consistency::Linearizable).await;
                if read.map_err(|error| error.to_string())?.item.is_none() {
                    return Err(format!("the acknowledged key {number} is lost"));
                }
            }
            Ok(())
        });
        assert_eq!(restart, Ok(()), "seed {seed}");
    }
}
