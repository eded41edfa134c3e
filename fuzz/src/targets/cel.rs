//! CEL expressions, without a CRD around them: an expression on the first line, data behind it.

use bellerophon_cel::{Environment, Shape, ShapeKind, Type, view};
use serde_json::Value;

use super::{Outcome, first_line};

/// The cost limit of an expression in Kubernetes.
const COST_MAX: u64 = 10_000_000;

/// An expression compiles to a program that evaluates to the same value every time.
pub(super) fn cel(data: &[u8]) -> Outcome {
    let (expression, data) = first_line(data);
    let environment = Environment::kubernetes().with_variable("self", Type::Dyn);
    let program = match environment.compile(&String::from_utf8_lossy(expression)) {
        Ok(program) => program,
        Err(error) => return Outcome::of(&[&format!("{error:?}")]),
    };
    let data: Value = serde_json::from_slice(data).unwrap_or_default();
    let shape = Shape::of(ShapeKind::Any);
    let evaluate = || {
        let variable = view(&data, &shape).expect("any value has this shape");
        let evaluation = program.evaluate(&[variable], COST_MAX);
        (format!("{:?}", evaluation.value), evaluation.cost)
    };
    let (value, cost) = evaluate();
    assert_eq!(evaluate(), (value.clone(), cost), "two evaluations differ");
    Outcome::of(&[&value])
}
