//! Running a plan.
//! In: a plan and the values of its variables. Out: its value or why it has none, and what that cost.
//! Holds: the depth of the stack is that of the plan; every round of a loop is charged before the next begins.

use std::{collections::BTreeMap, sync::Arc};

use crate::{
    ast::operator,
    environment::Program,
    equality,
    eval::{Failure, Meter},
    function::Overload,
    library::regex,
    plan::{Fold, Gather, Invocation, Node},
    room,
    types::Type,
    value::{Key, List, Map, Value},
};

/// How an evaluation ended.
#[derive(Debug)]
pub struct Evaluation<'a> {
    /// The value, or why there is none.
    pub value: Result<Value<'a>, Failure>,
    /// What it cost; more than the limit if that was reached.
    pub cost: u64,
}

impl Program {
    /// Evaluates the expression. `variables` are in the order in which the environment declared them.
    #[must_use]
    pub fn evaluate<'a>(&self, variables: &[Value<'a>], limit: u64) -> Evaluation<'a> {
        let evaluate = || {
            let mut run = Run { variables, locals: Vec::new(), meter: Meter::new(limit) };
            let value = run.eval(&self.plan.root);
            Evaluation { value, cost: run.meter.cost() }
        };
        let no_room = || Evaluation { value: Err(Failure::new("no stack for an expression so deep")), cost: 0 };
        room::with_room(self.depth, evaluate).unwrap_or_else(no_room)
    }
}

type Outcome<'a> = Result<Value<'a>, Failure>;

struct Run<'r, 'a> {
    variables: &'r [Value<'a>],
    /// Variables of loops, outermost first. A failed one fails only where it is used.
    locals: Vec<Outcome<'a>>,
    meter: Meter,
}

