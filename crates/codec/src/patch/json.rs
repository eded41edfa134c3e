//! JSON patch (RFC 6902) with the behaviour of the library of Kubernetes.
//! Guarantees: at most 10,000 operations, and copies that together stay below the size of a
//! request; the number of moved list items is limited.

use serde_json::{Map, Value};

use crate::{
    decode::{DEPTH_MAX, STRICT_ERRORS_MAX},
    types::Opened,
};

/// The maximum number of operations.
const OPERATIONS_MAX: usize = 10_000;

/// The total size of copied values, so that a small patch cannot make a huge object.
const COPIED_BYTES_MAX: usize = 3 * 1024 * 1024;

/// How many JSON objects may be copied: each takes a hundred times the memory of its shortest text.
const COPIED_OBJECTS_MAX: usize = 16 << 10;

/// How many items insertions into lists and removals from them may move together: enough to empty a
/// list of 20,000 items from its front.
const SHIFTED_ITEMS_MAX: usize = 200_000_000;

/// How often the depth of an object is found by looking through it, so that a patch of moves costs
/// no more than it is worth.
const DEPTH_LOOKS_MAX: usize = 64;

/// A list of operations.
#[derive(Clone, Debug)]
pub struct JsonPatch(Vec<Operation>);

#[derive(Clone, Debug)]
struct Operation {
    op: String,
    path: Option<String>,
    from: Option<String>,
    value: Value,
}

/// Why a patch was not read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unreadable {
    /// It is not a list of operations.
    Shape(String),
    /// It has this many operations.
    TooMany(usize),
}

impl JsonPatch {
    /// Reads a patch.
    ///
    /// # Errors
    /// Not a list of objects, or too long a list.
    pub fn read(value: Value) -> Result<Self, Unreadable> {
        let go = |what: &str| {
            Unreadable::Shape(format!(
                "json: cannot unmarshal {what} into Go value of type []handlers.jsonPatchOp"
            ))
        };
        let list = match value {
            Value::Array(list) => list,
            Value::Object(_) => return Err(go("object")),
            Value::String(_) => return Err(go("string")),
            Value::Number(_) => return Err(go("number")),
            Value::Bool(_) => return Err(go("bool")),
            Value::Null => Vec::new(),
        };
        if list.len() > OPERATIONS_MAX {
            return Err(Unreadable::TooMany(list.len()));
        }
        let operation = |item: Value| match item {
            Value::Object(mut map) => Ok(Operation {
                op: text(&mut map, "op").unwrap_or_else(|| "unknown".into()),
                path: text(&mut map, "path"),
                from: text(&mut map, "from"),
                value: map.remove("value").unwrap_or(Value::Null),
            }),
            Value::Null => Ok(Operation {
                op: "unknown".into(),
                path: None,
                from: None,
                value: Value::Null,
            }),
            _ => Err(Unreadable::Shape(
                "json: cannot unmarshal into Go value of type handlers.jsonPatchOp".into(),
            )),
        };
        list.into_iter()
            .map(operation)
            .collect::<Result<_, _>>()
            .map(Self)
    }

    /// The fields of operations that no operation has, with the messages of strict validation: the
    /// first hundred.
    pub fn unknown_fields(patch: &Value) -> Vec<String> {
        let operations = patch.as_array().into_iter().flatten().enumerate();
        let fields = operations.flat_map(|(i, operation)| {
            operation
                .as_object()
                .into_iter()
                .flatten()
                .map(move |(name, _)| (i, name))
        });
        let unknown =
            fields.filter(|(_, name)| !["op", "path", "from", "value"].contains(&name.as_str()));
        unknown
            .map(|(i, name)| format!("unknown field \"[{i}].{name}\""))
            .take(STRICT_ERRORS_MAX)
            .collect()
    }

    /// Applies every operation in order.
    ///
    /// # Errors
    /// The failed operation; the target is then unspecified.
    pub fn apply(&self, target: &mut Value) -> Result<(), String> {
        let mut spent = Spent::default();
        let mut depth = Depth {
            bound: depth_of(target),
            looks_left: DEPTH_LOOKS_MAX,
        };
        for operation in &self.0 {
            operation.apply(target, &mut spent)?;
            depth.grow(operation, target)?;
        }
        Ok(())
    }
}

impl JsonPatch {
    /// Whether a patch was not applied because one of its tests failed.
    pub fn is_failed_test(why: &str) -> bool {
        why.ends_with(": test failed")
    }

