//! The status of RebootPolicies.
//!
//! Guarantee: a status is written only if it differs from the current one.

use bellerophon::{
    client::{ReconcileClient, WriteError},
    conditions::{ConditionStatus, ConditionUpdate, set_status_condition},
    prelude::*,
};
use jiff::Timestamp;

use super::{plan::PoolReport, reconciler::is_not_found};
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
) -> Result<(), WriteError> {
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
            Err(error) if is_not_found(&error) => {}
            Err(error) => return Err(error),
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
    let lost = format!("{} nodes did not come back", report.lost);
    // Starts from the current ones, which have the times of their last transitions.
    let mut conditions = current.conditions.clone();
    let breaker = if report.breaker_open {
        ConditionUpdate::new("BreakerOpen", ConditionStatus::True, "NodesLost")
    } else {
        ConditionUpdate::new("BreakerOpen", ConditionStatus::False, "NodesComeBack")
    };
    let valid = match &report.invalid {
        None => ConditionUpdate::new("Valid", ConditionStatus::True, "Read"),
        Some(message) => {
            ConditionUpdate::new("Valid", ConditionStatus::False, "Unreadable").message(message)
        }
    };
    for update in [breaker.message(lost), valid] {
        let update = ConditionUpdate {
            observed_generation: report.generation,
            ..update
        };
        set_status_condition(&mut conditions, update, now);
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
