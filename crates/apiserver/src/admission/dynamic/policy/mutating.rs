//! Mutating policies. Mirrors `dispatchInvocations` of the plugin, and its patchers.

use bellerophon_cel::{List, Message, Value};
use serde_json::{Map, Value as Json, json};
use tokio::time::Instant;

use super::{BUDGET, ConfigurationError, Invocation, inputs, invocations};
use crate::{
    admission::dynamic::Reinvocation, admission::dynamic::evaluation::Evaluation,
    admission::dynamic::matching::Conditions, admission::dynamic::matching::check_conditions,
    admission::dynamic::request::Request, admission::dynamic::webhook::decode_mutated,
    admission_config::Configured, admission_config::Mutation, admission_config::PolicyCheck,
    admission_config::Rules, managed_fields,
};
use bellerophon_apimachinery::error::ApiError;
use bellerophon_apimachinery::error::Cause;
use bellerophon_codec::object::Object;
use bellerophon_codec::patch::JsonPatch;
use bellerophon_resources::kinds::admission::Expression;

/// Runs the mutating policies that a request concerns.
///
/// # Errors
/// The failure of a policy that must not fail.
pub(in crate::admission::dynamic) async fn mutate(
    request: &Request<'_>,
    configured: &Configured,
    mut object: Option<&mut Object>,
    old: Option<&Object>,
    reinvocation: &mut Reinvocation,
) -> Result<(), ApiError> {
    let plural = &request.attributes.resource.plural;
    let policies = configured.mutating_policies.of(plural);
    let policies = policies.map(|(_, bound)| bound);
    let found = invocations(request, policies, object.as_deref(), old).await;
    if found.is_empty() {
        return Ok(());
    }
    let is_reinvoked = reinvocation.is_reinvoked;
    reinvocation.policies.begin(is_reinvoked, object.as_deref());
    let namespace = request.namespace_object()?;
    let mut errors = Vec::new();
    for invocation in &found {
        let invocation = match invocation {
            Ok(invocation) => invocation,
            Err(error) => {
                errors.extend(configuration_error(error).map(|message| (message, "Forbidden")));
                continue;
            }
        };
        let Some(object) = object.as_deref_mut() else {
            continue;
        };
        let before = object.clone();
        let namespace = namespace.as_ref();
        let outcome = run(request, invocation, object, old, namespace, reinvocation).await?;
        let Outcome::Ran(failed) = outcome else {
            continue;
        };
        let denied = |why: String| (denied(invocation, &why), "Invalid");
        errors.extend(failed.into_iter().map(denied));
        if *object != before {
            reinvocation.policies.require();
            reinvocation.is_needed = true;
        }
        if is_reinvocable(invocation) {
            reinvocation.policies.previously.insert(key(invocation));
        }
    }
    reinvocation.policies.end(object.as_deref());
    match errors.first() {
        None => Ok(()),
        Some(first) => Err(refused(request, object.as_deref(), first, &errors)),
    }
}

/// The outcome of a policy.
enum Outcome {
    /// It was not run.
    Skipped,
    /// It was run; these mutations failed, and count.
    Ran(Vec<String>),
}

