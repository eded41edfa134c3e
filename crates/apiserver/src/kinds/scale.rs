//! The `scale` subresource: how many replicas a workload has, in one form for all kinds.
//! In: an object with replicas, or a Scale that a client wrote. Out: the Scale, or the object with its new number.

use serde_json::{Map, Value, json};

use super::{checks, look::Look, selector::Selector};
use crate::{
    error::{ApiError, GroupKind},
    field::Path,
    object::{Object, ObjectMeta},
};

/// Where an object keeps what a Scale shows: dotted paths into its body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ScalePaths<'a> {
    /// The number wanted.
    pub(crate) spec_replicas: &'a str,
    /// The number there is.
    pub(crate) status_replicas: &'a str,
    /// The selector of the pods; empty when there is none.
    pub(crate) selector: &'a str,
}

impl ScalePaths<'static> {
    /// Where every built-in kind keeps it.
    pub(crate) const BUILT_IN: Self =
        Self { spec_replicas: "spec.replicas", status_replicas: "status.replicas", selector: "spec.selector" };
}

/// The Scale of a built-in workload.
pub(crate) fn scale_of(object: &Object) -> Object {
    let paths = ScalePaths::BUILT_IN;
    scale_at(object, &paths, replicas_at(object, paths.spec_replicas))
}

/// The Scale of a custom resource; `None` when the number wanted is not there.
pub(crate) fn scale_of_custom(object: &Object, paths: &ScalePaths<'_>) -> Option<Object> {
    object.at(paths.spec_replicas)?.as_i64().map(|replicas| scale_at(object, paths, replicas))
}

fn scale_at(object: &Object, paths: &ScalePaths<'_>, replicas: i64) -> Object {
    let mut status = json!({"replicas": replicas_at(object, paths.status_replicas)});
    let selector = if paths.selector.is_empty() { String::new() } else { selector_text(object.at(paths.selector)) };
    if !selector.is_empty() {
        status["selector"] = selector.into();
    }
    let meta = &object.meta;
    Object {
        api_version: "autoscaling/v1".into(),
        kind: "Scale".into(),
        meta: ObjectMeta {
            name: meta.name.clone(),
            namespace: meta.namespace.clone(),
            uid: meta.uid.clone(),
            resource_version: meta.resource_version.clone(),
            creation_timestamp: meta.creation_timestamp,
            ..ObjectMeta::default()
        },
        body: Map::from_iter([
            // No replicas wanted is not written.
            ("spec".to_owned(), if replicas == 0 { json!({}) } else { json!({ "replicas": replicas }) }),
            ("status".to_owned(), status),
        ]),
    }
}

fn replicas_at(object: &Object, path: &str) -> i64 {
    object.at(path).and_then(Value::as_i64).unwrap_or_default()
}

/// A selector as a query: of a label selector, a plain map of labels, or a text that is one already.
fn selector_text(selector: Option<&Value>) -> String {
    match selector {
        Some(Value::String(text)) => text.clone(),
        Some(value) if value.has("matchLabels") || value.has("matchExpressions") => {
            Selector::read(selector).map(|s| s.to_string()).unwrap_or_default()
        }
        other => Selector::of_labels(other.and_then(Value::as_object)).to_string(),
    }
}

/// The number a written Scale asks for; a Scale without one asks for none.
pub(crate) fn wanted(scale: &Object) -> i64 {
    scale.body.part("spec").number("replicas")
}

/// What is wrong with a written Scale.
///
/// # Errors
/// A negative number of replicas.
pub(crate) fn check(scale: &Object, name: &str) -> Result<(), ApiError> {
    let mut errors = Vec::new();
    checks::not_negative(&Path::field("spec.replicas"), wanted(scale), &mut errors);
    ApiError::from_fields(GroupKind::new("autoscaling", "Scale"), name, errors)
}

/// Gives a workload the number that a checked Scale asks for.
pub(crate) fn apply_scale(object: &mut Object, scale: &Object, paths: &ScalePaths<'_>) {
    let steps: Vec<&str> = paths.spec_replicas.split('.').collect();
    let Some((last, parents)) = steps.split_last() else { return };
    let mut holder = &mut object.body;
    for step in parents {
        let slot = holder.entry(*step).or_insert_with(|| json!({}));
        if !slot.is_object() {
            *slot = json!({});
        }
        holder = slot.as_object_mut().expect("made an object above");
    }
    holder.insert((*last).to_owned(), wanted(scale).into());
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kinds::trial::object;

    fn replica_set(selector: Value, replicas: i64) -> Object {
        object(json!({"apiVersion": "apps/v1", "kind": "ReplicaSet", "metadata": {"name": "rs", "namespace": "a"},
            "spec": {"replicas": replicas, "selector": selector}, "status": {"replicas": 2}}))
    }

    #[test]
    fn scale_shows_replicas_and_selector() {
        let cases = [
            (json!({"matchLabels": {"app": "web"}}), 1, json!({"replicas": 1}), "app=web"),
            (json!({"matchExpressions": [{"key": "app", "operator": "In", "values": ["b", "a"]}]}), 0, json!({}), "app in (a,b)"),
            (json!({"app": "a"}), 2, json!({"replicas": 2}), "app=a"),
        ];
        for (selector, replicas, spec, text) in cases {
            let scale = scale_of(&replica_set(selector, replicas));
            assert_eq!(Value::Object(scale.body), json!({"spec": spec, "status": {"replicas": 2, "selector": text}}));
            assert_eq!((scale.kind.as_str(), scale.meta.name.as_str()), ("Scale", "rs"));
        }
    }

    #[test]
    fn written_scale_sets_replicas_at_the_path() {
        let scale = |replicas: i64| object(json!({"metadata": {"name": "rs"}, "spec": {"replicas": replicas}}));
        let mut workload = replica_set(json!({}), 1);
        apply_scale(&mut workload, &scale(4), &ScalePaths::BUILT_IN);
        assert_eq!(workload.at("spec.replicas"), Some(&json!(4)));
        let paths = ScalePaths { spec_replicas: "spec.size.wanted", ..ScalePaths::BUILT_IN };
        assert_eq!(scale_of_custom(&workload, &paths), None);
        apply_scale(&mut workload, &scale(7), &paths);
        assert_eq!(scale_of_custom(&workload, &paths).map(|s| wanted(&s)), Some(7));
        let refused = check(&scale(-1), "rs").expect_err("less than nothing").to_status();
        assert_eq!(
            refused["message"],
            "Scale.autoscaling \"rs\" is invalid: spec.replicas: Invalid value: -1: must be greater than or equal to 0"
        );
    }
}
