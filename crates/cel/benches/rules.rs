//! Rules compiled and evaluated per second on one core: `cargo bench -p bellerophon-cel --bench
//! rules`.

use std::{
    collections::BTreeMap,
    hint::black_box,
    sync::Arc,
    time::{Duration, Instant},
};

use bellerophon_cel::{Environment, Field, ListOrder, Shape, ShapeKind, escape, view};
use serde_json::json;

/// How long each figure is measured.
const SPAN: Duration = Duration::from_millis(1500);
const LIMIT: u64 = 1_000_000;

/// The most common rules of custom resources: a bound, an enumeration, an immutable field, a
/// comprehension, a pattern.
const RULES: [(&str, &str); 5] = [
    ("bound", "self.minReplicas <= self.maxReplicas"),
    (
        "choice",
        "has(self.image) != has(self.template) || self.paused",
    ),
    ("immutable", "self.storageClass == oldSelf.storageClass"),
    (
        "loop of 10",
        "self.ports.all(p, p.port > 0 && p.port < 65536)",
    ),
    (
        "pattern",
        "self.storageClass.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
    ),
];

fn object(fields: Vec<(&str, Shape)>) -> Shape {
    let field = |(name, shape): (&str, Shape)| {
        (
            name.to_owned(),
            Field {
                escaped: escape(name),
                shape,
            },
        )
    };
    Shape::of(ShapeKind::Object {
        name: "object".into(),
        fields: fields.into_iter().map(field).collect::<BTreeMap<_, _>>(),
    })
}

fn spec() -> Shape {
    let port = object(vec![
        ("port", Shape::of(ShapeKind::Int)),
        ("name", Shape::of(ShapeKind::String)),
    ]);
    object(vec![
        ("minReplicas", Shape::of(ShapeKind::Int)),
        ("maxReplicas", Shape::of(ShapeKind::Int)),
        ("image", Shape::of(ShapeKind::String)),
        ("template", Shape::of(ShapeKind::String)),
        ("storageClass", Shape::of(ShapeKind::String)),
        ("paused", Shape::of(ShapeKind::Bool)),
        (
            "ports",
            Shape::of(ShapeKind::List {
                item: Box::new(port),
                order: ListOrder::Atomic,
            }),
        ),
    ])
    .named("spec")
}

#[expect(clippy::disallowed_methods, reason = "a benchmark measures real time")]
fn per_second(mut work: impl FnMut()) -> u64 {
    let begin = Instant::now();
    let mut count = 0u64;
    while begin.elapsed() < SPAN {
        (0..100).for_each(|_| work());
        count += 100;
    }
    (count as f64 / begin.elapsed().as_secs_f64()) as u64
}

#[expect(clippy::print_stdout, reason = "the figures are what it is for")]
fn main() {
    let shape = Arc::new(spec());
    let environment = Environment::kubernetes()
        .with_variable("self", shape.type_of())
        .with_variable("oldSelf", shape.type_of())
        .with_data(shape.clone());
    let ports: Vec<_> = (0..10)
        .map(|i| json!({"port": 8000 + i, "name": "web"}))
        .collect();
    let data = json!({"minReplicas": 2, "maxReplicas": 5, "image": "a:1", "storageClass": "fast-local", "paused": false, "ports": ports});
    println!("| rule | evaluated per second | compiled per second |\n|---|---|---|");
    for (name, rule) in RULES {
        let program = environment.compile(rule).expect("a sound rule");
        let evaluated = per_second(|| {
            let value = view(&data, &shape).expect("sound data");
            black_box(
                program
                    .evaluate(&[value.clone(), value], LIMIT)
                    .value
                    .is_ok(),
            );
        });
        let compiled = per_second(|| {
            black_box(environment.compile(rule).is_ok());
        });
        println!("| {name}: `{rule}` | {evaluated} | {compiled} |");
    }
}
