//! Pods of a Job: completion index, tracking finalizer, finish time, and the template of new pods.
//!
//! Guarantees: every pod has the tracking finalizer until it is counted, so none is lost between
//! its end and the status update.

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

/// Finalizer of every pod that is not counted yet.
pub(super) const TRACKING_FINALIZER: &str = "batch.kubernetes.io/job-tracking";
/// Annotation and label with the completion index.
pub(super) const COMPLETION_INDEX_ANNOTATION: &str = "batch.kubernetes.io/job-completion-index";
/// Annotation with the number of earlier counted failures of the index.
const FAILURE_COUNT_ANNOTATION: &str = "batch.kubernetes.io/job-index-failure-count";
/// Annotation with the number of earlier ignored failures of the index.
const IGNORED_FAILURE_COUNT_ANNOTATION: &str =
    "batch.kubernetes.io/job-index-ignored-failure-count";

/// Maximum length of `generateName`.
const GENERATE_NAME_MAX_LENGTH: usize = 58;

const INITIAL_BACKOFF: Duration = Duration::from_secs(10);
const MAX_BACKOFF: Duration = Duration::from_secs(600);

/// Mirrors hasJobTrackingFinalizer.
pub(super) fn has_tracking_finalizer(pod: &Pod) -> bool {
    pod.metadata
        .finalizers
        .iter()
        .flatten()
        .any(|finalizer| finalizer == TRACKING_FINALIZER)
}

/// The completion index; `None` if it is absent or invalid. Mirrors getCompletionIndex.
pub(super) fn completion_index(pod: &Pod) -> Option<i32> {
    annotation(pod, COMPLETION_INDEX_ANNOTATION)?
        .parse()
        .ok()
        .filter(|index| *index >= 0)
}

/// Numbers of earlier failures of the pod's index: counted and ignored.
pub(super) fn index_failure_counts(pod: &Pod) -> (i32, i32) {
    let count = |key: &str| {
        annotation(pod, key)
            .and_then(|count| count.parse::<i32>().ok())
            .filter(|count| *count >= 0)
            .unwrap_or(0)
    };
    (
        count(FAILURE_COUNT_ANNOTATION),
        count(IGNORED_FAILURE_COUNT_ANNOTATION),
    )
}

/// Whether a terminating pod is replaced only once it is terminal. Mirrors onlyReplaceFailedPods.
pub(super) fn only_replace_failed_pods(spec: &JobSpec) -> bool {
    spec.pod_replacement_policy.as_deref() == Some("Failed") || spec.pod_failure_policy.is_some()
}

/// Whether a pod failed. A terminating pod counts as failed, unless only failed pods are replaced.
/// Mirrors isPodFailed.
pub(super) fn is_pod_failed(pod: &Pod, spec: &JobSpec) -> bool {
    match phase(pod) {
        Phase::Failed => true,
        Phase::Succeeded => false,
        // A terminating pod may never reach a terminal phase if its node is gone.
        _ => has_deletion_timestamp(pod) && !only_replace_failed_pods(spec),
    }
}

/// Finish time of a pod: of its containers, of readiness, of the deletion request, or its creation.
/// Mirrors getFinishedTime.
pub(super) fn finish_time(pod: &Pod) -> Option<Timestamp> {
    let containers = pod
        .status
        .as_ref()
        .and_then(|status| status.container_statuses.as_deref())
        .unwrap_or_default();
    // Mirrors getFinishTimeFromContainers: the time is unknown while one container has not
    // terminated.
    let finish_times: Option<Vec<Timestamp>> = containers
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
    let containers_finished = finish_times.and_then(|finish_times| finish_times.into_iter().max());
    let became_unready = || {
        condition(pod, "Ready")
            .filter(|ready| ready.status == "False")?
            .last_transition_time
            .as_ref()
            .map(|time| time.0)
    };
    // Mirrors getFinishTimeFromDeletionTimestamp: the timestamp is the end of the grace period.
    let deletion_requested = || {
        let grace =
            SignedDuration::from_secs(pod.metadata.deletion_grace_period_seconds.unwrap_or(0));
        pod.metadata
            .deletion_timestamp
            .as_ref()
            .and_then(|time| time.0.checked_sub(grace).ok())
    };
    containers_finished
        .or_else(became_unready)
        .or_else(deletion_requested)
        .or_else(|| pod.metadata.creation_timestamp.as_ref().map(|time| time.0))
}

