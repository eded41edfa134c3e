//! The strategy of CustomResourceDefinition.
//! In: definitions that are written. Out: defaulted definitions, or their errors.

use bellerophon_apimachinery::time::Time;
use bellerophon_codec::object::Object;
use bellerophon_crd::{
    CLEANUP_FINALIZER, Definition, Termination, terminating, validate_definition,
};
use bellerophon_resources::kinds::{
    DeleteAnswer, Deletion, Effect, STATUS_RESETS_METADATA, Strategy, keep_status,
};
use serde_json::{Map, Value, json};

/// The port of a webhook's service.
const WEBHOOK_PORT: u16 = 443;

/// The strategy of definitions.
pub(crate) const DEFINITION: Strategy = Strategy {
    reset_fields: STATUS_RESETS_METADATA,
    default,
    prepare_create,
    prepare_update,
    validate_create: |object, errors| errors.extend(validate_definition::create(object)),
    validate_update: |new, old, errors| errors.extend(validate_definition::update(new, old)),
    validate_status: |new, _, errors| errors.extend(validate_definition::update_status(new)),
    warnings,
    unconditional_update: false,
    effect: Effect::Definition,
    delete_answer: DeleteAnswer::Object,
    deletion: Deletion {
        begin: begin_deletion,
        held: |_| false,
        time_only: true,
    },
    ..Strategy::WITH_STATUS
};

/// Marks a definition whose deletion begins: its objects go first.
fn begin_deletion(object: &mut Object, now: Time) {
    if !object
        .meta
        .finalizers
        .iter()
        .any(|f| f == CLEANUP_FINALIZER)
    {
        object.meta.finalizers.push(CLEANUP_FINALIZER.into());
    }
    if let Ok(definition) = Definition::read(object) {
        let status = terminating(&definition.status, Termination::Pending, now);
        object.body.insert(
            "status".into(),
            serde_json::to_value(status).unwrap_or(Value::Null),
        );
    }
}

fn default(object: &mut Object) {
    let spec = object.section("spec");
    let names = section(spec, "names");
    let kind = text(names, "kind");
    if text(names, "singular").is_empty() && !kind.is_empty() {
        names.insert("singular".into(), kind.to_lowercase().into());
    }
    if text(names, "listKind").is_empty() && !kind.is_empty() {
        names.insert("listKind".into(), format!("{kind}List").into());
    }
    for version in spec
        .get_mut("versions")
        .and_then(Value::as_array_mut)
        .into_iter()
        .flatten()
        .filter_map(Value::as_object_mut)
    {
        for flag in ["served", "storage"] {
            version.entry(flag).or_insert(Value::Bool(false));
        }
    }
    if spec.get("preserveUnknownFields") == Some(&Value::Bool(false)) {
        spec.remove("preserveUnknownFields");
    }
    if spec.get("conversion").is_none_or(Value::is_null) {
        spec.insert("conversion".into(), json!({"strategy": "None"}));
    }
    if let Some(Value::Object(service)) = spec
        .get_mut("conversion")
        .and_then(|c| c.pointer_mut("/webhook/clientConfig/service"))
    {
        service.entry("port").or_insert_with(|| WEBHOOK_PORT.into());
    }
}

fn section<'a>(map: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    let slot = map.entry(name).or_insert_with(|| json!({}));
    if !slot.is_object() {
        *slot = json!({});
    }
    slot.as_object_mut().expect("made an object above")
}

fn text(map: &Map<String, Value>, name: &str) -> String {
    map.get(name)
        .and_then(Value::as_str)
        .unwrap_or_default()
        .to_owned()
}

/// A new definition has no names accepted yet, and is stored in its storage version.
fn prepare_create(object: &mut Object) {
    let stored: Vec<String> = storage_version(object).into_iter().collect();
    let status = json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": stored});
    object.body.insert("status".into(), status);
}

