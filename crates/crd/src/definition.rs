//! A CustomResourceDefinition, typed.
//! In: the object as stored or sent. Out: the definition for the registry and for validation.
//! Guarantees: schemas are parsed once; what is equal in all versions is marked as shared, because
//! errors name it by another path.

use bellerophon_apimachinery::time::Time;
use bellerophon_codec::object::Object;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::schema::Schema;

/// A definition with its status.
#[derive(Clone, Debug, Default)]
pub struct Definition {
    /// The group of the custom resource.
    pub group: String,
    /// `Namespaced` or `Cluster`, once the definition is valid.
    pub(crate) scope: String,
    /// The requested names.
    pub names: Names,
    /// In the order of the definition.
    pub versions: Vec<Version>,
    pub(crate) conversion: Conversion,
    pub(crate) preserve_unknown_fields: bool,
    /// Accepted names and conditions.
    pub status: Status,
    /// Which parts all versions have in common.
    pub(crate) shared: Shared,
}

/// The names of a custom resource.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Names {
    /// The name in paths, in lower case.
    #[serde(deserialize_with = "or_default")]
    pub plural: String,
    /// The name of one object, in lower case.
    #[serde(
        skip_serializing_if = "String::is_empty",
        deserialize_with = "or_default"
    )]
    pub singular: String,
    /// Other names that kubectl takes.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub short_names: Vec<String>,
    /// The kind of an object.
    #[serde(deserialize_with = "or_default")]
    pub kind: String,
    /// The kind of a list.
    #[serde(
        skip_serializing_if = "String::is_empty",
        deserialize_with = "or_default"
    )]
    pub list_kind: String,
    /// Groups of resources that kubectl takes, such as `all`.
    #[serde(skip_serializing_if = "Vec::is_empty", deserialize_with = "or_default")]
    pub categories: Vec<String>,
}

/// One version of a custom resource.
#[derive(Clone, Debug, Default)]
pub struct Version {
    /// `v1`, `v1beta1`.
    pub name: String,
    /// Whether requests may name the version.
    pub served: bool,
    /// Whether objects are stored in the version.
    pub storage: bool,
    /// Whether requests of the version get a warning.
    pub deprecated: bool,
    /// The warning; `None` for the default text.
    pub deprecation_warning: Option<String>,
    /// The parsed schema, or why it cannot be parsed. None when the version has none.
    pub(crate) schema: Option<Result<Schema, String>>,
    pub(crate) subresources: Option<Subresources>,
    pub(crate) columns: Vec<ColumnDefinition>,
    /// JSON paths.
    pub(crate) selectable_fields: Vec<String>,
    /// The schema as written.
    pub schema_source: Value,
}

/// The subresources a version has.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Subresources {
    pub(crate) status: Option<Value>,
    pub(crate) scale: Option<Scale>,
}

/// Where the scale subresource finds its fields.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Scale {
    /// JSON path of the desired replicas, under `.spec`.
    #[serde(deserialize_with = "or_default")]
    pub spec_replicas_path: String,
    /// JSON path of the actual replicas, under `.status`.
    #[serde(deserialize_with = "or_default")]
    pub status_replicas_path: String,
    /// JSON path of a label selector as text.
    pub label_selector_path: Option<String>,
}

/// A column of the tables of a version.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ColumnDefinition {
    #[serde(deserialize_with = "or_default")]
    pub(crate) name: String,
    #[serde(rename = "type", deserialize_with = "or_default")]
    pub(crate) type_name: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) format: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) description: String,
    #[serde(deserialize_with = "or_default")]
    pub(crate) priority: i32,
    #[serde(deserialize_with = "or_default")]
    pub(crate) json_path: String,
}

/// How objects are converted between versions.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct Conversion {
    #[serde(deserialize_with = "or_default")]
    pub(crate) strategy: String,
    pub(crate) webhook: Option<ConversionWebhook>,
}

/// The webhook that converts objects.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct ConversionWebhook {
    pub(crate) client_config: Option<ClientConfig>,
    #[serde(deserialize_with = "or_default")]
    pub(crate) conversion_review_versions: Vec<String>,
}

/// How a webhook is reached.
#[derive(Clone, Debug, Default, PartialEq, Deserialize)]
#[serde(default)]
pub(crate) struct ClientConfig {
    pub(crate) url: Option<String>,
    pub(crate) service: Option<Value>,
}

/// The status of a definition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct Status {
    #[serde(deserialize_with = "or_default", serialize_with = "null_if_empty")]
    pub(crate) conditions: Vec<Condition>,
    /// The names that are served; they may differ from the requested ones.
    #[serde(deserialize_with = "or_default")]
    pub accepted_names: Names,
    #[serde(deserialize_with = "or_default")]
    pub(crate) stored_versions: Vec<String>,
}

/// One condition of a definition.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(crate) struct Condition {
    #[serde(rename = "type")]
    pub(crate) kind: String,
    pub(crate) status: String,
    pub(crate) last_transition_time: Option<Time>,
    #[serde(
        skip_serializing_if = "String::is_empty",
        deserialize_with = "or_default"
    )]
    pub(crate) reason: String,
    #[serde(
        skip_serializing_if = "String::is_empty",
        deserialize_with = "or_default"
    )]
    pub(crate) message: String,
}

/// Parts that every version writes alike. Kubernetes keeps them once, above the versions, and
/// errors name that place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shared {
    pub(crate) schema: bool,
    pub(crate) subresources: bool,
    pub(crate) columns: bool,
    pub(crate) selectable_fields: bool,
}

