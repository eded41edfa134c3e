//! `cargo xtask types FACTS GO_FACTS PUBLISHED`: generates the API server's table of built-in
//! types.
//!
//! Inputs: three JSON files. Output: `crates/codec/src/types/table.rs`.
//!
//! Guarantees: the output is deterministic; a fact that the table cannot express is an error.
//!
//! FACTS describes every published type. `definitions` maps a name such as `io.k8s.api.core.v1.Pod`
//! to `gvk` (a list of group, version, kind), `required` (names), `map` (`atomic`) and `fields`. A
//! field has `type` (a name, `[item]`, `{"*": value}` or `type:format`), `list` and `keys`, `map`,
//! `patch` and `patchKey`, and the protobuf number `n` and type `proto`. `proto_inlined` has the
//! messages that are inlined in JSON, `proto_only` the messages without a definition.
//!
//! GO_FACTS has what only the Go types of `k8s.io/api`, `apimachinery`, `apiextensions-apiserver`
//! and `kube-aggregator` contain. It is found by reflection over every type registered in their
//! schemes and every struct reachable from one, except types with their own `UnmarshalJSON`:
//! - `types`, by the same names: `order` (the JSON names in the order of the struct, with those of
//!   embedded structs in their place) and `fields` by JSON name. A field has `go` (the `String()`
//!   of its type without a pointer), `elem` (the same of the element of a slice or map), `ptr`
//!   (true for a pointer), `omit` (`omitempty`, `omitzero`, or both joined by `+`), `embed` (the
//!   names of the embedded structs that contain the field) and `default` (the value of a
//!   `+default=` marker that is plain JSON or the name of a constant);
//! - `kinds`: every registered group, version and kind.
//!
//! PUBLISHED is the response of a server of that release at `/openapi/v2`
//! (`kubectl get --raw /openapi/v2`). The table has its enums (`enum`) and unions
//! (`x-kubernetes-unions`), and no descriptions.

use std::{collections::BTreeMap, fmt::Write as _, fs, path::Path};

use serde_json::{Map, Value};

type Result<T> = std::result::Result<T, String>;

/// Reads the files and writes the table.
///
/// # Errors
/// A file cannot be read or written, or the table cannot express a fact.
pub fn generate(
    root: &Path,
    facts: &Path,
    go_facts: &Path,
    published: &Path,
) -> std::result::Result<(), String> {
    let table = Tables::new(&read(facts)?, &read(go_facts)?, &read(published)?)?.print()?;
    let path = root.join("crates/codec/src/types/table.rs");
    fs::write(&path, table).map_err(|e| format!("cannot write {}: {e}", path.display()))
}

fn read(path: &Path) -> Result<Value> {
    let bytes = fs::read(path).map_err(|e| format!("cannot read {}: {e}", path.display()))?;
    serde_json::from_slice(&bytes).map_err(|e| format!("{} is not JSON: {e}", path.display()))
}

/// The facts, and the indexes of types in the table.
struct Tables<'a> {
    kubernetes: &'a str,
    definitions: &'a Map<String, Value>,
    messages: &'a Map<String, Value>,
    go: &'a Map<String, Value>,
    published: &'a Map<String, Value>,
    registered: Vec<[&'a str; 3]>,
    /// Types with fields, in the order of the table.
    ids: BTreeMap<&'a str, usize>,
}

impl<'a> Tables<'a> {
    fn new(facts: &'a Value, go_facts: &'a Value, published: &'a Value) -> Result<Self> {
        let definitions = object(&facts["definitions"], "definitions")?;
        let go = object(&go_facts["types"], "types of the Go facts")?;
        let ids = definitions
            .keys()
            .filter(|name| special(name).is_none())
            .enumerate()
            .map(|(i, name)| (name.as_str(), i))
            .collect();
        Ok(Self {
            kubernetes: text(&facts["kubernetes"], "kubernetes")?,
            definitions,
            messages: object(&facts["proto_only"], "proto_only")?,
            go,
            published: object(
                &published["definitions"],
                "definitions of the published document",
            )?,
            registered: list(&go_facts["kinds"], "kinds of the Go facts")?
                .iter()
                .map(triple)
                .collect::<Result<_>>()?,
            ids,
        })
    }

