//! PUT and PATCH of an object or of one of its parts.

use serde_json::Value;

use super::{
    Call, Content, Reply,
    create::{read_object, settle_namespace},
};
use crate::{
    api::Api,
    decode,
    error::{ApiError, GroupKind},
    field::FieldError,
    http::query::{FieldValidation, WriteOptions},
    object::Object,
    patch::{JsonPatch, Unreadable, merge},
    registry::{Decoded, Resource},
    write::{Change, Updated, dedup_owners, uid_conflict},
};

/// Replaces an object or a part of it.
///
/// # Errors
/// A body that cannot be read, a stale version, admission, validation.
pub(crate) async fn update(api: &Api, call: &Call, change: Change) -> Result<Reply, ApiError> {
    let options = WriteOptions::read(&call.query, "UpdateOptions", false)?;
    let (mut object, warnings) = read_object(call, &options)?;
    settle_name(call, &mut object)?;
    let resource = &call.target.resource;
    let updated = api
        .update(resource, &call.target.key(), change, options.dry_run, Some(call), |old| {
            check_uid(resource, &object, old)?;
            Ok(object.clone())
        })
        .await?;
    Ok(reply(updated).warn(warnings))
}

/// A replacement that names a uid means that object and no other.
fn check_uid(resource: &Resource, new: &Object, old: Option<&Object>) -> Result<(), ApiError> {
    match old {
        Some(old) if !new.meta.uid.is_empty() && new.meta.uid != old.meta.uid => Err(uid_conflict(resource, &new.meta, &old.meta.uid)),
        _ => Ok(()),
    }
}

fn reply(updated: Updated) -> Reply {
    let content = Content::from(updated.written);
    let reply = if updated.created { Reply::created(content) } else { Reply::ok(content) };
    reply.warn(updated.warnings)
}

