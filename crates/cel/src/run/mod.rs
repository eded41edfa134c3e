//! Evaluates a plan.
//! In: a plan and the values of its variables. Out: its value or a failure, and the cost.
//! Guarantees: the depth of the stack is that of the plan; every iteration of a comprehension is
//! charged before the next begins.

mod comprehension; // comprehensions
mod select; // fields, keys, indexes

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    eval::{Failure, Meter},
    function::Overload,
    library::regex,
    overload::{accepts, is_operator, no_such_overload},
    plan::{Invocation, Node, Plan},
    stack,
    value::{LazyFields, Map, Message, Value, equality},
};

use self::select::{no_such_key, select, select_if_present};

/// How an evaluation ended.
#[derive(Debug)]
pub struct Evaluation<'a> {
    /// The value, or why there is none.
    pub value: Result<Value<'a>, Failure>,
    /// The cost; more than the limit if that was exceeded.
    pub cost: u64,
}

/// Evaluates a plan of a depth. `variables` are in the order in which the environment declared
/// them; the fields of [`Value::Lazy`] are computed by `lazy` on first use.
pub(crate) fn evaluate<'a>(
    plan: &Plan,
    depth: usize,
    variables: &[Value<'a>],
    lazy: Option<&dyn LazyFields<'a>>,
    limit: u64,
) -> Evaluation<'a> {
    let evaluate = || {
        let mut run = Run {
            variables,
            lazy,
            locals: Vec::new(),
            meter: Meter::new(limit),
        };
        let value = run.eval(&plan.root);
        Evaluation {
            value,
            cost: run.meter.cost(),
        }
    };
    let no_stack = || Evaluation {
        value: Err(Failure::new("no stack for an expression so deep")),
        cost: 0,
    };
    stack::with_stack(depth, evaluate).unwrap_or_else(no_stack)
}

type Outcome<'a> = Result<Value<'a>, Failure>;

struct Run<'r, 'a> {
    variables: &'r [Value<'a>],
    /// Computes the fields of [`Value::Lazy`].
    lazy: Option<&'r dyn LazyFields<'a>>,
    /// Iteration variables, outermost first. A failed one fails only where it is used.
    locals: Vec<Outcome<'a>>,
    meter: Meter,
}

