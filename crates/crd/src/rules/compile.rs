//! Compiles validation rules.
//! In: a rule and the shape of its value. Out: its programs, or compile errors.
//! Guarantees: an empty rule compiles to nothing, without an error: it is reported elsewhere.

use std::sync::Arc;

use bellerophon_cel::{CompileError, Environment, Program, Shape, Type};

use super::{field_path, library};
use crate::{rule::Rule, schema::Schema};

/// The name of the value that a rule validates.
const SELF: &str = "self";
/// The name of what that value was before an update.
const OLD_SELF: &str = "oldSelf";
/// The type name of `self` in messages; expressions cannot refer to it.
const TYPE_NAME: &str = "selfType";

/// A compiled rule.
#[derive(Clone, Debug, Default)]
pub(super) struct Compiled {
    /// `None` when the rule is empty or invalid.
    pub(super) program: Option<Program>,
    pub(super) error: Option<String>,
    pub(super) message: Option<Program>,
    pub(super) message_error: Option<String>,
    /// The field that errors of the rule name, relative to the validated value.
    pub(super) field_path: Option<String>,
}

impl Compiled {
    pub(super) fn uses_old_self(&self) -> bool {
        self.program
            .as_ref()
            .is_some_and(|program| program.uses(OLD_SELF))
    }
}

/// The environments in which the rules of one schema are compiled.
pub(super) struct Compiler {
    plain: Environment,
    /// Where what was before may be missing.
    optional: Environment,
    shape: Arc<Shape>,
}

impl Compiler {
    pub(super) fn new(shape: Shape) -> Self {
        let shape = Arc::new(shape.named(TYPE_NAME));
        let ty = shape.type_of();
        let environment = |old: Type| {
            library::environment()
                .with_variable(SELF, ty.clone())
                .with_variable(OLD_SELF, old)
                .with_data(shape.clone())
        };
        Self {
            plain: environment(ty.clone()),
            optional: environment(Type::optional(ty.clone())),
            shape: shape.clone(),
        }
    }

    pub(super) fn into_shape(self) -> Arc<Shape> {
        self.shape
    }

    pub(super) fn compile(&self, rule: &Rule, schema: &Schema) -> Compiled {
        let mut compiled = Compiled::default();
        if rule.rule.trim().is_empty() {
            return compiled;
        }
        let environment = if rule.takes_optional_old_self() {
            &self.optional
        } else {
            &self.plain
        };
        match program(environment, &rule.rule) {
            Ok(program) if *program.output() != Type::Bool => {
                compiled.error = Some("cel expression must evaluate to a bool".into())
            }
            Ok(program) => compiled.program = Some(program),
            Err((stage, problem)) => compiled.error = Some(format!("{stage} failed: {problem}")),
        }
        if compiled.program.is_none() {
            return compiled;
        }
        if !rule.message_expression.is_empty() {
            match program(environment, &rule.message_expression) {
                Ok(program) if *program.output() != Type::String => {
                    compiled.message_error =
                        Some("messageExpression must evaluate to a string".into());
                }
                Ok(program) => compiled.message = Some(program),
                Err(("compilation", problem)) => {
                    compiled.message_error =
                        Some(format!("messageExpression compilation failed: {problem}"))
                }
                Err((_, problem)) => {
                    compiled.message_error =
                        Some(format!("messageExpression instantiation failed: {problem}"))
                }
            }
            if compiled.message.is_none() {
                return compiled;
            }
        }
        if !rule.field_path.is_empty() {
            compiled.field_path = field_path::resolve(&rule.field_path, schema);
        }
        compiled
    }
}

/// A program, or at which stage it failed and why.
fn program(environment: &Environment, text: &str) -> Result<Program, (&'static str, String)> {
    environment.compile(text).map_err(|error| match error {
        CompileError::Issues(issues) => ("compilation", issues.to_string()),
        CompileError::Plan(problem) => ("program instantiation", problem),
    })
}
