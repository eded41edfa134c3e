//! One served kind: its names, its scope, its verbs and where it is stored.
//! Guarantees: rows are constants, read in chains: `row(…).short(&["cm"]).subresources(&[…])`.

use bellerophon_codec::object::Object;
use serde_json::Value;

use super::Strategy;

/// The verbs of most kinds.
pub(crate) const ALL_VERBS: &[&str] = &[
    "create",
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "update",
    "watch",
];
/// The verbs of a subresource that is read and written as the whole object.
pub(crate) const SUBRESOURCE_VERBS: &[&str] = &["get", "patch", "update"];
/// The verbs of requests that are not stored.
pub const CREATE: &[&str] = &["create"];

/// A served kind in one version of its group.
#[derive(Clone, Copy)]
pub struct Row {
    /// Empty for the core group.
    pub group: &'static str,
    /// `v1`, `v2`.
    pub version: &'static str,
    /// `Deployment`.
    pub kind: &'static str,
    /// The name in paths: `deployments`.
    pub plural: &'static str,
    /// Other names that kubectl takes: `deploy`.
    pub short_names: &'static [&'static str],
    /// Groups of resources that kubectl takes, such as `all`.
    pub categories: &'static [&'static str],
    /// Whether objects are in namespaces.
    pub namespaced: bool,
    /// In the order of discovery.
    pub verbs: &'static [&'static str],
    /// In the order of discovery.
    pub subresources: &'static [SubresourceRow],
    /// The strategy of the kind.
    pub strategy: &'static Strategy,
    /// The fields a selector may name; empty for the usual `metadata.name` and
    /// `metadata.namespace`.
    pub selectable: &'static [Field],
    /// The fields that selectors may name where the same objects are read as another kind.
    pub selectable_elsewhere: &'static [Field],
    /// Where objects are kept when not under this row's own name and version.
    pub stored_as: Option<&'static StoredAs>,
    /// The name in errors, where that is not its plural.
    pub error_name: Option<&'static str>,
    /// The warning that every answer carries.
    pub deprecated: Option<&'static str>,
}

/// A subresource of a row.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SubresourceRow {
    /// The last segment of its paths: `status`.
    pub name: &'static str,
    /// The kind that requests and answers have; group and version are empty when they are the row's
    /// own.
    pub kind: &'static str,
    /// The group of its kind; empty for that of the row.
    pub group: &'static str,
    /// The version of its kind; empty for that of the row.
    pub version: &'static str,
    /// The verbs.
    pub verbs: &'static [&'static str],
}

/// The row that keeps another row's objects, and how they are turned into each other.
#[derive(Clone, Copy)]
pub struct StoredAs {
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) plural: &'static str,
    /// Converts a written object to the stored version, without loss for reads in the same version.
    pub to_storage: fn(&mut Object),
    /// Turns a stored object into the served version.
    pub from_storage: fn(&mut Object),
}

/// A field that selectors may name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// As the selector writes it.
    pub label: &'static str,
    /// Where the value is in the stored object: the first of these that is there and not empty.
    pub(crate) paths: &'static [&'static str],
    /// The value when none is there.
    pub(crate) absent: &'static str,
}

impl Row {
    /// The name of one object of the kind in discovery.
    pub fn singular(&self) -> String {
        self.kind.to_ascii_lowercase()
    }

    /// `v1`, `apps/v1`.
    pub fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.to_owned()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// The group and plural name under which objects are kept.
    pub fn storage(&self) -> (&'static str, &'static str) {
        self.stored_as
            .map_or((self.group, self.plural), |s| (s.group, s.plural))
    }

    /// The group and version of stored objects.
    pub fn storage_version(&self) -> (&'static str, &'static str) {
        self.stored_as
            .map_or((self.group, self.version), |s| (s.group, s.version))
    }

    /// Whether a field selector supports a field.
    ///
    /// # Errors
    /// The message of Kubernetes.
    pub fn validate_selectable(&self, label: &str) -> Result<(), String> {
        let known = match label {
            "metadata.name" => true,
            "metadata.namespace" => self.selects_namespace(),
            _ => self.selectable.iter().any(|f| f.label == label),
        };
        if known {
            Ok(())
        } else {
            Err(self.refusal(label))
        }
    }

    /// Whether `metadata.namespace` may be selected: cluster-scoped kinds with selectable fields do
    /// not support it.
    fn selects_namespace(&self) -> bool {
        self.selectable.is_empty() || self.namespaced
    }

