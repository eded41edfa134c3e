//! From the bytes of a request to an object of a resource.
//! Holds: what comes out has the resource's kind and version, only known fields, and the defaults of its kind.

use serde_json::Value;

use super::{Resource, Source};
use crate::{
    decode::Media,
    error::ApiError,
    http::negotiate::Format,
    object::Object,
    types::{self, Expected},
};

/// An object as a client sent it, completed by the defaults of its kind.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub(crate) object: Object,
    /// Unknown and repeated fields, in the words of strict validation.
    pub(crate) strict: Vec<String>,
}

impl From<Format> for Media {
    fn from(format: Format) -> Self {
        match format {
            Format::Json => Self::Json,
            Format::Yaml => Self::Yaml,
        }
    }
}

impl Resource {
    /// Reads an object of this resource.
    ///
    /// # Errors
    /// 400 for what is no such object.
    pub(crate) fn decode(&self, bytes: &[u8], format: Format) -> Result<Decoded, ApiError> {
        match &self.source {
            Source::BuiltIn(row) => {
                let expected = Expected::of(row.group, row.version, row.kind).expect("every row has a type");
                let typed =
                    types::read_typed(bytes, format.into(), &expected).map_err(|e| ApiError::BadRequest(e.message(row.kind, bytes)))?;
                Ok(self.defaulted(typed.object, typed.strict))
            }
        }
    }

    /// Reads an object of this resource from the outcome of a patch.
    ///
    /// # Errors
    /// The words for a field of the wrong type.
    pub(crate) fn decode_value(&self, value: Value) -> Result<Decoded, String> {
        match &self.source {
            Source::BuiltIn(row) => {
                let ty = types::find(row.group, row.version, row.kind).expect("every row has a type");
                let decoded = types::decode(ty, value)?;
                let object = Object::from_map(decoded.object).map_err(|e| e.to_string())?;
                Ok(self.defaulted(object, decoded.strict))
            }
        }
    }

    fn defaulted(&self, mut object: Object, strict: Vec<String>) -> Decoded {
        (self.strategy.default)(&mut object);
        Decoded { object, strict }
    }
}

#[cfg(test)]
mod tests {
    use crate::{kinds::ROWS, types};

    #[test]
    fn every_row_has_a_type() {
        for row in ROWS {
            assert!(types::find(row.group, row.version, row.kind).is_some(), "{} {}", row.api_version(), row.kind);
        }
    }
}
