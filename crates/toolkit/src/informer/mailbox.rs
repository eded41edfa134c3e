//! Mailbox: what one handler has still to be told.
//! In: transitions of the index. Out: one notice after another, for one handler.
//! Holds: notices of one object keep their order and tell the truth about old and new; objects keep the order of their
//! first untold change.
//!
//! Full: never. Untold changes of one object merge into one, from what the handler saw last to what is there now, and an
//! object that came and went untold is not mentioned. So a mailbox has at most one entry for each object that the handler
//! knows or that exists, however slow the handler is.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    sync::{Notify, watch},
    time::{Duration, Instant},
};

use super::index::Transition;
use crate::{cached::Cached, key::ObjectKey};

/// Mailboxes up to this length are checked notice by notice in debug builds.
const FULLY_CHECKED_MAX: usize = 64;

/// The way from what the handler saw last to what is there now.
#[derive(Debug)]
pub(crate) struct Notice<K> {
    pub(crate) key: Arc<ObjectKey>,
    /// What the handler was told last, if it knows the object.
    before: Option<Cached<K>>,
    /// The end of `before`, if it ended. Never set without `before`.
    gone: Option<Cached<K>>,
    /// What is there now. After an end it is another object of the same name.
    after: Option<Cached<K>>,
    /// The object was there when the handler began to listen.
    pub(crate) in_initial_list: bool,
    /// Its place among the others.
    turn: u64,
    /// When the oldest change in it came.
    since: Instant,
}

/// What to tell of an object, in this order.
#[derive(Debug)]
pub(crate) struct Calls<K> {
    pub(crate) delete: Option<Cached<K>>,
    /// From the old to the new form.
    pub(crate) update: Option<(Cached<K>, Cached<K>)>,
    pub(crate) add: Option<Cached<K>>,
}

impl<K> Notice<K> {
    pub(crate) fn calls(self) -> Calls<K> {
        match (self.before, self.gone, self.after) {
            (Some(old), None, Some(new)) => Calls {
                delete: None,
                update: Some((old, new)),
                add: None,
            },
            (_, delete, add) => Calls {
                delete,
                update: None,
                add,
            },
        }
    }
}

#[derive(Debug)]
struct Inner<K> {
    /// One for each key with something to tell.
    notices: BTreeMap<Arc<ObjectKey>, Notice<K>>,
    /// The keys of `notices`, by their turn.
    turns: BTreeMap<u64, Arc<ObjectKey>>,
    next_turn: u64,
    /// Notices of the initial list that are queued or being told.
    initial_left: usize,
    /// Everything of the initial list is or was queued.
    initial_complete: bool,
}

#[derive(Debug)]
pub(crate) struct Mailbox<K> {
    inner: Mutex<Inner<K>>,
    arrived: Notify,
    /// The number of notices, for those who watch and do not know the kind.
    pub(crate) depth: Arc<AtomicUsize>,
    /// Whether the handler was told the whole initial list.
    pub(crate) synced: watch::Sender<bool>,
}

impl<K> Mailbox<K> {
    pub(crate) fn new() -> Self {
        let (notices, turns) = (BTreeMap::new(), BTreeMap::new());
        let inner = Inner {
            notices,
            turns,
            next_turn: 0,
            initial_left: 0,
            initial_complete: false,
        };
        Self {
            inner: Mutex::new(inner),
            arrived: Notify::new(),
            depth: Arc::default(),
            synced: watch::Sender::new(false),
        }
    }

    /// Queues what changed, or merges it with what is queued.
    pub(crate) fn note(&self, transitions: &[Transition<K>], in_initial_list: bool) {
        if transitions.is_empty() {
            return;
        }
        let mut inner = self.lock();
        transitions
            .iter()
            .for_each(|transition| inner.merge(transition, in_initial_list));
        self.published(inner);
        self.arrived.notify_one();
    }