/// A new storage version joins the ones objects may be stored in.
fn prepare_update(new: &mut Object, old: &Object) {
    keep_status(new, old);
    let Some(name) = storage_version(new) else {
        return;
    };
    let stored = new
        .section("status")
        .entry("storedVersions")
        .or_insert_with(|| json!([]));
    if let Value::Array(list) = stored
        && !list.iter().any(|v| v.as_str() == Some(&name))
    {
        list.push(name.into());
    }
}

fn storage_version(object: &Object) -> Option<String> {
    let versions = object.at("spec.versions")?.as_array()?;
    let version = versions
        .iter()
        .find(|v| v.get("storage") == Some(&Value::Bool(true)))?;
    version.get("name")?.as_str().map(str::to_owned)
}

/// Warns about unrecognized formats when they are new.
fn warnings(object: &Object, old: Option<&Object>) -> Vec<String> {
    let before = old.map(unknown_formats).unwrap_or_default();
    let new = unknown_formats(object)
        .into_iter()
        .filter(|format| !before.contains(format));
    new.map(|format| format!("unrecognized format {format:?}"))
        .collect()
}

fn unknown_formats(object: &Object) -> Vec<String> {
    let mut formats = Vec::new();
    if let Ok(definition) = Definition::read(object) {
        for schema in definition.schemas() {
            schema.walk(&mut |s| {
                if !s.format.is_empty() && !s.format_is_known() {
                    formats.push(s.format.clone());
                }
            });
        }
    }
    formats
}

#[cfg(test)]
mod tests {
    use bellerophon_crd::CustomSchema;

    use super::*;
    use crate::test_support::object;

    /// The object as it would be stored, and its errors.
    fn create(strategy: &Strategy, json: Value) -> (Object, Vec<String>) {
        let mut new = object(json);
        (strategy.default)(&mut new);
        (strategy.prepare_create)(&mut new);
        let mut errors = Vec::new();
        (strategy.validate_create)(&new, &mut errors);
        (new, errors.iter().map(ToString::to_string).collect())
    }

    /// The updated object and the errors of the update.
    fn update(strategy: &Strategy, old: &Object, json: Value) -> (Object, Vec<String>) {
        let mut new = object(json);
        (strategy.default)(&mut new);
        (strategy.prepare_update)(&mut new, old);
        let mut errors = Vec::new();
        (strategy.validate_update)(&new, old, &mut errors);
        (new, errors.iter().map(ToString::to_string).collect())
    }

    fn gadget(spec: Value) -> Value {
        let mut full = json!({
            "group": "example.dev", "scope": "Namespaced", "names": {"plural": "gadgets", "kind": "Gadget"},
            "versions": [version("v1", true)],
        });
        for (name, value) in spec.as_object().expect("an object") {
            full[name] = value.clone();
        }
        json!({"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": {"name": "gadgets.example.dev"}, "spec": full})
    }

    fn version(name: &str, storage: bool) -> Value {
        json!({"name": name, "served": true, "storage": storage, "schema": {"openAPIV3Schema": {"type": "object", "properties": {"spec": {"type": "object"}}}}})
    }

    fn with(mut version: Value, field: &str, value: Value) -> Value {
        version[field] = value;
        version
    }

    #[track_caller]
    fn refused(spec: Value, expected: &[&str]) {
        assert_eq!(create(&DEFINITION, gadget(spec)).1, expected);
    }

    #[test]
    fn new_definition_is_completed() {
        let (stored, errors) = create(&DEFINITION, gadget(json!({})));
        assert_eq!(errors, [""; 0]);
        assert_eq!(
            stored.body["spec"]["names"],
            json!({"plural": "gadgets", "singular": "gadget", "kind": "Gadget", "listKind": "GadgetList"})
        );
        assert_eq!(
            stored.body["spec"]["conversion"],
            json!({"strategy": "None"})
        );
        assert_eq!(
            stored.body["status"],
            json!({"conditions": null, "acceptedNames": {"plural": "", "kind": ""}, "storedVersions": ["v1"]})
        );
    }

