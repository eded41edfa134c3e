//! Estimates the cost of an expression before it is evaluated.
//! In: a checked expression and the maximum sizes of its variables. Out: the minimum and maximum
//! cost.
//! Guarantees: the rules are kube-apiserver's; arithmetic saturates.

use std::collections::HashMap;

use crate::{
    ast::{Call, Comprehension, Expr, Id, Kind, Literal, operator},
    check::{Checked, Meaning},
    cost_model::{self, Argument, CostModel, Estimate, Range},
    environment::Environment,
    shape::{Shape, ShapeKind},
    types::Type,
};

/// The estimated cost of an expression.
pub(crate) fn estimate(checked: &Checked, environment: &Environment) -> Range {
    let mut estimator = Estimator {
        checked,
        environment,
        root: environment.root(),
        declarations: HashMap::new(),
        sizes: HashMap::new(),
        entries: HashMap::new(),
        locals: Vec::new(),
    };
    estimator.cost(&checked.parsed.expr)
}

/// The declaration of the value of an expression.
#[derive(Clone, Copy, Debug)]
enum Declaration<'a> {
    /// It is computed.
    None,
    Shape(&'a Shape),
    /// A key of a map, whose length is not counted.
    MapKey,
    /// It is part of the declared data, but its declaration is not known.
    Unknown,
}

/// The sizes of keys and values of a list or map made by the expression.
#[derive(Clone, Copy, Debug)]
struct Entries {
    is_list: bool,
    key: Range,
    value: Range,
}

impl Entries {
    fn or(self, other: Self) -> Self {
        Self {
            is_list: self.is_list,
            key: self.key.or(other.key),
            value: self.value.or(other.value),
        }
    }
}

struct Local<'a> {
    name: String,
    declaration: Declaration<'a>,
    size: Option<Range>,
    entries: Option<Entries>,
}

struct Estimator<'a> {
    checked: &'a Checked,
    environment: &'a Environment,
    /// The declaration of the root variable.
    root: Option<&'a Shape>,
    declarations: HashMap<Id, Declaration<'a>>,
    sizes: HashMap<Id, Range>,
    entries: HashMap<Id, Entries>,
    /// Iteration variables, innermost last.
    locals: Vec<Local<'a>>,
}

impl<'a> Estimator<'a> {
    fn cost(&mut self, expr: &Expr) -> Range {
        match &expr.kind {
            Kind::Literal(_) => Range::ZERO,
            Kind::Message(message) => message
                .fields
                .iter()
                .fold(Range::exactly(cost_model::MESSAGE), |sum, field| {
                    sum.plus(self.cost(&field.value))
                }),
            Kind::Ident(name) => {
                let declaration = self
                    .local(name)
                    .map_or_else(|| self.variable(), |local| local.declaration);
                self.declarations.insert(expr.id, declaration);
                Range::exactly(1)
            }
            Kind::Select(select) => {
                if matches!(self.checked.meaning(expr.id), Meaning::Name(_)) {
                    self.declarations.insert(expr.id, self.variable());
                    return Range::exactly(1);
                }
                let operand = self.cost(&select.operand);
                if select.test {
                    return operand;
                }
                self.declarations.insert(
                    expr.id,
                    self.step(self.declaration(&select.operand), &select.field),
                );
                let selects = matches!(
                    self.checked.type_of(select.operand.id),
                    Type::Map(_) | Type::Object(_) | Type::Param(_)
                );
                operand.plus(Range::exactly(u64::from(selects)))
            }
            Kind::Call(call) => self.call(expr, call),
            Kind::List(items) => {
                let mut sum = Range::exactly(cost_model::LIST);
                let mut size = if items.is_empty() {
                    Range::ZERO
                } else {
                    Range::NOTHING
                };
                for item in items {
                    sum = sum.plus(self.cost(&item.value));
                    size = size.or(self.size_or_unknown(&item.value));
                }
                self.entries.insert(
                    expr.id,
                    Entries {
                        is_list: true,
                        key: Range::exactly(1),
                        value: size,
                    },
                );
                sum
            }
            Kind::Map(entries) => {
                let mut sum = Range::exactly(cost_model::MAP);
                let mut sizes = if entries.is_empty() {
                    (Range::ZERO, Range::ZERO)
                } else {
                    (Range::NOTHING, Range::NOTHING)
                };
                for entry in entries {
                    sum = sum
                        .plus(self.cost(&entry.key))
                        .plus(self.cost(&entry.value));
                    sizes = (
                        sizes.0.or(self.size_or_unknown(&entry.key)),
                        sizes.1.or(self.size_or_unknown(&entry.value)),
                    );
                }
                self.entries.insert(
                    expr.id,
                    Entries {
                        is_list: false,
                        key: sizes.0,
                        value: sizes.1,
                    },
                );
                sum
            }
            Kind::Comprehension(fold) if fold.is_binding() => self.binding(expr.id, fold),
            Kind::Comprehension(fold) => self.fold(expr.id, fold),
        }
    }

