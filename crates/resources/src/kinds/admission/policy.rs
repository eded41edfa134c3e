//! Admission policies and their bindings. Mirrors `ValidateValidatingAdmissionPolicy`,
//! `ValidateMutatingAdmissionPolicy` and their bindings in
//! `pkg/apis/admissionregistration/validation`.

use std::collections::BTreeSet;

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt},
    names,
};
use bellerophon_cel::is_identifier;
use bellerophon_codec::object::Object;
use serde_json::Value;

use super::{Compiler, Declared, Expression, Returns, rules};
use crate::kinds::{Effect, Generation, STATUS_RESETS_METADATA, Strategy, conditions, validation};

/// The strategy of ValidatingAdmissionPolicies. Mirrors `pkg/registry/admissionregistration/validatingadmissionpolicy`.
pub const VALIDATING_POLICY: Strategy = Strategy {
    reset_fields: STATUS_RESETS_METADATA,
    default: |policy| {
        default_policy(policy);
        policy.section("status");
    },
    prepare_create: |policy| {
        policy.body.insert("status".into(), serde_json::json!({}));
    },
    validate: |policy, out| {
        let expressions = head(policy, out);
        validations(policy, &expressions, out);
    },
    validate_status: |new, _, out| {
        conditions::validate(
            &Path::field("status.conditions"),
            new.body.field("status").list("conditions"),
            out,
        )
    },
    generation: Generation::Spec,
    unconditional_update: false,
    effect: Effect::Admission,
    ..Strategy::WITH_STATUS
};

/// The strategy of MutatingAdmissionPolicies. Mirrors `pkg/registry/admissionregistration/mutatingadmissionpolicy`.
pub const MUTATING_POLICY: Strategy = Strategy {
    default: default_policy,
    validate: |policy, out| {
        let expressions = head(policy, out);
        mutations(policy, &expressions, out);
    },
    generation: Generation::Spec,
    unconditional_update: false,
    effect: Effect::Admission,
    ..Strategy::PLAIN
};

/// The strategy of ValidatingAdmissionPolicyBindings. Mirrors `pkg/registry/admissionregistration/validatingadmissionpolicybinding`.
pub const VALIDATING_POLICY_BINDING: Strategy = Strategy {
    default: default_binding,
    validate: |binding, out| {
        bound(binding, out);
        actions(binding.body.field("spec").field("validationActions"), out);
    },
    ..MUTATING_POLICY
};

/// The strategy of MutatingAdmissionPolicyBindings. Mirrors `pkg/registry/admissionregistration/mutatingadmissionpolicybinding`.
pub const MUTATING_POLICY_BINDING: Strategy = Strategy {
    validate: bound,
    ..VALIDATING_POLICY_BINDING
};

const AUDIT_MAX: usize = 20;
const AUDIT_EXPRESSION_MAX: usize = 5 * 1024;

fn default_policy(policy: &mut Object) {
    let spec = policy.section("spec");
    spec.default_to("failurePolicy", "Fail");
    if let Some(matched) = spec.map_mut("matchConstraints") {
        complete(matched);
    }
}

fn default_binding(binding: &mut Object) {
    if let Some(matched) = binding.section("spec").map_mut("matchResources") {
        complete(matched);
    }
}

fn complete(matched: &mut serde_json::Map<String, Value>) {
    rules::default_match(matched);
    rules::default_rules(matched, "resourceRules");
    rules::default_rules(matched, "excludeResourceRules");
}

