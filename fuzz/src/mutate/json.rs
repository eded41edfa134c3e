//! Mutation of the JSON values in an input.
//!
//! An input is one JSON value, or has one on its first line or behind it, as the targets with two
//! parts do. Mutations keep the value well-formed, so that they reach the code behind the parser.

use rand::{RngExt as _, rngs::StdRng, seq::IndexedRandom as _};
use serde_json::{Map, Value, json};

/// Keys that the API server treats in a special way.
const KEYS: &[&str] = &[
    "",
    "$patch",
    "$retainKeys",
    "$setElementOrder/containers",
    "$deleteFromPrimitiveList/finalizers",
    "additionalProperties",
    "allOf",
    "annotations",
    "apiVersion",
    "default",
    "finalizers",
    "items",
    "kind",
    "labels",
    "managedFields",
    "metadata",
    "name",
    "namespace",
    "nullable",
    "ownerReferences",
    "pattern",
    "properties",
    "spec",
    "status",
    "type",
    "x-kubernetes-list-map-keys",
    "x-kubernetes-list-type",
    "x-kubernetes-preserve-unknown-fields",
    "x-kubernetes-validations",
];

/// The deepest nesting that one mutation adds.
const NESTING_MAX: usize = 100;

/// Where the JSON value of an input is.
enum JsonPart {
    FirstLine,
    Rest,
    Whole,
}

/// Changes one node of a JSON value. Returns `false` if the input has none.
pub(super) fn mutate(input: &mut Vec<u8>, random: &mut StdRng) -> bool {
    edit(input, random, |value, random| {
        let other = pick(value, random).clone();
        let node = pick(value, random);
        match random.random_range(0..8) {
            0 => *node = extreme(random),
            1 => *node = other,
            2 => remove_child(node, random),
            3 => rename_child(node, random),
            4 => insert_child(node, other, random),
            5 => {
                let count = random.random_range(2..12);
                repeat_child(node, |_| count, random);
            }
            6 => nest(node, random.random_range(1..NESTING_MAX), random),
            _ => change_text(node, random),
        }
    })
}

/// Grows a JSON value to about `size` bytes. Returns `false` if the input has none.
pub(super) fn grow(input: &mut Vec<u8>, size: usize, random: &mut StdRng) -> bool {
    let Some(missing) = size.checked_sub(input.len()) else {
        return true;
    };
    edit(input, random, |value, random| {
        for _ in 0..8 {
            match pick(value, random) {
                Value::String(text) => text.push_str(&"a".repeat(missing)),
                Value::Array(items) if items.is_empty() => continue,
                Value::Object(map) if map.is_empty() => continue,
                node @ (Value::Array(_) | Value::Object(_)) => {
                    repeat_child(node, |child| missing / (length(child) + 12), random);
                }
                _ => continue,
            }
            return;
        }
    })
}

fn length(value: &Value) -> usize {
    value.to_string().len()
}

fn edit(
    input: &mut Vec<u8>,
    random: &mut StdRng,
    change: impl FnOnce(&mut Value, &mut StdRng),
) -> bool {
    let line_end = input.iter().position(|byte| *byte == b'\n');
    let (first, rest) = match line_end {
        Some(end) => (&input[..end], &input[end + 1..]),
        None => (&input[..], &input[..0]),
    };
    let mut parts = Vec::new();
    for (part, text) in [
        (JsonPart::Whole, &input[..]),
        (JsonPart::FirstLine, first),
        (JsonPart::Rest, rest),
    ] {
        // Scalars are better changed as bytes.
        if let Ok(value) = serde_json::from_slice::<Value>(text)
            && (value.is_array() || value.is_object())
        {
            parts.push((part, value));
        }
    }
    if parts.is_empty() {
        return false;
    }
    let (part, mut value) = parts.swap_remove(random.random_range(0..parts.len()));
    change(&mut value, random);
    let text = value.to_string().into_bytes();
    let end = line_end.unwrap_or(input.len());
    match part {
        JsonPart::Whole => *input = text,
        JsonPart::FirstLine => drop(input.splice(..end, text)),
        JsonPart::Rest => drop(input.splice(end + 1.., text)),
    }
    true
}

/// A random node: the value itself or one in it.
fn pick<'a>(value: &'a mut Value, random: &mut StdRng) -> &'a mut Value {
    let children = match value {
        Value::Array(items) => items.len(),
        Value::Object(map) => map.len(),
        _ => 0,
    };
    if children == 0 || random.random_ratio(1, 4) {
        return value;
    }
    let index = random.random_range(0..children);
    let child = match value {
        Value::Array(items) => items.get_mut(index),
        Value::Object(map) => map.values_mut().nth(index),
        _ => None,
    };
    pick(
        child.expect("the index is below the number of children"),
        random,
    )
}

