//! HorizontalPodAutoscaler controller: scales a target by the metrics of its pods.
//!
//! Input: autoscalers, the scale subresource of their targets, pods, `metrics.k8s.io`. Output: the
//! replicas of the targets, and the status of the autoscalers.
//! Guarantees: an autoscaler is synced every 15 seconds, and first 15 seconds after it was seen,
//! as upstream does. What stabilization needs is kept in memory: after a restart of the
//! controller, the current replicas are the first recommendation.

mod history; // recommendations, scale events and limits
mod metrics; // replicas by metric
mod metrics_client; // metrics.k8s.io
mod replica_calculator; // replicas by usage and target
mod scale_client; // scale subresource
mod status; // conditions and current metrics

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bellerophon::clock::Clock;
use bellerophon::events::EventRecorder;
use bellerophon::prelude::*;
use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::{
    HorizontalPodAutoscaler, HorizontalPodAutoscalerSpec, HorizontalPodAutoscalerStatus,
    MetricStatus,
};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::ResourceExt;
use kube::core::Selector;
use tracing::debug;

use self::history::{History, Recommended};
use self::metrics::{ScaleTarget, compute_replicas};
use self::metrics_client::MetricsClient;
use self::scale_client::{ScaleClient, TargetScale};
use self::status::{ABLE_TO_SCALE, SCALING_ACTIVE, SCALING_LIMITED, set_condition, whole_seconds};
use super::api_writer::ApiWriter;
use super::claim::matches;
use super::events::{normal_event, warning_event};
use super::pods::{saturating_add, time_until};
use crate::api_errors::status_message;
use crate::component::Component;
use crate::{index, label_selector};

/// Name of the controller in metrics.
const CONTROLLER: &str = "horizontal-pod-autoscaler-controller";

/// Reporting component of its events.
const EVENT_SOURCE: &str = "horizontal-pod-autoscaler";

/// How often an autoscaler is synced (`--horizontal-pod-autoscaler-sync-period`).
const SYNC_PERIOD: Duration = Duration::from_secs(15);

/// The maximum number of autoscalers synced concurrently
/// (`--concurrent-horizontal-pod-autoscaler-syncs`).
const WORKERS: usize = 5;

/// Adds the HorizontalPodAutoscaler controller.
pub(crate) fn setup(mgr: &mut Manager) {
    let client = Component::ControllerManager.kube_client(mgr, CONTROLLER);
    let reconciler = AutoscalerReconciler {
        pods: index::pods(mgr).lister(),
        scales: ScaleClient {
            client: client.clone(),
        },
        metrics: MetricsClient { client },
        recorder: Component::ControllerManager.recorder(mgr, EVENT_SOURCE),
        clock: mgr.clock(),
        autoscalers: Mutex::default(),
    };
    mgr.controller::<HorizontalPodAutoscaler>()
        .predicate(Predicate::on_update(spec_changed))
        .name(CONTROLLER)
        .concurrency(WORKERS)
        .reconcile(reconciler);
}

fn spec_changed(old: &HorizontalPodAutoscaler, new: &HorizontalPodAutoscaler) -> bool {
    old.spec != new.spec
}

/// What the controller knows of an autoscaler.
struct Autoscaler {
    /// When it is synced next.
    next_sync: Timestamp,
    /// The selector of its target; `None` until that was read.
    selector: Option<Selector>,
    history: History,
}

struct AutoscalerReconciler {
    pods: Lister<Pod>,
    scales: ScaleClient,
    metrics: MetricsClient,
    recorder: EventRecorder,
    clock: Clock,
    /// Invariant: an entry is removed when its object is deleted.
    autoscalers: Mutex<BTreeMap<ObjectKey, Autoscaler>>,
}

