//! Evaluates the expressions of webhooks and policies within their cost budgets.
//! In: the variables of a request. Out: values, or errors with the messages of kube-apiserver.
//! Mirrors `evaluationActivation` and `compositionContext`.

use std::{
    collections::HashMap,
    fmt,
    sync::{
        Arc, LazyLock, Mutex, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
};

use bellerophon_cel::{Failure, LazyFields, Shape, ShapeKind, Value, view};
use serde_json::Value as Json;

use crate::{api::Api, auth, auth::User};
use bellerophon_resources::kinds::admission::Authorize;
use bellerophon_resources::kinds::admission::Authz;
use bellerophon_resources::kinds::admission::CheckedResource;
use bellerophon_resources::kinds::admission::Decision;
use bellerophon_resources::kinds::admission::Expression;
use bellerophon_resources::kinds::admission::Subject;

/// The cost limit of one expression.
const CALL_LIMIT: u64 = 1_000_000;

/// Data of which nothing is declared.
static ANY: LazyLock<Shape> = LazyLock::new(|| Shape {
    nullable: true,
    ..Shape::of(ShapeKind::Any)
});

/// The values of the variables of expressions. What is not there is null.
pub(super) struct Inputs {
    pub(super) object: Json,
    pub(super) old_object: Json,
    pub(super) request: Json,
    pub(super) namespace: Json,
    pub(super) params: Json,
    pub(super) authorizer: Subject,
    /// `authorizer.requestResource`.
    pub(super) request_resource: CheckedResource,
}

/// The expressions of a webhook or policy need more than they may cost together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OutOfBudget;

impl fmt::Display for OutOfBudget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("validation failed due to running out of cost budget, no further validation rules will be run")
    }
}

/// One evaluation of the expressions of a webhook or policy. Variables are evaluated once, when an
/// expression uses them.
pub(super) struct Evaluation<'a> {
    inputs: &'a Inputs,
    variables: &'a [(String, Expression)],
    known: Mutex<HashMap<String, Result<Value<'a>, Failure>>>,
    /// The cost of evaluated variables since it was last read.
    cost: AtomicU64,
}

impl<'a> Evaluation<'a> {
    pub(super) fn new(inputs: &'a Inputs, variables: &'a [(String, Expression)]) -> Self {
        Self {
            inputs,
            variables,
            known: Mutex::new(HashMap::new()),
            cost: AtomicU64::new(0),
        }
    }

    /// The value of an expression, or its error. What it costs is taken from the budget.
    ///
    /// # Errors
    /// The budget is exceeded.
    pub(super) fn run(
        &self,
        expression: &Expression,
        budget: &mut u64,
    ) -> Result<Result<Value<'a>, String>, OutOfBudget> {
        let program = match &expression.program {
            Ok(program) => program,
            Err(why) => return Ok(Err(format!("compilation error: {why}"))),
        };
        let evaluated = program.evaluate_with(&self.values(expression), self, CALL_LIMIT);
        for cost in [self.cost.swap(0, Ordering::Relaxed), evaluated.cost] {
            *budget = budget.checked_sub(cost).ok_or(OutOfBudget)?;
        }
        Ok(evaluated.value.map_err(|failure| {
            let text = &expression.text;
            format!("expression '{text}' resulted in error: {failure}")
        }))
    }

    /// The values of the declared variables, in their order.
    fn values(&self, expression: &Expression) -> Vec<Value<'a>> {
        let data = |json: &'a Json| view(json, &ANY).unwrap_or(Value::Null);
        let inputs = self.inputs;
        let mut values = vec![
            data(&inputs.object),
            data(&inputs.old_object),
            data(&inputs.request),
            data(&inputs.namespace),
        ];
        if expression.declared.params {
            values.push(data(&inputs.params));
        }
        if expression.declared.authorizer {
            let subject = &inputs.authorizer;
            values.push(Value::of(Authz::Authorizer(subject.clone())));
            let resource = inputs.request_resource.clone();
            values.push(Value::of(Authz::Resource(subject.clone(), resource)));
        }
        if expression.declared.variables {
            values.push(Value::Lazy);
        }
        values
    }

    fn evaluate_variable(&self, name: &str, expression: &Expression) -> Result<Value<'a>, Failure> {
        let program = expression.program.as_ref().map_err(|why| {
            Failure::new(format!(
                "composited variable {name:?} fails to compile: {why}"
            ))
        })?;
        let evaluated = program.evaluate_with(&self.values(expression), self, CALL_LIMIT);
        self.cost.fetch_add(evaluated.cost, Ordering::Relaxed);
        evaluated.value.map_err(|failure| {
            Failure::new(format!(
                "composited variable {name:?} fails to evaluate: {failure}"
            ))
        })
    }
}

impl<'a> LazyFields<'a> for Evaluation<'a> {
    fn get(&self, name: &str) -> Result<Option<Value<'a>>, Failure> {
        let known = || self.known.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(known) = known().get(name) {
            return known.clone().map(Some);
        }
        let Some((_, expression)) = self.variables.iter().find(|(other, _)| other == name) else {
            return Ok(None);
        };
        let value = self.evaluate_variable(name, expression);
        known().insert(name.to_owned(), value.clone());
        value.map(Some)
    }
}

/// Decides what a user may do, by the roles that are stored.
struct StoredRoles {
    api: Weak<Api>,
    user: User,
}

impl StoredRoles {
    fn decide(&self, verb: &str, target: auth::Target<'_>) -> Decision {
        let user = &self.user;
        let attributes = auth::Attributes { user, verb, target };
        let decision = self
            .api
            .upgrade()
            .map(|api| auth::authorize(&attributes, &*api));
        match decision {
            Some(auth::Decision::Allow(reason)) => Decision {
                allowed: true,
                reason,
            },
            Some(auth::Decision::NoOpinion(reason)) => Decision {
                allowed: false,
                reason,
            },
            None => Decision {
                allowed: false,
                reason: "the API server stops".into(),
            },
        }
    }
}

impl Authorize for StoredRoles {
    fn check_resource(&self, verb: &str, resource: &CheckedResource) -> Decision {
        let target = auth::Target::Resource {
            group: &resource.group,
            resource: &resource.resource,
            subresource: &resource.subresource,
            namespace: &resource.namespace,
            name: &resource.name,
        };
        self.decide(verb, target)
    }

    fn check_path(&self, verb: &str, path: &str) -> Decision {
        self.decide(verb, auth::Target::Path(path))
    }

    fn service_account(&self, namespace: &str, name: &str) -> Subject {
        Arc::new(Self {
            api: self.api.clone(),
            user: User::service_account(namespace, name, ""),
        })
    }
}

/// The user of a request, as `authorizer` checks them.
pub(super) fn subject(api: &Api, user: &User) -> Subject {
    Arc::new(StoredRoles {
        api: api.handle(),
        user: user.clone(),
    })
}
