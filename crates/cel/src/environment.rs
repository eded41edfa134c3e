//! The environment of an expression: functions, variables and types.
//! In: functions, variables and the shapes of data. Out: types, fields and cost models by name.
//! Guarantees: an environment is a value; the functions are shared by all.

use std::{
    collections::BTreeMap,
    sync::{Arc, LazyLock},
};

use crate::{
    cost_model::CostModel,
    function::Functions,
    library,
    shape::{Shape, unescape},
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
        "net.IP" | "net.CIDR" | "kubernetes.Quantity" => Type::opaque(name),
        _ => return None,
    })
}

/// A variable that expressions may use.
#[derive(Clone, Debug)]
struct Variable {
    name: String,
    ty: Type,
}

/// The functions, variables and types of an expression.
#[derive(Clone, Debug)]
pub struct Environment {
    functions: Arc<Functions>,
    variables: Vec<Variable>,
    /// The shapes of data: the object types that variables may have. The first gives the sizes for
    /// the cost estimate.
    data: Vec<Arc<Shape>>,
    /// Types of variables by name, with the types of their fields.
    objects: BTreeMap<String, BTreeMap<String, Type>>,
    /// The types of messages that expressions can make.
    messages: Option<fn(&str) -> Option<MessageType>>,
}

/// The fields that a message may have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageType {
    /// Any field of any type.
    Open,
    /// These fields.
    Fields(&'static [(&'static str, Type)]),
}

impl MessageType {
    pub(crate) fn field(&self, name: &str) -> Option<Type> {
        match self {
            Self::Open => Some(Type::Dyn),
            Self::Fields(fields) => {
                let mut fields = fields.iter();
                fields
                    .find(|(field, _)| *field == name)
                    .map(|(_, ty)| ty.clone())
            }
        }
    }
}

impl Environment {
    /// The functions of the language and of Kubernetes, and no variables.
    #[must_use]
    pub fn kubernetes() -> Self {
        Self {
            functions: BASE.clone(),
            variables: Vec::new(),
            data: Vec::new(),
            objects: BTreeMap::new(),
            messages: None,
        }
    }

    /// Adds functions to those of Kubernetes.
    #[must_use]
    pub fn with_functions(mut self, declare: impl FnOnce(&mut Functions)) -> Self {
        declare(Arc::make_mut(&mut self.functions));
        self
    }

    /// Declares a variable of any type. Objects inside are known only if [`Environment::with_data`]
    /// declared them. A variable that was declared under the name before gets this type and keeps
    /// its place.
    #[must_use]
    pub fn with_variable(mut self, name: &str, ty: Type) -> Self {
        match self.variable(name) {
            Some(place) => self.variables[place].ty = ty,
            None => self.variables.push(Variable {
                name: name.to_owned(),
                ty,
            }),
        }
        self
    }

    /// Declares the object types of a shape, which [`Shape::named`] has named. The cost of
    /// expressions is estimated by the sizes of the first shape: Kubernetes estimates every
    /// variable of a rule by the one schema of the rule.
    #[must_use]
    pub fn with_data(mut self, shape: Arc<Shape>) -> Self {
        self.data.push(shape);
        self
    }

    /// Declares a type of that name with these fields, for [`Environment::with_variable`] and for
    /// fields of other types. It replaces one that was declared under the name before.
    #[must_use]
    pub fn with_object(
        mut self,
        name: &str,
        fields: impl IntoIterator<Item = (String, Type)>,
    ) -> Self {
        self.objects
            .insert(name.to_owned(), fields.into_iter().collect());
        self
    }

    /// Declares message types, which a function resolves by name.
    #[must_use]
    pub fn with_messages(mut self, messages: fn(&str) -> Option<MessageType>) -> Self {
        self.messages = Some(messages);
        self
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

    pub(crate) fn message(&self, name: &str) -> Option<MessageType> {
        self.messages?(name)
    }

    pub(crate) fn field(&self, object: &str, field: &str) -> Option<Type> {
        if let Some(fields) = self.objects.get(object) {
            return fields.get(&unescape(field)?).cloned();
        }
        if let Some(message) = self.message(object) {
            return message.field(field);
        }
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