impl<'a> Run<'_, 'a> {
    fn eval(&mut self, node: &Node) -> Outcome<'a> {
        match node {
            Node::Constant(value) => Ok(value.clone()),
            Node::Variable(_) | Node::Local(_) | Node::Select { .. } | Node::Index { .. } => self.attribute(node, 1),
            Node::Test { operand, field } => {
                let operand = self.attribute(operand, 0)?;
                self.meter.charge(1)?;
                Ok(Value::Bool(select_if_present(&operand, &Value::text(field.clone()))?.is_some()))
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
                Ok(Value::Bool(value.key().is_some_and(|key| set.contains(&key))))
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
            Node::Fold(fold) => self.fold(fold),
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

    /// A part of a variable or value. Kubernetes does not charge for the variable where it is a branch of a conditional.
    fn attribute(&mut self, node: &Node, root_cost: u64) -> Outcome<'a> {
        match node {
            Node::Variable(at) => {
                self.meter.charge(root_cost)?;
                self.variables.get(*at).cloned().ok_or_else(|| Failure::new("no such attribute(s): undeclared"))
            }
            Node::Local(at) => {
                self.meter.charge(root_cost)?;
                self.locals[*at].clone()
            }
            Node::Conditional(_) => self.eval(node),
            Node::Select { operand, field, optional } => {
                let operand = self.attribute(operand, root_cost)?;
                self.qualify(operand, &Value::text(field.clone()), *optional, 1)
            }
            Node::Index { operand, index, optional } => {
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

    fn qualify(&mut self, operand: Value<'a>, key: &Value<'a>, optional: bool, cost: u64) -> Outcome<'a> {
        let (operand, optional) = match operand {
            Value::Optional(None) => return Ok(Value::Optional(None)),
            Value::Optional(Some(inner)) => ((*inner).clone(), true),
            other => (other, optional),
        };
        if !optional {
            self.meter.charge(cost)?;
            return select(&operand, key);
        }
        match select_if_present(&operand, key)? {
            None => Ok(Value::Optional(None)),
            Some(value) => {
                self.meter.charge(cost)?;
                Ok(Value::some(value))
            }
        }
    }

    fn branch(&mut self, node: &Node) -> Outcome<'a> {
        if node.is_attribute() { self.attribute(node, 0) } else { self.eval(node) }
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
        let (left, right) = (self.eval(&sides[0]), self.eval(&sides[1]));
        let size = |side: &Outcome<'a>| side.as_ref().map_or(1, Value::size);
        let cost = match &left {
            Ok(Value::Opaque(_)) => 1,
            left => (size(left).min(size(&right)) as f64 * 0.1).ceil() as u64,
        };
        self.meter.charge(cost)?;
        let (left, right) = (left?, right?);
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
                    // Of two arguments Kubernetes looks at the second even if the first failed, and charges for the call;
                    // not so where the arguments decide on the overload, unless it is an operator's.
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
            self.meter.charge(call.price().actual(&args, &Value::Null))?;
            return Err(failure);
        }
        let fits = |overload: &&Overload| overload.params.iter().zip(&args).all(|(param, arg)| accepts(param, arg));
        let Some(overload) = call.overloads.iter().find(fits) else {
            self.meter.charge(call.price().actual(&args, &Value::Null))?;
            return Err(no_such_overload(call.name, &args));
        };
        let value = match &call.pattern {
            Some(pattern) => regex::run(call.name, pattern, &args, &mut self.meter),
            None => (overload.run)(&mut self.meter, &args),
        };
        if value.as_ref().is_err_and(Failure::is_limit) {
            return value;
        }
        self.meter.charge(call.price().actual(&args, value.as_ref().unwrap_or(&Value::Null)))?;
        value
    }

    fn list(&mut self, items: &[(Node, bool)]) -> Outcome<'a> {
        let mut made = Vec::with_capacity(items.len());
        for (node, optional) in items {
            match (self.eval(node)?, optional) {
                (value, false) => made.push(value),
                (Value::Optional(value), true) => made.extend(value.map(|value| (*value).clone())),
                (_, true) => return Err(Failure::new("cannot initialize optional list element from non-optional value")),
            }
        }
        self.meter.allocate_values(made.len())?;
        self.meter.charge(crate::price::LIST)?;
        Ok(Value::list(made))
    }

    fn map(&mut self, entries: &[(Node, Node, bool)]) -> Outcome<'a> {
        let mut made = BTreeMap::new();
        for (key, value, optional) in entries {
            let key = self.eval(key)?;
            let key = key.key().ok_or_else(|| Failure::new(format!("unsupported key type: {}", key.type_of().name())))?;
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
                (_, true) => return Err(Failure::new("cannot initialize optional entry from non-optional value")),
            }
        }
        self.meter.allocate_values(2 * made.len())?;
        self.meter.charge(crate::price::MAP)?;
        Ok(Value::Map(Map::Made(Arc::new(made))))
    }

    fn fold(&mut self, fold: &Fold) -> Outcome<'a> {
        let range = match self.eval(&fold.range)? {
            Value::List(list) => Range::List(list),
            Value::Map(map) => {
                self.meter.allocate_values(map.len())?;
                Range::Map(map.keys(), map)
            }
            other if fold.two => return Err(Failure::new(format!("unsupported comprehension range type: {}", go_type(&other)))),
            other => return Err(Failure::new(format!("got '{}', expected iterable type", go_type(&other)))),
        };
        let outside = self.locals.len();
        let result = self.rounds(fold, &range);
        self.locals.truncate(outside);
        result
    }

    fn rounds(&mut self, fold: &Fold, range: &Range<'a>) -> Outcome<'a> {
        match &fold.gather {
            Gather::Reduce { init, condition, step, result } => {
                let init = self.eval(init);
                let at = self.locals.len();
                self.locals.push(init);
                for round in 0..range.len() {
                    range.bind(round, fold.two, &mut self.locals);
                    let go_on = matches!(self.eval(condition)?, Value::Bool(true));
                    let value = if go_on { Some(self.eval(step)) } else { None };
                    self.locals.truncate(at + 1);
                    match value {
                        None => break,
                        Some(Err(failure)) if failure.is_limit() => return Err(failure),
                        Some(value) => self.locals[at] = value,
                    }
                }
                self.eval(result)
            }
            Gather::List { filter, value } => {
                let mut made = Ok(Vec::new());
                // The list around the value, the accumulator and the addition; a constant list costs nothing.
                let around = if matches!(value, Node::Constant(_)) { 2 } else { crate::price::LIST + 2 };
                for round in 0..range.len() {
                    let value = self.round(fold.two, range, round, filter.as_ref(), (value, around));
                    grow(&mut made, value, |made, value| {
                        made.push(value);
                        self.meter.allocate_values(1)
                    })?;
                }
                self.meter.charge(1)?;
                made.map(Value::list)
            }
            Gather::Map { filter, key, value } => {
                let mut made = Ok(BTreeMap::new());
                // The insertion, the accumulator and the key.
                let around = 2 + u64::from(*key);
                for round in 0..range.len() {
                    let value = self.round(fold.two, range, round, filter.as_ref(), (value, around));
                    grow(&mut made, value, |made, value| {
                        let entries = if *key { vec![(range.key(round), value)] } else { entries(value)? };
                        self.meter.allocate_values(2 * entries.len())?;
                        entries.into_iter().try_for_each(|(key, value)| insert(made, &key, value))
                    })?;
                }
                self.meter.charge(1)?;
                made.map(|made| Value::Map(Map::Made(Arc::new(made))))
            }
        }
    }

    /// One round of a list or map that grows: the value to add, unless the filter says no.
    fn round(
        &mut self,
        two: bool,
        range: &Range<'a>,
        round: usize,
        filter: Option<&Node>,
        (value, around): (&Node, u64),
    ) -> Result<Option<Value<'a>>, Failure> {
        let outside = self.locals.len();
        range.bind(round, two, &mut self.locals);
        let keep = match filter.map(|filter| self.eval(filter)) {
            None | Some(Ok(Value::Bool(true))) => Ok(true),
            Some(Ok(Value::Bool(false))) => Ok(false),
            Some(Ok(_)) => Err(Failure::no_such_overload()),
            Some(Err(failure)) => Err(failure),
        };
        let added = keep.and_then(|keep| {
            if !keep {
                return Ok(None);
            }
            let value = self.eval(value);
            self.meter.charge(around)?;
            value.map(Some)
        });
        self.locals.truncate(outside);
        added
    }
}

