//! Tests of completeness and damage.

use std::{io::Read, time::Duration};

use super::*;
use crate::{
    disk::simulated::SimulatedDisk,
    entry::{Command, Entry, LogId, Payload},
    state::{State, StateOptions},
};

const OPTIONS: StateOptions = StateOptions {
    history_revisions: 5,
    history_bytes: 1 << 20,
    cache_bytes: 1 << 18,
};

fn state(keys: u64, value_bytes: usize) -> State {
    let disk = SimulatedDisk::new(1).attach(Duration::ZERO);
    let meta = Meta::new("a".parse().unwrap(), 1);
    State::create(&*disk, OPTIONS, &meta).unwrap();
    let state = State::open(&*disk, OPTIONS).unwrap();
    let entries: Vec<Entry> = (0..keys)
        .map(|index| Entry {
            log_id: LogId {
                term: 1,
                leader: 1,
                index,
            },
            payload: Payload::Command(Command::Put {
                key: format!("key-{index:05}").parse().unwrap(),
                value: vec![7; value_bytes].into(),
                if_revision: None,
            }),
        })
        .collect();
    state.apply(&entries).unwrap();
    state
}

fn snapshot(state: &State) -> Vec<u8> {
    let mut reader = SnapshotReader::new(state.view().unwrap()).unwrap();
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn replaced_state_equals_the_snapshot() {
    for (keys, value_bytes) in [(0, 0), (3, 10), (40, 100_000)] {
        let source = state(keys, value_bytes);
        let bytes = snapshot(&source);
        let header = verify(&bytes[..]).unwrap();
        assert_eq!(header.keys, keys);
        let target = state(7, 1);
        let decoder = Decoder::new(&bytes[..]).unwrap();
        let meta = decoder.meta().clone();
        target.replace(meta, decoder).unwrap();
        assert_eq!(target.meta(), source.meta());
        assert_eq!(snapshot(&target), bytes);
    }
}

#[test]
fn every_truncated_snapshot_is_refused() {
    let bytes = snapshot(&state(3, 10));
    for length in 0..bytes.len() {
        assert!(verify(&bytes[..length]).is_err(), "{length}");
    }
}

#[test]
fn every_flipped_bit_is_refused() {
    let bytes = snapshot(&state(3, 10));
    for byte in 0..bytes.len() {
        let mut damaged = bytes.clone();
        damaged[byte] ^= 1;
        assert!(verify(&damaged[..]).is_err(), "{byte}");
    }
}

#[test]
fn snapshot_with_trailing_data_is_rejected() {
    let mut bytes = snapshot(&state(3, 10));
    bytes.push(0);
    let error = verify(&bytes[..]).unwrap_err();
    assert!(
        error.to_string().contains("has data after its footer"),
        "{error}"
    );
}

#[test]
fn failed_replacement_keeps_the_state() {
    let bytes = snapshot(&state(3, 10));
    let target = state(7, 1);
    let before = snapshot(&target);
    let decoder = Decoder::new(&bytes[..bytes.len() - 1]).unwrap();
    let meta = decoder.meta().clone();
    assert!(target.replace(meta, decoder).is_err());
    assert_eq!(snapshot(&target), before);
}
