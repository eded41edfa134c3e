//! Which requests a webhook or a policy matches. Mirrors `validateRuleWithOperations`,
//! `validateMatchResources` and `validateMatchConditions` in
//! `pkg/apis/admissionregistration/validation`.

use std::collections::BTreeSet;

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt},
    names,
};
use serde_json::{Map, Value, json};

use super::{Compiler, Declared, Expression, Returns};
use crate::kinds::validation;

const OPERATIONS: &[&str] = &["*", "CONNECT", "CREATE", "DELETE", "UPDATE"];
const CONDITIONS_MAX: usize = 64;

/// Completes what both webhooks and policies match by: policy and selectors.
pub(super) fn default_match(matched: &mut Map<String, Value>) {
    matched.default_to("matchPolicy", "Equivalent");
    matched.default_to("namespaceSelector", json!({}));
    matched.default_to("objectSelector", json!({}));
}

/// Completes the rules in this list.
pub(super) fn default_rules(owner: &mut Map<String, Value>, list: &str) {
    owner
        .maps_mut(list)
        .for_each(|rule| rule.default_to("scope", "*"));
}

/// Match policy and selectors of a policy or binding, with its rules.
pub(super) fn match_resources(at: &Path, matched: &Value, out: &mut Vec<FieldError>) {
    validation::one_of(
        &at.child("matchPolicy"),
        matched.text("matchPolicy"),
        &["Equivalent", "Exact"],
        out,
    );
    for selector in ["namespaceSelector", "objectSelector"] {
        validation::label_selector(&at.child(selector), matched.field(selector), out);
    }
    for list in ["resourceRules", "excludeResourceRules"] {
        let all = at.child(list);
        for (i, rule) in matched.list(list).iter().enumerate() {
            resource_names(&all.index(i), rule, out);
            validate_rule(&all.index(i), rule, out);
        }
    }
}

fn resource_names(at: &Path, rule: &Value, out: &mut Vec<FieldError>) {
    let all = at.child("resourceNames");
    let mut seen = BTreeSet::new();
    for (i, name) in rule
        .list("resourceNames")
        .iter()
        .filter_map(Value::as_str)
        .enumerate()
    {
        validation::named(&all.index(i), name, names::path_segment(name), out);
        if !seen.insert(name) {
            out.push(FieldError::duplicate(all.index(i), name));
        }
    }
}

/// One rule: operations, groups, versions, resources, scope.
pub(super) fn validate_rule(at: &Path, rule: &Value, out: &mut Vec<FieldError>) {
    non_empty_or_all(
        &at.child("operations"),
        rule.field("operations"),
        "operations",
        out,
    );
    let all = at.child("operations");
    for (i, operation) in rule
        .list("operations")
        .iter()
        .filter_map(Value::as_str)
        .enumerate()
    {
        validation::one_of(&all.index(i), operation, OPERATIONS, out);
    }
    non_empty_or_all(
        &at.child("apiGroups"),
        rule.field("apiGroups"),
        "API groups",
        out,
    );
    let all = at.child("apiVersions");
    non_empty_or_all(&all, rule.field("apiVersions"), "API versions", out);
    for (i, version) in rule
        .list("apiVersions")
        .iter()
        .filter_map(Value::as_str)
        .enumerate()
    {
        validation::required(&all.index(i), version, out);
    }
    resources(&at.child("resources"), rule.field("resources"), out);
    if let Some(scope) = rule.field("scope").as_str() {
        validation::one_of(
            &at.child("scope"),
            scope,
            &["*", "Cluster", "Namespaced"],
            out,
        );
    }
}

/// A list that names something, or `*` alone.
fn non_empty_or_all(at: &Path, list: &Value, what: &str, out: &mut Vec<FieldError>) {
    let items: Vec<&str> = list
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if items.is_empty() {
        out.push(FieldError::required(at, ""));
    }
    if items.len() > 1 && items.contains(&"*") {
        out.push(FieldError::invalid(
            at,
            list,
            &format!("if '*' is present, must not specify other {what}"),
        ));
    }
}

fn resources(at: &Path, list: &Value, out: &mut Vec<FieldError>) {
    let items: Vec<&str> = list
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    if items.is_empty() {
        out.push(FieldError::required(at, ""));
    }
    let mut all_of = BTreeSet::new();
    let mut of_all = BTreeSet::new();
    for (i, item) in items.iter().enumerate() {
        validation::required(&at.index(i), item, out);
        let Some((resource, sub)) = item.split_once('/') else {
            continue;
        };
        if all_of.contains(resource) {
            out.push(FieldError::invalid(
                at.index(i),
                *item,
                &format!("if '{resource}/*' is present, must not specify {item}"),
            ));
        }
        if of_all.contains(sub) {
            out.push(FieldError::invalid(
                at.index(i),
                *item,
                &format!("if '*/{sub}' is present, must not specify {item}"),
            ));
        }
        if sub == "*" {
            all_of.insert(resource);
        }
        if resource == "*" {
            of_all.insert(sub);
        }
    }
    if items.len() > 1 && items.contains(&"*/*") {
        out.push(FieldError::invalid(
            at,
            list,
            "if '*/*' is present, must not specify other resources",
        ));
    }
    if items.contains(&"*")
        && items
            .iter()
            .any(|item| *item != "*" && !item.is_empty() && !item.contains('/'))
    {
        out.push(FieldError::invalid(
            at,
            list,
            "if '*' is present, must not specify other resources without subresources",
        ));
    }
}

/// An expression, which must be there and compile.
pub(super) fn expression(
    at: &Path,
    text: &str,
    missing: &str,
    compile: impl FnOnce(&str) -> Expression,
    out: &mut Vec<FieldError>,
) {
    if text.trim().is_empty() {
        out.push(FieldError::required(at, missing));
    } else if let Err(why) = compile(text).program {
        out.push(FieldError::invalid(at, text, &why));
    }
}

/// Conditions on the request, each with a name and an expression.
pub(super) fn match_conditions(
    at: &Path,
    conditions: &[Value],
    has_params: bool,
    out: &mut Vec<FieldError>,
) {
    let declared = Declared {
        params: has_params,
        authorizer: true,
        ..Declared::default()
    };
    let compile = |text: &str| Compiler::default().compile(text, declared, Returns::Bool);
    if conditions.len() > CONDITIONS_MAX {
        out.push(FieldError::too_many(at, conditions.len(), CONDITIONS_MAX));
    }
    let mut seen = BTreeSet::new();
    for (i, condition) in conditions.iter().enumerate() {
        let at = at.index(i);
        expression(
            &at.child("expression"),
            condition.text("expression").trim(),
            "",
            compile,
            out,
        );
        match condition.text("name") {
            "" => out.push(FieldError::required(at.child("name"), "")),
            name => {
                validation::named(&at.child("name"), name, names::qualified_name(name), out);
                if !seen.insert(name) {
                    out.push(FieldError::duplicate(at.child("name"), name));
                }
            }
        }
    }
}
