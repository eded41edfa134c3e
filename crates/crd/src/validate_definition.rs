//! Validates a CustomResourceDefinition.
//! In: a definition, and on update the old one. Out: its errors, in the order and with the messages
//! of Kubernetes.
//! Guarantees: what all versions share is validated once, under the path Kubernetes keeps it at
//! (`spec.validation`, `spec.subresources`, …).

use std::collections::BTreeSet;

use bellerophon_apimachinery::{
    field::{FieldError, Path, Verbatim},
    names,
};
use bellerophon_codec::object::Object;
use serde_json::{Value, json};

use super::{
    approval, defaults,
    definition::{Definition, Names, Version},
    openapi,
    rules::{self, Suppress},
    schema::{Marks, Schema},
    structural, surface,
};

const SPEC: Path<'static> = Path::field("spec");

/// The errors of a new definition.
pub fn create(object: &Object) -> Vec<FieldError> {
    let definition = match Definition::read(object) {
        Ok(definition) => definition,
        Err(problem) => {
            return vec![FieldError::invalid(
                "spec",
                &Value::Null,
                &problem.to_string(),
            )];
        }
    };
    let mut errors = Vec::new();
    let wanted = format!("{}.{}", definition.names.plural, definition.group);
    if !object.meta.name.is_empty() && object.meta.name != wanted {
        let detail = "must be spec.names.plural+\".\"+spec.group";
        errors.push(FieldError::invalid(
            "metadata.name",
            &object.meta.name,
            detail,
        ));
    }
    spec(&definition, None, &mut errors);
    status(&definition, &mut errors);
    approval::validate(
        &definition.group,
        &object.meta.annotations,
        None,
        &mut errors,
    );
    unknown_fields(&definition, &mut errors);
    errors
}

/// The errors of a changed definition.
pub fn update(object: &Object, old: &Object) -> Vec<FieldError> {
    let (definition, before) = match (Definition::read(object), Definition::read(old)) {
        (Ok(definition), Ok(before)) => (definition, before),
        (Err(problem), _) | (_, Err(problem)) => {
            return vec![FieldError::invalid(
                "spec",
                &Value::Null,
                &problem.to_string(),
            )];
        }
    };
    let mut errors = Vec::new();
    spec(&definition, Some(&before), &mut errors);
    immutable(&definition, &before, &mut errors);
    status(&definition, &mut errors);
    approval::validate(
        &definition.group,
        &object.meta.annotations,
        Some(&old.meta.annotations),
        &mut errors,
    );
    if !before.preserve_unknown_fields {
        unknown_fields(&definition, &mut errors);
    }
    errors
}

/// The errors of a status written through its own endpoint.
pub fn update_status(object: &Object) -> Vec<FieldError> {
    let mut errors = Vec::new();
    match Definition::read(object) {
        Ok(definition) => accepted_names(&definition.status.accepted_names, &mut errors),
        Err(problem) => errors.push(FieldError::invalid(
            "status",
            &Value::Null,
            &problem.to_string(),
        )),
    }
    errors
}

fn spec(definition: &Definition, before: Option<&Definition>, errors: &mut Vec<FieldError>) {
    group_and_scope(definition, errors);
    let shared_schema =
        definition.shared.schema && definition.versions.iter().all(|v| v.schema.is_some());
    let versions = SPEC.child("versions");
    for (i, _) in definition
        .versions
        .iter()
        .enumerate()
        .filter(|(_, v)| !shared_schema && v.schema.is_none())
    {
        errors.push(FieldError::required(
            format!("{}.schema.openAPIV3Schema", versions.index(i)),
            "",
        ));
    }
    if definition.preserve_unknown_fields && definition.schemas().any(has_defaults) {
        errors.push(FieldError::invalid(
            SPEC.child("preserveUnknownFields"),
            true,
            "must be false in order to use defaults in the schema",
        ));
    }
    for (i, version) in definition.versions.iter().enumerate() {
        one_version(version, definition, before, &versions.index(i), errors);
    }
    all_versions(definition, errors);
    surface::required_names(&definition.names, &SPEC.child("names"), errors);
    surface::names(&definition.names, &SPEC.child("names"), errors);
    shared_parts(definition, before, errors);
    surface::conversion(
        &definition.conversion,
        definition.preserve_unknown_fields,
        &SPEC.child("conversion"),
        errors,
    );
}

