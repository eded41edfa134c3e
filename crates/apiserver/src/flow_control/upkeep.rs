//! The objects that the server maintains: what differs from them, and how that is restored.
//! In: the objects of a new cluster and the stored ones. Out: the changes that kube-apiserver
//! makes.

use std::sync::atomic::AtomicUsize;

use bellerophon_apimachinery::json_ext::JsonExt as _;
use bellerophon_codec::object::Object;
use bellerophon_resources::kinds::flow_control::{AUTO_UPDATE_ANNOTATION, equal_specs};
use serde_json::Value;
use tokio::sync::Notify;

use super::config::{CATCH_ALL, EXEMPT};

/// Work that writes of the configuration cause.
#[derive(Debug, Default)]
pub(crate) struct Upkeep {
    /// Writes since the configuration was last brought in line with them.
    pub(crate) writes: AtomicUsize,
    /// There is something to restore.
    pub(crate) due: Notify,
}

/// A change of an object that the server maintains.
#[derive(Debug, PartialEq)]
pub(crate) enum Action {
    Create(Box<Object>),
    Update {
        name: String,
        spec: Option<Value>,
        annotation: Option<bool>,
    },
    Delete(String),
}

impl Action {
    pub(crate) fn name(&self) -> &str {
        match self {
            Self::Create(object) => &object.meta.name,
            Self::Update { name, .. } | Self::Delete(name) => name,
        }
    }
}

/// The changes that make the stored objects of a kind those that are maintained. Mirrors
/// `EnsureConfigurations` and `RemoveUnwantedObjects`.
pub(crate) fn revisions(maintained: &[Object], stored: &[Object]) -> Vec<Action> {
    let restored = maintained.iter().filter_map(|wanted| {
        match stored.iter().find(|o| o.meta.name == wanted.meta.name) {
            None => Some(Action::Create(Box::new(wanted.clone()))),
            Some(found) => revision(wanted, found),
        }
    });
    let unknown = stored.iter().filter(|object| {
        auto_update(object) == Some(true)
            && !maintained.iter().any(|o| o.meta.name == object.meta.name)
    });
    restored
        .chain(unknown.map(|object| Action::Delete(object.meta.name.clone())))
        .collect()
}

fn revision(wanted: &Object, found: &Object) -> Option<Action> {
    let name = &wanted.meta.name;
    let mandatory = [EXEMPT, CATCH_ALL].contains(&name.as_str());
    let annotated = auto_update(found);
    let updates = mandatory || annotated.unwrap_or(found.meta.generation == 1);
    let spec = wanted.body.field("spec");
    let spec_changed = updates && !equal_specs(name, spec, found.body.field("spec"));
    let annotation = (annotated != Some(updates)).then_some(updates);
    (spec_changed || annotation.is_some()).then(|| Action::Update {
        name: name.clone(),
        spec: spec_changed.then(|| spec.clone()),
        annotation,
    })
}

/// The annotation that decides whether the server maintains the spec, if it is set to a boolean.
fn auto_update(object: &Object) -> Option<bool> {
    let value = object.meta.annotations.get(AUTO_UPDATE_ANNOTATION)?;
    match value.as_str() {
        "1" | "t" | "T" | "true" | "TRUE" | "True" => Some(true),
        "0" | "f" | "F" | "false" | "FALSE" | "False" => Some(false),
        _ => None,
    }
}

#[cfg(test)]
pub(super) mod tests {
    use bellerophon_apimachinery::time::Time;
    use bellerophon_resources::kinds::flow_control::default_objects;
    use serde_json::json;

    use super::*;
    use crate::flow_control::config::{Configuration, conditions_to_write};

    fn now() -> Time {
        Time::parse("2026-01-02T03:04:05Z").expect("a time")
    }

    fn maintained(kind: &str) -> Vec<Object> {
        default_objects(now())
            .into_iter()
            .filter(|object| object.kind == kind)
            .collect()
    }

    /// The configuration of a new cluster.
    pub(in super::super) fn default_configuration() -> Configuration {
        Configuration::compile(
            &maintained("PriorityLevelConfiguration"),
            &maintained("FlowSchema"),
        )
    }

    fn annotate(object: &mut Object, value: &str) {
        let key = AUTO_UPDATE_ANNOTATION.to_owned();
        object.meta.annotations.insert(key, value.to_owned());
    }

