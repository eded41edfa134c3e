//! Evaluates validation rules.
//! In: an object, and on update the old one. Out: violations; warnings about violations of the old
//! object.
//! Guarantees: a transition rule runs only where the old value is known; the cost of all rules
//! together is limited.

use std::{collections::BTreeMap, sync::Arc};

use bellerophon_apimachinery::field::{FieldError, Path, Verbatim};
use bellerophon_cel::{Evaluation, Program, Shape, Value as Cel, view};
use serde_json::Value;

use super::{
    compile::{Compiled, Compiler},
    shape::{SchemaPosition, declare},
};
use crate::{
    problem::{NOWHERE, shown},
    rule::Rule,
    schema::Schema,
    validate::{OldItems, is_same},
};

/// The cost limit of one evaluation.
const CALL_MAX: u64 = 1_000_000;
/// The cost limit of all rules of an object.
pub(crate) const RULE_BUDGET: i64 = 10_000_000;
/// The longest message that an expression may make, in bytes.
const MESSAGE_MAX: usize = 5 * 1024;
const OUT_OF_BUDGET: &str =
    "validation failed due to running out of cost budget, no further validation rules will be run";

/// The rules of a schema and of all schemas below it that have some.
#[derive(Debug)]
pub(crate) struct RuleTree {
    rules: Vec<(Rule, Compiled)>,
    /// The shape of the data; set wherever there are rules.
    shape: Option<Arc<Shape>>,
    /// The schema here, without what is below.
    type_name: String,
    keys: KeyedBy,
    items: Option<Box<RuleTree>>,
    properties: BTreeMap<String, RuleTree>,
    additional: Option<Box<RuleTree>>,
}

/// The schema that declares how the items of a list are identified.
#[derive(Debug)]
struct KeyedBy(Option<Schema>);

/// The values that decide whether a problem is an old one.
#[derive(Clone, Copy)]
pub(crate) struct Ratchet<'a> {
    /// This value, if the old one is known.
    current: Option<Pair<'a>>,
    /// The nearest value around it whose old one is known.
    around: Option<Pair<'a>>,
}

#[derive(Clone, Copy)]
struct Pair<'a> {
    new: &'a Value,
    old: &'a Value,
    schema: &'a Schema,
}

impl<'a> Ratchet<'a> {
    /// The object itself.
    pub(crate) fn root(new: &'a Value, old: Option<&'a Value>, schema: &'a Schema) -> Self {
        Self {
            current: old.map(|old| Pair { new, old, schema }),
            around: None,
        }
    }

    /// The values to compare for whether the value is unchanged.
    fn compared(&self) -> Option<Pair<'a>> {
        self.current.or(self.around)
    }

    /// The old items of a list by their keys.
    fn old_items(&self) -> Option<OldItems<'a>> {
        self.current
            .map(|pair| OldItems::of(Some(pair.old), pair.schema))
    }

    fn key(self, name: &str) -> Self {
        let Some(pair) = self.current else {
            return self;
        };
        if self.around.is_none() && matches!(name, "apiVersion" | "kind") {
            return Self {
                current: None,
                around: None,
            };
        }
        let below = || {
            Some(Pair {
                new: pair.new.get(name)?,
                old: pair.old.get(name)?,
                schema: pair.schema.field(name)?,
            })
        };
        Self {
            current: below(),
            around: self.current,
        }
    }

    fn index(self, at: usize, old_items: Option<&OldItems<'a>>) -> Self {
        let Some(pair) = self.current else {
            return self;
        };
        let below = || {
            let new = pair.new.get(at)?;
            Some(Pair {
                new,
                old: old_items?.find(new)?,
                schema: pair.schema.item()?,
            })
        };
        Self {
            current: below(),
            around: self.current,
        }
    }
}

impl RuleTree {
    /// Compiles the rules of a schema; none when it has none.
    pub(crate) fn of(schema: &Schema) -> Option<Self> {
        Self::at(schema, SchemaPosition::ResourceRoot)
    }

