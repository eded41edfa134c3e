//! Watches of a collection.
//! In: a resource version and a selector. Out: typed events, not yet encoded.
//! Guarantees: every watcher of a resource sees the same order; an object that no longer matches
//! the selector is sent as deleted, with its old body and the new revision; a watcher that falls
//! behind the kept history is ended, never waited for.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use bellerophon_apimachinery::error::ApiError;
use bellerophon_storage::{
    Change, Event, Lagged, Range, Revision, Scope, Selector, StoreWatch, Stored,
};
use tokio::time::Instant;

use super::{Call, Content, Reply, get::wait_for, list::validate_selectable};
use crate::{
    api::Api,
    http::query::{ListOptions, parse_revision},
};

/// A watch without `timeoutSeconds` ends after this long to twice as long, at random, so that
/// clients do not reconnect together.
const WATCH_SECONDS_MIN: u64 = 1800;

/// No watch lasts longer, whatever timeout its client requests: a year, so that the deadline is
/// within the range of the clock.
const WATCH_SECONDS_MAX: u64 = 365 * 24 * 3600;

/// The interval of bookmarks.
const BOOKMARK_EVERY: Duration = Duration::from_secs(60);

/// How long before its end a watch sends a last bookmark.
const BOOKMARK_BEFORE_END: Duration = Duration::from_secs(2);

/// From this many watchers of a resource on, each is notified at most once per round, so that
/// changes in quick succession share a write to the socket. The first change after a quiet time is
/// delivered immediately.
const CROWD_MIN: usize = 64;

/// A round takes this long for each watcher: notifying one costs about 10 µs, and writers need time
/// between rounds.
const ROUND_PER_WATCHER: Duration = Duration::from_micros(25);

/// A watcher is handed at most this many things at a time, so that a long initial list does not
/// become one huge piece.
const HANDED_OUT_MAX: usize = 500;

/// One event of a watch.
#[derive(Debug)]
pub(crate) enum WatchItem {
    /// A change of an object.
    Changed(Change, Arc<Stored>),
    /// The event as all watchers of the whole resource see it; its bytes are shared.
    Shared(Arc<Event>),
    /// Nothing else happened up to this revision; `true` marks the end of the initial events.
    Bookmark(Revision, bool),
    /// The watch ends with an error.
    Error(ApiError),
}

impl WatchItem {
    /// About how many bytes it takes on the wire.
    pub(crate) fn size_hint(&self) -> usize {
        const FRAME: usize = 64;
        match self {
            Self::Shared(event) => event.object.encoded.bytes().len() + FRAME,
            Self::Changed(_, object) => object.encoded.bytes().len() + FRAME,
            Self::Bookmark(..) | Self::Error(_) => 256,
        }
    }
}

/// A running watch.
#[derive(Debug)]
pub(crate) struct Watch {
    source: Option<StoreWatch>,
    selector: Selector,
    /// Known already and not yet handed out, in order.
    queue: VecDeque<WatchItem>,
    bookmarks: bool,
    /// The revision up to which everything was handed out; a watch may begin in the future.
    seen: Revision,
    /// The newest revision of the store when it was last read. A bookmark never names a later one.
    reached: Revision,
    ends: Instant,
    next_bookmark: Instant,
    /// When something was last handed out.
    delivered: Instant,
}

