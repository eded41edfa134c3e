//! Compares an object before and after a write: added, changed and removed fields as field sets.
//! Guarantees: one walk over both values; an atomic value is one field, whatever changed inside.

use std::collections::BTreeMap;

use serde_json::{Map, Value};

use super::{
    FieldSet, PathElement,
    schema::{Atom, Identity, ListOf, MapOf, Node},
    set::Entry,
};

/// The difference between two values.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Comparison {
    pub(crate) added: FieldSet,
    pub(crate) modified: FieldSet,
    pub(crate) removed: FieldSet,
}

/// The comparison of one node and of its descendants.
#[derive(Default)]
struct NodeComparison {
    added: bool,
    modified: bool,
    removed: bool,
    below: Comparison,
}

/// The comparisons of the children of one map or list.
#[derive(Default)]
pub(super) struct ComparisonBuilder {
    added: Vec<Entry>,
    modified: Vec<Entry>,
    removed: Vec<Entry>,
}

impl ComparisonBuilder {
    /// Compares the values of a field.
    pub(super) fn compare(
        &mut self,
        field: &str,
        node: Node<'_>,
        old: Option<&Value>,
        new: Option<&Value>,
    ) {
        self.push(|| PathElement::field(field), compare_node(node, old, new));
    }

    fn push(&mut self, element: impl FnOnce() -> PathElement, comparison: NodeComparison) {
        if comparison.is_empty() {
            return;
        }
        let element = element();
        let NodeComparison {
            added,
            modified,
            removed,
            below,
        } = comparison;
        let lists = [
            (&mut self.added, added, below.added),
            (&mut self.modified, modified, below.modified),
            (&mut self.removed, removed, below.removed),
        ];
        for (list, member, children) in lists {
            if member || !children.is_empty() {
                list.push(Entry {
                    element: element.clone(),
                    member,
                    children,
                });
            }
        }
    }

    pub(super) fn finish(self) -> Comparison {
        Comparison {
            added: FieldSet::from_entries(self.added),
            modified: FieldSet::from_entries(self.modified),
            removed: FieldSet::from_entries(self.removed),
        }
    }
}

impl NodeComparison {
    fn is_empty(&self) -> bool {
        let Comparison {
            added,
            modified,
            removed,
        } = &self.below;
        !self.added
            && !self.modified
            && !self.removed
            && added.is_empty()
            && modified.is_empty()
            && removed.is_empty()
    }
}

/// Compares two values of one type.
pub(super) fn compare(node: Node<'_>, old: &Value, new: &Value) -> Comparison {
    compare_node(node, Some(old), Some(new)).below
}

fn compare_node(node: Node<'_>, old: Option<&Value>, new: Option<&Value>) -> NodeComparison {
    // Most values did not change; equality needs no types.
    if old.is_some() && old == new {
        return NodeComparison::default();
    }
    let atom = match (old.map(|v| node.atom(v)), new.map(|v| node.atom(v))) {
        (Some(atom), None) | (None, Some(atom)) => atom,
        (Some(Atom::Map(_)), Some(atom @ Atom::Map(_)))
        | (Some(Atom::List(_)), Some(atom @ Atom::List(_))) => atom,
        _ => return leaf(old, new),
    };
    let below = match atom {
        Atom::Scalar(_) => return leaf(old, new),
        Atom::Map(map) => {
            let left = old.and_then(Value::as_object);
            let right = new.and_then(Value::as_object);
            if map.atomic || (left.is_none_or(Map::is_empty) && right.is_none_or(Map::is_empty)) {
                return leaf(old, new);
            }
            compare_maps(map, left, right)
        }
        Atom::List(list) => {
            let left = items(old);
            let right = items(new);
            if matches!(list.identity, Identity::None) || (left.is_empty() && right.is_empty()) {
                return leaf(old, new);
            }
            compare_lists(list, left, right)
        }
    };
    NodeComparison {
        added: old.is_none(),
        modified: false,
        removed: new.is_none(),
        below,
    }
}

