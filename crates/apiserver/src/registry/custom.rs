//! A custom resource in one of its versions.
//! In: a definition whose names are accepted. Out: a [`Resource`] like any other.
//! Guarantees: stored objects name the generation of the definition they were written under; under
//! another one they are completed on reading.

use std::sync::Arc;

use bellerophon_apimachinery::{
    error::ApiError, field::FieldError, json_ext::JsonExt as _, table_column::Column, time::Time,
};
use bellerophon_codec::object::{Object, ObjectMeta};
use bellerophon_crd::{
    CustomColumn, CustomSchema, Definition, Names, Scale, SelectableField, Version,
};
use bellerophon_resources::{
    kinds::{DeleteAnswer, Effect, Generation, Strategy},
    print::{ListMeta, Table, TableOptions},
};
use serde_json::Value;

use super::{Resource, Source, Subresource};
use crate::webhook_client::WebhookClient;

const VERBS: &[&str] = &[
    "delete",
    "deletecollection",
    "get",
    "list",
    "patch",
    "create",
    "update",
    "watch",
];
const SUBRESOURCE_VERBS: &[&str] = &["get", "patch", "update"];

/// Marks the schema of a stored object that a webhook has converted to the version that it is read
/// in. Such objects are never stored.
pub(crate) const CONVERTED: u64 = u64::MAX;

/// The webhook that converts the objects of a definition.
#[derive(Debug)]
pub(crate) struct ConversionWebhook {
    /// `None` if the client configuration is not valid.
    pub(crate) client: Option<WebhookClient>,
    is_v1: bool,
}

impl ConversionWebhook {
    fn of(definition: &Object) -> Option<Arc<Self>> {
        let conversion = definition.body.field("spec").field("conversion");
        if conversion.text("strategy") != "Webhook" {
            return None;
        }
        let webhook = conversion.field("webhook");
        let mut versions = webhook.texts("conversionReviewVersions");
        let first = versions.find(|version| ["v1", "v1beta1"].contains(version));
        Some(Arc::new(Self {
            client: WebhookClient::of(webhook.field("clientConfig")),
            is_v1: first != Some("v1beta1"),
        }))
    }

    /// The version of the ConversionReviews that it is sent.
    pub(crate) fn review_version(&self) -> &'static str {
        if self.is_v1 {
            "apiextensions.k8s.io/v1"
        } else {
            "apiextensions.k8s.io/v1beta1"
        }
    }
}

/// The properties of a version of a custom resource besides its names.
#[derive(Debug)]
pub(crate) struct Custom {
    /// The name of its definition.
    pub(crate) definition: String,
    /// The schema of this version.
    pub(crate) schema: Arc<CustomSchema>,
    /// The version objects are stored in, and its schema.
    storage: (String, Arc<CustomSchema>),
    /// The generation of the definition.
    pub(crate) generation: u64,
    columns: Vec<CustomColumn>,
    /// The fields a selector may name.
    selectable: Vec<(Arc<str>, SelectableField)>,
    pub(crate) scale: Option<Scale>,
    /// Whether the definition is being deleted.
    pub(crate) terminating: bool,
    /// The schema as the definition writes it.
    pub(crate) schema_source: Value,
    /// `None` if versions differ in nothing but their name.
    pub(crate) conversion: Option<Arc<ConversionWebhook>>,
}

/// The names of a definition that may be many.
struct SharedNames {
    short_names: Arc<[String]>,
    categories: Arc<[String]>,
}

impl Resource {
    /// The resources of a definition: one for each served version, none until its names are
    /// accepted.
    pub(crate) fn of_definition(object: &Object) -> Vec<Self> {
        let Ok(definition) = Definition::read(object) else {
            return Vec::new();
        };
        if !definition.is_true("Established") {
            return Vec::new();
        }
        // A definition that was accepted has a readable schema in every version.
        let Some(schemas) = definition
            .versions
            .iter()
            .map(|v| CustomSchema::of(v).map(Arc::new))
            .collect::<Option<Vec<_>>>()
        else {
            return Vec::new();
        };
        let Some(storage) = definition.versions.iter().position(|v| v.storage) else {
            return Vec::new();
        };
        let storage = (
            definition.versions[storage].name.clone(),
            schemas[storage].clone(),
        );
        let shared = SharedNames {
            short_names: definition
                .status
                .accepted_names
                .short_names
                .as_slice()
                .into(),
            categories: definition
                .status
                .accepted_names
                .categories
                .as_slice()
                .into(),
        };
        let served = definition
            .versions
            .iter()
            .zip(&schemas)
            .filter(|(v, _)| v.served);
        served
            .map(|(version, schema)| {
                Self::of_version(
                    object,
                    &definition,
                    version,
                    schema.clone(),
                    storage.clone(),
                    &shared,
                )
            })
            .collect()
    }