/// Lets a list or map grow. After a failure the rounds go on, as they do in Kubernetes, but nothing comes of them.
fn grow<'a, T>(
    made: &mut Result<T, Failure>,
    value: Result<Option<Value<'a>>, Failure>,
    add: impl FnOnce(&mut T, Value<'a>) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let failed = match (made.as_mut(), value) {
        (_, Ok(None)) => None,
        (Ok(made), Ok(Some(value))) => add(made, value).err(),
        (Err(_), Ok(_)) => None,
        (_, Err(failure)) => Some(failure),
    };
    match failed {
        Some(failure) if failure.is_limit() => Err(failure),
        Some(failure) if made.is_ok() => {
            *made = Err(failure);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// What a loop goes over.
enum Range<'a> {
    List(List<'a>),
    Map(Vec<Value<'a>>, Map<'a>),
}

impl<'a> Range<'a> {
    fn len(&self) -> usize {
        match self {
            Self::List(list) => list.len(),
            Self::Map(keys, _) => keys.len(),
        }
    }

    /// What the first of two variables is.
    fn key(&self, round: usize) -> Value<'a> {
        match self {
            Self::List(_) => Value::Int(i64::try_from(round).unwrap_or(i64::MAX)),
            Self::Map(keys, _) => keys[round].clone(),
        }
    }

    fn bind(&self, round: usize, two: bool, locals: &mut Vec<Outcome<'a>>) {
        let key = self.key(round);
        match self {
            Self::List(list) if two => locals.extend([Ok(key), list.get(round)]),
            Self::List(list) => locals.push(list.get(round)),
            Self::Map(_, map) if two => {
                let value = map.find(&key).and_then(|value| value.ok_or_else(|| no_such_key(&key)));
                locals.extend([Ok(key), value]);
            }
            Self::Map(..) => locals.push(Ok(key)),
        }
    }
}

fn entries<'a>(value: Value<'a>) -> Result<Vec<(Value<'a>, Value<'a>)>, Failure> {
    let Value::Map(map) = value else { return Err(Failure::no_such_overload()) };
    let with_value = |key: Value<'a>| Ok(map.find(&key)?.map(|value| (key, value)));
    map.keys().into_iter().map(with_value).filter_map(Result::transpose).collect()
}

fn insert<'a>(made: &mut BTreeMap<Key<'a>, Value<'a>>, key: &Value<'a>, value: Value<'a>) -> Result<(), Failure> {
    let known = key.key().ok_or_else(|| Failure::new(format!("unsupported key type: {}", key.type_of().name())))?;
    if made.contains_key(&known) {
        return Err(Failure::new(format!("insert failed: key {} already exists", shown(key))));
    }
    made.insert(known, value);
    Ok(())
}

/// Whether a value may be an argument of a type. Lists and maps are taken for what they claim to hold.
pub(crate) fn accepts(param: &Type, value: &Value<'_>) -> bool {
    match param {
        Type::Dyn | Type::Param(_) => true,
        Type::Bool => matches!(value, Value::Bool(_)),
        Type::Int => matches!(value, Value::Int(_)),
        Type::Uint => matches!(value, Value::Uint(_)),
        Type::Double => matches!(value, Value::Double(_)),
        Type::String => matches!(value, Value::String(_)),
        Type::Bytes => matches!(value, Value::Bytes(_)),
        Type::Null => matches!(value, Value::Null),
        Type::Timestamp => matches!(value, Value::Timestamp(_)),
        Type::Duration => matches!(value, Value::Duration(_)),
        Type::List(item) => match value {
            Value::List(list) => list.is_empty() || list.get(0).is_ok_and(|first| accepts(item, &first)),
            _ => false,
        },
        Type::Map(_) => matches!(value, Value::Map(_)),
        Type::Type(_) => matches!(value, Value::Type(_)),
        Type::Object(name) | Type::Opaque(name, _) => match value {
            Value::Optional(_) => param.unwrapped().is_some(),
            Value::Opaque(value) => value.type_of().name() == &**name,
            _ => false,
        },
        Type::Error => false,
    }
}