    fn print(&self) -> Result<String> {
        let mut types = String::new();
        let mut fields = String::new();
        let mut order = String::new();
        let mut packages = String::new();
        let mut package = "";
        let mut count = 0;
        for (name, id) in &self.ids {
            if up(name) != package {
                package = up(name);
                writeln!(packages, "    ({package:?}, {id}),")
                    .expect("a write to a string succeeds");
            }
            let definition = &self.definitions[*name];
            let rows = self.fields(name, definition)?;
            let go = format!("{}.{}", last_but_one(name), last(name));
            let atomic = definition["map"] == "atomic";
            writeln!(types, "    t({go:?}, {count}, {}, {atomic}),", rows.len())
                .expect("a write to a string succeeds");
            count += rows.len();
            rows.iter().for_each(|row| fields.push_str(row));
            writeln!(order, "    {}", self.order(name, definition)?)
                .expect("a write to a string succeeds");
        }
        let schema = self
            .ids
            .iter()
            .find(|(name, _)| name.ends_with(".apiextensions.v1.JSONSchemaProps"))
            .map(|(_, id)| *id);
        let schema = schema.ok_or("FACTS has no JSONSchemaProps")?;
        let (kinds, others) = self.kinds()?;
        let unions = self.unions()?;
        Ok(format!(
            "//! The built-in types of Kubernetes {version}, made by `cargo xtask types FACTS GO_FACTS PUBLISHED`: not to be edited.\n\n\
             use super::model::{{Field, Item::*, ListKind, Patch, Shape::*, Type, f, t}};\n\n\
             /// The schema of a custom resource, which its own fields hold again.\npub(super) const SCHEMA: u16 = {schema};\n\n\
             /// Group, version, kind and type, sorted.\npub(super) static KINDS: &[(&str, &str, &str, u16)] = &[\n{kinds}];\n\n\
             /// Group, version and kind of what clients may know but the server does not serve, sorted.\n\
             pub(super) static UNSERVED: &[(&str, &str, &str)] = &[\n{others}];\n\n\
             /// Where the types of a package begin. The types of one package stand together.\n\
             pub(super) static PACKAGES: &[(&str, u16)] = &[\n{packages}];\n\n\
             /// Fields of a union, each with the value that means it.\n\
             type Members = &'static [(&'static str, &'static str)];\n\n\
             /// Types of which one field says which of the others is meant: the type, that field (empty for none), the others with their values.\n\
             pub(super) static UNIONS: &[(u16, &str, Members)] = &[\n{unions}];\n\n\
             pub(super) static TYPES: &[Type] = &[\n{types}];\n\n\
             pub(super) static FIELDS: &[Field] = &[\n{fields}];\n\n\
             /// The fields of each type, as places among its own, in the order in which Go writes them. A line for each type.\n\
             pub(super) static ORDER: &[u8] = &[\n{order}];\n",
            version = self.kubernetes,
        ))
    }

    fn kinds(&self) -> Result<(String, String)> {
        let mut served = BTreeMap::new();
        for (name, id) in &self.ids {
            for gvk in self.definitions[*name]["gvk"]
                .as_array()
                .into_iter()
                .flatten()
            {
                served.insert(triple(gvk)?, *id);
            }
        }
        let mut kinds = String::new();
        for ([group, version, kind], id) in &served {
            writeln!(kinds, "    ({group:?}, {version:?}, {kind:?}, {id}),")
                .expect("a write to a string succeeds");
        }
        let mut others: Vec<_> = self
            .registered
            .iter()
            .filter(|gvk| !served.contains_key(*gvk))
            .collect();
        others.sort();
        let mut unserved = String::new();
        for [group, version, kind] in others {
            writeln!(unserved, "    ({group:?}, {version:?}, {kind:?}),")
                .expect("a write to a string succeeds");
        }
        Ok((kinds, unserved))
    }

