//! CEL functions that share code with validation: quantities, and the formats of names.
//! In: strings. Out: the result of the code that validates objects.
//! Guarantees: a quantity or name is valid in an expression exactly if it is valid in an object.

use std::{
    any::Any,
    sync::{Arc, LazyLock},
};

use bellerophon_apimachinery::names;
use bellerophon_cel::{
    CostModel, Environment, Failure, Functions, Meter, Opaque, Run, Text, Type, Value,
};

use crate::formats;

/// The functions of Kubernetes together with those of this module, and no variables.
pub(super) fn environment() -> Environment {
    static BASE: LazyLock<Environment> = LazyLock::new(|| {
        Environment::kubernetes().with_functions(|functions| {
            declare_formats(functions);
        })
    });
    BASE.clone()
}

fn text<'v, 'a>(args: &'v [Value<'a>], at: usize) -> Result<&'v Text<'a>, Failure> {
    match args.get(at) {
        Some(Value::String(text)) => Ok(text),
        _ => Err(Failure::new("no such overload")),
    }
}

/// A format with a name.
#[derive(Clone, Copy)]
struct Format {
    name: &'static str,
    /// The errors of a text.
    validate: fn(&str) -> Vec<String>,
    /// How long the pattern behind it is, for what it costs.
    regex_size: u64,
}

impl std::fmt::Debug for Format {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Format").field(&self.name).finish()
    }
}

impl Opaque for Format {
    fn type_of(&self) -> Type {
        format_type()
    }

    fn equals(&self, other: &dyn Opaque) -> Option<bool> {
        other
            .as_any()
            .downcast_ref::<Self>()
            .map(|other| self.name == other.name)
    }

    fn as_any(&self) -> &dyn Any {
        self
    }

    fn regex_size(&self) -> u64 {
        self.regex_size
    }
}

fn format_type() -> Type {
    Type::object("kubernetes.NamedFormat")
}

/// A name that more is written behind: a dash or dot at its end is fine.
fn as_prefix(validate: fn(&str) -> Vec<String>, text: &str) -> Vec<String> {
    let unended = text.strip_suffix('-').map(|start| format!("{start}a"));
    validate(unended.as_deref().unwrap_or(text))
}

fn must_have(format: &str, text: &str, problem: &str) -> Vec<String> {
    let fits = formats::find(format).is_none_or(|fits| fits(text));
    if fits {
        Vec::new()
    } else {
        vec![problem.to_owned()]
    }
}

const FORMATS: [(&str, &str, Run); 13] = [
    ("dns1123Label", "format.dns1123Label", |_, _| {
        named("dns1123Label")
    }),
    ("dns1123Subdomain", "format.dns1123Subdomain", |_, _| {
        named("dns1123Subdomain")
    }),
    ("dns1035Label", "format.dns1035Label", |_, _| {
        named("dns1035Label")
    }),
    ("qualifiedName", "format.qualifiedName", |_, _| {
        named("qualifiedName")
    }),
    ("dns1123LabelPrefix", "format.dns1123LabelPrefix", |_, _| {
        named("dns1123LabelPrefix")
    }),
    (
        "dns1123SubdomainPrefix",
        "format.dns1123SubdomainPrefix",
        |_, _| named("dns1123SubdomainPrefix"),
    ),
    ("dns1035LabelPrefix", "format.dns1035LabelPrefix", |_, _| {
        named("dns1035LabelPrefix")
    }),
    ("labelValue", "format.labelValue", |_, _| {
        named("labelValue")
    }),
    ("uri", "format.uri", |_, _| named("uri")),
    ("uuid", "format.uuid", |_, _| named("uuid")),
    ("byte", "format.byte", |_, _| named("byte")),
    ("date", "format.date", |_, _| named("date")),
    ("datetime", "format.datetime", |_, _| named("datetime")),
];

fn find(name: &str) -> Option<Format> {
    let (validate, regex_size): (fn(&str) -> Vec<String>, u64) = match name {
        "dns1123Label" => (names::dns_label, 30),
        "dns1123Subdomain" => (names::dns_subdomain, 60),
        "dns1035Label" => (names::dns_1035_label, 30),
        "qualifiedName" => (names::qualified_name, 60),
        "dns1123LabelPrefix" => (|text| as_prefix(names::dns_label, text), 30),
        "dns1123SubdomainPrefix" => (|text| as_prefix(names::dns_subdomain, text), 60),
        "dns1035LabelPrefix" => (|text| as_prefix(names::dns_1035_label, text), 30),
        "labelValue" => (names::label_value, 40),
        "uri" => (
            |text| {
                must_have(
                    "uri",
                    text,
                    &format!("parse {text:?}: invalid URI for request"),
                )
            },
            800,
        ),
        "uuid" => (
            |text| must_have("uuid", text, "does not match the UUID format"),
            75,
        ),
        "byte" => (|text| must_have("byte", text, "invalid base64"), 73),
        "date" => (|text| must_have("date", text, "invalid date"), 136),
        "datetime" => (|text| must_have("datetime", text, "invalid datetime"), 136),
        _ => return None,
    };
    let name = FORMATS.iter().find(|(known, ..)| *known == name)?.0;
    Some(Format {
        name,
        validate,
        regex_size,
    })
}

fn named<'a>(name: &str) -> Result<Value<'a>, Failure> {
    find(name)
        .map(Value::of)
        .ok_or_else(|| Failure::new("no such overload"))
}

fn declare_formats(f: &mut Functions) {
    use Type::String;
    for (_, function, run) in FORMATS {
        f.global(function, function, &[], format_type(), CostModel::Unit, run);
    }
    f.global(
        "format.named",
        "format-named",
        &[String],
        Type::optional(format_type()),
        CostModel::Unit,
        |_, args| {
            Ok(Value::Optional(
                find(text(args, 0)?).map(|format| Arc::new(Value::of(format))),
            ))
        },
    );
    let problems = Type::optional(Type::list(String));
    f.member(
        "validate",
        "format-validate",
        &[format_type(), String],
        problems,
        CostModel::Validate,
        validate,
    );
}

/// The errors of a string, if any.
fn validate<'a>(meter: &mut Meter, args: &[Value<'a>]) -> Result<Value<'a>, Failure> {
    let format = args
        .first()
        .and_then(Value::downcast::<Format>)
        .ok_or_else(|| Failure::new("no such overload"))?;
    let problems = (format.validate)(text(args, 1)?);
    if problems.is_empty() {
        return Ok(Value::Optional(None));
    }
    meter.allocate(problems.iter().map(String::len).sum())?;
    Ok(Value::some(Value::list(
        problems.into_iter().map(Value::text).collect(),
    )))
}
