//! Builds a `Table`, the form that `kubectl get` requests.
//! In: columns, and a row for each object. Out: a `Table` of group `meta.k8s.io`.

use std::borrow::Borrow;

use bellerophon_apimachinery::{
    error::ApiError, field::FieldError, table_column::Column, time::Time,
};
use bellerophon_codec::object::Object;
use serde_json::{Value, json};

use super::{
    form::ListMeta,
    partial::partial,
    printer::{NoRows, Printer, Row},
};
use crate::print::MetaVersion;

/// Marks the bookmark that ends a watch's initial events; clients look for it, so its row always
/// carries metadata.
const INITIAL_EVENTS_END: &str = "k8s.io/initial-events-end";

/// The object of a row: `includeObject`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IncludeObject {
    /// Nothing.
    None,
    /// The object's metadata.
    #[default]
    Metadata,
    /// The whole object.
    Object,
}

impl IncludeObject {
    /// Reads the query parameter `includeObject`; an empty one means metadata.
    ///
    /// # Errors
    /// 400 for any other word.
    pub fn parse(word: &str) -> Result<Self, ApiError> {
        match word {
            "None" => Ok(Self::None),
            "" | "Metadata" => Ok(Self::Metadata),
            "Object" => Ok(Self::Object),
            _ => {
                let errors = FieldError::invalid(
                    "includeObject",
                    word,
                    "must be 'Metadata', 'Object', 'None', or empty",
                );
                Err(ApiError::BadRequest(format!(
                    "Unable to convert to Table as requested: {errors}"
                )))
            }
        }
    }
}

/// The requested table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TableOptions {
    /// The version of the answer, and of the metadata in its rows.
    pub version: MetaVersion,
    /// The objects of rows.
    pub include: IncludeObject,
    /// Whether the columns are described; a watch does it only in its first event.
    pub describe_columns: bool,
}

impl Default for TableOptions {
    fn default() -> Self {
        Self {
            version: MetaVersion::V1,
            include: IncludeObject::Metadata,
            describe_columns: true,
        }
    }
}

/// The table of objects of a built-in kind: a list, or one object with [`ListMeta::of`] it.
pub fn table<O: Borrow<Object>>(
    printer: &Printer,
    objects: impl IntoIterator<Item = O>,
    now: Time,
    list: &ListMeta,
    options: TableOptions,
) -> Value {
    let mut objects: Vec<O> = objects.into_iter().collect();
    if let Some(order) = printer.order {
        objects.sort_by(|a, b| order(a.borrow(), b.borrow()));
    }
    let mut table = Table::new(printer.columns, options);
    for object in &objects {
        table.push(printer.row(object.borrow(), now), object.borrow());
    }
    let mut value = table.finish(list);
    if objects.is_empty() && printer.no_rows == NoRows::Null {
        value["rows"] = Value::Null;
    }
    value
}

/// A table in the making, for columns that are not a built-in kind's.
#[derive(Debug)]
pub struct Table<'a> {
    columns: &'a [Column],
    options: TableOptions,
    rows: Vec<Value>,
}

impl<'a> Table<'a> {
    /// A table with these columns and no rows.
    pub fn new(columns: &'a [Column], options: TableOptions) -> Self {
        Self {
            columns,
            options,
            rows: Vec::new(),
        }
    }

    /// Adds the row of an object, which is in the version that the client requested.
    pub fn push(&mut self, row: impl Into<Row>, object: &Object) {
        let row = row.into();
        let mut value = json!({ "cells": row.cells, "object": self.carried(object) });
        if !row.conditions.is_empty() {
            value["conditions"] = json!(row.conditions);
        }
        self.rows.push(value);
    }

    /// The encoded table.
    pub fn finish(self, list: &ListMeta) -> Value {
        json!({
            "kind": "Table",
            "apiVersion": self.options.version.api_version(),
            "metadata": list,
            "columnDefinitions": self.options.describe_columns.then_some(self.columns),
            "rows": self.rows,
        })
    }

