//! Event correlator: which events become an Event object, which are counted, which are dropped.
//!
//! In: events and the time. Out: create, patch, count or drop.
//! Guarantees: one Event object per key while its series lasts; beyond [`AGGREGATE_MAX`] different
//! notes, similar events share one key; each object may start [`SPAM_BURST`] series, then one in
//! [`SPAM_REFILL`]; at most [`CACHE_ENTRIES_MAX`] entries of each table are kept, the least
//! recently seen half is dropped when it is full.
//!
//! Combines client-go's EventCorrelator (EventAggregator, EventSourceObjectSpamFilter) with the
//! EventSeries of its `tools/events` package. Pure: the time is passed in.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1 as events_v1;
use tokio::time::Instant;

use super::{Event, EventType};

/// client-go's `maxLruCacheEntries`.
pub(super) const CACHE_ENTRIES_MAX: usize = 4096;

/// client-go's `defaultSpamBurst`.
pub(super) const SPAM_BURST: u32 = 25;

/// One token in five minutes: client-go's `defaultSpamQPS`.
pub(super) const SPAM_REFILL: Duration = Duration::from_secs(5 * 60);

/// A series without an event for this long is finished: client-go's `finishTime`.
pub(super) const FINISH_TIME: Duration = Duration::from_secs(6 * 60);

/// A series that continues is written this often: client-go's `refreshTime`.
pub(super) const REFRESH_TIME: Duration = Duration::from_secs(30 * 60);

/// The number of different notes before similar events are aggregated: client-go's
/// `defaultAggregateMaxEvents`.
pub(super) const AGGREGATE_MAX: usize = 10;

/// The notes of similar events are forgotten after this long without one: client-go's
/// `defaultAggregateIntervalInSeconds`.
const AGGREGATE_INTERVAL: Duration = Duration::from_secs(10 * 60);

/// Events with equal keys belong to one series.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct EventKey {
    aggregate: AggregateKey,
    note: NoteKey,
}