    fn unions(&self) -> Result<String> {
        let mut unions = String::new();
        for (name, id) in &self.ids {
            let union =
                &self.published.get(*name).unwrap_or(&Value::Null)["x-kubernetes-unions"][0];
            if union.is_null() {
                continue;
            }
            let members = object(&union["fields-to-discriminateBy"], "the fields of a union")?;
            let members: Vec<(&str, &str)> = members
                .iter()
                .map(|(field, value)| Ok((field.as_str(), text(value, "a value of a union")?)))
                .collect::<Result<_>>()?;
            let discriminator = union["discriminator"].as_str().unwrap_or_default();
            writeln!(unions, "    ({id}, {discriminator:?}, &{members:?}),")
                .expect("a write to a string succeeds");
        }
        Ok(unions)
    }

    fn fields(&self, name: &str, definition: &Value) -> Result<Vec<String>> {
        let none = Map::new();
        let fields = definition["fields"].as_object().unwrap_or(&none);
        let required: Vec<&str> = definition["required"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let rows = fields.iter().map(|(field, facts)| {
            let place = format!("{name}.{field}");
            // Types of discovery are in no Go scheme: only their required fields are always set.
            let go = self
                .go
                .get(name)
                .map_or(&Value::Null, |go| &go["fields"][field]);
            if go.is_null() && self.go.contains_key(name) {
                return Err(format!("GO_FACTS lack {place}"));
            }
            let mut row = self
                .field(
                    field,
                    facts,
                    go,
                    definition,
                    required.contains(&field.as_str()),
                )
                .map_err(|e| format!("{place}: {e}"))?;
            if let Some(values) = self
                .values(name, field)
                .map_err(|e| format!("{place}: {e}"))?
            {
                write!(row, ".one_of(&{values:?})").expect("a write to a string succeeds");
            }
            row.push_str(",\n");
            Ok(row)
        });
        rows.collect()
    }

    /// The indexes of a type's fields, in the order of the Go struct.
    fn order(&self, name: &str, definition: &Value) -> Result<String> {
        let none = Map::new();
        let fields = definition["fields"].as_object().unwrap_or(&none);
        let go: Vec<&str> = self
            .go
            .get(name)
            .and_then(|go| go["order"].as_array())
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        let mut places: Vec<usize> = (0..fields.len()).collect();
        if self.go.contains_key(name) {
            let names: Vec<&String> = fields.keys().collect();
            if let Some(missing) = names.iter().find(|field| !go.contains(&field.as_str())) {
                return Err(format!("the order of {name} lacks {missing}"));
            }
            places.sort_by_key(|place| go.iter().position(|field| *field == names[*place]));
        }
        Ok(places
            .iter()
            .map(|place| format!("{place},"))
            .collect::<Vec<_>>()
            .join(" "))
    }

    fn field(
        &self,
        name: &str,
        facts: &Value,
        go: &Value,
        owner: &Value,
        required: bool,
    ) -> Result<String> {
        let shape = self.shape(&facts["type"])?;
        let mut row = format!(
            "    f({name:?}, {shape}, {:?})",
            go["go"].as_str().unwrap_or("string")
        );
        if let Some(elem) = go["elem"].as_str() {
            write!(row, ".of({elem:?})").expect("a write to a string succeeds");
        }
        let omit = go["omit"].as_str().unwrap_or_default();
        let flags = [
            (go["ptr"] == true, ".pointer()"),
            (
                omit.contains("omitempty") || go.is_null() && !required,
                ".omit_empty()",
            ),
            (omit.contains("omitzero"), ".omit_zero()"),
            (required, ".required()"),
        ];
        flags
            .iter()
            .filter(|(set, _)| *set)
            .for_each(|(_, call)| row.push_str(call));
        let mut embedded: Vec<&str> = go["embed"]
            .as_array()
            .into_iter()
            .flatten()
            .filter_map(Value::as_str)
            .collect();
        if !embedded.is_empty() {
            write!(row, ".embedded({:?})", embedded.join("."))
                .expect("a write to a string succeeds");
        }
        row.push_str(&merge(facts)?);
        if !go["default"].is_null() {
            write!(row, ".default({:?})", go["default"].to_string())
                .expect("a write to a string succeeds");
        }
        // In protobuf, TypeMeta is outside of the object.
        embedded.retain(|name| *name != "TypeMeta");
        let (inside, number) = self.number(name, facts, owner, &embedded)?;
        if number > 0 {
            write!(row, ".number(&{inside:?}, {number})").expect("a write to a string succeeds");
        }
        Ok(row)
    }

    /// The enum of a field, or of the items of a list or map.
    fn values(&self, name: &str, field: &str) -> Result<Option<Vec<&str>>> {
        let Some(schema) = self
            .published
            .get(name)
            .map(|definition| &definition["properties"][field])
        else {
            return Ok(None);
        };
        let limited = [schema, &schema["items"], &schema["additionalProperties"]]
            .into_iter()
            .find(|schema| schema["enum"].is_array());
        let Some(limited) = limited else {
            return Ok(None);
        };
        list(&limited["enum"], "the values of a field")?
            .iter()
            .map(|value| text(value, "a value of a field"))
            .collect::<Result<_>>()
            .map(Some)
    }

    /// The protobuf number of a field, and those of the inlined messages that contain it; 0 if
    /// there is none.
    fn number(
        &self,
        name: &str,
        facts: &Value,
        owner: &Value,
        embedded: &[&str],
    ) -> Result<(Vec<u64>, u64)> {
        if let Some(number) = facts["n"].as_u64() {
            return Ok((Vec::new(), number));
        }
        let inlined = owner["proto_inlined"].as_object();
        if let Some(number) = inlined
            .and_then(|inlined| inlined.get(&proto_name(name)))
            .and_then(|f| f["n"].as_u64())
        {
            return Ok((Vec::new(), number));
        }
        let mut inside = Vec::new();
        let mut fields = vec![inlined];
        let mut message = owner["proto"].as_str().unwrap_or_default().to_owned();
        for step in embedded {
            let outer = fields
                .iter()
                .flatten()
                .flat_map(|fields| fields.values())
                .find(|f| f["t"].as_str().is_some_and(|t| last(t) == *step));
            let outer = outer.ok_or_else(|| format!("no message holds {step}"))?;
            inside.push(outer["n"].as_u64().ok_or("a message without a number")?);
            let full = text(&outer["t"], "a message type")?;
            message = if full.contains('.') {
                full.to_owned()
            } else {
                format!("{}.{full}", up(&message))
            };
            fields = self.message(&message);
        }
        if embedded.is_empty() {
            return Ok((inside, 0));
        }
        let number = fields
            .iter()
            .flatten()
            .find_map(|fields| fields.get(name)?["n"].as_u64());
        Ok((
            inside,
            number.ok_or_else(|| format!("{message} has no field {name}"))?,
        ))
    }

    /// The fields of a protobuf message, from all places in the facts.
    fn message(&self, proto: &str) -> Vec<Option<&'a Map<String, Value>>> {
        let definition = self
            .definitions
            .values()
            .find(|d| d["proto"] == proto)
            .unwrap_or(&Value::Null);
        let message = self.messages.get(proto).and_then(Value::as_object);
        vec![
            message,
            definition["fields"].as_object(),
            definition["proto_inlined"].as_object(),
        ]
    }

