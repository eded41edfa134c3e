//! Version 2 in protobuf, by the messages of `openapi.v2` that gnostic defines and kubectl up to
//! 1.28 reads.
//! In: parts of a document as JSON. Out: the same as fields of the message that holds them, to be
//! put behind one another.
//! Guarantees: everything that version 2 has a field for is there; extensions and values travel as
//! YAML, of which JSON is a form.

use bellerophon_codec::protobuf::Writer;
use serde_json::Value;

/// `Paths.path`.
const PATH: u16 = 2;
/// The entries of every other message that is a map.
const ENTRY: u16 = 1;

/// A path as an entry of `Paths`.
pub(super) fn path(name: &str, item: &Value) -> Vec<u8> {
    let mut writer = Writer::default();
    named(&mut writer, PATH, name, item, path_item);
    writer.finish()
}

/// A schema as an entry of `Definitions`.
pub(super) fn definition(name: &str, value: &Value) -> Vec<u8> {
    let mut writer = Writer::default();
    named(&mut writer, ENTRY, name, value, schema);
    writer.finish()
}

/// The whole document around paths and definitions that are written already.
pub(super) fn document(frame: &Value, paths: &[u8], definitions: &[u8]) -> Vec<u8> {
    let mut writer = Writer::default();
    writer.message(13, |writer| {
        each(
            writer,
            ENTRY,
            &frame["securityDefinitions"],
            |writer, item| writer.message(2, |w| api_key(w, item)),
        )
    });
    for requirement in list(&frame["security"]).iter().rev() {
        writer.message(12, |writer| {
            each(writer, ENTRY, requirement, |writer, scopes| {
                strings(writer, 1, scopes)
            })
        });
    }
    writer.message(10, |writer| {
        each(writer, ENTRY, &frame["parameters"], parameter)
    });
    writer.bytes(9, definitions);
    writer.bytes(8, paths);
    writer.message(2, |writer| {
        texts(writer, &frame["info"], &[(2, "version"), (1, "title")])
    });
    texts(&mut writer, frame, &[(1, "swagger")]);
    writer.finish()
}

/// A message of a name (field 1) and a value (field 2).
fn named(
    writer: &mut Writer,
    field: u16,
    name: &str,
    value: &Value,
    write: impl Fn(&mut Writer, &Value),
) {
    writer.message(field, |writer| {
        writer.message(2, |writer| write(writer, value));
        writer.bytes(1, name.as_bytes());
    });
}

