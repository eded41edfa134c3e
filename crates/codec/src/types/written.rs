//! Values as Go encodes them: the fields of a struct in the order of the struct, the keys of a map
//! sorted.
//! In: a value and its type. Out: JSON for error messages.
//! Guarantees: nothing of the value is left out; `<`, `>` and `&` are escaped, as Go does for HTML.

use std::collections::BTreeMap;

use serde_json::Value;

use super::{Item, Shape, Type};

/// The places of an object that a patch looked into. Such a place is a map from then on, so its
/// keys are sorted.
#[derive(Clone, Debug, Default)]
pub struct Opened(BTreeMap<String, Opened>);

impl Opened {
    /// The place below this one, looked into as well.
    pub(crate) fn open(&mut self, key: &str) -> &mut Self {
        self.0.entry(key.to_owned()).or_default()
    }
}

/// An object whose type may be known, after a patch that looked into `opened`. What has no type has
/// no order but that of its keys.
pub fn written(ty: Option<&'static Type>, value: &Value, opened: Option<&Opened>) -> String {
    let mut out = String::new();
    write(
        &mut out,
        ty.map_or(ValueType::Plain, ValueType::Struct),
        value,
        opened,
    );
    escape(&out)
}

/// The type of a value.
#[derive(Clone, Copy)]
enum ValueType {
    Struct(&'static Type),
    /// A list or a map.
    Holder(Shape),
    Plain,
}

impl From<Item> for ValueType {
    fn from(item: Item) -> Self {
        item.object().map_or(Self::Plain, Self::Struct)
    }
}

impl From<Shape> for ValueType {
    fn from(shape: Shape) -> Self {
        match shape {
            Shape::One(item) => item.into(),
            holder => Self::Holder(holder),
        }
    }
}

impl ValueType {
    fn below(self, key: &str) -> Self {
        match self {
            Self::Struct(ty) => ty
                .field(key)
                .map_or(Self::Plain, |field| field.shape.into()),
            Self::Holder(Shape::Map(item) | Shape::List(item)) => item.into(),
            Self::Holder(Shape::MapOfLists(item)) => Self::Holder(Shape::List(item)),
            Self::Holder(Shape::One(_)) | Self::Plain => Self::Plain,
        }
    }
}

fn write(out: &mut String, ty: ValueType, value: &Value, opened: Option<&Opened>) {
    let inside = |key: &str| opened.and_then(|opened| opened.0.get(key));
    match value {
        Value::Object(map) => {
            let ordered: Vec<&str> = match ty {
                ValueType::Struct(ty) if opened.is_none() => ty
                    .written_order()
                    .map(|f| f.name)
                    .filter(|name| map.contains_key(*name))
                    .collect(),
                _ => Vec::new(),
            };
            // A struct with an unknown key was sent by the client, and its order is not kept.
            let keys = if ordered.len() == map.len() {
                ordered
            } else {
                map.keys().map(String::as_str).collect()
            };
            let members = keys
                .into_iter()
                .map(|key| (Some(key), &map[key], ty.below(key), inside(key)));
            enclose(out, ['{', '}'], members);
        }
        Value::Array(items) => {
            let items = items.iter().enumerate();
            enclose(
                out,
                ['[', ']'],
                items.map(|(i, item)| (None, item, ty.below(""), inside(&i.to_string()))),
            );
        }
        scalar => out.push_str(&scalar.to_string()),
    }
}

type Member<'a> = (Option<&'a str>, &'a Value, ValueType, Option<&'a Opened>);

fn enclose<'a>(
    out: &mut String,
    [open, close]: [char; 2],
    members: impl Iterator<Item = Member<'a>>,
) {
    out.push(open);
    for (i, (key, value, ty, opened)) in members.enumerate() {
        if i > 0 {
            out.push(',');
        }
        if let Some(key) = key {
            out.push_str(&Value::from(key).to_string());
            out.push(':');
        }
        write(out, ty, value, opened);
    }
    out.push(close);
}

/// These characters occur only inside strings.
pub(super) fn escape(json: &str) -> String {
    let mut out = String::with_capacity(json.len());
    for c in json.chars() {
        match c {
            '<' | '>' | '&' | '\u{2028}' | '\u{2029}' => {
                out.push_str(&format!("\\u{:04x}", u32::from(c)))
            }
            c => out.push(c),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::types;

    fn container() -> Value {
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"namespace": "n", "name": "p", "labels": {"b": "<1>", "a": "&"}},
               "spec": {"containers": [{"image": "i", "name": "c", "imagePullPolicy": "Always", "terminationMessagePolicy": "File"}]}})
    }

    fn check(opened: &[&[&str]], want: &str) {
        let pod = types::find("", "v1", "Pod").expect("the table has pods");
        let mut all = Opened::default();
        for path in opened {
            path.iter().fold(&mut all, |place, key| place.open(key));
        }
        let opened = (!opened.is_empty()).then_some(&all);
        assert_eq!(written(Some(pod), &container(), opened), want);
    }

    #[test]
    fn structs_keep_their_order_until_a_patch_looks_into_them() {
        let labels = r#""labels":{"a":"\u0026","b":"\u003c1\u003e"}"#;
        let item = r#"{"name":"c","image":"i","terminationMessagePolicy":"File","imagePullPolicy":"Always"}"#;
        let sorted = r#"{"image":"i","imagePullPolicy":"Always","name":"c","terminationMessagePolicy":"File"}"#;
        let meta = format!(r#""metadata":{{"name":"p","namespace":"n",{labels}}}"#);
        check(
            &[],
            &format!(
                r#"{{"kind":"Pod","apiVersion":"v1",{meta},"spec":{{"containers":[{item}]}}}}"#
            ),
        );
        check(
            &[&[]],
            &format!(
                r#"{{"apiVersion":"v1","kind":"Pod",{meta},"spec":{{"containers":[{item}]}}}}"#
            ),
        );
        let opened = format!(
            r#"{{"apiVersion":"v1","kind":"Pod",{meta},"spec":{{"containers":[{sorted}]}}}}"#
        );
        check(&[&["spec", "containers", "0"]], &opened);
    }

    #[test]
    fn keys_that_no_type_knows_are_not_lost() {
        let mut pod = container();
        pod["spec"]["zebra"] = json!(1);
        let ty = types::find("", "v1", "Pod");
        assert!(written(ty, &pod, None).contains(r#""zebra":1"#));
        assert_eq!(
            written(None, &json!({"b": [{"d": 1, "c": null}], "a": true}), None),
            r#"{"a":true,"b":[{"c":null,"d":1}]}"#
        );
    }
}
