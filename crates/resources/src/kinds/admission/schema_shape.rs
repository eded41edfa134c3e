//! The shape of a kind, as expressions see it, from an OpenAPI v3 document.
//! In: a document of a group version. Out: the shape of one of its kinds, references resolved.
//! Mirrors `PopulateRefs` of `apiserver/pkg/cel/openapi/resolver` and `SchemaDeclType` of
//! `apiserver/pkg/cel/common`.

use std::collections::BTreeMap;

use bellerophon_apimachinery::json_ext::JsonExt as _;
use bellerophon_cel::{Field, ListOrder, Shape, ShapeKind, escape};
use serde_json::Value;

use super::type_check::GroupVersionKind;

/// How references to schemas begin.
const SCHEMAS: &str = "#/components/schemas/";

/// Published as a string or a number. kube-controller-manager treats it as a string.
const QUANTITY: &str = "io.k8s.apimachinery.pkg.api.resource.Quantity";

/// The position of a schema.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Place {
    /// At the root of an object or of an embedded one: kind, version and names are always there.
    Root,
    Inside,
}

impl Place {
    fn of(schema: &Value) -> Self {
        if schema.is_true("x-kubernetes-embedded-resource") {
            Self::Root
        } else {
            Self::Inside
        }
    }
}

/// The shape of a kind in an OpenAPI v3 document; `None` if its schema is not there.
#[must_use]
pub fn kind_shape(document: &Value, kind: &GroupVersionKind) -> Option<Shape> {
    let schemas = document.field("components").field("schemas");
    let is_kind = |schema: &Value| {
        let mut kinds = schema.list("x-kubernetes-group-version-kind").iter();
        kinds.any(|found| {
            found.text("group") == kind.group
                && found.text("version") == kind.version
                && found.text("kind") == kind.kind
        })
    };
    let (name, schema) = schemas.as_object()?.iter().find(|(_, s)| is_kind(s))?;
    let mut resolver = Resolver {
        schemas,
        visited: vec![name],
    };
    resolver.shape(schema, Place::Root)
}

struct Resolver<'a> {
    schemas: &'a Value,
    /// The references on the path to the current schema.
    visited: Vec<&'a str>,
}

impl<'a> Resolver<'a> {
    /// The shape of a schema; `None` if a reference cannot be resolved.
    fn shape(&mut self, schema: &'a Value, place: Place) -> Option<Shape> {
        let Some(name) = reference(schema) else {
            return self.resolved(schema, place);
        };
        if self.visited.contains(&name) {
            // A schema within itself is an object without fields.
            return Some(object(BTreeMap::new()));
        }
        let target = self.schemas.get(name)?;
        if name == QUANTITY {
            return Some(Shape::of(ShapeKind::String));
        }
        self.visited.push(name);
        let shape = self.resolved(target, place);
        self.visited.pop();
        shape
    }

    fn resolved(&mut self, schema: &'a Value, place: Place) -> Option<Shape> {
        let is_int_or_string = schema.text("format") == "int-or-string"
            || schema.is_true("x-kubernetes-int-or-string");
        if is_int_or_string {
            return Some(Shape::of(ShapeKind::IntOrString));
        }
        let kind = match schema.text("type") {
            "array" => match schema.get_set("items") {
                None => ShapeKind::Hidden,
                Some(items) => ShapeKind::List {
                    item: Box::new(self.shape(items, Place::of(items))?),
                    order: ListOrder::Atomic,
                },
            },
            "object" => return self.object(schema, place),
            "string" => match schema.text("format") {
                "byte" => ShapeKind::Bytes,
                "duration" => ShapeKind::Duration,
                "date" => ShapeKind::Date,
                "date-time" => ShapeKind::DateTime,
                _ => ShapeKind::String,
            },
            "boolean" => ShapeKind::Bool,
            "number" => ShapeKind::Double,
            "integer" => ShapeKind::Int,
            _ => ShapeKind::Hidden,
        };
        Some(Shape::of(kind))
    }

    fn object(&mut self, schema: &'a Value, place: Place) -> Option<Shape> {
        if let Some(values) = schema.get("additionalProperties").filter(|v| v.is_object()) {
            let values = self.shape(values, Place::of(values))?;
            return Some(Shape::of(ShapeKind::Map(Box::new(values))));
        }
        let mut fields = BTreeMap::new();
        for (name, property) in schema.entries("properties") {
            let shape = self.shape(property, Place::of(property))?;
            fields.insert(name.clone(), field(name, shape));
        }
        if place == Place::Root {
            add_type_and_names(&mut fields);
        }
        Some(object(fields))
    }
}

/// The name of the schema that a schema refers to, possibly within `allOf`.
fn reference(schema: &Value) -> Option<&str> {
    let own = schema.text("$ref").strip_prefix(SCHEMAS);
    own.or_else(|| schema.list("allOf").iter().find_map(reference))
}

fn object(fields: BTreeMap<String, Field>) -> Shape {
    let name = "object".into();
    Shape::of(ShapeKind::Object { name, fields })
}

fn field(name: &str, shape: Shape) -> Field {
    Field {
        escaped: escape(name),
        shape,
    }
}

/// Mirrors `WithTypeAndObjectMeta`.
fn add_type_and_names(fields: &mut BTreeMap<String, Field>) {
    let is_text = |fields: &BTreeMap<String, Field>, name: &str| {
        let found = fields.get(name);
        found.is_some_and(|field| matches!(field.shape.kind, ShapeKind::String))
    };
    let has_names = fields.get("metadata").is_some_and(|metadata| {
        matches!(&metadata.shape.kind, ShapeKind::Object { fields, .. }
            if is_text(fields, "name") && is_text(fields, "generateName"))
    });
    if is_text(fields, "kind") && is_text(fields, "apiVersion") && has_names {
        return;
    }
    let text = || Shape::of(ShapeKind::String);
    let names = ["name", "generateName"].map(|name| (name.to_owned(), field(name, text())));
    let metadata = object(names.into_iter().collect());
    for (name, shape) in [
        ("kind", text()),
        ("apiVersion", text()),
        ("metadata", metadata),
    ] {
        fields.insert(name.to_owned(), field(name, shape));
    }
}