async fn run(
    request: &Request<'_>,
    invocation: &Invocation<'_>,
    object: &mut Object,
    old: Option<&Object>,
    namespace: Option<&Object>,
    reinvocation: &Reinvocation,
) -> Result<Outcome, ApiError> {
    let policy = invocation.policy;
    let Rules::Mutating { mutations, .. } = &policy.rules else {
        return Ok(Outcome::Skipped);
    };
    // Another policy may have changed the object.
    let version = invocation.version;
    request.prepare([Some(object), old], version).await?;
    let mut variables = inputs(request, invocation, Some(object), old, namespace);
    match check_conditions(&policy.conditions, &variables) {
        Conditions::Met => {}
        Conditions::Unmet => return Ok(Outcome::Skipped),
        Conditions::Failed(_) if policy.fails_open => return Ok(Outcome::Skipped),
        Conditions::Failed(why) => return Ok(Outcome::Ran(vec![why])),
    }
    let is_reinvoked = reinvocation.is_reinvoked;
    if reinvocation.policies.skips(is_reinvoked, &key(invocation)) {
        return Ok(Outcome::Skipped);
    }
    let mut failed = Vec::new();
    for mutation in mutations {
        let started = Instant::now();
        let mutated = {
            let evaluation = Evaluation::new(&variables, &policy.variables);
            mutate_once(request, invocation, mutation, &evaluation, object)
        };
        let is_failed = mutated.is_err();
        request.api.admission_config.metrics.mutated(&PolicyCheck {
            policy: &policy.name,
            binding: &invocation.binding.name,
            action: if is_failed { "deny" } else { "allow" },
            error_type: if is_failed {
                "invalid_error"
            } else {
                "no_error"
            },
            duration: started.elapsed(),
        });
        match mutated {
            Ok(Some(new)) => {
                *object = request.unversioned(new, version).await?;
                request.prepare([Some(object), old], version).await?;
                variables = inputs(request, invocation, Some(object), old, namespace);
            }
            Ok(None) => {}
            Err(Failed::Status(error)) => return Err(error),
            Err(Failed::Mutation(_)) if policy.fails_open => {}
            Err(Failed::Mutation(why)) => failed.push(why),
        }
    }
    Ok(Outcome::Ran(failed))
}

/// Why a mutation changes nothing.
enum Failed {
    /// Subject to the failure policy.
    Mutation(String),
    /// Whatever the failure policy.
    Status(ApiError),
}

/// The object after one mutation, in the version that the policy matched; `None` if it does not
/// change.
fn mutate_once(
    request: &Request<'_>,
    invocation: &Invocation<'_>,
    mutation: &Mutation,
    evaluation: &Evaluation<'_>,
    object: &Object,
) -> Result<Option<Object>, Failed> {
    let failed = |why: String| Failed::Mutation(why);
    let versioned = request.versioned(object, invocation.version);
    let value = match mutation {
        Mutation::ApplyConfiguration(expression) => {
            let value = evaluated(evaluation, expression).map_err(failed)?;
            let Value::Message(message) = &value else {
                let found = value.type_of();
                return Err(failed(format!(
                    "unsupported return type from ApplyConfiguration expression: {found}"
                )));
            };
            check_type_names(message, "Object").map_err(failed)?;
            let mut configuration = value.to_json().map_err(failed)?;
            configuration["apiVersion"] = versioned.api_version.clone().into();
            configuration["kind"] = versioned.kind.clone().into();
            let Some(resource) = request.resource_of(&versioned, invocation.version) else {
                return Err(failed(format!(
                    "Resource kind {} not found.",
                    versioned.kind
                )));
            };
            let live = versioned.to_value();
            let merged = managed_fields::merge_configuration(resource, &live, &configuration);
            merged.map_err(|why| failed(format!("error applying patch: {why}")))?
        }
        Mutation::JsonPatch(expression) => {
            let value = evaluated(evaluation, expression).map_err(failed)?;
            let patch = json_patch(&value).map_err(failed)?;
            let patch = JsonPatch::read(patch)
                .map_err(|unreadable| failed(format!("JSON Patch: {unreadable:?}")))?;
            let mut value = versioned.to_value();
            match patch.apply(&mut value) {
                Ok(()) => value,
                // Mirrors jsonPatcher.Patch: a test that fails means that there is nothing to do.
                Err(why) if JsonPatch::is_failed_test(&why) => return Ok(None),
                Err(why) => return Err(failed(format!("JSON Patch: {why}"))),
            }
        }
    };
    let mutated = decode_mutated(request, value, &versioned, invocation.version);
    mutated.map(Some).map_err(Failed::Status)
}

fn evaluated<'a>(
    evaluation: &Evaluation<'a>,
    expression: &Expression,
) -> Result<Value<'a>, String> {
    let mut budget = BUDGET;
    if let Err(why) = &expression.program {
        return Err(why.clone());
    }
    let value = evaluation.run(expression, &mut budget);
    value.map_err(|error| error.to_string())?
}

