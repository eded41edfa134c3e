//! Validates the rules of a definition.
//! In: a schema. Out: the errors of its rules, in the order and with the messages of Kubernetes.
//! Guarantees: rules are compiled only where the schema below them is valid; children are validated
//! before their parents.

use bellerophon_apimachinery::field::{FieldError, Path, Verbatim};

use super::{
    compile::{Compiled, Compiler},
    cost::{EXPRESSION_MAX, Times, Total, excess},
    field_path,
    shape::{Declared, SchemaPosition, declare},
};
use crate::rule::Rule;
use crate::schema::{Additional, Items, Schema};

const RULES: &str = "x-kubernetes-validations";
const REASONS: [&str; 4] = [
    "FieldValueDuplicate",
    "FieldValueForbidden",
    "FieldValueInvalid",
    "FieldValueRequired",
];

/// Errors that are not reported, because the old definition had them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Suppress {
    Nothing,
    /// That single rules are too expensive. The limit of their sum still applies.
    CostOfRules,
}

/// The errors of the parts of the rules at a schema, their expressions aside.
pub(crate) fn validate_surface(schema: &Schema, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let rules = path.child(RULES);
    for (i, rule) in schema.rules.iter().enumerate() {
        validate_texts(rule, &rules.index(i), errors);
        if !rule.field_path.is_empty() {
            validate_field_path(rule, schema, &rules.index(i).child("fieldPath"), errors);
        }
    }
}

fn validate_texts(rule: &Rule, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let text = rule.rule.trim();
    let message = rule.message.trim();
    let at = path.child("message");
    if text.is_empty() {
        errors.push(FieldError::required(
            path.child("rule"),
            "rule is not specified",
        ));
    } else if !rule.message.is_empty() && message.is_empty() {
        errors.push(FieldError::invalid(
            at,
            &rule.message,
            "must be non-empty if specified",
        ));
    } else if message.contains('\n') {
        errors.push(FieldError::invalid(
            at,
            &rule.message,
            "must not contain line breaks",
        ));
    } else if text.contains('\n') && message.is_empty() {
        errors.push(FieldError::required(
            at,
            "message must be specified if rule contains line breaks",
        ));
    }
    if !rule.message_expression.is_empty() && rule.message_expression.trim().is_empty() {
        errors.push(FieldError::required(
            path.child("messageExpression"),
            "messageExpression must be non-empty if specified",
        ));
    }
    if let Some(reason) = rule
        .reason
        .as_ref()
        .filter(|reason| !REASONS.contains(&reason.as_str()))
    {
        errors.push(FieldError::not_supported(
            path.child("reason"),
            reason,
            &REASONS,
        ));
    }
}

fn validate_field_path(
    rule: &Rule,
    schema: &Schema,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let mut refuse = |detail| errors.push(FieldError::invalid(path, &rule.field_path, detail));
    if rule.field_path.trim().is_empty() {
        refuse("must be non-empty if specified");
    }
    if rule.field_path.contains('\n') {
        refuse("must not contain line breaks");
    }
    if field_path::resolve(&rule.field_path, schema).is_none() {
        refuse("must be a valid path");
    }
}

/// The errors of the expressions of a valid schema: of each rule, and of their sum. `known` is the
/// errors of its keywords; rules of schemas with such errors are skipped.
pub(crate) fn validate(
    schema: &Schema,
    path: &Path<'_>,
    known: &[FieldError],
    suppress: Suppress,
) -> (Vec<FieldError>, Vec<FieldError>) {
    let mut validator = RuleValidator {
        known,
        suppress,
        errors: Vec::new(),
        total: Total::default(),
    };
    validator.node(
        schema,
        path,
        CelSchemaContext {
            times: Times::AtMost(1),
            uncorrelatable: None,
            position: SchemaPosition::ResourceRoot,
        },
    );
    let mut together = Vec::new();
    if let Some((problem, most)) = validator.total.excess() {
        let contributed = "contributed to estimated rule cost total exceeding cost limit for entire OpenAPIv3 schema";
        together.extend(
            most.into_iter()
                .map(|path| FieldError::forbidden(path, contributed)),
        );
        together.push(FieldError::forbidden(path, &problem));
    }
    (validator.errors, together)
}

/// The context that validation rules of a schema inherit from its ancestors. Mirrors upstream's
/// CELSchemaContext.
#[derive(Clone, Copy)]
struct CelSchemaContext<'a> {
    times: Times,
    /// The innermost list around it whose items have no key.
    uncorrelatable: Option<&'a str>,
    position: SchemaPosition,
}

