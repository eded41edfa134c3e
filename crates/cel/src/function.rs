//! Functions that expressions may call.
//! In: names, signatures and Rust functions. Out: what the checker, the cost estimator and the
//! evaluator look up.
//! Guarantees: an overload is found by its argument types alone, so no two of one function fit the
//! same arguments of known type.

use std::collections::HashMap;

use crate::{
    cost_model::CostModel,
    eval::{Failure, Meter},
    types::Type,
    value::Value,
};

/// Implements a call. Arguments have the types of the overload; the target is first.
pub type Run = for<'a> fn(&mut Meter, &[Value<'a>]) -> Result<Value<'a>, Failure>;

/// One signature of a function.
#[derive(Clone, Debug)]
pub struct Overload {
    /// The overload id of cost rules; unique among all overloads.
    pub id: &'static str,
    /// Whether it is called as `target.function(…)`.
    pub member: bool,
    /// The types of its arguments, the target first.
    pub params: Vec<Type>,
    /// The type of its result.
    pub result: Type,
    /// The cost model.
    pub cost_model: CostModel,
    /// The implementation.
    pub run: Run,
}

/// Functions by name.
#[derive(Clone, Debug, Default)]
pub struct Functions {
    by_name: HashMap<&'static str, Vec<Overload>>,
}

impl Functions {
    /// Declares `name(params…) -> result`.
    pub fn global(
        &mut self,
        name: &'static str,
        id: &'static str,
        params: &[Type],
        result: Type,
        cost_model: CostModel,
        run: Run,
    ) {
        self.declare(
            name,
            Overload {
                id,
                member: false,
                params: params.to_vec(),
                result,
                cost_model,
                run,
            },
        );
    }

    /// Declares `params[0].name(params[1]…) -> result`.
    pub fn member(
        &mut self,
        name: &'static str,
        id: &'static str,
        params: &[Type],
        result: Type,
        cost_model: CostModel,
        run: Run,
    ) {
        self.declare(
            name,
            Overload {
                id,
                member: true,
                params: params.to_vec(),
                result,
                cost_model,
                run,
            },
        );
    }

    fn declare(&mut self, name: &'static str, overload: Overload) {
        self.by_name.entry(name).or_default().push(overload);
    }

    pub(crate) fn find(&self, name: &str) -> Option<(&'static str, &[Overload])> {
        self.by_name
            .get_key_value(name)
            .map(|(name, overloads)| (*name, overloads.as_slice()))
    }
}