impl Reconciler<HorizontalPodAutoscaler> for AutoscalerReconciler {
    /// Mirrors processNextWorkItem and reconcileKey: errors are in the status, and the next sync
    /// comes after the same period.
    async fn reconcile(&self, req: Request<HorizontalPodAutoscaler>) -> Result<Action, Error> {
        let Some(hpa) = req.object() else {
            self.lock().remove(req.key());
            return Ok(Action::await_change());
        };
        let now = self.clock.now();
        if let Some(left) = self.time_until_sync(req.key(), now) {
            return Ok(Action::requeue_after(left));
        }
        let current = hpa.status.clone().unwrap_or_default();
        let mut sync = Sync {
            reconciler: self,
            key: req.key(),
            hpa,
            spec: &hpa.spec,
            status: current.clone(),
            now,
        };
        if let Err(error) = sync.run().await {
            debug!(hpa = %req.key(), error, "the autoscaler cannot be synced");
        }
        let status = sync.status;
        let writer = ApiWriter {
            client: req.client(),
        };
        let set_status = |hpa: &mut HorizontalPodAutoscaler, status| hpa.status = Some(status);
        let written = writer
            .update_status(hpa, &current, status, set_status)
            .await;
        if let Err(error) = &written {
            let message = status_message(error);
            self.recorder
                .event(hpa, warning_event("FailedUpdateStatus", message));
        }
        Ok(Action::requeue_after(SYNC_PERIOD))
    }
}

impl AutoscalerReconciler {
    /// Registers an autoscaler that is new. Returns how long its next sync is away; `None` if it
    /// is due.
    fn time_until_sync(&self, key: &ObjectKey, now: Timestamp) -> Option<Duration> {
        let mut autoscalers = self.lock();
        let next_sync = saturating_add(now, SYNC_PERIOD);
        let autoscaler = autoscalers.entry(key.clone()).or_insert(Autoscaler {
            next_sync,
            selector: None,
            history: History::default(),
        });
        let left = time_until(autoscaler.next_sync, now);
        if left.is_none() {
            autoscaler.next_sync = next_sync;
        }
        left
    }

