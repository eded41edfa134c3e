//! PUT and PATCH of an object or a subresource.

use bellerophon_apimachinery::{
    error::{ApiError, GroupKind},
    field::FieldError,
};
use bellerophon_codec::{
    body::{self, Expected},
    decode,
    object::Object,
    patch::{GoValue, JsonPatch, Unreadable, merge, opened_by, strategic_merge},
    types::{self, Type},
};
use serde_json::{Map, Value};

use super::{
    Call, Content, Reply,
    create::{read_object, settle_namespace},
};
use crate::{
    api::Api,
    http::query::{FieldValidation, WriteOptions},
    managed_fields::ConflictResolution,
    registry::{Decoded, Resource},
    write::{self, Change, Updated, dedup_owners, uid_conflict},
};

/// Replaces an object or a subresource.
///
/// # Errors
/// A body that cannot be read, a stale version, admission, validation.
pub(crate) async fn update(api: &Api, call: &Call, change: Change) -> Result<Reply, ApiError> {
    let options = WriteOptions::read(&call.query, "UpdateOptions", false)?;
    let mut object = read_object(call, &options)?;
    settle_name(call, &mut object)?;
    let resource = &call.target.resource;
    let tracker = call.tracker(api, &options);
    let updated = write::update(
        api,
        resource,
        &call.target.key(),
        change,
        options.dry_run,
        Some(&call.attributes()),
        |old| {
            check_uid(resource, &object, old)?;
            let mut new = object.clone();
            tracker.update(old, &mut new);
            Ok(new)
        },
    )
    .await?;
    Ok(reply(call, updated))
}

/// A replacement that names a uid means that object and no other.
fn check_uid(resource: &Resource, new: &Object, old: Option<&Object>) -> Result<(), ApiError> {
    match old {
        Some(old) if !new.meta.uid.is_empty() && new.meta.uid != old.meta.uid => {
            Err(uid_conflict(resource, &new.meta, &old.meta.uid))
        }
        _ => Ok(()),
    }
}

fn reply(call: &Call, updated: Updated) -> Reply {
    call.warnings.add(updated.warnings);
    let content = Content::from(updated.written);
    if updated.created {
        Reply::created(content)
    } else {
        Reply::ok(content)
    }
}

/// Makes body and path agree on name and namespace.
///
/// # Errors
/// 400 when they do not.
pub(super) fn settle_name(call: &Call, object: &mut Object) -> Result<(), ApiError> {
    let name = &call.target.name;
    if object.meta.name.is_empty() {
        let why = format!(
            "the name of the object ({name} based on URL) was undeterminable: name must be provided"
        );
        return Err(ApiError::BadRequest(why));
    }
    if object.meta.name != *name {
        return Err(ApiError::BadRequest(format!(
            "the name of the object ({}) does not match the name on the URL ({name})",
            object.meta.name
        )));
    }
    settle_namespace(call, object)
}

/// The kinds of patches.
#[derive(Clone, Debug)]
pub(super) enum Patch {
    Json(JsonPatch),
    Merge(Value),
    /// With the type of what is patched.
    Strategic(Map<String, Value>, &'static Type),
}

/// The media type of a configuration to apply.
pub(super) const APPLY: &str = "application/apply-patch+yaml";

const PATCH_TYPES: [&str; 3] = [
    "application/json-patch+json",
    "application/merge-patch+json",
    APPLY,
];

impl Patch {
    /// The object after the patch. `decode` decodes the patched JSON.
    ///
    /// # Errors
    /// 422 for a patch that does not fit the object, or that changes its kind.
    pub(super) fn patched(
        &self,
        old: &Object,
        decode: impl FnOnce(Value) -> Result<Decoded, String>,
    ) -> Result<Patched, ApiError> {
        let (mut value, _) = self.outcome(old)?;
        if let Some(why) = misnamed(&value, old) {
            return Err(self.misfit(old, &why));
        }
        name_as(&mut value, old);
        match decode(value) {
            Ok(decoded) => Ok(Patched {
                object: decoded.object,
                unknown: decoded.strict,
            }),
            Err(why) => Err(self.misfit(old, &why)),
        }
    }

