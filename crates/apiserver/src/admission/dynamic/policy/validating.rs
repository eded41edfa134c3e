//! Validating policies. Mirrors `validator.Validate` and the dispatcher of the plugin.

use std::collections::BTreeMap;

use bellerophon_cel::Value;
use serde::Serialize;
use tokio::time::Instant;

use super::{BUDGET, ConfigurationError, Invocation, inputs, invocations};
use crate::{
    admission::dynamic::evaluation::Evaluation, admission::dynamic::evaluation::Inputs,
    admission::dynamic::matching::Conditions, admission::dynamic::matching::check_conditions,
    admission::dynamic::request::Request, admission_config::Binding, admission_config::Configured,
    admission_config::Policy, admission_config::PolicyCheck, admission_config::Rules,
    admission_config::Validation,
};
use bellerophon_apimachinery::error::ApiError;
use bellerophon_apimachinery::error::Cause;
use bellerophon_codec::object::Object;

/// Longer messages of expressions are not used.
const MESSAGE_MAX_BYTES: usize = 5 * 1024;

/// Longer values of audit annotations are cut.
const ANNOTATION_MAX_BYTES: usize = 10 * 1024;

/// The decision of a validation.
#[derive(Debug)]
struct Decision {
    message: String,
    /// Empty for `Invalid`.
    reason: String,
}

impl Decision {
    fn failed(message: String) -> Self {
        Self {
            message,
            reason: String::new(),
        }
    }
}

/// The audit annotation of a failed validation. Mirrors `ValidationFailureValue`, whose fields have
/// this order.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct ValidationFailure<'a> {
    message: &'a str,
    policy: &'a str,
    binding: &'a str,
    expression_index: usize,
    validation_actions: &'a [String],
}

/// The label of a decision in metrics. Mirrors ErrorType: a denial is an `invalid_error`, too.
fn error_type(message: &str) -> &'static str {
    if message.starts_with("compilation") {
        "compile_error"
    } else if message.starts_with("validation failed due to running out of cost budget") {
        "out_of_budget"
    } else {
        "invalid_error"
    }
}

/// Evaluates the validating policies that a request concerns.
///
/// # Errors
/// The first denial, or the failure of a policy that must not fail.
pub(in crate::admission::dynamic) async fn validate(
    request: &Request<'_>,
    configured: &Configured,
    object: Option<&Object>,
    old: Option<&Object>,
) -> Result<(), ApiError> {
    let plural = &request.attributes.resource.plural;
    let policies = configured.validating_policies.of(plural);
    let policies = policies.map(|(_, bound)| bound);
    let found = invocations(request, policies, object, old).await;
    if found.is_empty() {
        return Ok(());
    }
    let namespace = request.namespace_object()?;
    let mut denied: Option<Denied<'_>> = None;
    let mut annotations: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for invocation in &found {
        match invocation {
            Err(error) if error.policy.fails_open => {}
            Err(error) => {
                denied.get_or_insert_with(|| Denied::of_configuration(error));
            }
            Ok(invocation) => {
                let inputs = inputs(request, invocation, object, old, namespace.as_ref());
                let denial = check(request, invocation, &inputs, &mut annotations);
                denied = denied.or(denial);
            }
        }
    }
    for (key, values) in annotations {
        request.attributes.output.annotate(key, values.join(", "));
    }
    match denied {
        None => Ok(()),
        Some(denied) => Err(denied.into_error(request, object.or(old))),
    }
}

/// A denial of the request.
struct Denied<'a> {
    policy: &'a Policy,
    binding: Option<&'a Binding>,
    message: String,
    reason: String,
}

impl<'a> Denied<'a> {
    fn of_configuration(error: &ConfigurationError<'a>) -> Self {
        Self {
            policy: error.policy,
            binding: error.binding,
            message: error.message(),
            reason: String::new(),
        }
    }

    fn into_error(self, request: &Request<'_>, object: Option<&Object>) -> ApiError {
        let policy = &self.policy.name;
        let binding = match self.binding {
            Some(binding) => format!(" with binding '{}'", binding.name),
            None => String::new(),
        };
        let message = format!(
            "ValidatingAdmissionPolicy '{policy}'{binding} denied request: {}",
            self.message
        );
        let name = match request.name(object) {
            "" => object.map_or("", |object| object.meta.generate_name.as_str()),
            name => name,
        };
        let forbidden = request
            .attributes
            .forbidden(if name.is_empty() { "Unknown" } else { name }, &*message);
        let (code, reason) = match self.reason.as_str() {
            "Forbidden" => (403, "Forbidden"),
            "Unauthorized" => (401, "Unauthorized"),
            "RequestEntityTooLarge" => (413, "RequestEntityTooLarge"),
            _ => (422, "Invalid"),
        };
        forbidden.as_status(
            code,
            reason,
            vec![Cause {
                message,
                ..Cause::default()
            }],
        )
    }
}

