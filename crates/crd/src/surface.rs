//! Validates the fields of a definition around its schemas: names, columns, scale, selectable
//! fields, deprecation, conversion.
//! In: one field and its path. Out: its errors.

use std::collections::BTreeSet;

use bellerophon_apimachinery::{
    field::{FieldError, Path},
    names as rules,
};
use serde_json::json;

use super::{
    definition::{ColumnDefinition, Conversion, Names, Scale, Version},
    schema::Schema,
};

const COLUMN_TYPES: &str = "boolean,date,integer,number,string";
const COLUMN_FORMATS: &str = "byte,date,date-time,double,float,int32,int64,password";

/// How many fields of a version can be selected by.
const SELECTABLE_FIELDS_MAX: usize = 8;

/// How long the warning of a deprecated version may be.
const DEPRECATION_WARNING_BYTES_MAX: usize = 256;

/// A value out of a short list.
pub(super) fn one_of(
    value: &str,
    accepted: &[&str],
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    if value.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else if !accepted.contains(&value) {
        errors.push(FieldError::not_supported(path, value, accepted));
    }
}

/// The names that must be there.
pub(super) fn required_names(names: &Names, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for (field, name) in [
        ("plural", &names.plural),
        ("singular", &names.singular),
        ("kind", &names.kind),
        ("listKind", &names.list_kind),
    ] {
        if name.is_empty() {
            errors.push(FieldError::required(path.child(field), ""));
        }
    }
}

/// Validates names.
pub(super) fn names(names: &Names, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for (field, name) in [("plural", &names.plural), ("singular", &names.singular)]
        .iter()
        .filter(|(_, name)| !name.is_empty())
    {
        label(name, &path.child(field), errors);
    }
    for (field, name) in [("kind", &names.kind), ("listKind", &names.list_kind)]
        .iter()
        .filter(|(_, name)| !name.is_empty())
    {
        let errs = rules::dns_1035_label(&name.to_lowercase());
        if !errs.is_empty() {
            let detail = format!(
                "may have mixed case, but should otherwise match: {}",
                errs.join(",")
            );
            errors.push(FieldError::invalid(path.child(field), *name, &detail));
        }
    }
    let short_names = path.child("shortNames");
    names
        .short_names
        .iter()
        .enumerate()
        .for_each(|(i, name)| label(name, &short_names.index(i), errors));
    if !names.kind.is_empty() && names.kind == names.list_kind {
        errors.push(FieldError::invalid(
            path.child("listKind"),
            &names.list_kind,
            "kind and listKind may not be the same",
        ));
    }
    let categories = path.child("categories");
    names
        .categories
        .iter()
        .enumerate()
        .for_each(|(i, name)| label(name, &categories.index(i), errors));
}

fn label(name: &str, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let errs = rules::dns_1035_label(name);
    if !errs.is_empty() {
        errors.push(FieldError::invalid(path, name, &errs.join(",")));
    }
}

/// The warning of a deprecated version.
pub(super) fn deprecation(version: &Version, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let Some(warning) = &version.deprecation_warning else {
        return;
    };
    let mut refuse = |detail: &str| {
        errors.push(FieldError::invalid(
            path.child("deprecationWarning"),
            warning,
            detail,
        ))
    };
    if !version.deprecated {
        return refuse("can only be set for deprecated versions");
    }
    if warning.len() > DEPRECATION_WARNING_BYTES_MAX {
        refuse("must be <= 256 characters long");
    }
    if warning.is_empty() {
        refuse("must not be an empty string");
    }
    if let Some((at, _)) = warning
        .char_indices()
        .find(|(_, c)| c.is_control() || (c.is_whitespace() && *c != ' '))
    {
        refuse(&format!(
            "must only contain printable UTF-8 characters; non-printable character found at index {at}"
        ));
    }
}

