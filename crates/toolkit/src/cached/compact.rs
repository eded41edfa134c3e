//! Compact: an object as its JSON, decoded when it is read.
//! In: bytes that were decoded once. Out: the same object again, and what needs no decoding.
//! Guarantees: the bytes never change; concurrent readers share one decoded object.

use std::{
    ops::{DerefMut, Range},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
};

use bellerophon_kinds::{KindCodec, Object};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use super::{labels::Matcher, lru::DecodedLru};
use crate::locks::{Locks, Os};
use crate::scan::Outline;

/// A range of the bytes; empty if the member is missing. Four bytes an end, because every object
/// has three of them.
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
pub(crate) struct Compact<L: Locks = Os> {
    json: Box<[u8]>,
    codec: &'static KindCodec,
    uid: Span,
    resource_version: Span,
    labels: Span,
    /// Set while it is in the ring of the [`DecodedLru`], or about to be.
    decoded: L::Mutex<Option<Object>>,
    /// Read since the [`DecodedLru`] last passed it.
    used: AtomicBool,
}

impl<L: Locks> Compact<L> {
    /// `None` if the bytes do not show what the metadata has, for instance because a key is
    /// escaped: then nothing could be read without decoding.
    pub(super) fn new(
        json: Box<[u8]>,
        codec: &'static KindCodec,
        metadata: &ObjectMeta,
    ) -> Option<Self> {
        let outline = Outline::of(&json).ok()?;
        let has_labels = metadata
            .labels
            .as_ref()
            .is_some_and(|labels| !labels.is_empty());
        // The scan compares keys as bytes, so a member with an escaped key is not found. The
        // decoded metadata shows whether that happened.
        let complete = outline.uid.is_some() == metadata.uid.is_some()
            && outline.resource_version.is_some() == metadata.resource_version.is_some()
            && (outline.labels.is_some() || !has_labels);
        let uid = Span::new(outline.uid)?;
        let resource_version = Span::new(outline.resource_version)?;
        let labels = Span::new(outline.labels)?;
        complete.then(|| Self {
            json,
            codec,
            uid,
            resource_version,
            labels,
            decoded: L::mutex(None),
            used: AtomicBool::new(false),
        })
    }

    /// Keeps the object that the bytes were just decoded to, as if it had been read.
    pub(super) fn keep(self: &Arc<Self>, object: Object, lru: &DecodedLru<L>) {
        *self.lock() = Some(object);
        lru.admit(self);
    }

    /// The object, which stays decoded for the next reader.
    pub(super) fn read(self: &Arc<Self>, lru: &DecodedLru<L>) -> Object {
        // The lock is held while decoding: of several readers one decodes, and the others wait for
        // its result instead of decoding the same bytes.
        let mut decoded = self.lock();
        if let Some(object) = &*decoded {
            self.used.store(true, Ordering::Relaxed);
            return object.clone();
        }
        let object = self.decode();
        *decoded = Some(object.clone());
        // The ring is locked by `admit`. The two locks are never held together, because `admit` of
        // another object may evict this one.
        drop(decoded);
        lru.admit(self);
        object
    }

    /// The object, which stays decoded only if it was.
    pub(super) fn read_uncached(&self) -> Object {
        let decoded = self.lock().clone();
        decoded.unwrap_or_else(|| self.decode())
    }

    /// Drops the decoded object, and returns it so that it is freed outside of every lock.
    pub(super) fn evict(&self) -> Option<Object> {
        self.lock().take()
    }

    /// Whether it was read since the last call.
    pub(super) fn was_used(&self) -> bool {
        self.used.swap(false, Ordering::Relaxed)
    }

    pub(super) fn uid(&self) -> Option<&[u8]> {
        self.uid.of(&self.json)
    }

    pub(super) fn resource_version(&self) -> Option<&[u8]> {
        self.resource_version.of(&self.json)
    }

    pub(super) fn matches(&self, matcher: &Matcher) -> bool {
        matcher.matches_json(self.labels.of(&self.json).unwrap_or(b"{}"))
    }

    fn decode(&self) -> Object {
        self.codec
            .decode(&self.json)
            .expect("these bytes were decoded when they were received")
    }

    fn lock(&self) -> impl DerefMut<Target = Option<Object>> {
        L::lock(&self.decoded)
    }
}
