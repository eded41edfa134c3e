//! Tests of recovery, rotation and damage.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use super::*;
use crate::{
    disk::simulated::{Fault, SimulatedDisk},
    entry::{Command, Payload},
};

const OPTIONS: LogOptions = LogOptions { segment_bytes: 400 };

fn id(index: u64) -> LogId {
    LogId {
        term: 1,
        leader: 1,
        index,
    }
}

fn put(index: u64) -> Entry {
    Entry {
        log_id: id(index),
        payload: Payload::Command(Command::Put {
            key: "k".parse().unwrap(),
            value: format!("value of {index}").into(),
            if_revision: None,
        }),
    }
}

fn vote(term: u64) -> Vote {
    Vote {
        term,
        candidate: 1,
        committed: true,
    }
}

async fn create(disk: &Arc<SimulatedDisk>) -> Log {
    let attached = disk.attach(Duration::ZERO);
    Log::create(&*attached, OPTIONS, Seed::default()).unwrap();
    Log::open(attached, OPTIONS).await.unwrap()
}

async fn reopen(disk: &Arc<SimulatedDisk>) -> io::Result<Log> {
    Log::open(disk.attach(Duration::ZERO), OPTIONS).await
}

async fn append(log: &Log, indexes: impl IntoIterator<Item = u64>) {
    let ack: Ack = Box::new(|result| result.unwrap());
    log.append(indexes.into_iter().map(put), ack).unwrap();
    log.flush().await.unwrap();
}

fn indexes(log: &Log) -> Vec<u64> {
    let entries = log.read(|log| log.entries(0, u64::MAX, usize::MAX));
    entries.iter().map(|entry| entry.log_id.index).collect()
}

#[tokio::test]
async fn synced_operations_outlive_a_crash() {
    let disk = SimulatedDisk::new(1);
    let log = create(&disk).await;
    log.save_vote(vote(3)).await.unwrap();
    append(&log, 0..20).await;
    log.truncate(Some(id(15))).unwrap();
    log.save_committed(id(12)).unwrap();
    append(&log, 16..18).await;
    log.purge(id(4)).unwrap();
    log.flush().await.unwrap();
    disk.crash();
    let log = reopen(&disk).await.unwrap();
    assert_eq!(indexes(&log), (5..18).collect::<Vec<_>>());
    assert_eq!(log.read(|log| log.vote), Some(vote(3)));
    assert_eq!(log.read(|log| log.committed), Some(id(12)));
    assert_eq!(log.read(|log| log.purged), Some(id(4)));
}

#[tokio::test]
async fn purge_removes_old_segments() {
    let disk = SimulatedDisk::new(1);
    let log = create(&disk).await;
    for index in 0..40 {
        append(&log, [index]).await;
    }
    let attached = disk.attach(Duration::ZERO);
    let before = attached.list().unwrap().len();
    log.purge(id(38)).unwrap();
    log.flush().await.unwrap();
    let after = attached.list().unwrap();
    assert!(before > 5, "{before}");
    assert!(after.len() <= 2, "{after:?}");
    log.close().await;
    disk.crash();
    assert_eq!(indexes(&reopen(&disk).await.unwrap()), [39]);
}

#[tokio::test]
async fn acknowledgements_keep_the_order_of_operations() {
    let disk = SimulatedDisk::new(1);
    let log = create(&disk).await;
    let order = Arc::new(Mutex::new(Vec::new()));
    for index in 0..10 {
        let order = Arc::clone(&order);
        let ack: Ack = Box::new(move |result| {
            result.unwrap();
            order.lock().unwrap().push(index);
        });
        log.append([put(index)], ack).unwrap();
    }
    log.flush().await.unwrap();
    assert_eq!(*order.lock().unwrap(), (0..10).collect::<Vec<_>>());
}

#[tokio::test]
async fn one_sync_covers_operations_that_waited() {
    let disk = SimulatedDisk::new(1);
    let log = create(&disk).await;
    let before = disk.calls();
    for index in 0..5 {
        log.append([put(index)], Box::new(|_| {})).unwrap();
    }
    log.flush().await.unwrap();
    // One write and one sync.
    assert_eq!(disk.calls() - before, 2);
}

