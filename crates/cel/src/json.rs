//! Values as JSON, for what expressions make.
//! In: the value of an expression. Out: JSON, as Kubernetes writes it in patches.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Map as JsonMap, Value as Json};

use crate::{
    time,
    value::{Map, Value},
};

/// Larger integers are written as strings, as in protobuf's JSON.
const EXACT_MAX: i64 = (1 << 53) - 1;

impl Value<'_> {
    /// The value as JSON.
    ///
    /// # Errors
    /// A value that JSON has no form for, or data that does not fit its shape.
    pub fn to_json(&self) -> Result<Json, String> {
        Ok(match self {
            Self::Null => Json::Null,
            Self::Bool(b) => Json::Bool(*b),
            Self::Int(n) if n.abs() <= EXACT_MAX => Json::from(*n),
            Self::Int(n) => Json::String(n.to_string()),
            Self::Uint(n) if *n <= EXACT_MAX.unsigned_abs() => Json::from(*n),
            Self::Uint(n) => Json::String(n.to_string()),
            Self::Double(d) if d.fract() == 0.0 && d.abs() <= EXACT_MAX as f64 => {
                Json::from(*d as i64)
            }
            Self::Double(d) => Json::from(*d),
            Self::String(text) => Json::String(text.to_string()),
            Self::Bytes(bytes) => Json::String(STANDARD.encode(bytes)),
            Self::Timestamp(nanos) => Json::String(time::write_timestamp(*nanos)),
            Self::Duration(nanos) => Json::String(format!("{}s", *nanos as f64 / 1e9)),
            Self::List(list) => {
                let items = (0..list.len()).map(|i| {
                    let item = list.get(i).map_err(|failure| failure.to_string())?;
                    item.to_json()
                });
                Json::Array(items.collect::<Result<_, String>>()?)
            }
            Self::Map(Map::Data(map)) => Json::Object(map.entries.clone()),
            Self::Map(map) => {
                let mut made = JsonMap::new();
                for key in map.keys() {
                    let found = map.find(&key).map_err(|failure| failure.to_string())?;
                    let name = match &key {
                        Self::String(text) => text.to_string(),
                        Self::Int(n) => n.to_string(),
                        Self::Uint(n) => n.to_string(),
                        Self::Bool(b) => b.to_string(),
                        other => return Err(unsupported(other)),
                    };
                    let value = found.map_or(Ok(Json::Null), |value| value.to_json())?;
                    made.insert(name, value);
                }
                Json::Object(made)
            }
            Self::Message(message) => {
                let fields = message.fields.iter();
                let fields = fields.map(|(name, value)| Ok((name.clone(), value.to_json()?)));
                Json::Object(fields.collect::<Result<_, String>>()?)
            }
            Self::Optional(Some(value)) => value.to_json()?,
            Self::Optional(None) => Json::Null,
            Self::Hidden(json) => (*json).clone(),
            Self::Type(_) | Self::Opaque(_) | Self::Lazy => return Err(unsupported(self)),
        })
    }
}

fn unsupported(value: &Value<'_>) -> String {
    format!(
        "unsupported conversion from {} to JSON",
        value.type_of().name()
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{Environment, MessageType, Type, view};

    fn evaluated(text: &str) -> Json {
        let any = crate::Shape {
            nullable: true,
            ..crate::Shape::of(crate::ShapeKind::Any)
        };
        let data = json!({"a": {"b": [1, "x", null]}});
        let environment = Environment::kubernetes()
            .with_variable("object", Type::Dyn)
            .with_messages(|name| name.starts_with("Object").then_some(MessageType::Open));
        let program = environment.compile(text).expect("a sound expression");
        let object = view(&data, &any).expect("anything fits");
        let value = program.evaluate(&[object], 1_000_000).value;
        value.expect("a value").to_json().expect("JSON")
    }

    #[test]
    fn made_values_are_written_as_json() {
        let cases = [
            (
                "Object{a: Object.a{b: [1, 2]}, ?c: optional.none()}",
                json!({"a": {"b": [1, 2]}}),
            ),
            ("object.a", json!({"b": [1, "x", null]})),
            ("{'x': {1: true}}", json!({"x": {"1": true}})),
            ("[1.5, 2.0]", json!([1.5, 2])),
            ("9007199254740993", json!("9007199254740993")),
        ];
        for (text, expected) in cases {
            assert_eq!(evaluated(text), expected, "{text}");
        }
    }
}
