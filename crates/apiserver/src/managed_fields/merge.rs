//! Merges an applied configuration into an object.
//! Guarantees: fields that the configuration does not contain stay; its list items are in its
//! order, the other items between them at their relative positions.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use serde_json::{Map, Value};

use super::{
    PathElement,
    compare::zip,
    schema::{Atom, Identity, ListOf, Node},
};

/// The object with the configuration over it.
pub(super) fn merge(node: Node<'_>, live: &Value, config: &Value) -> Value {
    merged(node, Some(live), Some(config)).unwrap_or_default()
}

fn merged(node: Node<'_>, live: Option<&Value>, config: Option<&Value>) -> Option<Value> {
    let atom = match (live.map(|v| node.atom(v)), config.map(|v| node.atom(v))) {
        (Some(atom), None) | (None, Some(atom)) => atom,
        (Some(Atom::Map(_)), Some(atom @ Atom::Map(_)))
        | (Some(Atom::List(_)), Some(atom @ Atom::List(_))) => atom,
        _ => return config.or(live).cloned(),
    };
    match atom {
        Atom::Scalar(_) => config.or(live).cloned(),
        Atom::Map(map) => {
            let left = live.and_then(Value::as_object);
            let right = config.and_then(Value::as_object);
            if map.atomic || (left.is_none_or(Map::is_empty) && right.is_none_or(Map::is_empty)) {
                return config.or(live).cloned();
            }
            let member = |(key, left, right): (&str, Option<&Value>, Option<&Value>)| {
                let node = map.child(key).map_or(Node::Deduced, |child| child.node);
                Some((key.to_owned(), merged(node, left, right)?))
            };
            let out: Map<String, Value> = zip(left, right).filter_map(member).collect();
            (!out.is_empty()).then_some(Value::Object(out))
        }
        Atom::List(list) => {
            let left = items(live);
            let right = items(config);
            if matches!(list.identity, Identity::None) || (left.is_empty() && right.is_empty()) {
                return config.or(live).cloned();
            }
            let out = ListMerge::new(list, left, right).run();
            (!out.is_empty()).then_some(Value::Array(out))
        }
    }
}

fn items(value: Option<&Value>) -> &[Value] {
    value
        .and_then(Value::as_array)
        .map(Vec::as_slice)
        .unwrap_or_default()
}

/// The merge of two lists.
struct ListMerge<'s, 'v> {
    list: ListOf<'s>,
    live: Vec<(PathElement, &'v Value)>,
    config: Vec<(PathElement, &'v Value)>,
    /// The live item of each step; null where several share it, for those are not merged into.
    live_at: BTreeMap<PathElement, &'v Value>,
    configured: BTreeSet<PathElement>,
    /// The steps that both lists have, in the configuration's order, that are still to come.
    shared: VecDeque<PathElement>,
    taken: BTreeSet<PathElement>,
    out: Vec<Value>,
}

static NULL: Value = Value::Null;

impl<'s, 'v> ListMerge<'s, 'v> {
    fn new(list: ListOf<'s>, live: &'v [Value], config: &'v [Value]) -> Self {
        let steps = |items: &'v [Value]| {
            items
                .iter()
                .filter_map(|item| Some((list.step(item).ok()?, item)))
                .collect::<Vec<_>>()
        };
        let live = steps(live);
        let config = steps(config);
        let mut live_at: BTreeMap<PathElement, &Value> = BTreeMap::new();
        for (step, item) in &live {
            live_at
                .entry(step.clone())
                .and_modify(|only| *only = &NULL)
                .or_insert(item);
        }
        let configured = config.iter().map(|(step, _)| step.clone()).collect();
        let shared = config
            .iter()
            .map(|(step, _)| step)
            .filter(|step| live_at.contains_key(step))
            .cloned()
            .collect();
        Self {
            list,
            live,
            config,
            live_at,
            configured,
            shared,
            taken: BTreeSet::new(),
            out: Vec::new(),
        }
    }

    fn run(mut self) -> Vec<Value> {
        let mut l = 0;
        let mut c = 0;
        while l < self.live.len() || c < self.config.len() {
            if l < self.live.len() && c < self.config.len() {
                if self.live[l].0 == self.config[c].0 {
                    self.take_configured(c);
                    self.shared.pop_front();
                    l += 1;
                    c += 1;
                    continue;
                }
                let step = &self.live[l].0;
                if self.configured.contains(step)
                    && self.shared.front().is_some_and(|next| next != step)
                {
                    // Its turn comes later, or has been.
                    l += 1;
                    continue;
                }
            }
            if l < self.live.len() {
                let (step, item) = &self.live[l];
                if !self.configured.contains(step) {
                    let kept = merged(self.list.items, Some(item), None);
                    self.out.extend(kept);
                    l += 1;
                    continue;
                }
                if self.taken.contains(step) {
                    l += 1;
                }
            }
            if c < self.config.len() {
                let was_next = self.shared.front() == Some(&self.config[c].0);
                self.take_configured(c);
                if was_next {
                    self.shared.pop_front();
                }
                c += 1;
            }
        }
        self.out
    }

    fn take_configured(&mut self, at: usize) {
        let (step, item) = &self.config[at];
        let outcome = merged(self.list.items, self.live_at.get(step).copied(), Some(item));
        self.taken.insert(step.clone());
        self.out.extend(outcome);
    }
}
