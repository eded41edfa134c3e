//! Type checking.
//! In: a parsed expression and declarations. Out: the type of every node and the candidate
//! overloads of each call.
//! Guarantees: in an expression without issues every node has a type; what is only known at run
//! time is `dyn`.

use crate::{
    ast::{Call, Comprehension, Expr, Id, Kind, Literal, Message, operator},
    environment::Environment,
    function::Overload,
    parser::Parsed,
    source::Issues,
    types::Type,
    unify::{Free, Substitutions, more_general},
};

/// A checked expression.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) parsed: Parsed,
    /// By id.
    nodes: Vec<NodeInfo>,
}

/// The result of checking a node.
#[derive(Clone, Debug, Default)]
struct NodeInfo {
    /// None for nodes that only macros used.
    ty: Option<Type>,
    meaning: Meaning,
}

/// The declaration that a name or call refers to.
#[derive(Clone, Debug, Default)]
pub(crate) enum Meaning {
    /// As the syntax specifies.
    #[default]
    Plain,
    /// A declared variable or a type, by its full name.
    Name(String),
    /// The function, and its overloads that fit.
    Function {
        name: &'static str,
        overloads: Vec<&'static str>,
        has_target: bool,
    },
}

impl Checked {
    pub(crate) fn type_of(&self, id: Id) -> &Type {
        self.nodes[id as usize].ty.as_ref().unwrap_or(&Type::Dyn)
    }

    pub(crate) fn meaning(&self, id: Id) -> &Meaning {
        &self.nodes[id as usize].meaning
    }
}

/// Type-checks an expression.
///
/// # Errors
/// The type errors.
pub(crate) fn check(parsed: Parsed, environment: &Environment) -> Result<Checked, Issues> {
    let mut checker = Checker {
        parsed: &parsed,
        environment,
        issues: parsed.issues(),
        nodes: vec![NodeInfo::default(); parsed.ids()],
        substitutions: Substitutions::default(),
        scopes: Vec::new(),
        free: 0,
    };
    checker.check(&parsed.expr);
    let Checker {
        issues,
        mut nodes,
        substitutions,
        ..
    } = checker;
    if !issues.is_empty() {
        return Err(issues);
    }
    for node in &mut nodes {
        node.ty = node
            .ty
            .as_ref()
            .map(|t| substitutions.apply(t, Free::BecomeDyn));
    }
    Ok(Checked { parsed, nodes })
}

struct Checker<'a> {
    parsed: &'a Parsed,
    environment: &'a Environment,
    issues: Issues,
    nodes: Vec<NodeInfo>,
    substitutions: Substitutions,
    /// Iteration variables, innermost last.
    scopes: Vec<(String, Type)>,
    /// How many type parameters were made.
    free: usize,
}

