//! PUT and PATCH of an object or of one of its parts.

use serde_json::Value;

use super::{
    Call, Content, Reply,
    create::{judge_fields, read_object, settle_namespace},
};
use crate::{
    api::Api,
    decode,
    error::ApiError,
    http::query::WriteOptions,
    object::Object,
    patch::{JsonPatch, Unreadable, merge},
    write::{Change, Updated, dedup_owners},
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
    let updated = api.update(resource, &call.target.key(), change, options.dry_run, Some(call), |_| Ok(object.clone())).await?;
    Ok(reply(updated).warn(warnings))
}

fn reply(updated: Updated) -> Reply {
    let content = Content::from(updated.written);
    let reply = if updated.created { Reply::created(content) } else { Reply::ok(content) };
    reply.warn(updated.warnings)
}

/// Makes body and path agree on name and namespace.
fn settle_name(call: &Call, object: &mut Object) -> Result<(), ApiError> {
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
enum Patch {
    Json(JsonPatch),
    Merge(Value),
}

const PATCH_TYPES: [&str; 3] = ["application/json-patch+json", "application/merge-patch+json", "application/apply-patch+yaml"];

/// Reads the patch of a request.
fn read_patch(call: &Call) -> Result<(Patch, Vec<String>), ApiError> {
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
            Ok((Patch::Merge(value), duplicates))
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
    let (patch, mut strict) = read_patch(call)?;
    let resource = &call.target.resource;
    let mut noted = Vec::new();
    let updated = api
        .update(resource, &call.target.key(), Change { may_create: false, ..change }, options.dry_run, Some(call), |old| {
            let old = old.ok_or_else(|| call.target.not_found())?;
            let (mut new, unknown) = patched(call, &patch, old)?;
            strict.retain(|s| s.starts_with("duplicate"));
            strict.extend(unknown);
            settle_namespace(call, &mut new)?;
            let twice = dedup_owners(&mut new.meta);
            noted = judge_fields(call, strict.clone(), &options)?;
            noted.extend(twice);
            Ok(new)
        })
        .await?;
    Ok(reply(updated).warn(noted))
}

/// The object after the patch, decoded again, and the fields its kind does not know.
fn patched(call: &Call, patch: &Patch, old: &Object) -> Result<(Object, Vec<String>), ApiError> {
    let mut value = old.to_value();
    match patch {
        Patch::Json(patch) => patch
            .apply(&mut value)
            .map_err(|_| ApiError::Unprocessable("the server rejected our request due to an error in our request".into()))?,
        Patch::Merge(patch) => merge(&mut value, patch.clone()),
    }
    let decoded = call.target.resource.decode_value(value).map_err(ApiError::Unprocessable)?;
    Ok((decoded.object, decoded.strict))
}
