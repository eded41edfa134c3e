//! Descriptions in the source of k8s-openapi.
//!
//! Its types are generated, one a file, each with an implementation of `JsonSchema` in the same
//! layout: a `schema_name`, then one `json_schema!` with a `description` and `properties`, a
//! property being an object or a subschema with a `description` inserted. The depth of a line
//! distinguishes the description of a type from that of a property, so the reader goes by lines.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Write as _},
    path::Path,
};

use flate2::{Compression, write::GzEncoder};
use serde_json::{Map, Value, json};

const TYPE: &str = "            "; // indentation of entries of a type's schema
const PROPERTY: &str = "                "; // a property's name
const INSIDE: &str = "                    "; // indentation of entries of a property's schema
/// How a property that refers to another type gets its description.
const INSERT: &str = "schema_obj.ensure_object().insert(\"description\".into(), ";

/// The description of a type, and those of its fields.
#[derive(Default)]
struct Described {
    description: Option<String>,
    fields: Map<String, Value>,
}

/// Descriptions by the published name of the type.
pub(crate) struct Descriptions(BTreeMap<String, Described>);

/// Reads the descriptions of all types below a directory.
pub(crate) fn read(dir: &Path) -> Result<Descriptions, String> {
    let mut types = BTreeMap::new();
    read_dir(dir, &mut types)?;
    let has_fields = types.values().any(|described| !described.fields.is_empty());
    if has_fields {
        Ok(Descriptions(types))
    } else {
        let dir = dir.display();
        Err(format!(
            "{dir} has no schemas in the expected layout; is this k8s-openapi newer?"
        ))
    }
}

/// Writes them as compressed JSON.
pub(crate) fn write(descriptions: &Descriptions, path: &Path) -> io::Result<()> {
    let mut file = GzEncoder::new(File::create(path)?, Compression::best());
    let types = descriptions.0.iter();
    let json: Map<String, Value> = types
        .map(
            |(
                name,
                Described {
                    description,
                    fields,
                },
            )| {
                (
                    name.clone(),
                    json!({"description": description, "fields": fields}),
                )
            },
        )
        .collect();
    file.write_all(Value::Object(json).to_string().as_bytes())?;
    file.finish()?.flush()
}

fn read_dir(dir: &Path, types: &mut BTreeMap<String, Described>) -> Result<(), String> {
    let failed = |error: io::Error| format!("cannot read {}: {error}", dir.display());
    for entry in fs::read_dir(dir).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        if path.is_dir() {
            read_dir(&path, types)?;
        } else {
            let source = fs::read_to_string(&path).map_err(failed)?;
            read_source(&source, types)
                .map_err(|error| format!("cannot read {}: {error}", path.display()))?;
        }
    }
    Ok(())
}

fn read_source(source: &str, types: &mut BTreeMap<String, Described>) -> Result<(), String> {
    let mut lines = source.lines();
    while let Some(line) = lines.next() {
        if !line.starts_with("    fn schema_name()") {
            continue;
        }
        let name = lines
            .next()
            .and_then(|line| line.trim().strip_suffix(".into()"))
            .ok_or("schema_name does not return a literal")?;
        types.insert(unquote(name)?, read_schema(&mut lines)?);
    }
    Ok(())
}

/// Reads to the end of the implementation.
fn read_schema<'a>(lines: impl Iterator<Item = &'a str>) -> Result<Described, String> {
    let mut described = Described::default();
    let mut in_properties = false;
    let mut property = String::new();
    for line in lines.take_while(|line| *line != "}") {
        if let Some(text) = between(line, TYPE, "\"description\": ", ",") {
            described.description = Some(unquote(text)?);
        } else if line.starts_with(TYPE) && !line.starts_with(PROPERTY) {
            in_properties = line.ends_with("\"properties\": {");
        } else if !in_properties {
            continue;
        } else if let Some(text) = between(line, INSIDE, "\"description\": ", ",") {
            described
                .fields
                .insert(property.clone(), unquote(text)?.into());
        } else if let Some(text) = between(line, INSIDE, INSERT, ".into());") {
            described
                .fields
                .insert(property.clone(), unquote(text)?.into());
        } else if let Some((name, _)) = line
            .strip_prefix(PROPERTY)
            .and_then(|rest| rest.strip_prefix('"')?.split_once("\": "))
        {
            property = name.to_owned();
        }
    }
    Ok(described)
}

/// The text between a prefix at an indentation and a suffix.
fn between<'a>(line: &'a str, depth: &str, prefix: &str, suffix: &str) -> Option<&'a str> {
    line.strip_prefix(depth)?
        .strip_prefix(prefix)?
        .strip_suffix(suffix)
}

/// The value of a string literal as `{:?}` writes it.
fn unquote(literal: &str) -> Result<String, String> {
    let failed = || format!("{literal} is not a string literal");
    let inner = literal
        .strip_prefix('"')
        .and_then(|rest| rest.strip_suffix('"'))
        .ok_or_else(failed)?;
    let mut value = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(char) = chars.next() {
        if char != '\\' {
            value.push(char);
            continue;
        }
        value.push(match chars.next() {
            Some('n') => '\n',
            Some('t') => '\t',
            Some('r') => '\r',
            Some(same @ ('"' | '\\' | '\'')) => same,
            Some('u') => {
                let digits: String = chars.by_ref().take_while(|char| *char != '}').collect();
                u32::from_str_radix(digits.trim_start_matches('{'), 16)
                    .ok()
                    .and_then(char::from_u32)
                    .ok_or_else(failed)?
            }
            _ => return Err(failed()),
        });
    }
    Ok(value)
}