/// The names of types are paths of fields. Mirrors `CheckTypeNamesMatchFieldPathNames`.
fn check_type_names(message: &Message<'_>, path: &str) -> Result<(), String> {
    if &*message.type_name != path {
        return Err(format!(
            "type mismatch: unexpected type name {:?}, expected {path:?}, which matches field name path from root Object type",
            message.type_name
        ));
    }
    for (field, value) in &message.fields {
        check_types_of(value, &format!("{path}.{field}"))?;
    }
    Ok(())
}

fn check_types_of(value: &Value<'_>, path: &str) -> Result<(), String> {
    match value {
        Value::Message(message) => check_type_names(message, path),
        Value::List(List::Made(items)) => {
            items.iter().try_for_each(|item| check_types_of(item, path))
        }
        _ => Ok(()),
    }
}

/// The operations that an expression returns.
fn json_patch(value: &Value<'_>) -> Result<Json, String> {
    let Value::List(list) = value else {
        return Err("type mismatch: JSONPatchType.expression should evaluate to array".into());
    };
    let mut operations = Vec::new();
    for i in 0..list.len() {
        let item = list.get(i).map_err(|failure| failure.to_string())?;
        let Value::Message(message) = &item else {
            return Err(
                "type mismatch: JSONPatchType.expression should evaluate to array of JSONPatch"
                    .into(),
            );
        };
        let mut operation = Map::new();
        for (field, value) in &message.fields {
            if let (Value::Message(object), "value") = (value, field.as_str()) {
                check_type_names(object, &object.type_name.clone())?;
            }
            let value = value.to_json().map_err(|why| {
                format!("JSONPath valueExpression evaluated to a type that could not marshal to JSON: {why}")
            })?;
            operation.insert(field.clone(), value);
        }
        operations.push(Json::Object(operation));
    }
    Ok(json!(operations))
}

fn is_reinvocable(invocation: &Invocation<'_>) -> bool {
    matches!(
        invocation.policy.rules,
        Rules::Mutating {
            is_reinvocable: true,
            ..
        }
    )
}

/// The identity of an invocation: policy, binding and parameter.
fn key(invocation: &Invocation<'_>) -> String {
    let param = invocation.params.get("metadata");
    let text = |field: &str| {
        let text = param.and_then(|meta| meta.get(field));
        text.and_then(Json::as_str).unwrap_or_default()
    };
    format!(
        "{}/{}/{}/{}",
        invocation.policy.name,
        invocation.binding.name,
        text("namespace"),
        text("name")
    )
}

fn denied(invocation: &Invocation<'_>, why: &str) -> String {
    format!(
        "policy '{}' with binding '{}' denied request: {why}",
        invocation.policy.name, invocation.binding.name
    )
}

fn configuration_error(error: &ConfigurationError<'_>) -> Option<String> {
    if error.policy.fails_open {
        return None;
    }
    let policy = &error.policy.name;
    let message = error.message();
    Some(match error.binding {
        Some(binding) => format!(
            "policy '{policy}' with binding '{}' denied request: {message}",
            binding.name
        ),
        None => format!("policy {policy:?} denied request: {message}"),
    })
}

/// The refusal of a request, with the first error as its message and all as its causes.
fn refused(
    request: &Request<'_>,
    object: Option<&Object>,
    first: &(String, &'static str),
    errors: &[(String, &'static str)],
) -> ApiError {
    let name = match request.name(object) {
        "" => object.map_or("", |object| object.meta.generate_name.as_str()),
        name => name,
    };
    let name = if name.is_empty() { "Unknown" } else { name };
    let (first, reason) = first;
    let causes = errors.iter().map(|(message, _)| Cause {
        message: message.clone(),
        ..Cause::default()
    });
    let forbidden = request.attributes.forbidden(name, "");
    match forbidden.as_status(403, reason, causes.collect()) {
        ApiError::Status {
            code,
            reason,
            details,
            ..
        } => ApiError::Status {
            code,
            reason,
            message: first.clone(),
            details,
        },
        other => other,
    }
}
