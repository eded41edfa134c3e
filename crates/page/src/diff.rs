//! Structural diff of two versions of an object.
//!
//! In: two visible objects. Out: the changed fields with their old and new values.
//! Guarantees: the changes, applied to the old object, result in the new one. Lists whose elements
//! have a name or type are compared by it (`conditions[Ready].status`), and their order is a
//! separate change; others are replaced as a whole.

use serde::Serialize;
use serde_json::{Map, Value};

use crate::secret::Visible;

/// The members by which elements of a list are identified.
const ELEMENT_KEYS: [&str; 4] = ["type", "name", "uid", "ip"];

/// The length of a shortened value.
const VALUE_MAX_CHARS: usize = 160;

/// Fields that change with every write of any field.
const BOOKKEEPING: [&str; 3] = [
    "metadata.managedFields",
    "metadata.resourceVersion",
    "metadata.generation",
];

/// One changed field.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub(crate) struct Change {
    /// The path: `status.conditions[Ready].status`.
    pub(crate) path: String,
    /// The old value; `None` if the field is new.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) old: Option<Value>,
    /// The new value; `None` if the field was removed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) new: Option<Value>,
    #[serde(skip)]
    steps: Vec<Step>,
}

/// One step of a path.
#[derive(Clone, Debug, PartialEq)]
enum Step {
    Member(String),
    /// The element of a list whose member has this value.
    Element(&'static str, String),
    /// The order of the elements of a list, by the values of this member.
    Order(&'static str),
}

impl Change {
    /// Whether the field changes with every write, or only the order of a list did.
    pub(crate) fn is_bookkeeping(&self) -> bool {
        matches!(self.steps.last(), Some(Step::Order(_)))
            || BOOKKEEPING.iter().any(|path| self.path.starts_with(path))
    }

    /// Shortens long values.
    pub(crate) fn shorten(&mut self) {
        for value in [&mut self.old, &mut self.new].into_iter().flatten() {
            let text = match &*value {
                Value::String(text) => text.clone(),
                Value::Object(_) | Value::Array(_) => value.to_string(),
                _ => continue,
            };
            if let Some((end, _)) = text.char_indices().nth(VALUE_MAX_CHARS) {
                *value = Value::from(format!("{}…", &text[..end]));
            }
        }
    }
}

/// The changes from one object to another.
pub(crate) fn changes(before: &Visible, after: &Visible) -> Vec<Change> {
    let mut differ = Differ::default();
    differ.compare(before.value(), after.value());
    differ.changes
}

/// The element of a list whose member has this value.
fn find<'a>(list: &'a [Value], key: &str, id: &str) -> Option<&'a Value> {
    list.iter().find(|element| element[key] == id)
}

#[derive(Default)]
struct Differ {
    steps: Vec<Step>,
    changes: Vec<Change>,
}

impl Differ {
    fn compare(&mut self, old: &Value, new: &Value) {
        match (old, new) {
            _ if old == new => {}
            (Value::Object(old), Value::Object(new)) => self.compare_members(old, new),
            (Value::Array(olds), Value::Array(news)) => match element_key(olds, news) {
                Some(key) => self.compare_elements(key, olds, news),
                None => self.add(Some(old), Some(new)),
            },
            _ => self.add(Some(old), Some(new)),
        }
    }

    fn compare_members(&mut self, old: &Map<String, Value>, new: &Map<String, Value>) {
        for (name, value) in old {
            self.steps.push(Step::Member(name.clone()));
            match new.get(name) {
                Some(changed) => self.compare(value, changed),
                None => self.add(Some(value), None),
            }
            self.steps.pop();
        }
        for (name, value) in new.iter().filter(|(name, _)| !old.contains_key(*name)) {
            self.steps.push(Step::Member(name.clone()));
            self.add(None, Some(value));
            self.steps.pop();
        }
    }

    fn compare_elements(&mut self, key: &'static str, olds: &[Value], news: &[Value]) {
        for old in olds {
            let id = old[key].as_str().unwrap_or_default();
            self.steps.push(Step::Element(key, id.to_owned()));
            match find(news, key, id) {
                Some(new) => self.compare(old, new),
                None => self.add(Some(old), None),
            }
            self.steps.pop();
        }
        for new in news {
            let id = new[key].as_str().unwrap_or_default();
            if find(olds, key, id).is_none() {
                self.steps.push(Step::Element(key, id.to_owned()));
                self.add(None, Some(new));
                self.steps.pop();
            }
        }
        self.compare_order(key, olds, news);
    }

    /// Controllers append the conditions that they change, so the order of a list changes often.
    fn compare_order(&mut self, key: &'static str, olds: &[Value], news: &[Value]) {
        let ids = |list: &[Value]| -> Vec<Value> {
            list.iter().map(|element| element[key].clone()).collect()
        };
        let old = ids(olds);
        let new = ids(news);
        let kept = old.iter().filter(|id| new.contains(id));
        let added = new.iter().filter(|id| !old.contains(id));
        if !kept.chain(added).eq(new.iter()) {
            self.steps.push(Step::Order(key));
            self.add(Some(&Value::from(old)), Some(&Value::from(new)));
            self.steps.pop();
        }
    }

    fn add(&mut self, old: Option<&Value>, new: Option<&Value>) {
        self.changes.push(Change {
            path: text(&self.steps),
            old: old.cloned(),
            new: new.cloned(),
            steps: self.steps.clone(),
        });
    }
}

