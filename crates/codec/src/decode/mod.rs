//! Decodes request bodies to a tree that keeps order, repeated keys and the text of numbers.
//! In: JSON or YAML bytes. Out: a [`Node`], or a plain [`Read`] for kinds without a built-in type.
//! Guarantees: depth and size are limited; malformed bodies are rejected with the messages of Go's
//! decoders.

mod json; // JSON, with the errors of Go's decoder
mod json_in_yaml; // YAML bodies that are JSON
mod node; // the tree: order and repeated keys kept
mod scalar; // types of plain scalars
mod yaml; // YAML, with the scalars of YAML 1.1

pub use node::{Members, Node, whole_number};
pub use scalar::is_plain_text;

use std::borrow::Cow;

use serde_json::{Map, Value};

/// The maximum depth. Kubernetes allows 10,000; no real object reaches this limit, and recursion to
/// it fits any stack.
pub const DEPTH_MAX: usize = 256;

/// Objects with members that JSON may have, since one takes 100 times the memory of its shortest
/// text. More of them would have less than 12 bytes each in the largest object that etcd stores,
/// 1.5 MiB. The limit of values in YAML has the same effect.
pub const OBJECTS_MAX: usize = 128 << 10;

/// The largest body of a request, as in kube-apiserver.
pub const BODY_MAX_BYTES: usize = 3 * 1024 * 1024;

/// How a body is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Encoding {
    /// JSON or YAML.
    Text(Media),
    /// Only what has a built-in type can be read from it.
    Protobuf,
}

/// The format of a text body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Media {
    /// `application/json`.
    Json,
    /// `application/yaml`.
    Yaml,
}

/// A body as a tree.
pub struct Tree<'a> {
    /// The value of the whole body.
    pub root: Node<'a>,
    /// Keys that YAML repeats, as one strict error. JSON keeps repeated keys in the tree.
    pub repeated: Option<String>,
}

/// A body of a kind that has no built-in type.
#[derive(Debug)]
pub struct Read {
    /// As written; empty when missing.
    pub api_version: String,
    /// As written; never empty.
    pub kind: String,
    /// The body, with the last of repeated fields.
    pub object: Map<String, Value>,
    /// Repeated fields as strict errors, in the order of the body. The last one won.
    pub duplicates: Vec<String>,
}

/// Reads a body into a tree.
///
/// # Errors
/// A body that is no JSON or YAML, with the messages of the server's decoder.
pub fn parse(bytes: &[u8], media: Media) -> Result<Tree<'_>, String> {
    match media {
        Media::Json => match json::parse(bytes) {
            Ok(root) => Ok(Tree {
                root,
                repeated: None,
            }),
            Err(why) => Err(format!(
                "couldn't get version/kind; json parse error: {why}"
            )),
        },
        Media::Yaml => yaml::parse(bytes),
    }
}

/// Decodes JSON that has no kind, such as a patch.
///
/// # Errors
/// Malformed JSON, with the messages of Go's decoder.
pub fn parse_json(bytes: &[u8]) -> Result<Node<'_>, String> {
    json::parse(bytes)
}

/// Reads a body whose kind has no built-in type.
///
/// # Errors
/// A body that is no JSON or YAML, no object, or names no kind. The text is the reason alone; the
/// caller adds the subject.
pub fn read(bytes: &[u8], media: Media) -> Result<Read, String> {
    let tree = parse(bytes, media)?;
    type_meta(&tree.root)?;
    let mut duplicates = tree.repeated.into_iter().collect();
    let object = match tree.root.into_value(&mut duplicates)? {
        Value::Object(map) => map,
        _ => Map::new(),
    };
    let text = |name| {
        object
            .get(name)
            .and_then(Value::as_str)
            .unwrap_or_default()
            .to_owned()
    };
    let api_version = text("apiVersion");
    let kind = text("kind");
    if kind.is_empty() {
        return Err(format!(
            "Object 'Kind' is missing in '{}'",
            String::from_utf8_lossy(bytes)
        ));
    }
    Ok(Read {
        api_version,
        kind,
        object,
        duplicates,
    })
}

/// The apiVersion and kind that a body names, empty where it does not.
///
/// # Errors
/// A body that is neither an object nor null, and a name that is no string.
pub fn type_meta<'n>(root: &'n Node<'_>) -> Result<(&'n str, &'n str), String> {
    const PREFIX: &str = "couldn't get version/kind; json parse error: json: cannot unmarshal";
    // The server looks for the kind with an anonymous Go struct, and names it so.
    const STRUCT: &str = r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
    let members = match root {
        Node::Null => return Ok(("", "")),
        Node::Object(members) => members,
        other => {
            return Err(format!(
                "{PREFIX} {} into Go value of type {STRUCT}",
                other.go_kind()
            ));
        }
    };
    let mut api_version = "";
    let mut kind = "";
    for (key, value) in members {
        // This one look is not case-sensitive.
        let (slot, name) = match key {
            key if key.eq_ignore_ascii_case("apiVersion") => (&mut api_version, "apiVersion"),
            key if key.eq_ignore_ascii_case("kind") => (&mut kind, "kind"),
            _ => continue,
        };
        match value {
            Node::String(text) => *slot = text,
            Node::Null => {}
            other => {
                return Err(format!(
                    "{PREFIX} {} into Go struct field .{name} of type string",
                    other.go_kind()
                ));
            }
        }
    }
    Ok((api_version, kind))
}

