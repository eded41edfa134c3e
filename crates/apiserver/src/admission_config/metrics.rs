//! Metrics of webhooks and policies, under the names of kube-apiserver 1.36.

use std::time::Duration;

use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, histogram::Histogram},
    registry::Registry,
};

/// The bounds of the durations of webhooks, in seconds.
const WEBHOOK_SECONDS: [f64; 8] = [0.005, 0.025, 0.1, 0.5, 1.0, 2.5, 10.0, 25.0];

/// The bounds of the durations of policies, in seconds.
const POLICY_SECONDS: [f64; 4] = [0.000_000_5, 0.001, 0.01, 0.1];

type Histograms<L> = Family<L, Histogram, fn() -> Histogram>;

/// A call of a webhook that has ended.
#[derive(Clone, Debug)]
pub(crate) struct WebhookCall<'a> {
    pub(crate) name: &'a str,
    /// `admit` or `validating`.
    pub(crate) kind: &'static str,
    pub(crate) operation: &'static str,
    pub(crate) duration: Duration,
    pub(crate) code: u16,
    pub(crate) rejected: bool,
    /// Why it was rejected: `calling_webhook_error`, `apiserver_internal_error`, `no_error`.
    pub(crate) error_type: &'static str,
    /// Whether the request is admitted although the webhook could not be called.
    pub(crate) failed_open: bool,
}

/// An evaluation of a policy with one binding.
#[derive(Clone, Debug)]
pub(crate) struct PolicyCheck<'a> {
    pub(crate) policy: &'a str,
    pub(crate) binding: &'a str,
    /// `deny`, `warn`, `audit` or `allow`.
    pub(crate) action: &'static str,
    /// `no_error`, `invalid_error`, `compile_error` or `out_of_budget`.
    pub(crate) error_type: &'static str,
    pub(crate) duration: Duration,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct DurationLabels {
    name: String,
    operation: &'static str,
    rejected: &'static str,
    r#type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RequestLabels {
    code: u16,
    name: String,
    operation: &'static str,
    rejected: &'static str,
    r#type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RejectionLabels {
    error_type: &'static str,
    name: String,
    operation: &'static str,
    rejection_code: u16,
    r#type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FailOpenLabels {
    name: String,
    r#type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ExclusionLabels {
    kind: &'static str,
    name: String,
    operation: &'static str,
    r#type: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PolicyLabels {
    enforcement_action: &'static str,
    error_type: &'static str,
    policy: String,
    policy_binding: String,
}

/// Metrics of webhooks and policies. Labels are names of configurations, so the number of series is
/// bounded by them.
#[derive(Debug)]
pub(crate) struct AdmissionMetrics {
    pub(crate) registry: Registry,
    webhook_duration: Histograms<DurationLabels>,
    webhook_requests: Family<RequestLabels, Counter>,
    webhook_rejections: Family<RejectionLabels, Counter>,
    webhook_fail_open: Family<FailOpenLabels, Counter>,
    exclusions: Family<ExclusionLabels, Counter>,
    condition_errors: Family<ExclusionLabels, Counter>,
    validating_checks: Family<PolicyLabels, Counter>,
    validating_duration: Histograms<PolicyLabels>,
    mutating_checks: Family<PolicyLabels, Counter>,
    mutating_duration: Histograms<PolicyLabels>,
}

