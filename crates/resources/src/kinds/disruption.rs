//! PodDisruptionBudgets: validation, and whether a pod may be evicted.
//! In: a pod and the budgets of its namespace. Out: a decision, with the updated budget.
//! Guarantees: an allowed eviction takes exactly one disruption from exactly one budget. Mirrors
//! `ValidatePodDisruptionBudget` in `pkg/apis/policy/validation` and `checkAndDecrement` of the
//! eviction registry.

use bellerophon_apimachinery::{
    error::{ApiError, Cause, GroupResource},
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt},
    time::Time,
};
use bellerophon_codec::{object::Object, types::Internal};
use serde_json::{Value, json};

use super::{Generation, Strategy, conditions, validation};

/// The strategy of PodDisruptionBudgets. Mirrors `pkg/registry/policy/poddisruptionbudget`.
pub const DISRUPTION_BUDGET: Strategy = Strategy {
    default: |budget| {
        budget.section("spec");
        let status = budget.section("status");
        COUNTS.iter().for_each(|name| status.default_to(name, 0));
    },
    prepare_create: |budget| {
        budget.body.insert("status".into(), json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0}));
    },
    validate,
    validate_status,
    generation: Generation::Spec,
    unconditional_update: false,
    ..Strategy::WITH_STATUS
};

const COUNTS: [&str; 4] = [
    "disruptionsAllowed",
    "currentHealthy",
    "desiredHealthy",
    "expectedPods",
];
/// More evictions than this are not kept unconfirmed.
const DISRUPTED_MAX: usize = 2000;

fn validate(budget: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("spec");
    let spec = budget.body.field("spec");
    if spec.get_set("minAvailable").is_some() && spec.get_set("maxUnavailable").is_some() {
        out.push(FieldError::invalid(
            at,
            Internal::one("policy.PodDisruptionBudgetSpec", spec),
            "minAvailable and maxUnavailable cannot be both set",
        ));
    }
    for field in ["minAvailable", "maxUnavailable"] {
        if let Some(value) = spec.get_set(field) {
            int_or_percent(&at.child(field), value, out);
        }
    }
    validation::label_selector(&at.child("selector"), spec.field("selector"), out);
    if let Some(policy) = spec.field("unhealthyPodEvictionPolicy").as_str() {
        validation::one_of(
            &at.child("unhealthyPodEvictionPolicy"),
            policy,
            &["AlwaysAllow", "IfHealthyBudget"],
            out,
        );
    }
}

fn int_or_percent(at: &Path, value: &Value, out: &mut Vec<FieldError>) {
    let Some(text) = value.as_str() else {
        validation::not_negative(at, value.as_i64().unwrap_or_default(), out);
        return;
    };
    let digits = text
        .strip_suffix('%')
        .filter(|d| !d.is_empty() && d.bytes().all(|b| b.is_ascii_digit()));
    match digits {
        None => {
            let why = "a valid percent string must be a numeric string followed by an ending '%' (e.g. '1%',  or '93%', regex used for validation is '[0-9]+%')";
            out.push(FieldError::invalid(at, text, why));
        }
        Some(digits) if digits.parse::<u64>().is_ok_and(|n| n <= 100) => {}
        Some(_) => out.push(FieldError::invalid(
            at,
            text,
            "must not be greater than 100%",
        )),
    }
}

fn validate_status(new: &Object, _: &Object, out: &mut Vec<FieldError>) {
    let at = Path::field("status");
    conditions::validate(
        &at.child("conditions"),
        new.body.field("status").list("conditions"),
        out,
    );
    for name in COUNTS {
        validation::not_negative(
            &at.child(name),
            new.body.field("status").int(name).unwrap_or_default(),
            out,
        );
    }
}

/// Whether a pod may be evicted.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    /// Delete it.
    Allowed {
        /// The budget to store before that, when the eviction counts against one.
        budget: Option<Box<Object>>,
        /// Whether the pod may be deleted only in the version that was evaluated.
        unchanged: bool,
    },
    /// Answer this instead.
    Refused(ApiError),
}

