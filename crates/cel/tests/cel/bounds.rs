//! The limits of expressions: text, depth, nodes, time and memory.

use std::sync::Arc;

use bellerophon_cel::{CompileError, Environment, Shape, ShapeKind, Type, Value, view};
use serde_json::json;

const LIMIT: u64 = 1_000_000;

fn environment() -> Environment {
    Environment::kubernetes()
        .with_variable("l", Type::list(Type::Int))
        .with_variable("s", Type::String)
}

fn refusal(text: &str) -> String {
    match environment().compile(text) {
        Err(CompileError::Issues(issues)) => issues.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Evaluates with ten numbers and a short text.
#[track_caller]
fn stopped(text: &str) {
    let program = environment().compile(text).expect("it compiles");
    let numbers = Value::list((0..10).map(Value::Int).collect());
    let evaluation = program.evaluate(&[numbers, Value::text("abcdefghij")], LIMIT);
    let failure = evaluation.value.expect_err(text);
    assert!(failure.is_limit(), "{failure}");
}

#[test]
fn text_nesting_and_nodes_are_bounded() {
    let nested =
        |open: &str, close: &str, n: usize| format!("{}1{}", open.repeat(n), close.repeat(n));
    for (text, problem) in [
        (
            "a".repeat(100_001),
            "expression code point size exceeds limit: size: 100001, limit 100000",
        ),
        (
            nested("(", ")", 300),
            "expression recursion limit exceeded: 250",
        ),
        (
            nested("[", "]", 300),
            "expression recursion limit exceeded: 250",
        ),
        (
            nested("{1:", "}", 300),
            "expression recursion limit exceeded: 250",
        ),
        (
            nested("size(", ")", 300),
            "expression recursion limit exceeded: 250",
        ),
        (
            nested("(1 + ", ")", 125),
            "expression recursion limit exceeded: 250",
        ),
        (vec!["1"; 252].join(" + "), "max recursion depth exceeded"),
        (
            format!("l{}", "[0]".repeat(251)),
            "max recursion depth exceeded",
        ),
        (
            format!("s{}", ".trim()".repeat(251)),
            "max recursion depth exceeded",
        ),
        (
            nested("l.all(x, ", ")", 250),
            "expression recursion limit exceeded: 250",
        ),
        // Every step of this copies the one before it: thirty of them would be a thousand million
        // nodes.
        (
            format!("optional.of(1){}.hasValue()", ".optMap(x, x)".repeat(30)),
            "expression size exceeds limit: 200000 nodes",
        ),
    ] {
        assert_eq!(
            refusal(&text),
            format!("ERROR: <input>:-1:0: {problem}"),
            "{}",
            &text[..60.min(text.len())]
        );
    }
}

#[test]
fn deepest_expressions_need_little_stack() {
    // Threads of tests and of the server have two MiB; half of that must do, even in a build
    // without optimisation.
    let run = || {
        for text in [
            format!("{}l.size(){}", "(1 + ".repeat(124), ")".repeat(124)),
            format!("{}1{}", "l.map(x, ".repeat(249), ")".repeat(249)),
            format!("{}1{}", "[".repeat(249), "]".repeat(249)),
            format!("{}true{}", "l.all(x, ".repeat(249), ")".repeat(249)),
            vec!["true"; 10_000].join(" && "),
            format!("{}true", "true ? true : ".repeat(240)),
            format!("s{}.size()", ".trim()".repeat(240)),
            vec!["1"; 250].join(" + "),
            format!("{}l.size(){}", "dyn(".repeat(249), ")".repeat(249)),
        ] {
            let program = environment()
                .compile(&text)
                .unwrap_or_else(|e| panic!("{}: {e:?}", &text[..40]));
            let ones = Value::list(vec![Value::Int(1)]);
            program
                .evaluate(&[ones, Value::text("")], LIMIT)
                .value
                .expect("it has a value");
        }
    };
    std::thread::Builder::new()
        .stack_size(1 << 20)
        .spawn(run)
        .expect("a thread")
        .join()
        .expect("the stack suffices");
}

#[test]
fn long_expressions_are_compiled_or_refused_by_their_first_error() {
    for (text, refused_by) in [
        (
            format!("[{}].size() > 1", vec!["1"; 40_000].join(",")),
            None,
        ),
        (
            format!("[{}].size() > 1", vec!["[]"; 20_000].join(",")),
            None,
        ),
        (vec!["l == l"; 9_000].join(" || "), None),
        (format!("s.matches('{}')", "a".repeat(90_000)), None),
        ("#".repeat(99_000), Some("token recognition error at: '#'")),
        (
            "(".repeat(99_000),
            Some("expression recursion limit exceeded: 250"),
        ),
        ("'".repeat(99_999), Some("token recognition error")),
    ] {
        let shown = &text[..40];
        match (environment().compile(&text), refused_by) {
            (Ok(_), None) => {}
            (Err(CompileError::Issues(issues)), Some(refused_by)) => {
                let issues = issues.to_string();
                assert!(issues.contains(refused_by), "{shown}: {issues:.400}");
            }
            (outcome, _) => panic!("{shown}: {:.400}", format!("{outcome:?}")),
        }
    }
}

#[test]
fn loops_and_growth_are_stopped() {
    for text in [
        "l.all(a, l.all(b, l.all(c, l.all(d, l.all(e, l.all(f, true))))))",
        "lists.range(1000000000).size() > 1",
        "lists.range(100000).map(x, lists.range(100000)).size() > 1",
        // Doubling twenty-six times.
        "[s].map(x, x + x + x + x + x + x + x + x).map(x, x.replace('a', x)).map(x, x.replace('a', x)).map(x, x.replace('a', x)).map(x, x.replace('a', x)).map(x, x.replace('', x)).size() > 9",
        "[l].map(x, x + x).map(x, x + x).map(x, x + x).map(x, x + x).map(x, x + x).map(x, x + x).map(x, x + x).map(x, x + x).map(x, x + x).map(x, x + x).map(x, x + x).map(x, x + x).map(x, x + x).map(x, x + x).map(x, x + x).map(x, x + x).map(x, x + x).map(x, x + x).map(x, x + x).map(x, x + x).map(x, x + x).size() > 1",
        "lists.range(2000).distinct().size() > 1",
        "sets.contains(lists.range(2000), lists.range(2000))",
        "lists.range(90000).exists(x, s.matches(string(x) + 'a{1,500}'))",
        "[s].map(x, ['%s%s%s%s%s%s%s%s'.format([x, x, x, x, x, x, x, x])]).map(x, ['%s%s%s%s%s%s%s%s'.format([x, x, x, x, x, x, x, x])]).map(x, ['%s%s%s%s%s%s%s%s'.format([x, x, x, x, x, x, x, x])]).map(x, ['%s%s%s%s%s%s%s%s'.format([x, x, x, x, x, x, x, x])]).map(x, ['%s%s%s%s%s%s%s%s'.format([x, x, x, x, x, x, x, x])]).map(x, ['%s%s%s%s%s%s%s%s'.format([x, x, x, x, x, x, x, x])]).map(x, ['%s%s%s%s%s%s%s%s'.format([x, x, x, x, x, x, x, x])]).map(x, ['%s%s%s%s%s%s%s%s'.format([x, x, x, x, x, x, x, x])]).size() > 1",
    ] {
        stopped(text);
    }
}

#[test]
fn failed_limit_is_not_absorbed_by_operators() {
    // `&&`, `||`, conditions and comprehensions absorb failures, but not this one.
    let endless = "lists.range(1000000000).size() > 1";
    for text in [
        format!("true || {endless}"),
        format!("{endless} || true"),
        format!("false && {endless}"),
        format!("{endless} && false"),
        format!("l.all(x, {endless} || true)"),
        format!("l.exists(x, x == 3 || {endless})"),
        format!("optional.of({endless}).hasValue()"),
    ] {
        let program = environment().compile(&text).expect("it compiles");
        let evaluation =
            program.evaluate(&[Value::list(vec![Value::Int(1)]), Value::text("")], LIMIT);
        let skipped = text.starts_with("true ||") || text.starts_with("false &&");
        assert_eq!(
            evaluation.value.is_err_and(|failure| failure.is_limit()),
            !skipped,
            "{text}"
        );
    }
}

#[test]
fn data_that_misses_its_shape_is_an_error() {
    let shape = Arc::new(Shape::of(ShapeKind::Map(Box::new(Shape::of(
        ShapeKind::Int,
    )))));
    let environment = Environment::kubernetes()
        .with_variable("self", shape.type_of())
        .with_data(shape.clone());
    let program = environment
        .compile("self.all(k, self[k] > 0)")
        .expect("it compiles");
    for (data, failure) in [
        (json!({"a": 1}), None),
        (
            json!({"a": "x"}),
            Some("invalid data, expected int, got string"),
        ),
        (
            json!({"a": null}),
            Some("invalid data, got null for schema with nullable=false"),
        ),
        (
            json!({"a": 1.5}),
            Some("invalid data, expected int, got float64"),
        ),
    ] {
        let evaluation = program.evaluate(&[view(&data, &shape).expect("it is a map")], LIMIT);
        assert_eq!(
            evaluation
                .value
                .err()
                .map(|failure| failure.to_string())
                .as_deref(),
            failure,
            "{data}"
        );
    }
    assert!(view(&json!([]), &shape).is_err());
}
