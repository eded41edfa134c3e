//! Writer of the log of one container.
//!
//! Guarantees: lines of a stream keep their order; a line is never split between two files. If
//! the disk is full, output is discarded and counted, and the container is not blocked.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use tokio::sync::watch;

use super::line::{self, Stream};
use super::rotation::{RotationOptions, remove_oldest, rotated_path};
use crate::clock::Clock;

/// The longest text of a line, as in containerd (`max_container_log_line_size`).
pub(super) const LINE_MAX: usize = 16 << 10;

/// What a follower of a log observes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct LogProgress {
    writes: u64,
    pub(super) ended: bool,
}

/// Notifies a follower of new lines and of the end of the log.
#[derive(Clone, Debug)]
pub struct LogUpdates(pub(super) watch::Receiver<LogProgress>);

/// The log of one container.
pub struct ContainerLog {
    state: Mutex<State>,
    progress: watch::Sender<LogProgress>,
    clock: Clock,
}

struct State {
    path: PathBuf,
    file: File,
    size: u64,
    rotation: RotationOptions,
    rotated_at: Option<Timestamp>,
    /// The begin of a line of stdout and of stderr that has not ended; at most [`LINE_MAX`] each.
    partial: [Vec<u8>; 2],
    discarded_bytes: u64,
}