/// Every entry of a map.
fn each(writer: &mut Writer, field: u16, map: &Value, write: impl Fn(&mut Writer, &Value)) {
    for (name, value) in map.as_object().into_iter().flatten().rev() {
        named(writer, field, name, value, &write);
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
}

/// Fields of text, the last one first.
fn texts(writer: &mut Writer, value: &Value, fields: &[(u16, &str)]) {
    for (field, key) in fields {
        if let Some(text) = value[*key].as_str() {
            writer.bytes(*field, text.as_bytes());
        }
    }
}

/// A list of texts, or one text.
fn strings(writer: &mut Writer, field: u16, value: &Value) {
    let one = std::slice::from_ref(value);
    let all = value.as_array().map_or(one, Vec::as_slice);
    all.iter()
        .rev()
        .filter_map(Value::as_str)
        .for_each(|text| writer.bytes(field, text.as_bytes()));
}

fn flag(writer: &mut Writer, field: u16, value: &Value) {
    if value.as_bool() == Some(true) {
        writer.number(field, 1);
    }
}

fn count(writer: &mut Writer, field: u16, value: &Value) {
    if let Some(number) = value.as_i64() {
        writer.number(field, number.cast_unsigned());
    }
}

fn double(writer: &mut Writer, field: u16, value: &Value) {
    if let Some(number) = value.as_f64() {
        writer.double(field, number);
    }
}

/// `Any`: its field 2 is the value as YAML.
fn any(writer: &mut Writer, field: u16, value: &Value) {
    writer.message(field, |writer| {
        writer.bytes(2, value.to_string().as_bytes())
    });
}

/// `vendor_extension`: everything whose name starts with `x-`.
fn extensions(writer: &mut Writer, field: u16, value: &Value) {
    for (name, extension) in value
        .as_object()
        .into_iter()
        .flatten()
        .rev()
        .filter(|(name, _)| name.starts_with("x-"))
    {
        named(writer, field, name, &Value::Null, |writer, _| {
            writer.bytes(2, extension.to_string().as_bytes())
        });
    }
}

fn path_item(writer: &mut Writer, item: &Value) {
    extensions(writer, 10, item);
    parameters(writer, 9, &item["parameters"]);
    for (field, method) in [
        (8, "patch"),
        (7, "head"),
        (6, "options"),
        (5, "delete"),
        (4, "post"),
        (3, "put"),
        (2, "get"),
    ] {
        if item[method].is_object() {
            writer.message(field, |writer| operation(writer, &item[method]));
        }
    }
}

fn operation(writer: &mut Writer, operation: &Value) {
    extensions(writer, 13, operation);
    strings(writer, 10, &operation["schemes"]);
    writer.message(9, |writer| {
        each(writer, ENTRY, &operation["responses"], |writer, value| {
            writer.message(1, |w| response(w, value))
        })
    });
    parameters(writer, 8, &operation["parameters"]);
    strings(writer, 7, &operation["consumes"]);
    strings(writer, 6, &operation["produces"]);
    texts(writer, operation, &[(5, "operationId"), (3, "description")]);
    strings(writer, 1, &operation["tags"]);
}

fn response(writer: &mut Writer, response: &Value) {
    if response["schema"].is_object() {
        writer.message(2, |writer| {
            writer.message(1, |writer| schema(writer, &response["schema"]))
        });
    }
    texts(writer, response, &[(1, "description")]);
}

/// `ParametersItem`: a parameter (field 1), or a reference to one (field 2).
fn parameters(writer: &mut Writer, field: u16, all: &Value) {
    for item in list(all).iter().rev() {
        writer.message(field, |writer| {
            if item["$ref"].is_string() {
                writer.message(2, |writer| texts(writer, item, &[(1, "$ref")]));
            } else {
                writer.message(1, |writer| parameter(writer, item));
            }
        });
    }
}

/// `Parameter`: a body (field 1), or one of the path or query (field 2).
fn parameter(writer: &mut Writer, parameter: &Value) {
    let place = parameter["in"].as_str().unwrap_or_default();
    if place == "body" {
        return writer.message(1, |writer| {
            writer.message(5, |writer| schema(writer, &parameter["schema"]));
            flag(writer, 4, &parameter["required"]);
            texts(
                writer,
                parameter,
                &[(3, "in"), (2, "name"), (1, "description")],
            );
        });
    }
    // A parameter of the query has one field more, which moves those behind it.
    let (kind, type_, unique) = if place == "query" {
        (3, 6, 20)
    } else {
        (4, 5, 19)
    };
    writer.message(2, |writer| {
        writer.message(kind, |writer| {
            flag(writer, unique, &parameter["uniqueItems"]);
            texts(
                writer,
                parameter,
                &[(type_, "type"), (4, "name"), (3, "description"), (2, "in")],
            );
            flag(writer, 1, &parameter["required"]);
        });
    });
}

fn api_key(writer: &mut Writer, item: &Value) {
    texts(
        writer,
        item,
        &[(4, "description"), (3, "in"), (2, "name"), (1, "type")],
    );
}

fn schema(writer: &mut Writer, value: &Value) {
    extensions(writer, 31, value);
    if let Some(example) = value.get("example") {
        any(writer, 30, example);
    }
    if let Some(docs) = value.get("externalDocs") {
        writer.message(29, |writer| {
            texts(writer, docs, &[(2, "url"), (1, "description")])
        });
    }
    if value["properties"].is_object() {
        writer.message(25, |writer| {
            each(writer, ENTRY, &value["properties"], schema)
        });
    }
    if value["items"].is_object() {
        writer.message(23, |writer| {
            writer.message(1, |writer| schema(writer, &value["items"]))
        });
    }
    if !value["type"].is_null() {
        writer.message(22, |writer| strings(writer, 1, &value["type"]));
    }
    match &value["additionalProperties"] {
        Value::Bool(any) => writer.message(21, |writer| writer.number(2, u64::from(*any))),
        below @ Value::Object(_) => writer.message(21, |writer| {
            writer.message(1, |writer| schema(writer, below))
        }),
        _ => {}
    }
    list(&value["enum"])
        .iter()
        .rev()
        .for_each(|one| any(writer, 20, one));
    if value["required"].is_array() {
        strings(writer, 19, &value["required"]);
    }
    bounds(writer, value);
    if let Some(default) = value.get("default") {
        any(writer, 5, default);
    }
    texts(
        writer,
        value,
        &[(4, "description"), (3, "title"), (2, "format"), (1, "$ref")],
    );
}

/// The limits of numbers, strings, lists and maps.
fn bounds(writer: &mut Writer, value: &Value) {
    count(writer, 18, &value["minProperties"]);
    count(writer, 17, &value["maxProperties"]);
    flag(writer, 16, &value["uniqueItems"]);
    count(writer, 15, &value["minItems"]);
    count(writer, 14, &value["maxItems"]);
    texts(writer, value, &[(13, "pattern")]);
    count(writer, 12, &value["minLength"]);
    count(writer, 11, &value["maxLength"]);
    flag(writer, 10, &value["exclusiveMinimum"]);
    double(writer, 9, &value["minimum"]);
    flag(writer, 8, &value["exclusiveMaximum"]);
    double(writer, 7, &value["maximum"]);
    double(writer, 6, &value["multipleOf"]);
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn written(value: &Value, write: fn(&mut Writer, &Value)) -> Vec<u8> {
        let mut writer = Writer::default();
        write(&mut writer, value);
        writer.finish()
    }

    #[test]
    fn schemas_have_the_fields_of_gnostic() {
        for (value, bytes) in [
            (
                json!({"$ref": "#/definitions/A"}),
                b"\x0a\x0f#/definitions/A".as_slice(),
            ),
            (
                json!({"type": "string", "format": "byte"}),
                b"\x12\x04byte\xb2\x01\x08\x0a\x06string",
            ),
            (json!({"enum": ["A"]}), b"\xa2\x01\x05\x12\x03\"A\""),
            (
                json!({"required": ["a", "b"]}),
                b"\x9a\x01\x01a\x9a\x01\x01b",
            ),
            (
                json!({"items": {"title": "t"}}),
                b"\xba\x01\x05\x0a\x03\x1a\x01t",
            ),
            (
                json!({"additionalProperties": true}),
                b"\xaa\x01\x02\x10\x01",
            ),
            (
                json!({"properties": {"a": {"title": "t"}}}),
                b"\xca\x01\x0a\x0a\x08\x0a\x01a\x12\x03\x1a\x01t",
            ),
            (
                json!({"minimum": 0, "maxItems": 3}),
                b"\x49\0\0\0\0\0\0\0\0\x70\x03",
            ),
            (
                json!({"x-a": "b"}),
                b"\xfa\x01\x0c\x0a\x03x-a\x12\x05\x12\x03\"b\"",
            ),
        ] {
            assert_eq!(written(&value, schema), bytes, "{value}");
        }
    }

    #[test]
    fn parameters_have_the_fields_of_gnostic() {
        let query = json!({"name": "limit", "in": "query", "type": "integer", "uniqueItems": true});
        assert_eq!(
            written(&query, parameter),
            b"\x12\x1c\x1a\x1a\x12\x05query\x22\x05limit\x32\x07integer\xa0\x01\x01"
        );
        let path = json!({"name": "name", "in": "path", "type": "string", "required": true});
        assert_eq!(
            written(&path, parameter),
            b"\x12\x18\x22\x16\x08\x01\x12\x04path\x22\x04name\x2a\x06string"
        );
        let body = json!({"name": "body", "in": "body", "schema": {"$ref": "A"}});
        assert_eq!(
            written(&body, parameter),
            b"\x0a\x11\x12\x04body\x1a\x04body\x2a\x03\x0a\x01A"
        );
    }
}
