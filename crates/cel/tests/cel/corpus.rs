//! Expressions with the results of kube-apiserver 1.36: messages of its compiler, estimates,
//! values, failures and costs. The data in `corpus.json` were recorded from the compiler and
//! evaluator of Kubernetes 1.36.4 on the schema that [`thing`] describes and the object of
//! [`object`].

use std::{collections::BTreeMap, fmt::Write, sync::Arc};

use bellerophon_cel::{
    CompileError, Environment, Field, ListOrder, Shape, ShapeKind, Type, Value, escape, view,
};
use serde_json::{Value as Json, json};

/// The size of the largest request, as Kubernetes counts it.
const REQUEST: u64 = 3 << 20;

fn sized(kind: ShapeKind, size_max: u64) -> Shape {
    Shape {
        kind,
        nullable: false,
        size_max,
    }
}

fn of(kind: ShapeKind) -> Shape {
    Shape::of(kind)
}

fn string() -> Shape {
    sized(ShapeKind::String, REQUEST - 2)
}

fn object_of(fields: Vec<(&str, Shape)>) -> Shape {
    let field = |(name, shape): (&str, Shape)| {
        (
            name.to_owned(),
            Field {
                escaped: escape(name),
                shape,
            },
        )
    };
    of(ShapeKind::Object {
        name: "object".into(),
        fields: fields.into_iter().map(field).collect::<BTreeMap<_, _>>(),
    })
}

fn list_of(item: Shape, order: ListOrder, max: u64) -> Shape {
    sized(
        ShapeKind::List {
            item: Box::new(item),
            order,
        },
        max,
    )
}

/// The schema the corpus was recorded with.
fn thing() -> Shape {
    let keyed = object_of(vec![("k", string()), ("v", of(ShapeKind::Int))]);
    let deep = object_of(vec![("x", of(ShapeKind::Int))]);
    object_of(vec![
        ("n", of(ShapeKind::Int)),
        ("d", of(ShapeKind::Double)),
        ("b", of(ShapeKind::Bool)),
        ("s", string()),
        ("short", sized(ShapeKind::String, 40)),
        ("e", sized(ShapeKind::String, 3)),
        ("l", list_of(string(), ListOrder::Atomic, (REQUEST - 2) / 3)),
        ("ln", list_of(of(ShapeKind::Int), ListOrder::Atomic, 5)),
        (
            "ls",
            list_of(sized(ShapeKind::String, 20), ListOrder::Atomic, 10),
        ),
        ("set", list_of(string(), ListOrder::Set, 10)),
        (
            "keyed",
            list_of(
                keyed,
                ListOrder::Keyed(vec!["k".into()]),
                (REQUEST - 2) / 10,
            ),
        ),
        (
            "m",
            sized(
                ShapeKind::Map(Box::new(of(ShapeKind::Int))),
                (REQUEST - 2) / 7,
            ),
        ),
        (
            "mm",
            sized(ShapeKind::Map(Box::new(sized(ShapeKind::String, 32))), 4),
        ),
        ("o", object_of(vec![("a", string()), ("deep", deep)])),
        ("t", sized(ShapeKind::DateTime, 32)),
        ("day", sized(ShapeKind::Date, 12)),
        ("dur", sized(ShapeKind::Duration, 32)),
        ("by", sized(ShapeKind::Bytes, REQUEST - 2)),
        ("ios", sized(ShapeKind::IntOrString, REQUEST - 2)),
        (
            "nul",
            Shape {
                nullable: true,
                ..string()
            },
        ),
        ("any", object_of(Vec::new())),
        ("unk", of(ShapeKind::Hidden)),
        ("a-b.c", string()),
        ("namespace", string()),
        ("__x", of(ShapeKind::Int)),
        (
            "listunk",
            list_of(of(ShapeKind::Hidden), ListOrder::Atomic, 1),
        ),
    ])
    .named("selfType1")
}