    fn shape(&self, facts: &Value) -> Result<String> {
        match facts {
            Value::String(name) => Ok(format!("One({})", self.item(name)?)),
            Value::Array(items) => Ok(format!(
                "List({})",
                self.item(text(&items[0], "a list item")?)?
            )),
            Value::Object(map) => match &map["*"] {
                Value::Array(items) => Ok(format!(
                    "MapOfLists({})",
                    self.item(text(&items[0], "a list item")?)?
                )),
                value => Ok(format!("Map({})", self.item(text(value, "a map value")?)?)),
            },
            other => Err(format!("unknown type {other}")),
        }
    }

    fn item(&self, name: &str) -> Result<String> {
        let scalar = match name {
            "string" => "Str",
            "boolean" => "Bool",
            "integer:int32" => "Int32",
            "integer:int64" => "Int64",
            "number:double" => "Double",
            "string:byte" => "Bytes",
            name => match special(name) {
                Some(item) => item,
                None => {
                    return self
                        .ids
                        .get(name)
                        .map(|id| format!("Object({id})"))
                        .ok_or_else(|| format!("unknown type {name}"));
                }
            },
        };
        Ok(scalar.to_owned())
    }
}

/// Types with their own JSON representation.
fn special(name: &str) -> Option<&'static str> {
    Some(match name.strip_prefix("io.k8s.")? {
        "apimachinery.pkg.api.resource.Quantity" => "Quantity",
        "apimachinery.pkg.apis.meta.v1.Time" => "Time",
        "apimachinery.pkg.apis.meta.v1.MicroTime" => "MicroTime",
        "apimachinery.pkg.util.intstr.IntOrString" => "IntOrString",
        "apimachinery.pkg.runtime.RawExtension" => "Raw",
        "apimachinery.pkg.apis.meta.v1.FieldsV1" => "Owned",
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSON" => "Json",
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrBool" => "SchemaOrBool",
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrArray" => {
            "SchemaOrArray"
        }
        "apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaPropsOrStringArray" => {
            "SchemaOrStrings"
        }
        _ => return None,
    })
}