struct RuleValidator<'a> {
    known: &'a [FieldError],
    suppress: Suppress,
    errors: Vec<FieldError>,
    total: Total,
}

impl RuleValidator<'_> {
    fn node(&mut self, schema: &Schema, path: &Path<'_>, context: CelSchemaContext<'_>) {
        let times = context.times.by(elements(schema));
        if let Some(Additional::Schema(additional)) = &schema.additional_properties {
            self.node(
                additional,
                &path.child("additionalProperties"),
                CelSchemaContext {
                    times,
                    position: SchemaPosition::of(additional),
                    ..context
                },
            );
        }
        let properties = path.child("properties");
        for (name, property) in &schema.properties {
            self.node(
                property,
                &properties.key(name),
                CelSchemaContext {
                    times,
                    position: SchemaPosition::of(property),
                    ..context
                },
            );
        }
        if let Some(Items::One(item)) = &schema.items {
            let here = path.to_string();
            let uncorrelatable = if schema.list_type.as_deref() == Some("map") {
                context.uncorrelatable
            } else {
                Some(here.as_str())
            };
            self.node(
                item,
                &path.child("items"),
                CelSchemaContext {
                    times,
                    uncorrelatable,
                    position: SchemaPosition::of(item),
                },
            );
        }
        if !schema.rules.is_empty() && !self.is_unsound(path) {
            self.rules(schema, path, context);
        }
    }

    /// Whether the schema at a path or below has errors.
    fn is_unsound(&self, path: &Path<'_>) -> bool {
        let path = path.to_string();
        self.known
            .iter()
            .any(|error| error.field.starts_with(&path))
    }

    fn rules(&mut self, schema: &Schema, path: &Path<'_>, context: CelSchemaContext<'_>) {
        let rules = path.child(RULES);
        let Declared { shape, bytes_min } = declare(schema, context.position);
        if !shape.is_visible() {
            let detail = "internal error: failed to construct type information for x-kubernetes-validations rules: unable to convert structural schema to CEL declarations";
            return self.errors.push(FieldError::internal(rules, detail));
        }
        let compiler = Compiler::new(shape);
        for (i, rule) in schema.rules.iter().enumerate() {
            let compiled = compiler.compile(rule, schema);
            self.rule(rule, &compiled, &rules.index(i), context, bytes_min);
        }
    }

    fn rule(
        &mut self,
        rule: &Rule,
        compiled: &Compiled,
        path: &Path<'_>,
        context: CelSchemaContext<'_>,
        bytes_min: u64,
    ) {
        let at = path.child("rule");
        let cost = context.times.cost_of(compiled.program.as_ref(), bytes_min);
        self.cost("estimated rule cost", &at, cost);
        if let Some(problem) = &compiled.error {
            self.errors
                .push(FieldError::invalid(at, Verbatim(&rule.in_go()), problem));
        }
        let message = path.child("messageExpression");
        if let Some(problem) = &compiled.message_error {
            self.errors.push(FieldError::invalid(
                message,
                Verbatim(&rule.in_go()),
                problem,
            ));
        } else if let Some(program) = &compiled.message {
            self.cost(
                "estimated messageExpression cost",
                &message,
                program.cost().max,
            );
        }
        if compiled.uses_old_self() {
            if let Some(list) = context.uncorrelatable {
                let detail = format!(
                    "oldSelf cannot be used on the uncorrelatable portion of the schema within {list}"
                );
                self.errors
                    .push(FieldError::invalid(at, &rule.rule, &detail));
            }
        } else if let Some(optional) = rule.optional_old_self {
            let detail = "may not be set if oldSelf is not used in rule";
            self.errors.push(FieldError::invalid(
                path.child("optionalOldSelf"),
                optional,
                detail,
            ));
        }
    }

    fn cost(&mut self, what: &str, path: &Path<'_>, cost: u64) {
        if let Some(problem) =
            excess(what, cost, EXPRESSION_MAX).filter(|_| self.suppress == Suppress::Nothing)
        {
            self.errors.push(FieldError::forbidden(path, &problem));
        }
        self.total.add(path.to_string(), cost);
    }
}

/// How many of each child the data of a schema may hold.
fn elements(schema: &Schema) -> Times {
    let bound = |max: Option<i64>| {
        max.map_or(Times::Unbounded, |max| {
            Times::AtMost(u64::try_from(max).unwrap_or(0))
        })
    };
    match schema.type_name.as_str() {
        "object" if schema.additional_properties.is_some() => bound(schema.max_properties),
        "array" => bound(schema.max_items),
        _ => Times::AtMost(1),
    }
}
