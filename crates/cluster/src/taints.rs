//! Taints and tolerations: effects, keys, and whether a toleration tolerates a taint.

use k8s_openapi::api::core::v1::{Taint, Toleration};

/// Pods that do not tolerate the taint are not scheduled onto the node.
pub(crate) const NO_SCHEDULE: &str = "NoSchedule";
/// The scheduler prefers nodes without the taint.
pub(crate) const PREFER_NO_SCHEDULE: &str = "PreferNoSchedule";
/// Pods that do not tolerate the taint are not scheduled onto the node and are evicted from it.
pub(crate) const NO_EXECUTE: &str = "NoExecute";

/// The taint of a node with `spec.unschedulable`.
pub(crate) const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// The first toleration that tolerates_taint the taint. Mirrors TolerationsTolerateTaint.
pub(crate) fn find_matching_toleration<'a>(
    tolerations: &'a [Toleration],
    taint: &Taint,
) -> Option<&'a Toleration> {
    tolerations
        .iter()
        .find(|toleration| tolerates_taint(toleration, taint))
}

/// Whether a toleration tolerates a taint. An absent effect matches every effect, an absent key
/// with operator `Exists` every key. Mirrors Toleration.ToleratesTaint.
pub(crate) fn tolerates_taint(toleration: &Toleration, taint: &Taint) -> bool {
    let set = |field: &'_ Option<String>| {
        field
            .as_deref()
            .filter(|text| !text.is_empty())
            .map(str::to_owned)
    };
    let effect = toleration.effect.as_deref().unwrap_or_default();
    let key = toleration.key.as_deref().unwrap_or_default();
    if (!effect.is_empty() && effect != taint.effect) || (!key.is_empty() && key != taint.key) {
        return false;
    }
    match toleration.operator.as_deref().unwrap_or_default() {
        "Exists" => true,
        "" | "Equal" => !key.is_empty() && set(&toleration.value) == set(&taint.value),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn toleration_matches_by_key_value_operator_and_effect() {
        let taint = |text: &str| {
            let (rest, effect) = text.split_once(':').unwrap();
            let (key, value) = rest.split_once('=').unwrap_or((rest, ""));
            Taint {
                key: key.into(),
                value: Some(value.into()),
                effect: effect.into(),
                time_added: None,
            }
        };
        for (toleration, taint_text, tolerated) in [
            (
                r#"{"key": "a", "operator": "Exists"}"#,
                "a=1:NoSchedule",
                true,
            ),
            (
                r#"{"key": "a", "operator": "Exists", "effect": "NoExecute"}"#,
                "a=1:NoSchedule",
                false,
            ),
            (r#"{"key": "a", "value": "1"}"#, "a=1:NoExecute", true),
            (
                r#"{"key": "a", "operator": "Equal", "value": "2"}"#,
                "a=1:NoExecute",
                false,
            ),
            (r#"{"key": "a", "operator": "Equal"}"#, "a:NoExecute", true),
            (
                r#"{"key": "b", "operator": "Exists"}"#,
                "a:NoExecute",
                false,
            ),
            (r#"{"operator": "Exists"}"#, "a=1:NoExecute", true),
            (r#"{}"#, "a=1:NoExecute", false),
        ] {
            assert_eq!(
                tolerates_taint(
                    &serde_json::from_str(toleration).unwrap(),
                    &taint(taint_text)
                ),
                tolerated,
                "{toleration} {taint_text}"
            );
        }
    }
}