fn merge(facts: &Value) -> Result<String> {
    let mut row = String::new();
    let keys: Vec<&str> = facts["keys"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    match facts["list"].as_str() {
        None => {}
        Some("atomic") => row.push_str(".list(ListKind::Atomic)"),
        Some("set") => row.push_str(".list(ListKind::Set)"),
        Some("map") => {
            write!(row, ".list(ListKind::Map(&{keys:?}))").expect("a write to a string succeeds")
        }
        Some(other) => return Err(format!("unknown list kind {other}")),
    }
    match facts["map"].as_str() {
        None => {}
        Some("atomic") => row.push_str(".atomic(true)"),
        Some("granular") => row.push_str(".atomic(false)"),
        Some(other) => return Err(format!("unknown map kind {other}")),
    }
    let patch = match facts["patch"].as_str() {
        None => return Ok(row),
        Some("merge") => "Merge",
        Some("merge,retainKeys") => "MergeRetainingKeys",
        Some("retainKeys") => "RetainKeys",
        Some("replace") => "Replace",
        Some(other) => return Err(format!("unknown patch strategy {other}")),
    };
    let key = facts["patchKey"].as_str().unwrap_or_default();
    write!(row, ".patch(Patch::{patch}, {key:?})").expect("a write to a string succeeds");
    Ok(row)
}

/// `x-kubernetes-list-type` is `xKubernetesListType` in protobuf, `$ref` is `ref`.
fn proto_name(json: &str) -> String {
    let mut words = json.trim_start_matches('$').split('-');
    let mut name = words.next().unwrap_or_default().to_owned();
    for word in words {
        let mut letters = word.chars();
        name.extend(letters.next().map(|c| c.to_ascii_uppercase()));
        name.push_str(letters.as_str());
    }
    name
}

fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

fn last_but_one(name: &str) -> &str {
    name.rsplit('.').nth(1).unwrap_or_default()
}

/// A dotted name without its last part.
fn up(name: &str) -> &str {
    name.rsplit_once('.').map_or("", |(package, _)| package)
}

fn object<'a>(value: &'a Value, what: &str) -> Result<&'a Map<String, Value>> {
    value
        .as_object()
        .ok_or_else(|| format!("{what} is not an object"))
}

fn list<'a>(value: &'a Value, what: &str) -> Result<&'a Vec<Value>> {
    value
        .as_array()
        .ok_or_else(|| format!("{what} is not a list"))
}

fn text<'a>(value: &'a Value, what: &str) -> Result<&'a str> {
    value
        .as_str()
        .ok_or_else(|| format!("{what} is not a string"))
}

