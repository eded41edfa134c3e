//! Type checking of ValidatingAdmissionPolicies: sets `status.typeChecking` and
//! `status.observedGeneration`.
//!
//! Input: policies, discovery and OpenAPI documents of the kinds that they match. Output: server-side
//! apply of the status.
//! Guarantees: a policy is checked once per generation, as upstream: a definition that changes later
//! does not change the warnings.
//! Mirrors `pkg/controller/validatingadmissionpolicystatus`.

use std::collections::{BTreeMap, BTreeSet};

use bellerophon::client::WriteOptions;
use bellerophon::prelude::*;
use bellerophon_resources::kinds::admission::{
    GroupVersionKind, KINDS_MAX, Params, PolicyExpressions, kind_shape, resources_to_check,
    type_check,
};
use k8s_openapi::api::admissionregistration::v1::{
    ExpressionWarning, TypeChecking, ValidatingAdmissionPolicy, ValidatingAdmissionPolicySpec,
    ValidatingAdmissionPolicyStatus,
};
use kube::Client;
use serde_json::Value;

use crate::core::discovery::ServedResources;

/// The field manager of the status, as upstream.
const FIELD_MANAGER: &str = "validatingadmissionpolicy-status";

/// Adds the controller, under its upstream name.
pub(crate) fn setup(mgr: &mut Manager) {
    mgr.controller::<ValidatingAdmissionPolicy>()
        .name("validatingadmissionpolicy-status-controller")
        .concurrency(5)
        .reconcile(reconcile);
}

async fn reconcile(req: Request<ValidatingAdmissionPolicy>) -> Result<Action, Error> {
    let Some(policy) = req.object() else {
        return Ok(Action::await_change());
    };
    let generation = policy.metadata.generation;
    let status = policy.status.as_ref();
    if generation <= status.and_then(|status| status.observed_generation) {
        return Ok(Action::await_change());
    }
    let warnings = match &policy.spec {
        Some(spec) => check(req.client().kube(), spec).await?,
        None => Vec::new(),
    };
    let status = ValidatingAdmissionPolicyStatus {
        observed_generation: generation,
        type_checking: Some(TypeChecking {
            expression_warnings: (!warnings.is_empty()).then_some(warnings),
        }),
        ..ValidatingAdmissionPolicyStatus::default()
    };
    let options = WriteOptions {
        field_manager: Some(FIELD_MANAGER.to_owned()),
        ..WriteOptions::default()
    };
    req.client()
        .with_options(options)
        .apply_status(policy, &status)
        .await?;
    Ok(Action::await_change())
}

/// The warnings about a policy.
async fn check(
    client: &Client,
    spec: &ValidatingAdmissionPolicySpec,
) -> Result<Vec<ExpressionWarning>, kube::Error> {
    let mut schemas = Schemas {
        client,
        documents: BTreeMap::new(),
    };
    let mut kinds = Vec::new();
    for kind in kinds_to_check(client, spec).await? {
        // A kind without a schema is not checked.
        if let Some(document) = schemas.document(&kind).await?
            && let Some(shape) = kind_shape(document, &kind)
        {
            kinds.push((kind, shape));
        }
    }
    let params = match &spec.param_kind {
        None => Params::None,
        Some(param_kind) => {
            let api_version = param_kind.api_version.as_deref().unwrap_or_default();
            let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
            let kind = GroupVersionKind {
                group: group.to_owned(),
                version: version.to_owned(),
                kind: param_kind.kind.clone().unwrap_or_default(),
            };
            let document = schemas.document(&kind).await?;
            let shape = document.and_then(|document| kind_shape(document, &kind));
            shape.map_or(Params::Unknown, Params::Known)
        }
    };
    let variables = spec.variables.iter().flatten();
    let validations = spec.validations.iter().flatten();
    let expressions = PolicyExpressions {
        variables: variables
            .map(|variable| (variable.name.as_str(), variable.expression.as_str()))
            .collect(),
        validations: validations
            .map(|validation| {
                let message = validation.message_expression.as_deref();
                (validation.expression.as_str(), message.unwrap_or_default())
            })
            .collect(),
    };
    let warnings = type_check(&expressions, &kinds, params).into_iter();
    Ok(warnings
        .map(|found| ExpressionWarning {
            field_ref: found.field_ref,
            warning: found.warning,
        })
        .collect())
}

/// The kinds that the rules of a policy name, sorted. Mirrors `typesToCheck`.
async fn kinds_to_check(
    client: &Client,
    spec: &ValidatingAdmissionPolicySpec,
) -> Result<BTreeSet<GroupVersionKind>, kube::Error> {
    let constraints = spec.match_constraints.as_ref();
    let rules = constraints.and_then(|constraints| constraints.resource_rules.as_deref());
    let mut kinds = BTreeSet::new();
    let Some(rules) = rules.filter(|rules| !rules.is_empty()) else {
        return Ok(kinds);
    };
    let served = ServedResources::discover(client).await?;
    for rule in rules {
        let names = |names: &Option<Vec<String>>| names.clone().unwrap_or_default();
        let resources = resources_to_check(
            &names(&rule.api_groups),
            &names(&rule.api_versions),
            &names(&rule.resources),
        );
        let mut count = 0;
        for resource in resources {
            let kind = served.kind_of(&resource.group, &resource.version, &resource.resource);
            let Some(kind) = kind else {
                continue;
            };
            kinds.insert(GroupVersionKind {
                kind: kind.to_owned(),
                group: resource.group,
                version: resource.version,
            });
            count += 1;
            // Rules after this one are not looked at, as upstream.
            if count == KINDS_MAX {
                return Ok(kinds);
            }
        }
    }
    Ok(kinds)
}

/// The OpenAPI documents that were read.
struct Schemas<'a> {
    client: &'a Client,
    /// By path; `None` if there is no such document.
    documents: BTreeMap<String, Option<Value>>,
}

impl Schemas<'_> {
    /// The document with the schema of a kind; `None` if its version is not served.
    async fn document(&mut self, kind: &GroupVersionKind) -> Result<Option<&Value>, kube::Error> {
        let GroupVersionKind { group, version, .. } = kind;
        let path = match group.as_str() {
            "" => format!("/openapi/v3/api/{version}"),
            group => format!("/openapi/v3/apis/{group}/{version}"),
        };
        if !self.documents.contains_key(&path) {
            let request = http::Request::get(&path).body(Vec::new());
            let request = request.map_err(kube::Error::HttpError)?;
            let document = match self.client.request::<Value>(request).await {
                Ok(document) => Some(document),
                Err(kube::Error::Api(status)) if status.code == 404 => None,
                Err(error) => return Err(error),
            };
            self.documents.insert(path.clone(), document);
        }
        Ok(self.documents.get(&path).and_then(Option::as_ref))
    }
}
