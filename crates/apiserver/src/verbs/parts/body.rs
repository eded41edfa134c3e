//! Bodies of subresources whose kind is not that of the resource.

use crate::{
    error::ApiError,
    http::query::WriteOptions,
    object::Object,
    types::{self, Expected},
    verbs::{Call, create::judge_fields},
};

/// Decodes the body of a write by the kind that the part has.
///
/// # Errors
/// 400 for what is no such object, and under strict validation for unknown and repeated fields.
pub(in crate::verbs) fn read_as(
    call: &Call,
    expected: &Expected,
    options: &WriteOptions,
) -> Result<Object, ApiError> {
    let encoding = call.body_encoding()?;
    let read = types::read_typed(&call.body, encoding, expected)
        .map_err(|e| ApiError::BadRequest(e.message(expected.kind, &call.body)))?;
    judge_fields(call, read.strict, options)?;
    Ok(read.object)
}