    /// The patched JSON; of a strategic patch also the rest of the patch.
    fn outcome(&self, old: &Object) -> Result<(Value, Option<Map<String, Value>>), ApiError> {
        let mut value = old.to_value();
        match self {
            Self::Json(patch) => {
                let refused = |_| {
                    ApiError::Unprocessable(
                        "the server rejected our request due to an error in our request".into(),
                    )
                };
                patch.apply(&mut value).map_err(refused)?;
            }
            Self::Merge(patch) => merge(&mut value, patch.clone()),
            Self::Strategic(patch, ty) => {
                let mut patch = patch.clone();
                strategic_merge(
                    value.as_object_mut().expect("objects are maps"),
                    &mut patch,
                    ty,
                )?;
                // The struct that such a patch is decoded into determines the kind, whatever the
                // patch contains.
                name_as(&mut value, old);
                return Ok((value, Some(patch)));
            }
        }
        Ok((value, None))
    }

    /// 422 for a patch whose outcome is no object of the kind. It shows the JSON that the patch led
    /// to, or a strategic patch itself.
    fn misfit(&self, old: &Object, why: &str) -> ApiError {
        let (value, rest) = match self.outcome(old) {
            Ok(outcome) => outcome,
            Err(refused) => return refused,
        };
        let (group, version) = old
            .api_version
            .split_once('/')
            .unwrap_or(("", &old.api_version));
        let ty = types::find(group, version, &old.kind);
        let shown = match self {
            Self::Json(patch) => types::written(ty, &value, Some(&patch.opened())),
            Self::Merge(patch) => types::written(ty, &value, Some(&opened_by(patch))),
            Self::Strategic(..) => GoValue(&Value::Object(rest.unwrap_or_default())).to_string(),
        };
        let errors = vec![FieldError::invalid("patch", &shown, why)];
        ApiError::Invalid {
            kind: GroupKind::new("", ""),
            name: String::new(),
            errors,
        }
    }

