//! The schema of one version of a custom resource, parsed once.
//! In: `openAPIV3Schema` as JSON. Out: a tree of [`Schema`] that pruning, defaulting and validation
//! walk.
//! Guarantees: the tree is at most [`DEPTH_MAX`] levels deep, so whatever walks it needs a bounded
//! stack; patterns are compiled.

use std::collections::BTreeMap;

use bellerophon_cel::{Pattern, PatternSet};
use serde_json::{Map, Value};

use super::{formats, rule::Rule};

/// The maximum depth of schemas; real definitions are below 30.
pub const DEPTH_MAX: usize = 64;

/// One node of a schema. Absent keywords are empty, `None` or false, as in Kubernetes' own types.
#[derive(Clone, Debug, Default)]
pub struct Schema {
    /// `type`, empty when absent.
    pub type_name: String,
    pub(crate) nullable: bool,
    /// `format` as written; see `Schema::format_in_force`.
    pub format: String,
    /// The default of an absent value.
    pub default: Option<Value>,
    pub(crate) allowed: Vec<Value>,
    pub(crate) maximum: Option<f64>,
    pub(crate) exclusive_maximum: bool,
    pub(crate) minimum: Option<f64>,
    pub(crate) exclusive_minimum: bool,
    pub(crate) multiple_of: Option<f64>,
    pub(crate) max_length: Option<i64>,
    pub(crate) min_length: Option<i64>,
    pub(crate) pattern: Option<Pattern>,
    pub(crate) max_items: Option<i64>,
    pub(crate) min_items: Option<i64>,
    pub(crate) max_properties: Option<i64>,
    pub(crate) min_properties: Option<i64>,
    pub(crate) required: Vec<String>,
    /// Schemas of named fields.
    pub properties: BTreeMap<String, Schema>,
    /// The schema of fields that `properties` does not name.
    pub additional_properties: Option<Additional>,
    pub(crate) items: Option<Items>,
    pub(crate) all_of: Vec<Schema>,
    pub(crate) any_of: Vec<Schema>,
    pub(crate) one_of: Vec<Schema>,
    pub(crate) not: Option<Box<Schema>>,
    pub(crate) preserve_unknown_fields: Option<bool>,
    /// `x-kubernetes-embedded-resource`.
    pub embedded_resource: bool,
    /// `x-kubernetes-int-or-string`.
    pub int_or_string: bool,
    /// `x-kubernetes-list-type`.
    pub list_type: Option<String>,
    /// `x-kubernetes-list-map-keys`.
    pub list_map_keys: Vec<String>,
    /// `x-kubernetes-map-type`.
    pub map_type: Option<String>,
    /// `x-kubernetes-validations`.
    pub(crate) rules: Vec<Rule>,
    /// Keywords that are only checked for being there.
    pub(crate) marks: Marks,
}

/// Keywords whose content is ignored, but whose presence may be forbidden.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Marks {
    pub(crate) title: bool,
    pub(crate) description: bool,
    pub(crate) external_docs: bool,
    pub(crate) example: bool,
    pub(crate) unique_items: bool,
    pub(crate) id: bool,
    pub(crate) schema: bool,
    pub(crate) reference: bool,
    pub(crate) pattern_properties: bool,
    pub(crate) dependencies: bool,
    pub(crate) additional_items: bool,
    pub(crate) definitions: bool,
}

/// `additionalProperties`.
#[derive(Clone, Debug)]
pub enum Additional {
    /// All further fields are allowed, or none.
    Any(bool),
    /// Every further field has this schema.
    Schema(Box<Schema>),
}

/// `items`.
#[derive(Clone, Debug)]
pub(crate) enum Items {
    /// Every item has this schema.
    One(Box<Schema>),
    /// A schema per item, which Kubernetes rejects.
    Many(Vec<Schema>),
}

