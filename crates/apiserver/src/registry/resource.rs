//! One served resource in one version, built-in or custom.
//! Guarantees: all properties of a kind that the verbs need are read here; no verb depends on the
//! name of a kind.

use std::{borrow::Cow, sync::Arc};

use bellerophon_apimachinery::{
    error::{GroupKind, GroupResource},
    field::FieldError,
    time::Time,
};
use bellerophon_codec::object::{Encoded, Object};
use bellerophon_resources::{
    kinds::{Row, Strategy},
    print::{self, ListMeta, TableOptions},
};
use bellerophon_storage::{CollectionName, Put, SelectableAttributes, Stored};
use serde_json::Value;

use crate::registry::Custom;

/// A served resource.
pub(crate) struct Resource {
    /// Empty for the core group.
    pub(crate) group: String,
    pub(crate) version: String,
    pub(crate) kind: String,
    pub(crate) list_kind: String,
    pub(crate) plural: String,
    pub(crate) singular: String,
    /// Shared by the versions of a definition, as are the categories.
    pub(crate) short_names: Arc<[String]>,
    pub(crate) categories: Arc<[String]>,
    pub(crate) namespaced: bool,
    /// In the order of discovery.
    pub(crate) verbs: &'static [&'static str],
    /// In the order of discovery.
    pub(crate) subresources: Vec<Subresource>,
    pub(crate) strategy: Strategy,
    /// Where objects are kept.
    pub(crate) collection: CollectionName,
    /// Where the rest of the description comes from.
    pub(crate) source: Source,
    /// The warning that every answer carries.
    pub(crate) warning: Option<String>,
}

/// A subresource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Subresource {
    pub(crate) name: &'static str,
    /// The kind that requests and answers have.
    pub(crate) kind: String,
    /// Empty together with `version` when they are the resource's own.
    pub(crate) group: &'static str,
    pub(crate) version: &'static str,
    pub(crate) verbs: &'static [&'static str],
}

/// Where a resource's description comes from.
pub(crate) enum Source {
    /// A row of the table of kinds.
    BuiltIn(&'static Row),
    /// A version of a definition.
    Custom(Box<Custom>),
}

impl std::fmt::Debug for Resource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{} {}", self.group, self.version, self.plural)
    }
}

impl Resource {
    /// The resource of a row.
    pub(super) fn built_in(row: &'static Row) -> Self {
        let (group, plural) = row.storage();
        Self {
            group: row.group.into(),
            version: row.version.into(),
            kind: row.kind.into(),
            list_kind: format!("{}List", row.kind),
            plural: row.plural.into(),
            singular: row.singular(),
            short_names: row.short_names.iter().map(|s| (*s).into()).collect(),
            categories: row.categories.iter().map(|s| (*s).into()).collect(),
            namespaced: row.namespaced,
            verbs: row.verbs,
            subresources: row
                .subresources
                .iter()
                .map(|s| Subresource {
                    name: s.name,
                    kind: s.kind.into(),
                    group: s.group,
                    version: s.version,
                    verbs: s.verbs,
                })
                .collect(),
            strategy: *row.strategy,
            collection: format!("{group}/{plural}").into(),
            source: Source::BuiltIn(row),
            warning: row.deprecated.map(str::to_owned),
        }
    }

    /// `v1`, `apps/v1`.
    pub(crate) fn api_version(&self) -> String {
        if self.group.is_empty() {
            self.version.clone()
        } else {
            format!("{}/{}", self.group, self.version)
        }
    }

    /// As errors name it.
    pub(crate) fn group_resource(&self) -> GroupResource {
        let error_name = match self.source {
            Source::BuiltIn(row) => row.error_name,
            Source::Custom(_) => None,
        };
        GroupResource::new(self.group.as_str(), error_name.unwrap_or(&self.plural))
    }

    /// As validation errors name it: by the form that strategies work on.
    pub(crate) fn group_kind(&self) -> GroupKind {
        GroupKind::new(self.stored_version().0, self.kind.as_str())
    }

