//! The status of RebootPolicies.
//!
//! Guarantee: a status is written only if it differs from the current one.

use bellerophon::{
    ConditionStatus, Failure, Lister, ObjectKey, SetCondition, Writes, set_condition,
};
use jiff::Timestamp;
use kube::{Api, Client};

use super::{plan::PoolReport, reconciler::is_not_found};
use crate::policy::{RebootPolicy, RebootPolicyStatus};

/// Writes the status of every policy that changed.
///
/// # Errors
/// A request fails.
pub(crate) async fn write(
    client: &Client,
    writes: &Writes,
    policies: &Lister<RebootPolicy>,
    reports: &[PoolReport],
    now: Timestamp,
) -> Result<(), Failure> {
    let api = Api::<RebootPolicy>::all(client.clone());
    for report in reports {
        let Some(policy) = policies.get(&ObjectKey::cluster(&report.policy)) else {
            continue;
        };
        let current = policy.status.clone().unwrap_or_default();
        let desired = desired_status(report, &current, now);
        if desired == current {
            continue;
        }
        let updated = RebootPolicy {
            status: Some(desired),
            ..(*policy).clone()
        };
        match writes.apply_status(&api, &updated).await {
            Ok(_) => {}
            // The policy was deleted.
            Err(error) if is_not_found(&error.source) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn desired_status(
    report: &PoolReport,
    current: &RebootPolicyStatus,
    now: Timestamp,
) -> RebootPolicyStatus {
    let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let is_valid = report.invalid.is_none();
    let lost = format!("{} nodes did not come back", report.lost);
    let mut conditions = current.conditions.clone();
    for (type_, holds, reason, message) in [
        (
            "BreakerOpen",
            report.breaker_open,
            if report.breaker_open {
                "NodesLost"
            } else {
                "NodesComeBack"
            },
            lost.as_str(),
        ),
        (
            "Valid",
            is_valid,
            if is_valid { "Read" } else { "Unreadable" },
            report.invalid.as_deref().unwrap_or_default(),
        ),
    ] {
        let condition = SetCondition {
            type_,
            status: if holds {
                ConditionStatus::True
            } else {
                ConditionStatus::False
            },
            reason,
            message,
            observed_generation: report.generation,
        };
        set_condition(&mut conditions, &condition, now);
    }
    RebootPolicyStatus {
        observed_generation: report.generation,
        nodes: count(report.nodes),
        needed: count(report.waiting.values().sum()),
        granted: count(report.holders.len()),
        unavailable: count(report.unavailable),
        limit: count(report.limit),
        conditions,
    }
}
