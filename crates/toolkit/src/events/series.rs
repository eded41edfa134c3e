//! Series: which notes become an Event, which are counted, and which are too many.
//!
//! In: the topic of a note, and the time. Out: create, patch, or nothing.
//! Holds: one Event per topic while it lasts; who says much the same in ever other words is told of as one topic; at most
//! [`TOPICS_MAX`] topics, subjects and buckets are remembered, those not heard of longest go first; each object may begin
//! [`BURST`] topics at once, then one in [`REFILL`].
//!
//! Pure: the time is passed in.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::time::Duration;

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::api::events::v1::Event;
use tokio::time::Instant;

use super::{EventType, Note};

pub(super) const TOPICS_MAX: usize = 4096;
pub(super) const BURST: u32 = 25;
pub(super) const REFILL: Duration = Duration::from_secs(5 * 60);

/// A series ends when nothing was heard for this long.
pub(super) const SILENCE: Duration = Duration::from_secs(6 * 60);

/// A series that goes on is written again this often.
pub(super) const REFRESH: Duration = Duration::from_secs(30 * 60);

/// So many wordings of a subject are told one by one; further ones are combined.
pub(super) const WORDINGS_MAX: usize = 10;

/// The wordings of a subject are forgotten when nothing was heard of it for this long.
const WORDINGS_KEPT: Duration = Duration::from_secs(10 * 60);

/// What makes two notes the same: a subject in the same words.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) struct Topic {
    subject: Subject,
    wording: Wording,
}

