//! History of an autoscaler: recommendations and scale events, and the limits that follow from
//! them.
//!
//! In: the replicas that the metrics recommend, the bounds and the behavior of the autoscaler. Out:
//! the replicas to set, and the reasons for the conditions.
//! Guarantees: the lists are bounded, because entries out of every window are overwritten.

use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::autoscaling::v2::{
    HPAScalingPolicy, HPAScalingRules, HorizontalPodAutoscalerBehavior,
};

/// For how long past recommendations prevent a scale-down
/// (`--horizontal-pod-autoscaler-downscale-stabilization`).
const DOWNSCALE_STABILIZATION: Duration = Duration::from_secs(300);

/// Without a behavior, a target is at most doubled, or scaled to 4 replicas.
const SCALE_UP_LIMIT_FACTOR: i32 = 2;
const SCALE_UP_LIMIT_MINIMUM: i32 = 4;

/// A recommendation of the metrics, before limits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Recommendation {
    replicas: i32,
    at: Timestamp,
}

/// A change of the replicas.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct ScaleEvent {
    /// The absolute value of the change.
    change: i32,
    at: Timestamp,
}

/// The past of one autoscaler.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct History {
    recommendations: Vec<Recommendation>,
    scale_ups: Vec<ScaleEvent>,
    scale_downs: Vec<ScaleEvent>,
}

/// What the metrics recommend, and the bounds of the autoscaler.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Recommended {
    pub(super) current: i32,
    pub(super) desired: i32,
    pub(super) min: i32,
    pub(super) max: i32,
}

/// A reason and its message, for a condition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Reason {
    pub(super) reason: &'static str,
    pub(super) message: &'static str,
}

const SCALE_UP_STABILIZED: Reason = Reason {
    reason: "ScaleUpStabilized",
    message: "recent recommendations were lower than current one, applying the lowest recent \
              recommendation",
};
const SCALE_DOWN_STABILIZED: Reason = Reason {
    reason: "ScaleDownStabilized",
    message: "recent recommendations were higher than current one, applying the highest recent \
              recommendation",
};
const READY_FOR_NEW_SCALE: Reason = Reason {
    reason: "ReadyForNewScale",
    message: "recommended size matches current size",
};
const SCALE_UP_LIMIT: Reason = Reason {
    reason: "ScaleUpLimit",
    message: "the desired replica count is increasing faster than the maximum scale rate",
};
const SCALE_DOWN_LIMIT: Reason = Reason {
    reason: "ScaleDownLimit",
    message: "the desired replica count is decreasing faster than the maximum scale rate",
};
const TOO_MANY_REPLICAS: Reason = Reason {
    reason: "TooManyReplicas",
    message: "the desired replica count is more than the maximum replica count",
};
const TOO_FEW_REPLICAS: Reason = Reason {
    reason: "TooFewReplicas",
    message: "the desired replica count is less than the minimum replica count",
};
const WITHIN_RANGE: Reason = Reason {
    reason: "DesiredWithinRange",
    message: "the desired count is within the acceptable range",
};

/// The replicas to set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Normalized {
    pub(super) replicas: i32,
    /// The reason of the condition AbleToScale.
    pub(super) able_to_scale: Reason,
    /// The status of the condition ScalingLimited.
    pub(super) is_limited: bool,
    /// The reason of the condition ScalingLimited.
    pub(super) limited: Reason,
}

impl History {
    /// Records the replicas at the first sync, so that a controller that has just started does not
    /// scale down before the stabilization window ends. Mirrors recordInitialRecommendation.
    pub(super) fn record_initial(&mut self, replicas: i32, now: Timestamp) {
        if self.recommendations.is_empty() {
            self.recommendations
                .push(Recommendation { replicas, at: now });
        }
    }

    /// Applies stabilization and limits. Mirrors normalizeDesiredReplicas and
    /// normalizeDesiredReplicasWithBehaviors.
    pub(super) fn normalize(
        &mut self,
        recommended: Recommended,
        behavior: Option<&HorizontalPodAutoscalerBehavior>,
        now: Timestamp,
    ) -> Normalized {
        let (stabilized, stabilized_reason) = match behavior {
            None => (
                self.stabilize(recommended.desired, now),
                SCALE_DOWN_STABILIZED,
            ),
            Some(behavior) => self.stabilize_with_behavior(recommended, behavior, now),
        };
        let limited = Recommended {
            desired: stabilized,
            ..recommended
        };
        let (replicas, reason) = match behavior {
            None => limit(limited),
            Some(behavior) => self.limit_rate(limited, behavior, now),
        };
        Normalized {
            replicas,
            able_to_scale: if stabilized == recommended.desired {
                READY_FOR_NEW_SCALE
            } else {
                stabilized_reason
            },
            is_limited: replicas != stabilized,
            limited: reason,
        }
    }

