//! Conditions that the server itself sets in the status of a pod.
//! Guarantees: lastTransitionTime is the time since which a condition has its status; setting the
//! same status again keeps that time.
//! Mirrors `UpdatePodCondition` in `pkg/api/v1/pod`.

use bellerophon_apimachinery::{json_ext::JsonExt, time::Time};
use bellerophon_codec::object::Object;
use serde_json::{Value, json};

/// Sets a condition, given without times.
pub(super) fn set(pod: &mut Object, mut condition: Value, now: Time) {
    condition["lastProbeTime"] = Value::Null;
    condition["lastTransitionTime"] = now.to_string().into();
    let conditions = pod
        .section("status")
        .entry("conditions")
        .or_insert_with(|| json!([]));
    let Some(conditions) = conditions.as_array_mut() else {
        return;
    };
    match conditions
        .iter_mut()
        .find(|c| c.text("type") == condition.text("type"))
    {
        Some(known) => {
            if known.text("status") == condition.text("status") {
                condition["lastTransitionTime"] = known["lastTransitionTime"].clone();
            }
            *known = condition;
        }
        None => conditions.push(condition),
    }
}

/// Sets the condition of an evicted pod.
pub fn mark_evicted(pod: &mut Object, now: Time) {
    let evicted = json!({
        "type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI", "message": "Eviction API: evicting",
    });
    set(pod, evicted, now);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::test_support::object;

    #[test]
    fn condition_keeps_the_time_of_its_status() {
        let time =
            |second: u8| Time::parse(&format!("2026-01-02T03:04:{second:02}Z")).expect("a time");
        let mut pod = object(json!({}));
        mark_evicted(&mut pod, time(1));
        mark_evicted(&mut pod, time(2));
        set(
            &mut pod,
            json!({"type": "PodScheduled", "status": "False"}),
            time(3),
        );
        set(
            &mut pod,
            json!({"type": "PodScheduled", "status": "True"}),
            time(4),
        );
        let since: Vec<&str> = pod.body["status"]
            .list("conditions")
            .iter()
            .map(|c| c.text("lastTransitionTime"))
            .collect();
        assert_eq!(since, ["2026-01-02T03:04:01Z", "2026-01-02T03:04:04Z"]);
    }
}
