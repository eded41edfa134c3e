//! Patches of webhooks.
//! Guarantees: a patched object has only fields that its kind knows, and their defaults.

use serde_json::Value;

use crate::{admission::dynamic::request::Request, admission_config::Webhook};
use bellerophon_apimachinery::error::ApiError;
use bellerophon_codec::decode;
use bellerophon_codec::object::Object;
use bellerophon_codec::patch::JsonPatch;

/// A JSON Patch, with its text for the audit log.
#[derive(Debug)]
pub(super) struct Patch {
    patch: JsonPatch,
    pub(super) source: Value,
}

impl Patch {
    /// Reads a patch.
    ///
    /// # Errors
    /// Why it is none.
    pub(super) fn read(bytes: &[u8]) -> Result<Self, String> {
        let mut repeated = Vec::new();
        let source = decode::parse_json(bytes).and_then(|node| node.into_value(&mut repeated))?;
        let patch = JsonPatch::read(source.clone()).map_err(|unreadable| match unreadable {
            bellerophon_codec::patch::Unreadable::Shape(why) => {
                why.replace("[]handlers.jsonPatchOp", "jsonpatch.Patch")
            }
            bellerophon_codec::patch::Unreadable::TooMany(count) => {
                format!("The allowed maximum operations in a JSON patch is 10000, got {count}")
            }
        })?;
        Ok(Self { patch, source })
    }

    pub(super) fn is_empty(&self) -> bool {
        self.source.as_array().is_none_or(Vec::is_empty)
    }
}

/// The object of the request with a patch applied, in the version of the request.
///
/// # Errors
/// 500 for a patch that does not apply, or whose outcome is no such object.
pub(super) async fn apply(
    request: &Request<'_>,
    webhook: &Webhook,
    patch: &Patch,
    version: usize,
    object: Option<&Object>,
) -> Result<Object, ApiError> {
    let Some(object) = object else {
        return Err(ApiError::Internal(format!(
            "admission webhook {:?} attempted to modify the object, which is not supported for this operation",
            webhook.name
        )));
    };
    let versioned = request.versioned(object, version);
    let mut value = versioned.to_value();
    patch.patch.apply(&mut value).map_err(ApiError::Internal)?;
    let mutated = decode(request, value, &versioned, version)?;
    request.unversioned(mutated, version).await
}

/// Reads the outcome of a mutation, in the version that was mutated.
///
/// # Errors
/// 500 for what is no such object.
pub(in crate::admission::dynamic) fn decode(
    request: &Request<'_>,
    value: Value,
    before: &Object,
    version: usize,
) -> Result<Object, ApiError> {
    let decoded = match request.resource_of(before, version) {
        Some(resource) => resource.decode_value(value).map(|decoded| decoded.object),
        None => match value {
            Value::Object(map) => Object::from_map(map).map_err(|error| error.to_string()),
            _ => Err("the patched value is no object".into()),
        },
    };
    let mut object = decoded.map_err(ApiError::Internal)?;
    // The type that a patch is decoded into decides what the object is.
    object.api_version.clone_from(&before.api_version);
    object.kind.clone_from(&before.kind);
    Ok(object)
}
