//! JSON values that borrow their text: a fraction of the allocations of `serde_json::Value`.

use std::borrow::Cow;
use std::{fmt, mem};

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::ser::{Serialize, Serializer};
use serde_json::Number;

/// A JSON value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Json<'a> {
    Null,
    Bool(bool),
    Number(Number),
    String(Text<'a>),
    Array(Vec<Json<'a>>),
    /// Invariant: sorted by name, each name once.
    Object(Vec<(Text<'a>, Json<'a>)>),
}

/// A string, borrowed if it has no escapes.
pub(super) type Text<'a> = Cow<'a, str>;

impl<'a> Json<'a> {
    /// The `name` of an item, which most lists of objects in Kubernetes are keyed by.
    pub(super) fn name(&self) -> Option<&str> {
        let Self::Object(members) = self else {
            return None;
        };
        let index = members.binary_search_by(|(name, _)| name.as_ref().cmp("name"));
        match &members[index.ok()?].1 {
            Self::String(name) => Some(name),
            _ => None,
        }
    }
}

impl<'de> Deserialize<'de> for Json<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(JsonVisitor)
    }
}

struct JsonVisitor;

impl<'de> Visitor<'de> for JsonVisitor {
    type Value = Json<'de>;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_unit<E>(self) -> Result<Self::Value, E> {
        Ok(Json::Null)
    }

    fn visit_bool<E>(self, value: bool) -> Result<Self::Value, E> {
        Ok(Json::Bool(value))
    }

    fn visit_i64<E>(self, value: i64) -> Result<Self::Value, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_u64<E>(self, value: u64) -> Result<Self::Value, E> {
        Ok(Json::Number(value.into()))
    }

    fn visit_f64<E>(self, value: f64) -> Result<Self::Value, E> {
        Ok(Number::from_f64(value).map_or(Json::Null, Json::Number))
    }

    fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Self::Value, E> {
        Ok(Json::String(Cow::Borrowed(value)))
    }

    fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
        Ok(Json::String(Cow::Owned(value.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        let mut array = Vec::new();
        while let Some(item) = items.next_element()? {
            array.push(item);
        }
        Ok(Json::Array(array))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut members: A) -> Result<Self::Value, A::Error> {
        let mut object: Vec<(Text<'de>, Json<'de>)> = Vec::new();
        while let Some(Name(name)) = members.next_key()? {
            object.push((name, members.next_value()?));
        }
        if !object.is_sorted_by(|(a, _), (b, _)| a < b) {
            object.sort_by(|(a, _), (b, _)| a.cmp(b));
            object.dedup_by(|later, kept| {
                let is_same = later.0 == kept.0;
                if is_same {
                    // Of members with the same name, the last one counts.
                    mem::swap(later, kept);
                }
                is_same
            });
        }
        Ok(Json::Object(object))
    }
}

/// The name of a member. `Cow` itself never borrows.
struct Name<'a>(Text<'a>);

impl<'de> Deserialize<'de> for Name<'de> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct NameVisitor;

        impl<'de> Visitor<'de> for NameVisitor {
            type Value = Name<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a name")
            }

            fn visit_borrowed_str<E>(self, value: &'de str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Borrowed(value)))
            }

            fn visit_str<E>(self, value: &str) -> Result<Self::Value, E> {
                Ok(Name(Cow::Owned(value.to_owned())))
            }
        }

        deserializer.deserialize_str(NameVisitor)
    }
}

impl Serialize for Json<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Null => serializer.serialize_unit(),
            Self::Bool(value) => serializer.serialize_bool(*value),
            Self::Number(value) => value.serialize(serializer),
            Self::String(value) => serializer.serialize_str(value),
            Self::Array(items) => serializer.collect_seq(items),
            Self::Object(members) => {
                serializer.collect_map(members.iter().map(|(name, value)| (name, value)))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_keep_their_meaning() {
        let text = r#"{"b":[1,-2,1.5,true,null],"a":"\u003cx\n","a":"last","\u0063":{}}"#;
        let value: Json<'_> = serde_json::from_str(text).unwrap();
        let written = serde_json::to_string(&value).unwrap();
        assert_eq!(written, r#"{"a":"last","b":[1,-2,1.5,true,null],"c":{}}"#);
        let escaped: Json<'_> = serde_json::from_str(r#""\u003cx\n""#).unwrap();
        assert_eq!(escaped, Json::String(Cow::Borrowed("<x\n")));
    }

    #[test]
    fn strings_without_escapes_are_borrowed() {
        let value: Json<'_> = serde_json::from_str(r#"{"name":"web"}"#).unwrap();
        let Json::Object(members) = &value else {
            panic!("{value:?}");
        };
        assert!(matches!(members[0].0, Cow::Borrowed("name")));
        assert!(matches!(members[0].1, Json::String(Cow::Borrowed("web"))));
        assert_eq!(value.name(), Some("web"));
    }
}
