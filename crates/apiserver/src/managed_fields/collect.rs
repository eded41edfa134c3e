//! The fields that an applied configuration names, and set operations that need to know the types.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{
    FieldSet, PathElement,
    schema::{Atom, Identity, Node},
    set::Entry,
};

/// Every field of a value: leaves, keys of maps and items of lists.
pub(super) fn collect(node: Node<'_>, value: &Value) -> FieldSet {
    fields(node, value).1
}

/// Whether the place itself is a field, and the fields below it.
fn fields(node: Node<'_>, value: &Value) -> (bool, FieldSet) {
    const OWNED: (bool, FieldSet) = (true, FieldSet::EMPTY);
    match (node.atom(value), value) {
        (Atom::Scalar(_), _) => OWNED,
        (Atom::Map(map), _) if map.atomic => OWNED,
        (Atom::List(list), _) if matches!(list.identity, Identity::None) => OWNED,
        (Atom::Map(map), Value::Object(members)) => {
            let entries = members.iter().filter_map(|(key, value)| {
                let child = map.child(key)?;
                let (owned, children) = fields(child.node, value);
                let is_empty =
                    value.is_null() || value.as_object().is_some_and(serde_json::Map::is_empty);
                Some(Entry {
                    element: PathElement::field(key),
                    member: owned || is_empty || !child.named,
                    children,
                })
            });
            (false, FieldSet::from_entries(entries.collect()))
        }
        (Atom::List(list), Value::Array(items)) => {
            let mut places: BTreeMap<PathElement, Option<&Value>> = BTreeMap::new();
            for item in items {
                if let Ok(step) = list.step(item) {
                    places
                        .entry(step)
                        .and_modify(|only| *only = None)
                        .or_insert(Some(item));
                }
            }
            // No field inside a duplicate item can be owned.
            let inside = |item: Option<&Value>| {
                item.map(|item| collect(list.items, item))
                    .unwrap_or_default()
            };
            let entries = places.into_iter().map(|(element, item)| Entry {
                element,
                member: true,
                children: inside(item),
            });
            (false, FieldSet::from_entries(entries.collect()))
        }
        _ => (false, FieldSet::EMPTY),
    }
}

/// The same set, with every struct field on the path to a member. Sets leave those out, since a
/// struct exists implicitly.
pub(super) fn with_named(node: Node<'_>, set: &FieldSet) -> FieldSet {
    let atom = node.atom(&Value::Null);
    let entries = set.entries().iter().map(|entry| {
        let (next, named) = match (atom, &entry.element) {
            (Atom::Map(map), PathElement::Field(name)) => map
                .child(name)
                .map_or((Node::Deduced, false), |child| (child.node, child.named)),
            (Atom::List(list), _) => (list.items, false),
            _ => (Node::Deduced, false),
        };
        let member = entry.member || named && !entry.children.is_empty();
        Entry {
            element: entry.element.clone(),
            member,
            children: with_named(next, &entry.children),
        }
    });
    FieldSet::from_entries(entries.collect())
}

/// The value without the fields of a set. A map or list that loses everything is kept, empty.
pub(super) fn remove(node: Node<'_>, value: &Value, set: &FieldSet) -> Value {
    match (node.atom(value), value) {
        (Atom::Scalar(_), _) => value.clone(),
        (Atom::Map(map), Value::Object(members)) if !map.atomic && !members.is_empty() => {
            let mut touched = false;
            let mut out = serde_json::Map::new();
            for (key, inner) in members {
                let entry = set.get_field(key);
                match entry {
                    Some(entry) if entry.member => continue,
                    Some(entry) => {
                        touched = true;
                        let node = map.child(key).map_or(Node::Deduced, |child| child.node);
                        out.insert(key.clone(), remove_below(node, inner, &entry.children));
                    }
                    None => {
                        out.insert(key.clone(), inner.clone());
                    }
                }
            }
            if out.is_empty() && !touched {
                Value::Null
            } else {
                Value::Object(out)
            }
        }
        (Atom::List(list), Value::Array(items))
            if !matches!(list.identity, Identity::None) && !items.is_empty() =>
        {
            let mut touched = false;
            let mut out = Vec::with_capacity(items.len());
            for item in items {
                match list.step(item).ok().and_then(|step| set.get(&step)) {
                    Some(entry) if entry.member => continue,
                    Some(entry) => {
                        touched = true;
                        out.push(remove_below(list.items, item, &entry.children));
                    }
                    None => out.push(item.clone()),
                }
            }
            if out.is_empty() && !touched {
                Value::Null
            } else {
                Value::Array(out)
            }
        }
        _ => Value::Null,
    }
}

fn remove_below(node: Node<'_>, value: &Value, set: &FieldSet) -> Value {
    match (remove(node, value, set), value) {
        (Value::Null, Value::Object(_)) => Value::Object(serde_json::Map::new()),
        (Value::Null, Value::Array(_)) => Value::Array(Vec::new()),
        (left, _) => left,
    }
}
