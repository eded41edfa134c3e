//! The planner: from a checked expression to a plan for evaluation.
//! In: the tree, its types and the candidate overloads of each call. Out: nodes with variables as
//! indexes and constants folded.
//! Guarantees: a plan has the semantics of the expression and the cost of kube-apiserver.

use std::{collections::BTreeSet, sync::Arc};

use ::regex::Regex;

use crate::{
    ast::{self, Call, Expr, Kind, Literal, operator},
    check::{Checked, Meaning},
    cost_model::CostModel,
    environment::Environment,
    eval::Meter,
    function::Overload,
    library::regex,
    types::Type,
    value::{Key, Map, Text, Value},
};

/// A node of a plan.
#[derive(Clone, Debug)]
pub(crate) enum Node {
    Constant(Value<'static>),
    /// A declared variable.
    Variable(usize),
    /// An iteration variable, counted from the outermost.
    Local(usize),
    Select {
        operand: Box<Node>,
        field: Arc<str>,
        optional: bool,
    },
    Test {
        operand: Box<Node>,
        field: Arc<str>,
    },
    Index {
        operand: Box<Node>,
        index: Box<Node>,
        optional: bool,
    },
    And(Box<[Node; 2]>),
    Or(Box<[Node; 2]>),
    Conditional(Box<[Node; 3]>),
    Equal {
        sides: Box<[Node; 2]>,
        negated: bool,
    },
    /// `value in [constants]`.
    Member {
        value: Box<Node>,
        set: Arc<BTreeSet<Key<'static>>>,
    },
    /// `or` and `orValue`.
    Otherwise {
        sides: Box<[Node; 2]>,
        unwrap: bool,
    },
    /// True unless the operand is false; also when it fails.
    NotStrictlyFalse(Box<Node>),
    Call(Box<Invocation>),
    List(Vec<(Node, bool)>),
    Map(Vec<(Node, Node, bool)>),
    /// A message of that type.
    Message(Arc<str>, Vec<(Arc<str>, Node, bool)>),
    Comprehension(Box<Comprehension>),
    /// Names a value inside another.
    Bind(Box<[Node; 2]>),
}

/// A call.
#[derive(Clone, Debug)]
pub(crate) struct Invocation {
    pub(crate) name: &'static str,
    /// Those that may fit; with more than one the arguments decide.
    pub(crate) overloads: Vec<Overload>,
    pub(crate) args: Vec<Node>,
    /// The second argument, if it is a constant pattern.
    pub(crate) pattern: Option<Arc<Regex>>,
}

impl Invocation {
    /// The cost model of the call. The overload is known to cost rules only if there is one
    /// candidate.
    pub(crate) fn cost_model(&self) -> CostModel {
        match self.overloads.as_slice() {
            [only] => only.cost_model,
            [first, ..] => first.cost_model.by_name(),
            [] => CostModel::Unit,
        }
    }
}

/// A comprehension over a list or map.
#[derive(Clone, Debug)]
pub(crate) struct Comprehension {
    pub(crate) range: Node,
    /// Whether there is a second variable.
    pub(crate) two: bool,
    pub(crate) gather: Gather,
}

/// The result of a comprehension.
#[derive(Clone, Debug)]
pub(crate) enum Gather {
    /// A value that every iteration replaces.
    Reduce {
        init: Node,
        condition: Node,
        step: Node,
        result: Node,
    },
    /// A list that grows.
    List { filter: Option<Node>, value: Node },
    /// A map that grows by the iteration variable and a value, or by the entries of a map.
    Map {
        filter: Option<Node>,
        key: bool,
        value: Node,
    },
}

impl Node {
    /// Whether it names a part of a variable or value. Cost rules treat these differently.
    pub(crate) fn is_attribute(&self) -> bool {
        matches!(
            self,
            Self::Variable(_)
                | Self::Local(_)
                | Self::Select { .. }
                | Self::Index { .. }
                | Self::Conditional(_)
        )
    }
}

/// An expression ready to run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    pub(crate) root: Arc<Node>,
    used: Arc<BTreeSet<String>>,
}

impl Plan {
    pub(crate) fn uses(&self, variable: &str) -> bool {
        self.used.contains(variable)
    }
}

