//! Unification: whether a value of one type is assignable to another.
//! In: two types and the bindings of type parameters so far. Out: whether they unify, and the new
//! bindings.
//! Guarantees: a failed attempt changes nothing; no parameter is bound to a type that contains it.

use std::{collections::HashMap, sync::Arc};

use crate::types::Type;

/// The bindings of type parameters.
#[derive(Debug, Default)]
pub(crate) struct Substitutions {
    bindings: HashMap<Arc<str>, Type>,
    /// The bindings that the current attempt has changed, with their previous values.
    changes: Vec<(Arc<str>, Option<Type>)>,
}

impl Substitutions {
    fn find(&self, t: &Type) -> Option<&Type> {
        match t {
            Type::Param(name) => self.bindings.get(name),
            _ => None,
        }
    }

    fn add(&mut self, param: &Type, bound: Type) {
        if let Type::Param(name) = param {
            let before = self.bindings.insert(name.clone(), bound);
            self.changes.push((name.clone(), before));
        }
    }

    /// Whether `from` is assignable to `to`.
    pub(crate) fn assign(&mut self, from: &Type, to: &Type) -> bool {
        self.assign_all(std::slice::from_ref(from), std::slice::from_ref(to))
    }

    /// Whether each type of `from` is assignable to that of `to` at the same index.
    pub(crate) fn assign_all(&mut self, from: &[Type], to: &[Type]) -> bool {
        self.changes.clear();
        let fits = self.lists(from, to);
        if !fits {
            for (name, before) in std::mem::take(&mut self.changes).into_iter().rev() {
                match before {
                    Some(before) => self.bindings.insert(name, before),
                    None => self.bindings.remove(&name),
                };
            }
        }
        fits
    }

    fn lists(&mut self, from: &[Type], to: &[Type]) -> bool {
        from.len() == to.len() && from.iter().zip(to).all(|(a, b)| self.fits(a, b))
    }

    fn fits(&mut self, a: &Type, b: &Type) -> bool {
        if matches!(b, Type::Param(_)) {
            match self.bind(a, b) {
                Binding::Valid => return true,
                Binding::Taken => return false,
                Binding::Circular => {}
            }
        }
        if matches!(a, Type::Param(_)) {
            return matches!(self.bind(b, a), Binding::Valid);
        }
        if a.is_dyn_or_error() || b.is_dyn_or_error() {
            return true;
        }
        match (a, b) {
            (Type::Null, other) | (other, Type::Null) => {
                matches!(
                    other,
                    Type::Null
                        | Type::Opaque(..)
                        | Type::Object(_)
                        | Type::Duration
                        | Type::Timestamp
                )
            }
            (Type::Type(_), Type::Type(_)) => true,
            (Type::List(a), Type::List(b)) => self.fits(a, b),
            (Type::Map(a), Type::Map(b)) => self.fits(&a.0, &b.0) && self.fits(&a.1, &b.1),
            (Type::Opaque(a, a_params), Type::Opaque(b, b_params)) => {
                a == b && self.lists(a_params, b_params)
            }
            _ => a == b,
        }
    }

    /// Binds `param` to `t`, if possible.
    fn bind(&mut self, t: &Type, param: &Type) -> Binding {
        if t == param {
            return Binding::Valid;
        }
        if let Some(before) = self.find(param).cloned() {
            if *t == before {
                return Binding::Valid;
            }
            if !self.fits(t, &before) {
                return Binding::Taken;
            }
            let general = more_general(t, &before).clone();
            if self.is_absent(param, &general) {
                self.add(param, general);
            }
            return Binding::Valid;
        }
        if self.is_absent(param, t) {
            self.add(param, t.clone());
            return Binding::Valid;
        }
        Binding::Circular
    }

    /// Whether `param` does not occur within `t`.
    fn is_absent(&self, param: &Type, t: &Type) -> bool {
        if param == t {
            return false;
        }
        match t {
            Type::Param(_) => self.find(t).is_none_or(|t| self.is_absent(param, t)),
            Type::List(item) => self.is_absent(param, item),
            Type::Map(entry) => self.is_absent(param, &entry.0) && self.is_absent(param, &entry.1),
            Type::Type(Some(of)) => self.is_absent(param, of),
            Type::Opaque(_, params) => params.iter().all(|p| self.is_absent(param, p)),
            _ => true,
        }
    }

    /// `t` with parameters replaced by their bindings; the free ones by `dyn` according to `free`.
    pub(crate) fn apply(&self, t: &Type, free: Free) -> Type {
        if let Some(t) = self.find(t) {
            return self.apply(t, free);
        }
        match t {
            Type::Param(_) if free == Free::BecomeDyn => Type::Dyn,
            Type::List(item) => Type::list(self.apply(item, free)),
            Type::Map(entry) => Type::map(self.apply(&entry.0, free), self.apply(&entry.1, free)),
            Type::Type(Some(of)) => Type::Type(Some(Arc::new(self.apply(of, free)))),
            Type::Opaque(name, params) => Type::Opaque(
                name.clone(),
                params.iter().map(|p| self.apply(p, free)).collect(),
            ),
            _ => t.clone(),
        }
    }
}

/// The replacement of unbound parameters.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Free {
    Stay,
    BecomeDyn,
}

enum Binding {
    Valid,
    /// The parameter is already bound to another type.
    Taken,
    /// The type contains the parameter.
    Circular,
}

/// The more general of two types that unify.
pub(crate) fn more_general<'a>(a: &'a Type, b: &'a Type) -> &'a Type {
    if is_as_general(a, b) { a } else { b }
}

fn is_as_general(a: &Type, b: &Type) -> bool {
    if matches!(a, Type::Dyn | Type::Param(_)) {
        return true;
    }
    match (a, b) {
        (_, Type::Dyn | Type::Param(_)) => false,
        (Type::List(a), Type::List(b)) => is_as_general(a, b),
        (Type::Map(a), Type::Map(b)) => is_as_general(&a.0, &b.0) && is_as_general(&a.1, &b.1),
        (Type::Type(_), Type::Type(_)) => true,
        (Type::Opaque(a, a_params), Type::Opaque(b, b_params)) => {
            a == b
                && a_params.len() == b_params.len()
                && a_params
                    .iter()
                    .zip(b_params.iter())
                    .all(|(a, b)| is_as_general(a, b))
        }
        _ => a == b,
    }
}
