//! The CEL shape of a schema.
//! In: a structural schema. Out: types, maximum sizes and minimum encoded sizes, by which rules are
//! checked, estimated and evaluated.
//! Guarantees: sizes equal the estimates of Kubernetes, because they decide which rules are too
//! expensive.

use std::collections::BTreeMap;

use bellerophon_cel::{Field, ListOrder, Shape, ShapeKind, escape};

use crate::schema::Schema;

/// The largest request, in bytes: no value in an object can be longer.
pub(super) const REQUEST_MAX: u64 = 3 << 20;

/// A shape, and the least bytes that data of it takes in JSON.
#[derive(Clone, Debug)]
pub(super) struct Declared {
    pub(super) shape: Shape,
    pub(super) bytes_min: u64,
}

/// Whether a schema is that of a whole resource. Mirrors `isResourceRoot` of upstream's schemas.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum SchemaPosition {
    /// At the root of a resource, embedded ones included: kind, version and names are there whether
    /// declared or not.
    ResourceRoot,
    Nested,
}

impl SchemaPosition {
    pub(super) fn of(schema: &Schema) -> Self {
        if schema.embedded_resource {
            Self::ResourceRoot
        } else {
            Self::Nested
        }
    }
}

/// The shape of a schema.
pub(super) fn declare(schema: &Schema, position: SchemaPosition) -> Declared {
    let declared = |kind, size_max, bytes_min| Declared {
        shape: Shape {
            kind,
            nullable: schema.nullable,
            size_max,
        },
        bytes_min,
    };
    let count = |n: i64| u64::try_from(n).unwrap_or(0);
    let longest = schema.max_length.map(count);
    if schema.int_or_string {
        return declared(
            ShapeKind::IntOrString,
            longest.map_or(REQUEST_MAX - 2, |n| n.saturating_mul(4)),
            1,
        );
    }
    match schema.type_name.as_str() {
        "array" => match schema.item() {
            None => declared(ShapeKind::Hidden, 0, 0),
            Some(item) => {
                let inner = declare(item, SchemaPosition::of(item));
                let most = schema
                    .max_items
                    .map_or((REQUEST_MAX - 2) / (inner.bytes_min + 1), count);
                declared(
                    ShapeKind::List {
                        item: Box::new(inner.shape),
                        order: order(schema),
                    },
                    most,
                    2,
                )
            }
        },
        "object" => object(schema, position),
        "string" => match schema.format.as_str() {
            "byte" => declared(ShapeKind::Bytes, longest.unwrap_or(REQUEST_MAX - 2), 2),
            "duration" => declared(ShapeKind::Duration, 32, 3),
            "date" => declared(ShapeKind::Date, 12, 12),
            "date-time" => declared(ShapeKind::DateTime, 32, 21),
            _ => declared(
                ShapeKind::String,
                longest.map_or_else(|| length_max(schema), |n| n.saturating_mul(4)),
                2,
            ),
        },
        "boolean" => declared(ShapeKind::Bool, 0, 4),
        "number" => declared(ShapeKind::Double, 0, 1),
        "integer" => declared(ShapeKind::Int, 0, 1),
        _ => declared(ShapeKind::Hidden, 0, 0),
    }
}

/// The maximum length of a string without `maxLength`: the longest allowed value, or a whole
/// request.
fn length_max(schema: &Schema) -> u64 {
    if schema.allowed.is_empty() {
        return REQUEST_MAX - 2;
    }
    schema
        .allowed
        .iter()
        .filter_map(|value| value.as_str())
        .map(|text| text.len() as u64)
        .max()
        .unwrap_or(0)
}

fn order(schema: &Schema) -> ListOrder {
    match schema.list_type.as_deref() {
        Some("set") => ListOrder::Set,
        Some("map") => ListOrder::Keyed(schema.list_map_keys.clone()),
        _ => ListOrder::Atomic,
    }
}

fn object(schema: &Schema, position: SchemaPosition) -> Declared {
    if let Some(additional) = schema
        .additional()
        .filter(|_| position == SchemaPosition::Nested)
    {
        let inner = declare(additional, SchemaPosition::of(additional));
        let most = schema
            .max_properties
            .map_or((REQUEST_MAX - 2) / (inner.bytes_min + 6), |n| {
                u64::try_from(n).unwrap_or(0)
            });
        let shape = Shape {
            kind: ShapeKind::Map(Box::new(inner.shape)),
            nullable: schema.nullable,
            size_max: most,
        };
        return Declared {
            shape,
            bytes_min: 2,
        };
    }
    let mut bytes_min = 2;
    let mut fields = BTreeMap::new();
    let mut add = |name: &str, declared: Declared, counts: bool| {
        if counts && declared.shape.is_visible() {
            bytes_min += name.len() as u64 + declared.bytes_min + 4;
        }
        fields.insert(
            name.to_owned(),
            Field {
                escaped: escape(name),
                shape: declared.shape,
            },
        );
    };
    let required = |name: &str| schema.required.iter().any(|required| required == name);
    let implied = position == SchemaPosition::ResourceRoot && !declares_type_and_names(schema);
    for (name, property) in &schema.properties {
        if implied && matches!(name.as_str(), "kind" | "apiVersion" | "metadata") {
            continue;
        }
        add(
            name,
            declare(property, SchemaPosition::of(property)),
            required(name) && property.default.is_none(),
        );
    }
    if implied {
        for (name, shape) in [
            ("kind", text()),
            ("apiVersion", text()),
            ("metadata", names()),
        ] {
            let bytes_min = 2;
            add(name, Declared { shape, bytes_min }, required(name));
        }
    }
    let kind = ShapeKind::Object {
        name: "object".into(),
        fields,
    };
    Declared {
        shape: Shape {
            kind,
            nullable: schema.nullable,
            size_max: 0,
        },
        bytes_min,
    }
}

/// Whether a schema itself declares the fields of every resource.
fn declares_type_and_names(schema: &Schema) -> bool {
    let is = |schema: &Schema, name: &str, wanted: &str| {
        schema
            .properties
            .get(name)
            .is_some_and(|p| p.type_name == wanted)
    };
    let names = |metadata: &Schema| {
        is(metadata, "name", "string") && is(metadata, "generateName", "string")
    };
    is(schema, "kind", "string")
        && is(schema, "apiVersion", "string")
        && is(schema, "metadata", "object")
        && schema.properties.get("metadata").is_some_and(names)
}

fn text() -> Shape {
    Shape {
        kind: ShapeKind::String,
        nullable: false,
        size_max: REQUEST_MAX - 2,
    }
}

fn names() -> Shape {
    let field = |name: &str| {
        (
            name.to_owned(),
            Field {
                escaped: Some(name.to_owned()),
                shape: text(),
            },
        )
    };
    let fields = [field("name"), field("generateName")].into_iter().collect();
    Shape::of(ShapeKind::Object {
        name: "object".into(),
        fields,
    })
}