/// Makes body and path agree on name and namespace.
///
/// # Errors
/// 400 when they do not.
pub(super) fn settle_name(call: &Call, object: &mut Object) -> Result<(), ApiError> {
    let name = &call.target.name;
    if object.meta.name.is_empty() {
        let why = format!("the name of the object ({name} based on URL) was undeterminable: name must be provided");
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
}

const PATCH_TYPES: [&str; 3] = ["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];

impl Patch {
    /// The object after the patch. `decode` reads the JSON that the patch leads to.
    ///
    /// # Errors
    /// 422 for a patch that does not fit the object, or that makes something else of it.
    pub(super) fn patched(&self, old: &Object, decode: impl FnOnce(Value) -> Result<Decoded, String>) -> Result<Patched, ApiError> {
        let mut value = old.to_value();
        match self {
            Self::Json(patch) => patch
                .apply(&mut value)
                .map_err(|_| ApiError::Unprocessable("the server rejected our request due to an error in our request".into()))?,
            Self::Merge(patch) => merge(&mut value, patch.clone()),
        }
        let shown = value.to_string();
        let found = |field: &str| value.get(field).and_then(Value::as_str).unwrap_or_default();
        if (found("apiVersion"), found("kind")) != (&old.api_version, &old.kind) {
            let why = format!("{} {} is not {} {}", found("apiVersion"), found("kind"), old.api_version, old.kind);
            return Err(misfit(&shown, &why));
        }
        match decode(value) {
            Ok(decoded) => Ok(Patched { object: decoded.object, unknown: decoded.strict, shown }),
            Err(why) => Err(misfit(&shown, &why)),
        }
    }
}

/// Reads the patch of a request, and the fields it repeats.
///
/// # Errors
/// 415 for a kind of patch that is not known, 400 for one that cannot be read.
pub(super) fn read_patch(call: &Call) -> Result<(Patch, Vec<String>), ApiError> {
    let essence = call.content_type.as_deref().unwrap_or_default().split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    match essence.as_str() {
        "application/json-patch+json" => {
            let (value, duplicates) = read_json(&call.body)?;
            let patch = JsonPatch::read(value).map_err(|e| match e {
                Unreadable::Shape(why) => ApiError::BadRequest(format!("error decoding patch: {why}")),
                Unreadable::TooMany(n) => ApiError::TooLarge(format!("The allowed maximum operations in a JSON patch is 10000, got {n}")),
            })?;
            Ok((Patch::Json(patch), duplicates))
        }
        "application/merge-patch+json" => {
            let (value, duplicates) = read_json(&call.body)?;
            let not_a_map = |what: &str| {
                ApiError::BadRequest(format!(
                    "error decoding patch: json: cannot unmarshal {what} into Go value of type map[string]interface {{}}"
                ))
            };
            match value {
                Value::Object(_) => Ok((Patch::Merge(value), duplicates)),
                Value::Null => Err(ApiError::BadRequest("Invalid JSON Patch".into())),
                Value::Array(_) => Err(not_a_map("array")),
                Value::String(_) => Err(not_a_map("string")),
                Value::Number(_) => Err(not_a_map("number")),
                Value::Bool(_) => Err(not_a_map("bool")),
            }
        }
        _ if call.target.resource.items_name_kind() => Err(ApiError::UnsupportedMediaType(PATCH_TYPES.to_vec())),
        _ => Err(ApiError::UnsupportedPatchType),
    }
}

/// The JSON of a patch, and the fields it repeats.
fn read_json(bytes: &[u8]) -> Result<(Value, Vec<String>), ApiError> {
    let refuse = |why: String| ApiError::BadRequest(format!("error decoding patch: {why}"));
    let mut duplicates = Vec::new();
    let value = decode::parse_json(bytes).and_then(|node| node.into_value(&mut duplicates)).map_err(refuse)?;
    Ok((value, duplicates))
}

/// Changes an object or a part of it by a patch.
///
/// # Errors
/// A patch that cannot be read or applied, a stale version, admission, validation.
pub(crate) async fn patch(api: &Api, call: &Call, change: Change) -> Result<Reply, ApiError> {
    let options = WriteOptions::read(&call.query, "PatchOptions", false)?;
    let (patch, duplicates) = read_patch(call)?;
    let resource = &call.target.resource;
    let mut noted = Vec::new();
    let updated = api
        .update(resource, &call.target.key(), Change { may_create: false, ..change }, options.dry_run, Some(call), |old| {
            let old = old.ok_or_else(|| call.target.not_found())?;
            let mut patched = patch.patched(old, |value| resource.decode_value(value))?;
            settle_name(call, &mut patched.object)?;
            let twice = dedup_owners(&mut patched.object.meta);
            noted = patched.judge(&duplicates, &options)?;
            noted.extend(twice);
            Ok(patched.object)
        })
        .await?;
    Ok(reply(updated).warn(noted))
}

/// An object after a patch.
pub(super) struct Patched {
    pub(super) object: Object,
    /// The fields its kind does not know.
    unknown: Vec<String>,
    /// The JSON that the patch led to, as a refusal shows it.
    shown: String,
}

impl Patched {
    /// What unknown and repeated fields lead to: nothing, warnings, or a refusal.
    ///
    /// # Errors
    /// 422 under strict validation.
    pub(super) fn judge(&self, duplicates: &[String], options: &WriteOptions) -> Result<Vec<String>, ApiError> {
        let strict = [duplicates, &self.unknown].concat();
        match options.field_validation {
            FieldValidation::Strict if !strict.is_empty() => Err(misfit(&self.shown, &decode::strict_error(&strict))),
            FieldValidation::Ignore => Ok(Vec::new()),
            _ => Ok(strict),
        }
    }
}

/// 422 for a patch whose outcome is no object of the kind.
fn misfit(shown: &String, why: &str) -> ApiError {
    ApiError::Invalid { kind: GroupKind::new("", ""), name: String::new(), errors: vec![FieldError::invalid("patch", shown, why)] }
}