/// Evaluates an eviction at the time `now` by the budgets of the pod's namespace.
pub fn evict<'a>(
    pod: &Object,
    budgets: impl IntoIterator<Item = &'a Object>,
    now: Time,
) -> Verdict {
    let phase = pod.str_at("status.phase");
    let is_terminating = pod.meta.deletion_timestamp.is_some();
    if is_terminating || ["Succeeded", "Failed"].contains(&phase) {
        return Verdict::Allowed {
            budget: None,
            unchanged: false,
        };
    }
    if phase == "Pending" {
        return Verdict::Allowed {
            budget: None,
            unchanged: true,
        };
    }
    let covers = |budget: &&Object| {
        validation::selects(
            budget.body.field("spec").field("selector"),
            &pod.meta.labels,
        )
    };
    let mut covering = budgets.into_iter().filter(covers);
    let Some(budget) = covering.next() else {
        return Verdict::Allowed {
            budget: None,
            unchanged: false,
        };
    };
    if covering.next().is_some() {
        let why = "This pod has more than one PodDisruptionBudget, which the eviction subresource does not support.";
        return Verdict::Refused(ApiError::Unnamed(why.into()));
    }
    if !is_ready(pod) && spares_unhealthy(budget) {
        return Verdict::Allowed {
            budget: None,
            unchanged: true,
        };
    }
    match take_one(budget, &pod.meta.name, now) {
        Ok(budget) => Verdict::Allowed {
            budget: Some(Box::new(budget)),
            unchanged: false,
        },
        Err(error) => Verdict::Refused(error),
    }
}

fn is_ready(pod: &Object) -> bool {
    let conditions = pod.body.field("status").list("conditions");
    conditions
        .iter()
        .any(|c| c.text("type") == "Ready" && c.text("status") == "True")
}

/// Whether a pod that is not ready may go without counting.
fn spares_unhealthy(budget: &Object) -> bool {
    let status = budget.body.field("status");
    let healthy = status.int("currentHealthy").unwrap_or_default();
    let desired = status.int("desiredHealthy").unwrap_or_default();
    budget.str_at("spec.unhealthyPodEvictionPolicy") == "AlwaysAllow"
        || (healthy >= desired && desired > 0)
}

fn take_one(budget: &Object, pod: &str, now: Time) -> Result<Object, ApiError> {
    let name = budget.meta.name.as_str();
    let status = budget.body.field("status");
    if status.int("observedGeneration").unwrap_or_default() < budget.meta.generation {
        return Err(would_violate(
            10,
            format!("The disruption budget {name} is still being processed by the server."),
        ));
    }
    let forbidden = |why: &str| {
        ApiError::forbidden(
            GroupResource::new("policy", "poddisruptionbudget"),
            name,
            why,
        )
    };
    let allowed = status.int("disruptionsAllowed").unwrap_or_default();
    if allowed < 0 {
        return Err(forbidden("pdb disruptions allowed is negative"));
    }
    if status.entries("disruptedPods").count() > DISRUPTED_MAX {
        return Err(forbidden(
            "DisruptedPods map too big - too many evictions not confirmed by PDB controller",
        ));
    }
    if allowed == 0 {
        return Err(would_violate(0, why_none(name, status)));
    }
    let mut after = budget.clone();
    let observed = status.int("observedGeneration").unwrap_or_default();
    let section = after.section("status");
    section.insert("disruptionsAllowed".into(), (allowed - 1).into());
    if allowed == 1 {
        let conditions = no_more_allowed(status.list("conditions"), observed, now);
        section.insert("conditions".into(), conditions.into());
    }
    let mut disrupted = status
        .field("disruptedPods")
        .as_object()
        .cloned()
        .unwrap_or_default();
    disrupted.insert(pod.to_owned(), now.to_string().into());
    section.insert("disruptedPods".into(), disrupted.into());
    Ok(after)
}