fn group_and_scope(definition: &Definition, errors: &mut Vec<FieldError>) {
    let at = SPEC.child("group");
    let group = definition.group.as_str();
    let errs = names::dns_subdomain(group);
    if group.is_empty() {
        errors.push(FieldError::required(at, ""));
    } else if !errs.is_empty() {
        errors.push(FieldError::invalid(at, group, &errs.join(",")));
    } else if !group.contains('.') {
        errors.push(FieldError::invalid(
            at,
            group,
            "should be a domain with at least one dot",
        ));
    }
    surface::one_of(
        &definition.scope,
        &["Cluster", "Namespaced"],
        &SPEC.child("scope"),
        errors,
    );
}

/// Validates one version.
fn one_version(
    version: &Version,
    definition: &Definition,
    before: Option<&Definition>,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let shared = definition.shared;
    let errs = names::dns_1035_label(&version.name);
    if !errs.is_empty() {
        errors.push(FieldError::invalid(
            path.child("name"),
            &version.name,
            &errs.join(","),
        ));
    }
    surface::deprecation(version, path, errors);
    if !shared.schema {
        validation(
            version,
            version.has_status(),
            costs(version, before),
            &path.child("schema"),
            errors,
        );
    }
    if !shared.subresources {
        surface::scale(version.scale(), &path.child("subresources"), errors);
    }
    if !shared.columns {
        surface::columns(
            &version.columns,
            &path.child("additionalPrinterColumns"),
            errors,
        );
    }
    if !shared.selectable_fields && !version.selectable_fields.is_empty() {
        let at = path.child("selectableFields");
        match version.schema.as_ref().filter(|_| !shared.schema) {
            None => errors.push(FieldError::invalid(
                at,
                "",
                "may only be set when `version.schema.openAPIV3Schema` is not included",
            )),
            Some(Ok(schema)) => {
                surface::selectable_fields(&version.selectable_fields, schema, &at, errors)
            }
            Some(Err(_)) => {}
        }
    }
}

fn all_versions(definition: &Definition, errors: &mut Vec<FieldError>) {
    let names: Vec<&str> = definition
        .versions
        .iter()
        .map(|v| v.name.as_str())
        .collect();
    let at = SPEC.child("versions");
    let mut refuse = |detail| {
        errors.push(FieldError::invalid(
            at,
            Verbatim(&in_go(definition)),
            detail,
        ))
    };
    let distinct: BTreeSet<&str> = names.iter().copied().collect();
    if distinct.len() < names.len() {
        refuse("must contain unique version names");
    }
    if definition.versions.iter().filter(|v| v.storage).count() != 1 {
        refuse("must have exactly one version marked as storage version");
    }
    if let Some(first) = names.first().filter(|name| !name.is_empty()) {
        let errs = names::dns_1035_label(first);
        if !errs.is_empty() {
            errors.push(FieldError::invalid(
                SPEC.child("version"),
                *first,
                &errs.join(","),
            ));
        }
    }
}

/// The versions as Go prints them in errors: without shared fields, the others as in the object.
fn in_go(definition: &Definition) -> String {
    let schema = |v: &Version| {
        if definition.shared.schema || v.schema.is_none() {
            Value::Null
        } else {
            json!({"OpenAPIV3Schema": v.schema_source})
        }
    };
    let version = |v: &Version| {
        format!(
            "{{\"Name\":{},\"Served\":{},\"Storage\":{},\"Deprecated\":{},\"DeprecationWarning\":{},\"Schema\":{},\"Subresources\":null,\"AdditionalPrinterColumns\":null,\"SelectableFields\":null}}",
            json!(v.name),
            v.served,
            v.storage,
            v.deprecated,
            json!(v.deprecation_warning),
            schema(v),
        )
    };
    let versions: Vec<String> = definition.versions.iter().map(version).collect();
    format!("[{}]", versions.join(","))
}

