//! Comprehensions.
//! In: a range and the step of each iteration. Out: a value, a list or a map.
//! Guarantees: every iteration is charged before the next begins; a list or map grows in place.

use std::{collections::BTreeMap, sync::Arc};

use super::{
    Outcome, Run,
    select::{cel_go_type, no_such_key, shown},
};
use crate::{
    cost_model,
    eval::Failure,
    plan::{Comprehension, Gather, Node},
    value::{Key, List, Map, Value},
};

impl<'a> Run<'_, 'a> {
    pub(super) fn fold(&mut self, fold: &Comprehension) -> Outcome<'a> {
        let range = match self.eval(&fold.range)? {
            Value::List(list) => Range::List(list),
            Value::Map(map) => {
                self.meter.allocate_values(map.len())?;
                Range::Map(map.keys(), map)
            }
            other if fold.two => {
                return Err(Failure::new(format!(
                    "unsupported comprehension range type: {}",
                    cel_go_type(&other)
                )));
            }
            other => {
                return Err(Failure::new(format!(
                    "got '{}', expected iterable type",
                    cel_go_type(&other)
                )));
            }
        };
        let outside = self.locals.len();
        let result = self.comprehension(fold, &range);
        self.locals.truncate(outside);
        result
    }

    fn comprehension(&mut self, fold: &Comprehension, range: &Range<'a>) -> Outcome<'a> {
        match &fold.gather {
            Gather::Reduce {
                init,
                condition,
                step,
                result,
            } => {
                let init = self.eval(init);
                let at = self.locals.len();
                self.locals.push(init);
                for iteration in 0..range.len() {
                    range.bind(iteration, fold.two, &mut self.locals);
                    let is_continued = matches!(self.eval(condition)?, Value::Bool(true));
                    let value = if is_continued {
                        Some(self.eval(step))
                    } else {
                        None
                    };
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
                // The list around the value, the accumulator and the addition; a constant list is
                // free.
                let around = if matches!(value, Node::Constant(_)) {
                    2
                } else {
                    cost_model::LIST + 2
                };
                for iteration in 0..range.len() {
                    let value = self.iteration(
                        fold.two,
                        range,
                        iteration,
                        filter.as_ref(),
                        (value, around),
                    );
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
                for iteration in 0..range.len() {
                    let value = self.iteration(
                        fold.two,
                        range,
                        iteration,
                        filter.as_ref(),
                        (value, around),
                    );
                    grow(&mut made, value, |made, value| {
                        let entries = if *key {
                            vec![(range.key(iteration), value)]
                        } else {
                            entries(value)?
                        };
                        self.meter.allocate_values(2 * entries.len())?;
                        entries
                            .into_iter()
                            .try_for_each(|(key, value)| insert(made, &key, value))
                    })?;
                }
                self.meter.charge(1)?;
                made.map(|made| Value::Map(Map::Made(Arc::new(made))))
            }
        }
    }

    /// One iteration of a list or map that grows: the value to add, unless the filter is false.
    fn iteration(
        &mut self,
        two: bool,
        range: &Range<'a>,
        iteration: usize,
        filter: Option<&Node>,
        (value, around): (&Node, u64),
    ) -> Result<Option<Value<'a>>, Failure> {
        let outside = self.locals.len();
        range.bind(iteration, two, &mut self.locals);
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

/// Appends to a list or map. After a failure the iterations continue, as in Kubernetes, without
/// results.
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

/// The range of a comprehension.
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

    /// The first of two variables.
    fn key(&self, iteration: usize) -> Value<'a> {
        match self {
            Self::List(_) => Value::Int(i64::try_from(iteration).unwrap_or(i64::MAX)),
            Self::Map(keys, _) => keys[iteration].clone(),
        }
    }

    fn bind(&self, iteration: usize, two: bool, locals: &mut Vec<Outcome<'a>>) {
        let key = self.key(iteration);
        match self {
            Self::List(list) if two => locals.extend([Ok(key), list.get(iteration)]),
            Self::List(list) => locals.push(list.get(iteration)),
            Self::Map(_, map) if two => {
                let value = map
                    .find(&key)
                    .and_then(|value| value.ok_or_else(|| no_such_key(&key)));
                locals.extend([Ok(key), value]);
            }
            Self::Map(..) => locals.push(Ok(key)),
        }
    }
}

fn entries<'a>(value: Value<'a>) -> Result<Vec<(Value<'a>, Value<'a>)>, Failure> {
    let Value::Map(map) = value else {
        return Err(Failure::no_such_overload());
    };
    let with_value = |key: Value<'a>| Ok(map.find(&key)?.map(|value| (key, value)));
    map.keys()
        .into_iter()
        .map(with_value)
        .filter_map(Result::transpose)
        .collect()
}

fn insert<'a>(
    made: &mut BTreeMap<Key<'a>, Value<'a>>,
    key: &Value<'a>,
    value: Value<'a>,
) -> Result<(), Failure> {
    let known = key
        .key()
        .ok_or_else(|| Failure::new(format!("unsupported key type: {}", key.type_of().name())))?;
    if made.contains_key(&known) {
        return Err(Failure::new(format!(
            "insert failed: key {} already exists",
            shown(key)
        )));
    }
    made.insert(known, value);
    Ok(())
}