/// Validates what both kinds of policy have in common. Returns the compiler with the variables.
fn head(policy: &Object, out: &mut Vec<FieldError>) -> Expressions {
    let at = Path::field("spec");
    let spec = policy.body.field("spec");
    validation::one_of(
        &at.child("failurePolicy"),
        spec.text("failurePolicy"),
        &["Fail", "Ignore"],
        out,
    );
    if let Some(kind) = spec.get_set("paramKind") {
        param_kind(&at.child("paramKind"), kind, out);
    }
    match spec.get_set("matchConstraints") {
        None => out.push(FieldError::required(at.child("matchConstraints"), "")),
        Some(matched) => {
            let at = at.child("matchConstraints");
            rules::match_resources(&at, matched, out);
            if matched.is_empty_at("resourceRules") {
                out.push(FieldError::required(at.child("resourceRules"), ""));
            }
        }
    }
    rules::match_conditions(
        &at.child("matchConditions"),
        spec.list("matchConditions"),
        spec.has("paramKind"),
        out,
    );
    let mut expressions = Expressions::of(spec);
    let all = at.child("variables");
    for (i, variable) in spec.list("variables").iter().enumerate() {
        let at = all.index(i);
        match variable.text("name") {
            name if name.trim().is_empty() => out.push(FieldError::required(
                at.child("name"),
                "name is not specified",
            )),
            name if !is_identifier(name) => out.push(FieldError::invalid(
                at.child("name"),
                name,
                "must be a valid CEL identifier",
            )),
            _ => {}
        }
        rules::expression(
            &at.child("expression"),
            variable.text("expression"),
            "expression is not specified",
            |text| {
                let declared = expressions.declared(true);
                let compiler = &mut expressions.compiler;
                compiler.declare(variable.text("name"), text, declared)
            },
            out,
        );
    }
    expressions
}

/// Compiles the expressions of a policy.
struct Expressions {
    compiler: Compiler,
    has_params: bool,
}

impl Expressions {
    /// Mirrors `createCompiler`: without variables there is no `variables`.
    fn of(spec: &Value) -> Self {
        Self {
            compiler: if spec.is_empty_at("variables") {
                Compiler::default()
            } else {
                Compiler::composing()
            },
            has_params: spec.has("paramKind"),
        }
    }

    fn declared(&self, authorizer: bool) -> Declared {
        Declared {
            params: self.has_params,
            authorizer,
            ..Declared::default()
        }
    }

    fn compile(&self, text: &str, authorizer: bool, returns: Returns) -> Expression {
        self.compiler
            .compile(text, self.declared(authorizer), returns)
    }
}

fn param_kind(at: &Path, kind: &Value, out: &mut Vec<FieldError>) {
    let version = kind.text("apiVersion");
    let at_version = at.child("apiVersion");
    match version.split('/').collect::<Vec<_>>()[..] {
        [""] => out.push(FieldError::required(at_version, "")),
        [version] => joined(
            &at_version,
            version,
            names::dns_1035_label(version),
            "",
            out,
        ),
        [group, version] => {
            joined(&at_version, group, names::dns_subdomain(group), "", out);
            joined(
                &at_version,
                version,
                names::dns_1035_label(version),
                "",
                out,
            );
        }
        _ => out.push(FieldError::invalid(
            at_version,
            version,
            &format!("unexpected GroupVersion string: {version}"),
        )),
    }
    match kind.text("kind") {
        "" => out.push(FieldError::required(at.child("kind"), "")),
        name => {
            let errors = names::dns_1035_label(&name.to_lowercase());
            joined(
                &at.child("kind"),
                name,
                errors,
                "may have mixed case, but should otherwise match: ",
                out,
            );
        }
    }
}

/// All reasons in one message.
fn joined(at: &Path, value: &str, errors: Vec<String>, head: &str, out: &mut Vec<FieldError>) {
    if !errors.is_empty() {
        out.push(FieldError::invalid(
            at,
            value,
            &format!("{head}{}", errors.join(",")),
        ));
    }
}

fn validations(policy: &Object, expressions: &Expressions, out: &mut Vec<FieldError>) {
    let at = Path::field("spec");
    let spec = policy.body.field("spec");
    if spec.is_empty_at("validations") && spec.is_empty_at("auditAnnotations") {
        let why = "validations or auditAnnotations must contain at least one item";
        out.push(FieldError::required(at.child("validations"), why));
        out.push(FieldError::required(at.child("auditAnnotations"), why));
        return;
    }
    let all = at.child("validations");
    for (i, validation) in spec.list("validations").iter().enumerate() {
        validate_validation(&all.index(i), validation, expressions, out);
    }
    let all = at.child("auditAnnotations");
    let annotations = spec.list("auditAnnotations");
    if annotations.len() > AUDIT_MAX {
        let why = format!("must not have more than {AUDIT_MAX} auditAnnotations");
        out.push(FieldError::invalid(
            all,
            spec.field("auditAnnotations"),
            &why,
        ));
    }
    let mut keys = BTreeSet::new();
    for (i, annotation) in annotations.iter().enumerate() {
        let at = all.index(i);
        let key = annotation.text("key");
        let full = format!("{}/{key}", policy.meta.name);
        validation::named(&at.child("key"), &full, names::qualified_name(&full), out);
        match annotation.text("valueExpression").trim() {
            "" => out.push(FieldError::required(
                at.child("valueExpression"),
                "valueExpression is not specified",
            )),
            text if text.len() > AUDIT_EXPRESSION_MAX => {
                out.push(FieldError::required(
                    at.child("valueExpression"),
                    &format!("must not exceed {AUDIT_EXPRESSION_MAX} bytes in length"),
                ));
            }
            text => rules::expression(
                &at.child("valueExpression"),
                text,
                "",
                |text| expressions.compile(text, true, Returns::StringOrNull),
                out,
            ),
        }
        if !keys.insert(key) {
            out.push(FieldError::duplicate(at.child("key"), key));
        }
    }
}