/// Makes a plan.
///
/// # Errors
/// Why no program can be made of the expression.
pub(crate) fn plan(checked: &Checked, environment: &Environment) -> Result<Plan, String> {
    let mut planner = Planner {
        checked,
        environment,
        locals: Vec::new(),
        used: BTreeSet::new(),
    };
    let root = planner.node(&checked.parsed.expr)?;
    Ok(Plan {
        root: Arc::new(root),
        used: Arc::new(planner.used),
    })
}

struct Planner<'a> {
    checked: &'a Checked,
    environment: &'a Environment,
    /// Names of iteration variables, outermost first. The accumulator of a growing list has no slot
    /// here.
    locals: Vec<String>,
    used: BTreeSet<String>,
}

impl Planner<'_> {
    fn node(&mut self, expr: &Expr) -> Result<Node, String> {
        Ok(match &expr.kind {
            Kind::Literal(literal) => Node::Constant(constant(literal)),
            Kind::Ident(name) => self.name(expr, name)?,
            Kind::Select(select) => {
                if let Meaning::Name(name) = self.checked.meaning(expr.id) {
                    return self.name(expr, name);
                }
                let operand = Box::new(self.node(&select.operand)?);
                let field = select.field.as_str().into();
                if select.test {
                    Node::Test { operand, field }
                } else {
                    Node::Select {
                        operand,
                        field,
                        optional: false,
                    }
                }
            }
            Kind::Call(call) => self.call(expr, call)?,
            Kind::List(items) => {
                let items: Vec<(Node, bool)> = items
                    .iter()
                    .map(|item| Ok((self.node(&item.value)?, item.optional)))
                    .collect::<Result<_, String>>()?;
                constant_list(&items).map_or(Node::List(items), Node::Constant)
            }
            Kind::Map(entries) => {
                let entries: Vec<(Node, Node, bool)> = entries
                    .iter()
                    .map(|entry| {
                        Ok((
                            self.node(&entry.key)?,
                            self.node(&entry.value)?,
                            entry.optional,
                        ))
                    })
                    .collect::<Result<_, String>>()?;
                constant_map(&entries).map_or(Node::Map(entries), Node::Constant)
            }
            Kind::Message(message) => {
                let fields = message.fields.iter().map(|field| {
                    let value = self.node(&field.value)?;
                    Ok((Arc::from(field.name.as_str()), value, field.optional))
                });
                let fields = fields.collect::<Result<_, String>>()?;
                let name = message.name.strip_prefix('.').unwrap_or(&message.name);
                Node::Message(Arc::from(name), fields)
            }
            Kind::Comprehension(fold) if fold.is_binding() => {
                let value = self.node(&fold.init)?;
                self.locals.push(fold.accumulator.clone());
                let result = self.node(&fold.result);
                self.locals.pop();
                Node::Bind(Box::new([value, result?]))
            }
            Kind::Comprehension(fold) => self.fold(fold)?,
        })
    }

    fn name(&mut self, expr: &Expr, name: &str) -> Result<Node, String> {
        if let Kind::Ident(written) = &expr.kind
            && let Some(at) = self.locals.iter().rposition(|local| local == written)
        {
            return Ok(Node::Local(at));
        }
        let name = name.strip_prefix('.').unwrap_or(name);
        if let Some(at) = self.environment.variable(name) {
            self.used.insert(name.to_owned());
            return Ok(Node::Variable(at));
        }
        match self.environment.type_named(name) {
            Some(ty) => Ok(Node::Constant(Value::Type(ty))),
            None => Err(format!("reference to undefined type: {name}")),
        }
    }

    fn call(&mut self, expr: &Expr, call: &Call) -> Result<Node, String> {
        let Meaning::Function {
            name,
            overloads,
            has_target,
        } = self.checked.meaning(expr.id)
        else {
            return Err(format!("no such overload: {}", call.function));
        };
        let target = call.target.as_deref().filter(|_| *has_target);
        let mut args: Vec<Node> = target
            .into_iter()
            .chain(&call.args)
            .map(|arg| self.node(arg))
            .collect::<Result<_, _>>()?;
        let optional = matches!(*name, operator::OPTIONAL_INDEX | operator::OPTIONAL_SELECT);
        match (*name, args.len()) {
            (operator::AND, 2) => return Ok(Node::And(pair(&mut args))),
            (operator::OR, 2) => return Ok(Node::Or(pair(&mut args))),
            (operator::CONDITIONAL, 3) => {
                let no = args.pop().expect("three were counted");
                let [condition, yes] = *pair(&mut args);
                return Ok(Node::Conditional(Box::new([condition, yes, no])));
            }
            (operator::EQUALS | operator::NOT_EQUALS, 2) => {
                return Ok(Node::Equal {
                    sides: pair(&mut args),
                    negated: *name == operator::NOT_EQUALS,
                });
            }
            ("or" | "orValue", 2) => {
                return Ok(Node::Otherwise {
                    sides: pair(&mut args),
                    unwrap: *name == "orValue",
                });
            }
            (operator::NOT_STRICTLY_FALSE, 1) => {
                return Ok(Node::NotStrictlyFalse(Box::new(args.remove(0))));
            }
            (operator::INDEX | operator::OPTIONAL_INDEX | operator::OPTIONAL_SELECT, 2) => {
                let [operand, index] = *pair(&mut args);
                if let (operator::OPTIONAL_SELECT, Node::Constant(Value::String(field))) =
                    (*name, &index)
                {
                    return Ok(Node::Select {
                        operand: Box::new(operand),
                        field: (**field).into(),
                        optional,
                    });
                }
                return Ok(Node::Index {
                    operand: Box::new(operand),
                    index: Box::new(index),
                    optional,
                });
            }
            (operator::IN, 2) if matches!(overloads.as_slice(), ["in_list"]) => {
                if let Some(set) = constant_set(&args[1]) {
                    if set.is_empty() {
                        return Ok(Node::Constant(Value::Bool(false)));
                    }
                    return Ok(Node::Member {
                        value: Box::new(args.remove(0)),
                        set: Arc::new(set),
                    });
                }
            }
            _ => {}
        }
        self.invocation(name, overloads, args)
    }

    fn invocation(
        &self,
        name: &'static str,
        fitting: &[&'static str],
        args: Vec<Node>,
    ) -> Result<Node, String> {
        let (_, all) = self
            .environment
            .functions()
            .find(name)
            .expect("the checker found it");
        let overloads: Vec<Overload> = all
            .iter()
            .filter(|o| fitting.contains(&o.id))
            .cloned()
            .collect();
        let pattern = match (name, args.get(1)) {
            ("matches" | "find" | "findAll", Some(Node::Constant(Value::String(source)))) => {
                Some(Arc::new(regex::compile(source)?))
            }
            _ => None,
        };
        if let (true, [Node::Constant(value)]) = (is_conversion(name), args.as_slice()) {
            let fits = overloads
                .iter()
                .find(|o| crate::overload::accepts(&o.params[0], value));
            let computed =
                fits.map(|o| (o.run)(&mut Meter::new(u64::MAX), std::slice::from_ref(value)));
            match computed {
                Some(Ok(value)) => return Ok(Node::Constant(value)),
                Some(Err(failure)) => return Err(failure.to_string()),
                None => {
                    return Err(crate::overload::no_such_overload(
                        name,
                        std::slice::from_ref(value),
                    )
                    .to_string());
                }
            }
        }
        Ok(Node::Call(Box::new(Invocation {
            name,
            overloads,
            args,
            pattern,
        })))
    }

    fn fold(&mut self, fold: &ast::Comprehension) -> Result<Node, String> {
        let range = self.node(&fold.range)?;
        let two = fold.var2.is_some();
        let outside = self.locals.len();
        let gather = match growth(fold) {
            Some(Growth {
                filter,
                args,
                is_map,
            }) => {
                // No identifier of the expression can name the accumulator, so it needs no slot.
                self.locals.push(fold.var.clone());
                self.locals.extend(fold.var2.clone());
                let filter = filter.map(|filter| self.node(filter)).transpose()?;
                let value = self.node(
                    args.last()
                        .expect("a growing list or map grows by something"),
                )?;
                if is_map {
                    Gather::Map {
                        filter,
                        key: args.len() == 2,
                        value,
                    }
                } else {
                    Gather::List { filter, value }
                }
            }
            None => {
                let init = self.node(&fold.init)?;
                self.locals.push(fold.accumulator.clone());
                self.locals.push(fold.var.clone());
                self.locals.extend(fold.var2.clone());
                let condition = self.node(&fold.condition)?;
                let step = self.node(&fold.step)?;
                self.locals.truncate(outside + 1);
                Gather::Reduce {
                    init,
                    condition,
                    step,
                    result: self.node(&fold.result)?,
                }
            }
        };
        self.locals.truncate(outside);
        Ok(Node::Comprehension(Box::new(Comprehension {
            range,
            two,
            gather,
        })))
    }
}