    /// Records a change of the replicas, if a policy counts it. Mirrors storeScaleEvent.
    pub(super) fn record_scale(
        &mut self,
        behavior: Option<&HorizontalPodAutoscalerBehavior>,
        from: i32,
        to: i32,
        now: Timestamp,
    ) {
        let Some(behavior) = behavior else {
            return;
        };
        let (events, rules) = if to > from {
            (&mut self.scale_ups, behavior.scale_up.as_ref())
        } else {
            (&mut self.scale_downs, behavior.scale_down.as_ref())
        };
        let periods = policies(rules).iter().map(|policy| policy.period_seconds);
        let cutoff = seconds_before(now, periods.max().unwrap_or_default());
        let event = ScaleEvent {
            change: to.abs_diff(from).try_into().unwrap_or(i32::MAX),
            at: now,
        };
        match events.iter_mut().rfind(|event| event.at < cutoff) {
            Some(outdated) => *outdated = event,
            None => events.push(event),
        }
    }

    /// The highest recommendation of the last 5 minutes. Mirrors stabilizeRecommendation.
    fn stabilize(&mut self, desired: i32, now: Timestamp) -> i32 {
        let cutoff = before(now, DOWNSCALE_STABILIZATION);
        let recent = self.recommendations.iter().filter(|it| it.at >= cutoff);
        let highest = recent.map(|it| it.replicas).max();
        self.record(desired, now, cutoff);
        highest.map_or(desired, |highest| highest.max(desired))
    }

    /// Mirrors stabilizeRecommendationWithBehaviors.
    fn stabilize_with_behavior(
        &mut self,
        recommended: Recommended,
        behavior: &HorizontalPodAutoscalerBehavior,
        now: Timestamp,
    ) -> (i32, Reason) {
        let Recommended {
            current, desired, ..
        } = recommended;
        let window = |rules: Option<&HPAScalingRules>| {
            rules.and_then(|rules| rules.stabilization_window_seconds)
        };
        let default_down = i32::try_from(DOWNSCALE_STABILIZATION.as_secs()).unwrap_or(i32::MAX);
        let up_window = window(behavior.scale_up.as_ref()).unwrap_or(0);
        let down_window = window(behavior.scale_down.as_ref()).unwrap_or(default_down);
        let up_cutoff = seconds_before(now, up_window);
        let down_cutoff = seconds_before(now, down_window);
        let mut lowest = desired;
        let mut highest = desired;
        for recommendation in &self.recommendations {
            if recommendation.at > up_cutoff {
                lowest = lowest.min(recommendation.replicas);
            }
            if recommendation.at > down_cutoff {
                highest = highest.max(recommendation.replicas);
            }
        }
        self.record(desired, now, up_cutoff.min(down_cutoff));
        let reason = if desired >= current {
            SCALE_UP_STABILIZED
        } else {
            SCALE_DOWN_STABILIZED
        };
        (current.max(lowest).min(highest), reason)
    }

    /// Records a recommendation in the place of one that is older than the cutoff.
    fn record(&mut self, replicas: i32, now: Timestamp, cutoff: Timestamp) {
        let recommendation = Recommendation { replicas, at: now };
        match self.recommendations.iter_mut().rfind(|it| it.at < cutoff) {
            Some(outdated) => *outdated = recommendation,
            None => self.recommendations.push(recommendation),
        }
    }

    /// Mirrors convertDesiredReplicasWithBehaviorRate.
    fn limit_rate(
        &self,
        recommended: Recommended,
        behavior: &HorizontalPodAutoscalerBehavior,
        now: Timestamp,
    ) -> (i32, Reason) {
        let Recommended {
            current,
            desired,
            min,
            max,
        } = recommended;
        if desired > current {
            // The limit is below the current replicas while earlier scale-ups use up the policies.
            let limit = self.scale_up_limit(current, behavior.scale_up.as_ref(), now);
            let limit = limit.max(current);
            let reason = if max > limit {
                SCALE_UP_LIMIT
            } else {
                TOO_MANY_REPLICAS
            };
            let allowed = max.min(limit);
            if desired > allowed {
                return (allowed, reason);
            }
        } else if desired < current {
            let limit = self.scale_down_limit(current, behavior.scale_down.as_ref(), now);
            let limit = limit.min(current);
            let reason = if min < limit {
                SCALE_DOWN_LIMIT
            } else {
                TOO_FEW_REPLICAS
            };
            let allowed = min.max(limit);
            if desired < allowed {
                return (allowed, reason);
            }
        }
        (desired, WITHIN_RANGE)
    }

