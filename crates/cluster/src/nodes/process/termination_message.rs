//! Termination messages of containers.
//!
//! In: the file at `terminationMessagePath`, the log. Out: the message in the status, of limited size.

use std::fs;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;

use bellerophon_process_runtime::logs::{LogReader, ReadOptions};
use bellerophon_process_runtime::{ContainerExit, Mount};
use k8s_openapi::api::core::v1;

/// The limits of a termination message, and of one from the log.
const MESSAGE_MAX: u64 = 4096;
const LOG_MESSAGE_MAX: usize = 2048;
const LOG_MESSAGE_LINES: i64 = 80;
const MESSAGE_PATH_DEFAULT: &str = "/dev/termination-log";

/// The termination message of a container. Mirrors `getTerminationMessage`.
pub(super) async fn termination_message(
    spec: &v1::Container,
    message_path: &Path,
    log_path: &Path,
    exit: &ContainerExit,
) -> Option<String> {
    let mut message = read_end(message_path, MESSAGE_MAX).unwrap_or_default();
    let policy = spec.termination_message_policy.as_deref();
    let falls_back = policy == Some("FallbackToLogsOnError") && exit.exit_code != 0;
    if message.is_empty() && falls_back {
        message = last_lines(log_path).await;
    }
    let message = String::from_utf8_lossy(&message).into_owned();
    Some(message).filter(|message| !message.is_empty())
}

/// The end of a log.
async fn last_lines(path: &Path) -> Vec<u8> {
    let options = ReadOptions {
        tail_lines: Some(LOG_MESSAGE_LINES),
        ..ReadOptions::default()
    };
    let mut text = Vec::new();
    let Ok(mut reader) = LogReader::open(path, options) else {
        return text;
    };
    while let Ok(Some(chunk)) = reader.next_chunk().await {
        text.extend(chunk);
        let start = text.len().saturating_sub(LOG_MESSAGE_MAX);
        text.drain(..start);
    }
    text
}

/// The last bytes of a file. Mirrors `tail.ReadAtMost`.
fn read_end(path: &Path, max: u64) -> io::Result<Vec<u8>> {
    let mut file = fs::File::open(path)?;
    let length = file.metadata()?.len();
    file.seek(SeekFrom::Start(length.saturating_sub(max)))?;
    let mut end = Vec::new();
    file.take(max).read_to_end(&mut end)?;
    Ok(end)
}

/// The mount of the file for the termination message.
pub(super) fn message_mount(spec: &v1::Container, source: &Path) -> io::Result<Mount> {
    if let Some(dir) = source.parent() {
        fs::create_dir_all(dir)?;
    }
    fs::File::create(source)?;
    let target = spec.termination_message_path.as_deref();
    let target = target.filter(|path| !path.is_empty());
    Ok(Mount {
        name: "termination-log".to_owned(),
        source: source.to_owned(),
        target: Path::new("/").join(target.unwrap_or(MESSAGE_PATH_DEFAULT)),
        sub_path: None,
        read_only: false,
        create_sub_path: false,
    })
}