    #[test]
    fn mandatory_objects_are_in_use_without_being_stored() {
        let Configuration { levels, schemas } = Configuration::compile(&[], &[]);
        let levels: Vec<&str> = levels.iter().map(|level| level.name.as_str()).collect();
        assert_eq!(levels, [EXEMPT, CATCH_ALL]);
        let schemas: Vec<&str> = schemas.iter().map(|schema| schema.name.as_str()).collect();
        assert_eq!(schemas, [EXEMPT, CATCH_ALL]);
    }

    #[test]
    fn schemas_are_ordered_and_those_of_missing_levels_left_out() {
        let names: Vec<String> = default_configuration()
            .schemas
            .into_iter()
            .map(|schema| schema.name)
            .collect();
        assert_eq!(names[0], EXEMPT);
        assert_eq!(names[5..7], ["kube-controller-manager", "kube-scheduler"]);
        assert_eq!(names.last().map(String::as_str), Some(CATCH_ALL));
        let mut levels = maintained("PriorityLevelConfiguration");
        levels.retain(|level| level.meta.name != "system");
        let schemas = maintained("FlowSchema");
        let found = Configuration::compile(&levels, &schemas).schemas;
        assert!(found.iter().all(|schema| schema.name != "system-nodes"));
        let [(name, condition)] = &conditions_to_write(&levels, &schemas, now())[..] else {
            panic!("one schema is dangling");
        };
        assert_eq!(name, "system-nodes");
        assert_eq!(condition["status"], "True");
        assert_eq!(condition["reason"], "NotFound");
        assert_eq!(
            condition["message"],
            "This FlowSchema references the PriorityLevelConfiguration object named \"system\" but there is no such object"
        );
    }

    #[test]
    fn maintained_objects_are_restored_by_their_annotation() {
        let maintained = maintained("PriorityLevelConfiguration");
        assert_eq!(revisions(&maintained, &maintained), []);
        let other = json!({"type": "Limited", "limited": {"nominalConcurrencyShares": 1}});
        let changed = |name: &str, generation: i64, annotation: Option<&str>| {
            let mut stored = maintained.clone();
            let object = stored
                .iter_mut()
                .find(|object| object.meta.name == name)
                .expect("it is maintained");
            object.body.insert("spec".into(), other.clone());
            object.meta.generation = generation;
            object.meta.annotations.clear();
            if let Some(value) = annotation {
                annotate(object, value);
            }
            let wanted = maintained.iter().find(|object| object.meta.name == name);
            let spec = wanted.expect("it is maintained").body["spec"].clone();
            (revisions(&maintained, &stored), spec)
        };
        for (name, generation, annotation, restores, annotates) in [
            ("system", 2, Some("true"), true, None),
            ("system", 2, Some("false"), false, None),
            ("system", 2, None, false, Some(false)),
            ("system", 1, None, true, Some(true)),
            ("system", 2, Some("maybe"), false, Some(false)),
            ("catch-all", 2, Some("false"), true, Some(true)),
        ] {
            let (found, spec) = changed(name, generation, annotation);
            let expected = (restores || annotates.is_some()).then(|| Action::Update {
                name: name.to_owned(),
                spec: restores.then_some(spec),
                annotation: annotates,
            });
            assert_eq!(
                found,
                Vec::from_iter(expected),
                "{name} {generation} {annotation:?}"
            );
        }
    }

    #[test]
    fn missing_objects_are_created_and_unknown_ones_deleted() {
        let maintained = maintained("FlowSchema");
        let mut stored = maintained.clone();
        let mut gone = stored.remove(3);
        let created = revisions(&maintained, &stored);
        assert_eq!(created, [Action::Create(Box::new(gone.clone()))]);
        gone.meta.name = "unknown".into();
        stored = maintained.clone();
        stored.push(gone.clone());
        assert_eq!(
            revisions(&maintained, &stored),
            [Action::Delete("unknown".into())]
        );
        annotate(&mut gone, "false");
        stored.pop();
        stored.push(gone);
        assert_eq!(revisions(&maintained, &stored), []);
    }

    #[test]
    fn seats_of_the_exempt_level_are_free_to_choose() {
        let maintained = maintained("PriorityLevelConfiguration");
        let exempt = &maintained[0];
        let mut chosen = exempt.clone();
        chosen.body["spec"]["exempt"]["nominalConcurrencyShares"] = 9.into();
        assert_eq!(revision(exempt, &chosen), None);
        chosen.body["spec"]["type"] = "Limited".into();
        assert!(revision(exempt, &chosen).is_some());
    }
}