    /// The containers that the operations traversed.
    pub fn opened(&self) -> Opened {
        let mut opened = Opened::default();
        for pointer in self
            .0
            .iter()
            .flat_map(|operation| [&operation.path, &operation.from])
            .flatten()
        {
            let keys = keys(pointer);
            keys.iter()
                .take(keys.len().saturating_sub(1))
                .fold(&mut opened, |place, key| place.open(key));
        }
        opened
    }
}

/// The cost of the operations of a patch so far.
#[derive(Default)]
struct Spent {
    copied_bytes: usize,
    copied_objects: usize,
    shifted_items: usize,
}

impl Spent {
    fn copy(&mut self, value: &Value) -> Result<(), String> {
        self.copied_objects += objects_in(value);
        if self.copied_objects > COPIED_OBJECTS_MAX {
            return Err(format!(
                "the patch copies more than {COPIED_OBJECTS_MAX} objects"
            ));
        }
        self.copied_bytes += value.to_string().len();
        if self.copied_bytes > COPIED_BYTES_MAX {
            return Err(format!(
                "unable to copy, the accumulated size increase of copy is {}, exceeding the limit {COPIED_BYTES_MAX}",
                self.copied_bytes
            ));
        }
        Ok(())
    }

    fn shift(&mut self, items: usize) -> Result<(), String> {
        self.shifted_items += items;
        if self.shifted_items > SHIFTED_ITEMS_MAX {
            return Err(format!(
                "the patch moves more than {SHIFTED_ITEMS_MAX} items of lists"
            ));
        }
        Ok(())
    }
}

/// Moves can nest an object ever deeper, and later recursion must fit the stack.
struct Depth {
    /// No value of the target lies deeper than this.
    bound: usize,
    /// How often the target may still be looked through to find how deep it really is.
    looks_left: usize,
}

impl Depth {
    /// Counts an operation that was applied.
    fn grow(&mut self, operation: &Operation, target: &Value) -> Result<(), String> {
        let levels =
            |pointer: &Option<String>| pointer.as_deref().map_or(0, |p| p.split('/').count() - 1);
        let put = match operation.op.as_str() {
            "add" | "replace" => depth_of(&operation.value),
            "move" | "copy" => self.bound.saturating_sub(levels(&operation.from)),
            _ => return Ok(()),
        };
        self.bound = self.bound.max(levels(&operation.path) + put);
        if self.bound > DEPTH_MAX && self.looks_left > 0 {
            self.looks_left -= 1;
            self.bound = depth_of(target);
        }
        if self.bound > DEPTH_MAX {
            Err(format!(
                "the object would be deeper than {DEPTH_MAX} levels"
            ))
        } else {
            Ok(())
        }
    }
}

/// Levels of nesting.
fn depth_of(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth_of).max().unwrap_or(0),
        Value::Object(map) => 1 + map.values().map(depth_of).max().unwrap_or(0),
        _ => 0,
    }
}

/// JSON objects in a value, itself included.
fn objects_in(value: &Value) -> usize {
    match value {
        Value::Array(items) => items.iter().map(objects_in).sum(),
        Value::Object(map) => 1 + map.values().map(objects_in).sum::<usize>(),
        _ => 0,
    }
}

fn text(map: &mut Map<String, Value>, key: &str) -> Option<String> {
    match map.remove(key) {
        Some(Value::String(text)) => Some(text),
        _ => None,
    }
}