    fn at(schema: &Schema, position: SchemaPosition) -> Option<Self> {
        let boxed = |schema: &Schema| Self::at(schema, SchemaPosition::of(schema)).map(Box::new);
        let mut tree = Self {
            rules: Vec::new(),
            shape: None,
            type_name: schema.type_name.clone(),
            keys: KeyedBy(None),
            items: schema.item().and_then(boxed),
            properties: schema
                .properties
                .iter()
                .filter_map(|(name, property)| {
                    Some((
                        name.clone(),
                        Self::at(property, SchemaPosition::of(property))?,
                    ))
                })
                .collect(),
            additional: schema.additional().and_then(boxed),
        };
        if tree.items.is_some() && schema.list_type.as_deref() == Some("map") {
            tree.keys = KeyedBy(Some(Schema {
                list_type: schema.list_type.clone(),
                list_map_keys: schema.list_map_keys.clone(),
                ..Schema::default()
            }));
        }
        if !schema.rules.is_empty() {
            // Data that expressions cannot refer to was rejected with the definition.
            let compiler = Compiler::new(declare(schema, position).shape);
            tree.rules = schema
                .rules
                .iter()
                .map(|rule| (rule.clone(), compiler.compile(rule, schema)))
                .collect();
            tree.shape = Some(compiler.into_shape());
        }
        let empty = tree.rules.is_empty()
            && tree.items.is_none()
            && tree.properties.is_empty()
            && tree.additional.is_none();
        (!empty).then_some(tree)
    }

    /// Runs all rules on an object. What breaks one is added to `errors`; what broke it before as
    /// well is returned as warnings. Also returns what is left of the budget; below zero when it
    /// did not suffice.
    pub(crate) fn validate(
        &self,
        object: &Value,
        old: Option<&Value>,
        ratchet: Ratchet<'_>,
        budget: i64,
        errors: &mut Vec<FieldError>,
    ) -> (i64, Vec<String>) {
        let mut run = Run {
            budget,
            errors,
            warnings: Vec::new(),
            compared: None,
        };
        run.node(self, &Path::ROOT, object, old, ratchet);
        (run.budget, run.warnings)
    }
}

/// The evaluation of the rules of one object.
struct Run<'e> {
    /// The remaining budget; the evaluation ends below zero.
    budget: i64,
    errors: &'e mut Vec<FieldError>,
    warnings: Vec<String>,
    /// The new value that was last compared with its old one, and whether they are the same. The
    /// items of a list without keys share one comparison, that of the list.
    compared: Option<(*const Value, bool)>,
}