/// The object the corpus was recorded with.
fn object() -> Json {
    json!({
        "n": 5, "d": 1.5, "b": true, "s": "hello", "short": "abc", "e": "a", "l": ["x", "y"], "ln": [3, 1, 2], "ls": ["p", "q"],
        "set": ["a", "b"], "keyed": [{"k": "one", "v": 1}, {"k": "two", "v": 2}], "m": {"x": 1, "y": 2}, "mm": {"k": "v"},
        "o": {"a": "inner", "deep": {"x": 7}}, "t": "2024-05-06T07:08:09Z", "day": "2024-05-06", "dur": "1h30m", "by": "aGVsbG8=",
        "ios": "50%", "nul": null, "any": {"z": 1}, "unk": {"y": [1]}, "a-b.c": "dashed", "namespace": "ns", "__x": 9, "listunk": [1]
    })
}

/// A value in the form of the corpus.
fn show(value: &Value<'_>) -> String {
    match value {
        Value::Null => "null".into(),
        Value::Bool(b) => b.to_string(),
        Value::Int(n) => n.to_string(),
        Value::Uint(n) => format!("{n}u"),
        Value::Double(d) if d.is_infinite() => {
            format!("double({}Inf)", if *d > 0.0 { '+' } else { '-' })
        }
        Value::Double(d) => format!(
            "double({})",
            if *d == 1e25 {
                "1e+25".into()
            } else {
                d.to_string()
            }
        ),
        Value::String(text) => serde_json::to_string(&**text).expect("a string"),
        Value::Bytes(bytes) => {
            let mut hex = String::new();
            bytes
                .iter()
                .for_each(|b| write!(hex, "{b:02x}").expect("a string grows"));
            format!("bytes({hex})")
        }
        Value::Duration(nanos) => format!("duration({nanos})"),
        Value::Timestamp(nanos) => format!("timestamp({nanos})"),
        Value::Type(_) => "type".into(),
        Value::Optional(None) => "optional.none".into(),
        Value::Optional(Some(value)) => format!("optional({})", show(value)),
        Value::List(list) => {
            let items: Vec<String> = (0..list.len())
                .map(|i| show(&list.get(i).expect("sound data")))
                .collect();
            format!("[{}]", items.join(", "))
        }
        Value::Map(_) => "map".into(),
        Value::Opaque(_) | Value::Hidden(_) | Value::Message(_) | Value::Lazy => "opaque".into(),
    }
}

/// The results of an expression, in the form of the corpus.
fn run(environment: &Environment, expression: &str, data: &Value<'_>) -> Json {
    let program = match environment.compile(expression) {
        Ok(program) => program,
        Err(CompileError::Issues(issues)) => return json!({"issues": issues.to_string()}),
        Err(CompileError::Plan(problem)) => return json!({"plan": problem}),
    };
    let evaluation = program.evaluate(&[data.clone(), Value::Optional(None)], 1_000_000);
    let mut out = json!({"type": program.output().to_string(), "estimate": [program.cost().min, program.cost().max], "cost": evaluation.cost});
    match evaluation.value {
        Ok(value) => out["value"] = show(&value).into(),
        Err(failure) => out["failure"] = failure.to_string().into(),
    }
    out
}

#[test]
fn expressions_have_the_results_of_kubernetes() {
    let shape = Arc::new(thing());
    let environment = Environment::kubernetes()
        .with_variable("self", shape.type_of())
        .with_variable("oldSelf", Type::optional(shape.type_of()))
        .with_data(shape.clone());
    let object = object();
    let data = view(&object, &shape).expect("sound data");
    let corpus: Vec<Json> =
        serde_json::from_str(include_str!("corpus.json")).expect("the corpus is JSON");
    assert!(corpus.len() > 300, "the corpus is there");
    let mut differences = String::new();
    let mut count = 0;
    for case in &corpus {
        let expression = case["expr"].as_str().expect("every case has an expression");
        let found = run(&environment, expression, &data);
        let mut expected = case.clone();
        expected.as_object_mut().expect("an object").remove("expr");
        if found != expected {
            count += 1;
            writeln!(
                differences,
                "{expression}\n  want {expected}\n  got  {found}"
            )
            .expect("a string grows");
        }
    }
    assert!(
        count == 0,
        "{count} of {} differ:\n{differences}",
        corpus.len()
    );
}