    #[test]
    fn versions_are_counted_and_named() {
        let shown = |name: &str, storage: bool| {
            format!(
                "{{\"Name\":\"{name}\",\"Served\":true,\"Storage\":{storage},\"Deprecated\":false,\"DeprecationWarning\":null,\"Schema\":null,\"Subresources\":null,\"AdditionalPrinterColumns\":null,\"SelectableFields\":null}}"
            )
        };
        refused(
            json!({"versions": [version("v1", false)]}),
            &[
                &format!(
                    "spec.versions: Invalid value: [{}]: must have exactly one version marked as storage version",
                    shown("v1", false)
                ),
                "status.storedVersions: Invalid value: null: must have at least one stored version",
            ],
        );
        refused(
            json!({"versions": [version("v1", true), version("v2", true)]}),
            &[
                &format!(
                    "spec.versions: Invalid value: [{},{}]: must have exactly one version marked as storage version",
                    shown("v1", true),
                    shown("v2", true)
                ),
                "status.storedVersions: Invalid value: [\"v1\"]: must have the storage version v2",
            ],
        );
        refused(
            json!({"versions": [version("v1", true), version("v1", false)]}),
            &[&format!(
                "spec.versions: Invalid value: [{},{}]: must contain unique version names",
                shown("v1", true),
                shown("v1", false)
            )],
        );
        refused(
            json!({"versions": []}),
            &[
                "spec.versions: Invalid value: []: must have exactly one version marked as storage version",
                "status.storedVersions: Invalid value: null: must have at least one stored version",
            ],
        );
    }

    #[test]
    fn every_version_needs_a_schema() {
        let bare = json!({"name": "v2", "served": true, "storage": false});
        refused(
            json!({"versions": [version("v1", true), bare]}),
            &["spec.versions[1].schema.openAPIV3Schema: Required value"],
        );
    }

    #[test]
    fn group_scope_and_names_are_checked() {
        let label = "a DNS-1035 label must consist of lower case alphanumeric characters or '-', start with an alphabetic character, and end with an alphanumeric character (e.g. 'my-name',  or 'abc-123', regex used for validation is '[a-z]([-a-z0-9]*[a-z0-9])?')";
        refused(
            json!({"scope": "Global"}),
            &[
                "spec.scope: Unsupported value: \"Global\": supported values: \"Cluster\", \"Namespaced\"",
            ],
        );
        refused(json!({"scope": ""}), &["spec.scope: Required value"]);
        refused(
            json!({"names": {"plural": "gadgets"}}),
            &[
                "spec.names.singular: Required value",
                "spec.names.kind: Required value",
                "spec.names.listKind: Required value",
            ],
        );
        refused(
            json!({"names": {"plural": "gadgets", "kind": "Gadget", "listKind": "Gadget"}}),
            &[
                "spec.names.listKind: Invalid value: \"Gadget\": kind and listKind may not be the same",
            ],
        );
        refused(
            json!({"names": {"plural": "gadgets", "kind": "Gadget", "shortNames": ["G_1"]}}),
            &[&format!(
                "spec.names.shortNames[0]: Invalid value: \"G_1\": {label}"
            )],
        );
        refused(
            json!({"group": "other.dev"}),
            &[
                "metadata.name: Invalid value: \"gadgets.example.dev\": must be spec.names.plural+\".\"+spec.group",
            ],
        );
        refused(
            json!({"preserveUnknownFields": true}),
            &[
                "spec.preserveUnknownFields: Invalid value: true: cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead",
            ],
        );
    }

