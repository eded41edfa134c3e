//! The accepted names of a definition, and its conditions NamesAccepted and Established.
//! In: a definition and the names already taken in its group. Out: its status.
//! Guarantees: a pure function of its arguments; an established definition stays established.

use std::collections::BTreeSet;

use bellerophon_apimachinery::{
    field::{FieldError, Path, go_quote},
    time::Time,
};
use bellerophon_codec::object::Object;

use super::{
    approval::{self, Approval},
    defaults::aggregate,
    definition::{Condition, Definition, Names, Status},
    structural,
};

/// The finalizer that keeps a definition until its custom resources are deleted.
pub const CLEANUP_FINALIZER: &str = "customresourcecleanup.apiextensions.k8s.io";

/// The progress of the deletion of a definition.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Termination {
    /// The definition is marked; its custom resources are untouched.
    Pending,
    /// Custom resources are being deleted.
    InProgress,
}

/// The status of a definition, given the accepted names of the others in its group and of built-in
/// resources.
///
/// Conditions that did not change keep the time of their last transition.
pub fn status(object: &Object, definition: &Definition, taken: &[Names], now: Time) -> Status {
    let mut status = definition.status.clone();
    let (names, naming) = accept(&definition.names, &status.accepted_names, taken);
    status.accepted_names = names;
    let accepted = naming.status == "True";
    status.set(naming, now);
    if !definition.is_true("Established") {
        let established = if accepted {
            condition(
                "Established",
                "True",
                "InitialNamesAccepted",
                "the initial names have been accepted",
            )
        } else {
            condition(
                "Established",
                "False",
                "NotAccepted",
                "not all names are accepted",
            )
        };
        status.set(established, now);
    }
    match non_structural(definition) {
        Some(violations) => status.set(violations, now),
        None => status
            .conditions
            .retain(|c| c.kind != "NonStructuralSchema"),
    }
    if let Some(state) = approval::approval(&definition.group, &object.meta.annotations) {
        status.set(
            approved(state, approval::message(state, &object.meta.annotations)),
            now,
        );
    }
    status
}

/// The status with the deletion of the definition noted.
pub fn terminating(status: &Status, termination: Termination, now: Time) -> Status {
    let mut status = status.clone();
    let (state, reason, message) = match termination {
        Termination::Pending => (
            "True",
            "InstanceDeletionPending",
            "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon",
        ),
        Termination::InProgress => (
            "True",
            "InstanceDeletionInProgress",
            "CustomResource deletion is in progress",
        ),
    };
    status.set(condition("Terminating", state, reason, message), now);
    status
}

impl Status {
    /// Replaces the condition of the same type, or adds it.
    fn set(&mut self, new: Condition, now: Time) {
        match self.conditions.iter_mut().find(|c| c.kind == new.kind) {
            None => self.conditions.push(Condition {
                last_transition_time: Some(now),
                ..new
            }),
            Some(old) => {
                let moved = old.status != new.status || old.last_transition_time.is_none();
                let last_transition_time = if moved {
                    Some(now)
                } else {
                    old.last_transition_time
                };
                *old = Condition {
                    last_transition_time,
                    ..new
                };
            }
        }
    }
}

fn condition(kind: &str, status: &str, reason: &str, message: &str) -> Condition {
    Condition {
        kind: kind.into(),
        status: status.into(),
        reason: reason.into(),
        message: message.into(),
        last_transition_time: None,
    }
}

/// The requested names that a definition gets, and whether it got all. The last conflict is
/// reported.
fn accept(wanted: &Names, accepted: &Names, taken: &[Names]) -> (Names, Condition) {
    let all = || taken.iter().chain([accepted]);
    let mut resources: BTreeSet<&str> = all()
        .flat_map(|n| [n.plural.as_str(), &n.singular])
        .collect();
    resources.extend(all().flat_map(|n| &n.short_names).map(String::as_str));
    let kinds: BTreeSet<&str> = all()
        .flat_map(|n| [n.kind.as_str(), &n.list_kind])
        .collect();

    let mut result = accepted.clone();
    let in_use = |name: &str| format!("{} is already in use", go_quote(name));
    let take = |slot: &mut String, name: &String, used: &BTreeSet<&str>, reason: &'static str| {
        if slot == name || !used.contains(name.as_str()) {
            slot.clone_from(name);
            None
        } else {
            Some((reason, in_use(name)))
        }
    };
    let plural = take(
        &mut result.plural,
        &wanted.plural,
        &resources,
        "PluralConflict",
    );
    let singular = take(
        &mut result.singular,
        &wanted.singular,
        &resources,
        "SingularConflict",
    );
    let kind = take(&mut result.kind, &wanted.kind, &kinds, "KindConflict");
    let list_kind = take(
        &mut result.list_kind,
        &wanted.list_kind,
        &kinds,
        "ListKindConflict",
    );
    let fresh =
        |name: &&String| !accepted.short_names.contains(name) && resources.contains(name.as_str());
    let clashes: Vec<String> = wanted
        .short_names
        .iter()
        .filter(fresh)
        .map(|name| in_use(name))
        .collect();
    let short_names = match clashes.as_slice() {
        [] => {
            result.short_names.clone_from(&wanted.short_names);
            None
        }
        [one] => Some(("ShortNamesConflict", one.clone())),
        many => Some(("ShortNamesConflict", format!("[{}]", many.join(", ")))),
    };
    let conflict = [plural, singular, short_names, kind, list_kind]
        .into_iter()
        .flatten()
        .next_back();
    result.categories.clone_from(&wanted.categories);
    let naming = match conflict {
        None => condition("NamesAccepted", "True", "NoConflicts", "no conflicts found"),
        Some((reason, message)) => condition("NamesAccepted", "False", reason, &message),
    };
    (result, naming)
}

