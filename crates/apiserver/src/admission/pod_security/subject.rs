//! The pod that is evaluated, or the pod template of a workload.

use std::collections::BTreeSet;

use bellerophon_apimachinery::json_ext::JsonExt;
use bellerophon_codec::object::ObjectMeta;
use serde_json::Value;

/// The evaluated pod or template.
pub(super) struct Subject<'a> {
    pub(super) meta: &'a ObjectMeta,
    pub(super) spec: &'a Value,
}

/// One way in which a pod falls short of a level.
#[derive(Debug)]
pub(super) struct Violation {
    /// In a word or two.
    pub(super) reason: String,
    /// The details: which containers must change which field.
    pub(super) detail: String,
}

/// One demand of a level.
pub(super) struct Check {
    pub(super) id: &'static str,
    /// The minor version that brought it.
    pub(super) since: u32,
    /// The demand of the level below that it takes the place of.
    pub(super) instead_of: Option<&'static str>,
    /// The violations in a minor version of the policy.
    pub(super) run: fn(&Subject<'_>, u32) -> Option<Violation>,
}

impl Check {
    /// A demand as old as pods.
    pub(super) const fn new(
        id: &'static str,
        run: fn(&Subject<'_>, u32) -> Option<Violation>,
    ) -> Self {
        Self {
            id,
            since: 0,
            instead_of: None,
            run,
        }
    }
}

impl Violation {
    pub(super) fn new(reason: &str, detail: String) -> Option<Self> {
        Some(Self {
            reason: reason.to_owned(),
            detail,
        })
    }
}

impl<'a> Subject<'a> {
    /// Init, main and debugging containers.
    pub(super) fn containers(&self) -> impl Iterator<Item = &'a Value> {
        let spec = self.spec;
        ["initContainers", "containers", "ephemeralContainers"]
            .into_iter()
            .flat_map(move |list| spec.list(list))
    }

    /// The security context of the pod.
    pub(super) fn context(&self) -> &'a Value {
        self.spec.field("securityContext")
    }

    /// The names of containers that satisfy a predicate.
    pub(super) fn containers_that(&self, test: impl Fn(&Value) -> bool) -> Vec<String> {
        self.containers()
            .filter(|c| test(c))
            .map(|c| c.text("name").to_owned())
            .collect()
    }

    /// Whether the pod has a user namespace: root in the pod is an unprivileged user on the node.
    pub(super) fn has_own_users(&self) -> bool {
        self.spec.get_set("hostUsers") == Some(&Value::Bool(false))
    }

    pub(super) fn is_windows(&self) -> bool {
        self.spec.field("os").text("name") == "windows"
    }

    /// `pod and container "a"`, for whichever of them set something to a bad value.
    pub(super) fn setters(&self, pod: bool, containers: &[String]) -> String {
        let pod = pod.then(|| "pod".to_owned());
        let containers = (!containers.is_empty()).then(|| named("container", containers));
        pod.into_iter()
            .chain(containers)
            .collect::<Vec<_>>()
            .join(" and ")
    }
}

/// `container "a"`, `containers "a", "b"`.
pub(super) fn named(noun: &str, names: &[String]) -> String {
    format!("{} {}", plural(noun, names.len()), quoted(names))
}

/// `"a", "b"`.
pub(super) fn quoted<'a>(names: impl IntoIterator<Item = &'a String>) -> String {
    names
        .into_iter()
        .map(|name| format!("\"{name}\""))
        .collect::<Vec<_>>()
        .join(", ")
}

/// The noun for this number.
pub(super) fn plural(noun: &str, count: usize) -> String {
    if count == 1 {
        noun.to_owned()
    } else {
        format!("{noun}s")
    }
}

/// The verb for one or several containers: `uses`, `use`.
pub(super) const fn uses(count: usize) -> &'static str {
    if count == 1 { "uses" } else { "use" }
}

/// Sorted, each once.
pub(super) fn set_of<'a>(values: impl IntoIterator<Item = &'a str>) -> BTreeSet<String> {
    values.into_iter().map(str::to_owned).collect()
}
