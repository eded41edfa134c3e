//! Patch: what a mutation changed, as operations on the object that the API server sent.
//!
//! In: the object as it was sent, and its typed form before and after the mutation. Out: a JSON
//! patch.
//! Guarantees: a field that the type does not know is on neither typed side, so it is not touched;
//! an item of a list keeps its unknown fields wherever the mutation moves it.

mod json;

use std::borrow::Cow;
use std::collections::HashMap;
use std::hash::Hash;
use std::ptr;
use std::rc::Rc;

use serde::Serialize;
use serde::ser::Serializer;

use self::json::{Json, Text};

/// A JSON patch that makes the change from `before` to `after`, which are encodings of the same
/// type, in `raw`; `None` if there is nothing to change.
///
/// # Errors
/// One of them is no JSON.
pub(crate) fn patch(
    raw: &str,
    before: &[u8],
    after: &[u8],
) -> Result<Option<Vec<u8>>, serde_json::Error> {
    if before == after {
        return Ok(None);
    }
    let raw: Json<'_> = serde_json::from_str(raw)?;
    let before: Json<'_> = serde_json::from_slice(before)?;
    let after: Json<'_> = serde_json::from_slice(after)?;
    let merged = merge(&raw, &before, &after);
    let mut operations = Vec::new();
    difference(&mut String::new(), &raw, &merged, &mut operations);
    match operations.is_empty() {
        true => Ok(None),
        false => serde_json::to_vec(&operations).map(Some),
    }
}

/// One operation of a JSON patch.
#[derive(Serialize)]
struct Operation<'v> {
    op: &'static str,
    path: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    value: Option<Merged<'v>>,
}

/// A value whose parts are parts of other values. Cloning it copies none of them.
#[derive(Clone)]
enum Merged<'v> {
    Whole(&'v Json<'v>),
    Array(Rc<[Merged<'v>]>),
    /// Invariant: sorted by name, each name once.
    Object(Rc<[Member<'v>]>),
}

type Member<'v> = (&'v str, Merged<'v>);

impl<'v> Merged<'v> {
    /// The items, if this is an array.
    fn items(&self) -> Option<Cow<'_, [Merged<'v>]>> {
        match self {
            Self::Array(items) => Some(Cow::Borrowed(items)),
            Self::Whole(Json::Array(items)) => Some(items.iter().map(Self::Whole).collect()),
            Self::Whole(_) | Self::Object(_) => None,
        }
    }

    /// The members, sorted by name, if this is an object.
    fn members(&self) -> Option<Cow<'_, [Member<'v>]>> {
        match self {
            Self::Object(members) => Some(Cow::Borrowed(members)),
            Self::Whole(Json::Object(members)) => {
                let members = members.iter();
                Some(
                    members
                        .map(|(name, value)| (name.as_ref(), Self::Whole(value)))
                        .collect(),
                )
            }
            Self::Whole(_) | Self::Array(_) => None,
        }
    }
}

impl Serialize for Merged<'_> {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Whole(value) => value.serialize(serializer),
            Self::Array(items) => serializer.collect_seq(items.iter()),
            Self::Object(members) => {
                serializer.collect_map(members.iter().map(|(name, value)| (name, value)))
            }
        }
    }
}

/// `raw` with the change from `before` to `after`.
fn merge<'v>(raw: &'v Json<'v>, before: &Json<'_>, after: &'v Json<'v>) -> Merged<'v> {
    if before == after {
        return Merged::Whole(raw);
    }
    match (raw, before, after) {
        (Json::Object(raw), Json::Object(before), Json::Object(after)) => {
            Merged::Object(merge_object(raw, before, after))
        }
        (Json::Array(raw), Json::Array(before), Json::Array(after))
            if raw.len() == before.len() =>
        {
            Merged::Array(merge_list(raw, before, after))
        }
        _ => Merged::Whole(after),
    }
}

fn merge_object<'v>(
    raw: &'v [(Text<'v>, Json<'v>)],
    before: &[(Text<'_>, Json<'_>)],
    after: &'v [(Text<'v>, Json<'v>)],
) -> Rc<[Member<'v>]> {
    let mut merged = Vec::with_capacity(raw.len().max(after.len()));
    for (name, raw) in raw {
        let value = match (member(before, name), member(after, name)) {
            (None, None) => Merged::Whole(raw),
            (Some(_), None) => continue,
            (Some(before), Some(after)) => merge(raw, before, after),
            (None, Some(after)) => Merged::Whole(after),
        };
        merged.push((name.as_ref(), value));
    }
    for (name, after) in after {
        // A default that decoding added stays out of the patch, as long as it is unchanged.
        if member(raw, name).is_none() && member(before, name) != Some(after) {
            merged.push((name.as_ref(), Merged::Whole(after)));
        }
    }
    merged.sort_by_key(|(name, _)| *name);
    merged.into()
}

