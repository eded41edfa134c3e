//! What an expression may refer to, and how it is compiled.
//! In: functions, variables and the shapes of data. Out: programs, or the errors of the text of
//! one.
//! Guarantees: an environment is a value; the functions are shared by all.

use std::sync::{Arc, LazyLock};

use crate::{
    check,
    cost_model::{CostModel, Range},
    estimate,
    function::Functions,
    library, literals, parser,
    plan::{self, Plan},
    shape::Shape,
    source::Issues,
    stack,
    types::Type,
};

/// The functions that every expression has: those of the language and those that Kubernetes adds.
static BASE: LazyLock<Arc<Functions>> = LazyLock::new(|| Arc::new(library::all()));

/// Names of types, as expressions write them.
fn named_type(name: &str) -> Option<Type> {
    Some(match name {
        "bool" => Type::Bool,
        "bytes" => Type::Bytes,
        "double" => Type::Double,
        "duration" | "google.protobuf.Duration" => Type::Duration,
        "int" => Type::Int,
        "list" => Type::list(Type::Dyn),
        "map" => Type::map(Type::Dyn, Type::Dyn),
        "null_type" => Type::Null,
        "string" => Type::String,
        "timestamp" | "google.protobuf.Timestamp" => Type::Timestamp,
        "type" => Type::Type(None),
        "uint" => Type::Uint,
        "optional_type" => Type::optional(Type::Dyn),
        "net.IP" | "net.CIDR" => Type::opaque(name),
        _ => return None,
    })
}

/// A variable that expressions may use.
#[derive(Clone, Debug)]
struct Variable {
    name: String,
    ty: Type,
}

/// What an expression may refer to.
#[derive(Clone, Debug)]
pub struct Environment {
    functions: Arc<Functions>,
    variables: Vec<Variable>,
    /// What is known of data: the objects whose types variables may have. The first gives the sizes
    /// for the cost estimate.
    data: Vec<Arc<Shape>>,
}

impl Environment {
    /// The functions of the language and of Kubernetes, and no variables.
    #[must_use]
    pub fn kubernetes() -> Self {
        Self {
            functions: BASE.clone(),
            variables: Vec::new(),
            data: Vec::new(),
        }
    }

    /// Adds functions to those of Kubernetes.
    #[must_use]
    pub fn with_functions(mut self, declare: impl FnOnce(&mut Functions)) -> Self {
        declare(Arc::make_mut(&mut self.functions));
        self
    }

    /// Declares a variable of any type. Objects inside are known only if [`Environment::with_data`]
    /// declared them.
    #[must_use]
    pub fn with_variable(mut self, name: &str, ty: Type) -> Self {
        self.variables.push(Variable {
            name: name.to_owned(),
            ty,
        });
        self
    }

    /// Makes the objects of a shape known, which [`Shape::named`] has named. The cost of
    /// expressions is estimated by the sizes of the first shape: Kubernetes estimates every
    /// variable of a rule by the one shape of the value the rule stands at.
    #[must_use]
    pub fn with_data(mut self, shape: Arc<Shape>) -> Self {
        self.data.push(shape);
        self
    }

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

    pub(crate) fn functions(&self) -> &Functions {
        &self.functions
    }

    pub(crate) fn root(&self) -> Option<&Shape> {
        self.data.first().map(|shape| &**shape)
    }

    /// The type of a variable, or of the name of a type.
    pub(crate) fn name(&self, name: &str) -> Option<Type> {
        let variable = self
            .variables
            .iter()
            .find(|v| v.name == name)
            .map(|v| v.ty.clone());
        let object = || self.object(name).map(Shape::type_of);
        variable.or_else(|| {
            named_type(name)
                .or_else(object)
                .map(|t| Type::Type(Some(Arc::new(t))))
        })
    }

    /// Which variable a name is.
    pub(crate) fn variable(&self, name: &str) -> Option<usize> {
        self.variables.iter().position(|v| v.name == name)
    }

    /// The type that a name means at run time.
    pub(crate) fn type_named(&self, name: &str) -> Option<Type> {
        // These two are names for the checker only, in Kubernetes as well.
        named_type(name).filter(|_| !matches!(name, "timestamp" | "duration"))
    }

    /// The object whose type has a name.
    fn object(&self, name: &str) -> Option<&Shape> {
        self.data.iter().find_map(|shape| shape.object(name))
    }

    pub(crate) fn field(&self, object: &str, field: &str) -> Option<Type> {
        self.object(object)?
            .visible_field(field)
            .map(Shape::type_of)
    }

    pub(crate) fn cost_model(&self, function: &str, overload: &str) -> CostModel {
        let (_, overloads) = self.functions.find(function).expect("the checker found it");
        overloads
            .iter()
            .find(|o| o.id == overload)
            .map_or(CostModel::Unit, |o| o.cost_model)
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
    /// Something is wrong with the expression.
    Issues(Issues),
    /// The expression is sound, but no program can be made of it.
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
    pub(crate) depth: usize,
    pub(crate) plan: Plan,
}

impl Program {
    /// The type of the result.
    #[must_use]
    pub fn output(&self) -> &Type {
        &self.output
    }

    /// What the expression may cost, by the sizes declared.
    #[must_use]
    pub fn cost(&self) -> Range {
        self.cost
    }

    /// Whether the expression refers to a variable.
    #[must_use]
    pub fn uses(&self, variable: &str) -> bool {
        self.plan.uses(variable)
    }
}