/// The message of strict decoding: `strict decoding error: unknown field "a", duplicate field "b"`.
pub fn strict_error(errors: &[String]) -> String {
    format!("strict decoding error: {}", errors.join(", "))
}

/// The same as warnings: of keys that YAML repeats, one each.
pub fn warnings(errors: &[String]) -> Vec<String> {
    let lines = errors
        .iter()
        .flat_map(|error| match error.strip_prefix(yaml::REPEATED) {
            Some(lines) => lines.split(yaml::NEXT).collect(),
            None => vec![error.as_str()],
        });
    lines.map(str::to_owned).collect()
}

/// As many strict errors are kept of one body, as in kube-apiserver's decoder.
pub const STRICT_ERRORS_MAX: usize = 100;

/// Keeps the first hundred different strict errors.
pub fn note_strict(errors: &mut Vec<String>, error: String) {
    if errors.len() < STRICT_ERRORS_MAX && !errors.contains(&error) {
        errors.push(error);
    }
}

/// The start of a body, as errors quote it: objects as text, the rest in hex.
pub fn summary(bytes: &[u8]) -> Cow<'static, str> {
    const MAX: usize = 30;
    let more = if bytes.len() > MAX { " ..." } else { "" };
    let head = &bytes[..bytes.len().min(MAX)];
    match bytes.first() {
        None => "<empty>".into(),
        Some(b'{') => format!("{}{more}", String::from_utf8_lossy(head)).into(),
        Some(_) => format!(
            "{}{more}",
            head.iter().map(|b| format!("{b:02x}")).collect::<String>()
        )
        .into(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn custom_body_needs_a_kind_and_reports_repeated_fields() {
        let body = br#"{"apiVersion":"a.dev/v1","kind":"Crate","metadata":{"name":"p","name":"q"},"spec":{"a":"1","a":"2","in":[{"b":1,"b":2.0}]}}"#;
        let read = read(body, Media::Json).expect("a good body");
        assert_eq!(read.api_version.as_str(), "a.dev/v1");
        assert_eq!(read.kind.as_str(), "Crate");
        assert_eq!(read.object["spec"], json!({"a": "2", "in": [{"b": 2}]}));
        assert_eq!(
            read.duplicates,
            [
                r#"duplicate field "metadata.name""#,
                r#"duplicate field "spec.a""#,
                r#"duplicate field "spec.in[0].b""#
            ]
        );
        let strict = strict_error(&read.duplicates[..2]);
        assert_eq!(
            strict,
            r#"strict decoding error: duplicate field "metadata.name", duplicate field "spec.a""#
        );
    }

    #[test]
    fn number_of_objects_is_bounded() {
        let body = |objects: usize| format!("[{}]", vec![r#"{"a":1}"#; objects].join(","));
        assert!(parse(body(OBJECTS_MAX).as_bytes(), Media::Json).is_ok());
        let over = body(OBJECTS_MAX + 1);
        let error = parse_json(over.as_bytes());
        assert_eq!(error, Err("exceeded max objects of 131072".to_owned()));
    }

    #[test]
    fn repeated_keys_of_yaml_are_a_warning_each() {
        let tree = parse(b"a: 1\na: 2\nb: 1\nb: 2\n", Media::Yaml).expect("good YAML");
        let errors: Vec<String> = tree
            .repeated
            .into_iter()
            .chain(["unknown field \"x\"".to_owned()])
            .collect();
        let expected = [
            "line 2: key \"a\" already set in map",
            "line 4: key \"b\" already set in map",
            "unknown field \"x\"",
        ];
        assert_eq!(warnings(&errors), expected);
    }

    #[test]
    fn body_without_a_kind_is_refused() {
        let anonymous = r#"struct { APIVersion string "json:\"apiVersion,omitempty\""; Kind string "json:\"kind,omitempty\"" }"#;
        let cases = [
            (r#"{"metadata": {"name": "x"}}"#, r#"Object 'Kind' is missing in '{"metadata": {"name": "x"}}'"#.to_owned()),
            ("null", "Object 'Kind' is missing in 'null'".to_owned()),
            ("[]", format!("couldn't get version/kind; json parse error: json: cannot unmarshal array into Go value of type {anonymous}")),
            ("", "couldn't get version/kind; json parse error: unexpected end of JSON input".to_owned()),
            (
                r#"{"Kind": 5}"#,
                "couldn't get version/kind; json parse error: json: cannot unmarshal number into Go struct field .kind of type string"
                    .to_owned(),
            ),
        ];
        for (body, why) in cases {
            assert_eq!(read(body.as_bytes(), Media::Json).expect_err(body), why);
        }
    }

    #[test]
    fn summary_quotes_objects_and_spells_the_rest_in_hex() {
        assert_eq!(summary(b""), "<empty>");
        assert_eq!(summary(b"[1,2]"), "5b312c325d");
        assert_eq!(
            summary(br#"{"apiVersion":"v1","kind":"ConfigMap"}"#),
            r#"{"apiVersion":"v1","kind":"Con ..."#
        );
    }
}