    /// Queues a reminder of each object that has nothing else to tell.
    pub(crate) fn remind<'a>(
        &self,
        objects: impl Iterator<Item = (&'a Arc<ObjectKey>, &'a Cached<K>)>,
    ) where
        K: 'a,
    {
        let mut inner = self.lock();
        for (key, object) in objects {
            if !inner.notices.contains_key(&**key) {
                let (before, after) = (Some(object.clone()), Some(object.clone()));
                let since = Instant::now();
                inner.insert(Notice {
                    key: key.clone(),
                    before,
                    gone: None,
                    after,
                    in_initial_list: false,
                    turn: 0,
                    since,
                });
            }
        }
        self.published(inner);
        self.arrived.notify_one();
    }

    /// Says that the initial list was queued to its end.
    pub(crate) fn complete_initial_list(&self) {
        let mut inner = self.lock();
        inner.initial_complete = true;
        self.published(inner);
    }

    /// Takes the oldest notice. [`Mailbox::told`] must follow once the handler returned.
    pub(crate) fn take(&self) -> Option<Notice<K>> {
        let mut inner = self.lock();
        let (_, key) = inner.turns.pop_first()?;
        let notice = inner.notices.remove(&*key).expect("each turn has a notice");
        self.published(inner);
        Some(notice)
    }

    /// How long the oldest notice has waited.
    pub(crate) fn lag(&self) -> Duration {
        let inner = self.lock();
        let oldest = inner
            .turns
            .first_key_value()
            .and_then(|(_, key)| inner.notices.get(&**key));
        oldest.map_or(Duration::ZERO, |notice| notice.since.elapsed())
    }

    /// The handler returned from a notice.
    pub(crate) fn told(&self, in_initial_list: bool) {
        if in_initial_list {
            let mut inner = self.lock();
            inner.initial_left -= 1;
            self.published(inner);
        }
    }

    /// Returns when something was queued since the last call.
    pub(crate) async fn arrival(&self) {
        self.arrived.notified().await;
    }

    fn published(&self, inner: MutexGuard<'_, Inner<K>>) {
        debug_assert!(inner.is_consistent());
        self.depth.store(inner.notices.len(), Ordering::Relaxed);
        let synced = inner.initial_complete && inner.initial_left == 0;
        drop(inner);
        if synced {
            self.synced
                .send_if_modified(|was| !std::mem::replace(was, true));
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner<K>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<K> Inner<K> {
    fn merge(&mut self, transition: &Transition<K>, in_initial_list: bool) {
        let (Transition::Applied { key, .. } | Transition::Deleted { key, .. }) = transition;
        let Some(notice) = self.notices.get_mut(&**key) else {
            return self.insert(Notice::first(transition, in_initial_list));
        };
        match transition {
            Transition::Applied { after, .. } => notice.after = Some(after.clone()),
            Transition::Deleted { last, .. } => {
                notice.after = None;
                if notice.before.is_some() {
                    notice.gone.get_or_insert_with(|| last.clone());
                } else {
                    self.forget(key);
                }
            }
        }
    }

    fn insert(&mut self, mut notice: Notice<K>) {
        notice.turn = self.next_turn;
        self.next_turn += 1;
        self.initial_left += usize::from(notice.in_initial_list);
        self.turns.insert(notice.turn, notice.key.clone());
        self.notices.insert(notice.key.clone(), notice);
    }

    fn forget(&mut self, key: &ObjectKey) {
        if let Some(notice) = self.notices.remove(key) {
            self.turns.remove(&notice.turn);
            self.initial_left -= usize::from(notice.in_initial_list);
        }
    }

    fn is_consistent(&self) -> bool {
        // Looking at every notice at every step would make debug builds quadratic.
        self.turns.len() == self.notices.len()
            && (self.notices.len() > FULLY_CHECKED_MAX
                || self
                    .notices
                    .values()
                    .all(|notice| notice.gone.is_none() || notice.before.is_some())
                    && self
                        .notices
                        .values()
                        .filter(|notice| notice.in_initial_list)
                        .count()
                        <= self.initial_left)
    }
}

impl<K> Notice<K> {
    fn first(transition: &Transition<K>, in_initial_list: bool) -> Self {
        let (key, before, gone, after) = match transition {
            Transition::Applied { key, before, after } => (key, before.as_ref(), None, Some(after)),
            Transition::Deleted { key, before, last } => (key, Some(before), Some(last), None),
        };
        Self {
            key: key.clone(),
            before: before.cloned(),
            gone: gone.cloned(),
            after: after.cloned(),
            in_initial_list: in_initial_list && before.is_none(),
            turn: 0,
            since: Instant::now(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Objects = BTreeMap<Arc<ObjectKey>, Cached<u64>>;

    /// `a1` applies version 1 to a, `-a` deletes it, `.` lets the handler be told one notice.
    fn run(script: &str) -> Vec<String> {
        let (mailbox, mut objects, mut told) = (Mailbox::new(), Objects::new(), Vec::new());
        for word in script.split_whitespace() {
            match word.strip_prefix('-') {
                _ if word == "." => told.extend(mailbox.take().map(print)),
                Some(name) => {
                    let key = Arc::new(ObjectKey::cluster(name));
                    let before = objects.remove(&key).expect("it was applied");
                    mailbox.note(
                        &[Transition::Deleted {
                            key,
                            last: before.clone(),
                            before,
                        }],
                        false,
                    );
                }
                None => {
                    let (key, after) = (
                        Arc::new(ObjectKey::cluster(&word[..1])),
                        Cached::decoded(word[1..].parse().expect("a number")),
                    );
                    let before = objects.insert(key.clone(), after.clone());
                    mailbox.note(&[Transition::Applied { key, before, after }], false);
                }
            }
        }
        told.extend(std::iter::from_fn(|| mailbox.take()).map(print));
        told
    }

    fn print(notice: Notice<u64>) -> String {
        let key = notice.key.name().to_owned();
        let (calls, read) = (notice.calls(), |object: Cached<u64>| object.glance());
        let delete = calls.delete.map(|last| format!("-{key}{}", read(last)));
        let update = calls
            .update
            .map(|(old, new)| format!("{key}{}>{}", read(old), read(new)));
        let add = calls.add.map(|object| format!("+{key}{}", read(object)));
        [delete, update, add]
            .into_iter()
            .flatten()
            .collect::<Vec<_>>()
            .join(" ")
    }

    #[test]
    fn untold_changes_of_one_object_merge_truthfully() {
        let cases: &[(&str, &[&str])] = &[
            ("a1 b1 a2", &["+a2", "+b1"]),
            ("a1 . a2 a3", &["+a1", "a1>3"]),
            ("a1 -a", &[]),
            ("a1 . -a", &["+a1", "-a1"]),
            ("a1 . a2 -a", &["+a1", "-a2"]),
            ("a1 . a2 -a a3 a4", &["+a1", "-a2 +a4"]),
            ("a1 . -a a2 -a", &["+a1", "-a1"]),
            ("a1 . -a a2 . a3", &["+a1", "-a1 +a2", "a2>3"]),
            ("a1 . b1 a2 b2 c1 b3", &["+a1", "+b3", "a1>2", "+c1"]),
        ];
        for (script, told) in cases {
            assert_eq!(run(script), *told, "after {script}");
        }
    }

    #[test]
    fn stuck_handler_costs_one_entry_an_object() {
        let mailbox = Mailbox::new();
        let key = Arc::new(ObjectKey::cluster("a"));
        for n in 0..10_000_u64 {
            let (before, after) = (n.checked_sub(1).map(Cached::decoded), Cached::decoded(n));
            mailbox.note(
                &[Transition::Applied {
                    key: key.clone(),
                    before,
                    after,
                }],
                false,
            );
            let other = Arc::new(ObjectKey::cluster(format!("b{n}")));
            let object = Cached::decoded(n);
            mailbox.note(
                &[Transition::Applied {
                    key: other.clone(),
                    before: None,
                    after: object.clone(),
                }],
                false,
            );
            mailbox.note(
                &[Transition::Deleted {
                    key: other,
                    before: object.clone(),
                    last: object,
                }],
                false,
            );
        }
        let inner = mailbox.lock();
        assert_eq!((inner.notices.len(), inner.turns.len()), (1, 1));
    }

    #[test]
    fn handler_is_synced_when_the_initial_list_was_told() {
        let mailbox = Mailbox::new();
        let key = Arc::new(ObjectKey::cluster("a"));
        mailbox.note(
            &[Transition::Applied {
                key,
                before: None,
                after: Cached::decoded(1_u64),
            }],
            true,
        );
        mailbox.complete_initial_list();
        assert!(!*mailbox.synced.borrow());
        let notice = mailbox.take().expect("a notice");
        assert!(!*mailbox.synced.borrow(), "taken is not told");
        mailbox.told(notice.in_initial_list);
        assert!(*mailbox.synced.borrow());
    }
}
