//! Pods of a Job: their index, their finalizer, when they ended; and what a new one looks like.
//!
//! In: a Job, pods. Out: answers, pods.
//! Holds: every pod carries the tracking finalizer until it is counted, so none is lost between ending and counting.

use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::batch::v1::{Job, JobSpec};
use k8s_openapi::api::core::v1::{
    Container, EnvVar, EnvVarSource, ObjectFieldSelector, Pod, PodTemplateSpec,
};
use kube::ResourceExt;

use crate::workloads::pods::{
    Phase, annotation, condition, has_deletion_timestamp, phase, saturating_add, time_until,
};
use crate::workloads::template::pod_from_template;

/// Held by every pod until it is counted.
pub(super) const TRACKING: &str = "batch.kubernetes.io/job-tracking";
/// The index of a pod, as annotation and as label.
pub(super) const INDEX: &str = "batch.kubernetes.io/job-completion-index";
/// How many pods of its index failed before it and counted.
const FAILURES: &str = "batch.kubernetes.io/job-index-failure-count";
/// How many failed before it and were ignored.
const IGNORED_FAILURES: &str = "batch.kubernetes.io/job-index-ignored-failure-count";

/// The longest prefix from which the server makes a name.
const GENERATED_MAX: usize = 58;

const FIRST_DELAY: Duration = Duration::from_secs(10);
const LONGEST_DELAY: Duration = Duration::from_secs(600);

pub(super) fn is_tracked(pod: &Pod) -> bool {
    pod.metadata
        .finalizers
        .iter()
        .flatten()
        .any(|finalizer| finalizer == TRACKING)
}

/// Its index; `None` if it has none that makes sense.
pub(super) fn index(pod: &Pod) -> Option<i32> {
    annotation(pod, INDEX)?
        .parse()
        .ok()
        .filter(|index| *index >= 0)
}

/// How many pods of its index failed before it: those that counted, and those that were ignored.
pub(super) fn failures_before(pod: &Pod) -> (i32, i32) {
    let number = |key: &str| {
        annotation(pod, key)
            .and_then(|count| count.parse::<i32>().ok())
            .filter(|count| *count >= 0)
            .unwrap_or(0)
    };
    (number(FAILURES), number(IGNORED_FAILURES))
}

/// Whether pods on their way out are waited for before they are replaced.
pub(super) fn replaces_failed_only(spec: &JobSpec) -> bool {
    spec.pod_replacement_policy.as_deref() == Some("Failed") || spec.pod_failure_policy.is_some()
}

/// Whether it failed. One that is deleted fails as well, unless it is waited for.
pub(super) fn has_failed(pod: &Pod, spec: &JobSpec) -> bool {
    match phase(pod) {
        Phase::Failed => true,
        Phase::Succeeded => false,
        _ => has_deletion_timestamp(pod) && !replaces_failed_only(spec),
    }
}

/// When it ended, as well as can be told.
pub(super) fn finished_at(pod: &Pod) -> Option<Timestamp> {
    let containers = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_deref())
        .unwrap_or_default();
    let ends: Option<Vec<Timestamp>> = containers
        .iter()
        .map(|container| {
            Some(
                container
                    .state
                    .as_ref()?
                    .terminated
                    .as_ref()?
                    .finished_at
                    .as_ref()?
                    .0,
            )
        })
        .collect();
    let ended = ends.and_then(|ends| ends.into_iter().max());
    let unready = || {
        condition(pod, "Ready")
            .filter(|ready| ready.status == "False")?
            .last_transition_time
            .as_ref()
            .map(|time| time.0)
    };
    let deleted = || {
        let grace =
            SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(0));
        pod.metadata
            .deletion_timestamp
            .as_ref()
            .and_then(|time| time.0.checked_sub(grace).ok())
    };
    ended
        .or_else(unready)
        .or_else(deleted)
        .or_else(|| pod.metadata.creation_timestamp.as_ref().map(|time| time.0))
}

/// How long to wait after so many failures in a row, the last of them at that time; `None` if not (any longer).
pub(super) fn wait_after(
    failures: i32,
    last: Option<Timestamp>,
    now: Timestamp,
) -> Option<Duration> {
    let doublings = u32::try_from(failures.checked_sub(1)?).ok()?;
    let delay = 2u32.checked_pow(doublings).map_or(LONGEST_DELAY, |factor| {
        FIRST_DELAY.saturating_mul(factor).min(LONGEST_DELAY)
    });
    time_until(saturating_add(last?, delay), now)
}