/// Opens a watch.
///
/// # Errors
/// Invalid options. A revision that is compacted, or that is not reached in time for initial
/// events, becomes an event of the stream instead.
pub(crate) async fn watch(
    api: &Api,
    call: &Call,
    options: &ListOptions,
) -> Result<Reply, ApiError> {
    validate_selectable(call, options)?;
    let requested = parse_revision(&options.resource_version).map_err(ApiError::Unnamed)?;
    let resource = &call.target.resource;
    let mut scope = options
        .selector
        .fields
        .narrow(call.target.scope(), resource.namespaced);
    if !call.target.name.is_empty() {
        scope = Scope::Object(call.target.key());
    }
    let initial = options
        .send_initial_events
        .unwrap_or(matches!(requested, None | Some(0)));
    let mut queue = VecDeque::new();
    // Mirrors Cacher.Watch: initial events are not older than requested, while a plain watch from a
    // future revision is silent until then.
    let unreached = match requested {
        Some(revision) if options.send_initial_events == Some(true) => {
            wait_for(api, revision).await.err()
        }
        _ => None,
    };
    let (source, seen) = if let Some(error) = unreached {
        queue.push_back(WatchItem::Error(error));
        (None, api.store.revision())
    } else if initial {
        let listing = api
            .store
            .list(&resource.collection, &Range::all_of(scope.clone()), None)
            .expect("the newest state is always kept");
        let selected = listing
            .objects
            .into_iter()
            .filter(|o| options.selector.matches(o));
        queue.extend(selected.map(|o| WatchItem::Changed(Change::Added, o)));
        if options.bookmarks && options.send_initial_events == Some(true) {
            queue.push_back(WatchItem::Bookmark(listing.revision, true));
        }
        (
            Some(
                api.store
                    .watch(&resource.collection, &scope, listing.revision),
            ),
            listing.revision,
        )
    } else {
        let since = requested
            .filter(|r| *r > 0)
            .unwrap_or_else(|| api.store.revision());
        (
            Some(api.store.watch(&resource.collection, &scope, since)),
            since,
        )
    };
    let source = match source {
        None => None,
        Some(Ok(source)) => Some(source),
        Some(Err(gone)) => {
            let message = format!(
                "too old resource version: {} ({})",
                gone.requested, gone.oldest
            );
            queue.push_back(WatchItem::Error(ApiError::Expired {
                message,
                next: None,
            }));
            None
        }
    };
    let seconds = match options.timeout_seconds {
        Some(seconds) if seconds > 0 => seconds.unsigned_abs().min(WATCH_SECONDS_MAX),
        _ => WATCH_SECONDS_MIN + api.entropy.below(WATCH_SECONDS_MIN),
    };
    let now = Instant::now();
    let ends = now + Duration::from_secs(seconds);
    Ok(Reply::ok(Content::Watch(Box::new(Watch {
        source,
        selector: options.selector.clone(),
        queue,
        bookmarks: options.bookmarks,
        seen,
        reached: 0,
        ends,
        next_bookmark: bookmark_after(now, ends),
        delivered: now,
    }))))
}

impl Watch {
    /// When the watch ends at the latest.
    pub(crate) fn ends(&self) -> Instant {
        self.ends
    }

    /// The next events, at least one; `None` when the watch is over.
    ///
    /// Every round is charged to the task's budget, so that a watch whose selector lets nothing
    /// through gives way to other tasks and ends in time, whatever happens meanwhile.
    pub(crate) async fn next(&mut self) -> Option<Vec<WatchItem>> {
        loop {
            tokio::task::coop::consume_budget().await;
            if !self.queue.is_empty() {
                self.delivered = Instant::now();
                let rest = self.queue.split_off(self.queue.len().min(HANDED_OUT_MAX));
                return Some(std::mem::replace(&mut self.queue, rest).into());
            }
            match self.read()? {
                Err(Lagged) => {
                    tracing::debug!(
                        seen = self.seen,
                        "watch is behind the kept history, closing"
                    );
                    return None;
                }
                Ok(true) if Instant::now() < self.ends || !self.queue.is_empty() => continue,
                Ok(true) => return None,
                Ok(false) => {}
            }
            let deadline = if self.bookmarks {
                self.next_bookmark.min(self.ends)
            } else {
                self.ends
            };
            let source = self.source.as_mut()?;
            tokio::select! {
                biased;
                () = source.changed() => {
                    let readers = source.readers();
                    if readers >= CROWD_MIN {
                        tokio::time::sleep_until(self.delivered + ROUND_PER_WATCHER * u32::try_from(readers).unwrap_or(u32::MAX)).await;
                    }
                }
                () = tokio::time::sleep_until(deadline) => {
                    let now = Instant::now();
                    if now >= self.ends {
                        return None;
                    }
                    // Writes of other kinds notify no listener here, yet they move the revision of
                    // a bookmark.
                    if self.read()?.is_err() {
                        return None;
                    }
                    if self.reached >= self.seen {
                        self.queue.push_back(WatchItem::Bookmark(self.seen, false));
                    }
                    self.next_bookmark = bookmark_after(now, self.ends);
                }
            }
        }
    }

    /// Takes over what the source has by now; whether there was anything. `None` without a source.
    fn read(&mut self) -> Option<Result<bool, Lagged>> {
        let (events, upto) = match self.source.as_mut()?.ready() {
            Ok(ready) => ready,
            Err(lagged) => return Some(Err(lagged)),
        };
        let new = events.iter().filter(|e| e.revision > self.seen);
        self.queue
            .extend(new.filter_map(|e| seen_through(e, &self.selector)));
        self.seen = self.seen.max(upto);
        self.reached = upto;
        Some(Ok(!events.is_empty()))
    }
}

/// When the next bookmark is due: in a minute, or shortly before the end if that is sooner.
fn bookmark_after(now: Instant, ends: Instant) -> Instant {
    let regular = now + BOOKMARK_EVERY;
    match ends.checked_sub(BOOKMARK_BEFORE_END) {
        Some(last) if last > now => last.min(regular),
        _ => regular,
    }
}

