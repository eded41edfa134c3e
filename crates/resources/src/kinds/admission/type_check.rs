//! Type checking of ValidatingAdmissionPolicies: the warnings in `status.typeChecking`.
//! In: the rules and expressions of a policy, and the shapes of the kinds that it matches. Out: a
//! warning for each expression that does not fit one of them.
//! Mirrors `apiserver/pkg/admission/plugin/policy/validating/typechecking.go`.

use std::{fmt, sync::Arc};

use bellerophon_cel::{CompileError, Environment, Shape, Type};

use super::{
    authorizer,
    expressions::{BASE, VARIABLES},
};

/// The kinds of one rule that are checked.
pub const KINDS_MAX: usize = 10;

/// A kind in one version of its group.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupVersionKind {
    /// Empty for the core group.
    pub group: String,
    /// The version.
    pub version: String,
    /// The kind.
    pub kind: String,
}

impl fmt::Display for GroupVersionKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}, Kind={}", self.group, self.version, self.kind)
    }
}

/// A resource in one version of its group, as rules name it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct GroupVersionResource {
    /// Empty for the core group.
    pub group: String,
    /// The version.
    pub version: String,
    /// The plural name.
    pub resource: String,
}

/// The resources of a rule whose kinds are checked, in their order. A rule with `*` among its
/// groups or versions has none; resources with `*` and subresources are left out.
#[must_use]
pub fn resources_to_check(
    groups: &[String],
    versions: &[String],
    resources: &[String],
) -> Vec<GroupVersionResource> {
    let has_wildcard = |names: &[String]| names.iter().any(|name| name.contains('*'));
    if has_wildcard(groups) || has_wildcard(versions) {
        return Vec::new();
    }
    let mut found = Vec::new();
    for group in groups {
        for version in versions {
            for resource in resources.iter().filter(|name| !name.contains(['*', '/'])) {
                found.push(GroupVersionResource {
                    group: group.clone(),
                    version: version.clone(),
                    resource: resource.clone(),
                });
            }
        }
    }
    found.sort();
    found
}

/// The type of `params`.
#[derive(Clone, Debug)]
pub enum Params {
    /// The policy has no parameters.
    None,
    /// Parameters of a kind without a schema.
    Unknown,
    /// Parameters of this shape.
    Known(Shape),
}

/// The expressions of a policy.
#[derive(Clone, Debug, Default)]
pub struct PolicyExpressions<'a> {
    /// Names and expressions, in their order.
    pub variables: Vec<(&'a str, &'a str)>,
    /// `expression` and `messageExpression` of each validation; the latter may be empty.
    pub validations: Vec<(&'a str, &'a str)>,
}

/// A warning of `status.typeChecking`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpressionWarning {
    /// The expression: `spec.validations[0].expression`.
    pub field_ref: String,
    /// The type errors by kind.
    pub warning: String,
}

/// Checks the expressions of a policy for each of the kinds, which are sorted.
#[must_use]
pub fn type_check(
    policy: &PolicyExpressions<'_>,
    kinds: &[(GroupVersionKind, Shape)],
    params: Params,
) -> Vec<ExpressionWarning> {
    let params = match params {
        Params::Known(shape) => Params::Known(shape.named("Params0")),
        params => params,
    };
    let environments: Vec<_> = kinds
        .iter()
        .map(|(kind, shape)| {
            // Upstream adds a number to the kind as well, so that no expression names the type.
            let shape = shape.clone().named(&format!("{}0", kind.kind));
            (kind, environment(policy, shape, &params))
        })
        .collect();
    let check = |text: &str| {
        let messages = environments.iter().filter_map(|(kind, environment)| {
            match environment.type_check(text) {
                Err(CompileError::Issues(issues)) => Some(format!("{kind}: {issues}\n")),
                Err(CompileError::Plan(why)) => {
                    Some(format!("{kind}: type checking error: {why}\n"))
                }
                Ok(_) => None,
            }
        });
        messages.collect::<Vec<_>>().join("\n")
    };
    let mut warnings = Vec::new();
    for (place, (expression, message)) in policy.validations.iter().enumerate() {
        let mut add = |field: &str, warning: String| {
            if !warning.is_empty() {
                warnings.push(ExpressionWarning {
                    field_ref: format!("spec.validations[{place}].{field}"),
                    warning,
                });
            }
        };
        add("expression", check(expression));
        if !message.is_empty() {
            add("messageExpression", check(message));
        }
    }
    warnings
}