impl Operation {
    fn apply(&self, target: &mut Value, spent: &mut Spent) -> Result<(), String> {
        let path = || {
            self.path.as_deref().ok_or_else(|| {
                format!("{} operation failed to decode path: missing value", self.op)
            })
        };
        let from = || {
            self.from.as_deref().ok_or_else(|| {
                format!("{} operation failed to decode from: missing value", self.op)
            })
        };
        match self.op.as_str() {
            "add" => {
                let path = path()?;
                add(target, path, self.value.clone(), spent).map_err(|miss| {
                    let missing =
                        format!("add operation does not apply: doc is missing path: {path:?}");
                    miss.describe(missing, "add", path)
                })
            }
            "remove" => {
                let path = path()?;
                let removed = remove(target, path, spent);
                removed.map(drop).map_err(|miss| {
                    let missing =
                        format!("remove operation does not apply: doc is missing path: {path:?}");
                    miss.describe(missing, "remove", path)
                })
            }
            "replace" => {
                let path = path()?;
                replace(target, path, self.value.clone()).map_err(|miss| {
                    let what = match miss {
                        Miss::Key(_) | Miss::Index(_) => "key",
                        Miss::Parent | Miss::Limit(_) => "path",
                    };
                    let missing =
                        format!("replace operation does not apply: doc is missing {what}: {path}");
                    Miss::Parent.describe(missing, "replace", path)
                })
            }
            "move" => {
                let from = from()?;
                let removed = remove(target, from, spent);
                let value = removed.map_err(|miss| {
                    let missing =
                        format!("move operation does not apply: doc is missing from path: {from}");
                    miss.describe(missing, "move", from)
                })?;
                let path = path()?;
                add(target, path, value, spent).map_err(|miss| {
                    let missing = format!(
                        "move operation does not apply: doc is missing destination path: {path}"
                    );
                    miss.describe(missing, "move", path)
                })
            }
            "copy" => {
                let value = find(target, from()?).unwrap_or(&Value::Null);
                spent.copy(value)?;
                let value = value.clone();
                let path = path()?;
                add(target, path, value, spent).map_err(|miss| {
                    let missing = format!(
                        "copy operation does not apply: doc is missing destination path: {path}"
                    );
                    miss.describe(missing, "copy", path)
                })
            }
            "test" => {
                let found = find(target, path()?).unwrap_or(&Value::Null);
                if same(found, &self.value) {
                    Ok(())
                } else {
                    Err(format!("testing value {} failed: test failed", path()?))
                }
            }
            other => Err(format!("Unexpected kind: {other}")),
        }
    }
}

/// Why a pointer has no value.
enum Miss {
    /// The container of the value.
    Parent,
    Key(String),
    Index(String),
    /// The operation would take too much.
    Limit(String),
}

impl Miss {
    /// The message of the library that kube-apiserver uses.
    fn describe(self, missing_parent: String, operation: &str, path: &str) -> String {
        let why = match self {
            Self::Parent => return format!("{missing_parent}: missing value"),
            Self::Limit(why) => return why,
            Self::Key(key) => format!("Unable to remove nonexistent key: {key}: missing value"),
            Self::Index(key) if key.parse::<i64>().is_ok() => {
                format!("Unable to access invalid index: {key}: invalid index referenced")
            }
            Self::Index(key) => format!("strconv.Atoi: parsing {key:?}: invalid syntax"),
        };
        format!("error in {operation} for path: '{path}': {why}")
    }
}

/// The decoded keys of a pointer. The text before the first slash is ignored, as in kube-apiserver.
fn keys(pointer: &str) -> Vec<String> {
    pointer
        .split('/')
        .skip(1)
        .map(|key| key.replace("~1", "/").replace("~0", "~"))
        .collect()
}

/// The container a pointer ends in, and the last key.
fn parent<'a>(target: &'a mut Value, pointer: &str) -> Result<(&'a mut Value, String), Miss> {
    let mut keys = keys(pointer);
    let last = keys.pop().ok_or(Miss::Parent)?;
    let mut at = target;
    for key in keys {
        at = match at {
            Value::Object(map) => map.get_mut(&key),
            Value::Array(list) => existing_index(&key, list.len()).and_then(|i| list.get_mut(i)),
            _ => None,
        }
        .ok_or(Miss::Parent)?;
    }
    if at.is_object() || at.is_array() {
        Ok((at, last))
    } else {
        Err(Miss::Parent)
    }
}

fn find<'a>(target: &'a Value, pointer: &str) -> Option<&'a Value> {
    keys(pointer)
        .into_iter()
        .try_fold(target, |at, key| match at {
            Value::Object(map) => map.get(&key),
            Value::Array(list) => list.get(existing_index(&key, list.len())?),
            _ => None,
        })
}

/// The place of an item that is there; negative numbers count from the end.
fn existing_index(key: &str, len: usize) -> Option<usize> {
    let index: i64 = key.parse().ok()?;
    let index = if index < 0 {
        index + i64::try_from(len).ok()?
    } else {
        index
    };
    usize::try_from(index).ok().filter(|i| *i < len)
}

/// The place where an item may be put: an index up to the length, negative ones from behind the
/// end, `-` at the end.
fn insertion_index(key: &str, len: usize) -> Option<usize> {
    if key == "-" {
        return Some(len);
    }
    let index: i64 = key.parse().ok()?;
    let index = if index < 0 {
        index + i64::try_from(len).ok()? + 1
    } else {
        index
    };
    usize::try_from(index).ok().filter(|i| *i <= len)
}

