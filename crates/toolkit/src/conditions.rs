//! Status conditions, with the function names of apimachinery's `meta` package.
//!
//! In: the conditions of an object's status and one to set. Out: whether the list changed.
//! Guarantees: `lastTransitionTime` changes only when the status changes; setting a condition
//! that is already present changes nothing, so no write follows.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use kube::Resource;

/// The status of a condition.
///
/// ```
/// use bellerophon::conditions::ConditionStatus;
///
/// assert_eq!(ConditionStatus::Unknown.as_str(), "Unknown");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// The condition holds.
    True,
    /// The condition does not hold.
    False,
    /// The controller cannot decide whether the condition holds.
    Unknown,
}

impl ConditionStatus {
    /// The value of the `status` field: `True`, `False` or `Unknown`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// A condition to set with [`set_status_condition`]. It has no `lastTransitionTime`:
/// [`set_status_condition`] decides that.
///
/// ```
/// use bellerophon::conditions::{ConditionStatus, ConditionUpdate};
/// use k8s_openapi::api::core::v1::ConfigMap;
///
/// let object = ConfigMap::default();
/// let ready = ConditionUpdate::new("Ready", ConditionStatus::False, "MinimumReplicasUnavailable")
///     .message("1 of 3 replicas is available")
///     .observed(&object);
/// assert_eq!(ready.reason, "MinimumReplicasUnavailable");
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ConditionUpdate {
    /// The type of the condition, such as `Ready`.
    pub type_: String,
    /// Its status.
    pub status: ConditionStatus,
    /// The reason, one CamelCase word.
    pub reason: String,
    /// A message for humans. Default: empty.
    pub message: String,
    /// The `metadata.generation` that the status was computed from. Default: none.
    pub observed_generation: Option<i64>,
}

impl ConditionUpdate {
    /// A condition without a message and without an observed generation.
    pub fn new(
        type_: impl Into<String>,
        status: ConditionStatus,
        reason: impl Into<String>,
    ) -> Self {
        Self {
            type_: type_.into(),
            status,
            reason: reason.into(),
            message: String::new(),
            observed_generation: None,
        }
    }

    /// Sets the message.
    #[must_use]
    pub fn message(mut self, message: impl Into<String>) -> Self {
        self.message = message.into();
        self
    }

    /// Sets `observedGeneration` to the generation of the object that was reconciled.
    #[must_use]
    pub fn observed<K: Resource>(mut self, object: &K) -> Self {
        self.observed_generation = object.meta().generation;
        self
    }

    fn into_condition(self, last_transition_time: Time) -> Condition {
        Condition {
            type_: self.type_,
            status: self.status.as_str().into(),
            reason: self.reason,
            message: self.message,
            observed_generation: self.observed_generation,
            last_transition_time,
        }
    }
}

/// Sets a condition and returns whether the list changed. The order of the others stays.
///
/// `lastTransitionTime` becomes `now` if the condition is new or its status changed.
///
/// ```
/// use bellerophon::conditions::{ConditionStatus, ConditionUpdate, set_status_condition};
/// use jiff::Timestamp;
///
/// let mut conditions = Vec::new();
/// let ready = ConditionUpdate::new("Ready", ConditionStatus::True, "AllReady");
/// assert!(set_status_condition(&mut conditions, ready.clone(), Timestamp::UNIX_EPOCH));
/// assert!(!set_status_condition(&mut conditions, ready, Timestamp::UNIX_EPOCH));
/// ```
pub fn set_status_condition(
    conditions: &mut Vec<Condition>,
    update: ConditionUpdate,
    now: Timestamp,
) -> bool {
    // Mirrors meta.SetStatusCondition.
    let known = conditions
        .iter_mut()
        .find(|condition| condition.type_ == update.type_);
    let Some(known) = known else {
        conditions.push(update.into_condition(Time(now)));
        return true;
    };
    let last_transition_time = if known.status == update.status.as_str() {
        known.last_transition_time.clone()
    } else {
        Time(now)
    };
    let updated = update.into_condition(last_transition_time);
    let changed = *known != updated;
    *known = updated;
    changed
}

/// Removes the condition of that type and returns whether it was present.
pub fn remove_status_condition(conditions: &mut Vec<Condition>, type_: &str) -> bool {
    let before = conditions.len();
    conditions.retain(|condition| condition.type_ != type_);
    conditions.len() < before
}

/// The condition of that type, if present.
pub fn find_status_condition<'a>(
    conditions: &'a [Condition],
    type_: &str,
) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Whether the condition of that type is present with status `True`.
pub fn is_status_condition_true(conditions: &[Condition], type_: &str) -> bool {
    find_status_condition(conditions, type_).is_some_and(|condition| condition.status == "True")
}

#[cfg(test)]
mod tests {
    use k8s_openapi::api::core::v1::ConfigMap;

    use super::*;

    #[test]
    fn transition_time_changes_with_the_status_only() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut object = ConfigMap::default();
        object.metadata.generation = Some(1);
        let mut conditions = Vec::new();
        for (status, reason, second, changes, since) in [
            (ConditionStatus::False, "Starting", 10, true, 10),
            (ConditionStatus::False, "Starting", 20, false, 10),
            (ConditionStatus::False, "Waiting", 30, true, 10),
            (ConditionStatus::True, "Running", 40, true, 40),
            (ConditionStatus::True, "Running", 50, false, 40),
            (ConditionStatus::Unknown, "Lost", 60, true, 60),
        ] {
            let update = ConditionUpdate::new("Ready", status, reason).observed(&object);
            assert_eq!(
                set_status_condition(&mut conditions, update, at(second)),
                changes,
                "{reason} at {second}"
            );
            let ready = find_status_condition(&conditions, "Ready").unwrap();
            assert_eq!(
                ready.last_transition_time.0,
                at(since),
                "{reason} at {second}"
            );
            assert_eq!(ready.observed_generation, Some(1), "{reason} at {second}");
            assert_eq!(
                is_status_condition_true(&conditions, "Ready"),
                status == ConditionStatus::True,
                "{reason} at {second}"
            );
        }
        assert!(!is_status_condition_true(&conditions, "Ready"));
        assert!(remove_status_condition(&mut conditions, "Ready"));
        assert!(!remove_status_condition(&mut conditions, "Ready"));
    }
}
