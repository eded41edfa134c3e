//! Adds tolerations of 300 seconds for not-ready and unreachable nodes to pods without them.
//! Mirrors the plugin DefaultTolerationSeconds.

use std::collections::HashSet;

use bellerophon_apimachinery::json_ext::JsonExt;
use bellerophon_codec::object::Object;
use serde_json::{Value, json};

use super::Admission;

const BORNE: [&str; 2] = [
    "node.kubernetes.io/not-ready",
    "node.kubernetes.io/unreachable",
];
const SECONDS: i64 = 300;

pub(super) fn mutate(request: &Admission<'_>, pod: &mut Object) {
    if request.writes("", "pods") {
        complete(pod);
    }
}

fn complete(pod: &mut Object) {
    let spec = pod.section("spec");
    let mut tolerations = spec.list("tolerations").to_vec();
    let is_tolerated = |key: &str, t: &Value| {
        ["", key].contains(&t.text("key")) && ["", "NoExecute"].contains(&t.text("effect"))
    };
    let missing: Vec<&str> = BORNE
        .into_iter()
        .filter(|key| !tolerations.iter().any(|t| is_tolerated(key, t)))
        .collect();
    if missing.is_empty() {
        return;
    }
    tolerations.extend(
        missing.into_iter().map(|key| json!({"key": key, "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": SECONDS})),
    );
    spec.insert("tolerations".into(), tolerations.into());
}

/// Longer lists lose repeated tolerations only: to find covered ones, each is compared with each.
const COMPARED_MAX: usize = 1000;

/// Both lists in one, without what another toleration covers.
pub(super) fn merge(first: &[Value], second: &[Value]) -> Vec<Value> {
    let all: Vec<&Value> = first.iter().chain(second).collect();
    if all.len() > COMPARED_MAX {
        let mut seen = HashSet::new();
        let distinct = all.into_iter().filter(|t| seen.insert(t.to_string()));
        return distinct.cloned().collect();
    }
    let mut merged: Vec<Value> = Vec::new();
    for (i, toleration) in all.iter().enumerate() {
        let before = merged.iter().any(|other| covers(other, toleration));
        let behind = all[i + 1..]
            .iter()
            .any(|other| other != toleration && covers(other, toleration));
        if !before && !behind {
            merged.push((*toleration).clone());
        }
    }
    merged
}

/// Whether whatever `narrow` bears, `wide` bears too.
fn covers(wide: &Value, narrow: &Value) -> bool {
    let exists = wide.text("operator") == "Exists";
    let any_key = wide.text("key").is_empty();
    let shorter = || match wide.int("tolerationSeconds") {
        Some(seconds) => narrow
            .int("tolerationSeconds")
            .is_none_or(|wanted| wanted > seconds),
        None => false,
    };
    if wide == narrow {
        return true;
    }
    if wide.text("key") != narrow.text("key") && !(any_key && exists) {
        return false;
    }
    if !["", narrow.text("effect")].contains(&wide.text("effect"))
        || wide.text("effect") == "NoExecute" && shorter()
    {
        return false;
    }
    exists || (narrow.text("operator") != "Exists" && wide.text("value") == narrow.text("value"))
}

#[cfg(test)]
mod tests {
    use crate::test_support::object;

    use super::*;

    #[test]
    fn pod_without_tolerations_gets_the_defaults() {
        let cases = [
            (
                json!([]),
                vec![
                    "node.kubernetes.io/not-ready",
                    "node.kubernetes.io/unreachable",
                ],
            ),
            (json!([{"operator": "Exists"}]), vec![""]),
            (
                json!([{"key": BORNE[1], "operator": "Exists"}]),
                vec![BORNE[1], BORNE[0]],
            ),
            (
                json!([{"key": BORNE[0], "operator": "Exists", "effect": "NoSchedule"}]),
                vec![BORNE[0], BORNE[0], BORNE[1]],
            ),
        ];
        for (given, keys) in cases {
            let mut pod = object(json!({"spec": {"tolerations": given}}));
            complete(&mut pod);
            assert_eq!(
                pod.body["spec"]
                    .list("tolerations")
                    .iter()
                    .map(|t| t.text("key"))
                    .collect::<Vec<_>>(),
                keys,
                "{given}"
            );
        }
    }

    #[test]
    fn merged_tolerations_leave_out_what_others_cover() {
        let keys = |first: Value, second: Value| {
            merge(
                first.as_array().expect("a list"),
                second.as_array().expect("a list"),
            )
        };
        let any = json!({"operator": "Exists"});
        let a = json!({"key": "a", "value": "1"});
        let b = json!({"key": "b", "operator": "Exists"});
        assert_eq!(keys(json!([a, b]), json!([b])), [a.clone(), b.clone()]);
        assert_eq!(keys(json!([a]), json!([any, b])), [any]);
        let short = json!({"key": "b", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 5});
        for (first, second) in [(&short, &b), (&b, &short)] {
            assert_eq!(
                keys(json!([first]), json!([second])),
                std::slice::from_ref(&b)
            );
        }
        let long = json!({"key": "b", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 9});
        assert_eq!(keys(json!([short]), json!([long])), [long]);
    }

    #[test]
    fn merged_tolerations_of_long_lists_are_unique() {
        let list: Vec<Value> = (0..30_000)
            .map(|i| json!({"key": format!("k{i}"), "operator": "Exists"}))
            .collect();
        assert_eq!(merge(&list, &list), list);
    }
}