    /// The subresource of that name.
    pub(crate) fn subresource(&self, name: &str) -> Option<&Subresource> {
        self.subresources.iter().find(|p| p.name == name)
    }

    /// Whether it is a custom resource. Objects in lists of custom resources have `kind` and
    /// `apiVersion`, those of built-in resources do not.
    pub(crate) fn is_custom(&self) -> bool {
        self.custom().is_some()
    }

    /// The properties of a custom resource besides its names.
    pub(crate) fn custom(&self) -> Option<&Custom> {
        match &self.source {
            Source::BuiltIn(_) => None,
            Source::Custom(custom) => Some(custom),
        }
    }

    /// The number that stored objects carry of the schema they were written under.
    pub(crate) fn schema(&self) -> u64 {
        self.custom().map_or(0, |custom| custom.generation)
    }

    /// Whether a field may stand in a field selector.
    ///
    /// # Errors
    /// The message of the refusal.
    pub(crate) fn validate_selectable(&self, field: &str) -> Result<(), String> {
        match &self.source {
            Source::BuiltIn(row) => row.validate_selectable(field),
            Source::Custom(custom) => {
                let usual =
                    field == "metadata.name" || field == "metadata.namespace" && self.namespaced;
                let known = usual || custom.has_selectable(field);
                if known {
                    Ok(())
                } else {
                    Err(format!("field label not supported: {field}"))
                }
            }
        }
    }

    /// The attributes that selectors match.
    pub(crate) fn attributes(&self, object: &Object) -> SelectableAttributes {
        let fields = match &self.source {
            Source::BuiltIn(row) => row
                .selectable
                .iter()
                .chain(row.selectable_elsewhere)
                .map(|f| (Arc::from(f.label), f.of(object)))
                .collect(),
            Source::Custom(custom) => custom.selected(object),
        };
        SelectableAttributes {
            uid: object.meta.uid.clone(),
            labels: object.meta.labels.clone(),
            fields,
        }
    }

    /// The group and version that objects are stored in.
    pub(crate) fn stored_version(&self) -> (&str, &str) {
        match &self.source {
            Source::BuiltIn(row) => row.storage_version(),
            Source::Custom(custom) => (&self.group, custom.stored_version()),
        }
    }

    /// Converts an object of this version to the stored version; one that is in the stored version
    /// already is not changed.
    pub(crate) fn to_storage(&self, object: &mut Object) {
        match &self.source {
            Source::BuiltIn(_) => self.to_inner(object),
            Source::Custom(custom) => custom.to_storage(&self.group, object),
        }
    }

    /// Turns an object of the stored version into this one.
    pub(crate) fn out_of_storage(&self, object: &mut Object) {
        match &self.source {
            Source::BuiltIn(_) => self.to_outer(object),
            Source::Custom(custom) => {
                custom.out_of_storage(&self.group, &self.version, custom.generation, object)
            }
        }
    }

    /// Brings an object into the form that strategies work on: the stored one for a built-in kind
    /// that is kept as another.
    pub(crate) fn to_inner(&self, object: &mut Object) {
        if let Source::BuiltIn(row) = &self.source
            && let Some(other) = row
                .stored_as
                .filter(|_| object.api_version == row.api_version())
        {
            (other.to_storage)(object);
        }
    }

    /// Converts an object from the form of strategies to the served version.
    pub(crate) fn to_outer(&self, object: &mut Object) {
        if let Source::BuiltIn(row) = &self.source
            && let Some(other) = row
                .stored_as
                .filter(|_| object.api_version != row.api_version())
        {
            (other.from_storage)(object);
        }
    }

    /// A stored object in this version.
    pub(crate) fn read(&self, stored: &Stored) -> Object {
        let mut object = stored.encoded.decode();
        match &self.source {
            Source::BuiltIn(row) => {
                if let Some(other) = row.stored_as {
                    (other.from_storage)(&mut object);
                }
            }
            Source::Custom(custom) => {
                custom.out_of_storage(&self.group, &self.version, stored.schema, &mut object)
            }
        }
        object
    }

