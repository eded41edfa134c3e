//! One resource in memory: its current objects, and the events since `compacted`.
//! Guarantees: undoing the kept events in reverse gives the objects at any revision since
//! `compacted`.

use std::{
    collections::{BTreeMap, HashMap, VecDeque},
    iter::Peekable,
    sync::Arc,
    time::Duration,
};

use tokio::time::Instant;

use super::{
    Change, Compacted, Event, ObjectKey, Range, Revision, Scope, Stored,
    notifier::{Listener, Notification, Notifiers},
};

/// Events younger than this are kept (Kubernetes guarantees 75 s; etcd compacts every 5 min).
const HISTORY_KEPT: Duration = Duration::from_secs(300);

/// At most this many events are kept, however young: a watcher that is further behind is cut and
/// lists again.
const HISTORY_MAX_EVENTS: usize = 100_000;

/// The maximum number of bytes of replaced objects that are kept. The last event is always kept.
const HISTORY_MAX_BYTES: usize = 128 << 20;

/// The objects of one resource.
#[derive(Debug)]
pub(super) struct ResourceStore {
    /// The newest version of every object.
    objects: BTreeMap<ObjectKey, Arc<Stored>>,
    /// How many of them each namespace holds; no namespace holds none.
    per_namespace: HashMap<Box<str>, usize>,
    /// The newest events with the time of their write, oldest first, revisions growing. All are
    /// newer than `compacted`.
    history: VecDeque<(Instant, Arc<Event>)>,
    /// Bytes of objects that `history` keeps and that are no longer so.
    past_bytes: usize,
    /// How many events were dropped from the front of `history`: the position of its first event in
    /// the stream of all.
    dropped: u64,
    /// Events up to this revision cannot be replayed; the state exactly at it can still be read.
    compacted: Revision,
    /// Bytes of `objects`.
    bytes: usize,
    /// Notifies watchers of new events.
    changed: Notifiers,
}

impl ResourceStore {
    /// An empty collection of a server whose history starts at `compacted`.
    pub(super) fn new(compacted: Revision) -> Self {
        Self {
            objects: BTreeMap::new(),
            per_namespace: HashMap::new(),
            history: VecDeque::new(),
            past_bytes: 0,
            dropped: 0,
            compacted,
            bytes: 0,
            changed: Notifiers::default(),
        }
    }

    /// The newest version of an object.
    pub(super) fn get(&self, key: &ObjectKey) -> Option<&Arc<Stored>> {
        self.objects.get(key)
    }

    /// How many objects and bytes it holds.
    pub(super) fn size(&self) -> (usize, usize) {
        (self.objects.len(), self.bytes)
    }

    /// Applies a write whose precondition holds; returns the notification to send once the lock is
    /// released.
    pub(super) fn apply(&mut self, event: Arc<Event>) -> Notification {
        let now = Instant::now();
        let notification = self.changed.count(&event.object.key, self.end());
        match event.change {
            Change::Deleted => {
                let gone = self.objects.remove(event.object.key.path());
                self.bytes -= gone.map_or(0, |s| s.encoded.bytes().len());
                self.count_out(event.object.key.namespace());
            }
            Change::Added | Change::Modified => {
                self.bytes += event.object.encoded.bytes().len();
                let replaced = self
                    .objects
                    .insert(event.object.key.clone(), event.object.clone());
                if replaced.is_none() {
                    self.count_in(event.object.key.namespace());
                }
                self.bytes -= replaced.map_or(0, |s| s.encoded.bytes().len());
            }
        }
        self.past_bytes += event.past_bytes();
        self.history.push_back((now, event));
        while self.history.len() > HISTORY_MAX_EVENTS
            || (self.past_bytes > HISTORY_MAX_BYTES && self.history.len() > 1)
            || self
                .history
                .front()
                .is_some_and(|(t, _)| now - *t > HISTORY_KEPT)
        {
            self.drop_oldest();
        }
        debug_assert!(self.is_consistent());
        notification
    }

    /// Forgets events up to a revision.
    pub(super) fn compact(&mut self, upto: Revision) {
        while self
            .history
            .front()
            .is_some_and(|(_, e)| e.revision <= upto)
        {
            self.drop_oldest();
        }
        self.compacted = self.compacted.max(upto);
        debug_assert!(self.is_consistent());
    }

    fn drop_oldest(&mut self) {
        if let Some((_, event)) = self.history.pop_front() {
            self.dropped += 1;
            self.past_bytes -= event.past_bytes();
            self.compacted = self.compacted.max(event.revision);
        }
    }

    fn count_in(&mut self, namespace: &str) {
        match self.per_namespace.get_mut(namespace) {
            Some(count) => *count += 1,
            None => {
                self.per_namespace.insert(namespace.into(), 1);
            }
        }
    }

    fn count_out(&mut self, namespace: &str) {
        if let Some(count) = self.per_namespace.get_mut(namespace) {
            *count -= 1;
            if *count == 0 {
                self.per_namespace.remove(namespace);
            }
        }
    }

    /// How many objects a scope holds now.
    fn count(&self, scope: &Scope) -> usize {
        match scope {
            Scope::All => self.objects.len(),
            Scope::Namespace(namespace) => self
                .per_namespace
                .get(namespace.as_str())
                .copied()
                .unwrap_or(0),
            Scope::Object(key) => usize::from(self.objects.contains_key(key)),
            Scope::Nothing => 0,
        }
    }

    /// The objects of a range now, and how many its scope holds.
    pub(super) fn list(&self, range: &Range) -> (Vec<Arc<Stored>>, usize) {
        let objects = self
            .within(range)
            .map(|(_, stored)| stored.clone())
            .take(range.most())
            .collect();
        (objects, self.count(&range.scope))
    }