impl Default for AdmissionMetrics {
    fn default() -> Self {
        let webhook: fn() -> Histogram = || Histogram::new(WEBHOOK_SECONDS);
        let policy: fn() -> Histogram = || Histogram::new(POLICY_SECONDS);
        let mut metrics = Self {
            registry: Registry::with_prefix("apiserver"),
            webhook_duration: Family::new_with_constructor(webhook),
            webhook_requests: Family::default(),
            webhook_rejections: Family::default(),
            webhook_fail_open: Family::default(),
            exclusions: Family::default(),
            condition_errors: Family::default(),
            validating_checks: Family::default(),
            validating_duration: Family::new_with_constructor(policy),
            mutating_checks: Family::default(),
            mutating_duration: Family::new_with_constructor(policy),
        };
        let registry = &mut metrics.registry;
        registry.register(
            "admission_webhook_admission_duration_seconds",
            "How long webhooks took, by name, operation and type, in seconds",
            metrics.webhook_duration.clone(),
        );
        registry.register(
            "admission_webhook_request",
            "Requests to webhooks by name, code, operation and type",
            metrics.webhook_requests.clone(),
        );
        registry.register(
            "admission_webhook_rejection_count",
            "Requests that webhooks rejected, by name, code, operation and type",
            metrics.webhook_rejections.clone(),
        );
        registry.register(
            "admission_webhook_fail_open_count",
            "Requests that were admitted although a webhook could not be called",
            metrics.webhook_fail_open.clone(),
        );
        registry.register(
            "admission_match_condition_exclusions",
            "Requests that match conditions excluded",
            metrics.exclusions.clone(),
        );
        registry.register(
            "admission_match_condition_evaluation_errors",
            "Match conditions that could not be evaluated",
            metrics.condition_errors.clone(),
        );
        registry.register(
            "validating_admission_policy_check",
            "Evaluations of validating policies by action",
            metrics.validating_checks.clone(),
        );
        registry.register(
            "validating_admission_policy_check_duration_seconds",
            "How long evaluations of validating policies took, in seconds",
            metrics.validating_duration.clone(),
        );
        registry.register(
            "mutating_admission_policy_check",
            "Evaluations of mutating policies by action",
            metrics.mutating_checks.clone(),
        );
        registry.register(
            "mutating_admission_policy_check_duration_seconds",
            "How long evaluations of mutating policies took, in seconds",
            metrics.mutating_duration.clone(),
        );
        metrics
    }
}

impl AdmissionMetrics {
    /// A webhook was called.
    pub(crate) fn called(&self, call: &WebhookCall<'_>) {
        let rejected = if call.rejected { "true" } else { "false" };
        let duration = DurationLabels {
            name: call.name.to_owned(),
            operation: call.operation,
            rejected,
            r#type: call.kind,
        };
        self.webhook_duration
            .get_or_create(&duration)
            .observe(call.duration.as_secs_f64());
        let request = RequestLabels {
            code: call.code,
            name: call.name.to_owned(),
            operation: call.operation,
            rejected,
            r#type: call.kind,
        };
        self.webhook_requests.get_or_create(&request).inc();
        if call.rejected {
            let rejection = RejectionLabels {
                error_type: call.error_type,
                name: call.name.to_owned(),
                operation: call.operation,
                rejection_code: call.code,
                r#type: call.kind,
            };
            self.webhook_rejections.get_or_create(&rejection).inc();
        }
        if call.failed_open {
            let labels = FailOpenLabels {
                name: call.name.to_owned(),
                r#type: call.kind,
            };
            self.webhook_fail_open.get_or_create(&labels).inc();
        }
    }

    /// Match conditions excluded a request, or could not be evaluated.
    pub(crate) fn excluded(
        &self,
        name: &str,
        kind: &'static str,
        r#type: &'static str,
        operation: &'static str,
        is_error: bool,
    ) {
        let family = if is_error {
            &self.condition_errors
        } else {
            &self.exclusions
        };
        let labels = ExclusionLabels {
            kind,
            name: name.to_owned(),
            operation,
            r#type,
        };
        family.get_or_create(&labels).inc();
    }

    /// A validating policy was evaluated.
    pub(crate) fn validated(&self, check: &PolicyCheck<'_>) {
        record(&self.validating_checks, &self.validating_duration, check);
    }

    /// A mutating policy was evaluated.
    pub(crate) fn mutated(&self, check: &PolicyCheck<'_>) {
        record(&self.mutating_checks, &self.mutating_duration, check);
    }
}

fn record(
    checks: &Family<PolicyLabels, Counter>,
    durations: &Histograms<PolicyLabels>,
    check: &PolicyCheck<'_>,
) {
    let labels = PolicyLabels {
        enforcement_action: check.action,
        error_type: check.error_type,
        policy: check.policy.to_owned(),
        policy_binding: check.binding.to_owned(),
    };
    checks.get_or_create(&labels).inc();
    durations
        .get_or_create(&labels)
        .observe(check.duration.as_secs_f64());
}