fn items(value: Option<&Value>) -> &[Value] {
    value
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

fn leaf(old: Option<&Value>, new: Option<&Value>) -> NodeComparison {
    match (old, new) {
        (None, _) => NodeComparison {
            added: true,
            ..NodeComparison::default()
        },
        (_, None) => NodeComparison {
            removed: true,
            ..NodeComparison::default()
        },
        (Some(old), Some(new)) => NodeComparison {
            modified: !same(old, new),
            ..NodeComparison::default()
        },
    }
}

fn compare_maps(
    map: MapOf<'_>,
    old: Option<&Map<String, Value>>,
    new: Option<&Map<String, Value>>,
) -> Comparison {
    let mut comparison = ComparisonBuilder::default();
    for (key, left, right) in zip(old, new) {
        if let Some(child) = map.child(key) {
            comparison.compare(key, child.node, left, right);
        }
    }
    comparison.finish()
}

/// The members of two maps side by side, by key.
pub(super) fn zip<'v>(
    left: Option<&'v Map<String, Value>>,
    right: Option<&'v Map<String, Value>>,
) -> impl Iterator<Item = (&'v str, Option<&'v Value>, Option<&'v Value>)> {
    let of_left = left
        .into_iter()
        .flatten()
        .map(move |(key, value)| (key.as_str(), Some(value), right.and_then(|r| r.get(key))));
    let only_right = right
        .into_iter()
        .flatten()
        .filter(move |(key, _)| left.is_none_or(|l| !l.contains_key(*key)));
    of_left.chain(only_right.map(|(key, value)| (key.as_str(), None, Some(value))))
}

fn compare_lists(list: ListOf<'_>, old: &[Value], new: &[Value]) -> Comparison {
    // Items without a key are left out: no manager can own them.
    let mut places: BTreeMap<PathElement, (Vec<&Value>, Vec<&Value>)> = BTreeMap::new();
    for item in old {
        if let Ok(step) = list.step(item) {
            places.entry(step).or_default().0.push(item);
        }
    }
    for item in new {
        if let Ok(step) = list.step(item) {
            places.entry(step).or_default().1.push(item);
        }
    }
    let mut comparison = ComparisonBuilder::default();
    for (step, (left, right)) in places {
        let found = match (left.as_slice(), right.as_slice()) {
            ([] | [_], [] | [_]) => {
                compare_node(list.items, left.first().copied(), right.first().copied())
            }
            ([_, _, ..], [_, _, ..]) => {
                let equal =
                    left.len() == right.len() && left.iter().zip(&right).all(|(l, r)| same(l, r));
                NodeComparison {
                    modified: !equal,
                    ..NodeComparison::default()
                }
            }
            // Repeated items are one field; where they stop being repeated, the fields inside are
            // new.
            ([_, _, ..], _) => {
                let inside = right
                    .first()
                    .map(|item| compare_node(list.items, None, Some(item)))
                    .unwrap_or_default();
                NodeComparison {
                    removed: true,
                    ..inside
                }
            }
            (_, _) => {
                let inside = left
                    .first()
                    .map(|item| compare_node(list.items, Some(item), None))
                    .unwrap_or_default();
                NodeComparison {
                    added: true,
                    ..inside
                }
            }
        };
        comparison.push(|| step, found);
    }
    comparison.finish()
}

/// Whether two values are equal; `1` equals `1.0`.
pub(super) fn same(left: &Value, right: &Value) -> bool {
    match (left, right) {
        (Value::Number(l), Value::Number(r)) => {
            l == r || (l.is_f64() || r.is_f64()) && l.as_f64() == r.as_f64()
        }
        (Value::Array(l), Value::Array(r)) => {
            l.len() == r.len() && l.iter().zip(r).all(|(l, r)| same(l, r))
        }
        (Value::Object(l), Value::Object(r)) => {
            l.len() == r.len()
                && l.iter()
                    .all(|(key, value)| r.get(key).is_some_and(|other| same(value, other)))
        }
        (left, right) => left == right,
    }
}