fn would_violate(retry_after_seconds: u32, message: String) -> ApiError {
    ApiError::TooManyRequests {
        message: "Cannot evict pod as it would violate the pod's disruption budget.".into(),
        retry_after_seconds,
        causes: vec![Cause {
            reason: "DisruptionBudget".into(),
            message,
            field: String::new(),
        }],
    }
}

fn why_none(name: &str, status: &Value) -> String {
    let condition = status
        .list("conditions")
        .iter()
        .find(|c| c.text("type") == "DisruptionAllowed");
    let refusing =
        condition.filter(|c| c.text("status") == "False" && !c.text("message").is_empty());
    let healthy = status.int("currentHealthy").unwrap_or_default();
    let desired = status.int("desiredHealthy").unwrap_or_default();
    let head = format!("The disruption budget {name}");
    match refusing {
        Some(c) if c.text("reason") == "SyncFailed" => {
            format!(
                "{head} does not allow evicting pods currently because it failed sync: {}",
                c.text("message")
            )
        }
        _ if healthy <= desired => {
            format!("{head} needs {desired} healthy pods and has {healthy} currently")
        }
        Some(c) => format!(
            "{head} does not allow evicting pods currently ({}): {}",
            c.text("reason"),
            c.text("message")
        ),
        None => format!("{head} does not allow evicting pods currently"),
    }
}