impl<'a> Run<'_, 'a> {
    fn eval(&mut self, node: &Node) -> Outcome<'a> {
        match node {
            Node::Constant(value) => Ok(value.clone()),
            Node::Variable(_) | Node::Local(_) | Node::Select { .. } | Node::Index { .. } => {
                self.attribute(node, 1)
            }
            Node::Test { operand, field } => {
                let operand = self.attribute(operand, 0)?;
                self.meter.charge(1)?;
                Ok(Value::Bool(
                    self.find(&operand, &Value::text(field.clone()))?.is_some(),
                ))
            }
            Node::And(sides) => self.logic(sides, false),
            Node::Or(sides) => self.logic(sides, true),
            Node::Conditional(parts) => {
                let [condition, yes, no] = &**parts;
                match self.eval(condition)? {
                    Value::Bool(true) => self.branch(yes),
                    Value::Bool(false) => self.branch(no),
                    _ => Err(Failure::no_such_overload()),
                }
            }
            Node::Equal { sides, negated } => self.equality(sides, *negated),
            Node::Member { value, set } => {
                let value = self.eval(value)?;
                Ok(Value::Bool(
                    value.key().is_some_and(|key| set.contains(&key)),
                ))
            }
            Node::Otherwise { sides, unwrap } => match self.eval(&sides[0])? {
                Value::Optional(None) => self.eval(&sides[1]),
                Value::Optional(Some(value)) if *unwrap => Ok((*value).clone()),
                other => Ok(other),
            },
            Node::NotStrictlyFalse(operand) => {
                let value = self.eval(operand);
                self.meter.charge(1)?;
                match value {
                    Err(failure) if failure.is_limit() => Err(failure),
                    value => Ok(Value::Bool(!matches!(value, Ok(Value::Bool(false))))),
                }
            }
            Node::Call(call) => self.call(call),
            Node::List(items) => self.list(items),
            Node::Map(entries) => self.map(entries),
            Node::Message(name, fields) => self.message(name, fields),
            Node::Comprehension(fold) => self.fold(fold),
            Node::Bind(parts) => {
                let value = self.eval(&parts[0]);
                if let Err(failure) = &value
                    && failure.is_limit()
                {
                    return value;
                }
                self.locals.push(value);
                let result = self.eval(&parts[1]);
                self.locals.pop();
                result
            }
        }
    }

    /// A part of a variable or value. Kubernetes does not charge for the variable where it is a
    /// branch of a conditional.
    fn attribute(&mut self, node: &Node, root_cost: u64) -> Outcome<'a> {
        match node {
            Node::Variable(at) => {
                self.meter.charge(root_cost)?;
                self.variables
                    .get(*at)
                    .cloned()
                    .ok_or_else(|| Failure::new("no such attribute(s): undeclared"))
            }
            Node::Local(at) => {
                self.meter.charge(root_cost)?;
                self.locals[*at].clone()
            }
            Node::Conditional(_) => self.eval(node),
            Node::Select {
                operand,
                field,
                optional,
            } => {
                let operand = self.attribute(operand, root_cost)?;
                self.qualify(operand, &Value::text(field.clone()), *optional, 1)
            }
            Node::Index {
                operand,
                index,
                optional,
            } => {
                let operand = self.attribute(operand, root_cost)?;
                let key = self.eval(index)?;
                self.qualify(operand, &key, *optional, u64::from(!index.is_attribute()))
            }
            other => {
                let value = self.eval(other)?;
                self.meter.charge(root_cost)?;
                Ok(value)
            }
        }
    }

    fn qualify(
        &mut self,
        operand: Value<'a>,
        key: &Value<'a>,
        optional: bool,
        cost: u64,
    ) -> Outcome<'a> {
        let (operand, optional) = match operand {
            Value::Optional(None) => return Ok(Value::Optional(None)),
            Value::Optional(Some(inner)) => ((*inner).clone(), true),
            other => (other, optional),
        };
        if !optional {
            self.meter.charge(cost)?;
            return match &operand {
                Value::Lazy => self.find(&operand, key)?.ok_or_else(|| no_such_key(key)),
                operand => select(operand, key),
            };
        }
        match self.find(&operand, key)? {
            None => Ok(Value::Optional(None)),
            Some(value) => {
                self.meter.charge(cost)?;
                Ok(Value::some(value))
            }
        }
    }

    /// A part of a value, if it is there.
    fn find(&self, operand: &Value<'a>, key: &Value<'a>) -> Result<Option<Value<'a>>, Failure> {
        match (operand, key, self.lazy) {
            (Value::Lazy, Value::String(name), Some(lazy)) => lazy.get(name),
            _ => select_if_present(operand, key),
        }
    }

    fn branch(&mut self, node: &Node) -> Outcome<'a> {
        if node.is_attribute() {
            self.attribute(node, 0)
        } else {
            self.eval(node)
        }
    }

    /// `&&` and `||`: one side that decides makes up for a failure of the other.
    fn logic(&mut self, sides: &[Node; 2], decides: bool) -> Outcome<'a> {
        let mut failed = None;
        for side in sides {
            match self.eval(side) {
                Ok(Value::Bool(b)) if b == decides => return Ok(Value::Bool(decides)),
                Ok(Value::Bool(_)) => {}
                Ok(_) => {
                    failed.get_or_insert_with(Failure::no_such_overload);
                }
                Err(failure) if failure.is_limit() => return Err(failure),
                Err(failure) => {
                    failed.get_or_insert(failure);
                }
            }
        }
        failed.map_or(Ok(Value::Bool(!decides)), Err)
    }

    fn equality(&mut self, sides: &[Node; 2], negated: bool) -> Outcome<'a> {
        let left = self.eval(&sides[0]);
        let right = self.eval(&sides[1]);
        let size = |side: &Outcome<'a>| side.as_ref().map_or(1, Value::size);
        let cost = match &left {
            Ok(Value::Opaque(_)) => 1,
            left => (size(left).min(size(&right)) as f64 * 0.1).ceil() as u64,
        };
        self.meter.charge(cost)?;
        let left = left?;
        let right = right?;
        match equality::equal(&left, &right) {
            Ok(equal) => Ok(Value::Bool(equal != negated)),
            // Values that cannot be compared are different.
            Err(_) if negated => Ok(Value::Bool(true)),
            Err(failure) => Err(failure),
        }
    }

    fn call(&mut self, call: &Invocation) -> Outcome<'a> {
        let mut args = Vec::with_capacity(call.args.len());
        let mut failed = None;
        for arg in &call.args {
            match self.eval(arg) {
                Ok(value) => args.push(value),
                Err(failure) if failure.is_limit() => return Err(failure),
                Err(failure) => {
                    // Kubernetes evaluates the second of two arguments even if the first failed,
                    // and charges for the call; not so where the arguments select the overload,
                    // unless it is an operator's.
                    let decided = call.overloads.len() == 1 || is_operator(call.name);
                    if call.args.len() > 2 || !decided {
                        return Err(failure);
                    }
                    failed.get_or_insert(failure);
                    args.push(Value::Null);
                }
            }
        }
        if let Some(failure) = failed {
            self.meter
                .charge(call.cost_model().actual(&args, &Value::Null))?;
            return Err(failure);
        }
        let fits = |overload: &&Overload| {
            overload
                .params
                .iter()
                .zip(&args)
                .all(|(param, arg)| accepts(param, arg))
        };
        let Some(overload) = call.overloads.iter().find(fits) else {
            self.meter
                .charge(call.cost_model().actual(&args, &Value::Null))?;
            return Err(no_such_overload(call.name, &args));
        };
        let value = match &call.pattern {
            Some(pattern) => regex::run(call.name, pattern, &args, &mut self.meter),
            None => (overload.run)(&mut self.meter, &args),
        };
        if value.as_ref().is_err_and(Failure::is_limit) {
            return value;
        }
        self.meter.charge(
            call.cost_model()
                .actual(&args, value.as_ref().unwrap_or(&Value::Null)),
        )?;
        value
    }

    fn list(&mut self, items: &[(Node, bool)]) -> Outcome<'a> {
        let mut made = Vec::with_capacity(items.len());
        for (node, optional) in items {
            match (self.eval(node)?, optional) {
                (value, false) => made.push(value),
                (Value::Optional(value), true) => made.extend(value.map(|value| (*value).clone())),
                (_, true) => {
                    return Err(Failure::new(
                        "cannot initialize optional list element from non-optional value",
                    ));
                }
            }
        }
        self.meter.allocate_values(made.len())?;
        self.meter.charge(crate::cost_model::LIST)?;
        Ok(Value::list(made))
    }

    fn message(&mut self, name: &Arc<str>, fields: &[(Arc<str>, Node, bool)]) -> Outcome<'a> {
        let mut made = BTreeMap::new();
        for (field, node, optional) in fields {
            match (self.eval(node)?, optional) {
                (value, false) => {
                    made.insert(field.to_string(), value);
                }
                (Value::Optional(value), true) => {
                    made.extend(value.map(|value| (field.to_string(), (*value).clone())));
                }
                (_, true) => {
                    return Err(Failure::new(
                        "cannot initialize optional field from non-optional value",
                    ));
                }
            }
        }
        self.meter.allocate_values(made.len())?;
        self.meter.charge(crate::cost_model::MESSAGE)?;
        Ok(Value::Message(Arc::new(Message {
            type_name: name.clone(),
            fields: made,
        })))
    }

    fn map(&mut self, entries: &[(Node, Node, bool)]) -> Outcome<'a> {
        let mut made = BTreeMap::new();
        for (key, value, optional) in entries {
            let key = self.eval(key)?;
            let key = key.key().ok_or_else(|| {
                Failure::new(format!("unsupported key type: {}", key.type_of().name()))
            })?;
            match (self.eval(value)?, optional) {
                (value, false) => {
                    made.insert(key, value);
                }
                (Value::Optional(Some(value)), true) => {
                    made.insert(key, (*value).clone());
                }
                (Value::Optional(None), true) => {
                    made.remove(&key);
                }
                (_, true) => {
                    return Err(Failure::new(
                        "cannot initialize optional entry from non-optional value",
                    ));
                }
            }
        }
        self.meter.allocate_values(2 * made.len())?;
        self.meter.charge(crate::cost_model::MAP)?;
        Ok(Value::Map(Map::Made(Arc::new(made))))
    }
}