fn triple(value: &Value) -> Result<[&str; 3]> {
    Ok([
        text(&value[0], "a group")?,
        text(&value[1], "a version")?,
        text(&value[2], "a kind")?,
    ])
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn table(fields: Value, inlined: Value, go: Value) -> Result<String> {
        let owner = json!({"fields": fields, "proto": "k8s.io.api.x.v1.A", "proto_inlined": inlined, "required": ["a"], "gvk": [["x", "v1", "A"]]});
        let schema = "io.k8s.apiextensions-apiserver.pkg.apis.apiextensions.v1.JSONSchemaProps";
        let facts = json!({
            "kubernetes": "1.36.4",
            "definitions": {"io.k8s.api.x.v1.A": owner, schema: {}},
            "proto_only": {"k8s.io.api.x.v1.Inner": {"b": {"n": 7}}},
        });
        let order: Vec<&String> = go
            .as_object()
            .into_iter()
            .flatten()
            .map(|(name, _)| name)
            .rev()
            .collect();
        let go = json!({"types": {"io.k8s.api.x.v1.A": {"fields": go, "order": order}}, "kinds": [["x", "v1", "A"], ["x", "v1beta1", "A"]]});
        let limited = json!({"definitions": {"io.k8s.api.x.v1.A": {
            "properties": {"a": {"items": {"enum": ["TCP", "UDP"]}}},
            "x-kubernetes-unions": [{"discriminator": "a", "fields-to-discriminateBy": {"b": "B"}}],
        }}});
        Tables::new(&facts, &go, &limited)?.print()
    }

    #[test]
    fn table_has_every_fact_of_a_field() {
        let fields = json!({
            "a": {"type": ["string"], "list": "map", "keys": ["k"], "patch": "merge", "patchKey": "k", "n": 3},
            "b": {"type": {"*": "io.k8s.apimachinery.pkg.api.resource.Quantity"}, "map": "atomic"},
        });
        let go = json!({
            "a": {"go": "[]v1.X", "elem": "v1.X", "omit": "omitempty", "default": "TCP"},
            "b": {"go": "v1.L", "ptr": true, "embed": ["Inner"]},
        });
        let table = table(fields, json!({"inner": {"n": 2, "t": "Inner"}}), go).expect("a table");
        let expected = [
            r#"f("a", List(Str), "[]v1.X").of("v1.X").omit_empty().required().list(ListKind::Map(&["k"])).patch(Patch::Merge, "k")"#,
            r#".default("\"TCP\"").number(&[], 3).one_of(&["TCP", "UDP"]),"#,
            r#"(0, "a", &[("b", "B")]),"#,
            r#"f("b", Map(Quantity), "v1.L").pointer().embedded("Inner").atomic(true).number(&[2], 7),"#,
            r#"t("v1.A", 0, 2, false),"#,
            r#"("x", "v1", "A", 0),"#,
            r#"("x", "v1beta1", "A"),"#,
            "ORDER: &[u8] = &[\n    1, 0,\n",
        ];
        for text in expected {
            assert!(table.contains(text), "{text} is missing in\n{table}");
        }
    }

    #[test]
    fn inexpressible_facts_are_errors() {
        let go = json!({"a": {"go": "string"}});
        for (field, expected) in [
            (json!({"type": "no.such.Type"}), "unknown type"),
            (
                json!({"type": "string", "list": "bag"}),
                "unknown list kind",
            ),
            (
                json!({"type": "string", "patch": "shred"}),
                "unknown patch strategy",
            ),
        ] {
            let error = table(json!({"a": field}), Value::Null, go.clone()).expect_err("an error");
            assert!(error.contains(expected), "{error}");
            assert!(error.contains("io.k8s.api.x.v1.A.a"), "{error}");
        }
        let missing = table(json!({"z": {"type": "string"}}), Value::Null, go);
        let error = missing.expect_err("an error");
        assert!(error.contains("GO_FACTS lack"), "{error}");
    }
}