fn add(target: &mut Value, pointer: &str, value: Value, spent: &mut Spent) -> Result<(), Miss> {
    if pointer.is_empty() {
        *target = value;
        return Ok(());
    }
    let (container, key) = parent(target, pointer)?;
    match container {
        Value::Object(map) => {
            map.insert(key, value);
        }
        Value::Array(list) => {
            let index = insertion_index(&key, list.len()).ok_or(Miss::Index(key))?;
            spent.shift(list.len() - index).map_err(Miss::Limit)?;
            list.insert(index, value);
        }
        _ => return Err(Miss::Parent),
    }
    Ok(())
}

fn remove(target: &mut Value, pointer: &str, spent: &mut Spent) -> Result<Value, Miss> {
    let (container, key) = parent(target, pointer)?;
    match container {
        Value::Object(map) => map.remove(&key).ok_or(Miss::Key(key)),
        Value::Array(list) => {
            let index = existing_index(&key, list.len()).ok_or(Miss::Index(key))?;
            spent.shift(list.len() - index).map_err(Miss::Limit)?;
            Ok(list.remove(index))
        }
        _ => Err(Miss::Parent),
    }
}

fn replace(target: &mut Value, pointer: &str, value: Value) -> Result<(), Miss> {
    if pointer.is_empty() {
        *target = value;
        return Ok(());
    }
    let (container, key) = parent(target, pointer)?;
    match container {
        // A missing key is added, as in kube-apiserver.
        Value::Object(map) => {
            map.insert(key, value);
        }
        Value::Array(list) => {
            let index = existing_index(&key, list.len()).ok_or(Miss::Index(key))?;
            list[index] = value;
        }
        _ => return Err(Miss::Parent),
    }
    Ok(())
}

