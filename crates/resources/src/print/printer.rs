//! A kind as a row of a table.
//! In: one object. Out: its cells, in the order of the kind's columns.

use std::cmp::Ordering;

use bellerophon_apimachinery::{duration::since, table_column::Column, time::Time};
use bellerophon_codec::object::Object;
use serde::Serialize;
use serde_json::Value;

/// How the objects of one kind are printed.
pub struct Printer {
    /// The columns, wide ones included: a client leaves out what it does not want.
    pub(crate) columns: &'static [Column],
    /// The cells of an object at a time.
    pub(crate) cells: fn(&Object, Time) -> Vec<Value>,
    /// Conditions of the row as a whole.
    pub(crate) conditions: fn(&Object) -> Vec<RowCondition>,
    /// The order of rows, for kinds that are not printed in the order of the list.
    pub(crate) order: Option<fn(&Object, &Object) -> Ordering>,
    /// The value of `rows` when there are none.
    pub(crate) no_rows: NoRows,
}

/// The two messages of Kubernetes for a table without rows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NoRows {
    /// `[]`
    Empty,
    /// `null`
    Null,
}

/// The cells of one object and the conditions of its row.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Row {
    /// One for each column.
    pub(crate) cells: Vec<Value>,
    /// Mostly none.
    pub(crate) conditions: Vec<RowCondition>,
}

/// Something about a row that a client may want to act on.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) struct RowCondition {
    /// `Completed` is the only one there is.
    #[serde(rename = "type")]
    pub(crate) type_: &'static str,
    pub(crate) status: &'static str,
    pub(crate) reason: &'static str,
    pub(crate) message: &'static str,
}

impl Printer {
    /// Name and time of creation: kinds for which Kubernetes has no printer.
    pub(crate) const DEFAULT: Self = Self {
        columns: &[Column::NAME, Column::CREATED_AT],
        cells: |object, _| vec![name(object), created_at(object)],
        no_rows: NoRows::Null,
        ..Self::PLAIN
    };

    /// Name and age: kinds without other columns.
    pub(super) const PLAIN: Self = Self {
        columns: &[Column::NAME, Column::AGE],
        cells: |object, now| vec![name(object), age(object, now)],
        conditions: |_| Vec::new(),
        order: None,
        no_rows: NoRows::Empty,
    };

    /// The row of one object.
    pub(crate) fn row(&self, object: &Object, now: Time) -> Row {
        Row {
            cells: (self.cells)(object, now),
            conditions: (self.conditions)(object),
        }
    }
}

impl From<Vec<Value>> for Row {
    fn from(cells: Vec<Value>) -> Self {
        Self {
            cells,
            conditions: Vec::new(),
        }
    }
}

/// The cell every row starts with.
pub(super) fn name(object: &Object) -> Value {
    object.meta.name.as_str().into()
}

/// The cell with the age of the object.
pub(super) fn age(object: &Object, now: Time) -> Value {
    since(object.meta.creation_timestamp, now).into()
}

fn created_at(object: &Object) -> Value {
    // The zero time, as it is printed.
    object
        .meta
        .creation_timestamp
        .map_or_else(|| "0001-01-01T00:00:00Z".into(), |time| time.to_string())
        .into()
}

#[cfg(test)]
pub(super) mod tests {
    use serde_json::json;

    use super::*;
    use crate::print::printer;

    /// Ten minutes after everything in these tests was created.
    pub(in crate::print) const NOW: &str = "2026-01-02T03:14:05Z";

    pub(in crate::print) fn object(value: Value) -> Object {
        let Value::Object(map) = value else {
            panic!("an object")
        };
        Object::from_map(map).unwrap()
    }

    /// Prints an object named `x`, ten minutes old, and compares its cells.
    pub(in crate::print) fn check(api_version: &str, kind: &str, mut body: Value, cells: Value) {
        body["apiVersion"] = api_version.into();
        body["kind"] = kind.into();
        if body["metadata"].is_null() {
            body["metadata"] = json!({});
        }
        body["metadata"]["name"] = "x".into();
        body["metadata"]["creationTimestamp"] = "2026-01-02T03:04:05Z".into();
        let group = api_version.split_once('/').map_or("", |(group, _)| group);
        let printed = printer(group, kind).row(&object(body), Time::parse(NOW).unwrap());
        assert_eq!(Value::Array(printed.cells), cells, "{kind}");
    }

    #[test]
    fn kinds_without_a_printer_show_their_creation() {
        check(
            "rbac.authorization.k8s.io/v1",
            "Role",
            json!({}),
            json!(["x", "2026-01-02T03:04:05Z"]),
        );
        check(
            "example.com/v1",
            "Unheard",
            json!({}),
            json!(["x", "2026-01-02T03:04:05Z"]),
        );
        let unborn = object(json!({ "metadata": { "name": "x" } }));
        assert_eq!(created_at(&unborn), "0001-01-01T00:00:00Z");
        assert_eq!(age(&unborn, Time::parse(NOW).unwrap()), "<unknown>");
    }
}