/// Validates what is equal in all versions.
fn shared_parts(
    definition: &Definition,
    before: Option<&Definition>,
    errors: &mut Vec<FieldError>,
) {
    let Some(version) = definition.versions.first() else {
        return;
    };
    let shared = definition.shared;
    if shared.schema {
        validation(
            version,
            definition.versions.iter().any(Version::has_status),
            costs(version, before),
            &SPEC.child("validation"),
            errors,
        );
    }
    if shared.subresources {
        surface::scale(version.scale(), &SPEC.child("subresources"), errors);
    }
    if shared.columns {
        surface::columns(
            &version.columns,
            &SPEC.child("additionalPrinterColumns"),
            errors,
        );
    }
    if shared.selectable_fields && !version.selectable_fields.is_empty() {
        let at = SPEC.child("selectableFields");
        match version.schema.as_ref().filter(|_| shared.schema) {
            None => errors.push(FieldError::invalid(
                at,
                "",
                "may only be set when validations.schema is included",
            )),
            Some(Ok(schema)) => {
                surface::selectable_fields(&version.selectable_fields, schema, &at, errors)
            }
            Some(Err(_)) => {}
        }
    }
}

/// The rules of a version whose schema did not change may cost what they cost.
fn costs(version: &Version, before: Option<&Definition>) -> Suppress {
    let same =
        |old: &Version| old.name == version.name && old.schema_source == version.schema_source;
    if before.is_some_and(|before| before.versions.iter().any(same)) {
        Suppress::CostOfRules
    } else {
        Suppress::Nothing
    }
}

/// The errors of a schema. Structural rules are first; a schema that cannot be read as structural
/// is reported by its keywords.
fn validation(
    version: &Version,
    has_status: bool,
    suppress: Suppress,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let at = path.child("openAPIV3Schema");
    let schema = match &version.schema {
        None => return,
        Some(Err(problem)) => return errors.push(FieldError::invalid(at, "", problem)),
        Some(Ok(schema)) => schema,
    };
    let mut found = Vec::new();
    if has_status {
        found.extend(root_beside_status(schema, version, &at));
    }
    if schema.nullable {
        found.push(FieldError::forbidden(
            at.child("nullable"),
            "nullable cannot be true at the root",
        ));
    }
    let unreadable = structural::unreadable(schema);
    let mut is_sound = unreadable.is_none();
    if is_sound {
        let mut errs = structural::validate(schema, &at);
        if errs.is_empty() {
            errs = defaults::validate_defaults(schema, &at);
        }
        is_sound = errs.is_empty();
        found.append(&mut errs);
    }
    let mut keywords = Vec::new();
    openapi::validate(schema, &at, &mut keywords);
    let (rule_errors, total_errors) = if is_sound {
        rules::validate(schema, &at, &keywords, suppress)
    } else {
        Default::default()
    };
    found.extend(keywords.into_iter().chain(rule_errors));
    if let Some(problem) = unreadable.filter(|_| found.is_empty()) {
        found.push(FieldError::invalid(at, "", &problem));
    }
    found.extend(total_errors);
    errors.append(&mut found);
}

