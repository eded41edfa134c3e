//! The status of RebootPolicies.
//!
//! Guarantee: a status is written only if it differs from the current one.

use bellerophon::client::ReconcileClient;
use bellerophon::conditions::{ConditionStatus, ConditionUpdate, set_status_condition};
use bellerophon::prelude::*;
use jiff::Timestamp;

use super::plan::PoolReport;
use crate::policy::{RebootPolicy, RebootPolicyStatus};

/// Writes the status of every policy that changed.
///
/// # Errors
/// A request fails.
pub(crate) async fn write(
    client: &ReconcileClient,
    policies: &Lister<RebootPolicy>,
    reports: &[PoolReport],
    now: Timestamp,
) -> Result<(), Error> {
    for report in reports {
        let Some(policy) = policies.get(&ObjectKey::cluster(&report.policy)) else {
            continue;
        };
        let current = policy.status.clone().unwrap_or_default();
        let desired = desired_status(report, &current, now);
        if desired == current {
            continue;
        }
        match client.apply_status(&*policy, &desired).await {
            Ok(_) => {}
            // The policy was deleted.
            Err(error) if error.is_not_found() => {}
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
        let status = match holds {
            true => ConditionStatus::True,
            false => ConditionStatus::False,
        };
        let condition = ConditionUpdate {
            observed_generation: report.generation,
            ..ConditionUpdate::new(type_, status, reason).message(message)
        };
        set_status_condition(&mut conditions, condition, now);
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