/// The member of a name, of members that are sorted by name.
fn member<'m, N: AsRef<str>, V>(members: &'m [(N, V)], name: &str) -> Option<&'m V> {
    let index = members.binary_search_by(|(other, _)| other.as_ref().cmp(name));
    Some(&members[index.ok()?].1)
}

fn merge_list<'v>(
    raw: &'v [Json<'v>],
    before: &[Json<'_>],
    after: &'v [Json<'v>],
) -> Rc<[Merged<'v>]> {
    let origins = origins(before, after);
    let items = after.iter().zip(origins);
    items
        .map(|(item, origin)| match origin {
            Some(origin) => merge(&raw[origin], &before[origin], item),
            None => Merged::Whole(item),
        })
        .collect()
}

/// Which item of `before` each item of `after` was: the equal one, else the one of the same name,
/// else, for items without names, the one at the same index. An item of `before` is the origin of
/// one item at most.
fn origins(before: &[Json<'_>], after: &[Json<'_>]) -> Vec<Option<usize>> {
    let mut origins = Origins {
        of: vec![None; after.len()],
        is_taken: vec![false; before.len()],
    };
    let shared = before.len().min(after.len());
    for index in (0..shared).filter(|index| before[*index] == after[*index]) {
        origins.take(index, index);
    }
    origins.take_by(before, after, Some);
    origins.take_by(before, after, Json::name);
    // Items of other names are other items, also in the same place.
    for index in (0..shared).filter(|index| before[*index].name() == after[*index].name()) {
        origins.take(index, index);
    }
    origins.of
}

struct Origins {
    of: Vec<Option<usize>>,
    is_taken: Vec<bool>,
}

impl Origins {
    fn take(&mut self, index: usize, origin: usize) {
        if self.of[index].is_none() && !self.is_taken[origin] {
            self.of[index] = Some(origin);
            self.is_taken[origin] = true;
        }
    }

    /// Finds the origins of items by what identifies them.
    fn take_by<'v, K: Eq + Hash>(
        &mut self,
        before: &'v [Json<'v>],
        after: &'v [Json<'v>],
        identity: impl Fn(&'v Json<'v>) -> Option<K>,
    ) {
        let mut candidates: HashMap<K, Vec<usize>> = HashMap::new();
        // In reverse, so that the first of several equal items is popped first.
        for (origin, item) in before.iter().enumerate().rev() {
            if !self.is_taken[origin]
                && let Some(identity) = identity(item)
            {
                candidates.entry(identity).or_default().push(origin);
            }
        }
        if candidates.is_empty() {
            return;
        }
        for (index, item) in after.iter().enumerate() {
            if self.of[index].is_none()
                && let Some(identity) = identity(item)
                && let Some(origin) = candidates.get_mut(&identity).and_then(Vec::pop)
            {
                self.take(index, origin);
            }
        }
    }
}

/// The operations that make `old` equal to `new`. `path` is a buffer that is restored.
fn difference<'v>(
    path: &mut String,
    old: &Json<'v>,
    new: &Merged<'v>,
    operations: &mut Vec<Operation<'v>>,
) {
    if let Merged::Whole(new) = new
        && (ptr::eq(old, *new) || old == *new)
    {
        return;
    }
    match (old, new.members(), new.items()) {
        (Json::Object(old), Some(new), _) => {
            for (name, _) in old {
                if member(&new, name).is_none() {
                    at(path, name, |path| {
                        operations.push(operation("remove", path, None));
                    });
                }
            }
            for (name, new) in new.iter() {
                at(path, name, |path| match member(old, name) {
                    Some(old) => difference(path, old, new, operations),
                    None => operations.push(operation("add", path, Some(new))),
                });
            }
        }
        (Json::Array(old), _, Some(new)) => {
            for (index, (old, new)) in old.iter().zip(new.iter()).enumerate() {
                at(path, &index.to_string(), |path| {
                    difference(path, old, new, operations);
                });
            }
            // From the end, so that the indexes of the others stay.
            for index in (new.len()..old.len()).rev() {
                at(path, &index.to_string(), |path| {
                    operations.push(operation("remove", path, None));
                });
            }
            for (index, new) in new.iter().enumerate().skip(old.len()) {
                at(path, &index.to_string(), |path| {
                    operations.push(operation("add", path, Some(new)));
                });
            }
        }
        _ => operations.push(operation("replace", path, Some(new))),
    }
}

/// Calls a function with one more segment at the end of the path.
fn at(path: &mut String, segment: &str, call: impl FnOnce(&mut String)) {
    let length = path.len();
    path.push('/');
    for character in segment.chars() {
        match character {
            '~' => path.push_str("~0"),
            '/' => path.push_str("~1"),
            other => path.push(other),
        }
    }
    call(path);
    path.truncate(length);
}

fn operation<'v>(op: &'static str, path: &str, value: Option<&Merged<'v>>) -> Operation<'v> {
    Operation {
        op,
        path: path.to_owned(),
        value: value.cloned(),
    }
}

#[cfg(test)]
mod tests;