/// With a status subresource the status is validated by its own schema alone, so the root may not
/// constrain objects as a whole.
fn root_beside_status(schema: &Schema, version: &Version, path: &Path<'_>) -> Option<FieldError> {
    const ALLOWED: &str = "[Description Type Format Title Maximum ExclusiveMaximum Minimum ExclusiveMinimum MaxLength MinLength Pattern MaxItems MinItems UniqueItems MultipleOf Required Items Properties ExternalDocs Example XPreserveUnknownFields XValidations]";
    let Marks {
        id,
        schema: url,
        reference,
        pattern_properties,
        dependencies,
        additional_items,
        definitions,
        ..
    } = schema.marks;
    let early = id || url || reference;
    if !early && !schema.type_name.is_empty() && schema.type_name != "object" {
        let detail = "only \"object\" is allowed as the type at the root of the schema if the status subresource is enabled";
        return Some(FieldError::invalid(
            path.child("type"),
            &schema.type_name,
            detail,
        ));
    }
    let junctors = schema.not.is_some()
        || [&schema.all_of, &schema.any_of, &schema.one_of]
            .iter()
            .any(|list| !list.is_empty());
    let extensions = schema.embedded_resource
        || schema.int_or_string
        || schema.list_type.is_some()
        || schema.map_type.is_some()
        || !schema.list_map_keys.is_empty();
    let errs = early
        || schema.nullable
        || schema.default.is_some()
        || !schema.allowed.is_empty()
        || schema.max_properties.is_some()
        || schema.min_properties.is_some()
        || junctors
        || schema.additional_properties.is_some()
        || pattern_properties
        || dependencies
        || additional_items
        || definitions
        || extensions;
    let detail = format!(
        "only {ALLOWED} fields are allowed at the root of the schema if the status subresource is enabled"
    );
    errs.then(|| FieldError::invalid(path, &version.schema_source, &detail))
}

fn has_defaults(schema: &Schema) -> bool {
    let mut found = false;
    schema.walk(&mut |s| found |= s.default.is_some());
    found
}

fn immutable(definition: &Definition, before: &Definition, errors: &mut Vec<FieldError>) {
    let mut same = |at: Path<'_>, new: &str, old: &str| {
        if new != old {
            errors.push(FieldError::invalid(at, new, "field is immutable"));
        }
    };
    let names = SPEC.child("names");
    if before.is_true("Established") {
        same(SPEC.child("scope"), &definition.scope, &before.scope);
        same(
            names.child("kind"),
            &definition.names.kind,
            &before.names.kind,
        );
    }
    same(SPEC.child("group"), &definition.group, &before.group);
    same(
        names.child("plural"),
        &definition.names.plural,
        &before.names.plural,
    );
}

fn status(definition: &Definition, errors: &mut Vec<FieldError>) {
    accepted_names(&definition.status.accepted_names, errors);
    let at = Path::field("status.storedVersions");
    let stored = &definition.status.stored_versions;
    if stored.is_empty() {
        return errors.push(FieldError::invalid(
            at,
            &Value::Null,
            "must have at least one stored version",
        ));
    }
    for version in definition
        .versions
        .iter()
        .filter(|v| v.storage && !stored.contains(&v.name))
    {
        errors.push(FieldError::invalid(
            at,
            &json!(stored),
            &format!("must have the storage version {}", version.name),
        ));
    }
    let versions: BTreeSet<&str> = definition
        .versions
        .iter()
        .map(|v| v.name.as_str())
        .collect();
    for (i, name) in stored
        .iter()
        .enumerate()
        .filter(|(_, name)| !versions.contains(name.as_str()))
    {
        let detail = format!(
            "missing from spec.versions; {name} was previously a storage version, and must remain in spec.versions until a storage migration ensures no data remains persisted in {name} and removes {name} from status.storedVersions"
        );
        errors.push(FieldError::invalid(at.index(i), name, &detail));
    }
}

fn accepted_names(names: &Names, errors: &mut Vec<FieldError>) {
    surface::names(names, &Path::field("status.acceptedNames"), errors);
}

fn unknown_fields(definition: &Definition, errors: &mut Vec<FieldError>) {
    if definition.preserve_unknown_fields {
        let detail = "cannot set to true, set x-kubernetes-preserve-unknown-fields to true in spec.versions[*].schema instead";
        errors.push(FieldError::invalid(
            SPEC.child("preserveUnknownFields"),
            true,
            detail,
        ));
    }
}