    fn carried(&self, object: &Object) -> Value {
        match self.options.include {
            IncludeObject::Object => object.to_value(),
            IncludeObject::None
                if object
                    .meta
                    .annotations
                    .get(INITIAL_EVENTS_END)
                    .is_none_or(|value| value != "true") =>
            {
                Value::Null
            }
            IncludeObject::None | IncludeObject::Metadata => partial(object, self.options.version),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::print::{
        printer,
        printer::tests::{NOW, object},
    };

    fn settings() -> Object {
        object(json!({
            "apiVersion": "v1", "kind": "ConfigMap", "data": { "k": "v" },
            "metadata": { "name": "c", "resourceVersion": "7", "creationTimestamp": "2026-01-02T03:04:05Z" },
        }))
    }

    fn config_maps(objects: &[Object], options: TableOptions) -> Value {
        let list = ListMeta {
            resource_version: "9".into(),
            ..ListMeta::default()
        };
        table(
            printer("", "ConfigMap"),
            objects,
            Time::parse(NOW).unwrap(),
            &list,
            options,
        )
    }

    #[test]
    fn a_list_becomes_columns_and_rows() {
        let table = config_maps(&[settings()], TableOptions::default());
        assert_eq!(table["apiVersion"], "meta.k8s.io/v1");
        assert_eq!(table["metadata"], json!({ "resourceVersion": "9" }));
        let first = &table["columnDefinitions"][0];
        assert_eq!(&first["name"], &json!("Name"));
        assert_eq!(&first["type"], &json!("string"));
        assert_eq!(&first["format"], &json!("name"));
        assert_eq!(&first["priority"], &json!(0));
        let metadata = json!({ "name": "c", "resourceVersion": "7", "creationTimestamp": "2026-01-02T03:04:05Z" });
        let carried = json!({ "kind": "PartialObjectMetadata", "apiVersion": "meta.k8s.io/v1", "metadata": metadata });
        assert_eq!(
            table["rows"],
            json!([{ "cells": ["c", 1, "10m"], "object": carried }])
        );
    }

    #[test]
    fn rows_include_the_requested_object() {
        for (include, carried) in [
            ("None", json!(null)),
            ("Metadata", json!("PartialObjectMetadata")),
            ("", json!("PartialObjectMetadata")),
            ("Object", json!("ConfigMap")),
        ] {
            let include = IncludeObject::parse(include).unwrap();
            let table = config_maps(
                &[settings()],
                TableOptions {
                    include,
                    ..TableOptions::default()
                },
            );
            assert_eq!(
                table["rows"][0]["object"]
                    .get("kind")
                    .cloned()
                    .unwrap_or_default(),
                carried
            );
        }
        let ApiError::BadRequest(why) = IncludeObject::parse("Nonsense").unwrap_err() else {
            panic!("a bad request")
        };
        assert_eq!(
            why,
            "Unable to convert to Table as requested: includeObject: Invalid value: \"Nonsense\": must be 'Metadata', 'Object', 'None', or empty"
        );
    }

    #[test]
    fn later_watch_events_leave_the_columns_out() {
        let later = TableOptions {
            describe_columns: false,
            version: MetaVersion::V1Beta1,
            ..TableOptions::default()
        };
        let event = settings();
        let table = table(
            printer("", "ConfigMap"),
            [&event],
            Time::parse(NOW).unwrap(),
            &ListMeta::of(&event),
            later,
        );
        assert_eq!(table["columnDefinitions"], Value::Null);
        assert_eq!(table["metadata"]["resourceVersion"], "7");
        assert_eq!(&table["apiVersion"], &json!("meta.k8s.io/v1beta1"));
        assert_eq!(
            &table["rows"][0]["object"]["apiVersion"],
            &json!("meta.k8s.io/v1beta1")
        );
    }

    #[test]
    fn the_end_of_initial_events_is_never_hidden() {
        let bookmark = object(
            json!({ "metadata": { "resourceVersion": "7", "annotations": { INITIAL_EVENTS_END: "true" } } }),
        );
        let table = config_maps(
            &[bookmark],
            TableOptions {
                include: IncludeObject::None,
                ..TableOptions::default()
            },
        );
        assert_eq!(
            table["rows"][0]["object"]["metadata"]["annotations"][INITIAL_EVENTS_END],
            "true"
        );
    }

    #[test]
    fn an_empty_list_still_has_columns() {
        let table = config_maps(&[], TableOptions::default());
        assert_eq!(table["columnDefinitions"].as_array().unwrap().len(), 3);
        assert_eq!(table["rows"], json!([]));
        let none: [Object; 0] = [];
        let roles = super::table(
            &Printer::DEFAULT,
            none,
            Time::parse(NOW).unwrap(),
            &ListMeta::default(),
            TableOptions::default(),
        );
        assert_eq!(&roles["rows"], &Value::Null);
        assert_eq!(&roles["metadata"], &json!({}));
    }

    #[test]
    fn custom_columns_make_a_table_too() {
        let columns = [Column::NAME, Column::integer("Size", "how big").wide()];
        let mut table = Table::new(&columns, TableOptions::default());
        table.push(vec!["b".into(), 3.into()], &settings());
        let table = table.finish(&ListMeta::default());
        assert_eq!(
            table["columnDefinitions"][1],
            json!({ "name": "Size", "type": "integer", "format": "", "description": "how big", "priority": 1 })
        );
        assert_eq!(table["rows"][0]["cells"], json!(["b", 3]));
    }
}