/// The appended value of a list or map comprehension.
struct Growth<'a> {
    filter: Option<&'a Expr>,
    /// The added value: a value, a key and a value, or a map.
    args: Vec<&'a Expr>,
    is_map: bool,
}

/// The comprehensions of `map`, `filter` and similar macros: `accumulator + [value]`, optionally
/// under a condition.
fn growth(fold: &ast::Comprehension) -> Option<Growth<'_>> {
    if fold.accumulator != ast::ACCUMULATOR
        || !matches!(fold.init.kind, Kind::List(_) | Kind::Map(_))
    {
        return None;
    }
    let (filter, step) = match &fold.step.kind {
        Kind::Call(Call { function, args, .. }) if function == operator::CONDITIONAL => {
            (Some(&args[0]), &args[1])
        }
        _ => (None, &fold.step),
    };
    let Kind::Call(Call { function, args, .. }) = &step.kind else {
        return None;
    };
    match function.as_str() {
        operator::ADD => match &args[1].kind {
            Kind::List(items) => Some(Growth {
                filter,
                args: vec![&items.first()?.value],
                is_map: false,
            }),
            _ => None,
        },
        operator::MAP_INSERT => Some(Growth {
            filter,
            args: args[1..].iter().collect(),
            is_map: true,
        }),
        _ => None,
    }
}

