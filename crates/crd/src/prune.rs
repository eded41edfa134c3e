//! Pruning of unknown fields.
//! In: a custom resource and its schema. Out: the resource without unknown fields, and their paths.
//! Guarantees: fields of metadata, and of subtrees that preserve unknown fields, stay.

use serde_json::{Map, Value};

use super::schema::{DEPTH_MAX, Schema};

/// Fields of every resource, whatever its schema.
pub(super) const META_FIELDS: [&str; 3] = ["apiVersion", "kind", "metadata"];

/// Drops the unknown fields of a resource and returns their paths in alphabetical order:
/// `spec.in.cc`, `spec.list[0].x`.
pub(crate) fn prune_resource(resource: &mut Map<String, Value>, schema: &Schema) -> Vec<String> {
    let mut pruning = Pruning {
        path: String::new(),
        unknown: Vec::new(),
    };
    pruning.object(resource, schema, false, true);
    pruning.unknown.sort();
    pruning.unknown
}

/// Drops the unknown fields of any value below the root of a resource.
pub(super) fn prune_value(value: &mut Value, schema: &Schema) {
    Pruning {
        path: String::new(),
        unknown: Vec::new(),
    }
    .value(value, Some(schema), false, 0);
}

struct Pruning {
    /// Where we are.
    path: String,
    unknown: Vec<String>,
}

impl Pruning {
    /// `keep` is whether the list around this value preserves unknown fields; maps do not pass that
    /// on to their fields.
    fn value(&mut self, value: &mut Value, schema: Option<&Schema>, keep: bool, depth: usize) {
        match (value, schema) {
            (Value::Object(map), Some(schema)) => {
                self.object(map, schema, keep, schema.embedded_resource)
            }
            (Value::Object(map), None) => {
                let names: Vec<String> = std::mem::take(map)
                    .into_iter()
                    .map(|(name, _)| name)
                    .collect();
                names.iter().for_each(|name| self.record(name));
            }
            (Value::Array(list), schema) => self.list(list, schema, keep, depth),
            _ => {}
        }
    }

    fn object(
        &mut self,
        map: &mut Map<String, Value>,
        schema: &Schema,
        keep: bool,
        is_resource: bool,
    ) {
        let keep = keep || schema.preserves();
        let mut gone = Vec::new();
        for (name, value) in map.iter_mut() {
            if is_resource && META_FIELDS.contains(&name.as_str()) {
                continue;
            }
            match (schema.properties.get(name), &schema.additional_properties) {
                (Some(property), _) => {
                    self.below(name, |this| this.value(value, Some(property), false, 0))
                }
                (None, Some(_)) => self.below(name, |this| {
                    this.value(value, schema.additional(), false, 0)
                }),
                (None, None) if keep => {}
                (None, None) => {
                    if !self.path.is_empty() || !META_FIELDS.contains(&name.as_str()) {
                        self.record(name);
                    }
                    gone.push(name.clone());
                }
            }
        }
        gone.iter().for_each(|name| {
            map.remove(name);
        });
    }

    /// Lists of lists without a schema are the only values deeper than their schema; past the limit
    /// they are emptied.
    fn list(&mut self, list: &mut Vec<Value>, schema: Option<&Schema>, keep: bool, depth: usize) {
        if depth > DEPTH_MAX {
            list.clear();
        }
        let item = schema.and_then(Schema::item);
        let keep = keep || schema.is_some_and(Schema::preserves);
        if item.is_none() && keep {
            return;
        }
        for (index, value) in list.iter_mut().enumerate() {
            let length = self.path.len();
            self.path.push_str(&format!("[{index}]"));
            self.value(value, item, keep, depth + 1);
            self.path.truncate(length);
        }
    }

    fn below(&mut self, name: &str, prune: impl FnOnce(&mut Self)) {
        let length = self.path.len();
        if length > 0 {
            self.path.push('.');
        }
        self.path.push_str(name);
        prune(self);
        self.path.truncate(length);
    }

    fn record(&mut self, name: &str) {
        let dot = if self.path.is_empty() { "" } else { "." };
        self.unknown.push(format!("{}{dot}{name}", self.path));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[track_caller]
    fn check(schema: Value, value: Value, pruned: Value, unknown: &[&str]) {
        let schema = Schema::parse(&schema).expect("a valid schema");
        let mut map = value.as_object().expect("an object").clone();
        assert_eq!(prune_resource(&mut map, &schema), unknown);
        assert_eq!(Value::Object(map), pruned);
    }

    #[test]
    fn unknown_fields_are_dropped_at_every_level() {
        check(
            json!({"type": "object", "properties": {"spec": {"type": "object", "properties": {
                "in": {"type": "object", "properties": {"b": {"type": "string"}}},
                "l": {"type": "array", "items": {"type": "object", "properties": {"p": {"type": "string"}}}},
                "m": {"type": "object", "additionalProperties": {"type": "object", "properties": {"y": {"type": "string"}}}},
            }}}}),
            json!({"kind": "K", "other": 1, "status": {"x": 1}, "spec": {"zz": 1, "in": {"b": "1", "c": 2}, "l": [{"p": "1", "q": 2}], "m": {"k": {"y": "1", "z": 2}}}}),
            json!({"kind": "K", "spec": {"in": {"b": "1"}, "l": [{"p": "1"}], "m": {"k": {"y": "1"}}}}),
            &[
                "other",
                "spec.in.c",
                "spec.l[0].q",
                "spec.m.k.z",
                "spec.zz",
                "status",
            ],
        );
    }

    #[test]
    fn preserved_subtrees_prune_only_inside_known_fields() {
        check(
            json!({"type": "object", "properties": {
                "raw": {"type": "object", "x-kubernetes-preserve-unknown-fields": true, "properties": {
                    "known": {"type": "object", "properties": {"a": {"type": "string"}}}}},
                "plain": {"type": "object"},
            }}),
            json!({"raw": {"x": {"y": 1}, "known": {"a": "1", "gone": 1}}, "plain": {"gone": 1}}),
            json!({"raw": {"x": {"y": 1}, "known": {"a": "1"}}, "plain": {}}),
            &["plain.gone", "raw.known.gone"],
        );
    }

    #[test]
    fn embedded_resource_keeps_its_metadata() {
        check(
            json!({"type": "object", "properties": {"t": {"type": "object", "x-kubernetes-embedded-resource": true, "properties": {"spec": {"type": "object"}}}}}),
            json!({"t": {"apiVersion": "v1", "kind": "K", "metadata": {"name": "x"}, "spec": {"a": 1}, "other": 1}}),
            json!({"t": {"apiVersion": "v1", "kind": "K", "metadata": {"name": "x"}, "spec": {}}}),
            &["t.other", "t.spec.a"],
        );
    }

    #[test]
    fn lists_nested_without_end_are_cut() {
        let deep = (0..1000).fold(json!({"x": 1}), |inner, _| json!([inner]));
        let schema =
            Schema::parse(&json!({"type": "object", "properties": {"a": {"type": "array", "items": {"type": "string"}}}})).expect("valid");
        let mut map = json!({"a": deep}).as_object().expect("an object").clone();
        assert!(
            prune_resource(&mut map, &schema).is_empty(),
            "the cut comes before the innermost object"
        );
    }
}
