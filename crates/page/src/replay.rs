//! A recorded trace: lines of a file.
//!
//! In: a file in the [trace format](crate::line). Out: its lines with sequence and type.
//! Guarantees: a file of another format or version is refused; at most [`LINES_MAX`] lines are read,
//! each of at most [`LINE_MAX_BYTES`].

use std::io;
use std::path::{Path, PathBuf};

use serde::Deserialize;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader};

use crate::line::{HEADER_FORMAT, HEADER_VERSION};

/// The lines of a file: some hours of a busy cluster, and 1 GB of memory at most.
const LINES_MAX: usize = 2_000_000;

/// The length of a line. States of many queues are the longest.
const LINE_MAX_BYTES: usize = 4 << 20;

/// Why a file cannot be shown.
#[derive(Debug, thiserror::Error)]
pub enum ReplayError {
    /// It cannot be read.
    #[error("cannot read {}: {source}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },
    /// It is not a trace of this format and version.
    #[error(
        "{} is not a trace of version {HEADER_VERSION}; record one with `bellerophon up --record FILE`",
        path.display()
    )]
    Format {
        /// The file.
        path: PathBuf,
    },
    /// A line is not a record.
    #[error("{}: line {line} is not a record: {message}", path.display())]
    Line {
        /// The file.
        path: PathBuf,
        /// The number of the line, from 1.
        line: usize,
        /// What is wrong.
        message: String,
    },
}

/// A recorded trace in memory.
#[derive(Debug)]
pub struct Replay {
    pub(crate) lines: Vec<RecordedLine>,
    /// The name of the file.
    pub(crate) name: String,
}

/// A line and the members that select it.
#[derive(Debug)]
pub(crate) struct RecordedLine {
    pub(crate) sequence: u64,
    pub(crate) type_name: String,
    pub(crate) text: String,
}

#[derive(Deserialize)]
struct Head {
    format: String,
    version: u32,
}

#[derive(Deserialize)]
struct Members {
    seq: u64,
    #[serde(rename = "type")]
    type_name: String,
}

impl Replay {
    /// Reads a file.
    ///
    /// # Errors
    /// It cannot be read, or it is not a trace.
    pub async fn read(path: &Path) -> Result<Self, ReplayError> {
        let read = |source| ReplayError::Read {
            path: path.to_owned(),
            source,
        };
        let file = tokio::fs::File::open(path).await.map_err(read)?;
        let mut reader = BufReader::new(file);
        let mut lines = Vec::new();
        let mut number = 0;
        loop {
            let mut text = String::new();
            let mut limited = (&mut reader).take(LINE_MAX_BYTES as u64);
            if limited.read_line(&mut text).await.map_err(read)? == 0 {
                break;
            }
            number += 1;
            if number == 1 {
                let head: Option<Head> = serde_json::from_str(&text).ok();
                let is_known =
                    |head: &Head| head.format == HEADER_FORMAT && head.version == HEADER_VERSION;
                if !head.as_ref().is_some_and(is_known) {
                    let path = path.to_owned();
                    return Err(ReplayError::Format { path });
                }
                continue;
            }
            // A recorder that was killed leaves an incomplete last line.
            if !text.ends_with('\n') {
                break;
            }
            let invalid = |message: String| ReplayError::Line {
                path: path.to_owned(),
                line: number,
                message,
            };
            let Members { seq, type_name } =
                serde_json::from_str(&text).map_err(|error| invalid(error.to_string()))?;
            if lines.len() == LINES_MAX {
                return Err(invalid(format!("there are more than {LINES_MAX} lines")));
            }
            text.truncate(text.trim_end().len());
            lines.push(RecordedLine {
                sequence: seq,
                type_name,
                text,
            });
        }
        if number == 0 {
            let path = path.to_owned();
            return Err(ReplayError::Format { path });
        }
        let name = path
            .file_name()
            .map_or_else(String::new, |name| name.to_string_lossy().into_owned());
        Ok(Self { lines, name })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn read(text: &str) -> Result<Replay, ReplayError> {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("trace.jsonl");
        std::fs::write(&path, text).unwrap();
        Replay::read(&path).await
    }

    #[tokio::test]
    async fn files_of_another_format_are_refused() {
        let record = r#"{"seq":1,"type":"listed"}"#;
        let head = r#"{"format":"bellerophon-trace","version":1}"#;
        for (text, expected) in [
            (String::new(), Err("is not a trace")),
            (format!("{record}\n"), Err("is not a trace")),
            (head.replace('1', "2"), Err("is not a trace of version 1")),
            (format!("{head}\nno\n"), Err("line 2 is not a record")),
            (format!("{head}\n"), Ok(0)),
            (format!("{head}\n{record}\n"), Ok(1)),
            (format!("{head}\n{record}\n{{\"seq\":2"), Ok(1)),
        ] {
            match (read(&text).await, expected) {
                (Ok(replay), Ok(lines)) => assert_eq!(replay.lines.len(), lines, "{text}"),
                (Err(error), Err(part)) => {
                    assert!(error.to_string().contains(part), "{text}: {error}");
                }
                (result, _) => panic!("{text}: {result:?}"),
            }
        }
    }
}