/// What fits no overload. Most functions say what they were given; operators do not, and those that the first operand knows say nothing.
pub(crate) fn no_such_overload(name: &str, args: &[Value<'_>]) -> Failure {
    let first = args.first().map(Value::type_of);
    let knows = match name {
        "matches" | "contains" | "startsWith" | "endsWith" | "find" | "findAll" => true,
        operator::ADD => !matches!(first, Some(Type::Bool | Type::Null | Type::Map(_) | Type::Type(_) | Type::Opaque(..))),
        operator::LESS | operator::LESS_EQUALS | operator::GREATER | operator::GREATER_EQUALS => {
            !matches!(first, Some(Type::Null | Type::List(_) | Type::Map(_) | Type::Type(_) | Type::Opaque(..)))
        }
        operator::SUBTRACT => {
            matches!(first, Some(Type::Int | Type::Uint | Type::Double | Type::Duration | Type::Timestamp))
        }
        operator::MULTIPLY | operator::DIVIDE | operator::MODULO => matches!(first, Some(Type::Int | Type::Uint | Type::Double)),
        operator::NEGATE | operator::NOT | operator::IN => true,
        _ => false,
    };
    if knows {
        return Failure::no_such_overload();
    }
    if is_operator(name) || matches!(name, "size" | "sort") {
        return Failure::new(format!("no such overload: {name}"));
    }
    let types: Vec<String> = args.iter().map(|arg| arg.type_of().name().to_owned()).collect();
    Failure::new(format!("no such overload: {name}({})", types.join(", ")))
}

fn is_operator(name: &str) -> bool {
    name.starts_with(['_', '@', '!', '-'])
}

fn no_such_key(key: &Value<'_>) -> Failure {
    Failure::new(format!("no such key: {}", shown(key)))
}

/// A key as messages show it.
pub(crate) fn shown(value: &Value<'_>) -> String {
    match value {
        Value::String(text) => text.to_string(),
        Value::Int(n) => n.to_string(),
        Value::Uint(n) => n.to_string(),
        Value::Bool(b) => b.to_string(),
        Value::Double(d) => d.to_string(),
        other => other.type_of().name().to_owned(),
    }
}

fn select<'a>(operand: &Value<'a>, key: &Value<'a>) -> Outcome<'a> {
    match select_if_present(operand, key)? {
        Some(value) => Ok(value),
        None if matches!(operand, Value::List(_)) => Err(Failure::new(format!("index out of bounds: {}", shown(key)))),
        None => Err(no_such_key(key)),
    }
}

fn select_if_present<'a>(operand: &Value<'a>, key: &Value<'a>) -> Result<Option<Value<'a>>, Failure> {
    match operand {
        Value::Map(Map::Made(_)) if key.key().is_none() => Err(Failure::new(format!("unsupported key type: {}", key.type_of().name()))),
        Value::Map(map) => map.find(key),
        Value::List(list) => {
            let at = match key {
                Value::Int(n) => usize::try_from(*n).ok(),
                Value::Uint(n) => usize::try_from(*n).ok(),
                Value::Double(d) if d.fract() == 0.0 && *d >= 0.0 && *d < 9e15 => Some(*d as usize),
                other => return Err(Failure::new(format!("unsupported index type '{}' in list", other.type_of().name()))),
            };
            at.filter(|at| *at < list.len()).map(|at| list.get(at)).transpose()
        }
        Value::Optional(Some(inner)) => select_if_present(inner, key),
        _ => Ok(None),
    }
}

/// What Go calls the type of a value that is no list or map.
fn go_type(value: &Value<'_>) -> &'static str {
    match value {
        Value::Null => "types.Null",
        Value::Bool(_) => "types.Bool",
        Value::Int(_) => "types.Int",
        Value::Uint(_) => "types.Uint",
        Value::Double(_) => "types.Double",
        Value::String(_) => "types.String",
        Value::Bytes(_) => "types.Bytes",
        Value::Timestamp(_) => "types.Timestamp",
        Value::Duration(_) => "types.Duration",
        Value::Type(_) => "*types.Type",
        Value::Optional(_) => "*types.Optional",
        _ => "value",
    }
}