    fn of_version(
        object: &Object,
        definition: &Definition,
        version: &Version,
        schema: Arc<CustomSchema>,
        storage: (String, Arc<CustomSchema>),
        shared: &SharedNames,
    ) -> Self {
        let Names {
            plural,
            singular,
            kind,
            list_kind,
            ..
        } = &definition.status.accepted_names;
        let subresource = |name, kind: &str, group, version| Subresource {
            name,
            kind: kind.into(),
            group,
            version,
            verbs: SUBRESOURCE_VERBS,
        };
        let mut subresources = Vec::new();
        if version.has_status() {
            subresources.push(subresource("status", kind, "", ""));
        }
        if version.scale().is_some() {
            subresources.push(subresource("scale", "Scale", "autoscaling", "v1"));
        }
        let group = &definition.group;
        let warning = version
            .deprecated
            .then(|| match &version.deprecation_warning {
                Some(text) => text.clone(),
                None => deprecation(definition, version, kind),
            });
        Self {
            collection: format!("{group}/{plural}").into(),
            group: group.clone(),
            version: version.name.clone(),
            namespaced: definition.is_namespaced(),
            verbs: VERBS,
            subresources,
            strategy: if version.has_status() {
                WITH_STATUS
            } else {
                WITHOUT_STATUS
            },
            source: Source::Custom(Box::new(Custom {
                definition: object.meta.name.clone(),
                schema,
                storage,
                generation: object.meta.generation.unsigned_abs(),
                columns: CustomColumn::of(version),
                selectable: SelectableField::of(version)
                    .into_iter()
                    .map(|f| (f.name.as_str().into(), f))
                    .collect(),
                scale: version.scale().cloned(),
                terminating: object.meta.deletion_timestamp.is_some(),
                schema_source: version.schema_source.clone(),
                conversion: ConversionWebhook::of(object),
            })),
            warning,
            kind: kind.clone(),
            list_kind: list_kind.clone(),
            plural: plural.clone(),
            singular: singular.clone(),
            short_names: shared.short_names.clone(),
            categories: shared.categories.clone(),
        }
    }
}

/// The warning of a deprecated version that declares none: it names the best version that is not
/// deprecated.
fn deprecation(definition: &Definition, version: &Version, kind: &str) -> String {
    let group = &definition.group;
    let head = format!("{group}/{} {kind} is deprecated", version.name);
    let mut better: Vec<&str> = definition
        .versions
        .iter()
        .filter(|v| v.served && !v.deprecated)
        .map(|v| v.name.as_str())
        .collect();
    better.sort_by_key(|v| std::cmp::Reverse(super::stability(v)));
    match better.first() {
        Some(other) if super::stability(other) > super::stability(&version.name) => {
            format!("{head}; use {group}/{other} {kind}")
        }
        _ => head,
    }
}

const WITHOUT_STATUS: Strategy = Strategy {
    generation: Generation::All,
    unconditional_update: false,
    delete_answer: DeleteAnswer::Status,
    effect: Effect::Instance,
    ..Strategy::PLAIN
};

const WITH_STATUS: Strategy = Strategy {
    prepare_create: Strategy::WITH_STATUS.prepare_create,
    prepare_update: Strategy::WITH_STATUS.prepare_update,
    prepare_status: status_only,
    generation: Generation::Body,
    ..WITHOUT_STATUS
};

/// A status write takes nothing but the status and who owns it.
fn status_only(new: &mut Object, old: &Object) {
    let status = new.body.remove("status");
    let meta = ObjectMeta {
        managed_fields: std::mem::take(&mut new.meta.managed_fields),
        resource_version: std::mem::take(&mut new.meta.resource_version),
        ..old.meta.clone()
    };
    *new = Object {
        meta,
        ..old.clone()
    };
    match status {
        Some(status) => new.body.insert("status".into(), status),
        None => new.body.remove("status"),
    };
}

impl Custom {
    /// Drops what this version does not know, fills in its defaults, and names what was dropped.
    ///
    /// # Errors
    /// Metadata inside the object that cannot be read, or defaults that make it too large.
    pub(crate) fn complete(&self, object: &mut Object) -> Result<Vec<String>, String> {
        let unknown = self.schema.prune(&mut object.body);
        let unknown = unknown.map_err(|error| error.to_string())?;
        let filled = self.schema.default(&mut object.body);
        filled.map_err(|error| error.to_string())?;
        Ok(unknown)
    }