impl Schema {
    /// Parses `openAPIV3Schema`.
    ///
    /// # Errors
    /// A keyword of another JSON type, or more than [`DEPTH_MAX`] levels; the text names the
    /// keyword.
    pub(crate) fn parse(value: &Value) -> Result<Self, String> {
        parse_at(value, 0, &mut PatternSet::default()).map(|schema| *schema)
    }

    /// Whether unknown fields are preserved.
    pub fn preserves(&self) -> bool {
        self.preserve_unknown_fields == Some(true)
    }

    /// The types a value may have: none (any type), one, or the two of int-or-string.
    pub(crate) fn types(&self) -> Vec<&str> {
        if self.int_or_string {
            return vec!["integer", "string"];
        }
        if self.type_name.is_empty() {
            Vec::new()
        } else {
            vec![&self.type_name]
        }
    }

    /// The format, unless Kubernetes ignores it for this type.
    pub(crate) fn format_in_force(&self) -> &str {
        if self.format_is_known() {
            &self.format
        } else {
            ""
        }
    }

    /// Whether the format means something for this type.
    pub fn format_is_known(&self) -> bool {
        if self.format.is_empty() {
            return false;
        }
        match self.type_name.as_str() {
            _ if self.int_or_string => formats::find(&self.format).is_some(),
            "" | "string" => formats::find(&self.format).is_some(),
            "integer" => matches!(self.format.as_str(), "int32" | "int64"),
            "number" => matches!(self.format.as_str(), "float" | "double"),
            _ => false,
        }
    }

    /// The one schema of all items.
    pub fn item(&self) -> Option<&Schema> {
        match &self.items {
            Some(Items::One(item)) => Some(item),
            _ => None,
        }
    }

    /// The schema of fields that are not among the properties.
    pub fn additional(&self) -> Option<&Schema> {
        match &self.additional_properties {
            Some(Additional::Schema(schema)) => Some(schema),
            _ => None,
        }
    }

    /// The schema of the field `name`: its property, or that of additional ones.
    pub(crate) fn field(&self, name: &str) -> Option<&Schema> {
        self.properties.get(name).or_else(|| self.additional())
    }

    /// Calls `visit` on this schema and every schema below it, parents first.
    pub fn walk<'a>(&'a self, visit: &mut dyn FnMut(&'a Schema)) {
        visit(self);
        match &self.items {
            Some(Items::One(item)) => item.walk(visit),
            Some(Items::Many(items)) => items.iter().for_each(|s| s.walk(visit)),
            None => {}
        }
        self.all_of
            .iter()
            .chain(&self.any_of)
            .chain(&self.one_of)
            .for_each(|s| s.walk(visit));
        if let Some(not) = &self.not {
            not.walk(visit);
        }
        self.properties.values().for_each(|s| s.walk(visit));
        if let Some(additional) = self.additional() {
            additional.walk(visit);
        }
    }
}

/// Schemas below are parsed from [`Keywords::children`] alone, which keeps the stack of each level
/// small.
fn parse_at(value: &Value, depth: usize, patterns: &mut PatternSet) -> Result<Box<Schema>, String> {
    if depth >= DEPTH_MAX {
        return Err(format!("schemas may nest at most {DEPTH_MAX} levels deep"));
    }
    let keywords = Keywords {
        map: value.as_object().ok_or("a schema must be an object")?,
        depth,
    };
    let mut schema = keywords.scalars(patterns)?;
    keywords.children(&mut schema, patterns)?;
    Ok(schema)
}

/// The keywords of one schema, read with their types checked.
struct Keywords<'a> {
    map: &'a Map<String, Value>,
    depth: usize,
}