/// The environment of the expressions of a policy while it is checked for one kind. Mirrors
/// `buildEnvSet`: `authorizer` is declared for all, and `authorizer.requestResource` for none.
fn environment(policy: &PolicyExpressions<'_>, object: Shape, params: &Params) -> Environment {
    let mut environment = BASE
        .clone()
        .with_variable("object", object.type_of())
        .with_variable("oldObject", object.type_of())
        .with_data(Arc::new(object))
        .with_variable("authorizer", authorizer::authorizer_type());
    match params {
        Params::None => {}
        Params::Unknown => environment = environment.with_variable("params", Type::Dyn),
        Params::Known(shape) => {
            environment = environment
                .with_variable("params", shape.type_of())
                .with_data(Arc::new(shape.clone()));
        }
    }
    environment = environment.with_variable("variables", Type::object(VARIABLES));
    let mut declared: Vec<(String, Type)> = Vec::new();
    for (name, text) in &policy.variables {
        environment = environment.with_object(VARIABLES, declared.iter().cloned());
        let ty = match environment.type_check(text) {
            Ok(ty) => variable_type(&ty),
            Err(_) => Type::Dyn,
        };
        declared.retain(|(other, _)| other != name);
        declared.push(((*name).to_owned(), ty));
    }
    environment.with_object(VARIABLES, declared)
}

/// The type that a variable has for other expressions. Mirrors `convertCelTypeToDeclType`, which
/// keeps plain types, lists and maps.
fn variable_type(ty: &Type) -> Type {
    match ty {
        Type::List(item) => Type::list(variable_type(item)),
        Type::Map(entry) => Type::map(variable_type(&entry.0), variable_type(&entry.1)),
        Type::Object(_) | Type::Opaque(..) | Type::Type(_) | Type::Param(_) | Type::Error => {
            Type::Dyn
        }
        plain => plain.clone(),
    }
}

#[cfg(test)]
mod tests {
    use bellerophon_apimachinery::json_ext::JsonExt as _;
    use serde_json::{Value, json};

    use super::*;
    use crate::kinds::admission::kind_shape;

    fn texts(value: &Value, field: &str) -> Vec<String> {
        value.texts(field).map(str::to_owned).collect()
    }

    fn kind_of(resources: &[Value], wanted: &GroupVersionResource) -> Option<GroupVersionKind> {
        let found = resources.iter().find(|resource| {
            resource.text("group") == wanted.group
                && resource.text("version") == wanted.version
                && resource.text("resource") == wanted.resource
        })?;
        Some(GroupVersionKind {
            group: wanted.group.clone(),
            version: wanted.version.clone(),
            kind: found.text("kind").to_owned(),
        })
    }

    fn checked(recorded: &Value, policy: &Value) -> Vec<Value> {
        let document = recorded.field("document");
        let mut kinds: Vec<GroupVersionKind> = Vec::new();
        for rule in policy.list("rules") {
            let resources = resources_to_check(
                &texts(rule, "apiGroups"),
                &texts(rule, "apiVersions"),
                &texts(rule, "resources"),
            );
            let known = recorded.list("resources");
            kinds.extend(resources.iter().filter_map(|found| kind_of(known, found)));
        }
        kinds.sort();
        let shapes = kinds.into_iter().filter_map(|kind| {
            let shape = kind_shape(document, &kind)?;
            Some((kind, shape))
        });
        let params = policy.get_set("paramKind").map(|found| {
            let version = found.text("apiVersion");
            let (group, version) = version.split_once('/').unwrap_or(("", version));
            let kind = GroupVersionKind {
                group: group.to_owned(),
                version: version.to_owned(),
                kind: found.text("kind").to_owned(),
            };
            kind_shape(document, &kind).map_or(Params::Unknown, Params::Known)
        });
        let pairs = |list: &'static str, first: &'static str, second: &'static str| {
            let items = policy.list(list).iter();
            items.map(move |item| (item.text(first), item.text(second)))
        };
        let expressions = PolicyExpressions {
            variables: pairs("variables", "name", "expression").collect(),
            validations: pairs("validations", "expression", "messageExpression").collect(),
        };
        let shapes: Vec<_> = shapes.collect();
        let found = type_check(&expressions, &shapes, params.unwrap_or(Params::None));
        found
            .iter()
            .map(|found| json!({"fieldRef": found.field_ref, "warning": found.warning}))
            .collect()
    }

    #[test]
    fn warnings_are_those_of_upstream() {
        let recorded: Value =
            serde_json::from_str(include_str!("type_checks.json")).expect("the file is JSON");
        for policy in recorded.list("policies") {
            let found = checked(&recorded, policy);
            let expected = policy.list("warnings");
            for warning in expected {
                assert!(found.contains(warning), "missing {warning}: {found:#?}");
            }
            assert_eq!(found, expected, "{}", policy.text("name"));
        }
    }
}
