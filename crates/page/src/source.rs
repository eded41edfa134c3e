//! The source of the lines of a page: a running process, or a recorded file.
//!
//! In: a sequence number. Out: the lines after it, and how many are missing.
//! Guarantees: lines are in the order of their sequence numbers; a batch has at most
//! [`BATCH_MAX_LINES`] lines.

use std::sync::Arc;

use bellerophon::ObjectKey;
use bellerophon::clock::Clock;
use bellerophon::trace::Trace;

use crate::filter::Filter;
use crate::line::{self, Existing, TYPES_OF_FILES};
use crate::object_log::ObjectLog;
use crate::replay::Replay;
use crate::secret::Visible;
use crate::state;
use crate::stored::{self, StoredObjects};

/// The lines of one batch: about 1 MB of text.
pub(crate) const BATCH_MAX_LINES: usize = 2_000;

/// The trace of this process.
#[derive(Clone, Debug)]
pub struct LiveSource {
    /// The trace.
    pub trace: Trace,
    /// The clock that converts its times.
    pub clock: Clock,
    /// The versions of objects; `None` if the API server runs elsewhere, and there are no diffs.
    pub objects: Option<ObjectLog>,
    /// The objects that exist; `None` if the API server runs elsewhere, and for a reader of lines
    /// only.
    pub stored: Option<Arc<dyn StoredObjects>>,
}

/// Where lines come from.
#[derive(Clone, Debug)]
pub enum Source {
    /// A running process.
    Live(LiveSource),
    /// A recorded file.
    Replay(Arc<Replay>),
}

/// Lines after a sequence number.
#[derive(Debug, Default)]
pub(crate) struct Batch {
    pub(crate) lines: Vec<String>,
    /// The number of records that were overwritten before they were read.
    pub(crate) missed: u64,
    /// The sequence number to continue after.
    pub(crate) last: u64,
    /// Whether there are more lines now.
    pub(crate) has_more: bool,
}

impl Source {
    /// The lines after a sequence number that pass a filter, without waiting. The first batch of a
    /// reader that starts behind the oldest record has missed nothing.
    pub(crate) fn since(&self, sequence: u64, filter: &Filter) -> Batch {
        match self {
            Self::Live(live) => live.since(sequence, filter),
            Self::Replay(replay) => since_in_file(replay, sequence, filter),
        }
    }

    /// Resolves when there are lines after a sequence number; never for a file.
    pub(crate) async fn changed(&self, sequence: u64) {
        match self {
            Self::Live(live) => live.trace.wait_for(sequence).await,
            Self::Replay(_) => std::future::pending().await,
        }
    }

    /// The sequence number to start after in order to read the newest `count` records.
    pub(crate) fn tail(&self, count: u64) -> u64 {
        match self {
            Self::Live(live) => live.trace.newest_sequence().saturating_sub(count),
            // A file is read from its start: its length is the choice of the user.
            Self::Replay(_) => 0,
        }
    }

    /// The state of queues and caches now; `None` for a file, which has its own.
    pub(crate) fn state(&self) -> Option<String> {
        match self {
            Self::Live(live) => {
                let newest = live.trace.newest_sequence();
                Some(state::line(&live.trace, &live.clock, newest))
            }
            Self::Replay(_) => None,
        }
    }

    /// The objects that exist now and pass a filter, as JSON.
    pub(crate) fn existing(&self, filter: &Filter) -> String {
        let stored = self.stored();
        let existing = stored.map(|(stored, log)| stored::existing(stored, log, filter));
        let existing = existing.unwrap_or_default();
        let existing: Vec<_> = existing.iter().map(Existing::from).collect();
        serde_json::to_string(&existing).expect("keys are strings and numbers are finite")
    }

    /// The newest state of an object that exists.
    pub(crate) fn newest(&self, kind: &str, key: &ObjectKey) -> Option<Visible> {
        let (stored, log) = self.stored()?;
        stored::newest(stored, log, kind, key)
    }

    /// The objects that exist, and the log that knows their kinds.
    fn stored(&self) -> Option<(&dyn StoredObjects, &ObjectLog)> {
        match self {
            Self::Live(live) => Some((live.stored.as_deref()?, live.objects.as_ref()?)),
            Self::Replay(_) => None,
        }
    }

    /// The versions of objects.
    pub(crate) fn objects(&self) -> Option<&ObjectLog> {
        match self {
            Self::Live(live) => live.objects.as_ref(),
            Self::Replay(_) => None,
        }
    }
}

impl LiveSource {
    fn since(&self, sequence: u64, filter: &Filter) -> Batch {
        let batch = self.trace.since(sequence);
        let mut taken = Batch {
            missed: if sequence == 0 { 0 } else { batch.missed },
            last: sequence + batch.missed,
            ..Batch::default()
        };
        for record in &batch.records {
            if taken.lines.len() == BATCH_MAX_LINES {
                taken.has_more = true;
                return taken;
            }
            taken.last = record.sequence;
            let is_shown = !TYPES_OF_FILES.contains(&line::type_of(&record.event));
            if is_shown && filter.passes(&record.event) {
                let objects = self.objects.as_ref();
                taken.lines.push(line::line(record, &self.clock, objects));
            }
        }
        taken
    }
}

fn since_in_file(replay: &Replay, sequence: u64, filter: &Filter) -> Batch {
    let start = replay
        .lines
        .partition_point(|line| line.sequence <= sequence);
    let mut taken = Batch {
        last: sequence,
        ..Batch::default()
    };
    for line in &replay.lines[start..] {
        // A state has the sequence number of the record before it, so both are in one batch.
        if taken.lines.len() >= BATCH_MAX_LINES && line.sequence > taken.last {
            taken.has_more = true;
            return taken;
        }
        taken.last = taken.last.max(line.sequence);
        let is_shown = !TYPES_OF_FILES.contains(&line.type_name.as_str());
        if is_shown && filter.passes_line(&line.text) {
            taken.lines.push(line.text.clone());
        }
    }
    taken
}