    /// Accesses the history of an autoscaler.
    fn with_history<R>(&self, key: &ObjectKey, access: impl FnOnce(&mut History) -> R) -> R {
        let mut autoscalers = self.lock();
        match autoscalers.get_mut(key) {
            Some(autoscaler) => access(&mut autoscaler.history),
            // It was deleted meanwhile.
            None => access(&mut History::default()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<ObjectKey, Autoscaler>> {
        self.autoscalers
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// One sync of an autoscaler.
struct Sync<'a> {
    reconciler: &'a AutoscalerReconciler,
    key: &'a ObjectKey,
    hpa: &'a HorizontalPodAutoscaler,
    spec: &'a HorizontalPodAutoscalerSpec,
    status: HorizontalPodAutoscalerStatus,
    now: Timestamp,
}

/// The replicas to set, and why.
struct Rescale {
    replicas: i32,
    reason: String,
}

impl Sync<'_> {
    /// Mirrors reconcileAutoscaler.
    async fn run(&mut self) -> Result<(), String> {
        let namespace = self.hpa.namespace().unwrap_or_default();
        let target = &self.spec.scale_target_ref;
        let mut scale = match self.reconciler.scales.get(&namespace, target).await {
            Ok(scale) => scale,
            Err(error) => {
                self.warn("FailedGetScale", error.clone());
                let message = format!(
                    "the HPA controller was unable to get the target's current scale: {error}"
                );
                self.set_condition(ABLE_TO_SCALE, false, "FailedGetScale", &message);
                return Err(error);
            }
        };
        let message = "the HPA controller was able to get the target's current scale";
        self.set_condition(ABLE_TO_SCALE, true, "SucceededGetScale", message);
        let current = scale.spec_replicas();
        self.reconciler.with_history(self.key, |history| {
            history.record_initial(current, self.now);
        });
        let mut statuses = Vec::new();
        let desired = self.desired_replicas(&scale, &mut statuses).await;
        let rescale = match desired {
            Ok(rescale) => rescale,
            Err(error) => {
                self.set_status(current, self.status.desired_replicas, statuses);
                self.warn("FailedComputeMetricsReplicas", error.clone());
                return Err(error);
            }
        };
        let Some(Rescale { replicas, reason }) = rescale else {
            self.set_status(current, current, statuses);
            return Ok(());
        };
        if let Err(error) = self.reconciler.scales.update(&mut scale, replicas).await {
            let event = format!("New size: {replicas}; reason: {reason}; error: {error}");
            self.warn("FailedRescale", event);
            let message =
                format!("the HPA controller was unable to update the target scale: {error}");
            self.set_condition(ABLE_TO_SCALE, false, "FailedUpdateScale", &message);
            self.set_status(current, self.status.desired_replicas, statuses);
            return Err(error);
        }
        let message =
            format!("the HPA controller was able to update the target scale to {replicas}");
        self.set_condition(ABLE_TO_SCALE, true, "SucceededRescale", &message);
        let event = format!("New size: {replicas}; reason: {reason}");
        let recorder = &self.reconciler.recorder;
        recorder.event(self.hpa, normal_event("SuccessfulRescale", event));
        let behavior = self.spec.behavior.as_ref();
        self.reconciler.with_history(self.key, |history| {
            history.record_scale(behavior, current, replicas, self.now);
        });
        self.set_status(current, replicas, statuses);
        self.status.last_scale_time = Some(Time(whole_seconds(self.now)));
        Ok(())
    }

    /// The replicas to set; `None` if the current ones are right.
    async fn desired_replicas(
        &mut self,
        scale: &TargetScale,
        statuses: &mut Vec<MetricStatus>,
    ) -> Result<Option<Rescale>, String> {
        let current = scale.spec_replicas();
        let max = self.spec.max_replicas;
        let min = self.spec.min_replicas.unwrap_or(1);
        let rescale = |replicas, reason: &str| {
            Ok(Some(Rescale {
                replicas,
                reason: reason.to_owned(),
            }))
        };
        if current == 0 {
            let message = "scaling is disabled since the replica count of the target is zero";
            self.set_condition(SCALING_ACTIVE, false, "ScalingDisabled", message);
            return Ok(None);
        }
        if current > max {
            return rescale(max, "Current number of replicas above Spec.MaxReplicas");
        }
        if current < min {
            return rescale(min, "Current number of replicas below Spec.MinReplicas");
        }
        let (recommended, metric) = self.compute(scale, statuses).await?;
        let recommended = recommended.max(0);
        let reason = if recommended > current {
            format!("{metric} above target")
        } else if recommended < current {
            "All metrics below target".to_owned()
        } else {
            String::new()
        };
        let recommended = Recommended {
            current,
            desired: recommended,
            min,
            max,
        };
        let behavior = self.spec.behavior.as_ref();
        let normalized = self.reconciler.with_history(self.key, |history| {
            history.normalize(recommended, behavior, self.now)
        });
        let able = normalized.able_to_scale;
        self.set_condition(ABLE_TO_SCALE, true, able.reason, able.message);
        let limited = normalized.limited;
        self.set_condition(
            SCALING_LIMITED,
            normalized.is_limited,
            limited.reason,
            limited.message,
        );
        let replicas = normalized.replicas;
        Ok((replicas != current).then_some(Rescale { replicas, reason }))
    }

    /// The replicas that the metrics recommend, and the metric that recommends them. Mirrors
    /// computeReplicasForMetrics.
    async fn compute(
        &mut self,
        scale: &TargetScale,
        statuses: &mut Vec<MetricStatus>,
    ) -> Result<(i32, String), String> {
        let pods = self.target_pods(scale.selector())?;
        let target = ScaleTarget {
            selector: scale.selector(),
            pods: &pods,
            replicas: scale.spec_replicas(),
        };
        let client = &self.reconciler.metrics;
        let computed = compute_replicas(client, self.hpa, self.spec, &target, self.now).await;
        for error in &computed.errors {
            self.warn(error.reason, error.message.clone());
        }
        let has_failed = computed.has_failed(target.replicas);
        let error = computed.error();
        let first = computed.errors.first();
        if let (true, Some(first)) = (has_failed, first) {
            let message = format!(
                "the HPA was unable to compute the replica count: {}",
                first.message
            );
            self.set_condition(SCALING_ACTIVE, false, first.reason, &message);
        }
        *statuses = computed.statuses;
        let proposal = computed.proposal.filter(|_| !has_failed);
        let (replicas, metric) = proposal.ok_or_else(|| error.unwrap_or_default())?;
        let message =
            format!("the HPA was able to successfully calculate a replica count from {metric}");
        self.set_condition(SCALING_ACTIVE, true, "ValidMetricFound", &message);
        Ok((replicas, metric))
    }

    /// The pods of the target. Mirrors validateAndParseSelector.
    fn target_pods(&mut self, selector: &str) -> Result<Vec<Arc<Pod>>, String> {
        if selector.is_empty() {
            let error = "selector is required".to_owned();
            self.warn("SelectorRequired", error.clone());
            let message = "the HPA target's scale is missing a selector";
            self.set_condition(SCALING_ACTIVE, false, "InvalidSelector", message);
            return Err(error);
        }
        let parsed = match label_selector::parse(selector) {
            Ok(parsed) => parsed,
            Err(error) => {
                let error = format!(
                    "couldn't convert selector into a corresponding internal selector object: \
                     {error}"
                );
                return Err(self.refuse_selector("InvalidSelector", error));
            }
        };
        let namespace = self.hpa.namespace().unwrap_or_default();
        let mut pods = self.reconciler.pods.in_namespace(&namespace);
        pods.retain(|pod| matches(&parsed, &**pod));
        let selecting = self.selecting_autoscalers(parsed, &namespace, &pods);
        if selecting.len() > 1 {
            let error = format!(
                "pods by selector {selector} are controlled by multiple HPAs: [{}]",
                selecting.join(" ")
            );
            return Err(self.refuse_selector("AmbiguousSelector", error));
        }
        Ok(pods)
    }

    /// The autoscalers of a namespace whose targets select one of these pods, as Go prints their
    /// keys. Mirrors hpasControllingPodsUnderSelector.
    fn selecting_autoscalers(
        &self,
        selector: Selector,
        namespace: &str,
        pods: &[Arc<Pod>],
    ) -> Vec<String> {
        let mut autoscalers = self.reconciler.lock();
        if let Some(autoscaler) = autoscalers.get_mut(self.key) {
            autoscaler.selector = Some(selector);
        }
        let selects = |selector: &Selector| pods.iter().any(|pod| matches(selector, &**pod));
        autoscalers
            .iter()
            .filter(|(key, _)| key.namespace() == Some(namespace))
            .filter(|(_, autoscaler)| autoscaler.selector.as_ref().is_some_and(selects))
            .map(|(key, _)| format!("{{{} {namespace}}}", key.name()))
            .collect()
    }

    fn refuse_selector(&mut self, reason: &'static str, error: String) -> String {
        self.warn(reason, error.clone());
        self.set_condition(SCALING_ACTIVE, false, reason, &error);
        error
    }

    fn warn(&self, reason: &'static str, message: String) {
        let recorder = &self.reconciler.recorder;
        recorder.event(self.hpa, warning_event(reason, message));
    }

    fn set_condition(&mut self, type_: &str, is_true: bool, reason: &str, message: &str) {
        set_condition(&mut self.status, type_, is_true, reason, message, self.now);
    }

    /// Mirrors setStatus.
    fn set_status(&mut self, current: i32, desired: i32, statuses: Vec<MetricStatus>) {
        self.status.current_replicas = Some(current);
        self.status.desired_replicas = desired;
        self.status.current_metrics = (!statuses.is_empty()).then_some(statuses);
    }
}