impl Checker<'_> {
    fn report(&mut self, id: Id, message: String) {
        self.issues.report(self.parsed.place(id), message);
    }

    fn set(&mut self, id: Id, ty: Type) {
        self.nodes[id as usize].ty = Some(ty);
    }

    fn get(&self, expr: &Expr) -> Type {
        self.nodes[expr.id as usize]
            .ty
            .clone()
            .unwrap_or(Type::Error)
    }

    fn fresh(&mut self) -> Type {
        self.free += 1;
        Type::param(&format!("_var{}", self.free - 1))
    }

    fn mismatch(&mut self, id: Id, expected: &Type, found: &Type) {
        self.report(
            id,
            format!("expected type '{expected}' but found '{found}'"),
        );
    }

    fn undeclared(&mut self, id: Id, name: &str) {
        self.report(
            id,
            format!("undeclared reference to '{name}' (in container '')"),
        );
        self.set(id, Type::Error);
    }

    fn check(&mut self, expr: &Expr) {
        match &expr.kind {
            Kind::Literal(literal) => self.set(expr.id, literal_type(literal)),
            Kind::Ident(name) => {
                if !self.resolve(expr.id, name) {
                    self.undeclared(expr.id, name);
                }
            }
            Kind::Select(select) => {
                let name = expr.qualified_name();
                if name.is_some_and(|name| self.resolve(expr.id, &name)) {
                    return;
                }
                self.check(&select.operand);
                let found = self.field(expr.id, &select.operand, &select.field);
                let ty = if select.test {
                    Type::Bool
                } else {
                    self.substitutions.apply(&found, Free::Stay)
                };
                self.set(expr.id, ty);
            }
            Kind::Call(call) => self.call(expr, call),
            Kind::List(items) => {
                let mut all = None;
                for item in items {
                    self.check(&item.value);
                    let ty = self.element(&item.value, item.optional);
                    all = Some(self.join(all, ty));
                }
                let item = all.unwrap_or_else(|| self.fresh());
                self.set(expr.id, Type::list(item));
            }
            Kind::Map(entries) => {
                let mut keys = None;
                let mut values = None;
                for entry in entries {
                    self.check(&entry.key);
                    let key = self.get(&entry.key);
                    keys = Some(self.join(keys, key));
                    self.check(&entry.value);
                    let value = self.element(&entry.value, entry.optional);
                    values = Some(self.join(values, value));
                }
                let key = keys.unwrap_or_else(|| self.fresh());
                let value = values.unwrap_or_else(|| self.fresh());
                self.set(expr.id, Type::map(key, value));
            }
            Kind::Message(message) => self.message(expr.id, message),
            Kind::Comprehension(fold) => self.fold(expr.id, fold),
        }
    }

    fn message(&mut self, id: Id, message: &Message) {
        let name = message.name.strip_prefix('.').unwrap_or(&message.name);
        let Some(declared) = self.environment.message(name) else {
            return self.undeclared(id, &message.name);
        };
        self.set(id, Type::object(name));
        for field in &message.fields {
            self.check(&field.value);
            let found = self.element(&field.value, field.optional);
            let Some(expected) = declared.field(&field.name) else {
                // The resolver of kube-apiserver has such a field, without a type.
                let message = format!(
                    "expected type of field '{}' is '' but provided type is '{found}'",
                    field.name
                );
                self.report(field.id, message);
                continue;
            };
            if !self.substitutions.assign(&found, &expected) {
                let message = format!(
                    "expected type of field '{}' is '{expected}' but provided type is '{found}'",
                    field.name
                );
                self.report(field.id, message);
            }
        }
    }

    /// Records what `name` refers to, if anything.
    fn resolve(&mut self, id: Id, name: &str) -> bool {
        let full = name.strip_prefix('.').unwrap_or(name);
        let local = self
            .scopes
            .iter()
            .rev()
            .find(|(variable, _)| variable == name)
            .map(|(_, ty)| ty.clone());
        let Some(ty) = local.or_else(|| self.environment.name(full)) else {
            return false;
        };
        self.nodes[id as usize].meaning = Meaning::Name(full.to_owned());
        self.set(id, ty);
        true
    }

    /// The type of a field of `operand`, which has been checked.
    fn field(&mut self, id: Id, operand: &Expr, field: &str) -> Type {
        let operand = self.substitutions.apply(&self.get(operand), Free::Stay);
        let target = operand.unwrapped().unwrap_or(&operand);
        let found = match target {
            Type::Map(entry) => entry.1.clone(),
            Type::Object(name) => match self.environment.field(name, field) {
                Some(ty) => ty,
                None => {
                    self.report(id, format!("undefined field '{field}'"));
                    Type::Error
                }
            },
            Type::Param(_) => {
                self.substitutions.assign(&Type::Dyn, target);
                Type::Dyn
            }
            // Types of functions, such as quantities, are messages without a declaration.
            Type::Opaque(name, _) if target.unwrapped().is_none() => {
                self.report(id, format!("unexpected failed resolution of '{name}'"));
                Type::Error
            }
            other => {
                if !other.is_dyn_or_error() {
                    self.report(
                        id,
                        format!("type '{other}' does not support field selection"),
                    );
                }
                Type::Dyn
            }
        };
        if operand.unwrapped().is_some() {
            Type::optional(found)
        } else {
            found
        }
    }

    fn call(&mut self, expr: &Expr, call: &Call) {
        if call.function == operator::OPTIONAL_SELECT {
            return self.optional_select(expr.id, call);
        }
        call.args.iter().for_each(|arg| self.check(arg));
        let Some(target) = &call.target else {
            let name = call.function.strip_prefix('.').unwrap_or(&call.function);
            return match self.environment.functions().find(name) {
                Some((name, overloads)) => {
                    self.overload(expr.id, name, overloads, None, &call.args)
                }
                None => self.undeclared(expr.id, &call.function),
            };
        };
        // `a.b.c()` is either the function `a.b.c`, or `c` of `a.b`.
        if let Some(prefix) = target.qualified_name() {
            let full = format!(
                "{}.{}",
                prefix.strip_prefix('.').unwrap_or(&prefix),
                call.function
            );
            if let Some((name, overloads)) = self.environment.functions().find(&full) {
                return self.overload(expr.id, name, overloads, None, &call.args);
            }
        }
        self.check(target);
        match self.environment.functions().find(&call.function) {
            Some((name, overloads)) => {
                self.overload(expr.id, name, overloads, Some(target), &call.args)
            }
            None => self.undeclared(expr.id, &call.function),
        }
    }

    fn optional_select(&mut self, id: Id, call: &Call) {
        let [operand, field] = call.args.as_slice() else {
            return;
        };
        self.check(operand);
        let Kind::Literal(Literal::String(name)) = &field.kind else {
            return;
        };
        let found = self.field(id, operand, name);
        let ty = if found.unwrapped().is_some() && self.get(operand).unwrapped().is_some() {
            found
        } else {
            Type::optional(found)
        };
        let ty = self.substitutions.apply(&ty, Free::Stay);
        self.set(id, ty);
        self.set(field.id, Type::String);
        self.nodes[id as usize].meaning = Meaning::Function {
            name: operator::OPTIONAL_SELECT,
            overloads: vec!["select_optional_field"],
            has_target: false,
        };
    }

    fn overload(
        &mut self,
        id: Id,
        name: &'static str,
        overloads: &[Overload],
        target: Option<&Expr>,
        args: &[Expr],
    ) {
        let types: Vec<Type> = target
            .into_iter()
            .chain(args)
            .map(|arg| self.get(arg))
            .collect();
        if matches!(name, operator::AND | operator::OR) {
            return self.logic(id, name, overloads, args, &types);
        }
        let mut result: Option<Type> = None;
        let mut fitting = Vec::new();
        for overload in overloads.iter().filter(|o| o.member == target.is_some()) {
            let (params, found) = self.instance(overload);
            if !self.substitutions.assign_all(&types, &params) {
                continue;
            }
            fitting.push(overload.id);
            let found = self.substitutions.apply(&found, Free::Stay);
            result = Some(match result {
                None => found,
                Some(before) if before.is_dyn() || before == found => before,
                Some(_) => Type::Dyn,
            });
        }
        match result {
            Some(ty) => {
                self.set(id, ty);
                self.nodes[id as usize].meaning = Meaning::Function {
                    name,
                    overloads: fitting,
                    has_target: target.is_some(),
                };
            }
            None => {
                let shown: Vec<String> = types
                    .iter()
                    .map(|t| self.substitutions.apply(t, Free::BecomeDyn).to_string())
                    .collect();
                let signature = match target {
                    Some(_) => format!("{}.({})", shown[0], shown[1..].join(", ")),
                    None => format!("({})", shown.join(", ")),
                };
                self.report(
                    id,
                    format!("found no matching overload for '{name}' applied to '{signature}'"),
                );
                self.set(id, Type::Error);
            }
        }
    }

    /// Each term is reported by itself.
    fn logic(
        &mut self,
        id: Id,
        name: &'static str,
        overloads: &[Overload],
        args: &[Expr],
        types: &[Type],
    ) {
        let mut fits = true;
        for (arg, ty) in args.iter().zip(types) {
            if !self.substitutions.assign(ty, &Type::Bool) {
                self.mismatch(arg.id, &Type::Bool, ty);
                fits = false;
            }
        }
        self.set(id, if fits { Type::Bool } else { Type::Error });
        let overloads = overloads.iter().map(|o| o.id).collect();
        self.nodes[id as usize].meaning = Meaning::Function {
            name,
            overloads,
            has_target: false,
        };
    }

    /// The signature of an overload with fresh type parameters.
    fn instance(&mut self, overload: &Overload) -> (Vec<Type>, Type) {
        let mut fresh = Substitutions::default();
        for name in ["A", "B", "T", "U", "K", "V"] {
            let param = Type::param(name);
            if overload
                .params
                .iter()
                .chain([&overload.result])
                .any(|t| mentions(t, &param))
            {
                let own = self.fresh();
                fresh.assign(&own, &param);
            }
        }
        let apply = |t: &Type| fresh.apply(t, Free::Stay);
        (
            overload.params.iter().map(apply).collect(),
            apply(&overload.result),
        )
    }

    /// The type of an item or entry, without the optional around it.
    fn element(&mut self, expr: &Expr, optional: bool) -> Type {
        let ty = self.get(expr);
        if !optional {
            return ty;
        }
        if let Some(inner) = ty.unwrapped() {
            return inner.clone();
        }
        if !ty.is_dyn() {
            self.mismatch(expr.id, &Type::optional(ty.clone()), &ty);
        }
        ty
    }

    /// The type of all items so far, joined with one more. [`crate::literals`] reports lists of
    /// mixed types where these are not allowed.
    fn join(&mut self, before: Option<Type>, ty: Type) -> Type {
        let Some(before) = before else { return ty };
        if self.substitutions.assign(&before, &ty) {
            return more_general(&before, &ty).clone();
        }
        Type::Dyn
    }

    fn fold(&mut self, id: Id, fold: &Comprehension) {
        self.check(&fold.range);
        self.check(&fold.init);
        let range = self.substitutions.apply(&self.get(&fold.range), Free::Stay);
        let accumulator = self.get(&fold.init);
        let two = fold.var2.is_some();
        let (var, var2) = match &range {
            Type::List(item) if two => (Type::Int, (**item).clone()),
            Type::List(item) => ((**item).clone(), Type::Dyn),
            Type::Map(entry) => (entry.0.clone(), entry.1.clone()),
            Type::Dyn | Type::Error | Type::Param(_) => {
                self.substitutions.assign(&Type::Dyn, &range);
                (Type::Dyn, Type::Dyn)
            }
            other => {
                let message = format!(
                    "expression of type '{other}' cannot be range of a comprehension (must be list, map, or dynamic)"
                );
                self.report(fold.range.id, message);
                (Type::Error, Type::Error)
            }
        };
        let outside = self.scopes.len();
        self.scopes
            .push((fold.accumulator.clone(), accumulator.clone()));
        self.scopes.push((fold.var.clone(), var));
        self.scopes
            .extend(fold.var2.clone().map(|name| (name, var2)));
        self.check(&fold.condition);
        self.demand(&fold.condition, &Type::Bool);
        self.check(&fold.step);
        self.demand(&fold.step, &accumulator);
        self.scopes.truncate(outside + 1);
        self.check(&fold.result);
        self.scopes.truncate(outside);
        let ty = self
            .substitutions
            .apply(&self.get(&fold.result), Free::Stay);
        self.set(id, ty);
    }

    fn demand(&mut self, expr: &Expr, wanted: &Type) {
        let found = self.get(expr);
        if !self.substitutions.assign(wanted, &found) {
            self.mismatch(expr.id, wanted, &found);
        }
    }
}

fn mentions(t: &Type, param: &Type) -> bool {
    match t {
        Type::List(item) => mentions(item, param),
        Type::Map(entry) => mentions(&entry.0, param) || mentions(&entry.1, param),
        Type::Type(Some(of)) => mentions(of, param),
        Type::Opaque(_, params) => params.iter().any(|p| mentions(p, param)),
        other => other == param,
    }
}

fn literal_type(literal: &Literal) -> Type {
    match literal {
        Literal::Null => Type::Null,
        Literal::Bool(_) => Type::Bool,
        Literal::Int(_) => Type::Int,
        Literal::Uint(_) => Type::Uint,
        Literal::Double(_) => Type::Double,
        Literal::String(_) => Type::String,
        Literal::Bytes(_) => Type::Bytes,
    }
}