/// What the pods of a Job are made from.
pub(super) struct Mother<'a> {
    job: &'a Job,
    template: PodTemplateSpec,
    /// Whether each index counts its own failures.
    counts_failures: bool,
}

impl<'a> Mother<'a> {
    pub(super) fn of(job: &'a Job) -> Self {
        let spec = job.spec.clone().unwrap_or_default();
        let mut template = spec.template;
        template
            .metadata
            .get_or_insert_default()
            .finalizers
            .get_or_insert_default()
            .push(TRACKING.into());
        if let Some(pod) = template
            .spec
            .as_mut()
            .filter(|_| spec.completion_mode.as_deref() == Some("Indexed"))
        {
            pod.containers
                .iter_mut()
                .chain(pod.init_containers.iter_mut().flatten())
                .for_each(tell_index);
        }
        Self {
            job,
            template,
            counts_failures: spec.backoff_limit_per_index.is_some(),
        }
    }

    /// A pod without an index.
    pub(super) fn pod(&self) -> Pod {
        pod_from_template(&self.template, self.job)
    }

    /// The pod of an index, after so many failures of it, counted and ignored.
    pub(super) fn pod_of(&self, index: i32, (failures, ignored): (i32, i32)) -> Pod {
        let mut pod = self.pod();
        let job = self.job.name_any();
        pod.annotations_mut()
            .insert(INDEX.into(), index.to_string());
        pod.labels_mut().insert(INDEX.into(), index.to_string());
        if self.counts_failures {
            pod.annotations_mut()
                .insert(FAILURES.into(), failures.to_string());
            if ignored > 0 {
                pod.annotations_mut()
                    .insert(IGNORED_FAILURES.into(), ignored.to_string());
            }
        }
        let suffix = format!("-{index}-");
        pod.metadata.generate_name = Some(format!(
            "{}{suffix}",
            cut(&job, GENERATED_MAX - suffix.len())
        ));
        pod.spec.get_or_insert_default().hostname = Some(format!("{job}-{index}"));
        pod
    }
}

fn cut(text: &str, length: usize) -> &str {
    let end = (0..=length.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or(0);
    &text[..end]
}

/// Lets a container know the index of its pod.
fn tell_index(container: &mut Container) {
    const VARIABLE: &str = "JOB_COMPLETION_INDEX";
    let variables = container.env.get_or_insert_default();
    if variables.iter().all(|variable| variable.name != VARIABLE) {
        let field = ObjectFieldSelector {
            field_path: format!("metadata.labels['{INDEX}']"),
            ..ObjectFieldSelector::default()
        };
        let source = EnvVarSource {
            field_ref: Some(field),
            ..EnvVarSource::default()
        };
        variables.push(EnvVar {
            name: VARIABLE.into(),
            value_from: Some(source),
            ..EnvVar::default()
        });
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn failures_are_waited_after_ever_longer() {
        let now = Timestamp::from_second(1000).unwrap();
        for (failures, ago, wait) in [
            (0, 0, None),
            (1, 0, Some(10)),
            (1, 4, Some(6)),
            (1, 10, None),
            (2, 0, Some(20)),
            (4, 0, Some(80)),
            (7, 0, Some(600)),
            (99, 0, Some(600)),
        ] {
            let last = Timestamp::from_second(1000 - ago).unwrap();
            assert_eq!(
                wait_after(failures, Some(last), now),
                wait.map(Duration::from_secs),
                "{failures} failures, {ago} s ago"
            );
        }
    }

    #[test]
    fn indexed_pod_knows_its_index() {
        let job: Job = serde_json::from_value(json!({
            "metadata": { "name": "x".repeat(63), "namespace": "default", "uid": "j" },
            "spec": { "completionMode": "Indexed", "backoffLimitPerIndex": 2, "template": { "spec": { "containers": [{ "name": "main" }] } } },
        }))
        .unwrap();
        let pod = Mother::of(&job).pod_of(7, (1, 2));
        assert!(is_tracked(&pod));
        assert_eq!(index(&pod), Some(7));
        assert_eq!(failures_before(&pod), (1, 2));
        assert_eq!(
            pod.metadata.generate_name.as_ref().unwrap().len(),
            GENERATED_MAX
        );
        assert!(
            pod.metadata
                .generate_name
                .as_ref()
                .unwrap()
                .ends_with("x-7-")
        );
        assert_eq!(
            pod.spec.unwrap().containers[0].env.as_ref().unwrap()[0].name,
            "JOB_COMPLETION_INDEX"
        );
    }
}
