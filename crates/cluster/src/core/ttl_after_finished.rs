//! TTL-after-finished: deletes finished Jobs once `ttlSecondsAfterFinished` has passed.
//!
//! Input: Jobs. Output: foreground deletions.
//! Guarantees: the TTL is checked again on a live Job before the delete, because it may have been
//! extended since the cached version.

use std::time::Duration;

use bellerophon::client::{Precondition, WriteOptions};
use bellerophon::prelude::*;
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use kube::api::PropagationPolicy;

/// Adds the controller, under its upstream name.
pub(crate) fn setup(mgr: &mut Manager) {
    mgr.controller::<Job>()
        .name("ttl-after-finished-controller")
        .concurrency(5)
        .reconcile(reconcile);
}

async fn reconcile(req: Request<Job>) -> Result<Action, Error> {
    let Some(job) = req.object() else {
        return Ok(Action::await_change());
    };
    // Mirrors processJob: the TTL is checked on the cached Job, then on a live one.
    match time_left(job, req.now()) {
        None => return Ok(Action::await_change()),
        Some(time) if !time.is_zero() => return Ok(Action::requeue_after(time)),
        Some(_) => {}
    }
    // Deleting a Job cannot be undone, and its TTL may have been extended since the cached version.
    let Some(live) = req.client().get::<Job>(req.key()).await? else {
        return Ok(Action::await_change());
    };
    match time_left(&live, req.now()) {
        None => Ok(Action::await_change()),
        Some(time) if !time.is_zero() => Ok(Action::requeue_after(time)),
        Some(_) => {
            let foreground = WriteOptions {
                propagation: Some(PropagationPolicy::Foreground),
                precondition: Some(Precondition::Uid),
                ..WriteOptions::default()
            };
            req.client().with_options(foreground).delete(&*live).await?;
            Ok(Action::await_change())
        }
    }
}

/// Time until the Job expires; `None` if it has no TTL, has not finished or is terminating.
///
/// Mirrors timeLeft.
fn time_left(job: &Job, now: Timestamp) -> Option<Duration> {
    let ttl_seconds = job.spec.as_ref()?.ttl_seconds_after_finished?;
    if job.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let finished = conditions.iter().find(|condition| {
        matches!(&*condition.type_, "Complete" | "Failed") && condition.status == "True"
    })?;
    let expiry = finished
        .last_transition_time
        .as_ref()?
        .0
        .saturating_add(SignedDuration::from_secs(ttl_seconds.into()))
        .ok()?;
    Some(Duration::try_from(expiry.duration_since(now)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_finished_jobs_with_a_ttl_expire() {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let condition = |type_: &str, status: &str| {
            json!([
                {"type": type_, "status": status, "lastTransitionTime": "2026-01-02T03:04:00Z"},
            ])
        };
        for (ttl, conditions, deleted, expected) in [
            (json!(10), condition("Complete", "True"), false, Some(5)),
            (json!(5), condition("Failed", "True"), false, Some(0)),
            (json!(0), condition("Failed", "True"), false, Some(0)),
            (json!(0), condition("Complete", "False"), false, None),
            (json!(0), condition("Suspended", "True"), false, None),
            (json!(0), json!(null), false, None),
            (json!(null), condition("Complete", "True"), false, None),
            (json!(0), condition("Complete", "True"), true, None),
        ] {
            let deletion = deleted.then_some("2026-01-02T03:04:05Z");
            let job = json!({
                "metadata": {"deletionTimestamp": deletion},
                "spec": {"ttlSecondsAfterFinished": ttl, "template": {}},
                "status": {"conditions": conditions},
            });
            let job: Job = serde_json::from_value(job.clone())
                .unwrap_or_else(|error| panic!("{job}: {error}"));
            assert_eq!(
                time_left(&job, now).map(|left| left.as_secs()),
                expected,
                "{job:?}"
            );
        }
    }
}
