//! Segment files: names, rotation, recovery and removal.
//!
//! Guarantees: a segment is created, synced and in the directory before an operation is in it;
//! segments are removed oldest first, after the purge that made them unneeded is durable.

use std::{collections::VecDeque, io};

use bytes::Bytes;

use super::{
    LogOptions, Memory,
    frame::{Begin, Operation, Scanned, encode_frame, scan},
};
use crate::{codec::Writer, disk::Disk};

const PREFIX: &str = "log-";

/// The segments of a log, and where the next frame goes.
pub(super) struct Segments {
    options: LogOptions,
    /// Oldest first; the last one is written.
    files: VecDeque<Segment>,
    /// Where the next frame begins in the last segment.
    offset: u64,
    /// The log according to the written frames.
    written: Begin,
}

struct Segment {
    sequence: u64,
    /// The highest index of an entry that was ever in it.
    last_index: Option<u64>,
    bytes: u64,
}

impl Segment {
    fn name(&self) -> String {
        name(self.sequence)
    }
}

fn name(sequence: u64) -> String {
    format!("{PREFIX}{sequence:016x}")
}

/// Whether a file is a segment.
pub(crate) fn is_segment(name: &str) -> bool {
    sequence(name).is_some()
}

fn sequence(name: &str) -> Option<u64> {
    let digits = name.strip_prefix(PREFIX)?;
    u64::from_str_radix(digits, 16).ok()
}

impl Segments {
    /// Creates the first segment.
    pub(super) fn create(disk: &dyn Disk, options: LogOptions, begin: Begin) -> io::Result<Self> {
        let mut segments = Self {
            options,
            files: VecDeque::new(),
            offset: 0,
            written: begin,
        };
        segments.rotate(disk)?;
        Ok(segments)
    }

    pub(super) fn bytes(&self) -> u64 {
        let before: u64 = self.files.iter().rev().skip(1).map(|file| file.bytes).sum();
        before + self.offset
    }

    /// Writes a frame and syncs it.
    pub(super) fn write(
        &mut self,
        disk: &dyn Disk,
        operations: &[u8],
        last_index: Option<u64>,
    ) -> io::Result<()> {
        let frame = encode_frame(operations);
        if self.offset + frame.len() as u64 > self.options.segment_bytes {
            self.rotate(disk)?;
        }
        let segment = self.files.back_mut().expect("a log has a segment");
        let name = segment.name();
        disk.write_at(&name, self.offset, &frame)?;
        disk.sync(&name)?;
        self.offset += frame.len() as u64;
        segment.bytes = self.offset;
        segment.last_index = segment.last_index.max(last_index);
        Ok(())
    }

    /// The log after the last written frame.
    pub(super) fn advance(&mut self, after: Begin) {
        self.written = after;
    }

    /// Removes the oldest segments as long as all their entries are purged.
    pub(super) fn remove_purged(&mut self, disk: &dyn Disk, purged: Option<u64>) -> io::Result<()> {
        while self.files.len() > 1 && self.files[0].last_index <= purged {
            disk.remove(&self.files[0].name())?;
            self.files.pop_front();
        }
        Ok(())
    }

    fn rotate(&mut self, disk: &dyn Disk) -> io::Result<()> {
        let sequence = self.files.back().map_or(0, |file| file.sequence + 1);
        let name = name(sequence);
        let mut operations = Writer::default();
        Operation::Begin(self.written).encode(&mut operations);
        let frame = encode_frame(&operations.0);
        disk.create(&name, self.options.segment_bytes)?;
        disk.write_at(&name, 0, &frame)?;
        disk.sync(&name)?;
        disk.sync_directory()?;
        self.offset = frame.len() as u64;
        self.files.push_back(Segment {
            sequence,
            last_index: None,
            bytes: self.offset,
        });
        Ok(())
    }

