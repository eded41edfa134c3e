//! Validates an applied configuration against its type.
//! Out: the errors, with the messages of kube-apiserver.

use std::collections::BTreeSet;

use bellerophon_apimachinery::field::go_type;
use serde_json::Value;

use super::{
    PathElement,
    schema::{Atom, Identity, ListOf, MapOf, Node, Scalar},
};

/// The errors of a configuration; nothing when it fits.
///
/// # Errors
/// All errors, as one text.
pub(super) fn validate(node: Node<'_>, value: &Value) -> Result<(), String> {
    let mut errors = Vec::new();
    validate_node(node, value, "", &mut errors);
    match errors.as_slice() {
        [] => Ok(()),
        [one] => Err(one.clone()),
        many => Err(format!("errors:\n  {}", many.join("\n  "))),
    }
}

fn validate_node(node: Node<'_>, value: &Value, path: &str, errors: &mut Vec<String>) {
    let mut refuse = |why: String| {
        errors.push(if path.is_empty() {
            why
        } else {
            format!("{path}: {why}")
        })
    };
    match (node.atom(value), value) {
        (_, Value::Null) => {}
        (Atom::Scalar(scalar), value) => {
            if let Some(why) = scalar_error(scalar, value) {
                refuse(why);
            }
        }
        (Atom::Map(map), Value::Object(members)) => validate_map(map, members, path, errors),
        (Atom::Map(_), other) => refuse(format!("expected map, got &{{{}}}", shown(other))),
        (Atom::List(list), Value::Array(items)) => validate_list(list, items, path, errors),
        (Atom::List(_), other) => refuse(format!("expected list, got &{{{}}}", shown(other))),
    }
}

fn validate_map(
    map: MapOf<'_>,
    members: &serde_json::Map<String, Value>,
    path: &str,
    errors: &mut Vec<String>,
) {
    for (key, inner) in members {
        let at = format!("{path}.{key}");
        let Some(child) = map.child(key) else {
            errors.push(format!("{at}: field not declared in schema"));
            return;
        };
        validate_node(child.node, inner, &at, errors);
    }
}

fn validate_list(list: ListOf<'_>, items: &[Value], path: &str, errors: &mut Vec<String>) {
    let mut seen = BTreeSet::new();
    for (i, item) in items.iter().enumerate() {
        let step = match list.identity {
            Identity::None => PathElement::Index(i64::try_from(i).unwrap_or(i64::MAX)),
            _ => match list.step(item) {
                Ok(step) => step,
                Err(why) => {
                    errors.push(format!("{path}: element {i}: {why}"));
                    return;
                }
            },
        };
        let at = format!("{path}{step}");
        if !matches!(list.identity, Identity::None) && !seen.insert(step.clone()) {
            errors.push(format!("{path}: duplicate entries for key {step}"));
        }
        validate_node(list.items, item, &at, errors);
    }
}

fn scalar_error(scalar: Scalar, value: &Value) -> Option<String> {
    let is_scalar = !value.is_object() && !value.is_array();
    match scalar {
        Scalar::Number if !value.is_number() => Some(format!(
            "expected numeric (int or float), got {}",
            go_type(value).unwrap_or("<nil>")
        )),
        Scalar::Text if !value.is_string() => Some(format!(
            "expected string, got &value.valueUnstructured{{Value:{}}}",
            literal(value)
        )),
        Scalar::Bool if !value.is_boolean() => {
            Some(format!("expected boolean, got &{{{}}}", shown(value)))
        }
        Scalar::Any if !is_scalar => {
            Some(format!("expected any scalar, got &{{{}}}", shown(value)))
        }
        _ => None,
    }
}

fn shown(value: &Value) -> String {
    bellerophon_codec::patch::GoValue(value).to_string()
}

/// A value as Go source writes it.
fn literal(value: &Value) -> String {
    let list = |items: Vec<String>| {
        format!(
            "{}{{{}}}",
            go_type(value).unwrap_or("<nil>"),
            items.join(", ")
        )
    };
    match value {
        Value::Null => "interface {}(nil)".to_owned(),
        Value::Array(items) => list(items.iter().map(literal).collect()),
        Value::Object(map) => list(
            map.iter()
                .map(|(key, value)| format!("{key:?}:{}", literal(value)))
                .collect(),
        ),
        scalar => scalar.to_string(),
    }
}