    /// Mirrors calculateScaleUpLimitWithScalingRules.
    fn scale_up_limit(&self, current: i32, rules: Option<&HPAScalingRules>, now: Timestamp) -> i32 {
        let limits = policies(rules).iter().map(|policy| {
            let start = self.replicas_before(current, policy.period_seconds, now);
            match policy.type_.as_str() {
                "Pods" => start.saturating_add(policy.value),
                // Rounded up: otherwise a small target would never be scaled up.
                _ => (f64::from(start) * (1.0 + f64::from(policy.value) / 100.0)).ceil() as i32,
            }
        });
        match select_policy(rules) {
            "Disabled" => current,
            "Min" => limits.min().unwrap_or(i32::MAX),
            _ => limits.max().unwrap_or(i32::MIN),
        }
    }

    /// Mirrors calculateScaleDownLimitWithBehaviors.
    fn scale_down_limit(
        &self,
        current: i32,
        rules: Option<&HPAScalingRules>,
        now: Timestamp,
    ) -> i32 {
        let limits = policies(rules).iter().map(|policy| {
            let start = self.replicas_before(current, policy.period_seconds, now);
            match policy.type_.as_str() {
                "Pods" => start.saturating_sub(policy.value),
                _ => (f64::from(start) * (1.0 - f64::from(policy.value) / 100.0)) as i32,
            }
        });
        match select_policy(rules) {
            "Disabled" => current,
            // The smallest change leaves the most replicas.
            "Min" => limits.max().unwrap_or(i32::MIN),
            _ => limits.min().unwrap_or(i32::MAX),
        }
    }

    /// The replicas at the start of a period.
    fn replicas_before(&self, current: i32, period_seconds: i32, now: Timestamp) -> i32 {
        let added = change_in_period(&self.scale_ups, period_seconds, now);
        let deleted = change_in_period(&self.scale_downs, period_seconds, now);
        current.saturating_sub(added).saturating_add(deleted)
    }
}

/// The limits without a behavior. Mirrors convertDesiredReplicasWithRules.
fn limit(recommended: Recommended) -> (i32, Reason) {
    let Recommended {
        current,
        desired,
        min,
        max,
    } = recommended;
    let limit = current.saturating_mul(SCALE_UP_LIMIT_FACTOR);
    let limit = limit.max(SCALE_UP_LIMIT_MINIMUM);
    if desired < min {
        (min, TOO_FEW_REPLICAS)
    } else if max > limit && desired > limit {
        (limit, SCALE_UP_LIMIT)
    } else if desired > max {
        (max, TOO_MANY_REPLICAS)
    } else {
        (desired, WITHIN_RANGE)
    }
}

/// Mirrors getReplicasChangePerPeriod.
fn change_in_period(events: &[ScaleEvent], period_seconds: i32, now: Timestamp) -> i32 {
    let cutoff = seconds_before(now, period_seconds);
    let recent = events.iter().filter(|event| event.at > cutoff);
    recent.fold(0, |sum, event| sum.saturating_add(event.change))
}

/// The policies of a direction. The API server sets them if there is a behavior.
fn policies(rules: Option<&HPAScalingRules>) -> &[HPAScalingPolicy] {
    let policies = rules.and_then(|rules| rules.policies.as_deref());
    policies.unwrap_or_default()
}

fn select_policy(rules: Option<&HPAScalingRules>) -> &str {
    let selected = rules.and_then(|rules| rules.select_policy.as_deref());
    selected.unwrap_or("Max")
}

fn seconds_before(now: Timestamp, seconds: i32) -> Timestamp {
    let seconds = u64::try_from(seconds).unwrap_or_default();
    before(now, Duration::from_secs(seconds))
}

fn before(now: Timestamp, duration: Duration) -> Timestamp {
    now.checked_sub(duration).unwrap_or(Timestamp::MIN)
}

#[cfg(test)]
mod tests;