    /// Reads all segments and cuts a torn tail.
    pub(super) fn open(disk: &dyn Disk, options: LogOptions) -> io::Result<(Self, Memory)> {
        let mut sequences: Vec<u64> = disk
            .list()?
            .iter()
            .filter_map(|name| sequence(name))
            .collect();
        sequences.sort_unstable();
        let old = split_old(&mut sequences);
        let mut memory = Memory::default();
        let mut files = VecDeque::new();
        let mut offset = 0;
        for (position, sequence) in sequences.iter().enumerate() {
            let is_last = position + 1 == sequences.len();
            let reading = read_segment(disk, *sequence, &mut memory)?;
            if !reading.is_complete && !is_last {
                return Err(corrupt(
                    *sequence,
                    reading.end,
                    "is torn in the middle of the log",
                ));
            }
            if reading.end == 0 {
                // Created, but not used yet: the frame that begins it is synced before any other.
                disk.remove(&name(*sequence))?;
                disk.sync_directory()?;
                continue;
            }
            if !reading.is_complete {
                cut(disk, *sequence, reading.end, options)?;
            }
            offset = reading.end as u64;
            files.push_back(Segment {
                sequence: *sequence,
                last_index: reading.last_index,
                bytes: offset,
            });
        }
        if files.is_empty() {
            let message = "the log has no segment; the disk lost data, replace the member";
            return Err(io::Error::new(io::ErrorKind::InvalidData, message));
        }
        memory.finish_reading()?;
        for sequence in old {
            disk.remove(&name(sequence))?;
        }
        let written = memory.begin();
        let segments = Self {
            options,
            files,
            offset,
            written,
        };
        Ok((segments, memory))
    }
}

/// Splits off the segments before a gap: their removal was not durable before a crash.
fn split_old(sequences: &mut Vec<u64>) -> Vec<u64> {
    let gap = sequences
        .windows(2)
        .rposition(|pair| pair[0] + 1 != pair[1]);
    match gap {
        None => Vec::new(),
        Some(gap) => sequences.drain(..=gap).collect(),
    }
}

/// How far a segment was read.
struct Reading {
    end: usize,
    is_complete: bool,
    last_index: Option<u64>,
}

fn read_segment(disk: &dyn Disk, sequence: u64, memory: &mut Memory) -> io::Result<Reading> {
    let content = Bytes::from(disk.read(&name(sequence))?);
    let mut reading = Reading {
        end: 0,
        is_complete: true,
        last_index: None,
    };
    while reading.end < content.len() {
        match scan(&content, reading.end) {
            Scanned::End => break,
            Scanned::Torn => {
                reading.is_complete = false;
                break;
            }
            Scanned::Corrupt(problem) => return Err(corrupt(sequence, reading.end, problem)),
            Scanned::Frame { operations, end } => {
                for operation in operations {
                    let length = encoded_length(&operation);
                    if let Operation::Append(entry) = &operation {
                        reading.last_index = reading.last_index.max(Some(entry.log_id.index));
                    }
                    memory
                        .apply(operation, length)
                        .map_err(|error| corrupt(sequence, reading.end, &error.to_string()))?;
                }
                reading.end = end;
            }
        }
    }
    Ok(reading)
}

fn encoded_length(operation: &Operation) -> usize {
    let mut writer = Writer::default();
    operation.encode(&mut writer);
    writer.0.len()
}

/// Cuts a torn frame and reserves the space again.
fn cut(disk: &dyn Disk, sequence: u64, end: usize, options: LogOptions) -> io::Result<()> {
    let name = name(sequence);
    tracing::warn!(
        file = name,
        offset = end,
        "removed a frame that was not written completely"
    );
    disk.set_len(&name, end as u64)?;
    disk.set_len(&name, options.segment_bytes.max(end as u64))?;
    disk.sync(&name)
}

fn corrupt(sequence: u64, offset: usize, problem: &str) -> io::Error {
    let message = format!(
        "{} at offset {offset}: {problem}; the disk is damaged, replace the member",
        name(sequence)
    );
    io::Error::new(io::ErrorKind::InvalidData, message)
}