    /// Handles repeated and unknown fields: ignored, warnings, or an error.
    ///
    /// # Errors
    /// 422 under strict validation.
    pub(super) fn validate_fields(
        &self,
        call: &Call,
        old: &Object,
        strict: Vec<String>,
        options: &WriteOptions,
    ) -> Result<(), ApiError> {
        match options.field_validation {
            FieldValidation::Strict if !strict.is_empty() => {
                return Err(self.misfit(old, &decode::strict_error(&strict)));
            }
            FieldValidation::Ignore => {}
            _ => call.warnings.add(strict),
        }
        Ok(())
    }
}

/// Why the outcome of a patch is not of the kind that it was made from; `None` when it is.
fn misnamed(value: &Value, old: &Object) -> Option<String> {
    let found = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
    if (found("apiVersion"), found("kind")) == (&old.api_version, &old.kind) {
        return None;
    }
    let (group, version) = old
        .api_version
        .split_once('/')
        .unwrap_or(("", &old.api_version));
    match Expected::of(group, version, &old.kind) {
        Some(expected) => body::misnamed(value, &expected),
        None => Some(format!(
            "{} {} is not {} {}",
            found("apiVersion"),
            found("kind"),
            old.api_version,
            old.kind
        )),
    }
}

/// Sets `apiVersion` and `kind` of a value to those of an object.
fn name_as(value: &mut Value, object: &Object) {
    if let Some(map) = value.as_object_mut() {
        map.insert("apiVersion".into(), object.api_version.clone().into());
        map.insert("kind".into(), object.kind.clone().into());
    }
}

/// An object after a patch.
pub(super) struct Patched {
    pub(super) object: Object,
    /// The fields its kind does not know.
    pub(super) unknown: Vec<String>,
}

/// The media type of a patch, without parameters.
pub(super) fn patch_type(call: &Call) -> String {
    call.content_type
        .as_deref()
        .unwrap_or_default()
        .split(';')
        .next()
        .unwrap_or_default()
        .trim()
        .to_ascii_lowercase()
}

/// Reads the patch of a request, and the fields it repeats or, in a list of operations, makes up.
///
/// # Errors
/// 415 for a kind of patch that is not known, 400 for one that cannot be read.
pub(super) fn read_patch(call: &Call) -> Result<(Patch, Vec<String>), ApiError> {
    match patch_type(call).as_str() {
        "application/json-patch+json" => {
            let (value, mut strict) = read_json(&call.body)?;
            strict.extend(JsonPatch::unknown_fields(&value));
            let strict = strict
                .into_iter()
                .map(|field| format!("json patch {field}"))
                .collect();
            let patch = JsonPatch::read(value).map_err(|e| match e {
                Unreadable::Shape(why) => {
                    ApiError::BadRequest(format!("error decoding patch: {why}"))
                }
                Unreadable::TooMany(n) => ApiError::TooLarge(format!(
                    "The allowed maximum operations in a JSON patch is 10000, got {n}"
                )),
            })?;
            Ok((Patch::Json(patch), strict))
        }
        "application/merge-patch+json" => {
            let (value, duplicates) = read_json(&call.body)?;
            match read_map(value)
                .map_err(|why| ApiError::BadRequest(format!("error decoding patch: {why}")))?
            {
                Some(map) => Ok((Patch::Merge(Value::Object(map)), duplicates)),
                None => Err(ApiError::BadRequest("Invalid JSON Patch".into())),
            }
        }
        "application/strategic-merge-patch+json" if !call.target.resource.is_custom() => {
            let mut duplicates = Vec::new();
            let value =
                decode::parse_json(&call.body).and_then(|node| node.into_value(&mut duplicates));
            let map = value.and_then(read_map).map_err(ApiError::BadRequest)?;
            Ok((
                Patch::Strategic(map.unwrap_or_default(), patched_type(call)),
                duplicates,
            ))
        }
        _ if call.target.resource.is_custom() => {
            Err(ApiError::UnsupportedMediaType(PATCH_TYPES.to_vec()))
        }
        _ => Err(ApiError::UnsupportedPatchType),
    }
}

/// The type that a patch of a built-in kind changes: the object, or a subresource with another
/// kind.
fn patched_type(call: &Call) -> &'static Type {
    let resource = &call.target.resource;
    let (group, version, kind) = match &call.subresource {
        Some(subresource) if !subresource.version.is_empty() => {
            (subresource.group, subresource.version, &subresource.kind)
        }
        _ => (
            resource.group.as_str(),
            resource.version.as_str(),
            &resource.kind,
        ),
    };
    types::find(group, version, kind).expect("built-in kinds have a type")
}

/// The map that a patch must be; `None` for null.
fn read_map(value: Value) -> Result<Option<Map<String, Value>>, String> {
    let what = match value {
        Value::Object(map) => return Ok(Some(map)),
        Value::Null => return Ok(None),
        Value::Array(_) => "array",
        Value::String(_) => "string",
        Value::Number(_) => "number",
        Value::Bool(_) => "bool",
    };
    Err(format!(
        "json: cannot unmarshal {what} into Go value of type map[string]interface {{}}"
    ))
}

/// The JSON of a patch, and the fields it repeats.
fn read_json(bytes: &[u8]) -> Result<(Value, Vec<String>), ApiError> {
    let refuse = |why: String| ApiError::BadRequest(format!("error decoding patch: {why}"));
    let mut duplicates = Vec::new();
    let value = decode::parse_json(bytes)
        .and_then(|node| node.into_value(&mut duplicates))
        .map_err(refuse)?;
    Ok((value, duplicates))
}

/// Patches an object or a subresource.
///
/// # Errors
/// A patch that cannot be read or applied, a stale version, admission, validation.
pub(crate) async fn patch(api: &Api, call: &Call, change: Change) -> Result<Reply, ApiError> {
    if patch_type(call) == APPLY {
        return apply(api, call, change).await;
    }
    let options = WriteOptions::read(&call.query, "PatchOptions", false)?;
    let (patch, duplicates) = read_patch(call)?;
    let resource = &call.target.resource;
    let tracker = call.tracker(api, &options);
    let updated = write::update(
        api,
        resource,
        &call.target.key(),
        Change {
            may_create: false,
            ..change
        },
        options.dry_run,
        Some(&call.attributes()),
        |old| {
            let old = old.ok_or_else(|| call.target.not_found())?;
            let mut patched = patch.patched(old, |value| resource.decode_value(value))?;
            settle_name(call, &mut patched.object)?;
            let twice = dedup_owners(&mut patched.object.meta);
            patch.validate_fields(
                call,
                old,
                [duplicates.as_slice(), &patched.unknown].concat(),
                &options,
            )?;
            call.warnings.add(twice);
            tracker.update(Some(old), &mut patched.object);
            Ok(patched.object)
        },
    )
    .await?;
    Ok(reply(call, updated))
}

