//! From the bytes of a request to an object of a resource.
//! Guarantees: what comes out has the resource's kind and version, only known fields, and the
//! defaults of its kind.

use bellerophon_apimachinery::{
    error::{ApiError, GroupKind},
    field::FieldError,
};
use bellerophon_codec::{
    body::{self, Expected},
    decode::{self, Encoding, Media},
    object::Object,
    types,
};
use serde_json::{Map, Value};

use super::{Custom, Resource, Source};
use crate::http::negotiate::OBJECT_TYPES;

/// An object as a client sent it, completed by the defaults of its kind.
#[derive(Debug)]
pub(crate) struct Decoded {
    pub(crate) object: Object,
    /// Unknown and repeated fields, with the messages of strict validation.
    pub(crate) strict: Vec<String>,
}

impl Resource {
    /// Adds what objects of this resource always show, after something was taken away.
    pub(crate) fn complete(&self, object: &mut Object) {
        if let Source::BuiltIn(row) = &self.source {
            let (group, version) = row.storage_version();
            let ty = types::find(group, version, row.kind).expect("every row has a type");
            types::complete(ty, &mut object.body);
        }
    }

    /// Reads an object of this resource.
    ///
    /// # Errors
    /// 400 for what is no such object, 415 for protobuf of a custom kind, which has no numbers for
    /// its fields.
    pub(crate) fn decode(&self, bytes: &[u8], encoding: Encoding) -> Result<Decoded, ApiError> {
        match &self.source {
            Source::BuiltIn(row) => {
                let expected =
                    Expected::of(row.group, row.version, row.kind).expect("every row has a type");
                let typed = body::read_typed(bytes, encoding, &expected)
                    .map_err(|e| ApiError::BadRequest(e.message(row.kind, bytes)))?;
                Ok(self.defaulted(typed.object, typed.strict))
            }
            Source::Custom(custom) => match encoding {
                Encoding::Text(media) => self.decode_custom(custom, bytes, media),
                Encoding::Protobuf => {
                    Err(ApiError::UnsupportedMediaType(OBJECT_TYPES[..2].to_vec()))
                }
            },
        }
    }

    fn decode_custom(
        &self,
        custom: &Custom,
        bytes: &[u8],
        media: Media,
    ) -> Result<Decoded, ApiError> {
        let kind = &self.kind;
        let version = &self.version;
        let unrecognized = |why| {
            ApiError::BadRequest(format!(
                "the object provided is unrecognized (must be of type {kind}): {why} ({})",
                decode::summary(bytes)
            ))
        };
        let unhandled = |why| {
            ApiError::BadRequest(format!(
                "{kind} in version {version:?} cannot be handled as a {kind}: {why}"
            ))
        };
        let read = decode::read(bytes, media).map_err(unrecognized)?;
        if read.api_version != self.api_version() {
            let expected = self.api_version();
            let found = read.api_version;
            return Err(ApiError::BadRequest(format!(
                "the API version in the data ({found}) does not match the expected API version ({expected})"
            )));
        }
        if read.kind != *kind {
            let name = read
                .object
                .get("metadata")
                .and_then(|m| m.get("name"))
                .and_then(Value::as_str)
                .unwrap_or_default();
            let errs = FieldError::invalid("kind", &read.kind, &format!("must be {kind}"));
            return Err(ApiError::Invalid {
                kind: GroupKind::new(self.group.as_str(), read.kind),
                name: name.to_owned(),
                errors: vec![errs],
            });
        }
        let (object, mut strict) = self
            .complete_custom(custom, read.object)
            .map_err(unhandled)?;
        strict.splice(0..0, read.duplicates);
        Ok(Decoded { object, strict })
    }

    /// Metadata read by its type, the rest by the schema.
    fn complete_custom(
        &self,
        custom: &Custom,
        mut map: Map<String, Value>,
    ) -> Result<(Object, Vec<String>), String> {
        let metadata = map.remove("metadata").unwrap_or_default();
        let decoded = types::decode(types::object_meta(), metadata)?;
        let in_metadata = |strict: &String| strict.replacen("field \"", "field \"metadata.", 1);
        let of_metadata: Vec<String> = decoded.strict.iter().map(in_metadata).collect();
        map.insert("metadata".into(), Value::Object(decoded.object));
        let mut object = Object::from_map(map).map_err(|e| e.to_string())?;
        let unknown = custom.complete(&mut object)?;
        let mut strict: Vec<String> = unknown
            .iter()
            .map(|path| format!("unknown field {path:?}"))
            .chain(of_metadata)
            .collect();
        strict.sort();
        Ok((object, strict))
    }

    /// Decodes an object of this resource from the result of a patch.
    ///
    /// # Errors
    /// The message for a field of another type.
    pub(crate) fn decode_value(&self, value: Value) -> Result<Decoded, String> {
        match &self.source {
            Source::BuiltIn(row) => {
                let ty =
                    types::find(row.group, row.version, row.kind).expect("every row has a type");
                let decoded = types::decode(ty, value)?;
                let object = Object::from_map(decoded.object).map_err(|e| e.to_string())?;
                Ok(self.defaulted(object, decoded.strict))
            }
            Source::Custom(custom) => {
                let map = match value {
                    Value::Object(map) => map,
                    _ => Map::new(),
                };
                let (object, strict) = self.complete_custom(custom, map)?;
                Ok(Decoded { object, strict })
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
    use bellerophon_codec::types;

    use crate::registry::ROWS;

    #[test]
    fn every_row_has_a_type() {
        for row in ROWS {
            assert!(
                types::find(row.group, row.version, row.kind).is_some(),
                "{} {}",
                row.api_version(),
                row.kind
            );
        }
    }
}
