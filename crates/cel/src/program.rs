//! Compiles an expression to a program, and evaluates it.
//! In: an environment and a text. Out: a program, or the errors of the text.

use crate::{
    check,
    cost_model::Range,
    environment::Environment,
    estimate, literals, parser,
    plan::{self, Plan},
    run::{self, Evaluation},
    source::Issues,
    stack,
    types::Type,
    value::{LazyFields, Value},
};

impl Environment {
    /// Compiles an expression.
    ///
    /// # Errors
    /// Its errors, as kube-apiserver prints them.
    pub fn compile(&self, text: &str) -> Result<Program, CompileError> {
        let no_stack = || {
            Err(CompileError::Plan(
                "no stack for an expression so deep".into(),
            ))
        };
        stack::with_stack(stack::depth_max(text), || self.compile_here(text))
            .unwrap_or_else(no_stack)
    }

    /// Checks an expression without making a program of it; the type of its result.
    ///
    /// # Errors
    /// Its errors, as kube-apiserver prints them.
    pub fn type_check(&self, text: &str) -> Result<Type, CompileError> {
        let no_stack = || {
            Err(CompileError::Plan(
                "no stack for an expression so deep".into(),
            ))
        };
        let check = || {
            let checked = check::check(parser::parse(text)?, self)?;
            literals::check(&checked)?;
            Ok(checked.type_of(checked.parsed.expr.id).clone())
        };
        stack::with_stack(stack::depth_max(text), check).unwrap_or_else(no_stack)
    }

    fn compile_here(&self, text: &str) -> Result<Program, CompileError> {
        let checked = check::check(parser::parse(text)?, self)?;
        literals::check(&checked)?;
        let output = checked.type_of(checked.parsed.expr.id).clone();
        let plan = plan::plan(&checked, self).map_err(CompileError::Plan)?;
        Ok(Program {
            output,
            cost: estimate::estimate(&checked, self),
            depth: checked.parsed.depth,
            plan,
        })
    }
}

/// Reads an expression without looking at what it refers to.
///
/// # Errors
/// The errors of its grammar, as kube-apiserver prints them.
pub fn check_grammar(text: &str) -> Result<(), CompileError> {
    let no_stack = || {
        Err(CompileError::Plan(
            "no stack for an expression so deep".into(),
        ))
    };
    let read = || parser::parse(text).map(drop).map_err(CompileError::from);
    stack::with_stack(stack::depth_max(text), read).unwrap_or_else(no_stack)
}

/// Why an expression cannot be compiled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CompileError {
    /// The expression has errors.
    Issues(Issues),
    /// The expression is valid, but cannot be planned.
    Plan(String),
}

impl From<Issues> for CompileError {
    fn from(issues: Issues) -> Self {
        Self::Issues(issues)
    }
}

/// An expression that can be evaluated, any number of times and by several threads concurrently.
#[derive(Clone, Debug)]
pub struct Program {
    output: Type,
    cost: Range,
    /// How deep the plan is.
    depth: usize,
    plan: Plan,
}

impl Program {
    /// The type of the result.
    #[must_use]
    pub fn output(&self) -> &Type {
        &self.output
    }

    /// The estimated cost of the expression, by the declared sizes.
    #[must_use]
    pub fn cost(&self) -> Range {
        self.cost
    }

    /// Whether the expression refers to a variable.
    #[must_use]
    pub fn uses(&self, variable: &str) -> bool {
        self.plan.uses(variable)
    }

    /// Evaluates the expression. `variables` are in the order in which the environment declared
    /// them.
    #[must_use]
    pub fn evaluate<'a>(&self, variables: &[Value<'a>], limit: u64) -> Evaluation<'a> {
        run::evaluate(&self.plan, self.depth, variables, None, limit)
    }

    /// Evaluates the expression. The fields of [`Value::Lazy`] are computed on first use.
    #[must_use]
    pub fn evaluate_with<'a>(
        &self,
        variables: &[Value<'a>],
        lazy: &dyn LazyFields<'a>,
        limit: u64,
    ) -> Evaluation<'a> {
        run::evaluate(&self.plan, self.depth, variables, Some(lazy), limit)
    }
}