    fn refusal(&self, label: &str) -> String {
        match self.kind {
            "Job" => format!("field label {label:?} not supported for Job"),
            "ResourceSlice" => {
                format!(
                    "field label not supported for {}, Kind={}: {label}",
                    self.api_version(),
                    self.kind
                )
            }
            _ if self.selectable.is_empty() => {
                format!(
                    "{label:?} is not a known field selector: only \"metadata.name\", \"metadata.namespace\""
                )
            }
            _ => format!("field label not supported: {label}"),
        }
    }

    /// Other names on the command line.
    pub const fn short(self, short_names: &'static [&'static str]) -> Self {
        Self {
            short_names,
            ..self
        }
    }

    /// The groups of kinds it is listed with.
    pub const fn category(self, categories: &'static [&'static str]) -> Self {
        Self { categories, ..self }
    }

    /// One for the whole cluster, not one per namespace.
    pub const fn cluster_wide(self) -> Self {
        Self {
            namespaced: false,
            ..self
        }
    }

    /// Other verbs than `ALL_VERBS`.
    pub const fn verbs(self, verbs: &'static [&'static str]) -> Self {
        Self { verbs, ..self }
    }

    /// The subresources.
    pub const fn subresources(self, subresources: &'static [SubresourceRow]) -> Self {
        Self {
            subresources,
            ..self
        }
    }

    /// The fields a selector may name.
    pub const fn selectable(self, selectable: &'static [Field]) -> Self {
        Self { selectable, ..self }
    }

    /// The fields that selectors may name in other versions of the kind.
    pub const fn selectable_elsewhere(self, selectable_elsewhere: &'static [Field]) -> Self {
        Self {
            selectable_elsewhere,
            ..self
        }
    }

    /// Kept in another row's form.
    pub const fn stored_as(self, stored_as: &'static StoredAs) -> Self {
        Self {
            stored_as: Some(stored_as),
            ..self
        }
    }

    /// Called otherwise in errors.
    pub const fn error_name(self, name: &'static str) -> Self {
        Self {
            error_name: Some(name),
            ..self
        }
    }

    /// Answered with a warning.
    pub const fn deprecated(self, warning: &'static str) -> Self {
        Self {
            deprecated: Some(warning),
            ..self
        }
    }
}

/// A namespaced kind with all verbs.
pub const fn row(
    group: &'static str,
    version: &'static str,
    kind: &'static str,
    plural: &'static str,
    strategy: &'static Strategy,
) -> Row {
    Row {
        group,
        version,
        kind,
        plural,
        short_names: &[],
        categories: &[],
        namespaced: true,
        verbs: ALL_VERBS,
        subresources: &[],
        strategy,
        selectable: &[],
        selectable_elsewhere: &[],
        stored_as: None,
        error_name: None,
        deprecated: None,
    }
}

impl SubresourceRow {
    /// A subresource that is read and written as the whole object: `status`, `approval`.
    pub const fn new(name: &'static str, kind: &'static str) -> Self {
        Self::of(name, kind, SUBRESOURCE_VERBS)
    }

    /// A subresource whose kind is of the row's own version.
    pub const fn of(
        name: &'static str,
        kind: &'static str,
        verbs: &'static [&'static str],
    ) -> Self {
        Self {
            name,
            kind,
            group: "",
            version: "",
            verbs,
        }
    }

    /// A subresource whose kind is of another group.
    pub const fn from(self, group: &'static str, version: &'static str) -> Self {
        Self {
            group,
            version,
            ..self
        }
    }
}

impl Field {
    /// A field selected by its own path, empty when absent.
    pub(crate) const fn own(label: &'static str, paths: &'static [&'static str]) -> Self {
        Self {
            label,
            paths,
            absent: "",
        }
    }

    /// The value when the field is absent.
    pub(crate) const fn or(self, absent: &'static str) -> Self {
        Self { absent, ..self }
    }

    /// The text of the field in a stored object.
    pub fn of(&self, object: &Object) -> String {
        let shown = self.paths.iter().find_map(|path| match object.at(path)? {
            Value::String(s) if s.is_empty() => None,
            Value::String(s) => Some(s.clone()),
            Value::Null => None,
            other => Some(other.to_string()),
        });
        shown.unwrap_or_else(|| self.absent.to_owned())
    }
}
