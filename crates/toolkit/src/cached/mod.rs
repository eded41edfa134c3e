//! Cached: an object as a cache keeps it, compact or decoded.
//! In: objects as a source hands them over. Out: shared objects for whoever reads, one decoding for many readers.
//! Holds: a cached object never changes; what is needed to compare, select and order objects needs no decoding.

mod compact; // an object as the bytes it came in
mod labels; // selectors on those bytes
mod scan; // finding a few members of them
mod warm; // which objects stay decoded

use std::sync::Arc;

use kube::{Resource, ResourceExt};

use self::compact::Compact;
pub(crate) use self::{compact::Json, labels::Matcher, scan::Outline, warm::Warm};

/// One object of a cache. Clones share it.
pub(crate) enum Cached<K> {
    Decoded(Arc<K>),
    Compact(Arc<Compact<K>>),
}

impl<K> Clone for Cached<K> {
    fn clone(&self) -> Self {
        match self {
            Self::Decoded(object) => Self::Decoded(object.clone()),
            Self::Compact(compact) => Self::Compact(compact.clone()),
        }
    }
}

impl<K> std::fmt::Debug for Cached<K> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Decoded(_) => "Decoded",
            Self::Compact(_) => "Compact",
        })
    }
}

impl<K> Cached<K> {
    pub(crate) fn decoded(object: K) -> Self {
        Self::Decoded(Arc::new(object))
    }

    /// The object. It stays decoded for the next reader, as long as `warm` has room.
    pub(crate) fn read(&self, warm: &Warm<K>) -> Arc<K> {
        match self {
            Self::Decoded(object) => object.clone(),
            Self::Compact(compact) => compact.read(warm),
        }
    }

    /// The object, for those who read so many that keeping them would push out what others read.
    pub(crate) fn glance(&self) -> Arc<K> {
        match self {
            Self::Decoded(object) => object.clone(),
            Self::Compact(compact) => compact.glance(),
        }
    }
}

impl<K: Resource> Cached<K> {
    /// Keeps the bytes, and for a while the object they were decoded to. Keeps the object alone if its bytes do not show
    /// plainly what it has.
    pub(crate) fn compact(json: Json<K>, object: K, warm: &Warm<K>) -> Self {
        match Compact::new(json, &object) {
            None => Self::decoded(object),
            Some(compact) => {
                let compact = Arc::new(compact);
                compact.keep(Arc::new(object), warm);
                Self::Compact(compact)
            }
        }
    }

    pub(crate) fn resource_version(&self) -> Option<String> {
        match self {
            Self::Decoded(object) => object.resource_version(),
            Self::Compact(compact) => compact
                .resource_version()
                .and_then(|quoted| serde_json::from_slice(quoted).ok()),
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
            Self::Decoded(object) => matcher.matches(object.labels()),
            Self::Compact(compact) => compact.matches(matcher),
        }
    }

    fn uid(&self) -> Option<String> {
        match self {
            Self::Decoded(object) => object.uid(),
            Self::Compact(compact) => compact
                .uid()
                .and_then(|quoted| serde_json::from_slice(quoted).ok()),
        }
    }
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;
    use kube::core::{Expression, Selector};

    use super::*;
    use crate::{locks::Interleaved, source::Received};

    fn json(name: &str, version: u64) -> String {
        format!(
            r#"{{"metadata":{{"name":"{name}","uid":"{name}-1","resourceVersion":"{version}","labels":{{"app":"{name}"}}}}}}"#
        )
    }

    fn compact(json: &str, warm: &Warm<ConfigMap>) -> Cached<ConfigMap> {
        let Received { object, json } = Received::from_json(json.as_bytes()).expect("a config map");
        Cached::compact(json.expect("it came as JSON"), object, warm)
    }

    /// What is not decoded is decoded anew at each glance.
    fn is_decoded(object: &Cached<ConfigMap>) -> bool {
        Arc::ptr_eq(&object.glance(), &object.glance())
    }

    #[test]
    fn compact_and_decoded_objects_answer_alike() {
        let warm = Warm::new(1);
        let texts = [
            json("a", 1),
            json("a", 2),
            json("b", 1),
            json("a", 1).replace("a-1", "a-2"),
            r#"{"metadata":{"name":"a"}}"#.into(),
        ];
        let matcher = Matcher::new(&Selector::from(Expression::Equal("app".into(), "a".into())));
        let decoded = |text: &String| {
            Cached::decoded(serde_json::from_str::<ConfigMap>(text).expect("a config map"))
        };
        for one in &texts {
            let (small, large) = (compact(one, &warm), decoded(one));
            assert!(matches!(small, Cached::Compact(_)), "{one}");
            assert_eq!(small.resource_version(), large.resource_version(), "{one}");
            assert_eq!(small.matches(&matcher), large.matches(&matcher), "{one}");
            assert_eq!(*small.read(&warm), *large.read(&warm), "{one}");
            for other in &texts {
                for (left, right) in [
                    (&small, compact(other, &warm)),
                    (&small, decoded(other)),
                    (&large, compact(other, &warm)),
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
            let object = compact(text, &Warm::new(9));
            assert!(matches!(object, Cached::Decoded(_)), "{text}");
        }
    }

    #[test]
    fn no_more_objects_stay_decoded_than_asked_for() {
        for max in [0, 1, 3] {
            let warm = Warm::new(max);
            let objects: Vec<_> = (0..10).map(|n| compact(&json("a", n), &warm)).collect();
            let decoded = || objects.iter().filter(|object| is_decoded(object)).count();
            assert_eq!(decoded(), max);
            objects
                .iter()
                .chain(&objects)
                .for_each(|object| drop(object.read(&warm)));
            assert_eq!(decoded(), max);
            objects.iter().for_each(|object| drop(object.glance()));
            assert_eq!(decoded(), max, "a glance keeps nothing");
        }
    }

    #[test]
    fn object_read_again_and_again_is_decoded_once() {
        let warm = Warm::new(2);
        let hot = compact(&json("hot", 1), &warm);
        let first = hot.read(&warm);
        for n in 0..20 {
            compact(&json("cold", n), &warm);
            assert!(Arc::ptr_eq(&first, &hot.read(&warm)), "after {n} others");
        }
    }

    /// Readers, and the clock that makes them forget, in many interleavings.
    #[test]
    fn readers_share_what_is_decoded_and_no_more_stays_so() {
        let run = || {
            let warm = Arc::new(Warm::<ConfigMap, Interleaved>::new(1));
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
                let (warm, objects) = (warm.clone(), objects.clone());
                shuttle::thread::spawn(move || {
                    for n in [reader, 1 - reader, reader] {
                        assert_eq!(
                            objects[n].read(&warm).metadata.resource_version,
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
                    .filter(|object| object.cool().is_some())
                    .count(),
                1
            );
        };
        shuttle::check_random(run, 1_000);
        shuttle::check_pct(run, 1_000, 3);
    }
}