/// The condition of definitions stored before schemas had to be structural; new ones are rejected.
fn non_structural(definition: &Definition) -> Option<Condition> {
    let mut errors = Vec::new();
    if definition.preserve_unknown_fields {
        errors.push(FieldError::invalid(
            "spec.preserveUnknownFields",
            true,
            "must be false",
        ));
    }
    let versions = Path::field("spec.versions");
    for (i, version) in definition.versions.iter().enumerate() {
        let Some(Ok(schema)) = &version.schema else {
            continue;
        };
        if let Some(problem) = structural::unreadable(schema) {
            let message = format!(
                "failed to check validation schema for version {}: {problem}",
                version.name
            );
            return Some(condition(
                "NonStructuralSchema",
                "Unknown",
                "StructuralError",
                &message,
            ));
        }
        let at = versions.index(i);
        errors.extend(structural::validate(
            schema,
            &at.child("schema.openAPIV3Schema"),
        ));
    }
    (!errors.is_empty()).then(|| {
        condition(
            "NonStructuralSchema",
            "True",
            "Violations",
            &aggregate(&errors),
        )
    })
}

fn approved(state: Approval, message: String) -> Condition {
    let (status, reason) = match state {
        Approval::Invalid => ("False", "InvalidAnnotation"),
        Approval::Missing => ("False", "MissingAnnotation"),
        Approval::Approved => ("True", "ApprovedAnnotation"),
        Approval::Bypassed => ("False", "UnapprovedAnnotation"),
    };
    condition(
        "KubernetesAPIApprovalPolicyConformant",
        status,
        reason,
        &message,
    )
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    const NOW: &str = "2026-01-02T03:04:05Z";

    fn now() -> Time {
        Time::parse(NOW).expect("a constant")
    }

    fn names(plural: &str, kind: &str, short: &[&str]) -> Names {
        Names {
            plural: plural.into(),
            singular: kind.to_lowercase(),
            short_names: short.iter().map(|s| (*s).into()).collect(),
            kind: kind.into(),
            list_kind: format!("{kind}List"),
            categories: Vec::new(),
        }
    }

    fn defined(names: Names) -> Definition {
        Definition {
            names,
            group: "example.dev".into(),
            ..Definition::default()
        }
    }

    fn object() -> Object {
        Object::from_map(json!({}).as_object().expect("an object").clone()).expect("no metadata")
    }

    /// Each condition as `Type=Status Reason: message`.
    fn conditions(status: &Status) -> Vec<String> {
        status
            .conditions
            .iter()
            .map(|c| format!("{}={} {}: {}", c.kind, c.status, c.reason, c.message))
            .collect()
    }

    #[test]
    fn free_names_are_accepted_and_the_definition_established() {
        let status = status(
            &object(),
            &defined(names("gears", "Gear", &["gt"])),
            &[names("gadgets", "Gadget", &["gd"])],
            now(),
        );
        assert_eq!(status.accepted_names, names("gears", "Gear", &["gt"]));
        assert_eq!(
            conditions(&status),
            [
                "NamesAccepted=True NoConflicts: no conflicts found",
                "Established=True InitialNamesAccepted: the initial names have been accepted",
            ]
        );
    }

    #[test]
    fn taken_short_name_keeps_the_definition_from_being_established() {
        let status = status(
            &object(),
            &defined(names("gears", "Gear", &["gt"])),
            &[names("gadgets", "Gadget", &["gt"])],
            now(),
        );
        assert_eq!(status.accepted_names, names("gears", "Gear", &[]));
        assert_eq!(
            conditions(&status),
            [
                "NamesAccepted=False ShortNamesConflict: \"gt\" is already in use",
                "Established=False NotAccepted: not all names are accepted",
            ]
        );
    }

    #[test]
    fn last_conflict_is_reported() {
        let status = status(
            &object(),
            &defined(names("gears", "Gear", &[])),
            &[names("gears", "Gear", &[])],
            now(),
        );
        assert_eq!(
            conditions(&status)[0],
            "NamesAccepted=False ListKindConflict: \"GearList\" is already in use"
        );
        assert_eq!(status.accepted_names, Names::default());
    }

    #[test]
    fn established_definition_stays_so_when_a_new_name_is_taken() {
        let mut definition = defined(names("gears", "Gear", &[]));
        definition.status = status(&object(), &definition, &[], now());
        definition.names.short_names = vec!["gt".into()];
        let later = status(
            &object(),
            &definition,
            &[names("gadgets", "Gadget", &["gt"])],
            now().plus_seconds(60),
        );
        assert_eq!(
            conditions(&later),
            [
                "NamesAccepted=False ShortNamesConflict: \"gt\" is already in use",
                "Established=True InitialNamesAccepted: the initial names have been accepted",
            ]
        );
        let times: Vec<_> = later
            .conditions
            .iter()
            .map(|c| c.last_transition_time)
            .collect();
        assert_eq!(
            times,
            [Some(now().plus_seconds(60)), Some(now())],
            "only what changed has a new time"
        );
    }

    #[test]
    fn termination_is_a_condition() {
        let status = terminating(&Status::default(), Termination::InProgress, now());
        assert_eq!(
            conditions(&status),
            ["Terminating=True InstanceDeletionInProgress: CustomResource deletion is in progress"]
        );
    }
}