impl EventKey {
    /// Whether it aggregates events with different notes.
    pub(super) fn is_aggregate(&self) -> bool {
        self.note == NoteKey::Any
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum NoteKey {
    /// The hash of one note.
    Hash(u64),
    Any,
}

/// Events with equal aggregate keys are similar: they differ in the note only.
// Mirrors EventAggregatorByReasonFunc.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct AggregateKey {
    object: Object,
    type_: EventType,
    reason: String,
    action: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Object {
    kind: Option<String>,
    namespace: Option<String>,
    name: Option<String>,
    uid: Option<String>,
}

impl AggregateKey {
    fn new(regarding: &ObjectReference, event: &Event) -> Self {
        let object = Object {
            kind: regarding.kind.clone(),
            namespace: regarding.namespace.clone(),
            name: regarding.name.clone(),
            uid: regarding.uid.clone(),
        };
        Self {
            object,
            type_: event.type_,
            reason: event.reason.clone(),
            action: event.action.clone(),
        }
    }
}

/// The notes of similar events.
#[derive(Debug)]
struct AggregateRecord {
    /// Hashes of notes, at most [`AGGREGATE_MAX`].
    notes: Vec<u64>,
    last_seen: Instant,
}

/// The decision about an event.
#[derive(Debug)]
pub(super) enum Decision {
    /// It is counted in its series, which is written later.
    Count,
    /// The object has exceeded its rate limit.
    RateLimited,
    Create,
    /// Set the count of the series of this Event object.
    Patch {
        event: Box<events_v1::Event>,
        count: i32,
    },
}

/// A series to write.
#[derive(Debug)]
pub(super) struct DueSeries {
    pub(super) key: EventKey,
    pub(super) event: events_v1::Event,
    pub(super) count: i32,
}

#[derive(Debug)]
struct Series {
    /// `None` until the Event object is created; until then events are only counted.
    event: Option<events_v1::Event>,
    count: i32,
    /// The count on the server.
    written: i32,
    written_at: Instant,
    last_seen: Instant,
}

/// The token bucket of one object.
#[derive(Debug)]
struct SpamRecord {
    tokens: f64,
    last_seen: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Correlator {
    series: HashMap<EventKey, Series>,
    aggregates: HashMap<AggregateKey, AggregateRecord>,
    spam: HashMap<Object, SpamRecord>,
}

impl Correlator {
    /// The key of an event: its own, or that of the aggregate it belongs to.
    pub(super) fn key(
        &mut self,
        regarding: &ObjectReference,
        event: &Event,
        now: Instant,
    ) -> EventKey {
        // Mirrors EventAggregator.EventAggregate.
        let aggregate = AggregateKey::new(regarding, event);
        let mut hasher = DefaultHasher::new();
        event.note.hash(&mut hasher);
        let note = hasher.finish();
        if !self.aggregates.contains_key(&aggregate) {
            evict(&mut self.aggregates, |record| record.last_seen);
        }
        let new = AggregateRecord {
            notes: Vec::new(),
            last_seen: now,
        };
        let record = self.aggregates.entry(aggregate.clone()).or_insert(new);
        if now >= record.last_seen + AGGREGATE_INTERVAL {
            record.notes.clear();
        }
        record.last_seen = now;
        let note = if record.notes.contains(&note) {
            NoteKey::Hash(note)
        // A note that is known keeps its own series; only further ones are combined.
        } else if record.notes.len() == AGGREGATE_MAX {
            NoteKey::Any
        } else {
            record.notes.push(note);
            NoteKey::Hash(note)
        };
        EventKey { aggregate, note }
    }

    /// Counts an event in its series, or starts one.
    pub(super) fn correlate(&mut self, key: &EventKey, now: Instant) -> Decision {
        if let Some(series) = self.series.get_mut(key)
            && now < series.last_seen + FINISH_TIME
        {
            series.count = series.count.saturating_add(1);
            series.last_seen = now;
            // Mirrors recordToSink: the second event makes it a series and is written immediately,
            // later ones when the series is refreshed or finished.
            return match &series.event {
                Some(event) if series.written == 1 => Decision::Patch {
                    event: Box::new(event.clone()),
                    count: series.count,
                },
                _ => Decision::Count,
            };
        }
        // Only new series take a token: events of a running series cost no request until it is
        // refreshed.
        if !self.take_token(&key.aggregate.object, now) {
            return Decision::RateLimited;
        }
        evict(&mut self.series, |series| series.last_seen);
        self.series.insert(
            key.clone(),
            Series {
                event: None,
                count: 1,
                written: 1,
                written_at: now,
                last_seen: now,
            },
        );
        Decision::Create
    }

    /// The Event object was created or patched.
    pub(super) fn stored(&mut self, key: &EventKey, event: events_v1::Event) {
        if let Some(series) = self.series.get_mut(key) {
            series.written = event.series.as_ref().map_or(1, |series| series.count);
            series.written_at = series.last_seen;
            series.event = Some(event);
        }
    }

    /// The Event object could not be created.
    pub(super) fn forget(&mut self, key: &EventKey) {
        self.series.remove(key);
    }

    /// Series with an unwritten count that have finished or are to be refreshed. Finished series
    /// are removed.
    pub(super) fn due(&mut self, now: Instant) -> Vec<DueSeries> {
        // Mirrors refreshExistingEventSeries and finishSeries.
        self.take_due(
            |series| now >= series.last_seen + FINISH_TIME,
            |series| now >= series.written_at + REFRESH_TIME,
        )
    }

    /// All series with an unwritten count; all series are removed.
    pub(super) fn finish(&mut self) -> Vec<DueSeries> {
        self.take_due(|_| true, |_| true)
    }

    fn take_due(
        &mut self,
        is_finished: impl Fn(&Series) -> bool,
        needs_refresh: impl Fn(&Series) -> bool,
    ) -> Vec<DueSeries> {
        let mut due = Vec::new();
        for (key, series) in &self.series {
            let has_unwritten = series.count > series.written;
            let is_due = is_finished(series) || needs_refresh(series);
            if has_unwritten
                && is_due
                && let Some(event) = &series.event
            {
                let due_series = DueSeries {
                    key: key.clone(),
                    event: event.clone(),
                    count: series.count,
                };
                due.push((series.last_seen, due_series));
            }
        }
        // The order of requests must not depend on the hash map.
        due.sort_by(|(seen, one), (other_seen, other)| {
            let names = one.event.metadata.name.cmp(&other.event.metadata.name);
            seen.cmp(other_seen).then(names)
        });
        self.series.retain(|_, series| !is_finished(series));
        due.into_iter().map(|(_, series)| series).collect()
    }

    fn take_token(&mut self, object: &Object, now: Instant) -> bool {
        // Mirrors EventSourceObjectSpamFilter.Filter.
        if !self.spam.contains_key(object) {
            evict(&mut self.spam, |record| record.last_seen);
        }
        let full = SpamRecord {
            tokens: f64::from(SPAM_BURST),
            last_seen: now,
        };
        let record = self.spam.entry(object.clone()).or_insert(full);
        let elapsed = now.saturating_duration_since(record.last_seen);
        let refilled = elapsed.as_secs_f64() / SPAM_REFILL.as_secs_f64();
        // Refilled lazily from the elapsed time, so idle objects need no timer.
        record.tokens = (record.tokens + refilled).min(f64::from(SPAM_BURST));
        record.last_seen = now;
        let allowed = record.tokens >= 1.0;
        if allowed {
            record.tokens -= 1.0;
        }
        allowed
    }
}

/// Drops the least recently seen half of a full table, so that evictions are rare.
fn evict<K: Eq + Hash, V>(table: &mut HashMap<K, V>, last_seen: impl Fn(&V) -> Instant) {
    if table.len() < CACHE_ENTRIES_MAX {
        return;
    }
    let mut times: Vec<_> = table.values().map(&last_seen).collect();
    let (_, &mut median, _) = times.select_nth_unstable(CACHE_ENTRIES_MAX / 2);
    table.retain(|_, value| last_seen(value) > median);
}