/// A value at the edge of what a type allows.
fn extreme(random: &mut StdRng) -> Value {
    let values = [
        Value::Null,
        json!(true),
        json!(0),
        json!(-1),
        json!(i64::MIN),
        json!(i64::MAX),
        json!(u64::MAX),
        json!(1e308),
        json!(0.5),
        json!(""),
        json!("a"),
        json!("a/b"),
        json!("100%"),
        json!("1Ei"),
        json!("9999-12-31T23:59:59Z"),
        json!("\u{0}\u{202e}é"),
        json!("a".repeat(300)),
        json!([]),
        json!({}),
        json!([null]),
        json!({"": null}),
    ];
    values
        .choose(random)
        .expect("the table has entries")
        .clone()
}

fn key_at(map: &Map<String, Value>, random: &mut StdRng) -> Option<String> {
    let index = random.random_range(0..map.len().max(1));
    map.keys().nth(index).cloned()
}

fn remove_child(node: &mut Value, random: &mut StdRng) {
    match node {
        Value::Array(items) if !items.is_empty() => {
            items.remove(random.random_range(0..items.len()));
        }
        Value::Object(map) => {
            if let Some(key) = key_at(map, random) {
                map.remove(&key);
            }
        }
        _ => {}
    }
}

fn new_key(random: &mut StdRng) -> String {
    let key = KEYS.choose(random).expect("the table has entries");
    (*key).to_owned()
}

fn rename_child(node: &mut Value, random: &mut StdRng) {
    if let Value::Object(map) = node
        && let Some(value) = key_at(map, random).and_then(|key| map.remove(&key))
    {
        map.insert(new_key(random), value);
    }
}

fn insert_child(node: &mut Value, child: Value, random: &mut StdRng) {
    match node {
        Value::Array(items) => items.insert(random.random_range(0..=items.len()), child),
        Value::Object(map) => drop(map.insert(new_key(random), child)),
        _ => *node = json!([child]),
    }
}

/// Adds as many copies of a child as `count` returns for it. Half of the time their keys and names
/// differ, as those of list items with a merge key do.
fn repeat_child(node: &mut Value, count: impl Fn(&Value) -> usize, random: &mut StdRng) {
    let is_distinct = random.random_ratio(1, 2);
    match node {
        Value::Array(items) if !items.is_empty() => {
            let item = items[random.random_range(0..items.len())].clone();
            items.extend((0..count(&item)).map(|number| {
                let mut copy = item.clone();
                if is_distinct {
                    number_scalars(&mut copy, number);
                }
                copy
            }));
        }
        Value::Object(map) => {
            let Some(key) = key_at(map, random) else {
                return;
            };
            let value = map[&key].clone();
            let copies = 0..count(&value);
            map.extend(copies.map(|number| (format!("{key}{number}"), value.clone())));
        }
        _ => {}
    }
}

/// Appends a number to the texts of a list item, and adds it to its numbers.
fn number_scalars(item: &mut Value, number: usize) {
    match item {
        Value::String(text) => text.push_str(&number.to_string()),
        Value::Number(_) => *item = json!(number),
        Value::Object(map) => {
            for value in map.values_mut().filter(|value| !value.is_object()) {
                number_scalars(value, number);
            }
        }
        _ => {}
    }
}

fn nest(node: &mut Value, depth: usize, random: &mut StdRng) {
    let is_list = random.random_ratio(1, 2);
    let key = new_key(random);
    for _ in 0..depth {
        let inner = node.take();
        *node = match is_list {
            true => json!([inner]),
            false => json!({ &key: inner }),
        };
    }
}

fn change_text(node: &mut Value, random: &mut StdRng) {
    let Value::String(text) = node else {
        *node = extreme(random);
        return;
    };
    let mut bytes = std::mem::take(text).into_bytes();
    super::bytes::mutate(&mut bytes, b"", random);
    *text = String::from_utf8_lossy(&bytes).into_owned();
}

#[cfg(test)]
mod tests {
    use rand::SeedableRng as _;

    use super::*;

    #[test]
    fn mutated_values_stay_well_formed() {
        let mut random = StdRng::seed_from_u64(1);
        for _ in 0..2_000 {
            let mut input = b"/api/v1/pods/a\n{\"a\":[{\"name\":\"x\",\"n\":1}]}".to_vec();
            assert!(mutate(&mut input, &mut random));
            let rest = input.strip_prefix(b"/api/v1/pods/a\n").expect("the path");
            serde_json::from_slice::<Value>(rest).expect("JSON");
        }
    }

    #[test]
    fn input_without_json_is_left_alone() {
        let mut random = StdRng::seed_from_u64(1);
        let mut input = b"a=b\nc".to_vec();
        assert!(!mutate(&mut input, &mut random));
        assert_eq!(input, b"a=b\nc");
    }

    #[test]
    fn grown_values_have_about_the_size() {
        let mut random = StdRng::seed_from_u64(1);
        for _ in 0..50 {
            let mut input = br#"{"list":[{"name":"x"},1],"map":{"k":"v"}}"#.to_vec();
            assert!(grow(&mut input, 100_000, &mut random));
            assert!((30_000..300_000).contains(&input.len()), "{}", input.len());
        }
    }
}