#[tokio::test]
async fn nothing_is_acknowledged_after_a_failed_sync() {
    for fault in [Fault::Eio, Fault::Enospc, Fault::Cut] {
        let disk = SimulatedDisk::new(1);
        let log = create(&disk).await;
        append(&log, [0]).await;
        disk.inject(disk.calls() + 1, fault);
        let acks = Arc::new(Mutex::new(Vec::new()));
        for index in 1..3 {
            let acks = Arc::clone(&acks);
            let ack: Ack = Box::new(move |result| acks.lock().unwrap().push(result.is_ok()));
            log.append([put(index)], ack).unwrap();
        }
        assert!(log.flush().await.is_err(), "{fault:?}");
        assert_eq!(*acks.lock().unwrap(), [false, false], "{fault:?}");
        assert!(log.append([put(3)], Box::new(|_| {})).is_err());
        assert!(log.save_vote(vote(9)).await.is_err());
    }
}

/// The only segment of a log with three frames, and where they begin.
async fn three_frames() -> (Arc<SimulatedDisk>, Vec<usize>) {
    let disk = SimulatedDisk::new(1);
    let log = create(&disk).await;
    let mut offsets = vec![usize::try_from(log.disk_bytes()).unwrap()];
    for index in 0..3 {
        append(&log, [index]).await;
        offsets.push(usize::try_from(log.disk_bytes()).unwrap());
    }
    log.close().await;
    (disk, offsets)
}

const FIRST: &str = "log-0000000000000000";

#[tokio::test]
async fn torn_last_frame_is_cut() {
    let (_, offsets) = three_frames().await;
    for end in offsets[2]..offsets[3] {
        let (disk, _) = three_frames().await;
        let attached = disk.attach(Duration::ZERO);
        attached.set_len(FIRST, end as u64).unwrap();
        attached.sync(FIRST).unwrap();
        let log = reopen(&disk).await.unwrap();
        assert_eq!(indexes(&log), [0, 1], "cut at {end}");
        append(&log, [2]).await;
        log.close().await;
        assert_eq!(
            indexes(&reopen(&disk).await.unwrap()),
            [0, 1, 2],
            "cut at {end}"
        );
    }
}

#[tokio::test]
async fn flipped_bit_is_refused_with_its_offset() {
    let (_, offsets) = three_frames().await;
    for byte in 0..offsets[3] {
        let (disk, _) = three_frames().await;
        disk.flip_bit(FIRST, byte);
        let error = match reopen(&disk).await {
            Ok(log) => panic!("byte {byte} is not noticed: {:?}", indexes(&log)),
            Err(error) => error.to_string(),
        };
        let offset = offsets.iter().rev().find(|offset| **offset <= byte);
        let expected = format!("{FIRST} at offset {}", offset.unwrap_or(&0));
        assert!(error.contains(&expected), "byte {byte}: {error}");
    }
}

#[tokio::test]
async fn missing_segment_is_refused() {
    for missing in ["log-0000000000000001", "log-0000000000000002"] {
        let disk = SimulatedDisk::new(1);
        let log = create(&disk).await;
        for index in 0..20 {
            append(&log, [index]).await;
        }
        log.close().await;
        let attached = disk.attach(Duration::ZERO);
        attached.remove(missing).unwrap();
        let error = reopen(&disk).await.err().expect("a segment is missing");
        assert!(
            error.to_string().contains("a log file was removed"),
            "{error}"
        );
    }
}

/// A truncation reached back into a segment that was removed later; the log did not open.
#[tokio::test]
async fn truncation_into_a_removed_segment_is_read_back() {
    let disk = SimulatedDisk::new(1);
    let log = create(&disk).await;
    for index in 0..20 {
        append(&log, [index]).await;
    }
    let attached = disk.attach(Duration::ZERO);
    let segments = attached.list().unwrap().len();
    log.truncate(Some(id(10))).unwrap();
    append(&log, 11..14).await;
    log.purge(id(12)).unwrap();
    log.flush().await.unwrap();
    log.close().await;
    assert!(attached.list().unwrap().len() < segments);
    let log = reopen(&disk).await.unwrap();
    assert_eq!(indexes(&log), [13]);
    assert_eq!(log.read(|log| log.purged), Some(id(12)));
}