    /// Turns a stored object into this version: completed by the stored version's schema, and cut
    /// to this one's, as in kube-apiserver.
    pub(crate) fn out_of_storage(
        &self,
        group: &str,
        version: &str,
        written_under: u64,
        object: &mut Object,
    ) {
        if written_under == CONVERTED {
            return;
        }
        object.api_version = format!("{group}/{version}");
        if written_under != self.generation {
            // Fields that were fine when they were written and are not now are shown as far as they
            // can be.
            let _unknown = self.storage.1.prune(&mut object.body);
            let _filled = self.storage.1.default(&mut object.body);
        }
        if !Arc::ptr_eq(&self.storage.1, &self.schema) {
            let _unknown = self.schema.prune(&mut object.body);
        }
    }

    /// Turns an object of this version into the stored one.
    pub(crate) fn to_storage(&self, group: &str, object: &mut Object) {
        let (version, schema) = &self.storage;
        object.api_version = format!("{group}/{version}");
        if !Arc::ptr_eq(schema, &self.schema) {
            // Fields that are unknown in the stored version are lost, as in kube-apiserver.
            let _unknown = schema.prune(&mut object.body);
            // Defaults that do not fit are filled in when the object is read, as far as they fit.
            let _filled = schema.default(&mut object.body);
        }
    }

    /// The version objects are stored in.
    pub(super) fn stored_version(&self) -> &str {
        &self.storage.0
    }

    /// Whether stored bytes are exactly what this version shows.
    pub(crate) fn is_stored_form(&self, written_under: u64, version: &str) -> bool {
        written_under == CONVERTED || written_under == self.generation && version == self.storage.0
    }

    /// Completes an object in the version that it is stored in, before a webhook converts it.
    pub(super) fn complete_stored(&self, group: &str, written_under: u64, object: &mut Object) {
        let (version, schema) = &self.storage;
        if written_under != self.generation && object.api_version == format!("{group}/{version}") {
            let _unknown = schema.prune(&mut object.body);
            let _filled = schema.default(&mut object.body);
        }
    }

    /// Validates an object or its status; returns warnings about tolerated errors.
    pub(crate) fn validate(
        &self,
        new: &Object,
        old: Option<&Object>,
        errors: &mut Vec<FieldError>,
    ) -> Vec<String> {
        self.schema
            .validate(&new.to_value(), old.map(Object::to_value).as_ref(), errors)
    }

    /// Validates the status of an object; returns warnings about tolerated errors.
    pub(crate) fn validate_status(
        &self,
        new: &Object,
        old: &Object,
        errors: &mut Vec<FieldError>,
    ) -> Vec<String> {
        self.schema
            .validate_status(&new.to_value(), &old.to_value(), errors)
    }

    /// Objects as a table with the columns of this version.
    pub(crate) fn table(
        &self,
        objects: &[&Object],
        now: Time,
        list: &ListMeta,
        options: TableOptions,
    ) -> Value {
        let columns: Vec<Column> = std::iter::once(Column::NAME)
            .chain(self.columns.iter().map(|c| c.column.clone()))
            .collect();
        let mut table = Table::new(&columns, options);
        for object in objects {
            let value = object.to_value();
            let name = std::iter::once(Value::String(object.meta.name.clone()));
            table.push(
                name.chain(self.columns.iter().map(|c| c.cell(&value, now)))
                    .collect::<Vec<_>>(),
                object,
            );
        }
        table.finish(list)
    }

    /// Whether a selector may name this field.
    pub(super) fn has_selectable(&self, field: &str) -> bool {
        self.selectable.iter().any(|(name, _)| &**name == field)
    }

    /// The fields a selector may name besides the usual ones.
    pub(crate) fn selectable_names(&self) -> impl Iterator<Item = &str> {
        self.selectable.iter().map(|(name, _)| &**name)
    }

    /// The selectable fields, and their values in this object.
    pub(super) fn selected(&self, object: &Object) -> Vec<(Arc<str>, String)> {
        if self.selectable.is_empty() {
            return Vec::new();
        }
        let value = object.to_value();
        self.selectable
            .iter()
            .map(|(name, field)| (name.clone(), field.value(&value)))
            .collect()
    }

    /// Refuses new objects while the definition goes.
    ///
    /// # Errors
    /// 403.
    pub(crate) fn may_create(&self, resource: &Resource, name: &str) -> Result<(), ApiError> {
        if self.terminating {
            let why = "create not allowed while custom resource definition is terminating";
            return Err(ApiError::forbidden(resource.group_resource(), name, why));
        }
        Ok(())
    }
}
