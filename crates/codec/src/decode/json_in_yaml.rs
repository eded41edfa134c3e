//! YAML bodies that are JSON, as most clients send them for server-side apply.
//! In: a body. Out: the tree that the YAML decoder would return, several times faster.
//! Guarantees: a body is decoded here only if both decoders return the same tree; all others,
//! malformed ones included, are left to the YAML decoder, so that errors are its own.

use super::{Node, json};

/// Larger bodies are left to the YAML reader, which bounds the number of values.
const BYTES_MAX: usize = 256 << 10;

/// YAML has a limit of 1,024 characters for keys.
const KEY_MAX_BYTES: usize = 1_000;

/// Numbers up to this length are the same in both notations.
const NUMBER_MAX_BYTES: usize = 15;

/// The tree of a body that is JSON; `None` if the YAML reader has to read it.
pub(super) fn parse(bytes: &[u8]) -> Option<Node<'_>> {
    if bytes.len() > BYTES_MAX || !is_common(bytes) {
        return None;
    }
    let mut root = json::parse(bytes).ok()?;
    normalize(&mut root).then_some(root)
}

/// Whether the text of an object has only what both notations read alike: printable ASCII, the usual
/// escapes, and keys with their colon right behind them.
fn is_common(bytes: &[u8]) -> bool {
    let start = bytes.iter().find(|byte| !b" \n".contains(byte));
    if start != Some(&b'{') {
        return false;
    }
    let mut in_string = false;
    let mut bytes = bytes.iter().copied();
    let mut previous = b' ';
    while let Some(byte) = bytes.next() {
        match byte {
            b'"' => in_string = !in_string,
            b'\\' => match bytes.next() {
                Some(b'"' | b'\\' | b'n' | b't') if in_string => {}
                _ => return false,
            },
            b':' if !in_string && previous != b'"' => return false,
            b'\n' if !in_string => {}
            b' '..=b'~' => {}
            _ => return false,
        }
        previous = byte;
    }
    true
}

/// Sorts the members of objects, as YAML does. Returns whether the tree has only what both
/// notations read alike.
fn normalize(node: &mut Node<'_>) -> bool {
    match node {
        Node::Null | Node::Bool(_) | Node::String(_) => true,
        Node::Number(text) => {
            let digits = text.strip_prefix('-').unwrap_or(text);
            text.len() <= NUMBER_MAX_BYTES
                && *text != "-0"
                && digits.bytes().all(|byte| byte.is_ascii_digit())
        }
        Node::Array(items) => items.iter_mut().all(normalize),
        Node::Object(members) => {
            members.sort_by(|(a, _), (b, _)| a.cmp(b));
            let is_repeated = members.windows(2).any(|pair| pair[0].0 == pair[1].0);
            !is_repeated
                && members
                    .iter_mut()
                    .all(|(key, value)| key.len() <= KEY_MAX_BYTES && normalize(value))
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::{Map, Value, json};

    use super::*;
    use crate::decode::yaml;

    fn value() -> impl Strategy<Value = Value> {
        let text = "[ -~]{0,12}";
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i32>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            any::<u64>().prop_map(Value::from),
            text.prop_map(Value::from),
            any::<String>().prop_map(Value::from),
        ];
        leaf.prop_recursive(4, 40, 6, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..6).prop_map(Value::from),
                prop::collection::vec((text, inner), 0..6)
                    .prop_map(|members| Value::Object(members.into_iter().collect::<Map<_, _>>())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn both_readers_make_the_same_tree(value in value(), is_pretty in any::<bool>()) {
            let value = json!({ "root": value });
            let text = if is_pretty {
                serde_json::to_string_pretty(&value)
            } else {
                serde_json::to_string(&value)
            };
            let text = text.expect("a value has string keys");
            if let Some(node) = parse(text.as_bytes()) {
                let tree = yaml::read(text.as_bytes()).expect("JSON is YAML");
                prop_assert_eq!(node, tree.root, "{}", text);
                prop_assert_eq!(tree.repeated, None);
            }
        }
    }

    #[test]
    fn common_json_is_read_here() {
        for text in [
            "{}",
            " {\"a\": [1, -2, true, null, \"x: y # z\"]}\n",
            "{\"b\":{\"y\":\"on\"},\"a\":\"line\\n\\\"quoted\\\"\"}",
        ] {
            let tree = yaml::read(text.as_bytes()).expect("JSON is YAML");
            assert_eq!(parse(text.as_bytes()), Some(tree.root), "{text}");
        }
    }

    #[test]
    fn everything_else_is_left_to_yaml() {
        for text in [
            "",
            "[]",
            "a: 1",
            "{a: 1}",
            "{\"a\": 1.0}",
            "{\"a\": 1e3}",
            "{\"a\": -0}",
            "{\"a\": 12345678901234567890}",
            "{\"a\" : 1}",
            "{\"a\"\n: 1}",
            "{\"a\":\t1}",
            "{\"a\": \"\\u0041\"}",
            "{\"a\": \"\\/\"}",
            "{\"a\": \"é\"}",
            "{\"a\": 1, \"a\": 2}",
            "{\"a\": 1} # comment",
            "{\"a\": 1}\n---\n{}",
            "{\"a\": 1",
        ] {
            assert_eq!(parse(text.as_bytes()), None, "{text}");
        }
    }
}
