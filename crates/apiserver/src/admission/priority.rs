//! Sets the priority of a pod from its priority class, or from the default class.
//! Mirrors the plugin Priority.

use bellerophon_apimachinery::{
    error::ApiError,
    json_ext::{JsonDefaults, JsonExt},
};
use bellerophon_codec::object::Object;
use bellerophon_storage::Scope;

use super::Admission;

const CLASSES: &str = "scheduling.k8s.io/priorityclasses";

/// Fills in priority and preemption of a pod.
///
/// # Errors
/// 403 for a class that does not exist, or for other values than those of the class.
pub(super) fn mutate(request: &Admission<'_>, pod: &mut Object) -> Result<(), ApiError> {
    if !request.writes("", "pods") {
        return Ok(());
    }
    if let Some(old) = request.old {
        for field in ["priority", "preemptionPolicy"] {
            if let Some(value) = old.body.field("spec").get_set(field) {
                pod.section("spec").default_to(field, value.clone());
            }
        }
        return Ok(());
    }
    let class = match pod.str_at("spec.priorityClassName") {
        "" => default_class(request),
        name => match request.look_up(CLASSES, "", name) {
            Some(class) => Some(class),
            None => {
                return Err(
                    request.forbid(pod, format!("no PriorityClass with name {name} was found"))
                );
            }
        },
    };
    let priority = class
        .as_ref()
        .map(|class| class.body.number("value"))
        .unwrap_or_default();
    let policy = class.as_ref().map_or("PreemptLowerPriority", |class| {
        class.body.text("preemptionPolicy")
    });
    let spec = pod.body.field("spec");
    let computed = "must not be provided in pod spec; priority admission controller computed";
    if let Some(given) = spec.int("priority").filter(|given| *given != priority) {
        let why = format!(
            "the integer value of priority ({given}) {computed} {priority} from the given PriorityClass name"
        );
        return Err(request.forbid(pod, why));
    }
    if let Some(given) = spec
        .field("preemptionPolicy")
        .as_str()
        .filter(|given| !policy.is_empty() && *given != policy)
    {
        let why = format!(
            "the string value of PreemptionPolicy ({given}) {computed} {policy} from the given PriorityClass name"
        );
        return Err(request.forbid(pod, why));
    }
    let spec = pod.section("spec");
    if let Some(class) = &class {
        spec.default_text("priorityClassName", &class.meta.name);
    }
    spec.insert("priority".into(), priority.into());
    if !policy.is_empty() {
        spec.insert("preemptionPolicy".into(), policy.into());
    }
    Ok(())
}

/// Only one class may be the default.
///
/// # Errors
/// 403 for a second one.
pub(super) fn validate(request: &Admission<'_>, class: &Object) -> Result<(), ApiError> {
    if !request.writes("scheduling.k8s.io", "priorityclasses")
        || !class.body.is_true("globalDefault")
    {
        return Ok(());
    }
    match default_class(request)
        .filter(|other| request.old.is_none() || other.meta.name != class.meta.name)
    {
        Some(other) => {
            let why = format!(
                "PriorityClass {} is already marked as default. Only one default can exist",
                other.meta.name
            );
            Err(request.forbid(class, why))
        }
        None => Ok(()),
    }
}

/// The class of pods that name none; should there be several, the one that gives least.
fn default_class(request: &Admission<'_>) -> Option<Object> {
    let classes = request
        .list(CLASSES, Scope::All)
        .into_iter()
        .filter(|class| class.body.is_true("globalDefault"));
    classes.min_by_key(|class| class.body.number("value"))
}
