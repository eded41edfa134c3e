//! Recorder: writes a trace to a file while it is recorded.
//!
//! In: a live source. Out: a file in the [trace format](crate::line), with a `state` line per second.
//! Guarantees: it never delays what it records; records that it could not follow are a `gap` line;
//! the file is flushed after each batch.

use std::path::{Path, PathBuf};

use futures_util::StreamExt as _;
use tokio::fs::File;
use tokio::io::AsyncWriteExt as _;

use crate::lines::following_lines;
use crate::source::LiveSource;

/// A file cannot be written.
#[derive(Debug, thiserror::Error)]
#[error("cannot record into {}: {source}", path.display())]
pub struct RecordError {
    path: PathBuf,
    source: std::io::Error,
}

/// Writes all records from the oldest one that is kept, until it is cancelled. The file is replaced.
///
/// # Errors
/// The file cannot be written.
pub async fn record(source: LiveSource, path: &Path) -> Result<(), RecordError> {
    let failed = |source| RecordError {
        path: path.to_owned(),
        source,
    };
    let mut file = File::create(path).await.map_err(failed)?;
    let mut lines = Box::pin(following_lines(source, 0));
    while let Some(text) = lines.next().await {
        file.write_all(&text).await.map_err(failed)?;
        file.flush().await.map_err(failed)?;
    }
    Ok(())
}
