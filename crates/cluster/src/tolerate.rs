//! Taints and tolerations: which pods a node's taints concern.

use k8s_openapi::api::core::v1::{Taint, Toleration};

/// Keeps new pods away.
pub(crate) const NO_SCHEDULE: &str = "NoSchedule";
/// Keeps new pods away if there is another place.
pub(crate) const PREFER_NO_SCHEDULE: &str = "PreferNoSchedule";
/// Keeps new pods away, and drives those out that are there.
pub(crate) const NO_EXECUTE: &str = "NoExecute";

/// A node that nobody should schedule to, by its spec.
pub(crate) const UNSCHEDULABLE: &str = "node.kubernetes.io/unschedulable";

/// The first of the tolerations that bears a taint.
pub(crate) fn tolerating<'a>(
    tolerations: &'a [Toleration],
    taint: &Taint,
) -> Option<&'a Toleration> {
    tolerations
        .iter()
        .find(|toleration| tolerates(toleration, taint))
}

/// Whether a toleration bears a taint. An absent effect bears all, an absent key every key.
pub(crate) fn tolerates(toleration: &Toleration, taint: &Taint) -> bool {
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
    fn tolerations_bear_what_they_name() {
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
        for (toleration, against, bears) in [
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
                tolerates(&serde_json::from_str(toleration).unwrap(), &taint(against)),
                bears,
                "{toleration} {against}"
            );
        }
    }
}