    fn variable(&self) -> Declaration<'a> {
        self.root.map_or(Declaration::Unknown, Declaration::Shape)
    }

    fn local(&self, name: &str) -> Option<&Local<'a>> {
        self.locals.iter().rev().find(|local| local.name == name)
    }

    fn declaration(&self, expr: &Expr) -> Declaration<'a> {
        if let Kind::Ident(name) = &expr.kind
            && let Some(local) = self.local(name)
        {
            return local.declaration;
        }
        self.declarations
            .get(&expr.id)
            .copied()
            .unwrap_or(Declaration::None)
    }

    /// The declaration of a child: a field, `@items`, `@values`, `@keys` or `@indices`. The first
    /// step is the root, because the first name of a path is the variable.
    fn step(&self, declaration: Declaration<'a>, name: &str) -> Declaration<'a> {
        let shape = match declaration {
            Declaration::None => return self.variable(),
            Declaration::MapKey | Declaration::Unknown => return Declaration::Unknown,
            Declaration::Shape(shape) => shape,
        };
        match (&shape.kind, name) {
            (ShapeKind::List { item, .. }, "@items" | "@values") => Declaration::Shape(item),
            (ShapeKind::Map(value), "@items" | "@values") => Declaration::Shape(value),
            (ShapeKind::Map(_), "@keys") => Declaration::MapKey,
            (ShapeKind::Object { .. }, field) => shape
                .visible_field(field)
                .map_or(Declaration::Unknown, Declaration::Shape),
            _ => Declaration::Unknown,
        }
    }

    fn size_at(declaration: Declaration<'_>) -> Option<Range> {
        match declaration {
            Declaration::Shape(shape) => Some(Range {
                min: 0,
                max: shape.size_max,
            }),
            Declaration::MapKey => Some(Range::ZERO),
            Declaration::None | Declaration::Unknown => None,
        }
    }

    fn size(&mut self, expr: &Expr) -> Option<Range> {
        if let Some(size) = self.sizes.get(&expr.id) {
            return Some(*size);
        }
        let written = match &expr.kind {
            Kind::Literal(Literal::String(s)) => Some(s.chars().count()),
            Kind::Literal(Literal::Bytes(b)) => Some(b.len()),
            Kind::Literal(_) => Some(1),
            Kind::List(items) => Some(items.len()),
            Kind::Map(entries) => Some(entries.len()),
            _ => None,
        };
        if let Some(written) = written {
            return Some(Range::exactly(written as u64));
        }
        if let Some(size) = Self::size_at(self.declaration(expr)) {
            self.sizes.insert(expr.id, size);
            return Some(size);
        }
        if is_scalar(self.checked.type_of(expr.id)) {
            return Some(Range::exactly(1));
        }
        match &expr.kind {
            Kind::Ident(name) => self.local(name).and_then(|local| local.size),
            _ => None,
        }
    }

    fn size_or_unknown(&mut self, expr: &Expr) -> Range {
        self.size(expr).unwrap_or(Range::UNKNOWN)
    }

    fn entries_of(&self, expr: &Expr) -> Option<Entries> {
        self.entries
            .get(&expr.id)
            .copied()
            .or_else(|| match &expr.kind {
                Kind::Ident(name) => self.local(name).and_then(|local| local.entries),
                _ => None,
            })
    }

    fn record(&mut self, id: Id, size: Option<Range>, entries: Option<Entries>) {
        size.map(|size| self.sizes.insert(id, size));
        entries.map(|entries| self.entries.insert(id, entries));
    }

    fn call(&mut self, expr: &Expr, call: &Call) -> Range {
        let Meaning::Function {
            name,
            overloads,
            has_target,
        } = self.checked.meaning(expr.id)
        else {
            return Range::ZERO;
        };
        if *name == "dyn" {
            let [arg] = call.args.as_slice() else {
                return Range::ZERO;
            };
            let cost = self.cost(arg).plus(Range::exactly(1));
            let size = self.size(arg);
            let entries = self.entries_of(arg);
            self.record(expr.id, size, entries);
            return cost;
        }
        let costs: Vec<Range> = call.args.iter().map(|arg| self.cost(arg)).collect();
        let target = call.target.as_deref().filter(|_| *has_target);
        let target_cost = target.map_or(Range::ZERO, |target| self.cost(target));
        let args: Vec<&Expr> = target.into_iter().chain(&call.args).collect();
        let infos: Vec<Argument> = args.iter().map(|arg| self.argument(arg)).collect();
        let all = costs.iter().fold(Range::ZERO, |sum, cost| sum.plus(*cost));
        let mut cost = Range::NOTHING;
        let mut size = None;
        for id in overloads {
            let one = match *name {
                operator::AND | operator::OR => {
                    let left = costs[0];
                    let right = costs[1];
                    Estimate {
                        cost: Range {
                            min: left.min,
                            max: left.plus(right).max,
                        },
                        size: None,
                    }
                }
                operator::CONDITIONAL => {
                    let entries = self
                        .entries_of(args[1])
                        .zip(self.entries_of(args[2]))
                        .map(|(a, b)| a.or(b));
                    self.record(expr.id, None, entries);
                    Estimate {
                        cost: costs[0].plus(costs[1].or(costs[2])),
                        size: Some(infos[1].size.or(infos[2].size)),
                    }
                }
                _ => {
                    let cost_model = self.cost_model(name, id, &args);
                    if matches!(cost_model, CostModel::Concat | CostModel::Append) {
                        let entries = self
                            .entries_of(args[0])
                            .zip(self.entries_of(args[1]))
                            .map(|(a, b)| a.or(b));
                        self.record(expr.id, None, entries);
                    }
                    let estimate = cost_model.estimate(&infos);
                    Estimate {
                        cost: estimate.cost.plus(all),
                        ..estimate
                    }
                }
            };
            cost = cost.or(one.cost);
            size = match (size, one.size) {
                (Some(a), Some(b)) => Some(Range::or(a, b)),
                (a, b) => a.or(b),
            };
            if let "index_list" | "index_map" = *id {
                size = self.entries_of(args[0]).map(|entries| entries.value);
                let step = if *id == "index_list" {
                    "@items"
                } else {
                    "@values"
                };
                self.declarations
                    .insert(expr.id, self.step(self.declaration(args[0]), step));
            }
            if size.is_none() {
                size = self.size(expr);
            }
        }
        self.record(expr.id, size, None);
        target_cost.plus(cost)
    }

    /// The cost model of an overload; comparing values that have a name for being equal is cheap.
    fn cost_model(&self, name: &str, overload: &str, args: &[&Expr]) -> CostModel {
        let cost_model = self.environment.cost_model(name, overload);
        let opaque = matches!(args, [a, _] if name == operator::EQUALS && is_cheap(self.checked.type_of(a.id)));
        let same =
            matches!(args, [a, b] if self.checked.type_of(a.id) == self.checked.type_of(b.id));
        if opaque && same {
            CostModel::Unit
        } else {
            cost_model
        }
    }

    fn argument(&mut self, expr: &Expr) -> Argument {
        let size = self.size_or_unknown(expr);
        let item = match self.checked.type_of(expr.id) {
            Type::List(item) => {
                let declaration = self.declaration(expr);
                let at = if matches!(declaration, Declaration::None) {
                    Declaration::None
                } else {
                    self.step(declaration, "@items")
                };
                Some((
                    (**item).clone(),
                    Self::size_at(at).unwrap_or(Range::UNKNOWN),
                ))
            }
            _ => None,
        };
        let int = match expr.kind {
            Kind::Literal(Literal::Int(n)) => Some(n),
            _ => None,
        };
        Argument { size, item, int }
    }

    fn fold(&mut self, id: Id, fold: &Comprehension) -> Range {
        let mut sum = self.cost(&fold.range).plus(self.cost(&fold.init));
        let outside = self.locals.len();
        self.bind(&fold.accumulator, &fold.init);
        self.loop_variables(fold);
        let each = self.cost(&fold.condition).plus(self.cost(&fold.step));
        self.locals.truncate(outside + 1);
        sum = sum.plus(self.cost(&fold.result));
        self.locals.truncate(outside);
        let count = self.size_or_unknown(&fold.range);
        match &fold.init.kind {
            Kind::Literal(_) => {
                let size = self.size(&fold.init);
                self.record(id, size, None);
            }
            Kind::List(_) | Kind::Map(_) => {
                let entries = self.entries_of(&fold.step);
                self.record(id, Some(count), entries);
            }
            _ => {}
        }
        sum.plus(count.times(each))
    }

    fn bind(&mut self, name: &str, value: &Expr) {
        let declaration = self.declaration(value);
        let size = self.size(value);
        let entries = self.entries_of(value);
        self.locals.push(Local {
            name: name.to_owned(),
            declaration,
            size,
            entries,
        });
    }

    fn loop_variables(&mut self, fold: &Comprehension) {
        let entries = self.entries_of(&fold.range);
        let is_list = entries.map_or_else(
            || matches!(self.checked.type_of(fold.range.id), Type::List(_)),
            |entries| entries.is_list,
        );
        let declaration = self.declaration(&fold.range);
        let key = entries.map(|e| e.key);
        let value = entries.map(|e| e.value);
        let mut push = |name: &str, step: &str, size| {
            let declaration = self.step(declaration, step);
            self.locals.push(Local {
                name: name.to_owned(),
                declaration,
                size,
                entries: None,
            });
        };
        let item = if is_list { "@items" } else { "@values" };
        match &fold.var2 {
            Some(var2) => {
                push(&fold.var, if is_list { "@indices" } else { "@keys" }, key);
                push(var2, item, value);
            }
            None if is_list => push(&fold.var, item, value),
            None => push(&fold.var, "@keys", key),
        }
    }

    fn binding(&mut self, id: Id, fold: &Comprehension) -> Range {
        let sum = self.cost(&fold.range).plus(self.cost(&fold.init));
        self.bind(&fold.accumulator, &fold.init);
        let sum = sum.plus(self.cost(&fold.result));
        self.locals.pop();
        let size = self.size(&fold.result);
        let entries = self.entries_of(&fold.result);
        self.record(id, size, entries);
        sum
    }
}

fn is_scalar(t: &Type) -> bool {
    match t {
        Type::Bool | Type::Double | Type::Duration | Type::Int | Type::Timestamp | Type::Uint => {
            true
        }
        other => other.unwrapped().is_some_and(is_scalar),
    }
}

/// Values of Kubernetes' own types are compared at the cost of one.
fn is_cheap(t: &Type) -> bool {
    matches!(
        t.name(),
        "net.IP"
            | "net.CIDR"
            | "kubernetes.Quantity"
            | "kubernetes.Semver"
            | "kubernetes.URL"
            | "kubernetes.NamedFormat"
    )
}