/// Applies a configuration, to an object that is there or as a new one.
///
/// # Errors
/// A configuration that cannot be read or does not fit, conflicts with other managers, a stale
/// version, admission, validation.
async fn apply(api: &Api, call: &Call, change: Change) -> Result<Reply, ApiError> {
    let options = WriteOptions::read(&call.query, "PatchOptions", true)?;
    let Configuration { value, repeated } = Configuration::read(&call.body)?;
    let resource = &call.target.resource;
    let tracker = call.tracker(api, &options);
    let updated = write::update(
        api,
        resource,
        &call.target.key(),
        Change {
            may_create: call.subresource.is_none(),
            conflict_resolution: if options.force {
                ConflictResolution::Force
            } else {
                ConflictResolution::Fail
            },
            ..change
        },
        options.dry_run,
        Some(&call.attributes()),
        |old| {
            if old.is_none() && call.subresource.is_some() {
                return Err(call.target.not_found());
            }
            let mut new = tracker.apply(old, &value, options.force)?;
            validate_duplicates(call, repeated.as_ref(), &options)?;
            if old.is_none() && !new.meta.uid.is_empty() {
                return Err(uid_of_nothing(call, &new));
            }
            settle_name(call, &mut new)?;
            call.warnings.add(dedup_owners(&mut new.meta));
            Ok(new)
        },
    )
    .await?;
    Ok(reply(call, updated))
}

/// 409 for a configuration that names a uid where there is no object.
fn uid_of_nothing(call: &Call, new: &Object) -> ApiError {
    let why = format!(
        "uid mismatch: the provided object specified uid {}, and no existing object was found",
        new.meta.uid
    );
    ApiError::Conflict {
        what: call.target.resource.group_resource(),
        name: call.target.name.clone(),
        why,
    }
}

/// A configuration to apply.
pub(super) struct Configuration {
    /// A map.
    pub(super) value: Value,
    /// The keys it repeats, as one strict error.
    pub(super) repeated: Option<String>,
}

impl Configuration {
    /// Reads a configuration, written in YAML or JSON.
    ///
    /// # Errors
    /// 400 for what is neither, or no map.
    pub(super) fn read(body: &[u8]) -> Result<Self, ApiError> {
        let unread = |why: String| ApiError::BadRequest(format!("error decoding YAML: {why}"));
        let tree = decode::parse(body, decode::Media::Yaml)
            .map_err(|why| unread(format!("error converting YAML to JSON: {why}")))?;
        let mut duplicates = Vec::new();
        let value = tree
            .root
            .into_value(&mut duplicates)
            .map_err(|why| unread(format!("error unmarshaling JSON: {why}")))?;
        let map = read_map(value).map_err(|why| {
            unread(format!(
                "error unmarshaling JSON: while decoding JSON: {why}"
            ))
        })?;
        Ok(Self {
            value: Value::Object(map.unwrap_or_default()),
            repeated: tree.repeated,
        })
    }
}

/// Handles repeated keys of a configuration.
///
/// # Errors
/// 400 under strict validation.
pub(super) fn validate_duplicates(
    call: &Call,
    repeated: Option<&String>,
    options: &WriteOptions,
) -> Result<(), ApiError> {
    match (repeated, options.field_validation) {
        (None, _) | (_, FieldValidation::Ignore) => Ok(()),
        (Some(keys), FieldValidation::Warn) => {
            call.warnings
                .add(decode::warnings(std::slice::from_ref(keys)));
            Ok(())
        }
        (Some(keys), FieldValidation::Strict) => Err(ApiError::BadRequest(format!(
            "error strict decoding YAML: error converting YAML to JSON: {keys}"
        ))),
    }
}