/// An event as a watcher with a selector receives it; `None` if it does not.
fn seen_through(event: &Arc<Event>, selector: &Selector) -> Option<WatchItem> {
    if selector.is_everything() {
        return Some(WatchItem::Shared(event.clone()));
    }
    let is = event.change != Change::Deleted && selector.matches(&event.object);
    let was = event.previous.as_ref().is_some_and(|p| selector.matches(p));
    match (was, is) {
        (false, false) => None,
        (true, true) => Some(WatchItem::Shared(event.clone())),
        (false, true) => Some(WatchItem::Changed(Change::Added, event.object.clone())),
        (true, false) if event.change == Change::Deleted => Some(WatchItem::Shared(event.clone())),
        (true, false) => {
            let previous = event.previous.as_ref()?;
            Some(WatchItem::Changed(
                Change::Deleted,
                Arc::new(previous.at_revision(event.revision)),
            ))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use bellerophon_apimachinery::label_selector::LabelSelector;
    use bellerophon_codec::object::Object;
    use bellerophon_storage::{
        Expect, FieldSelector, MemoryStore, ObjectKey, Put, SelectableAttributes, Store, Write,
    };
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    const COLLECTION: &str = "/configmaps";
    const SELECTORS: [&str; 6] = [
        "tier=1",
        "tier!=1",
        "tier in (1,2)",
        "tier",
        "!tier",
        "tier notin (0)",
    ];

    /// Gives one of three objects the tier of this number, none for 3; 4 deletes it.
    fn write(store: &MemoryStore, object: usize, tier: usize) {
        let key = ObjectKey::new("n", &format!("o{object}"));
        let held = store.get(COLLECTION, &key);
        if held.is_none() && tier == 4 {
            return;
        }
        let expect = held
            .as_ref()
            .map_or(Expect::Absent, |h| Expect::Version(h.revision));
        let labels: BTreeMap<String, String> = (tier < 3)
            .then(|| ("tier".to_owned(), tier.to_string()))
            .into_iter()
            .collect();
        let value = json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": key.name(), "labels": labels}});
        let stored: Object = serde_json::from_value(value).expect("an object");
        let put = Put {
            draft: stored.draft(),
            attributes: SelectableAttributes {
                labels,
                ..SelectableAttributes::default()
            },
            schema: 0,
        };
        let committing = store.commit(Write {
            collection: COLLECTION.into(),
            key,
            expect,
            put: (tier < 4).then_some(put),
        });
        futures_util::FutureExt::now_or_never(committing)
            .expect("memory commits immediately")
            .expect("the expectation is right");
    }

    fn selected(
        store: &MemoryStore,
        selector: &Selector,
        at: Revision,
    ) -> BTreeMap<ObjectKey, Revision> {
        let listing = store
            .list(COLLECTION, &Range::default(), Some(at))
            .expect("nothing was forgotten");
        listing
            .objects
            .iter()
            .filter(|o| selector.matches(o))
            .map(|o| (o.key.clone(), o.revision))
            .collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2_000))]

        /// A client that lists at some revision and watches from there has what a list of the same
        /// selection shows now.
        #[test]
        fn selection_followed_by_a_watch_stays_true(
            before in prop::collection::vec((0..3usize, 0..5usize), 0..12),
            after in prop::collection::vec((0..3usize, 0..5usize), 0..24),
            words in 0..SELECTORS.len(),
        ) {
            let selector =
                Selector { labels: LabelSelector::parse(SELECTORS[words]).expect("a good selector"), fields: FieldSelector::default() };
            let store = MemoryStore::new();
            before.iter().for_each(|(object, tier)| write(&store, *object, *tier));
            let since = store.revision();
            let mut held = selected(&store, &selector, since);
            let mut watch = store.watch(&COLLECTION.into(), &Scope::All, since).expect("nothing was forgotten");
            after.iter().for_each(|(object, tier)| write(&store, *object, *tier));
            let (events, _) = watch.ready().expect("the watch keeps up");
            for event in &events {
                let (change, object) = match seen_through(event, &selector) {
                    None => continue,
                    Some(WatchItem::Shared(event)) => (event.change, event.object.clone()),
                    Some(WatchItem::Changed(change, object)) => (change, object),
                    Some(other) => panic!("no such thing happened: {other:?}"),
                };
                prop_assert_eq!(object.revision, event.revision);
                prop_assert!(selector.matches(&object), "a delivered object was selected before or is now");
                let known = match change {
                    Change::Deleted => held.remove(&object.key),
                    Change::Added | Change::Modified => held.insert(object.key.clone(), object.revision),
                };
                prop_assert_eq!(known.is_some(), change != Change::Added, "an object is added once, and only then changed or deleted");
            }
            prop_assert_eq!(held, selected(&store, &selector, store.revision()));
        }
    }
}