/// The columns of a table.
pub(super) fn columns(columns: &[ColumnDefinition], path: &Path<'_>, errors: &mut Vec<FieldError>) {
    for (i, column) in columns.iter().enumerate() {
        let path = path.index(i);
        if column.name.is_empty() {
            errors.push(FieldError::required(path.child("name"), ""));
        }
        let detail = format!("must be one of {COLUMN_TYPES}");
        if column.type_name.is_empty() {
            errors.push(FieldError::required(path.child("type"), &detail));
        } else if !COLUMN_TYPES.split(',').any(|t| t == column.type_name) {
            errors.push(FieldError::invalid(
                path.child("type"),
                &column.type_name,
                &detail,
            ));
        }
        if !column.format.is_empty() && !COLUMN_FORMATS.split(',').any(|f| f == column.format) {
            errors.push(FieldError::invalid(
                path.child("format"),
                &column.format,
                &format!("must be one of {COLUMN_FORMATS}"),
            ));
        }
        simple_path(&column.json_path, &path.child("JSONPath"), errors);
    }
}

/// A path that starts with a dot; other errors of it are found only when it is used. Returns
/// whether it was accepted.
fn simple_path(json_path: &str, path: &Path<'_>, errors: &mut Vec<FieldError>) -> bool {
    if json_path.is_empty() {
        errors.push(FieldError::required(path, ""));
    } else if !json_path.starts_with('.') {
        errors.push(FieldError::invalid(
            path,
            json_path,
            "must be a simple json path starting with .",
        ));
    } else {
        return true;
    }
    false
}

/// Where scale reads and writes.
pub(super) fn scale(scale: Option<&Scale>, path: &Path<'_>, errors: &mut Vec<FieldError>) {
    let Some(scale) = scale else { return };
    let at = path.child("scale");
    for (field, json_path, root) in [
        ("specReplicasPath", &scale.spec_replicas_path, ".spec"),
        ("statusReplicasPath", &scale.status_replicas_path, ".status"),
    ] {
        let at = at.child(field);
        if simple_path(json_path, &at, errors) && !is_under(json_path, root) {
            errors.push(FieldError::invalid(
                at,
                json_path,
                &format!("should be a json path under {root}"),
            ));
        }
    }
    if let Some(selector) = scale.label_selector_path.as_ref().filter(|p| !p.is_empty()) {
        let at = at.child("labelSelectorPath");
        if simple_path(selector, &at, errors)
            && !is_under(selector, ".spec")
            && !is_under(selector, ".status")
        {
            errors.push(FieldError::invalid(
                at,
                selector,
                "should be a json path under either .spec or .status",
            ));
        }
    }
}

fn is_under(json_path: &str, root: &str) -> bool {
    json_path
        .strip_prefix(root)
        .is_some_and(|rest| rest.starts_with('.'))
}

/// Fields that lists and watches can be filtered by.
pub(super) fn selectable_fields(
    fields: &[String],
    schema: &Schema,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    let mut unique = BTreeSet::new();
    for (i, field) in fields.iter().enumerate() {
        let item = path.index(i);
        let at = item.child("jsonPath");
        if field.is_empty() {
            errors.push(FieldError::required(at, ""));
            continue;
        }
        let (canonical, found) = match follow(field, schema) {
            Ok(found) => found,
            Err(problem) => {
                errors.push(FieldError::invalid(
                    at,
                    field,
                    &format!("is an invalid path: {problem}"),
                ));
                continue;
            }
        };
        if canonical.first() == Some(&"metadata") {
            errors.push(FieldError::invalid(
                at,
                field,
                "must not point to fields in metadata",
            ));
        }
        if !found.is_some_and(|s| matches!(s.type_name.as_str(), "string" | "boolean" | "integer"))
        {
            let detail = "must point to a field of type string, boolean or integer. Enum string fields and strings with formats are allowed.";
            errors.push(FieldError::invalid(at, field, detail));
        }
        if !unique.insert(canonical) {
            errors.push(FieldError::duplicate(at, field));
        }
    }
    if unique.len() > SELECTABLE_FIELDS_MAX {
        errors.push(FieldError::too_many(
            path,
            unique.len(),
            SELECTABLE_FIELDS_MAX,
        ));
    }
}