fn open(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

impl ContainerLog {
    /// Opens the file, and creates its directory.
    pub fn open(path: &Path, rotation: RotationOptions, clock: Clock) -> io::Result<Self> {
        if let Some(dir) = path.parent() {
            fs::create_dir_all(dir)?;
        }
        let file = open(path)?;
        let state = State {
            size: file.metadata()?.len(),
            path: path.to_owned(),
            file,
            rotation,
            rotated_at: None,
            partial: [Vec::new(), Vec::new()],
            discarded_bytes: 0,
        };
        Ok(Self {
            state: Mutex::new(state),
            progress: watch::Sender::default(),
            clock,
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Notifies followers of this log.
    pub fn updates(&self) -> LogUpdates {
        LogUpdates(self.progress.subscribe())
    }

    /// Writes output. Text after the last end of a line waits for its end.
    pub fn write(&self, stream: Stream, output: &[u8]) {
        let now = (self.clock)();
        self.state().write(stream, output, now);
        self.progress.send_modify(|progress| progress.writes += 1);
    }

    /// Writes lines that have not ended, and ends followers.
    pub fn close(&self) {
        let now = (self.clock)();
        self.state().write_partial(now);
        self.progress.send_modify(|progress| progress.ended = true);
    }
}

impl Drop for ContainerLog {
    fn drop(&mut self) {
        self.progress.send_modify(|progress| progress.ended = true);
    }
}

impl State {
    fn write(&mut self, stream: Stream, output: &[u8], now: Timestamp) {
        let time = line::format_time(now);
        let mut buffer = Vec::with_capacity(output.len() * 2);
        let partial = &mut self.partial[stream as usize];
        for piece in output.split_inclusive(|byte| *byte == b'\n') {
            let (mut text, ended) = match piece.split_last() {
                Some((b'\n', text)) => (text, true),
                _ => (piece, false),
            };
            while partial.len() + text.len() > LINE_MAX {
                let (head, tail) = text.split_at(LINE_MAX - partial.len());
                partial.extend(head);
                line::append(&mut buffer, &time, stream, true, partial);
                partial.clear();
                text = tail;
            }
            if ended && partial.is_empty() {
                line::append(&mut buffer, &time, stream, false, text);
            } else {
                partial.extend(text);
            }
            if ended && !partial.is_empty() {
                line::append(&mut buffer, &time, stream, false, partial);
                partial.clear();
            }
        }
        self.append(&buffer, now);
    }

    /// Mirrors containerd's `redirectLogs`: text without an end is a partial line.
    fn write_partial(&mut self, now: Timestamp) {
        let time = line::format_time(now);
        let mut buffer = Vec::new();
        for stream in [Stream::Stdout, Stream::Stderr] {
            let partial = std::mem::take(&mut self.partial[stream as usize]);
            if !partial.is_empty() {
                line::append(&mut buffer, &time, stream, true, &partial);
            }
        }
        self.append(&buffer, now);
    }

    fn append(&mut self, lines: &[u8], now: Timestamp) {
        if lines.is_empty() {
            return;
        }
        let result = self
            .rotate_if_full(now)
            .and_then(|()| self.file.write_all(lines));
        match result {
            Ok(()) => self.size += lines.len() as u64,
            Err(error) => {
                if self.discarded_bytes == 0 {
                    let path = self.path.display();
                    tracing::warn!(%path, %error, "cannot write a container log, discarding output");
                }
                self.discarded_bytes += lines.len() as u64;
            }
        }
    }

    fn rotate_if_full(&mut self, now: Timestamp) -> io::Result<()> {
        if self.size < self.rotation.max_size {
            return Ok(());
        }
        // Names must sort by time even if the clock does not advance.
        let after_last = self
            .rotated_at
            .map(|time| time + SignedDuration::from_nanos(1));
        let time = after_last.map_or(now, |time| time.max(now));
        fs::rename(&self.path, rotated_path(&self.path, time))?;
        self.rotated_at = Some(time);
        self.file = open(&self.path)?;
        self.size = 0;
        remove_oldest(&self.path, self.rotation.max_files.saturating_sub(1))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::logs::rotation::rotated_files;

    fn fixed_clock() -> Clock {
        Arc::new(|| Timestamp::UNIX_EPOCH)
    }

    /// The lines of a log without times.
    fn lines(path: &Path) -> Vec<String> {
        let text = fs::read_to_string(path).unwrap();
        let lines = text.lines();
        lines
            .map(|line| line.split_once(' ').unwrap().1.to_owned())
            .collect()
    }

    #[test]
    fn lines_are_split_at_ends_and_at_the_maximum() {
        let long = "x".repeat(LINE_MAX);
        let cases = [
            (
                vec!["a\nb\n"],
                vec!["stdout F a".to_owned(), "stdout F b".into()],
            ),
            (vec!["a", "b", "\n"], vec!["stdout F ab".into()]),
            (vec!["\n\n"], vec!["stdout F ".into(), "stdout F ".into()]),
            (vec!["no end"], vec!["stdout P no end".into()]),
            (vec![&long, "\n"], vec![format!("stdout F {long}")]),
            (
                vec![&long, "y\n"],
                vec![format!("stdout P {long}"), "stdout F y".into()],
            ),
            (
                vec![&long, &long, "z"],
                vec![
                    format!("stdout P {long}"),
                    format!("stdout P {long}"),
                    "stdout P z".into(),
                ],
            ),
        ];
        for (writes, expected) in cases {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("pod/0.log");
            let log = ContainerLog::open(&path, RotationOptions::default(), fixed_clock()).unwrap();
            for write in &writes {
                log.write(Stream::Stdout, write.as_bytes());
            }
            log.close();
            assert_eq!(lines(&path), expected);
        }
    }

    #[test]
    fn streams_do_not_mix_their_lines() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let log = ContainerLog::open(&path, RotationOptions::default(), fixed_clock()).unwrap();
        log.write(Stream::Stdout, b"out");
        log.write(Stream::Stderr, b"err\n");
        log.write(Stream::Stdout, b"put\n");
        assert_eq!(lines(&path), ["stderr F err", "stdout F output"]);
    }

    #[test]
    fn rotation_keeps_the_newest_files() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let rotation = RotationOptions {
            max_size: 1,
            max_files: 3,
        };
        let log = ContainerLog::open(&path, rotation, fixed_clock()).unwrap();
        for number in 0..10 {
            log.write(Stream::Stdout, format!("{number}\n").as_bytes());
        }
        let mut files = rotated_files(&path).unwrap();
        files.push(path);
        let found: Vec<_> = files.iter().flat_map(|file| lines(file)).collect();
        assert_eq!(found, ["stdout F 7", "stdout F 8", "stdout F 9"]);
    }

    #[test]
    fn full_disk_discards_output_without_failing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("0.log");
        let log = ContainerLog::open(&path, RotationOptions::default(), fixed_clock()).unwrap();
        log.state().file = OpenOptions::new().write(true).open("/dev/full").unwrap();
        log.write(Stream::Stdout, b"lost\n");
        assert!(log.state().discarded_bytes > 0);
        log.state().file = open(&path).unwrap();
        log.write(Stream::Stdout, b"kept\n");
        assert_eq!(lines(&path), ["stdout F kept"]);
    }
}
