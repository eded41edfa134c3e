//! Checks that log and state are consistent after a restart.

use std::io;

use crate::{entry::LogId, log::Log, state::Meta};

/// last_purged ≤ applied ≤ committed ≤ last_log, and a vote of at least the last entry's term.
///
/// A snapshot that was installed just before a crash may be beyond the log.
pub(super) fn check_recovery(log: &Log, meta: &Meta) -> io::Result<()> {
    let applied = meta.last_applied;
    let (vote, committed, purged, last) =
        log.read(|log| (log.vote, log.committed, log.purged, log.last()));
    let is_installed = applied.is_some() && applied == meta.installed;
    let index = |id: Option<LogId>| id.map(|id| id.index);
    let problem = if index(purged) > index(applied) {
        Some("the log is purged beyond the state")
    } else if !is_installed && index(applied) > index(committed) {
        Some("the state is beyond the committed entries")
    } else if index(committed.max(applied)) > index(last) && !is_installed {
        Some("the committed entries are beyond the log")
    } else if vote.map(|vote| vote.term) < last.map(|id| id.term) {
        Some("the vote is older than the log")
    } else {
        None
    };
    let Some(problem) = problem else {
        return Ok(());
    };
    let text = |id: Option<LogId>| id.map_or("none".to_owned(), |id| id.to_string());
    let message = format!(
        "{problem} (purged {}, applied {}, committed {}, last {}); the disk lost data, replace \
         the member",
        text(purged),
        text(applied),
        text(committed),
        text(last)
    );
    Err(io::Error::new(io::ErrorKind::InvalidData, message))
}