    #[test]
    fn columns_scale_and_selectable_fields_are_checked() {
        let columns = json!([{"name": "A", "type": "decimal", "jsonPath": ".spec.a"}, {"type": "string", "jsonPath": "spec"}, {"name": "B", "type": "string", "format": "int128"}]);
        refused(
            json!({"versions": [with(version("v1", true), "additionalPrinterColumns", columns)]}),
            &[
                "spec.additionalPrinterColumns[0].type: Invalid value: \"decimal\": must be one of boolean,date,integer,number,string",
                "spec.additionalPrinterColumns[1].name: Required value",
                "spec.additionalPrinterColumns[1].JSONPath: Invalid value: \"spec\": must be a simple json path starting with .",
                "spec.additionalPrinterColumns[2].format: Invalid value: \"int128\": must be one of byte,date,date-time,double,float,int32,int64,password",
                "spec.additionalPrinterColumns[2].JSONPath: Required value",
            ],
        );
        let scale = json!({"scale": {"specReplicasPath": ".status.n", "labelSelectorPath": ".metadata.labels"}});
        refused(
            json!({"versions": [with(version("v1", true), "subresources", scale)]}),
            &[
                "spec.subresources.scale.specReplicasPath: Invalid value: \".status.n\": should be a json path under .spec",
                "spec.subresources.scale.statusReplicasPath: Required value",
                "spec.subresources.scale.labelSelectorPath: Invalid value: \".metadata.labels\": should be a json path under either .spec or .status",
            ],
        );
        let selectable = json!([{"jsonPath": ".spec"}, {"jsonPath": "spec"}, {"jsonPath": ".spec.x"}, {"jsonPath": ""}, {"jsonPath": ".spec"}, {"jsonPath": ".metadata.name"}]);
        let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
        refused(
            json!({"versions": [with(version("v1", true), "selectableFields", selectable)]}),
            &[
                &format!("spec.selectableFields[0].jsonPath: Invalid value: \".spec\": {detail}"),
                "spec.selectableFields[1].jsonPath: Invalid value: \"spec\": is an invalid path: expected [ or . but got: spec",
                "spec.selectableFields[2].jsonPath: Invalid value: \".spec.x\": is an invalid path: does not refer to a valid field",
                "spec.selectableFields[3].jsonPath: Required value",
                &format!("spec.selectableFields[4].jsonPath: Invalid value: \".spec\": {detail}"),
                "spec.selectableFields[4].jsonPath: Duplicate value: \".spec\"",
                "spec.selectableFields[5].jsonPath: Invalid value: \".metadata.name\": is an invalid path: does not refer to a valid field",
            ],
        );
    }

    #[test]
    fn schema_problems_name_where_kubernetes_keeps_the_schema() {
        let broken = |name: &str, storage: bool, field: &str| {
            with(
                version(name, storage),
                "schema",
                json!({"openAPIV3Schema": {"type": "object", "properties": {field: {}}}}),
            )
        };
        let detail = "Required value: must not be empty for specified object fields";
        refused(
            json!({"versions": [broken("v1", true, "a")]}),
            &[&format!(
                "spec.validation.openAPIV3Schema.properties[a].type: {detail}"
            )],
        );
        refused(
            json!({"versions": [broken("v1", true, "a"), broken("v2", false, "a")]}),
            &[&format!(
                "spec.validation.openAPIV3Schema.properties[a].type: {detail}"
            )],
        );
        refused(
            json!({"versions": [broken("v1", true, "a"), broken("v2", false, "b")]}),
            &[
                &format!("spec.versions[0].schema.openAPIV3Schema.properties[a].type: {detail}"),
                &format!("spec.versions[1].schema.openAPIV3Schema.properties[b].type: {detail}"),
            ],
        );
    }

    #[test]
    fn conversion_needs_a_known_strategy() {
        refused(
            json!({"conversion": {"strategy": "Magic"}}),
            &[
                "spec.conversion.strategy: Unsupported value: \"Magic\": supported values: \"None\", \"Webhook\"",
            ],
        );
        refused(
            json!({"conversion": {"strategy": "Webhook"}}),
            &[
                "spec.conversion.webhookClientConfig: Required value: required when strategy is set to Webhook",
                "spec.conversion.conversionReviewVersions: Required value",
            ],
        );
        refused(
            json!({"conversion": {"strategy": "None", "webhook": {"clientConfig": {}, "conversionReviewVersions": ["v1"]}}}),
            &[
                "spec.conversion.webhookClientConfig: Forbidden: should not be set when strategy is not set to Webhook",
                "spec.conversion.conversionReviewVersions: Forbidden: should not be set when strategy is not set to Webhook",
            ],
        );
    }

