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
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::{Expression, Selector};

    use super::*;
    use bellerophon_kinds::{Kind, downcast};

    use crate::locks::Interleaved;

    fn json(name: &str, version: u64) -> String {
        format!(
            r#"{{"metadata":{{"name":"{name}","uid":"{name}-1","resourceVersion":"{version}","labels":{{"app":"{name}"}}}}}}"#
        )
    }

    fn compact(json: &str, lru: &DecodedLru) -> CachedObject {
        let Received { object, json } = Received::from_json(json.as_bytes()).expect("a config map");
        CachedObject::compact(json.expect("it came as JSON"), object, lru)
    }

    /// What is not decoded is decoded anew at each read_uncached.
    fn is_decoded(object: &CachedObject) -> bool {
        Arc::ptr_eq(&object.read_uncached(), &object.read_uncached())
    }

    #[test]
    fn compact_and_decoded_objects_answer_alike() {
        let lru = DecodedLru::new(1);
        let texts = [
            json("a", 1),
            json("a", 2),
            json("b", 1),
            json("a", 1).replace("a-1", "a-2"),
            r#"{"metadata":{"name":"a"}}"#.into(),
        ];
        let matcher = Matcher::new(&Selector::from(Expression::Equal("app".into(), "a".into())));
        let decoded = |text: &String| {
            CachedObject::decoded(serde_json::from_str::<ConfigMap>(text).expect("a config map"))
        };
        for one in &texts {
            let (small, large) = (compact(one, &lru), decoded(one));
            assert!(matches!(small, CachedObject::Compact(_)), "{one}");
            assert_eq!(small.resource_version(), large.resource_version(), "{one}");
            assert_eq!(small.matches(&matcher), large.matches(&matcher), "{one}");
            assert_eq!(*small.read(&lru), *large.read(&lru), "{one}");
            for other in &texts {
                for (left, right) in [
                    (&small, compact(other, &lru)),
                    (&small, decoded(other)),
                    (&large, compact(other, &lru)),
                ] {
                    let wanted = decoded(other);
                    assert_eq!(
                        left.is_same_object(&right),
                        large.is_same_object(&wanted),
                        "{one} and {other}"
                    );
                    assert_eq!(
                        left.is_same_version(&right),
                        large.is_same_version(&wanted),
                        "{one} and {other}"
                    );
                }
            }
        }
    }

    #[test]
    fn object_whose_bytes_hide_what_it_has_is_kept_decoded() {
        for text in [
            r#"{"metad\u0061ta":{"name":"a","uid":"u"}}"#,
            r#"{"metadata":{"name":"a","l\u0061bels":{"app":"a"}}}"#,
        ] {
            let object = compact(text, &DecodedLru::new(9));
            assert!(matches!(object, CachedObject::Decoded(_)), "{text}");
        }
    }

    #[test]
    fn no_more_objects_stay_decoded_than_asked_for() {
        for max in [0, 1, 3] {
            let lru = DecodedLru::new(max);
            let objects: Vec<_> = (0..10).map(|n| compact(&json("a", n), &lru)).collect();
            let decoded = || objects.iter().filter(|object| is_decoded(object)).count();
            assert_eq!(decoded(), max);
            objects
                .iter()
                .chain(&objects)
                .for_each(|object| drop(object.read(&lru)));
            assert_eq!(decoded(), max);
            objects
                .iter()
                .for_each(|object| drop(object.read_uncached()));
            assert_eq!(decoded(), max, "a read_uncached keeps nothing");
        }
    }

    #[test]
    fn object_read_again_and_again_is_decoded_once() {
        let lru = DecodedLru::new(2);
        let hot = compact(&json("hot", 1), &lru);
        let first = hot.read(&lru);
        for n in 0..20 {
            compact(&json("cold", n), &lru);
            assert!(Arc::ptr_eq(&first, &hot.read(&lru)), "after {n} others");
        }
    }

    /// Readers, and the clock that makes them forget, in many interleavings.
    #[test]
    fn readers_share_what_is_decoded_and_no_more_stays_so() {
        let run = || {
            let lru = Arc::new(DecodedLru::<Interleaved>::new(1));
            let objects: Arc<Vec<_>> = Arc::new(
                (0..2)
                    .map(|n| {
                        let Received { object, json } =
                            Received::<ConfigMap>::from_json(json("a", n).into_bytes())
                                .expect("a config map");
                        Arc::new(
                            Compact::new(json.expect("it came as JSON"), &object)
                                .expect("it shows what it has"),
                        )
                    })
                    .collect(),
            );
            let readers = (0..2).map(|reader| {
                let (lru, objects) = (lru.clone(), objects.clone());
                shuttle::thread::spawn(move || {
                    for n in [reader, 1 - reader, reader] {
                        assert_eq!(
                            objects[n].read(&lru).metadata.resource_version,
                            Some(n.to_string())
                        );
                    }
                })
            });
            readers
                .collect::<Vec<_>>()
                .into_iter()
                .for_each(|reader| reader.join().unwrap());
            assert_eq!(
                objects
                    .iter()
                    .filter(|object| object.evict().is_some())
                    .count(),
                1
            );
        };
        shuttle::check_random(run, 1_000);
        shuttle::check_pct(run, 1_000, 3);
    }
}