    /// The objects of a range as they were at a revision, and how many its scope held.
    pub(super) fn list_at(
        &self,
        range: &Range,
        at: Revision,
    ) -> Result<(Vec<Arc<Stored>>, usize), Compacted> {
        self.replayable(at)?;
        // The versions that the later writes replaced, by key, each from the first of them.
        let mut then: BTreeMap<&str, Option<&Arc<Stored>>> = BTreeMap::new();
        for (_, event) in self
            .history
            .iter()
            .rev()
            .take_while(|(_, e)| e.revision > at)
        {
            if range.scope.contains(&event.object.key) {
                then.insert(event.object.key.path(), event.previous.as_ref());
            }
        }
        let there_now = then
            .keys()
            .filter(|key| self.objects.contains_key(**key))
            .count();
        let there_then = then.values().flatten().count();
        let total = self.count(&range.scope) - there_now + there_then;
        let behind = |key: &str| range.after.as_ref().is_none_or(|after| key > after.path());
        let replaced = then
            .iter()
            .filter(|(key, _)| behind(key))
            .map(|(key, state)| (*key, *state));
        let unchanged = self
            .within(range)
            .filter(|(key, _)| !then.contains_key(*key))
            .map(|(key, stored)| (key, Some(stored)));
        let objects = Merged {
            left: unchanged.peekable(),
            right: replaced.peekable(),
        };
        Ok((
            objects
                .filter_map(|(_, state)| state.cloned())
                .take(range.most())
                .collect(),
            total,
        ))
    }

    /// The keys and objects of a range now, its limit aside.
    fn within(&self, range: &Range) -> impl Iterator<Item = (&str, &Arc<Stored>)> {
        let bounds = range.scope.bounds(range.after.as_ref());
        let found = (!Scope::is_empty_range(&bounds))
            .then(|| self.objects.range::<str, _>(as_str(&bounds)));
        found
            .into_iter()
            .flatten()
            .map(|(key, stored)| (key.path(), stored))
    }

    /// Whether everything after a revision is still known.
    pub(super) fn replayable(&self, since: Revision) -> Result<(), Compacted> {
        if since < self.compacted {
            Err(Compacted {
                requested: since,
                oldest: self.compacted,
            })
        } else {
            Ok(())
        }
    }

    /// The position in the stream of all events of the next one that is written.
    pub(super) fn end(&self) -> u64 {
        self.dropped + self.history.len() as u64
    }

    /// Up to `max` events of a scope from a position on, and the position behind them; `None` when
    /// not all `wanted` events of that scope from there on are kept.
    pub(super) fn events_from(
        &self,
        position: u64,
        scope: &Scope,
        max: usize,
        wanted: u64,
    ) -> Option<(Vec<Arc<Event>>, u64)> {
        let concerned = || {
            self.places_from(position)
                .filter(|(_, event)| scope.contains(&event.object.key))
        };
        if position < self.dropped && (concerned().count() as u64) < wanted {
            return None;
        }
        let most = max.min(usize::try_from(wanted).unwrap_or(usize::MAX));
        let mut next = position;
        let events: Vec<_> = concerned()
            .take(most)
            .inspect(|(place, _)| next = place + 1)
            .map(|(_, event)| event.clone())
            .collect();
        Some((events, next))
    }

    /// The kept events from a position on, each with its own.
    fn places_from(&self, position: u64) -> impl Iterator<Item = (u64, &Arc<Event>)> {
        let first = position.clamp(self.dropped, self.end());
        let kept = self.history.range((first - self.dropped) as usize..);
        (first..).zip(kept.map(|(_, event)| event))
    }

    /// A listener of a scope that has received everything up to a revision, and the position of its
    /// next event.
    pub(super) fn listen(&mut self, scope: &Scope, since: Revision) -> (u64, Listener) {
        let next = self.dropped + self.history.partition_point(|(_, e)| e.revision <= since) as u64;
        let mut pending = 0;
        let mut last = 0;
        for (place, _) in self
            .places_from(next)
            .filter(|(_, event)| scope.contains(&event.object.key))
        {
            (pending, last) = (pending + 1, place);
        }
        (next, self.changed.listen(scope, pending, last))
    }

    /// Removes one listener of a scope.
    pub(super) fn unlisten(&mut self, scope: &Scope) {
        self.changed.clear(scope);
    }

    /// Whether the history is newer than `compacted`, and its last event is the newest version of
    /// its object.
    fn is_consistent(&self) -> bool {
        self.history
            .front()
            .is_none_or(|(_, e)| e.revision > self.compacted)
            && self.history.back().is_none_or(|(_, e)| match e.change {
                Change::Deleted => !self.objects.contains_key(e.object.key.path()),
                _ => self
                    .objects
                    .get(e.object.key.path())
                    .is_some_and(|s| s.revision == e.revision),
            })
    }
}

/// Two sorted runs of distinct keys as one.
struct Merged<L: Iterator, R: Iterator> {
    left: Peekable<L>,
    right: Peekable<R>,
}

impl<'a, T, L, R> Iterator for Merged<L, R>
where
    L: Iterator<Item = (&'a str, T)>,
    R: Iterator<Item = (&'a str, T)>,
{
    type Item = (&'a str, T);

    fn next(&mut self) -> Option<Self::Item> {
        match (self.left.peek(), self.right.peek()) {
            (Some((left, _)), Some((right, _))) if right < left => self.right.next(),
            (None, _) => self.right.next(),
            _ => self.left.next(),
        }
    }
}

fn as_str(
    bounds: &(std::ops::Bound<String>, std::ops::Bound<String>),
) -> (std::ops::Bound<&str>, std::ops::Bound<&str>) {
    (
        bounds.0.as_ref().map(String::as_str),
        bounds.1.as_ref().map(String::as_str),
    )
}