    /// Whether the stored bytes of an object are those of this version.
    pub(crate) fn is_stored_form(&self, stored: &Stored) -> bool {
        match &self.source {
            Source::BuiltIn(row) => row.stored_as.is_none(),
            Source::Custom(custom) => custom.is_stored_form(stored.schema, &self.version),
        }
    }

    /// The bytes of a stored object in this version: the stored ones where they are already right.
    pub(crate) fn present(&self, stored: &Stored) -> Encoded {
        if self.is_stored_form(stored) {
            stored.encoded.clone()
        } else {
            self.read(stored).draft().at(stored.revision)
        }
    }

    /// The name of the Go type that kube-apiserver names in some errors.
    pub(crate) fn go_type(&self) -> String {
        match &self.source {
            Source::BuiltIn(_) => {
                let package = match self.group.split('.').next() {
                    None | Some("") => "core",
                    Some(first) => first,
                };
                format!("*{package}.{}", self.kind)
            }
            Source::Custom(_) => "*unstructured.Unstructured".to_owned(),
        }
    }

    /// Objects as a table. A subresource of another kind, such as `Scale`, has the columns of that
    /// kind.
    pub(crate) fn table(
        &self,
        objects: &[&Object],
        now: Time,
        list: &ListMeta,
        options: TableOptions,
    ) -> Value {
        if let [subresource] = objects
            && subresource.kind != self.kind
        {
            let group = subresource
                .api_version
                .split_once('/')
                .map_or("", |(group, _)| group);
            return print::table(
                print::printer(group, &subresource.kind),
                [*subresource],
                now,
                list,
                options,
            );
        }
        match &self.source {
            Source::BuiltIn(_) => print::table(
                print::printer(&self.group, &self.kind),
                objects.iter().copied(),
                now,
                list,
                options,
            ),
            Source::Custom(custom) => custom.table(objects, now, list, options),
        }
    }

    /// The stored form of an object: the storage version, without a resourceVersion.
    pub(crate) fn put(&self, object: &Object) -> Put {
        let is_stored_version = match &self.source {
            Source::BuiltIn(row) => row.stored_as.is_none(),
            Source::Custom(_) => false,
        };
        let mut stored = Cow::Borrowed(object);
        if !is_stored_version {
            self.to_storage(stored.to_mut());
        }
        Put {
            attributes: self.attributes(&stored),
            draft: stored.draft(),
            schema: self.schema(),
        }
    }

    /// A stored object in the version that it is stored in.
    pub(crate) fn as_stored(&self, mut object: Object, written_under: u64) -> Object {
        if let Some(custom) = self.custom() {
            custom.complete_stored(&self.group, written_under, &mut object);
        }
        object
    }

    /// Drops what this version does not know.
    pub(crate) fn prune(&self, object: &mut Object) {
        if let Some(custom) = self.custom() {
            let _unknown = custom.schema.prune(&mut object.body);
        }
    }

    /// The stored form of an object that a webhook has converted to the stored version.
    pub(crate) fn put_converted(&self, object: &Object, mut converted: Object) -> Put {
        let attributes = self.attributes(object);
        if let Some(custom) = self.custom() {
            custom.to_storage(&self.group, &mut converted);
        }
        Put {
            attributes,
            draft: converted.draft(),
            schema: self.schema(),
        }
    }

    /// Validates an object against the schema; returns warnings about tolerated errors. Objects of
    /// built-in kinds are validated when they are decoded.
    pub(crate) fn validate_schema(
        &self,
        new: &Object,
        old: Option<&Object>,
        errors: &mut Vec<FieldError>,
    ) -> Vec<String> {
        self.custom()
            .map(|custom| custom.validate(new, old, errors))
            .unwrap_or_default()
    }

    /// Validates a new status against the schema; returns warnings about tolerated errors.
    pub(crate) fn validate_status_schema(
        &self,
        new: &Object,
        old: &Object,
        errors: &mut Vec<FieldError>,
    ) -> Vec<String> {
        self.custom()
            .map(|custom| custom.validate_status(new, old, errors))
            .unwrap_or_default()
    }
}