impl Definition {
    /// Decodes a definition.
    ///
    /// # Errors
    /// A field of another type.
    pub fn read(object: &Object) -> Result<Self, serde_json::Error> {
        let spec: SpecForm = part(object, "spec")?;
        let shared = Shared {
            schema: alike(&spec.versions, |v| &v.schema),
            subresources: alike(&spec.versions, |v| &v.subresources),
            columns: alike(&spec.versions, |v| &v.additional_printer_columns),
            selectable_fields: alike(&spec.versions, |v| &v.selectable_fields),
        };
        Ok(Self {
            group: spec.group,
            scope: spec.scope,
            names: spec.names,
            versions: spec
                .versions
                .into_iter()
                .map(Version::try_from)
                .collect::<Result<_, _>>()?,
            conversion: spec.conversion,
            preserve_unknown_fields: spec.preserve_unknown_fields,
            status: part(object, "status")?,
            shared,
        })
    }

    /// Whether objects live in namespaces.
    pub fn is_namespaced(&self) -> bool {
        self.scope == "Namespaced"
    }

    /// Whether a condition is there and true.
    pub fn is_true(&self, condition: &str) -> bool {
        self.status
            .conditions
            .iter()
            .any(|c| c.kind == condition && c.status == "True")
    }

    /// The schemas that can be read, each once.
    pub fn schemas(&self) -> impl Iterator<Item = &Schema> {
        let count = if self.shared.schema {
            1
        } else {
            self.versions.len()
        };
        self.versions
            .iter()
            .take(count)
            .filter_map(|v| v.schema.as_ref()?.as_ref().ok())
    }
}

impl Version {
    /// Whether the version has a status subresource.
    pub fn has_status(&self) -> bool {
        self.subresources
            .as_ref()
            .is_some_and(|s| s.status.is_some())
    }

    /// The scale subresource of the version.
    pub fn scale(&self) -> Option<&Scale> {
        self.subresources.as_ref()?.scale.as_ref()
    }
}

/// `spec` as in the object.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct SpecForm {
    #[serde(deserialize_with = "or_default")]
    group: String,
    #[serde(deserialize_with = "or_default")]
    scope: String,
    #[serde(deserialize_with = "or_default")]
    names: Names,
    #[serde(deserialize_with = "or_default")]
    versions: Vec<VersionForm>,
    #[serde(deserialize_with = "or_default")]
    conversion: Conversion,
    #[serde(deserialize_with = "or_default")]
    preserve_unknown_fields: bool,
}

/// A version as in the object.
#[derive(Deserialize, Default)]
#[serde(rename_all = "camelCase", default)]
struct VersionForm {
    #[serde(deserialize_with = "or_default")]
    name: String,
    #[serde(deserialize_with = "or_default")]
    served: bool,
    #[serde(deserialize_with = "or_default")]
    storage: bool,
    #[serde(deserialize_with = "or_default")]
    deprecated: bool,
    deprecation_warning: Option<String>,
    schema: Value,
    subresources: Value,
    additional_printer_columns: Value,
    selectable_fields: Value,
}

impl TryFrom<VersionForm> for Version {
    type Error = serde_json::Error;

    fn try_from(mut form: VersionForm) -> Result<Self, Self::Error> {
        let schema_source = form
            .schema
            .get_mut("openAPIV3Schema")
            .map(Value::take)
            .unwrap_or_default();
        let paths: Vec<ColumnDefinition> = list(form.selectable_fields)?;
        Ok(Self {
            name: form.name,
            served: form.served,
            storage: form.storage,
            deprecated: form.deprecated,
            deprecation_warning: form.deprecation_warning,
            schema: (!schema_source.is_null()).then(|| Schema::parse(&schema_source)),
            subresources: serde_json::from_value(form.subresources)?,
            columns: list(form.additional_printer_columns)?,
            selectable_fields: paths.into_iter().map(|p| p.json_path).collect(),
            schema_source,
        })
    }
}

fn list<T: for<'de> Deserialize<'de>>(value: Value) -> Result<Vec<T>, serde_json::Error> {
    Ok(serde_json::from_value::<Option<Vec<T>>>(value)?.unwrap_or_default())
}

fn part<T: Default + for<'de> Deserialize<'de>>(
    object: &Object,
    name: &str,
) -> Result<T, serde_json::Error> {
    match object.body.get(name) {
        None | Some(Value::Null) => Ok(T::default()),
        Some(value) => T::deserialize(value),
    }
}

/// Whether all versions write a part alike; an empty list is as good as none.
fn alike(versions: &[VersionForm], of: impl Fn(&VersionForm) -> &Value) -> bool {
    let written = |v| {
        Some(of(v)).filter(|value| {
            !value.is_null() && value.as_array().is_none_or(|list| !list.is_empty())
        })
    };
    versions
        .split_first()
        .is_some_and(|(first, rest)| rest.iter().all(|v| written(v) == written(first)))
}

fn null_if_empty<S: serde::Serializer>(conditions: &[Condition], s: S) -> Result<S::Ok, S::Error> {
    if conditions.is_empty() {
        s.serialize_none()
    } else {
        s.collect_seq(conditions)
    }
}

/// JSON `null` means absent in Kubernetes.
fn or_default<'de, D: Deserializer<'de>, T: Default + Deserialize<'de>>(
    d: D,
) -> Result<T, D::Error> {
    Ok(Option::deserialize(d)?.unwrap_or_default())
}