/// Equality of JSON as kube-apiserver tests it: numbers by their text, so `2` is not `2.0`.
fn same(a: &Value, b: &Value) -> bool {
    match (a, b) {
        (Value::Object(a), Value::Object(b)) => {
            a.len() == b.len() && a.iter().all(|(k, v)| b.get(k).is_some_and(|w| same(v, w)))
        }
        (Value::Array(a), Value::Array(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same(a, b))
        }
        (Value::Number(a), Value::Number(b)) => a.to_string() == b.to_string(),
        _ => a == b,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn patched(target: &Value, patch: &Value) -> Result<Value, String> {
        let mut outcome = target.clone();
        JsonPatch::read(patch.clone())
            .expect("a readable patch")
            .apply(&mut outcome)?;
        Ok(outcome)
    }

    #[test]
    fn made_up_fields_of_operations_are_named() {
        let patch = json!([{"op": "add", "path": "/a", "value": 1}, {"op": "remove", "path": "/a", "why": 1, "from": "/b"}]);
        assert_eq!(
            JsonPatch::unknown_fields(&patch),
            [r#"unknown field "[1].why""#]
        );
    }

    /// All of them used to be compared with each other, and each became a header.
    #[test]
    fn hundred_made_up_fields_are_named() {
        let fields: Map<String, Value> =
            (0..200_000).map(|i| (format!("f{i}"), json!(1))).collect();
        let named = JsonPatch::unknown_fields(&json!([fields]));
        assert_eq!(named.len(), 100);
    }

    #[test]
    fn items_are_moved_a_bounded_number_of_times() {
        let items = |count: usize| json!({"l": vec![0; count]});
        let emptied = |count: usize| {
            let removal = json!({"op": "remove", "path": "/l/0"});
            patched(&items(count), &json!(vec![removal; OPERATIONS_MAX]))
        };
        assert_eq!(emptied(20_000), Ok(items(10_000)));
        let refused = emptied(100_000).expect_err("too many moves");
        assert!(refused.contains("200000000 items"), "{refused}");
    }

    #[test]
    fn operations_equal_those_of_kube_apiserver() {
        let object = json!({"a": 1, "list": [1, 2, 3], "m": {"x/y": 1}});
        for (patch, expected) in [
            (
                json!([{"op": "add", "path": "/b", "value": 2}]),
                Some(json!({"a": 1, "b": 2, "list": [1, 2, 3], "m": {"x/y": 1}})),
            ),
            (
                json!([{"op": "replace", "path": "/new", "value": 2}]),
                Some(json!({"a": 1, "new": 2, "list": [1, 2, 3], "m": {"x/y": 1}})),
            ),
            (json!([{"op": "add", "path": "b", "value": 2}]), None),
            (
                json!([{"op": "add", "path": "data/b", "value": 2}]),
                Some(json!({"a": 1, "b": 2, "list": [1, 2, 3], "m": {"x/y": 1}})),
            ),
            (
                json!([{"op": "remove", "path": "/m/x~1y"}]),
                Some(json!({"a": 1, "list": [1, 2, 3], "m": {}})),
            ),
            (
                json!([{"op": "add", "path": "/list/-", "value": 4}]),
                Some(json!({"a": 1, "list": [1, 2, 3, 4], "m": {"x/y": 1}})),
            ),
            (
                json!([{"op": "replace", "path": "/list/-1", "value": 9}]),
                Some(json!({"a": 1, "list": [1, 2, 9], "m": {"x/y": 1}})),
            ),
            (json!([{"op": "add", "path": "/list/4", "value": 9}]), None),
            (json!([{"op": "remove", "path": "/none"}]), None),
            (
                json!([{"op": "move", "from": "/a", "path": "/z"}]),
                Some(json!({"z": 1, "list": [1, 2, 3], "m": {"x/y": 1}})),
            ),
            (
                json!([{"op": "copy", "from": "/none", "path": "/z"}]),
                Some(json!({"a": 1, "z": null, "list": [1, 2, 3], "m": {"x/y": 1}})),
            ),
            (
                json!([{"op": "test", "path": "/none", "value": null}]),
                Some(object.clone()),
            ),
            (json!([{"op": "test", "path": "/a", "value": 1.0}]), None),
            (json!([{"op": "conquer", "path": "/a"}]), None),
            (json!([{"op": "add", "value": 1}]), None),
        ] {
            assert_eq!(patched(&object, &patch).ok(), expected, "{patch}");
        }
    }

    #[test]
    fn copies_cannot_blow_an_object_up() {
        let operations: Vec<Value> = (0..60)
            .map(|i| json!({"op": "copy", "from": "/a", "path": format!("/{i}")}))
            .collect();
        let object = json!({"a": "x".repeat(100_000)});
        assert!(patched(&object, &Value::Array(operations)).is_err());
    }

    #[test]
    fn copies_of_many_small_objects_are_rejected() {
        // Each operation doubles the object: 20 of them are a million objects in 3 MB of text.
        let doubling: Vec<Value> = (0..20)
            .flat_map(|i| {
                [
                    json!({"op": "copy", "from": "/a", "path": "/b"}),
                    json!({"op": "move", "from": "/a", "path": format!("/b/{i}")}),
                    json!({"op": "move", "from": "/b", "path": "/a"}),
                ]
            })
            .collect();
        let error = patched(&json!({"a": {"c": {}}}), &Value::Array(doubling));
        let error = error.expect_err("too many objects");
        assert!(error.contains("16384 objects"), "{error}");
    }

    #[test]
    fn moves_bury_an_object_only_so_deep() {
        let round = |i: usize| {
            let kept = json!({"op": "move", "from": "/flat/a", "path": "/flat/b/a"});
            let back = json!({"op": "move", "from": "/flat/b/a", "path": "/flat/a"});
            let bury = [
                json!({"op": "add", "path": "/t", "value": {}}),
                json!({"op": "move", "from": "/x", "path": "/t/x"}),
                json!({"op": "move", "from": "/t", "path": "/x"}),
            ];
            if i == 0 {
                vec![kept, back]
            } else {
                bury.to_vec()
            }
        };
        let object = json!({"x": {}, "flat": {"a": {"c": 1}, "b": {}}});
        let harmless: Vec<Value> = (0..5_000).flat_map(|_| round(0)).collect();
        assert_eq!(
            patched(&object, &Value::Array(harmless)),
            Ok(object.clone()),
            "many moves are fine"
        );
        let burying: Vec<Value> = (0..3_333).flat_map(|_| round(1)).collect();
        assert!(patched(&object, &Value::Array(burying)).is_err());
    }

    #[test]
    fn too_many_operations_are_refused() {
        let operations = Value::Array(vec![json!({"op": "test", "path": "/a"}); 10_001]);
        assert_eq!(
            JsonPatch::read(operations).err(),
            Some(Unreadable::TooMany(10_001))
        );
    }
}