/// Evaluates a policy with one binding and one parameter, and applies the binding's validation
/// actions.
fn check<'a>(
    request: &Request<'_>,
    invocation: &Invocation<'a>,
    inputs: &Inputs,
    annotations: &mut BTreeMap<String, Vec<String>>,
) -> Option<Denied<'a>> {
    let Invocation {
        policy, binding, ..
    } = invocation;
    let started = Instant::now();
    let Evaluated {
        decisions,
        ignored,
        annotations: found,
    } = evaluate(request, policy, inputs);
    let duration = started.elapsed();
    let output = request.attributes.output;
    let metrics = &request.api.admission_config.metrics;
    let observe = |action: &'static str, message: &str| {
        metrics.validated(&PolicyCheck {
            policy: &policy.name,
            binding: &binding.name,
            action,
            error_type: error_type(message),
            duration,
        });
    };
    for error in ignored {
        observe("allow", &error);
    }
    let mut denied = None;
    for (index, decision) in decisions {
        for action in &binding.actions {
            match action.as_str() {
                "Deny" => {
                    observe("deny", &decision.message);
                    denied.get_or_insert_with(|| Denied {
                        policy,
                        binding: Some(binding),
                        message: decision.message.clone(),
                        reason: decision.reason.clone(),
                    });
                }
                "Audit" => {
                    observe("audit", &decision.message);
                    let failures = [ValidationFailure {
                        message: &decision.message,
                        policy: &policy.name,
                        binding: &binding.name,
                        expression_index: index,
                        validation_actions: &binding.actions,
                    }];
                    let failures = serde_json::to_string(&failures);
                    output.annotate(
                        "validation.policy.admission.k8s.io/validation_failure".into(),
                        failures.expect("strings and a number are JSON"),
                    );
                }
                "Warn" => {
                    observe("warn", &decision.message);
                    output.warn([format!(
                        "Validation failed for ValidatingAdmissionPolicy '{}' with binding '{}': {}",
                        policy.name, binding.name, decision.message
                    )]);
                }
                _ => {}
            }
        }
    }
    for annotation in found {
        match annotation {
            Ok((key, value)) => {
                let values = annotations
                    .entry(format!("{}/{key}", policy.name))
                    .or_default();
                if !values.contains(&value) {
                    values.push(value);
                }
            }
            Err(message) => {
                observe("deny", &message);
                denied.get_or_insert_with(|| Denied {
                    policy,
                    binding: Some(binding),
                    message,
                    reason: String::new(),
                });
            }
        }
    }
    denied
}

/// The results of the expressions of a policy.
#[derive(Default)]
struct Evaluated {
    /// Failed validations by their place. Those that fail open are left out.
    decisions: Vec<(usize, Decision)>,
    /// Errors that the failure policy ignores.
    ignored: Vec<String>,
    /// Audit annotations to publish, or why one cannot be computed.
    annotations: Vec<Result<(String, String), String>>,
}

impl Evaluated {
    /// The policy as a whole could not be evaluated.
    fn failed(policy: &Policy, message: String) -> Self {
        let mut evaluated = Self::default();
        match policy.fails_open {
            true => evaluated.ignored.push(message),
            false => evaluated.decisions.push((0, Decision::failed(message))),
        }
        evaluated
    }
}

fn evaluate(request: &Request<'_>, policy: &Policy, inputs: &Inputs) -> Evaluated {
    let Rules::Validating {
        validations,
        audit_annotations,
    } = &policy.rules
    else {
        return Evaluated::default();
    };
    match check_conditions(&policy.conditions, inputs) {
        Conditions::Met => {}
        Conditions::Unmet => {
            let operation = request.operation().name();
            let metrics = &request.api.admission_config.metrics;
            metrics.excluded(&policy.name, "policy", "validate", operation, false);
            return Evaluated::default();
        }
        Conditions::Failed(why) => return Evaluated::failed(policy, why),
    }
    let evaluation = Evaluation::new(inputs, &policy.variables);
    let mut budget = BUDGET;
    let mut results = Vec::new();
    for validation in validations {
        match evaluation.run(&validation.expression, &mut budget) {
            Err(error) => return Evaluated::failed(policy, error.to_string()),
            Ok(result) => results.push(result),
        }
    }
    let mut evaluated = Evaluated::default();
    for (index, (validation, result)) in validations.iter().zip(results).enumerate() {
        let decision = match result {
            Ok(Value::Bool(true)) => continue,
            Ok(_) => match message(&evaluation, validation, &mut budget) {
                Ok(message) => Decision {
                    message,
                    reason: validation.reason.clone(),
                },
                Err(error) => Decision::failed(format!("failed messageExpression: {error}")),
            },
            Err(error) if policy.fails_open => {
                evaluated.ignored.push(error);
                continue;
            }
            Err(error) => Decision::failed(error),
        };
        evaluated.decisions.push((index, decision));
    }
    let mut budget = BUDGET;
    for (key, expression) in audit_annotations {
        match evaluation.run(expression, &mut budget) {
            Err(error) => return Evaluated::failed(policy, error.to_string()),
            Ok(Err(_)) if policy.fails_open => {}
            Ok(Err(why)) => evaluated.annotations.push(Err(why)),
            Ok(Ok(Value::String(text))) => {
                let text = cut(text.trim(), ANNOTATION_MAX_BYTES);
                if !text.is_empty() {
                    evaluated
                        .annotations
                        .push(Ok((key.clone(), text.to_owned())));
                }
            }
            Ok(Ok(_)) => {}
        }
    }
    evaluated
}

/// The message of a failed validation: that of its expression, its own, or the expression itself.
fn message(
    evaluation: &Evaluation<'_>,
    validation: &Validation,
    budget: &mut u64,
) -> Result<String, String> {
    if let Some(expression) = &validation.message_expression {
        let value = evaluation.run(expression, budget);
        let value = value.map_err(|error| error.to_string())?;
        if let Ok(Value::String(text)) = value {
            let text = text.trim();
            let is_used = !text.is_empty() && text.len() <= MESSAGE_MAX_BYTES;
            if is_used && !text.contains('\n') {
                return Ok(text.to_owned());
            }
        }
    }
    if validation.message.is_empty() {
        let text = validation.expression.text.trim();
        return Ok(format!("failed expression: {text}"));
    }
    Ok(validation.message.clone())
}

fn cut(text: &str, most: usize) -> &str {
    if text.len() <= most {
        return text;
    }
    let mut end = most;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    &text[..end]
}