/// Remaining back-off after `failures` failures, the last of them at `last`; `None` if it has
/// passed. Mirrors getRemainingTimeForFailuresCount.
pub(super) fn remaining_backoff(
    failures: i32,
    last: Option<Timestamp>,
    now: Timestamp,
) -> Option<Duration> {
    let doublings = u32::try_from(failures.checked_sub(1)?).ok()?;
    let delay = 2u32.checked_pow(doublings).map_or(MAX_BACKOFF, |factor| {
        INITIAL_BACKOFF.saturating_mul(factor).min(MAX_BACKOFF)
    });
    time_until(saturating_add(last?, delay), now)
}

/// Template of a Job's pods, with finalizer and environment variables.
pub(super) struct JobPodTemplate<'a> {
    job: &'a Job,
    template: PodTemplateSpec,
    /// Whether the Job has `backoffLimitPerIndex`.
    has_backoff_limit_per_index: bool,
}

impl<'a> JobPodTemplate<'a> {
    pub(super) fn of(job: &'a Job) -> Self {
        let spec = job.spec.clone().unwrap_or_default();
        let mut template = spec.template;
        template
            .metadata
            .get_or_insert_default()
            .finalizers
            .get_or_insert_default()
            .push(TRACKING_FINALIZER.into());
        if let Some(pod) = template
            .spec
            .as_mut()
            .filter(|_| spec.completion_mode.as_deref() == Some("Indexed"))
        {
            pod.containers
                .iter_mut()
                .chain(pod.init_containers.iter_mut().flatten())
                .for_each(add_completion_index_env);
        }
        Self {
            job,
            template,
            has_backoff_limit_per_index: spec.backoff_limit_per_index.is_some(),
        }
    }

    /// A pod without an index.
    pub(super) fn pod(&self) -> Pod {
        pod_from_template(&self.template, self.job)
    }

    /// The pod of an index with its numbers of counted and ignored failures.
    pub(super) fn pod_for_index(&self, index: i32, (failures, ignored): (i32, i32)) -> Pod {
        let mut pod = self.pod();
        let job = self.job.name_any();
        pod.annotations_mut()
            .insert(COMPLETION_INDEX_ANNOTATION.into(), index.to_string());
        pod.labels_mut()
            .insert(COMPLETION_INDEX_ANNOTATION.into(), index.to_string());
        if self.has_backoff_limit_per_index {
            pod.annotations_mut()
                .insert(FAILURE_COUNT_ANNOTATION.into(), failures.to_string());
            if ignored > 0 {
                pod.annotations_mut()
                    .insert(IGNORED_FAILURE_COUNT_ANNOTATION.into(), ignored.to_string());
            }
        }
        let suffix = format!("-{index}-");
        pod.metadata.generate_name = Some(format!(
            "{}{suffix}",
            truncate(&job, GENERATE_NAME_MAX_LENGTH - suffix.len())
        ));
        // The hostname is stable across retries of the index.
        pod.spec.get_or_insert_default().hostname = Some(format!("{job}-{index}"));
        pod
    }
}

fn truncate(text: &str, length: usize) -> &str {
    let end = (0..=length.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end))
        .unwrap_or(0);
    &text[..end]
}

/// Mirrors addCompletionIndexEnvVariable.
fn add_completion_index_env(container: &mut Container) {
    const VARIABLE: &str = "JOB_COMPLETION_INDEX";
    let variables = container.env.get_or_insert_default();
    if variables.iter().all(|variable| variable.name != VARIABLE) {
        let field = ObjectFieldSelector {
            field_path: format!("metadata.labels['{COMPLETION_INDEX_ANNOTATION}']"),
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
    fn back_off_doubles_up_to_its_maximum() {
        let now = Timestamp::from_second(1000).unwrap();
        for (failures, ago, remaining) in [
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
                remaining_backoff(failures, Some(last), now),
                remaining.map(Duration::from_secs),
                "{failures} failures, {ago} s ago"
            );
        }
    }

    #[test]
    fn indexed_pod_has_its_index_and_failure_counts() {
        let job: Job = serde_json::from_value(json!({
            "metadata": { "name": "x".repeat(63), "namespace": "default", "uid": "j" },
            "spec": {
                "completionMode": "Indexed",
                "backoffLimitPerIndex": 2,
                "template": { "spec": { "containers": [{ "name": "main" }] } },
            },
        }))
        .unwrap();
        let pod = JobPodTemplate::of(&job).pod_for_index(7, (1, 2));
        assert!(has_tracking_finalizer(&pod));
        assert_eq!(completion_index(&pod), Some(7));
        assert_eq!(index_failure_counts(&pod), (1, 2));
        assert_eq!(
            pod.metadata.generate_name.as_ref().unwrap().len(),
            GENERATE_NAME_MAX_LENGTH
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
