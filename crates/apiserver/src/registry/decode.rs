//! From the bytes of a request to an object of a resource.

use serde_json::Value;

use super::Resource;
use crate::{error::ApiError, http::negotiate::Format, object::Object};

/// An object as a client sent it, completed by the defaults of its kind.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub(crate) object: Object,
    /// Unknown and repeated fields, in the words of strict validation.
    pub(crate) strict: Vec<String>,
}

impl Resource {
    /// Reads an object of this resource.
    ///
    /// # Errors
    /// 400 for what is no such object.
    pub(crate) fn decode(&self, bytes: &[u8], _format: Format) -> Result<Decoded, ApiError> {
        let value: Value = serde_json::from_slice(bytes).map_err(|e| ApiError::BadRequest(e.to_string()))?;
        self.decode_value(value)
    }

    /// The same for JSON that is already read.
    ///
    /// # Errors
    /// 400 for what is no such object.
    pub(crate) fn decode_value(&self, value: Value) -> Result<Decoded, ApiError> {
        let Value::Object(map) = value else { return Err(ApiError::BadRequest("no object".into())) };
        let mut object = Object::from_map(map).map_err(|e| ApiError::BadRequest(e.to_string()))?;
        object.kind.clone_from(&self.kind);
        object.api_version = self.api_version();
        (self.strategy.default)(&mut object);
        Ok(Decoded { object, strict: Vec::new() })
    }
}
