//! Secrets: the keys that each type requires, and `stringData` merged into `data`.
//! Guarantees: no message shows the value of a secret.
//! Mirrors `ValidateSecret` and `ValidateSecretUpdate` in `pkg/apis/core/validation`.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bellerophon_apimachinery::{
    field::{FieldError, Path},
    json_ext::{JsonDefaults, JsonExt},
};
use bellerophon_codec::object::Object;
use serde_json::{Map, Value};

use super::{
    Strategy,
    config_map::{SIZE_MAX, decoded, frozen},
    validation,
};

const ACCOUNT_NAME: &str = "kubernetes.io/service-account.name";

/// The strategy of Secrets. Mirrors `pkg/registry/core/secret`.
pub const SECRET: Strategy = Strategy {
    default,
    validate,
    validate_update,
    warnings,
    ..Strategy::PLAIN
};

fn default(secret: &mut Object) {
    fold_string_data(secret);
    secret.body.default_text("type", "Opaque");
}

/// Moves `stringData` into `data`, over what is there; it is never stored.
fn fold_string_data(secret: &mut Object) {
    let Some(Value::Object(strings)) = secret.body.remove("stringData") else {
        return;
    };
    if strings.is_empty() {
        return;
    }
    secret.body.default_to("data", Map::new());
    let data = secret.section("data");
    for (key, value) in strings {
        data.insert(
            key,
            STANDARD.encode(value.as_str().unwrap_or_default()).into(),
        );
    }
}

fn validate(secret: &Object, out: &mut Vec<FieldError>) {
    let data = Path::field("data");
    let mut size = 0;
    for (key, value) in secret.body.entries("data") {
        validation::named(&data.key(key), key, validation::config_key(key), out);
        size += decoded(value).len();
    }
    if size > SIZE_MAX {
        out.push(FieldError::too_long("data", SIZE_MAX));
    }
    let has = |key: &str| secret.body.field("data").get(key).is_some();
    let mut need = |key: &str| out.push(FieldError::required(data.key(key), ""));
    match secret.body.text("type") {
        "kubernetes.io/service-account-token"
            if secret
                .meta
                .annotations
                .get(ACCOUNT_NAME)
                .is_none_or(String::is_empty) =>
        {
            out.push(FieldError::required(
                Path::field("metadata.annotations").key(ACCOUNT_NAME),
                "",
            ));
        }
        "kubernetes.io/dockercfg" => json_under(".dockercfg", secret, out),
        "kubernetes.io/dockerconfigjson" => json_under(".dockerconfigjson", secret, out),
        "kubernetes.io/basic-auth" if !has("username") && !has("password") => {
            ["username", "password"].map(need).into_iter().collect()
        }
        "kubernetes.io/ssh-auth" if secret.body.field("data").is_empty_at("ssh-privatekey") => {
            need("ssh-privatekey")
        }
        "kubernetes.io/tls" => ["tls.crt", "tls.key"]
            .into_iter()
            .filter(|key| !has(key))
            .for_each(need),
        _ => {}
    }
}

/// The key must be there and hold a JSON object.
fn json_under(key: &str, secret: &Object, out: &mut Vec<FieldError>) {
    let data = Path::field("data");
    let Some(value) = secret.body.field("data").get(key) else {
        out.push(FieldError::required(data.key(key), ""));
        return;
    };
    if let Err(why) = go_json::validate_object(&decoded(value)) {
        out.push(FieldError::invalid(
            data.key(key),
            "<secret contents redacted>",
            &why,
        ));
    }
}

fn validate_update(new: &Object, old: &Object, out: &mut Vec<FieldError>) {
    validation::immutable(
        &Path::field("type"),
        new.body.field("type"),
        old.body.field("type"),
        out,
    );
    frozen(new, old, &["data"], out);
}

/// A TLS secret whose certificate and key cannot be used is stored, with a warning.
fn warnings(secret: &Object, _: Option<&Object>) -> Vec<String> {
    if secret.body.text("type") != "kubernetes.io/tls" {
        return Vec::new();
    }
    let data = secret.body.field("data");
    tls_pair(
        &decoded(data.field("tls.crt")),
        &decoded(data.field("tls.key")),
    )
    .err()
    .into_iter()
    .collect()
}

fn tls_pair(certificate: &[u8], key: &[u8]) -> Result<(), String> {
    let blocks = |bytes: &[u8]| {
        x509_parser::pem::Pem::iter_from_buffer(bytes)
            .filter_map(Result::ok)
            .collect::<Vec<_>>()
    };
    let in_certificate = blocks(certificate);
    if in_certificate.is_empty() {
        return Err("tls: failed to find any PEM data in certificate input".into());
    }
    let Some(leaf) = in_certificate.iter().find(|b| b.label == "CERTIFICATE") else {
        let found: Vec<&str> = in_certificate.iter().map(|b| b.label.as_str()).collect();
        return Err(
            if found.iter().all(|l| l.ends_with("PRIVATE KEY")) && found.len() == 1 {
                "tls: failed to find certificate PEM data in certificate input, but did find a private key; PEM inputs may have been switched"
                .into()
            } else {
                format!(
                    "tls: failed to find \"CERTIFICATE\" PEM block in certificate input after skipping PEM blocks of the following types: [{}]",
                    found.join(" ")
                )
            },
        );
    };
    let in_key = blocks(key);
    if in_key.is_empty() {
        return Err("tls: failed to find any PEM data in key input".into());
    }
    if !in_key
        .iter()
        .any(|b| b.label == "PRIVATE KEY" || b.label.ends_with(" PRIVATE KEY"))
    {
        let found: Vec<&str> = in_key.iter().map(|b| b.label.as_str()).collect();
        return Err(if found == ["CERTIFICATE"] {
            "tls: found a certificate rather than a key in the PEM for the private key".into()
        } else {
            format!(
                "tls: failed to find PEM block with type ending in \"PRIVATE KEY\" in key input after skipping PEM blocks of the following types: [{}]",
                found.join(" ")
            )
        });
    }
    leaf.parse_x509()
        .map(|_| ())
        .map_err(|_| "x509: malformed certificate".into())
}

