//! Conditions: what is true of an object, and since when.
//!
//! In: a list of conditions and one to set. Out: whether anything changed.
//! Holds: `lastTransitionTime` moves only when the status does; setting what is already there changes nothing, so no write follows.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

/// Whether a condition holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConditionStatus {
    /// It holds.
    True,
    /// It does not hold.
    False,
    /// Nobody can tell.
    Unknown,
}

impl ConditionStatus {
    /// The word in the object.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::True => "True",
            Self::False => "False",
            Self::Unknown => "Unknown",
        }
    }
}

/// A condition to set.
#[derive(Clone, Debug)]
pub struct SetCondition<'a> {
    /// Its type, such as `Ready`.
    pub type_: &'a str,
    /// Whether it holds.
    pub status: ConditionStatus,
    /// Why, in one CamelCase word.
    pub reason: &'a str,
    /// Why, for people.
    pub message: &'a str,
    /// The generation of the spec this was decided on.
    pub observed_generation: Option<i64>,
}

/// Sets one condition, and says whether the list changed. The order of the others stays.
pub fn set_condition(
    conditions: &mut Vec<Condition>,
    set: &SetCondition<'_>,
    now: Timestamp,
) -> bool {
    let wanted = |last_transition_time| Condition {
        type_: set.type_.into(),
        status: set.status.as_str().into(),
        reason: set.reason.into(),
        message: set.message.into(),
        observed_generation: set.observed_generation,
        last_transition_time,
    };
    let Some(known) = conditions
        .iter_mut()
        .find(|condition| condition.type_ == set.type_)
    else {
        conditions.push(wanted(Time(now)));
        return true;
    };
    let since = if known.status == set.status.as_str() {
        known.last_transition_time.clone()
    } else {
        Time(now)
    };
    let wanted = wanted(since);
    let changed = *known != wanted;
    *known = wanted;
    changed
}

/// Removes a condition, and says whether it was there.
pub fn remove_condition(conditions: &mut Vec<Condition>, type_: &str) -> bool {
    let before = conditions.len();
    conditions.retain(|condition| condition.type_ != type_);
    conditions.len() < before
}

/// Whether a condition is there and holds.
pub fn is_condition_true(conditions: &[Condition], type_: &str) -> bool {
    conditions
        .iter()
        .any(|condition| condition.type_ == type_ && condition.status == "True")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn transition_time_moves_with_the_status_only() {
        let at = |second| Timestamp::from_second(second).unwrap();
        let mut conditions = Vec::new();
        for (status, reason, second, changes, since) in [
            (ConditionStatus::False, "Starting", 10, true, 10),
            (ConditionStatus::False, "Starting", 20, false, 10),
            (ConditionStatus::False, "Waiting", 30, true, 10),
            (ConditionStatus::True, "Running", 40, true, 40),
            (ConditionStatus::True, "Running", 50, false, 40),
            (ConditionStatus::Unknown, "Lost", 60, true, 60),
        ] {
            let set = SetCondition {
                type_: "Ready",
                status,
                reason,
                message: "",
                observed_generation: Some(1),
            };
            assert_eq!(
                set_condition(&mut conditions, &set, at(second)),
                changes,
                "{reason} at {second}"
            );
            assert_eq!(
                conditions[0].last_transition_time.0,
                at(since),
                "{reason} at {second}"
            );
        }
        assert!(!is_condition_true(&conditions, "Ready"));
        assert!(
            remove_condition(&mut conditions, "Ready")
                && !remove_condition(&mut conditions, "Ready")
        );
    }
}