impl<'a> Keywords<'a> {
    /// JSON `null` means absent in Kubernetes.
    fn get(&self, key: &str) -> Option<&'a Value> {
        self.map.get(key).filter(|v| !v.is_null())
    }

    fn typed<T>(
        &self,
        key: &str,
        kind: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, String> {
        self.get(key)
            .map(|v| read(v).ok_or_else(|| format!("{key} must be {kind}")))
            .transpose()
    }

    fn optional_text(&self, key: &str) -> Result<Option<String>, String> {
        self.typed(key, "a string", |v| v.as_str().map(str::to_owned))
    }

    fn text(&self, key: &str) -> Result<String, String> {
        Ok(self.optional_text(key)?.unwrap_or_default())
    }

    fn optional_flag(&self, key: &str) -> Result<Option<bool>, String> {
        self.typed(key, "a boolean", Value::as_bool)
    }

    fn flag(&self, key: &str) -> Result<bool, String> {
        Ok(self.optional_flag(key)?.unwrap_or_default())
    }

    fn number(&self, key: &str) -> Result<Option<f64>, String> {
        self.typed(key, "a number", Value::as_f64)
    }

    fn count(&self, key: &str) -> Result<Option<i64>, String> {
        self.typed(key, "an integer", Value::as_i64)
    }

    fn list(&self, key: &str) -> Result<&'a [Value], String> {
        Ok(self
            .typed(key, "a list", |v| v.as_array().map(Vec::as_slice))?
            .unwrap_or_default())
    }

    fn object(&self, key: &str) -> Result<Option<&'a Map<String, Value>>, String> {
        self.typed(key, "an object", Value::as_object)
    }

    fn texts(&self, key: &str) -> Result<Vec<String>, String> {
        let text = |v: &Value| {
            v.as_str()
                .map(str::to_owned)
                .ok_or_else(|| format!("{key} must be a list of strings"))
        };
        self.list(key)?.iter().map(text).collect()
    }

    /// Everything but the schemas below this one.
    fn scalars(&self, patterns: &mut PatternSet) -> Result<Box<Schema>, String> {
        let pattern = self.text("pattern")?;
        Ok(Box::new(Schema {
            type_name: self.text("type")?,
            nullable: self.flag("nullable")?,
            format: self.text("format")?,
            default: self.get("default").cloned(),
            allowed: self.list("enum")?.to_vec(),
            maximum: self.number("maximum")?,
            exclusive_maximum: self.flag("exclusiveMaximum")?,
            minimum: self.number("minimum")?,
            exclusive_minimum: self.flag("exclusiveMinimum")?,
            multiple_of: self.number("multipleOf")?,
            max_length: self.count("maxLength")?,
            min_length: self.count("minLength")?,
            pattern: (!pattern.is_empty()).then(|| patterns.compile(&pattern)),
            max_items: self.count("maxItems")?,
            min_items: self.count("minItems")?,
            max_properties: self.count("maxProperties")?,
            min_properties: self.count("minProperties")?,
            required: self.texts("required")?,
            preserve_unknown_fields: self.optional_flag("x-kubernetes-preserve-unknown-fields")?,
            embedded_resource: self.flag("x-kubernetes-embedded-resource")?,
            int_or_string: self.flag("x-kubernetes-int-or-string")?,
            list_type: self.optional_text("x-kubernetes-list-type")?,
            list_map_keys: self.texts("x-kubernetes-list-map-keys")?,
            map_type: self.optional_text("x-kubernetes-map-type")?,
            rules: self
                .list("x-kubernetes-validations")?
                .iter()
                .map(Rule::parse)
                .collect::<Result<_, _>>()?,
            marks: self.marks()?,
            ..Schema::default()
        }))
    }

    fn children(&self, schema: &mut Schema, patterns: &mut PatternSet) -> Result<(), String> {
        for (name, value) in self.object("properties")?.into_iter().flatten() {
            let property = parse_at(value, self.depth + 1, patterns)?;
            schema.properties.insert(name.clone(), *property);
        }
        for (key, list) in [
            ("allOf", &mut schema.all_of),
            ("anyOf", &mut schema.any_of),
            ("oneOf", &mut schema.one_of),
        ] {
            self.push_all(self.list(key)?, list, patterns)?;
        }
        if let Some(not) = self.get("not") {
            schema.not = Some(parse_at(not, self.depth + 1, patterns)?);
        }
        schema.additional_properties = match self.get("additionalProperties") {
            None => None,
            Some(Value::Bool(any)) => Some(Additional::Any(*any)),
            Some(value) => Some(Additional::Schema(parse_at(
                value,
                self.depth + 1,
                patterns,
            )?)),
        };
        match self.get("items") {
            None => {}
            Some(Value::Array(all)) => {
                let mut items = Vec::new();
                self.push_all(all, &mut items, patterns)?;
                schema.items = Some(Items::Many(items));
            }
            Some(one) => schema.items = Some(Items::One(parse_at(one, self.depth + 1, patterns)?)),
        }
        Ok(())
    }

    fn push_all(
        &self,
        values: &[Value],
        schemas: &mut Vec<Schema>,
        patterns: &mut PatternSet,
    ) -> Result<(), String> {
        for value in values {
            let schema = parse_at(value, self.depth + 1, patterns)?;
            schemas.push(*schema);
        }
        Ok(())
    }

    fn marks(&self) -> Result<Marks, String> {
        let written = |key: &str| Ok::<_, String>(!self.text(key)?.is_empty());
        let filled = |key: &str| Ok::<_, String>(self.object(key)?.is_some_and(|m| !m.is_empty()));
        Ok(Marks {
            title: written("title")?,
            description: written("description")?,
            external_docs: self.get("externalDocs").is_some(),
            example: self.get("example").is_some(),
            unique_items: self.flag("uniqueItems")?,
            id: written("id")?,
            schema: written("$schema")?,
            reference: self.get("$ref").is_some(),
            pattern_properties: filled("patternProperties")?,
            dependencies: self.get("dependencies").is_some(),
            additional_items: self.get("additionalItems").is_some(),
            definitions: filled("definitions")?,
        })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    /// A schema of `levels` nested objects.
    fn nested(levels: usize) -> Value {
        (1..levels).fold(
            json!({"type": "string"}),
            |inner, _| json!({"type": "object", "properties": {"a": inner}}),
        )
    }

    #[test]
    fn keywords_are_read_with_their_types() {
        let schema = Schema::parse(&json!({
            "type": "object", "required": ["a"], "default": null,
            "properties": {"a": {"type": "integer", "maximum": 3, "format": "int32"}, "b": {"x-kubernetes-int-or-string": true}},
            "x-kubernetes-validations": [{"rule": "true"}],
        }))
        .expect("it is well typed");
        assert_eq!(schema.required, ["a"]);
        assert_eq!(schema.default, None, "a null default is none");
        assert_eq!(schema.properties["a"].maximum, Some(3.0));
        assert_eq!(schema.properties["a"].format_in_force(), "int32");
        assert_eq!(schema.properties["b"].types(), ["integer", "string"]);
        assert_eq!(schema.rules.len(), 1);
    }

    #[test]
    fn keyword_of_another_type_is_named() {
        for (schema, problem) in [
            (json!({"type": 1}), "type must be a string"),
            (
                json!({"properties": {"a": {"maxLength": "x"}}}),
                "maxLength must be an integer",
            ),
            (
                json!({"required": [1]}),
                "required must be a list of strings",
            ),
            (json!([]), "a schema must be an object"),
        ] {
            assert_eq!(
                Schema::parse(&schema).err().as_deref(),
                Some(problem),
                "{schema}"
            );
        }
    }

    #[test]
    fn schema_nested_too_deep_is_refused() {
        assert!(Schema::parse(&nested(DEPTH_MAX)).is_ok());
        assert!(Schema::parse(&nested(DEPTH_MAX + 1)).is_err());
        assert!(Schema::parse(&nested(1000)).is_err());
    }
}