impl Topic {
    /// Whether it stands for notes in different words.
    pub(super) fn is_combined(&self) -> bool {
        self.wording == Wording::Any
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Wording {
    /// By the hash of the words.
    One(u64),
    Any,
}

/// What notes are about, in whatever words.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Subject {
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

impl Subject {
    fn of(regarding: &ObjectReference, note: &Note) -> Self {
        let object = regarding.clone();
        let object = Object {
            kind: object.kind,
            namespace: object.namespace,
            name: object.name,
            uid: object.uid,
        };
        Self {
            object,
            type_: note.type_,
            reason: note.reason.clone(),
            action: note.action.clone(),
        }
    }
}

/// In which words a subject was told of.
#[derive(Debug)]
struct Wordings {
    /// At most [`WORDINGS_MAX`].
    known: Vec<u64>,
    heard_at: Instant,
}

/// What to do about a note.
#[derive(Debug)]
pub(super) enum Act {
    /// It is part of a series, which tells it later.
    Count,
    /// The object began too much.
    Refuse,
    Create,
    /// Set this count on this Event.
    Patch(Box<Event>, i32),
}

#[derive(Debug)]
struct Run {
    /// `None` until the server has it; while so, notes are only counted.
    event: Option<Event>,
    count: i32,
    written: i32,
    written_at: Instant,
    heard_at: Instant,
}

#[derive(Debug)]
struct Bucket {
    tokens: f64,
    heard_at: Instant,
}

#[derive(Debug, Default)]
pub(super) struct Series {
    runs: HashMap<Topic, Run>,
    wordings: HashMap<Subject, Wordings>,
    buckets: HashMap<Object, Bucket>,
}

impl Series {
    /// What a note is part of.
    pub(super) fn topic(
        &mut self,
        regarding: &ObjectReference,
        note: &Note,
        now: Instant,
    ) -> Topic {
        let subject = Subject::of(regarding, note);
        let mut hasher = DefaultHasher::new();
        note.note.hash(&mut hasher);
        let words = hasher.finish();
        if !self.wordings.contains_key(&subject) {
            make_room(&mut self.wordings, |wordings| wordings.heard_at);
        }
        let wordings = self.wordings.entry(subject.clone()).or_insert(Wordings {
            known: Vec::new(),
            heard_at: now,
        });
        if now >= wordings.heard_at + WORDINGS_KEPT {
            wordings.known.clear();
        }
        wordings.heard_at = now;
        let is_new = !wordings.known.contains(&words);
        if is_new && wordings.known.len() == WORDINGS_MAX {
            return Topic {
                subject,
                wording: Wording::Any,
            };
        }
        if is_new {
            wordings.known.push(words);
        }
        Topic {
            subject,
            wording: Wording::One(words),
        }
    }

    /// Hears a note.
    pub(super) fn note(&mut self, topic: &Topic, now: Instant) -> Act {
        if let Some(run) = self.runs.get_mut(topic)
            && now < run.heard_at + SILENCE
        {
            run.count = run.count.saturating_add(1);
            run.heard_at = now;
            // The second one makes it a series, at once; later ones are counted and written now and then.
            return match &run.event {
                Some(event) if run.written == 1 => Act::Patch(Box::new(event.clone()), run.count),
                _ => Act::Count,
            };
        }
        if !self.may_begin(&topic.subject.object, now) {
            return Act::Refuse;
        }
        make_room(&mut self.runs, |run| run.heard_at);
        self.runs.insert(
            topic.clone(),
            Run {
                event: None,
                count: 1,
                written: 1,
                written_at: now,
                heard_at: now,
            },
        );
        Act::Create
    }

    /// The server has it.
    pub(super) fn stored(&mut self, topic: &Topic, event: Event) {
        if let Some(run) = self.runs.get_mut(topic) {
            run.written = event.series.as_ref().map_or(1, |series| series.count);
            run.written_at = run.heard_at;
            run.event = Some(event);
        }
    }

    /// The server does not have it.
    pub(super) fn forget(&mut self, topic: &Topic) {
        self.runs.remove(topic);
    }

    /// Series to write: those that ended with more than was written, and those that go on for long. Ended ones are forgotten.
    pub(super) fn due(&mut self, now: Instant) -> Vec<(Topic, Event, i32)> {
        self.collect(
            |run| now >= run.heard_at + SILENCE,
            |run| now >= run.written_at + REFRESH,
        )
    }

    /// All series with more than was written; everything is forgotten.
    pub(super) fn close(&mut self) -> Vec<(Topic, Event, i32)> {
        self.collect(|_| true, |_| true)
    }

    fn collect(
        &mut self,
        ended: impl Fn(&Run) -> bool,
        overdue: impl Fn(&Run) -> bool,
    ) -> Vec<(Topic, Event, i32)> {
        let mut due: Vec<_> = (self.runs.iter())
            .filter(|(_, run)| run.count > run.written && (ended(run) || overdue(run)))
            .filter_map(|(topic, run)| {
                Some((run.heard_at, topic.clone(), run.event.clone()?, run.count))
            })
            .collect();
        // Requests go out in the same order on every run, whatever the hash order.
        due.sort_by(|a, b| {
            a.0.cmp(&b.0)
                .then_with(|| a.2.metadata.name.cmp(&b.2.metadata.name))
        });
        self.runs.retain(|_, run| !ended(run));
        due.into_iter()
            .map(|(_, topic, event, count)| (topic, event, count))
            .collect()
    }

    fn may_begin(&mut self, object: &Object, now: Instant) -> bool {
        if !self.buckets.contains_key(object) {
            make_room(&mut self.buckets, |bucket| bucket.heard_at);
        }
        let bucket = self.buckets.entry(object.clone()).or_insert(Bucket {
            tokens: f64::from(BURST),
            heard_at: now,
        });
        let earned =
            now.saturating_duration_since(bucket.heard_at).as_secs_f64() / REFILL.as_secs_f64();
        bucket.tokens = (bucket.tokens + earned).min(f64::from(BURST));
        bucket.heard_at = now;
        let may = bucket.tokens >= 1.0;
        if may {
            bucket.tokens -= 1.0;
        }
        may
    }
}

/// Forgets the half that was not heard of longest when all places are taken, so that room is rarely made.
fn make_room<K: Eq + Hash, V>(map: &mut HashMap<K, V>, heard_at: impl Fn(&V) -> Instant) {
    if map.len() < TOPICS_MAX {
        return;
    }
    let mut times: Vec<_> = map.values().map(&heard_at).collect();
    let (_, &mut median, _) = times.select_nth_unstable(TOPICS_MAX / 2);
    map.retain(|_, value| heard_at(value) > median);
}
