//! Compact: an object as the JSON it came in, decoded when somebody reads it.
//! In: bytes that were decoded once. Out: the same object again, and what can be told without decoding.
//! Holds: the bytes never change; whoever reads at the same time shares one decoding.

use std::{
    ops::{DerefMut, Range},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use kube::{Resource, ResourceExt};

use super::{labels::Matcher, scan::Outline, warm::Warm};
use crate::locks::{Locks, Os};

/// Reads an object of kind `K`.
pub(crate) type Decode<K> = fn(&[u8]) -> Result<K, serde_json::Error>;

/// The JSON of one object, and how it is read.
#[derive(Clone)]
pub(crate) struct Json<K> {
    pub(crate) bytes: Box<[u8]>,
    pub(crate) decode: Decode<K>,
}

/// A range of the bytes; empty if what it stands for is missing. Four bytes a border, because every object has three.
#[derive(Clone, Copy, Default)]
struct Span {
    start: u32,
    end: u32,
}

impl Span {
    fn new(range: Option<Range<usize>>) -> Option<Self> {
        let range = range.unwrap_or_default();
        Some(Self {
            start: u32::try_from(range.start).ok()?,
            end: u32::try_from(range.end).ok()?,
        })
    }

    fn of(self, bytes: &[u8]) -> Option<&[u8]> {
        (self.end > 0).then(|| &bytes[self.start as usize..self.end as usize])
    }
}

/// One object, as bytes.
pub(crate) struct Compact<K, L: Locks = Os> {
    json: Json<K>,
    uid: Span,
    resource_version: Span,
    labels: Span,
    /// Set while it is in the ring of [`Warm`], or about to be.
    decoded: L::Mutex<Option<Arc<K>>>,
    /// Read since [`Warm`] last looked.
    used: AtomicBool,
}

impl<K: Resource, L: Locks> Compact<K, L> {
    /// `None` if the bytes do not show what the object has, so that nothing could be told without decoding.
    pub(super) fn new(json: Json<K>, object: &K) -> Option<Self> {
        let outline = Outline::of(&json.bytes).ok()?;
        let meta = object.meta();
        let told = outline.uid.is_some() == meta.uid.is_some()
            && outline.resource_version.is_some() == meta.resource_version.is_some()
            && (outline.labels.is_some() || object.labels().is_empty());
        let (uid, resource_version, labels) = (
            Span::new(outline.uid)?,
            Span::new(outline.resource_version)?,
            Span::new(outline.labels)?,
        );
        told.then(|| Self {
            json,
            uid,
            resource_version,
            labels,
            decoded: L::mutex(None),
            used: AtomicBool::new(false),
        })
    }
}

impl<K, L: Locks> Compact<K, L> {
    /// Keeps the object that the bytes were just decoded to, as if somebody had read it.
    pub(super) fn keep(self: &Arc<Self>, object: Arc<K>, warm: &Warm<K, L>) {
        *self.lock() = Some(object);
        warm.admit(self);
    }

    /// The object, which stays decoded for the next reader.
    pub(super) fn read(self: &Arc<Self>, warm: &Warm<K, L>) -> Arc<K> {
        let mut decoded = self.lock();
        if let Some(object) = &*decoded {
            self.used.store(true, Ordering::Relaxed);
            return object.clone();
        }
        let object = Arc::new(self.decode());
        *decoded = Some(object.clone());
        drop(decoded);
        warm.admit(self);
        object
    }

    /// The object, which stays decoded only if it was.
    pub(super) fn glance(&self) -> Arc<K> {
        let decoded = self.lock().clone();
        decoded.unwrap_or_else(|| Arc::new(self.decode()))
    }

    /// Forgets the decoded object, and returns it so that it is dropped outside of every lock.
    pub(super) fn cool(&self) -> Option<Arc<K>> {
        self.lock().take()
    }

    /// Whether it was read since the last call.
    pub(super) fn was_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    pub(super) fn uid(&self) -> Option<&[u8]> {
        self.uid.of(&self.json.bytes)
    }

    pub(super) fn resource_version(&self) -> Option<&[u8]> {
        self.resource_version.of(&self.json.bytes)
    }

    pub(super) fn matches(&self, matcher: &Matcher) -> bool {
        matcher.matches_json(self.labels.of(&self.json.bytes).unwrap_or(b"{}"))
    }

    fn decode(&self) -> K {
        (self.json.decode)(&self.json.bytes).expect("these bytes were decoded when they came")
    }

    fn lock(&self) -> impl DerefMut<Target = Option<Arc<K>>> {
        L::lock(&self.decoded)
    }
}
