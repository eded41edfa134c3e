//! Cached objects: an object as a cache keeps it, compact or decoded.
//! In: the JSON of objects. Out: shared objects, decoded once for many readers.
//! Guarantees: a cached object never changes; comparing, selecting and ordering need no decoding.

mod compact; // an object as its JSON
mod labels; // selectors on that JSON
mod lru; // which objects stay decoded

use std::sync::Arc;

use bellerophon_kinds::{KindCodec, Object};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;

use self::compact::Compact;
pub(crate) use self::{labels::Matcher, lru::DecodedLru};

/// One object of a cache. Clones share it.
#[derive(Clone)]
pub(crate) enum CachedObject {
    Decoded(Object, &'static KindCodec),
    Compact(Arc<Compact>),
}

impl std::fmt::Debug for CachedObject {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Decoded(..) => "Decoded",
            Self::Compact(_) => "Compact",
        })
    }
}

impl CachedObject {
    pub(crate) fn decoded(object: Object, codec: &'static KindCodec) -> Self {
        Self::Decoded(object, codec)
    }

    /// Keeps the bytes, and for a while the object they were decoded to. Keeps the object alone if
    /// its bytes do not show what its metadata has.
    pub(crate) fn compact(
        json: Box<[u8]>,
        object: Object,
        codec: &'static KindCodec,
        lru: &DecodedLru,
    ) -> Self {
        match Compact::new(json, codec, codec.metadata(&*object)) {
            None => Self::decoded(object, codec),
            Some(compact) => {
                let compact = Arc::new(compact);
                compact.keep(object, lru);
                Self::Compact(compact)
            }
        }
    }

    /// The object. It stays decoded for the next reader, as long as the LRU has room.
    pub(crate) fn read(&self, lru: &DecodedLru) -> Object {
        match self {
            Self::Decoded(object, _) => object.clone(),
            Self::Compact(compact) => compact.read(lru),
        }
    }

    /// The object, for readers of many objects: keeping them decoded would evict what others read.
    pub(crate) fn read_uncached(&self) -> Object {
        match self {
            Self::Decoded(object, _) => object.clone(),
            Self::Compact(compact) => compact.read_uncached(),
        }
    }

    pub(crate) fn resource_version(&self) -> Option<String> {
        match self {
            Self::Decoded(..) => self.metadata()?.resource_version.clone(),
            Self::Compact(compact) => unquote(compact.resource_version()),
        }
    }

    /// Whether both are one object, and not two that had the same name one after the other.
    pub(crate) fn is_same_object(&self, other: &Self) -> bool {
        match (self, other) {
            // Two compact objects compare the bytes of their members, without an allocation.
            (Self::Compact(one), Self::Compact(other)) => one.uid() == other.uid(),
            (one, other) => one.uid() == other.uid(),
        }
    }

    /// Whether both are the same version of one object.
    pub(crate) fn is_same_version(&self, other: &Self) -> bool {
        let same = match (self, other) {
            (Self::Compact(one), Self::Compact(other)) => {
                one.resource_version().is_some()
                    && one.resource_version() == other.resource_version()
            }
            (one, other) => {
                one.resource_version().is_some()
                    && one.resource_version() == other.resource_version()
            }
        };
        same && self.is_same_object(other)
    }

    pub(crate) fn matches(&self, matcher: &Matcher) -> bool {
        match self {
            Self::Decoded(object, codec) => {
                let labels = codec.metadata(&**object).labels.as_ref();
                matcher.matches(labels.unwrap_or(&std::collections::BTreeMap::new()))
            }
            Self::Compact(compact) => compact.matches(matcher),
        }
    }

    fn uid(&self) -> Option<String> {
        match self {
            Self::Decoded(..) => self.metadata()?.uid.clone(),
            Self::Compact(compact) => unquote(compact.uid()),
        }
    }

    fn metadata(&self) -> Option<&ObjectMeta> {
        match self {
            Self::Decoded(object, codec) => Some(codec.metadata(&**object)),
            Self::Compact(_) => None,
        }
    }
}

/// A JSON string as its value.
fn unquote(quoted: Option<&[u8]>) -> Option<String> {
    quoted.and_then(|quoted| serde_json::from_slice(quoted).ok())
}

#[cfg(test)]
mod tests {
    use bellerophon_kinds::Kind;
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::{Expression, Selector};

    use super::*;
    use crate::locks::Interleaved;

    fn json(name: &str, version: u64) -> String {
        format!(
            r#"{{"metadata":{{"name":"{name}","uid":"{name}-1","resourceVersion":"{version}","labels":{{"app":"{name}"}}}}}}"#
        )
    }

    fn decode(json: &str) -> Object {
        let decoded = ConfigMap::codec().decode(json.as_bytes());
        decoded.expect("a config map")
    }

