//! The plugins ValidatingAdmissionPolicy and MutatingAdmissionPolicy.
//! In: a request and the policies that it may concern. Out: the mutated object, or a denial.
//!
//! Guarantees: policies are evaluated in the order of their names, and their bindings too; the
//! expressions of a policy, with one binding and one parameter, cost at most 10,000,000 units
//! together.

mod mutating; // mutations
mod params; // parameters of a binding
mod validating; // validations, messages and audit annotations

pub(super) use mutating::mutate;
pub(super) use validating::validate;

use serde_json::{Value, json};

use super::{
    evaluation::{Inputs, subject},
    matching::matched,
    request::Request,
};
use crate::{admission_config::Binding, admission_config::BoundPolicy, admission_config::Policy};
use bellerophon_apimachinery::error::ApiError;
use bellerophon_codec::object::Object;
use bellerophon_resources::kinds::admission::CheckedResource;

/// The cost budget of the expressions of a policy, with one binding and one parameter.
const BUDGET: u64 = 10_000_000;

/// A policy, a binding and a parameter that a request concerns.
struct Invocation<'a> {
    policy: &'a Policy,
    binding: &'a Binding,
    /// Null if the policy has none.
    params: Value,
    /// The version of the resource that the policy matched.
    version: usize,
}

/// A policy or binding that cannot be used.
struct ConfigurationError<'a> {
    policy: &'a Policy,
    binding: Option<&'a Binding>,
    why: String,
}

impl ConfigurationError<'_> {
    fn message(&self) -> String {
        let what = if self.binding.is_none() {
            "policy"
        } else {
            "binding"
        };
        format!("failed to configure {what}: {}", self.why)
    }
}

/// The invocations for a request, in the order of policies, bindings and parameters.
async fn invocations<'a>(
    request: &Request<'_>,
    policies: impl Iterator<Item = &'a BoundPolicy>,
    object: Option<&Object>,
    old: Option<&Object>,
) -> Vec<Result<Invocation<'a>, ConfigurationError<'a>>> {
    let mut found = Vec::new();
    let targets = request.rule_targets(object.or(old));
    for bound in policies {
        let policy = &*bound.policy;
        let failed = |binding: Option<&'a Binding>, why: String| {
            Err(ConfigurationError {
                policy,
                binding,
                why,
            })
        };
        let version = match matched(request, &policy.criteria, &targets, object, old) {
            Ok(None) => continue,
            Ok(Some(version)) => version,
            Err(error) => {
                found.push(failed(None, message_of(&error)));
                continue;
            }
        };
        for binding in &bound.bindings {
            let binding = &**binding;
            let is_matched = match &binding.criteria {
                None => Ok(Some(0)),
                Some(criteria) => matched(request, criteria, &targets, object, old),
            };
            match is_matched {
                Ok(None) => continue,
                Ok(Some(_)) => {}
                Err(error) => {
                    found.push(failed(Some(binding), message_of(&error)));
                    continue;
                }
            }
            match params::collect(request, policy, binding, object.or(old)) {
                Err(why) => found.push(failed(Some(binding), why)),
                Ok(params) if params.is_empty() => {}
                Ok(params) => {
                    if let Err(error) = request.prepare([object, old], version).await {
                        let why =
                            format!("failed to convert object version: {}", message_of(&error));
                        found.push(failed(Some(binding), why));
                        continue;
                    }
                    found.extend(params.into_iter().map(|params| {
                        Ok(Invocation {
                            policy,
                            binding,
                            params,
                            version,
                        })
                    }));
                }
            }
        }
    }
    found
}

fn message_of(error: &ApiError) -> String {
    let status = error.to_status();
    status["message"].as_str().unwrap_or_default().to_owned()
}

/// The variables of the expressions of an invocation.
fn inputs(
    request: &Request<'_>,
    invocation: &Invocation<'_>,
    object: Option<&Object>,
    old: Option<&Object>,
    namespace: Option<&Object>,
) -> Inputs {
    let attributes = request.attributes;
    Inputs {
        object: request.json(object, invocation.version),
        old_object: request.json(old, invocation.version),
        request: Value::Object(request.to_value(invocation.version, object.or(old))),
        namespace: namespace.map_or(Value::Null, namespace_value),
        params: invocation.params.clone(),
        authorizer: subject(request.api, attributes.user),
        request_resource: CheckedResource {
            group: attributes.resource.group.clone(),
            resource: attributes.resource.plural.clone(),
            subresource: attributes.subresource.to_owned(),
            namespace: attributes.namespace.to_owned(),
            name: request.name(object.or(old)).to_owned(),
        },
    }
}

/// A namespace as expressions see it. Mirrors `CreateNamespaceObject`: without owners and managed
/// fields.
fn namespace_value(namespace: &Object) -> Value {
    let mut meta = namespace.meta.clone();
    meta.managed_fields.clear();
    meta.owner_references.clear();
    let field = |name: &str| namespace.body.get(name).cloned().unwrap_or(json!({}));
    json!({"metadata": meta.to_value(), "spec": field("spec"), "status": field("status")})
}