fn validate_validation(
    at: &Path,
    validation: &Value,
    expressions: &Expressions,
    out: &mut Vec<FieldError>,
) {
    rules::expression(
        &at.child("expression"),
        validation.text("expression"),
        "expression is not specified",
        |text| expressions.compile(text, true, Returns::Bool),
        out,
    );
    for field in ["messageExpression", "message"] {
        let text = validation.text(field);
        if !text.is_empty() && text.trim().is_empty() {
            out.push(FieldError::invalid(
                at.child(field),
                text,
                "must be non-empty if specified",
            ));
        } else if field == "messageExpression" && !text.is_empty() {
            rules::expression(
                &at.child(field),
                text,
                "",
                |text| expressions.compile(text, false, Returns::String),
                out,
            );
        } else if field == "message" && text.trim().contains(['\n', '\r']) {
            out.push(FieldError::invalid(
                at.child(field),
                text,
                "must not contain line breaks",
            ));
        }
    }
    if let Some(reason) = validation.field("reason").as_str() {
        validation::one_of(
            &at.child("reason"),
            reason,
            &["Forbidden", "Invalid", "RequestEntityTooLarge"],
            out,
        );
    }
}

fn mutations(policy: &Object, expressions: &Expressions, out: &mut Vec<FieldError>) {
    let at = Path::field("spec");
    let spec = policy.body.field("spec");
    let all = at.child("mutations");
    if spec.is_empty_at("mutations") {
        out.push(FieldError::required(
            all,
            "mutations must contain at least one item",
        ));
    }
    for (i, mutation) in spec.list("mutations").iter().enumerate() {
        validate_mutation(&all.index(i), mutation, expressions, out);
    }
    match spec.text("reinvocationPolicy") {
        "" => out.push(FieldError::required(at.child("reinvocationPolicy"), "")),
        policy => validation::one_of(
            &at.child("reinvocationPolicy"),
            policy,
            &["IfNeeded", "Never"],
            out,
        ),
    }
}

fn validate_mutation(
    at: &Path,
    mutation: &Value,
    expressions: &Expressions,
    out: &mut Vec<FieldError>,
) {
    let (own, other, kind, returns) = match mutation.text("patchType") {
        "" => return out.push(FieldError::required(at.child("patchType"), "")),
        "JSONPatch" => (
            "jsonPatch",
            "applyConfiguration",
            "JSONPatch",
            Returns::JsonPatch,
        ),
        "ApplyConfiguration" => (
            "applyConfiguration",
            "jsonPatch",
            "ApplyConfiguration",
            Returns::Object,
        ),
        unknown => {
            return out.push(FieldError::not_supported(
                at.child("patchType"),
                unknown,
                &["ApplyConfiguration", "JSONPatch"],
            ));
        }
    };
    match mutation.get_set(own) {
        None => out.push(FieldError::required(
            at.child(own),
            &format!("must be specified when patchType is {kind}"),
        )),
        Some(patch) => rules::expression(
            &at.child(own).child("expression"),
            patch.text("expression").trim(),
            "",
            |text| {
                let declared = Declared {
                    patch_types: true,
                    ..expressions.declared(true)
                };
                expressions.compiler.compile(text, declared, returns)
            },
            out,
        ),
    }
    if mutation.get_set(other).is_some() {
        let shown = format!("{{{other}}}");
        out.push(FieldError::invalid(
            at.child(other),
            &shown,
            &format!("must not be specified when patchType is {kind}"),
        ));
    }
}

