//! The schemas of built-in types, made from the table of types.
//! Guarantees: every schema that another refers to is there.

use bellerophon_codec::types::{Field, Item, ListKind, Patch, Published, Shape, Union};
use serde_json::{Map, Value, json};

use super::{
    descriptions,
    entries::{Encoding, Entries},
    form::Form,
    paths::kind_of,
};

const META: &str = "io.k8s.apimachinery.pkg.apis.meta.v1";
const EXTENSIONS: &str = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1";

/// The schemas of a document, by name.
#[derive(Debug)]
pub(super) struct Schemas {
    pub(super) form: Form,
    /// Kinds that every group has are marked for this group and version alone; for all of them
    /// without one.
    scope: Option<(String, String)>,
    known: Entries,
}

impl Schemas {
    /// Schemas of a document about every group.
    pub(super) fn new(form: Form, encoding: Encoding) -> Self {
        Self {
            form,
            scope: None,
            known: Entries::schemas(encoding),
        }
    }

    /// Schemas of a document about one group and version.
    pub(super) fn within(group: &str, version: &str) -> Self {
        Self {
            scope: Some((group.to_owned(), version.to_owned())),
            ..Self::new(Form::V3, Encoding::Json)
        }
    }

    /// A reference to the schema of a kind; `None` for a kind without one.
    pub(super) fn of_kind(&mut self, group: &str, version: &str, kind: &str) -> Option<Value> {
        Published::of_kind(group, version, kind).map(|published| self.reference(published))
    }

    /// A reference to a kind of the API machinery itself, such as `Status`.
    pub(super) fn of_meta(&mut self, kind: &str) -> Value {
        self.of_kind("", "v1", kind)
            .expect("the table has the kinds of the API machinery")
    }

    /// A reference to the type of a field of a core kind, such as `metadata`.
    pub(super) fn of_field(&mut self, kind: &str, field: &str) -> Value {
        let item = Published::of_kind("", "v1", kind)
            .and_then(|p| p.type_().field(field))
            .map(|f| f.shape.item());
        let published = item
            .and_then(Published::of_item)
            .expect("the table has the fields of the API machinery");
        self.reference(published)
    }

    /// A reference to what `/version` answers, which is no kind.
    pub(super) fn of_version_info(&mut self) -> Value {
        let info = Published::all()
            .find(|published| published.name() == "io.k8s.apimachinery.pkg.version.Info");
        self.reference(info.expect("the table has the types of the API machinery"))
    }

    /// A reference to what patches are, which is no type of the table.
    pub(super) fn of_patch(&mut self) -> Value {
        let name = format!("{META}.Patch");
        let schema = described(
            descriptions::of_type(&name),
            Map::from_iter([("type".into(), "object".into())]),
        );
        self.add(&name, &schema.into())
    }

    /// Adds a schema that is no built-in type.
    pub(super) fn add(&mut self, name: &str, schema: &Value) -> Value {
        self.known.add(name, schema);
        self.form.refer(name)
    }

    /// All of them.
    pub(super) fn finish(self) -> Entries {
        self.known
    }

    fn reference(&mut self, published: Published) -> Value {
        let name = published.name();
        if !self.known.contains(&name) {
            // Types refer to themselves, so the name is taken before the schema is made.
            self.known.reserve(&name);
            let schema = self.schema(published, &name);
            self.known.add(&name, &schema);
        }
        self.form.refer(&name)
    }

    fn schema(&mut self, published: Published, name: &str) -> Value {
        let type_ = published.type_();
        let mut schema = described(
            descriptions::of_type(name),
            Map::from_iter([("type".into(), "object".into())]),
        );
        let properties: Map<String, Value> = type_
            .fields()
            .iter()
            .map(|f| (f.name.to_owned(), self.field(name, f)))
            .collect();
        if !properties.is_empty() {
            schema.insert("properties".into(), properties.into());
        }
        let required: Vec<&str> = type_
            .fields()
            .iter()
            .filter(|f| f.required)
            .map(|f| f.name)
            .collect();
        if !required.is_empty() {
            schema.insert("required".into(), required.into());
        }
        if type_.atomic {
            schema.insert("x-kubernetes-map-type".into(), "atomic".into());
        }
        let kinds: Vec<Value> = self.kinds(published);
        if !kinds.is_empty() {
            schema.insert("x-kubernetes-group-version-kind".into(), kinds.into());
        }
        if let Some(union) = published.union() {
            schema.insert("x-kubernetes-unions".into(), json!([union_of(union)]));
        }
        schema.into()
    }

    /// Group, version and kind of what has this type, as far as the document is about it.
    fn kinds(&self, published: Published) -> Vec<Value> {
        let all: Vec<(&str, &str, &str)> = published.kinds().collect();
        // Only what every group has is of more than one kind.
        let everywhere = all.len() > 1;
        let is_served = |group: &str, version: &str| match &self.scope {
            Some((own, of)) if everywhere => group.is_empty() || (group, version) == (own, of),
            _ => true,
        };
        all.into_iter()
            .filter(|(group, version, _)| is_served(group, version))
            .map(|(group, version, kind)| kind_of(group, version, kind))
            .collect()
    }

