//! POST of an object.

use bellerophon_apimachinery::error::ApiError;
use bellerophon_codec::{decode, object::Object};

use super::{Call, Content, Reply};
use crate::{
    api::Api,
    http::query::{FieldValidation, WriteOptions},
    write::{self, dedup_owners},
};

/// Stores a new object.
///
/// # Errors
/// A body that cannot be read, admission, validation, a name that is taken.
pub(crate) async fn create(api: &Api, call: &Call) -> Result<Reply, ApiError> {
    let options = WriteOptions::read(&call.query, "CreateOptions", false)?;
    let resource = &call.target.resource;
    let mut object = read_object(call, &options)?;
    if !call.target.name.is_empty() && object.meta.name.is_empty() {
        object.meta.name.clone_from(&call.target.name);
    }
    settle_namespace(call, &mut object)?;
    // Fields that a new object cannot have are not in its managed fields.
    object.meta.deletion_timestamp = None;
    object.meta.deletion_grace_period_seconds = None;
    call.tracker(api, &options).update(None, &mut object);
    let created = write::create(
        api,
        resource,
        object,
        options.dry_run,
        Some(&call.attributes()),
    )
    .await?;
    call.warnings.add(created.warnings);
    Ok(Reply::created(Content::from(created.written)))
}

/// Decodes the body of a write, with warnings.
///
/// # Errors
/// 400 for a body that is no such object, and under strict validation for unknown and repeated
/// fields.
pub(super) fn read_object(call: &Call, options: &WriteOptions) -> Result<Object, ApiError> {
    let mut decoded = call
        .target
        .resource
        .decode(&call.body, call.body_encoding()?)?;
    validate_strict(call, decoded.strict, options)?;
    call.warnings.add(dedup_owners(&mut decoded.object.meta));
    Ok(decoded.object)
}

/// Handles unknown and repeated fields: ignored, warnings, or an error.
///
/// # Errors
/// 400 under strict validation.
pub(super) fn validate_strict(
    call: &Call,
    strict: Vec<String>,
    options: &WriteOptions,
) -> Result<(), ApiError> {
    match options.field_validation {
        FieldValidation::Ignore => Ok(()),
        FieldValidation::Warn => {
            call.warnings.add(decode::warnings(&strict));
            Ok(())
        }
        FieldValidation::Strict if strict.is_empty() => Ok(()),
        FieldValidation::Strict => {
            let (kind, version) = call.body_kind();
            let list = strict.join(", ");
            Err(ApiError::BadRequest(format!(
                "{kind} in version {version:?} cannot be handled as a {kind}: strict decoding error: {list}"
            )))
        }
    }
}

/// Makes body and path agree on the namespace.
///
/// # Errors
/// 400 when they name different ones.
pub(super) fn settle_namespace(call: &Call, object: &mut Object) -> Result<(), ApiError> {
    let wanted = &call.target.namespace;
    if !call.target.resource.namespaced {
        object.meta.namespace.clear();
    } else if object.meta.namespace.is_empty() {
        object.meta.namespace.clone_from(wanted);
    } else if object.meta.namespace != *wanted {
        return Err(ApiError::BadRequest(
            "the namespace of the provided object does not match the namespace sent on the request"
                .into(),
        ));
    }
    Ok(())
}