    fn compact(json: &str, lru: &DecodedLru) -> CachedObject {
        CachedObject::compact(
            json.as_bytes().into(),
            decode(json),
            ConfigMap::codec(),
            lru,
        )
    }

    fn decoded(json: &str) -> CachedObject {
        CachedObject::decoded(decode(json), ConfigMap::codec())
    }

    fn config_map(object: &Object) -> &ConfigMap {
        object.downcast_ref().expect("a config map")
    }

    /// `read_uncached` of an object that is not decoded decodes it at each call.
    fn is_decoded(object: &CachedObject) -> bool {
        Arc::ptr_eq(&object.read_uncached(), &object.read_uncached())
    }

    #[test]
    fn compact_and_decoded_objects_compare_alike() {
        let lru = DecodedLru::new(1);
        let texts = [
            json("a", 1),
            json("a", 2),
            json("b", 1),
            json("a", 1).replace("a-1", "a-2"),
            r#"{"metadata":{"name":"a"}}"#.into(),
        ];
        let matcher = Matcher::new(&Selector::from(Expression::Equal("app".into(), "a".into())));
        for one in &texts {
            let small = compact(one, &lru);
            let large = decoded(one);
            assert!(matches!(small, CachedObject::Compact(_)), "{one}");
            assert_eq!(small.resource_version(), large.resource_version(), "{one}");
            assert_eq!(small.matches(&matcher), large.matches(&matcher), "{one}");
            assert_eq!(
                config_map(&small.read(&lru)),
                config_map(&large.read(&lru)),
                "{one}"
            );
            for other in &texts {
                let reference = decoded(other);
                for (left, right) in [
                    (&small, compact(other, &lru)),
                    (&small, decoded(other)),
                    (&large, compact(other, &lru)),
                ] {
                    assert_eq!(
                        left.is_same_object(&right),
                        large.is_same_object(&reference),
                        "{one} and {other}"
                    );
                    assert_eq!(
                        left.is_same_version(&right),
                        large.is_same_version(&reference),
                        "{one} and {other}"
                    );
                }
            }
        }
    }

    #[test]
    fn object_with_escaped_metadata_keys_is_kept_decoded() {
        for text in [
            r#"{"metad\u0061ta":{"name":"a","uid":"u"}}"#,
            r#"{"metadata":{"name":"a","l\u0061bels":{"app":"a"}}}"#,
        ] {
            let object = compact(text, &DecodedLru::new(9));
            assert!(matches!(object, CachedObject::Decoded(..)), "{text}");
        }
    }

    #[test]
    fn at_most_decoded_max_objects_stay_decoded() {
        for max in [0, 1, 3] {
            let lru = DecodedLru::new(max);
            let objects: Vec<_> = (0..10).map(|n| compact(&json("a", n), &lru)).collect();
            let count = || objects.iter().filter(|object| is_decoded(object)).count();
            assert_eq!(count(), max);
            for object in objects.iter().chain(&objects) {
                object.read(&lru);
            }
            assert_eq!(count(), max);
            for object in &objects {
                object.read_uncached();
            }
            assert_eq!(count(), max, "read_uncached keeps nothing decoded");
        }
    }

    #[test]
    fn object_that_is_read_repeatedly_is_decoded_once() {
        let lru = DecodedLru::new(2);
        let hot = compact(&json("hot", 1), &lru);
        let first = hot.read(&lru);
        for n in 0..20 {
            compact(&json("cold", n), &lru);
            assert!(Arc::ptr_eq(&first, &hot.read(&lru)), "after {n} others");
        }
    }

    /// Two readers and the evictions they cause, in many interleavings.
    #[test]
    fn concurrent_readers_share_decoded_objects_within_the_limit() {
        let run = || {
            let lru = Arc::new(DecodedLru::<Interleaved>::new(1));
            let compact = |n| {
                let json = json("a", n);
                let object = decode(&json);
                let codec = ConfigMap::codec();
                let compact =
                    Compact::new(json.into_bytes().into(), codec, codec.metadata(&*object));
                Arc::new(compact.expect("its metadata is found in its bytes"))
            };
            let objects: Arc<Vec<_>> = Arc::new((0..2).map(compact).collect());
            let readers = (0..2).map(|reader| {
                let lru = lru.clone();
                let objects = objects.clone();
                shuttle::thread::spawn(move || {
                    for n in [reader, 1 - reader, reader] {
                        let object = objects[n].read(&lru);
                        let version = &config_map(&object).metadata.resource_version;
                        assert_eq!(*version, Some(n.to_string()));
                    }
                })
            });
            let readers: Vec<_> = readers.collect();
            for reader in readers {
                reader.join().unwrap();
            }
            let decoded = objects.iter().filter(|object| object.evict().is_some());
            assert_eq!(decoded.count(), 1);
        };
        shuttle::check_random(run, 1_000);
        shuttle::check_pct(run, 1_000, 3);
    }
}