/// The conditions with `DisruptionAllowed` turned to False; its time moves only when it was not
/// False before.
fn no_more_allowed(conditions: &[Value], observed: i64, now: Time) -> Vec<Value> {
    let before = conditions
        .iter()
        .find(|c| c.text("type") == "DisruptionAllowed");
    let since = match before.filter(|c| c.text("status") == "False") {
        Some(c) => c.field("lastTransitionTime").clone(),
        None => now.to_string().into(),
    };
    let mut condition = json!({"type": "DisruptionAllowed", "status": "False", "lastTransitionTime": since, "reason": "InsufficientPods", "message": ""});
    if observed != 0 {
        condition["observedGeneration"] = observed.into();
    }
    match conditions
        .iter()
        .position(|c| c.text("type") == "DisruptionAllowed")
    {
        Some(i) => conditions
            .iter()
            .enumerate()
            .map(|(j, c)| if i == j { condition.clone() } else { c.clone() })
            .collect(),
        None => conditions.iter().cloned().chain([condition]).collect(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::test_support::{NOW, create, object, refused};

    fn pod(status: Value) -> Object {
        object(json!({"metadata": {"name": "p", "labels": {"app": "web"}}, "status": status}))
    }

    fn budget(name: &str, status: Value) -> Object {
        object(
            json!({"metadata": {"name": name, "generation": 1}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}, "status": status}),
        )
    }

    fn evaluate(pod: &Object, budgets: &[Object]) -> Verdict {
        evict(pod, budgets, Time::parse(NOW).expect("a constant"))
    }

    fn running() -> Object {
        pod(json!({"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}))
    }

    #[test]
    fn eviction_takes_one_disruption() {
        let held = budget(
            "b",
            json!({"observedGeneration": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2, "disruptionsAllowed": 1}),
        );
        let Verdict::Allowed {
            budget: Some(after),
            unchanged: false,
        } = evaluate(&running(), &[held])
        else {
            panic!("one is allowed")
        };
        assert_eq!(
            after.body["status"],
            json!({"observedGeneration": 1, "disruptedPods": {"p": NOW}, "disruptionsAllowed": 0, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2,
                "conditions": [{"type": "DisruptionAllowed", "status": "False", "observedGeneration": 1, "lastTransitionTime": NOW, "reason": "InsufficientPods", "message": ""}]})
        );
    }

    #[test]
    fn exhausted_budget_denies_with_a_reason() {
        let cases = [
            (
                json!({}),
                10,
                "The disruption budget b is still being processed by the server.",
            ),
            (
                json!({"observedGeneration": 1, "currentHealthy": 1, "desiredHealthy": 1}),
                0,
                "The disruption budget b needs 1 healthy pods and has 1 currently",
            ),
            (
                json!({"observedGeneration": 1, "currentHealthy": 2, "desiredHealthy": 1, "conditions": [{"type": "DisruptionAllowed", "status": "False", "reason": "SyncFailed", "message": "no"}]}),
                0,
                "The disruption budget b does not allow evicting pods currently because it failed sync: no",
            ),
        ];
        for (status, seconds, why) in cases {
            let Verdict::Refused(ApiError::TooManyRequests {
                retry_after_seconds,
                causes,
                ..
            }) = evaluate(&running(), &[budget("b", status)])
            else {
                panic!("{why}")
            };
            assert_eq!(retry_after_seconds, seconds);
            assert_eq!(causes[0].message.as_str(), why);
        }
    }

    #[test]
    fn only_running_pods_of_one_budget_count() {
        let free = Verdict::Allowed {
            budget: None,
            unchanged: false,
        };
        let no_room = || budget("b", json!({"observedGeneration": 1}));
        assert_eq!(
            evaluate(&pod(json!({"phase": "Failed"})), &[no_room()]),
            free
        );
        assert_eq!(
            evaluate(&pod(json!({"phase": "Pending"})), &[no_room()]),
            Verdict::Allowed {
                budget: None,
                unchanged: true
            }
        );
        assert_eq!(evaluate(&running(), &[]), free);
        let healthy = budget(
            "b",
            json!({"observedGeneration": 1, "currentHealthy": 1, "desiredHealthy": 1}),
        );
        assert_eq!(
            evaluate(&pod(json!({"phase": "Running"})), &[healthy]),
            Verdict::Allowed {
                budget: None,
                unchanged: true
            }
        );
        assert!(matches!(
            evaluate(&running(), &[no_room(), no_room()]),
            Verdict::Refused(ApiError::Unnamed(_))
        ));
    }

    #[test]
    fn bounds_are_checked() {
        refused(
            &DISRUPTION_BUDGET,
            json!({"spec": {"minAvailable": 1, "maxUnavailable": 1, "selector": {"matchLabels": {"a": "b"}}}}),
            &[
                r#"spec: Invalid value: {"MinAvailable":1,"Selector":{"matchLabels":{"a":"b"}},"MaxUnavailable":1,"UnhealthyPodEvictionPolicy":null}: minAvailable and maxUnavailable cannot be both set"#,
            ],
        );
        refused(
            &DISRUPTION_BUDGET,
            json!({"spec": {"maxUnavailable": -1, "unhealthyPodEvictionPolicy": "Never", "selector": {"matchExpressions": [{"key": "a", "operator": "In"}]}}}),
            &[
                "spec.maxUnavailable: Invalid value: -1: must be greater than or equal to 0",
                "spec.selector.matchExpressions[0].values: Required value: must be specified when `operator` is 'In' or 'NotIn'",
                r#"spec.unhealthyPodEvictionPolicy: Unsupported value: "Never": supported values: "AlwaysAllow", "IfHealthyBudget""#,
            ],
        );
        refused(
            &DISRUPTION_BUDGET,
            json!({"spec": {"minAvailable": "130%"}}),
            &["spec.minAvailable: Invalid value: \"130%\": must not be greater than 100%"],
        );
        let (budget, _) = create(
            &DISRUPTION_BUDGET,
            json!({"spec": {"maxUnavailable": "30%"}, "status": {"expectedPods": 9}}),
        );
        assert_eq!(
            budget.body["status"],
            json!({"disruptionsAllowed": 0, "currentHealthy": 0, "desiredHealthy": 0, "expectedPods": 0})
        );
    }
}