/// The member that identifies the elements of both lists.
fn element_key(olds: &[Value], news: &[Value]) -> Option<&'static str> {
    ELEMENT_KEYS.into_iter().find(|key| {
        let ids = |list: &[Value]| -> Option<Vec<String>> {
            let ids: Option<Vec<_>> = list
                .iter()
                .map(|element| element.get(key)?.as_str().map(str::to_owned))
                .collect();
            let ids = ids?;
            let mut unique = ids.clone();
            unique.sort();
            unique.dedup();
            (unique.len() == ids.len()).then_some(ids)
        };
        let (Some(old), Some(new)) = (ids(olds), ids(news)) else {
            return false;
        };
        !old.is_empty() && !new.is_empty()
    })
}

fn text(steps: &[Step]) -> String {
    let mut text = String::new();
    for step in steps {
        match step {
            // Names of annotations and keys of data may have dots.
            Step::Member(name) if name.contains(['.', '/', '[']) => {
                text.push_str(&format!("[{name}]"));
            }
            Step::Member(name) => {
                if !text.is_empty() {
                    text.push('.');
                }
                text.push_str(name);
            }
            Step::Element(_, id) => text.push_str(&format!("[{id}]")),
            Step::Order(_) => text.push_str(" (order)"),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn diff(before: &Value, after: &Value) -> Vec<Change> {
        changes(&Visible::of(before.clone()), &Visible::of(after.clone()))
    }

    /// Applies changes, to check that nothing is missing from them.
    fn apply(mut object: Value, changes: &[Change]) -> Value {
        for change in changes {
            set(&mut object, &change.steps, change.new.as_ref());
        }
        object
    }

    fn set(at: &mut Value, steps: &[Step], new: Option<&Value>) {
        let Some((step, rest)) = steps.split_first() else {
            *at = new.cloned().unwrap();
            return;
        };
        match (step, at) {
            (Step::Member(name), Value::Object(members)) => match (rest.is_empty(), new) {
                (true, None) => drop(members.remove(name)),
                _ => set(
                    members.entry(name.clone()).or_insert(Value::Null),
                    rest,
                    new,
                ),
            },
            (Step::Element(key, id), Value::Array(elements)) => {
                let place = elements.iter().position(|element| element[*key] == *id);
                match (place, rest.is_empty(), new) {
                    (Some(place), true, None) => drop(elements.remove(place)),
                    (Some(place), ..) => set(&mut elements[place], rest, new),
                    (None, ..) => elements.push(new.cloned().unwrap()),
                }
            }
            (Step::Order(key), Value::Array(elements)) => {
                let ids = new.unwrap().as_array().unwrap();
                let place = |element: &Value| ids.iter().position(|id| element[*key] == *id);
                elements.sort_by_key(place);
            }
            (step, at) => panic!("no {step:?} in {at}"),
        }
    }

    #[test]
    fn changed_fields_have_the_paths_that_users_know() {
        let before = json!({
            "spec": { "replicas": 2, "paused": true },
            "status": { "conditions": [
                { "type": "Ready", "status": "False" }, { "type": "Old", "status": "True" },
            ] },
            "list": [1, 2],
        });
        let after = json!({
            "metadata": { "annotations": { "example.com/a": "b" } },
            "spec": { "replicas": 4 },
            "status": { "conditions": [
                { "type": "Ready", "status": "True" }, { "type": "New", "status": "True" },
            ] },
            "list": [2, 1],
        });
        let changes = diff(&before, &after);
        let paths: Vec<_> = changes.iter().map(|change| change.path.as_str()).collect();
        assert_eq!(
            paths,
            [
                "list",
                "spec.paused",
                "spec.replicas",
                "status.conditions[Ready].status",
                "status.conditions[Old]",
                "status.conditions[New]",
                "metadata",
            ]
        );
        assert_eq!(apply(before, &changes), after);
    }

    #[test]
    fn names_with_dots_are_in_brackets() {
        let before = json!({ "data": { "a.conf": "1" } });
        let after = json!({ "data": { "a.conf": "2" } });
        assert_eq!(diff(&before, &after)[0].path, "data[a.conf]");
    }

    #[test]
    fn long_values_are_shortened() {
        let mut change = diff(&json!({ "a": "x" }), &json!({ "a": "é".repeat(500) })).remove(0);
        change.shorten();
        let new = change.new.unwrap();
        assert_eq!(new.as_str().unwrap().chars().count(), VALUE_MAX_CHARS + 1);
    }

    /// JSON of up to three levels, with lists as those of conditions and containers.
    fn any_value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            (0..4i64).prop_map(Value::from),
            "[ab]{0,2}".prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 4, |inner| {
            let element = ("[abc]", inner.clone())
                .prop_map(|(name, value)| json!({ "name": name, "value": value }));
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::vec(element, 0..4).prop_map(Value::from),
                prop::collection::btree_map("[abc./]", inner, 0..4)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(1_000))]
        #[test]
        fn applied_diff_is_the_new_object(
            before in any_value().prop_map(|value| json!({ "a": value })),
            after in any_value().prop_map(|value| json!({ "a": value })),
        ) {
            let changes = diff(&before, &after);
            prop_assert_eq!(apply(before, &changes), after);
        }
    }
}
