//! Bodies of subresources whose kind is not that of the resource.

use bellerophon_apimachinery::error::ApiError;
use bellerophon_codec::{
    body::{self, Expected},
    object::Object,
};

use crate::{
    http::query::WriteOptions,
    verbs::{Call, create::validate_strict},
};

/// Decodes the body of a write by the kind of the subresource.
///
/// # Errors
/// 400 for what is no such object, and under strict validation for unknown and repeated fields.
pub(in crate::verbs) fn read_as(
    call: &Call,
    expected: &Expected,
    options: &WriteOptions,
) -> Result<Object, ApiError> {
    let encoding = call.body_encoding()?;
    let read = body::read_typed(&call.body, encoding, expected)
        .map_err(|e| ApiError::BadRequest(e.message(expected.kind, &call.body)))?;
    validate_strict(call, read.strict, options)?;
    Ok(read.object)
}