    fn field(&mut self, owner: &str, field: &Field) -> Value {
        let item = field.shape.item();
        let mut schema = match field.shape {
            Shape::One(_) => limited(self.item(item), field),
            Shape::List(_) => array(self.inner(item, field)),
            Shape::Map(_) => map(self.inner(item, field)),
            Shape::MapOfLists(_) => map(array(self.inner(item, field))),
        };
        if let Some(default) = default_of(field).filter(|_| self.form.has_defaults()) {
            schema.entry("default").or_insert(default);
        }
        mark_merging(field, &mut schema);
        self.form.whole(described(
            descriptions::with_values(descriptions::of_field(owner, field.name), field.one_of),
            schema,
        ))
    }

    /// One item of a list, or one value of a map; where it is left empty, it is its zero value.
    fn inner(&mut self, item: Item, field: &Field) -> Value {
        let mut schema = limited(self.item(item), field);
        if let Some(zero) = zero(item).filter(|_| self.form.has_defaults()) {
            schema.insert("default".into(), zero);
        }
        self.form.whole(schema)
    }

    fn item(&mut self, item: Item) -> Map<String, Value> {
        let plain = |type_: &str, format: &str| {
            let format = (!format.is_empty()).then(|| ("format".to_owned(), Value::from(format)));
            std::iter::once(("type".to_owned(), Value::from(type_)))
                .chain(format)
                .collect()
        };
        match item {
            Item::Str => plain("string", ""),
            Item::Bool => plain("boolean", ""),
            Item::Int32 => plain("integer", "int32"),
            Item::Int64 => plain("integer", "int64"),
            Item::Double => plain("number", "double"),
            Item::Bytes => plain("string", "byte"),
            Item::Object(_) => {
                let published = Published::of_item(item).expect("it is a struct");
                into_map(self.reference(published))
            }
            special => self.special(special),
        }
    }

    /// Types that are written otherwise than by their fields.
    fn special(&mut self, item: Item) -> Map<String, Value> {
        let v2 = self.form == Form::V2;
        let (name, schema) = match item {
            Item::Time => (
                format!("{META}.Time"),
                json!({"type": "string", "format": "date-time"}),
            ),
            Item::MicroTime => (
                format!("{META}.MicroTime"),
                json!({"type": "string", "format": "date-time"}),
            ),
            Item::Owned => (format!("{META}.FieldsV1"), json!({"type": "object"})),
            Item::Quantity => (
                "io.k8s.apimachinery.pkg.api.resource.Quantity".into(),
                if v2 {
                    json!({"type": "string"})
                } else {
                    json!({"oneOf": [{"type": "string"}, {"type": "number"}]})
                },
            ),
            Item::IntOrString => (
                "io.k8s.apimachinery.pkg.util.intstr.IntOrString".into(),
                if v2 {
                    json!({"type": "string", "format": "int-or-string"})
                } else {
                    json!({"format": "int-or-string", "oneOf": [{"type": "integer"}, {"type": "string"}]})
                },
            ),
            Item::SchemaOrBool => (format!("{EXTENSIONS}.JSONSchemaPropsOrBool"), json!({})),
            Item::SchemaOrArray => (format!("{EXTENSIONS}.JSONSchemaPropsOrArray"), json!({})),
            Item::SchemaOrStrings => (
                format!("{EXTENSIONS}.JSONSchemaPropsOrStringArray"),
                json!({}),
            ),
            Item::Json => (format!("{EXTENSIONS}.JSON"), json!({})),
            _ => (
                "io.k8s.apimachinery.pkg.runtime.RawExtension".into(),
                json!({"type": "object"}),
            ),
        };
        let schema = described(descriptions::of_type(&name), into_map(schema));
        into_map(self.add(&name, &schema.into()))
    }
}

/// A schema with its description.
pub(super) fn described(
    about: Option<std::borrow::Cow<'static, str>>,
    mut schema: Map<String, Value>,
) -> Map<String, Value> {
    if let Some(about) = about {
        schema.insert("description".into(), about.into());
    }
    schema
}

/// Which fields of a type exclude each other.
fn union_of(union: Union) -> Map<String, Value> {
    let members: Map<String, Value> = union
        .members
        .iter()
        .map(|(field, value)| ((*field).to_owned(), (*value).into()))
        .collect();
    let discriminator = (!union.discriminator.is_empty())
        .then(|| ("discriminator".to_owned(), union.discriminator.into()));
    discriminator
        .into_iter()
        .chain([("fields-to-discriminateBy".to_owned(), members.into())])
        .collect()
}

