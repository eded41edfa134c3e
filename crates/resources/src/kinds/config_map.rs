//! ConfigMaps: keys, size, and `immutable`.
//! Mirrors `ValidateConfigMap` and `ValidateConfigMapUpdate` in `pkg/apis/core/validation`.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::JsonExt,
};
use bellerophon_codec::object::Object;
use serde_json::Value;

use super::{Strategy, validation};

/// The most bytes a ConfigMap or Secret may hold.
pub(super) const SIZE_MAX: usize = 1 << 20;
pub(super) const FROZEN: &str = "field is immutable when `immutable` is set";

/// The strategy of ConfigMaps. Mirrors `pkg/registry/core/configmap`.
pub const CONFIG_MAP: Strategy = Strategy {
    validate,
    validate_update,
    ..Strategy::PLAIN
};

fn validate(map: &Object, out: &mut Vec<FieldError>) {
    let mut size = 0;
    let data = Path::field("data");
    for (key, value) in map.body.entries("data") {
        validation::named(&data.key(key), key, validation::config_key(key), out);
        if map.body.field("binaryData").get(key).is_some() {
            out.push(FieldError::invalid(
                data.key(key),
                key,
                "duplicate of key present in binaryData",
            ));
        }
        size += value.as_str().map_or(0, str::len);
    }
    let binary = Path::field("binaryData");
    for (key, value) in map.body.entries("binaryData") {
        validation::named(&binary.key(key), key, validation::config_key(key), out);
        size += decoded(value).len();
    }
    if size > SIZE_MAX {
        out.push(FieldError::too_long("", SIZE_MAX));
    }
}

/// The bytes behind base64; decoding has checked them before.
pub fn decoded(value: &Value) -> Vec<u8> {
    STANDARD
        .decode(value.as_str().unwrap_or_default())
        .unwrap_or_default()
}

fn validate_update(new: &Object, old: &Object, out: &mut Vec<FieldError>) {
    frozen(new, old, &["data", "binaryData"], out);
}

/// Validates that an object with `immutable: true` keeps the flag and these fields.
pub(super) fn frozen(new: &Object, old: &Object, fields: &[&str], out: &mut Vec<FieldError>) {
    if !old.body.is_true("immutable") {
        return;
    }
    if !new.body.is_true("immutable") {
        out.push(FieldError::forbidden("immutable", FROZEN));
    }
    for field in fields {
        let both_empty = new.body.is_empty_at(field) && old.body.is_empty_at(field);
        if !both_empty && new.body.field(field) != old.body.field(field) {
            out.push(FieldError::forbidden(field, FROZEN));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::test_support::{create, refused, update};

    #[test]
    fn keys_are_validated_and_unique() {
        refused(
            &CONFIG_MAP,
            json!({"data": {"Ünï": "x"}}),
            &["data[Ünï]: Invalid value: \"Ünï\": a valid config key must consist of…"],
        );
        refused(
            &CONFIG_MAP,
            json!({"data": {"k": "x"}, "binaryData": {"k": "AA=="}}),
            &["data[k]: Invalid value: \"k\": duplicate of key present in binaryData"],
        );
        refused(
            &CONFIG_MAP,
            json!({"data": {"..": "x"}}),
            &["data[..]: Invalid value: \"..\": must not be '..'"],
        );
        refused(
            &CONFIG_MAP,
            json!({"data": {"k": "x".repeat(SIZE_MAX + 1)}}),
            &[": Too long: may not be more than 1048576 bytes"],
        );
    }

    #[test]
    fn immutable_freezes_data_and_itself() {
        let (old, _) = create(&CONFIG_MAP, json!({"data": {"a": "b"}, "immutable": true}));
        let (_, errors) = update(&CONFIG_MAP, &old, json!({"data": {"a": "c"}}));
        assert_eq!(
            errors,
            [
                format!("immutable: Forbidden: {FROZEN}"),
                format!("data: Forbidden: {FROZEN}")
            ]
        );
    }
}