    #[test]
    fn identity_of_an_established_definition_is_immutable() {
        let (mut old, _) = create(&DEFINITION, gadget(json!({})));
        old.section("status").insert(
            "conditions".into(),
            json!([{"type": "Established", "status": "True"}]),
        );
        let change = json!({"scope": "Cluster", "group": "other.dev", "names": {"plural": "widgets", "kind": "Widget"}});
        assert_eq!(
            update(&DEFINITION, &old, gadget(change)).1,
            [
                "spec.scope: Invalid value: \"Cluster\": field is immutable",
                "spec.names.kind: Invalid value: \"Widget\": field is immutable",
                "spec.group: Invalid value: \"other.dev\": field is immutable",
                "spec.names.plural: Invalid value: \"widgets\": field is immutable",
            ]
        );
    }

    #[test]
    fn storage_versions_stay_until_they_are_no_longer_stored() {
        let (old, _) = create(&DEFINITION, gadget(json!({})));
        let (moved, errors) = update(
            &DEFINITION,
            &old,
            gadget(json!({"versions": [version("v1", false), version("v2", true)]})),
        );
        assert_eq!(errors, [""; 0]);
        assert_eq!(moved.body["status"]["storedVersions"], json!(["v1", "v2"]));
        assert_eq!(
            update(
                &DEFINITION,
                &moved,
                gadget(json!({"versions": [version("v2", true)]}))
            )
            .1,
            [
                "status.storedVersions[0]: Invalid value: \"v1\": missing from spec.versions; v1 was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in v1 and removes v1 from status.storedVersions",
            ]
        );
    }

    #[test]
    fn deepest_schema_and_value_fit_the_stack() {
        let levels = bellerophon_crd::SCHEMA_DEPTH_MAX - 2;
        let leaf = json!({"type": "string", "default": "x", "anyOf": [{"minLength": 1}]});
        let schema = (0..levels).fold(
            leaf,
            |inner, _| json!({"type": "object", "default": {}, "properties": {"a": inner}}),
        );
        let schema = json!({"openAPIV3Schema": {"type": "object", "properties": {"spec": schema["properties"]["a"]}}});
        let (stored, errors) = create(
            &DEFINITION,
            gadget(json!({"versions": [with(version("v1", true), "schema", schema)]})),
        );
        assert_eq!(errors, [""; 0]);
        let definition = Definition::read(&stored).expect("it was stored");
        let schema = CustomSchema::of(&definition.versions[0]).expect("it has a schema");
        let mut object = json!({"spec": (0..1000).fold(json!({}), |inner, _| json!({"a": inner}))});
        let map = object.as_object_mut().expect("an object");
        assert_eq!(
            schema.prune(map).expect("no embedded resources").len(),
            1,
            "all below the deepest known field is removed together"
        );
        assert!(schema.default(map).is_ok());
        let mut errs = Vec::new();
        schema.validate(&object, Some(&json!({})), &mut errs);
        assert_eq!(errs.len(), 1);
    }

    #[test]
    fn unknown_formats_are_warned_about_once() {
        let plate = |format: &str| {
            gadget(
                json!({"versions": [with(version("v1", true), "schema", json!({"openAPIV3Schema": {"type": "object", "properties": {"a": {"type": "string", "format": format}}}}))]}),
            )
        };
        let new = object(plate("license-plate"));
        let old = object(plate("date"));
        assert_eq!(
            warnings(&new, None),
            ["unrecognized format \"license-plate\""]
        );
        assert_eq!(warnings(&new, Some(&new)), [""; 0]);
        assert_eq!(warnings(&old, None), [""; 0]);
    }
}