/// A schema of the values that a field is limited to.
fn limited(mut schema: Map<String, Value>, field: &Field) -> Map<String, Value> {
    if !field.one_of.is_empty() {
        schema.insert("enum".into(), field.one_of.into());
    }
    schema
}

fn into_map(value: Value) -> Map<String, Value> {
    match value {
        Value::Object(map) => map,
        _ => Map::new(),
    }
}

fn array(items: Value) -> Map<String, Value> {
    Map::from_iter([("type".into(), "array".into()), ("items".into(), items)])
}

fn map(values: impl Into<Value>) -> Map<String, Value> {
    Map::from_iter([
        ("type".into(), "object".into()),
        ("additionalProperties".into(), values.into()),
    ])
}

/// The value of a field that is left out: the published default, or the zero value of a field that
/// is always written.
fn default_of(field: &Field) -> Option<Value> {
    if let Some(text) = field.default {
        return serde_json::from_str(text).ok();
    }
    let Shape::One(item) = field.shape else {
        return None;
    };
    let always = matches!(item, Item::Object(_)) || !field.omit_empty;
    if field.pointer || !always {
        None
    } else {
        zero(item)
    }
}

fn zero(item: Item) -> Option<Value> {
    match item {
        Item::Str => Some("".into()),
        Item::Bool => Some(false.into()),
        Item::Int32 | Item::Int64 | Item::Double => Some(0.into()),
        Item::Object(_) => Some(json!({})),
        _ => None,
    }
}

/// How patches and applies merge the field.
fn mark_merging(field: &Field, schema: &mut Map<String, Value>) {
    let mut mark = |key: &str, value: Value| schema.insert(format!("x-kubernetes-{key}"), value);
    match field.list {
        Some(ListKind::Atomic) => {
            mark("list-type", "atomic".into());
        }
        Some(ListKind::Set) => {
            mark("list-type", "set".into());
        }
        Some(ListKind::Map(keys)) => {
            mark("list-type", "map".into());
            mark("list-map-keys", keys.into());
        }
        None => {}
    }
    if let Some(atomic) = field.atomic {
        mark(
            "map-type",
            if atomic { "atomic" } else { "granular" }.into(),
        );
    }
    if let Some((patch, key)) = field.patch {
        let strategy = match patch {
            Patch::Merge => "merge",
            Patch::MergeRetainingKeys => "merge,retainKeys",
            Patch::RetainKeys => "retainKeys",
            Patch::Replace => "replace",
        };
        mark("patch-strategy", strategy.into());
        if !key.is_empty() {
            mark("patch-merge-key", key.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Without prose, which there may or may not be.
    fn bare(schema: &Value) -> Value {
        let mut schema = schema.clone();
        schema
            .as_object_mut()
            .expect("a schema")
            .remove("description");
        schema
    }

    #[test]
    fn schemas_equal_those_of_kube_apiserver() {
        let mut schemas = Schemas::new(Form::V3, Encoding::Json);
        schemas
            .of_kind("apps", "v1", "Deployment")
            .expect("it has a type");
        let known = schemas.finish().read();
        let container = &known["io.k8s.api.core.v1.Container"];
        assert_eq!(container["required"], json!(["name"]));
        assert_eq!(
            bare(&container["properties"]["name"]),
            json!({"type": "string", "default": ""})
        );
        assert_eq!(
            bare(&container["properties"]["image"]),
            json!({"type": "string"})
        );
        let policies = json!({"type": "string", "enum": ["Always", "IfNotPresent", "Never"]});
        assert_eq!(bare(&container["properties"]["imagePullPolicy"]), policies);
        assert_eq!(
            bare(&container["properties"]["ports"]),
            json!({
                "type": "array",
                "items": {"default": {}, "allOf": [{"$ref": "#/components/schemas/io.k8s.api.core.v1.ContainerPort"}]},
                "x-kubernetes-list-map-keys": ["containerPort", "protocol"],
                "x-kubernetes-list-type": "map",
                "x-kubernetes-patch-merge-key": "containerPort",
                "x-kubernetes-patch-strategy": "merge",
            })
        );
        let deployment = &known["io.k8s.api.apps.v1.Deployment"];
        assert_eq!(
            deployment["x-kubernetes-group-version-kind"],
            json!([{"group": "apps", "kind": "Deployment", "version": "v1"}])
        );
        assert_eq!(deployment["properties"]["spec"]["default"], json!({}));
    }

    #[test]
    fn every_reference_can_be_resolved() {
        let mut schemas = Schemas::new(Form::V3, Encoding::Json);
        for row in crate::registry::ROWS {
            schemas.of_kind(row.group, row.version, row.kind);
        }
        let known = schemas.finish().read();
        let text = serde_json::to_string(&known).expect("it has string keys");
        for reference in text.split("#/components/schemas/").skip(1) {
            let name = reference.split('"').next().expect("there is a first part");
            assert!(known.get(name).is_some_and(Value::is_object), "{name}");
        }
    }
}