impl Run<'_> {
    fn node(
        &mut self,
        tree: &RuleTree,
        path: &Path<'_>,
        value: &Value,
        old: Option<&Value>,
        ratchet: Ratchet<'_>,
    ) {
        if value.is_null() {
            return;
        }
        self.rules(tree, path, value, old.filter(|old| !old.is_null()), ratchet);
        match value {
            _ if self.budget < 0 => {}
            Value::Array(list) => self.list(tree, path, list, old, ratchet),
            Value::Object(map) => self.map(tree, path, map, old, ratchet),
            _ => {}
        }
    }

    fn list(
        &mut self,
        tree: &RuleTree,
        path: &Path<'_>,
        list: &[Value],
        old: Option<&Value>,
        ratchet: Ratchet<'_>,
    ) {
        let Some(items) = &tree.items else { return };
        let keyed = tree.keys.0.as_ref();
        let old_items = keyed.map(|schema| OldItems::of(old, schema));
        let compared_items = ratchet.old_items();
        for (i, value) in list.iter().enumerate() {
            let before = old_items.as_ref().and_then(|old| old.find(value));
            let below = ratchet.index(i, compared_items.as_ref());
            self.node(items, &path.index(i), value, before, below);
            if self.budget < 0 {
                return;
            }
        }
    }

    fn map(
        &mut self,
        tree: &RuleTree,
        path: &Path<'_>,
        map: &serde_json::Map<String, Value>,
        old: Option<&Value>,
        ratchet: Ratchet<'_>,
    ) {
        for (name, value) in map {
            let before = old.and_then(|old| old.get(name));
            if let Some(additional) = &tree.additional {
                self.node(
                    additional,
                    &path.key(name),
                    value,
                    before,
                    ratchet.key(name),
                );
            }
            if let Some(property) = tree.properties.get(name).filter(|_| self.budget >= 0) {
                self.node(
                    property,
                    &path.child(name),
                    value,
                    before,
                    ratchet.key(name),
                );
            }
            if self.budget < 0 {
                return;
            }
        }
    }

    fn rules(
        &mut self,
        tree: &RuleTree,
        path: &Path<'_>,
        value: &Value,
        old: Option<&Value>,
        ratchet: Ratchet<'_>,
    ) {
        let Some(shape) = &tree.shape else { return };
        let validated = ValidatedValue { path, tree, value };
        if self.budget <= 0 {
            return self.stop(&validated, OUT_OF_BUDGET);
        }
        let now = view(value, shape).unwrap_or(Cel::Null);
        let before = old.and_then(|old| view(old, shape).ok());
        for (rule, compiled) in &tree.rules {
            if let Some(problem) = &compiled.error {
                self.errors
                    .push(validated.failed(&format!("rule compile error: {problem}")));
                continue;
            }
            let optional = rule.takes_optional_old_self();
            if compiled.uses_old_self() && old.is_none() && !optional {
                continue;
            }
            let before = match (&before, optional) {
                (Some(before), true) => Cel::some(before.clone()),
                (None, true) => Cel::Optional(None),
                (before, false) => before.clone().unwrap_or(Cel::Null),
            };
            self.rule(rule, compiled, &validated, &[now.clone(), before], ratchet);
            if self.budget < 0 {
                return;
            }
        }
    }

    /// Whether the value is the same as before.
    fn is_tolerated(&mut self, ratchet: Ratchet<'_>) -> bool {
        let Some(Pair { new, old, schema }) = ratchet.compared() else {
            return false;
        };
        let address = std::ptr::from_ref(new);
        match self.compared {
            Some((compared, same)) if compared == address => same,
            _ => {
                let same = is_same(new, old, schema);
                self.compared = Some((address, same));
                same
            }
        }
    }

    fn stop(&mut self, validated: &ValidatedValue<'_, '_>, why: &str) {
        self.errors.push(validated.failed(why));
        self.budget = -1;
    }

    /// Counts what an evaluation cost; false when it was more than is left.
    fn spend(&mut self, cost: u64) -> bool {
        match i64::try_from(cost).ok().filter(|cost| *cost <= self.budget) {
            Some(cost) => {
                self.budget -= cost;
                true
            }
            None => false,
        }
    }

    fn rule(
        &mut self,
        rule: &Rule,
        compiled: &Compiled,
        validated: &ValidatedValue<'_, '_>,
        variables: &[Cel<'_>; 2],
        ratchet: Ratchet<'_>,
    ) {
        let Some(program) = &compiled.program else {
            return;
        };
        let Evaluation { value, cost } = program.evaluate(variables, CALL_MAX);
        if !self.spend(cost) {
            return self.stop(validated, OUT_OF_BUDGET);
        }
        let title = rule.title();
        match value {
            Ok(Cel::Bool(true)) => {}
            Ok(_) => self.broken(rule, compiled, validated, variables, ratchet),
            Err(failure) if failure.is_limit() => {
                self.stop(
                    validated,
                    &format!("'{failure}': no further validation rules will be run due to call cost exceeds limit for rule: {title}"),
                );
            }
            Err(failure) => {
                let text = failure.to_string();
                let why = if text.starts_with("no such overload") {
                    format!(
                        "'{text}': call arguments did not match a supported operator, function or macro signature for rule: {title}"
                    )
                } else {
                    format!("{text} evaluating rule: {title}")
                };
                self.errors.push(validated.failed(&why));
            }
        }
    }

    /// Reports a violation, or a warning if the value is unchanged.
    fn broken(
        &mut self,
        rule: &Rule,
        compiled: &Compiled,
        validated: &ValidatedValue<'_, '_>,
        variables: &[Cel<'_>; 2],
        ratchet: Ratchet<'_>,
    ) {
        let at = validated.at(compiled.field_path.as_deref());
        let error = match compiled
            .message
            .as_ref()
            .map(|program| self.message(program, &rule.message_expression, variables))
        {
            Some(Err(why)) => {
                self.budget = -1;
                FieldError::invalid(at, validated.tree.type_name.as_str(), &why)
            }
            Some(Ok(Some(message))) => validated.broken(at, rule, &message),
            Some(Ok(None)) | None => validated.broken(at, rule, &rule.complaint()),
        };
        if !compiled.uses_old_self() && self.is_tolerated(ratchet) {
            self.warnings.push(error.to_string());
        } else {
            self.errors.push(error);
        }
    }

    /// The message of a message expression; `None` when it has no valid result, and the message of
    /// the rule is used.
    ///
    /// # Errors
    /// The cost limit of the rules of an object is exceeded.
    fn message(
        &mut self,
        program: &Program,
        source: &str,
        variables: &[Cel<'_>; 2],
    ) -> Result<Option<String>, String> {
        let Evaluation { value, cost } = program.evaluate(variables, CALL_MAX);
        if !self.spend(cost) {
            return Err(
                "messageExpression evaluation failed due to running out of cost budget, no further validation rules will be run".into()
            );
        }
        match value {
            Ok(Cel::String(text)) => {
                let text = text.trim();
                let fits = !text.is_empty() && text.len() <= MESSAGE_MAX && !text.contains('\n');
                Ok(fits.then(|| text.to_owned()))
            }
            Err(failure) if failure.is_limit() => Err(format!(
                "no further validation rules will be run due to call cost exceeds limit for messageExpression: {source:?}"
            )),
            _ => Ok(None),
        }
    }
}

/// A value that rules are run on, for errors that name it.
struct ValidatedValue<'p, 'v> {
    path: &'p Path<'p>,
    tree: &'v RuleTree,
    value: &'v Value,
}

impl ValidatedValue<'_, '_> {
    /// The path, or the one below it that the rule names.
    fn at(&self, below: Option<&str>) -> String {
        match below.filter(|below| !below.is_empty()) {
            Some(below) => self.path.child(below).to_string(),
            None if self.path.is_root() => NOWHERE.to_owned(),
            None => self.path.to_string(),
        }
    }

    /// A rule could not be evaluated.
    fn failed(&self, why: &str) -> FieldError {
        FieldError::invalid(self.at(None), self.tree.type_name.as_str(), why)
    }

    /// A violation. Objects and lists are too large to be printed.
    fn broken(&self, at: String, rule: &Rule, detail: &str) -> FieldError {
        let large = matches!(self.tree.type_name.as_str(), "object" | "array");
        let value = shown(self.value);
        match rule.reason.as_deref() {
            Some("FieldValueForbidden") => FieldError::forbidden(at, detail),
            Some("FieldValueRequired") => FieldError::required(at, detail),
            Some("FieldValueDuplicate") if large => FieldError::duplicate_unshown(at),
            Some("FieldValueDuplicate") => FieldError::duplicate(at, Verbatim(&value)),
            _ if large => FieldError::invalid_unshown(at, detail),
            _ => FieldError::invalid(at, Verbatim(&value), detail),
        }
    }
}