fn pair(args: &mut Vec<Node>) -> Box<[Node; 2]> {
    let second = args.pop().expect("two were counted");
    let first = args.pop().expect("two were counted");
    Box::new([first, second])
}

fn is_conversion(name: &str) -> bool {
    matches!(
        name,
        "bool"
            | "bytes"
            | "double"
            | "duration"
            | "dyn"
            | "int"
            | "string"
            | "timestamp"
            | "type"
            | "uint"
    )
}

fn constant(literal: &Literal) -> Value<'static> {
    match literal {
        Literal::Null => Value::Null,
        Literal::Bool(b) => Value::Bool(*b),
        Literal::Int(n) => Value::Int(*n),
        Literal::Uint(n) => Value::Uint(*n),
        Literal::Double(d) => Value::Double(*d),
        Literal::String(s) => Value::String(Text::Made(s.clone())),
        Literal::Bytes(b) => Value::Bytes(b.clone()),
    }
}

fn constant_list(items: &[(Node, bool)]) -> Option<Value<'static>> {
    let value = |(node, optional): &(Node, bool)| match node {
        Node::Constant(value) if !optional => Some(value.clone()),
        _ => None,
    };
    items
        .iter()
        .map(value)
        .collect::<Option<Vec<_>>>()
        .map(Value::list)
}

fn constant_map(entries: &[(Node, Node, bool)]) -> Option<Value<'static>> {
    let entry = |(key, value, optional): &(Node, Node, bool)| match (key, value) {
        (Node::Constant(key), Node::Constant(value)) if !optional => {
            Some((key.key()?, value.clone()))
        }
        _ => None,
    };
    entries
        .iter()
        .map(entry)
        .collect::<Option<_>>()
        .map(|entries| Value::Map(Map::Made(Arc::new(entries))))
}

/// The items of a constant list, if all of them can be keys.
fn constant_set(list: &Node) -> Option<BTreeSet<Key<'static>>> {
    let Node::Constant(Value::List(list)) = list else {
        return None;
    };
    let key = |value: Value<'static>| {
        value
            .key()
            .filter(|_| !matches!(value.type_of(), Type::Double))
    };
    (0..list.len())
        .map(|i| list.get(i).ok().and_then(key))
        .collect()
}