/// The messages of Go's JSON decoder, for the one kind with JSON inside a value.
mod go_json {
    use serde_json::Value;

    /// Whether the bytes are a JSON object.
    pub(super) fn validate_object(bytes: &[u8]) -> Result<(), String> {
        match serde_json::from_slice::<Value>(bytes) {
            Ok(Value::Object(_) | Value::Null) => Ok(()),
            Ok(other) => Err(format!(
                "json: cannot unmarshal {} into Go value of type map[string]interface {{}}",
                kind(&other)
            )),
            Err(error) => Err(words(bytes, &error)),
        }
    }

    fn kind(value: &Value) -> &'static str {
        match value {
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            _ => "array",
        }
    }

    fn words(bytes: &[u8], error: &serde_json::Error) -> String {
        if error.is_eof() {
            return "unexpected end of JSON input".into();
        }
        let lines: Vec<&[u8]> = bytes.split(|b| *b == b'\n').collect();
        let found = lines
            .get(error.line() - 1)
            .and_then(|line| line.get(error.column().saturating_sub(1)))
            .copied()
            .unwrap_or(b' ');
        let place = match error.to_string() {
            text if text.starts_with("key must be") => "looking for beginning of object key string",
            text if text.starts_with("expected `:`") => "after object key",
            text if text.starts_with("expected `,` or `}`") => "after object key:value pair",
            text if text.starts_with("expected `,` or `]`") => "after array element",
            text if text.starts_with("trailing characters") => "after top-level value",
            _ => "looking for beginning of value",
        };
        format!("invalid character {} {place}", quoted(found))
    }

    fn quoted(byte: u8) -> String {
        match byte {
            b'\'' => "'\\''".into(),
            b'"' => "'\"'".into(),
            byte => format!("'{}'", char::from(byte)),
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::kinds::test_support::{create, refused, update};

    #[test]
    fn string_data_becomes_data_and_wins() {
        let (secret, _) = create(
            &SECRET,
            json!({"stringData": {"user": "admin", "both": "new"}, "data": {"both": "b2xk", "empty": ""}}),
        );
        assert_eq!(
            secret.body["data"],
            json!({"both": "bmV3", "empty": "", "user": "YWRtaW4="})
        );
        assert_eq!(secret.body["type"].as_str(), Some("Opaque"));
        assert_eq!(secret.body.get("stringData"), None);
    }

    #[test]
    fn types_require_their_keys() {
        for (body, expected) in [
            (
                json!({"type": "kubernetes.io/tls", "data": {"tls.crt": ""}}),
                &["data[tls.key]: Required value"][..],
            ),
            (
                json!({"type": "kubernetes.io/dockerconfigjson"}),
                &["data[.dockerconfigjson]: Required value"],
            ),
            (
                json!({"type": "kubernetes.io/dockercfg", "data": {"other": "eA=="}}),
                &["data[.dockercfg]: Required value"],
            ),
            (
                json!({"type": "kubernetes.io/dockerconfigjson", "stringData": {".dockerconfigjson": "{not json"}}),
                &[
                    "data[.dockerconfigjson]: Invalid value: \"<secret contents redacted>\": invalid character 'n' looking for beginning of object key string",
                ],
            ),
            (
                json!({"type": "kubernetes.io/basic-auth", "data": {}}),
                &[
                    "data[username]: Required value",
                    "data[password]: Required value",
                ],
            ),
            (
                json!({"type": "kubernetes.io/ssh-auth", "data": {"key": "eA=="}}),
                &["data[ssh-privatekey]: Required value"],
            ),
            (
                json!({"type": "kubernetes.io/service-account-token"}),
                &["metadata.annotations[kubernetes.io/service-account.name]: Required value"],
            ),
            (json!({"type": "bootstrap.kubernetes.io/token"}), &[]),
        ] {
            refused(&SECRET, body, expected);
        }
    }

    #[test]
    fn type_and_frozen_data_cannot_change() {
        let (old, _) = create(
            &SECRET,
            json!({"stringData": {"a": "b"}, "immutable": true}),
        );
        let (_, errors) = update(
            &SECRET,
            &old,
            json!({"type": "example.com/x", "stringData": {"a": "b"}, "immutable": true}),
        );
        assert_eq!(
            errors,
            ["type: Invalid value: \"example.com/x\": field is immutable"]
        );
        let (_, errors) = update(
            &SECRET,
            &old,
            json!({"stringData": {"a": "c"}, "immutable": true}),
        );
        assert_eq!(
            errors,
            ["data: Forbidden: field is immutable when `immutable` is set"]
        );
    }

    #[test]
    fn unusable_tls_pair_is_warned_of() {
        let (secret, _) = create(
            &SECRET,
            json!({"type": "kubernetes.io/tls", "data": {"tls.crt": "", "tls.key": ""}}),
        );
        assert_eq!(
            warnings(&secret, None),
            ["tls: failed to find any PEM data in certificate input"]
        );
    }
}