/// Follows `.a.b` down a schema: the names on the way, and the schema at the end.
fn follow<'a>(
    json_path: &'a str,
    schema: &'a Schema,
) -> Result<(Vec<&'a str>, Option<&'a Schema>), String> {
    let mut tokens = tokens(json_path).into_iter();
    let mut names = Vec::new();
    let mut schema = Some(schema);
    while let Some(token) = tokens.next() {
        match token {
            "." => {}
            "[" => return Err("array notation is not allowed".into()),
            other => return Err(format!("expected [ or . but got: {other}")),
        }
        let name = tokens.next().ok_or("unexpected end of JSON path")?;
        let at = schema
            .filter(|s| !s.properties.is_empty() || s.additional_properties.is_some())
            .ok_or("does not refer to a valid field")?;
        schema = match (at.properties.get(name), at.properties.is_empty()) {
            (Some(property), _) => Some(property),
            (None, true) => at.additional(),
            (None, false) => return Err("does not refer to a valid field".into()),
        };
        names.push(name);
    }
    Ok((names, schema))
}

/// `.`, `[` and `]`, and the text between them.
fn tokens(json_path: &str) -> Vec<&str> {
    const DELIMITERS: [char; 3] = ['.', '[', ']'];
    let mut tokens = Vec::new();
    let mut rest = json_path;
    while !rest.is_empty() {
        let length = match rest.find(DELIMITERS) {
            Some(0) => 1,
            Some(at) => at,
            None => rest.len(),
        };
        let (token, after) = rest.split_at(length);
        tokens.push(token);
        rest = after;
    }
    tokens
}

/// How versions are converted.
pub(super) fn conversion(
    conversion: &Conversion,
    preserves_unknown_fields: bool,
    path: &Path<'_>,
    errors: &mut Vec<FieldError>,
) {
    if conversion.strategy != "None" && preserves_unknown_fields {
        let detail = "must be None if spec.preserveUnknownFields is true";
        errors.push(FieldError::invalid(
            path.child("strategy"),
            &conversion.strategy,
            detail,
        ));
    }
    one_of(
        &conversion.strategy,
        &["None", "Webhook"],
        &path.child("strategy"),
        errors,
    );
    let client = conversion
        .webhook
        .as_ref()
        .and_then(|w| w.client_config.as_ref());
    let reviews = conversion
        .webhook
        .as_ref()
        .map_or(&[][..], |w| &w.conversion_review_versions);
    let client_at = path.child("webhookClientConfig");
    let reviews_at = path.child("conversionReviewVersions");
    if conversion.strategy != "Webhook" {
        let detail = "should not be set when strategy is not set to Webhook";
        errors.extend(client.map(|_| FieldError::forbidden(client_at, detail)));
        errors.extend((!reviews.is_empty()).then(|| FieldError::forbidden(reviews_at, detail)));
        return;
    }
    match client {
        None => errors.push(FieldError::required(
            client_at,
            "required when strategy is set to Webhook",
        )),
        Some(client) if client.url.is_some() == client.service.is_some() => {
            errors.push(FieldError::required(
                client_at,
                "exactly one of url or service is required",
            ));
        }
        Some(_) => {}
    }
    review_versions(reviews, &reviews_at, errors);
}

fn review_versions(versions: &[String], path: &Path<'_>, errors: &mut Vec<FieldError>) {
    if versions.is_empty() {
        return errors.push(FieldError::required(path, ""));
    }
    for (i, version) in versions.iter().enumerate() {
        if versions[..i].contains(version) {
            errors.push(FieldError::invalid(
                path.index(i),
                version,
                "duplicate version",
            ));
            continue;
        }
        errors.extend(
            rules::dns_1035_label(version)
                .iter()
                .map(|errs| FieldError::invalid(path.index(i), version, errs)),
        );
    }
    if !versions.iter().any(|v| v == "v1" || v == "v1beta1") {
        errors.push(FieldError::invalid(
            path,
            &json!(versions),
            "must include at least one of v1, v1beta1",
        ));
    }
}
