//! Report: what policies say of their pools.
//! Holds: a status is written only when it says something new.

use bellerophon::{
    ConditionStatus, Failure, Lister, ObjectKey, SetCondition, Writes, set_condition,
};
use jiff::Timestamp;
use kube::{Api, Client};

use super::{pass::is_gone, plan::Report};
use crate::policy::{RebootPolicy, RebootPolicyStatus};

/// Writes the statuses that changed.
///
/// # Errors
/// The server refuses.
pub(crate) async fn write(
    client: &Client,
    writes: &Writes,
    policies: &Lister<RebootPolicy>,
    reports: &[Report],
    now: Timestamp,
) -> Result<(), Failure> {
    let api = Api::<RebootPolicy>::all(client.clone());
    for report in reports {
        let Some(policy) = policies.get(&ObjectKey::cluster(&report.policy)) else {
            continue;
        };
        let before = policy.status.clone().unwrap_or_default();
        let status = status(report, &before, now);
        if status == before {
            continue;
        }
        match writes
            .apply_status(
                &api,
                &RebootPolicy {
                    status: Some(status),
                    ..(*policy).clone()
                },
            )
            .await
        {
            Ok(_) => {}
            Err(error) if is_gone(&error.source) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

fn status(report: &Report, before: &RebootPolicyStatus, now: Timestamp) -> RebootPolicyStatus {
    let count = |count: usize| i64::try_from(count).unwrap_or(i64::MAX);
    let mut conditions = before.conditions.clone();
    let lost = format!("{} nodes did not come back", report.lost);
    let invalid = report.invalid.clone().unwrap_or_default();
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
            report.invalid.is_none(),
            if report.invalid.is_none() {
                "Read"
            } else {
                "Unreadable"
            },
            &invalid,
        ),
    ] {
        let status = if holds {
            ConditionStatus::True
        } else {
            ConditionStatus::False
        };
        set_condition(
            &mut conditions,
            &SetCondition {
                type_,
                status,
                reason,
                message,
                observed_generation: report.generation,
            },
            now,
        );
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
