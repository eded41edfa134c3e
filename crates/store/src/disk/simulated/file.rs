//! The content of a simulated file and the changes since its last sync.
//!
//! Guarantee: a crash keeps what was synced, and of the later changes a random subset, the last
//! kept bytes of a write at a multiple of the sector size.

use rand::{RngExt, rngs::StdRng};

/// What a disk writes as a whole.
const SECTOR_BYTES: usize = 512;

#[derive(Default)]
pub(super) struct SimulatedFile {
    pub(super) content: Vec<u8>,
    /// Changes that a crash may lose, oldest first, with what they replaced.
    unsynced: Vec<Change>,
    /// Changes that a failed sync lost: they are read until the crash, and never become durable.
    lost: usize,
}

enum Change {
    Write {
        offset: usize,
        old: Vec<u8>,
        old_length: usize,
        new: Vec<u8>,
    },
    Length {
        /// What was cut off.
        old: Vec<u8>,
        old_length: usize,
        new_length: usize,
    },
}

impl SimulatedFile {
    pub(super) fn write(&mut self, offset: usize, bytes: &[u8]) {
        let old_length = self.content.len();
        let end = offset + bytes.len();
        let old = self.content[offset.min(old_length)..end.min(old_length)].to_vec();
        self.unsynced.push(Change::Write {
            offset,
            old,
            old_length,
            new: bytes.to_vec(),
        });
        self.put(offset, bytes);
    }

    fn put(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if end > self.content.len() {
            self.content.resize(end, 0);
        }
        self.content[offset..end].copy_from_slice(bytes);
    }

    pub(super) fn set_len(&mut self, new_length: usize) {
        let old_length = self.content.len();
        let old = self.content[new_length.min(old_length)..].to_vec();
        self.unsynced.push(Change::Length {
            old,
            old_length,
            new_length,
        });
        self.content.resize(new_length, 0);
    }

    pub(super) fn sync(&mut self) {
        if self.lost == 0 {
            self.unsynced.clear();
        }
    }

    pub(super) fn fail_sync(&mut self) {
        self.lost = self.unsynced.len();
    }

    pub(super) fn flip_bit(&mut self, byte: usize) {
        self.content[byte] ^= 1;
    }

    pub(super) fn crash(&mut self, rng: &mut StdRng) {
        let changes: Vec<Change> = self.unsynced.drain(..).collect();
        for change in changes.iter().rev() {
            self.undo(change);
        }
        self.lost = 0;
        for change in &changes {
            match rng.random_range(0..3) {
                0 => {}
                1 => self.redo(change, usize::MAX),
                _ => {
                    let sectors = rng.random_range(0..8);
                    self.redo(change, sectors * SECTOR_BYTES);
                }
            }
        }
    }

    fn undo(&mut self, change: &Change) {
        match change {
            Change::Write {
                offset,
                old,
                old_length,
                ..
            } => {
                self.content.resize(*old_length, 0);
                let start = (*offset).min(*old_length);
                self.content[start..start + old.len()].copy_from_slice(old);
            }
            Change::Length {
                old, old_length, ..
            } => {
                self.content.resize(*old_length, 0);
                self.content[*old_length - old.len()..].copy_from_slice(old);
            }
        }
    }

    /// Repeats a change up to the sector that begins after `bytes_max` bytes.
    fn redo(&mut self, change: &Change, bytes_max: usize) {
        match change {
            Change::Write { offset, new, .. } => {
                let into_sector = offset % SECTOR_BYTES;
                let kept = bytes_max.saturating_sub(into_sector).min(new.len());
                if kept > 0 {
                    self.put(*offset, &new[..kept]);
                }
            }
            Change::Length { new_length, .. } => self.content.resize(*new_length, 0),
        }
    }
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng;

    use super::*;

    #[test]
    fn crash_keeps_synced_bytes_and_tears_later_ones() {
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..200 {
            let mut rng = StdRng::seed_from_u64(seed);
            let mut file = SimulatedFile::default();
            file.write(0, &[1; 600]);
            file.sync();
            file.write(600, &[2; 1000]);
            file.set_len(3000);
            file.crash(&mut rng);
            assert_eq!(file.content[..600], [1; 600]);
            let kept = file.content[600..]
                .iter()
                .filter(|byte| **byte == 2)
                .count();
            assert!([0, 424, 936, 1000].contains(&kept), "{kept}");
            seen.insert((kept, file.content.len()));
        }
        assert!(seen.len() > 5, "{seen:?}");
    }

    #[test]
    fn writes_of_failed_sync_are_never_durable() {
        let mut file = SimulatedFile::default();
        file.write(0, &[1; 10]);
        file.sync();
        file.write(0, &[2; 10]);
        file.fail_sync();
        file.sync();
        assert_eq!(file.unsynced.len(), 1);
    }
}
