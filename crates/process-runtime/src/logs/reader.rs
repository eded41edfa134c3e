//! Reader of the log of one container, as `kubectl logs` needs it.
//!
//! Guarantees: a follower reads all lines over rotations, as long as it is not slower than
//! `max_files` rotations: it opens rotated files when the next chunk is requested. Without
//! `follow`, only the current file is read, as by the kubelet.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, Read, Seek, SeekFrom};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;

use super::line::{self, Line, Stream};
use super::rotation::rotated_files;
use super::writer::LogUpdates;

const READ_LEN: usize = 64 << 10;

/// The range of a log to read; the fields of `v1.PodLogOptions`. The log of the previous instance
/// of a container has a separate path.
#[derive(Clone, Debug, Default)]
pub struct ReadOptions {
    /// Waits for more lines until the container ends. It needs [`LogUpdates`].
    pub follow: Option<LogUpdates>,
    /// The number of lines from the end at which to begin; all lines if `None` or negative.
    pub tail_lines: Option<i64>,
    /// The time of the oldest line.
    pub since: Option<Timestamp>,
    /// Prefixes lines with their times.
    pub timestamps: bool,
    /// Ends after that number of bytes.
    pub limit_bytes: Option<u64>,
    /// Only lines of that stream.
    pub stream: Option<Stream>,
}

/// Reads a log.
pub struct LogReader {
    path: PathBuf,
    options: ReadOptions,
    /// Open files, the oldest first. Invariant: not empty.
    files: VecDeque<File>,
    /// Bytes that are read and not yet a whole line.
    buffer: Vec<u8>,
    /// Whether the next text begins a line of the container.
    at_line_start: bool,
    remaining_bytes: u64,
}

impl LogReader {
    /// Opens a log file.
    pub fn open(path: &Path, options: ReadOptions) -> io::Result<Self> {
        let mut file = File::open(path)?;
        if let Some(lines) = options
            .tail_lines
            .and_then(|lines| u64::try_from(lines).ok())
        {
            let start = tail_start(&mut file, lines)?;
            file.seek(SeekFrom::Start(start))?;
        }
        Ok(Self {
            path: path.to_owned(),
            remaining_bytes: options.limit_bytes.unwrap_or(u64::MAX),
            options,
            files: [file].into(),
            buffer: Vec::new(),
            at_line_start: true,
        })
    }

    /// The next part of the log; `None` at its end. Not empty.
    pub async fn next_chunk(&mut self) -> io::Result<Option<Vec<u8>>> {
        loop {
            if self.remaining_bytes == 0 {
                return Ok(None);
            }
            // Read before the files, so that nothing is missed between the two.
            let ended = self.has_ended();
            self.open_newer_files()?;
            let len = self.read()?;
            let chunk = self.take_lines();
            if !chunk.is_empty() {
                return Ok(Some(chunk));
            }
            if len > 0 {
                continue;
            }
            if self.files.len() > 1 {
                self.files.pop_front();
                self.buffer.clear();
            } else if ended {
                return Ok(None);
            } else if let Some(updates) = &mut self.options.follow {
                // A closed channel is the end, too.
                let _ = updates.0.changed().await;
            }
        }
    }

    /// Whether nothing more is written.
    fn has_ended(&mut self) -> bool {
        match &mut self.options.follow {
            None => true,
            Some(updates) => {
                let is_closed = updates.0.has_changed().is_err();
                updates.0.borrow_and_update().ended || is_closed
            }
        }
    }

    fn read(&mut self) -> io::Result<usize> {
        let file = self.files.front_mut().expect("a file is always open");
        let start = self.buffer.len();
        self.buffer.resize(start + READ_LEN, 0);
        let len = file.read(&mut self.buffer[start..])?;
        self.buffer.truncate(start + len);
        Ok(len)
    }

    /// Opens the files that were created after the newest open one.
    fn open_newer_files(&mut self) -> io::Result<()> {
        if self.options.follow.is_none() {
            return Ok(());
        }
        let newest = self.files.back().expect("a file is always open");
        let newest = newest.metadata()?.ino();
        let current = match File::open(&self.path) {
            Ok(file) => file,
            // It is being rotated.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => return Err(error),
        };
        let current_inode = current.metadata()?.ino();
        if current_inode == newest {
            return Ok(());
        }
        // Listed after the current file was opened, so no file between the two is missing.
        let mut between = Vec::new();
        for path in rotated_files(&self.path)? {
            // It may be removed as the oldest one.
            let Ok(file) = File::open(path) else {
                continue;
            };
            let inode = file.metadata()?.ino();
            if inode == newest {
                between.clear();
            } else if inode == current_inode {
                break;
            } else {
                between.push(file);
            }
        }
        self.files.extend(between);
        self.files.push_back(current);
        Ok(())
    }

    fn take_lines(&mut self) -> Vec<u8> {
        let Some(last_end) = self.buffer.iter().rposition(|byte| *byte == b'\n') else {
            return Vec::new();
        };
        let rest = self.buffer.split_off(last_end + 1);
        let lines = std::mem::replace(&mut self.buffer, rest);
        let mut chunk = Vec::with_capacity(lines.len());
        for text in lines[..last_end].split(|byte| *byte == b'\n') {
            match line::parse(text) {
                Some(line) if self.is_selected(&line) => self.append(&mut chunk, &line),
                _ => {}
            }
        }
        let limit = usize::try_from(self.remaining_bytes).unwrap_or(usize::MAX);
        chunk.truncate(limit);
        self.remaining_bytes -= chunk.len() as u64;
        chunk
    }

    fn is_selected(&self, line: &Line<'_>) -> bool {
        let is_recent = self.options.since.is_none_or(|since| line.time >= since);
        let stream = self.options.stream;
        is_recent && stream.is_none_or(|stream| line.stream == stream)
    }

    fn append(&mut self, chunk: &mut Vec<u8>, line: &Line<'_>) {
        if self.options.timestamps && self.at_line_start {
            chunk.extend(line::format_time(line.time).as_bytes());
            chunk.push(b' ');
        }
        chunk.extend(line.text);
        if !line.partial {
            chunk.push(b'\n');
        }
        self.at_line_start = !line.partial;
    }
}

/// The offset of the last lines. Mirrors `FindTailLineStartIndex`.
fn tail_start(file: &mut File, lines: u64) -> io::Result<u64> {
    let mut end = file.seek(SeekFrom::End(0))?;
    if lines == 0 {
        return Ok(end);
    }
    let mut buffer = vec![0; READ_LEN];
    // The end of the last line does not count.
    let mut ends = 0;
    while end > 0 {
        let len = usize::try_from(end).map_or(READ_LEN, |end| end.min(READ_LEN));
        let start = end - len as u64;
        file.seek(SeekFrom::Start(start))?;
        file.read_exact(&mut buffer[..len])?;
        for index in (0..len).rev() {
            if buffer[index] == b'\n' {
                ends += 1;
                if ends > lines {
                    return Ok(start + index as u64 + 1);
                }
            }
        }
        end = start;
    }
    Ok(0)
}
