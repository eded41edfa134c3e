//! TTL after finished: jobs that say how long they want to be remembered go when that time is over.
//!
//! In: jobs. Out: deletions.
//! Holds: a job goes on what the server says of it then, never on a cache that may not know of a longer time.

use std::time::Duration;

use bellerophon::{Controller, Failure, Outcome, ReconcileResult, Request, WallClock};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::Job;
use kube::api::{DeleteParams, Preconditions};
use kube::{Api, Client, ResourceExt};

use super::answer::is_not_found;
use crate::component::Component;
use crate::context::{Context, Loop};

/// The loop, under its upstream name.
pub(crate) fn controller(ctx: &Context) -> Loop {
    let client = ctx.client(Component::ControllerManager);
    let clock = ctx.clock;
    Controller::of(&ctx.informer::<Job>())
        .with_options(ctx.options("ttl-after-finished-controller", 5))
        .reconcile_with(move |request| reconcile(client.clone(), clock, request))
        .into()
}

async fn reconcile(client: Client, clock: WallClock, request: Request<Job>) -> ReconcileResult {
    let Some(job) = &request.object else {
        return Ok(Outcome::Done);
    };
    match left(job, clock.now()) {
        None => return Ok(Outcome::Done),
        Some(time) if !time.is_zero() => return Ok(Outcome::RequeueAfter(time)),
        Some(_) => {}
    }
    let api = Api::<Job>::namespaced(
        client,
        job.metadata.namespace.as_deref().unwrap_or_default(),
    );
    let Some(now) = api.get_opt(&job.name_any()).await? else {
        return Ok(Outcome::Done);
    };
    match left(&now, clock.now()) {
        None => Ok(Outcome::Done),
        Some(time) if !time.is_zero() => Ok(Outcome::RequeueAfter(time)),
        Some(_) => {
            let params = DeleteParams::foreground().preconditions(Preconditions {
                uid: now.uid(),
                resource_version: None,
            });
            match api.delete(&now.name_any(), &params).await {
                Ok(answer) => drop(answer.map_left(|held| request.writes().wrote(&held))),
                Err(error) if is_not_found(&error) => {}
                Err(error) => return Err(Failure::from(error)),
            }
            Ok(Outcome::Done)
        }
    }
}

/// How long the job is still wanted; `None` if nobody knows.
fn left(job: &Job, now: Timestamp) -> Option<Duration> {
    let wanted = job.spec.as_ref()?.ttl_seconds_after_finished?;
    if job.metadata.deletion_timestamp.is_some() {
        return None;
    }
    let conditions = job.status.as_ref()?.conditions.as_ref()?;
    let finished = conditions.iter().find(|condition| {
        matches!(&*condition.type_, "Complete" | "Failed") && condition.status == "True"
    })?;
    let end = finished
        .last_transition_time
        .as_ref()?
        .0
        .saturating_add(SignedDuration::from_secs(wanted.into()))
        .ok()?;
    Some(Duration::try_from(end.duration_since(now)).unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn only_finished_jobs_with_a_time_expire() {
        let now: Timestamp = "2026-01-02T03:04:05Z".parse().unwrap();
        let condition = |type_: &str, status: &str| json!([{"type": type_, "status": status, "lastTransitionTime": "2026-01-02T03:04:00Z"}]);
        for (ttl, conditions, deleted, wanted) in [
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
                left(&job, now).map(|left| left.as_secs()),
                wanted,
                "{job:?}"
            );
        }
    }
}