fn bound(binding: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("spec");
    let spec = binding.body.field("spec");
    match spec.text("policyName") {
        "" => out.push(FieldError::required(at.child("policyName"), "")),
        name => validation::named(
            &at.child("policyName"),
            name,
            names::dns_subdomain(name),
            out,
        ),
    }
    if let Some(reference) = spec.get_set("paramRef") {
        param_ref(&at.child("paramRef"), reference, out);
    }
    if let Some(matched) = spec.get_set("matchResources") {
        rules::match_resources(&at.child("matchResources"), matched, out);
    }
}

fn param_ref(at: &Path, reference: &Value, out: &mut Vec<FieldError>) {
    let name = reference.text("name");
    let selector = reference.get_set("selector");
    let both = !name.is_empty() && selector.is_some();
    validation::named(&at.child("name"), name, names::path_segment(name), out);
    if both {
        out.push(FieldError::forbidden(
            at.child("name"),
            "name and selector are mutually exclusive",
        ));
    }
    validation::label_selector(&at.child("selector"), reference.field("selector"), out);
    if both {
        out.push(FieldError::forbidden(
            at.child("selector"),
            "name and selector are mutually exclusive",
        ));
    }
    if name.is_empty() && selector.is_none() {
        out.push(FieldError::required(
            at,
            "one of name or selector must be specified",
        ));
    }
    match reference.text("parameterNotFoundAction") {
        "" => out.push(FieldError::required(
            at.child("parameterNotFoundAction"),
            "",
        )),
        action => validation::one_of(
            &at.child("parameterNotFoundAction"),
            action,
            &["Deny", "Allow"],
            out,
        ),
    }
}

fn actions(actions: &Value, out: &mut Vec<FieldError>) {
    let at = Path::field("spec.validationActions");
    let mut seen = BTreeSet::new();
    for (i, action) in actions
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .enumerate()
    {
        validation::one_of(&at.index(i), action, &["Audit", "Deny", "Warn"], out);
        if !seen.insert(action) {
            out.push(FieldError::duplicate(at.index(i), action));
        }
    }
    if seen.contains("Deny") && seen.contains("Warn") {
        let why = "must not contain both Deny and Warn (repeating the same validation failure information in the API response and headers serves no purpose)";
        out.push(FieldError::invalid(at, actions, why));
    }
    if seen.is_empty() {
        out.push(FieldError::required(
            at,
            "at least one validation action is required",
        ));
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::test_support::{create, refused};

    #[test]
    fn policies_are_completed() {
        let rule = json!({"apiGroups": ["x.example.com"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["widgets"]});
        let (policy, errors) = create(
            &VALIDATING_POLICY,
            json!({"metadata": {"name": "p"}, "spec": {"matchConstraints": {"resourceRules": [rule]}, "validations": [{"expression": "true"}]}}),
        );
        assert_eq!(errors, [""; 0]);
        assert_eq!(policy.str_at("spec.failurePolicy"), "Fail");
        assert_eq!(
            policy.str_at("spec.matchConstraints.matchPolicy"),
            "Equivalent"
        );
        assert_eq!(
            &policy.body["spec"]["matchConstraints"]["resourceRules"][0]["scope"],
            &json!("*")
        );
        assert_eq!(&policy.body["status"], &json!({}));
    }

    #[test]
    fn policies_need_constraints_and_something_to_do() {
        refused(
            &VALIDATING_POLICY,
            json!({"metadata": {"name": "p"}, "spec": {}}),
            &[
                "spec.matchConstraints: Required value",
                "spec.validations: Required value: validations or auditAnnotations must contain at least one item",
                "spec.auditAnnotations: Required value: validations or auditAnnotations must contain at least one item",
            ],
        );
        refused(
            &MUTATING_POLICY,
            json!({"spec": {"mutations": [{"patchType": "JSONPatch"}], "reinvocationPolicy": "Never"}}),
            &[
                "spec.matchConstraints: Required value",
                "spec.mutations[0].jsonPatch: Required value: must be specified when patchType is JSONPatch",
            ],
        );
    }

    #[test]
    fn bindings_name_a_policy_and_an_action() {
        refused(
            &VALIDATING_POLICY_BINDING,
            json!({"spec": {"paramRef": {"parameterNotFoundAction": "Deny"}}}),
            &[
                "spec.policyName: Required value",
                "spec.paramRef: Required value: one of name or selector must be specified",
                "spec.validationActions: Required value: at least one validation action is required",
            ],
        );
    }
}
