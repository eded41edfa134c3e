//! The columns of a custom resource's tables, and the values of its selectable fields.
//! In: a definition and an object. Out: one cell per column.
//! Guarantees: a path without a value, or with a value of another type, leaves the cell empty.

use bellerophon_apimachinery::{duration::human_duration, table_column::Column, time::Time};
use serde_json::Value;

use super::{
    definition::{ColumnDefinition, Version},
    jsonpath::JsonPath,
    number::Num,
};

/// One column, its path parsed.
#[derive(Clone, Debug)]
pub struct CustomColumn {
    /// How the column is described in a table.
    pub column: Column,
    path: JsonPath,
}

impl CustomColumn {
    /// The columns after `Name`: those of the definition up to the first with an invalid path, or
    /// the age of the object when it has none.
    pub fn of(version: &Version) -> Vec<Self> {
        if version.columns.is_empty() {
            let path =
                JsonPath::parse(".metadata.creationTimestamp").expect("the path is well formed");
            return vec![Self {
                column: Column {
                    name: "Age".into(),
                    ..Column::CREATED_AT
                },
                path,
            }];
        }
        version.columns.iter().map_while(Self::parse).collect()
    }

    fn parse(definition: &ColumnDefinition) -> Option<Self> {
        let description = match definition.description.as_str() {
            "" => format!(
                "Custom resource definition column (in JSONPath format): {}",
                definition.json_path
            ),
            text => text.to_owned(),
        };
        let column = Column {
            name: definition.name.clone().into(),
            type_: definition.type_name.clone().into(),
            format: definition.format.clone().into(),
            description: description.into(),
            priority: definition.priority.into(),
        };
        Some(Self {
            column,
            path: JsonPath::parse(&definition.json_path).ok()?,
        })
    }

    /// The cell of an object.
    pub fn cell(&self, object: &Value, now: Time) -> Value {
        let found = self.path.find(object).unwrap_or_default();
        let Some(value) = found.first() else {
            return Value::Null;
        };
        match &*self.column.type_ {
            "string" => Value::String(text(value)),
            other => typed(other, value, now),
        }
    }
}

/// A value as text: lists and objects as JSON, the rest as Go prints it.
fn text(value: &Value) -> String {
    match value {
        Value::Null => "<no value>".into(),
        Value::String(text) => text.clone(),
        Value::Number(number) => Num::of(number).to_string(),
        other => other.to_string(),
    }
}

fn typed(type_name: &str, value: &Value, now: Time) -> Value {
    match (type_name, value) {
        ("integer", Value::Number(n)) => Num::of(n).truncated().into(),
        ("number", Value::Number(_)) | ("boolean", Value::Bool(_)) => value.clone(),
        ("date", Value::String(text)) => since(text, now).into(),
        _ => Value::Null,
    }
}

fn since(text: &str, now: Time) -> String {
    match (text, Time::parse(text)) {
        ("" | "null", _) => "<unknown>".into(),
        (_, Ok(then)) => human_duration(now.as_second() - then.as_second()),
        (_, Err(_)) => "<invalid>".into(),
    }
}

/// A field that objects can be selected by.
#[derive(Clone, Debug)]
pub struct SelectableField {
    /// As selectors write it: `spec.color`.
    pub name: String,
    path: JsonPath,
}

impl SelectableField {
    /// The selectable fields of a version.
    pub fn of(version: &Version) -> Vec<Self> {
        let parse = |path: &String| {
            Some(Self {
                name: path.strip_prefix('.').unwrap_or(path).to_owned(),
                path: JsonPath::parse(path).ok()?,
            })
        };
        version.selectable_fields.iter().filter_map(parse).collect()
    }

    /// The value that selectors compare; empty when the object has none.
    pub fn value(&self, object: &Value) -> String {
        let found = self.path.find(object).unwrap_or_default();
        found
            .first()
            .filter(|v| !v.is_null())
            .map_or_else(String::new, |v| text(v))
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn now() -> Time {
        Time::parse("2020-01-01T01:00:00Z").expect("a constant")
    }

    #[test]
    fn cells_follow_the_type_of_their_column() {
        let object = json!({"spec": {
            "n": 3, "r": 1.5, "s": "hello", "b": true, "d": "2020-01-01T00:00:00Z", "later": "2999-01-01T00:00:00Z", "null": null,
            "l": ["a", "b"], "o": {"k": "x", "j": 1}, "ls": [{"t": "Up", "v": "no"}, {"t": "Ready", "v": "yes"}],
        }});
        for (type_name, path, cell) in [
            ("integer", ".spec.n", json!(3)),
            ("integer", ".spec.r", json!(1)),
            ("integer", ".spec.s", Value::Null),
            ("number", ".spec.r", json!(1.5)),
            ("number", ".spec.n", json!(3)),
            ("string", ".spec.s", json!("hello")),
            ("string", ".spec.n", json!("3")),
            ("string", ".spec.l", json!("[\"a\",\"b\"]")),
            ("string", ".spec.l[0]", json!("a")),
            ("string", ".spec.l[*]", json!("a")),
            ("string", ".spec.o", json!("{\"j\":1,\"k\":\"x\"}")),
            ("string", ".spec.ls[?(@.t=='Ready')].v", json!("yes")),
            ("string", ".spec.missing", Value::Null),
            ("string", ".spec.null", json!("<no value>")),
            ("boolean", ".spec.b", json!(true)),
            ("boolean", ".spec.s", Value::Null),
            ("date", ".spec.d", json!("60m")),
            ("date", ".spec.later", json!("<invalid>")),
            ("date", ".spec.s", json!("<invalid>")),
        ] {
            let definition = ColumnDefinition {
                type_name: type_name.into(),
                json_path: path.into(),
                ..ColumnDefinition::default()
            };
            let column = CustomColumn::parse(&definition).expect("a good path");
            assert_eq!(column.cell(&object, now()), cell, "{type_name} {path}");
        }
    }

    #[test]
    fn columns_end_at_a_broken_path_and_default_to_the_age() {
        let column = |path: &str| ColumnDefinition {
            name: path.into(),
            type_name: "string".into(),
            json_path: path.into(),
            ..ColumnDefinition::default()
        };
        let names = |columns: Vec<ColumnDefinition>| -> Vec<String> {
            CustomColumn::of(&Version {
                columns,
                ..Version::default()
            })
            .into_iter()
            .map(|c| c.column.name.into_owned())
            .collect()
        };
        assert_eq!(
            names(vec![column(".a"), column(".b[?(@"), column(".c")]),
            [".a"]
        );
        assert_eq!(names(vec![]), ["Age"]);
    }

    #[test]
    fn selectable_fields_compare_as_text() {
        let version = Version {
            selectable_fields: vec![".spec.on".into(), ".spec.size".into(), ".spec.none".into()],
            ..Version::default()
        };
        let object = json!({"spec": {"on": true, "size": 7}});
        let values: Vec<(String, String)> = SelectableField::of(&version)
            .iter()
            .map(|f| (f.name.clone(), f.value(&object)))
            .collect();
        assert_eq!(
            values,
            [
                ("spec.on".into(), "true".into()),
                ("spec.size".into(), "7".into()),
                ("spec.none".into(), String::new())
            ]
        );
    }
}
