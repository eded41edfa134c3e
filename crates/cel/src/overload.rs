//! Selects the overload of a function by its arguments.
//! In: parameter types and values. Out: whether they match, and the error if no overload does.

use crate::{ast::operator, eval::Failure, types::Type, value::Value};

/// Whether a value matches a parameter type. The element types of lists and maps are not checked.
pub(crate) fn accepts(param: &Type, value: &Value<'_>) -> bool {
    match param {
        Type::Dyn | Type::Param(_) => true,
        Type::Bool => matches!(value, Value::Bool(_)),
        Type::Int => matches!(value, Value::Int(_)),
        Type::Uint => matches!(value, Value::Uint(_)),
        Type::Double => matches!(value, Value::Double(_)),
        Type::String => matches!(value, Value::String(_)),
        Type::Bytes => matches!(value, Value::Bytes(_)),
        Type::Null => matches!(value, Value::Null),
        Type::Timestamp => matches!(value, Value::Timestamp(_)),
        Type::Duration => matches!(value, Value::Duration(_)),
        Type::List(item) => match value {
            Value::List(list) => {
                list.is_empty() || list.get(0).is_ok_and(|first| accepts(item, &first))
            }
            _ => false,
        },
        Type::Map(_) => matches!(value, Value::Map(_)),
        Type::Type(_) => matches!(value, Value::Type(_)),
        Type::Object(name) | Type::Opaque(name, _) => match value {
            Value::Optional(_) => param.unwrapped().is_some(),
            Value::Opaque(value) => value.type_of().name() == &**name,
            _ => false,
        },
        Type::Error => false,
    }
}

/// The error for arguments that match no overload. Most functions name the argument types;
/// operators, and methods that the type of the first operand implements, do not.
pub(crate) fn no_such_overload(name: &str, args: &[Value<'_>]) -> Failure {
    let first = args.first().map(Value::type_of);
    let knows = match name {
        "matches" | "contains" | "startsWith" | "endsWith" | "find" | "findAll" => true,
        operator::ADD => !matches!(
            first,
            Some(Type::Bool | Type::Null | Type::Map(_) | Type::Type(_) | Type::Opaque(..))
        ),
        operator::LESS | operator::LESS_EQUALS | operator::GREATER | operator::GREATER_EQUALS => {
            !matches!(
                first,
                Some(Type::Null | Type::List(_) | Type::Map(_) | Type::Type(_) | Type::Opaque(..))
            )
        }
        operator::SUBTRACT => {
            matches!(
                first,
                Some(Type::Int | Type::Uint | Type::Double | Type::Duration | Type::Timestamp)
            )
        }
        operator::MULTIPLY | operator::DIVIDE | operator::MODULO => {
            matches!(first, Some(Type::Int | Type::Uint | Type::Double))
        }
        operator::NEGATE | operator::NOT | operator::IN => true,
        _ => false,
    };
    if knows {
        return Failure::no_such_overload();
    }
    if is_operator(name) || matches!(name, "size" | "sort") {
        return Failure::new(format!("no such overload: {name}"));
    }
    let types: Vec<String> = args
        .iter()
        .map(|arg| arg.type_of().name().to_owned())
        .collect();
    Failure::new(format!("no such overload: {name}({})", types.join(", ")))
}

pub(super) fn is_operator(name: &str) -> bool {
    name.starts_with(['_', '@', '!', '-'])
}
