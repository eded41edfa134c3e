//! `fieldPath` of a rule: `.spec.ports['http'].name`.
//! In: `fieldPath` of a rule, and the schema of the rule. Out: the path as errors print it, if the
//! schema has it.

use bellerophon_apimachinery::field::Path;

use crate::schema::Schema;

/// The path as errors print it; `None` when it is no path or the schema does not have it.
pub(super) fn resolve(text: &str, schema: &Schema) -> Option<String> {
    let mut tokens = tokens(text).into_iter();
    let mut schema = schema;
    let mut path = String::new();
    while let Some(token) = tokens.next() {
        let name = match token {
            "." => tokens.next()?.to_owned(),
            "[" => {
                let quoted = tokens.next()?;
                let inside = quoted
                    .strip_prefix('\'')?
                    .strip_suffix('\'')
                    .filter(|_| quoted.len() >= 2)?;
                let name = unescape(inside)?;
                (tokens.next()? == "]").then_some(name)?
            }
            _ => return None,
        };
        if schema.properties.is_empty() {
            schema = schema.additional()?;
            path.push_str(&Path::ROOT.key(&name).to_string());
        } else {
            schema = schema.properties.get(&name)?;
            if !path.is_empty() {
                path.push('.');
            }
            path.push_str(&name);
        }
    }
    Some(path)
}

/// Delimiters, quoted strings, and the text between them.
fn tokens(text: &str) -> Vec<&str> {
    let mut found = Vec::new();
    let mut rest = text;
    while let Some(first) = rest.chars().next() {
        let end = match first {
            '.' | '[' | ']' => 1,
            '\'' => end_of_quoted(rest),
            _ => rest.find(['.', '[', ']']).unwrap_or(rest.len()),
        };
        found.push(&rest[..end]);
        rest = &rest[end..];
    }
    found
}

/// Behind the closing quote; a quote behind a backslash does not close.
fn end_of_quoted(text: &str) -> usize {
    let bytes = text.as_bytes();
    (1..bytes.len())
        .find(|i| bytes[*i] == b'\'' && bytes[i - 1] != b'\\')
        .map_or(text.len(), |i| i + 1)
}

fn unescape(text: &str) -> Option<String> {
    let mut out = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        out.push(match c {
            '\\' => match chars.next()? {
                'a' => '\u{7}',
                'b' => '\u{8}',
                'f' => '\u{c}',
                'n' => '\n',
                'r' => '\r',
                't' => '\t',
                'v' => '\u{b}',
                escaped @ ('\'' | '\\') => escaped,
                _ => return None,
            },
            c => c,
        });
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn paths_are_found_in_the_schema() {
        let schema = Schema::parse(&json!({"type": "object", "properties": {
            "a": {"type": "object", "properties": {"b": {"type": "string"}, "x.y": {"type": "string"}}},
            "m": {"type": "object", "additionalProperties": {"type": "object", "properties": {"c": {"type": "integer"}}}},
            "l": {"type": "array", "items": {"type": "string"}},
        }}))
        .expect("a valid schema");
        for (path, found) in [
            (".a.b", Some("a.b")),
            (".a['x.y']", Some("a.x.y")),
            ("['a'].b", Some("a.b")),
            (".m['k'].c", Some("m[k].c")),
            (".m['it\\'s'].c", Some("m[it's].c")),
            (".a.nope", None),
            (".l[0]", None),
            ("a", None),
            (".a[", None),
            (".a['b", None),
            (".", None),
        ] {
            assert_eq!(resolve(path, &schema).as_deref(), found, "{path}");
        }
    }
}
