//! `AdmissionReview`, in both directions.
//! Mirrors `CreateAdmissionObjects` and `VerifyAdmissionResponse`.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use bytes::Bytes;
use http::Response as HttpResponse;
use serde_json::{Map, Value, json};

use crate::{
    admission::dynamic::request::Request, admission_config::ReviewVersion, webhook_response,
};
use bellerophon_apimachinery::json_ext::JsonExt as _;
use bellerophon_codec::object::Object;

const GROUP: &str = "admission.k8s.io";

fn api_version(version: ReviewVersion) -> &'static str {
    match version {
        ReviewVersion::V1 => "admission.k8s.io/v1",
        ReviewVersion::V1Beta1 => "admission.k8s.io/v1beta1",
    }
}

/// The review that a webhook is sent.
pub(super) fn create(
    request: &Request<'_>,
    version: ReviewVersion,
    at: usize,
    uid: &str,
    object: Option<&Object>,
    old: Option<&Object>,
) -> Bytes {
    let mut review = request.to_value(at, object.or(old));
    review.insert("uid".into(), uid.into());
    review.insert("object".into(), request.json(object, at));
    review.insert("oldObject".into(), request.json(old, at));
    let review = json!({"kind": "AdmissionReview", "apiVersion": api_version(version),
        "request": review});
    let bytes = serde_json::to_vec(&review).expect("a review has string keys");
    Bytes::from(bytes)
}

/// The response of a webhook.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Response {
    pub(super) allowed: bool,
    pub(super) patch: Vec<u8>,
    pub(super) patch_type: String,
    /// A `Status`, for a denial.
    pub(super) result: Map<String, Value>,
    pub(super) warnings: Vec<String>,
    pub(super) audit_annotations: Vec<(String, String)>,
}

/// The review of a response.
///
/// # Errors
/// A body that is no AdmissionReview, with the message of kube-apiserver's decoder.
pub(super) fn decode(
    response: &HttpResponse<Bytes>,
    version: ReviewVersion,
) -> Result<Value, String> {
    let review = webhook_response::decode(response)?;
    let found = review.text("apiVersion");
    let kind = review.text("kind");
    let known = ["admission.k8s.io/v1", "admission.k8s.io/v1beta1"];
    let is_known_version = found.is_empty() || known.contains(&found);
    if !(is_known_version && (kind.is_empty() || kind == "AdmissionReview")) {
        let version = if found.is_empty() {
            api_version(version)
        } else {
            found
        };
        return Err(format!(
            "no kind {kind:?} is registered for version {version:?} in scheme \"pkg/runtime/scheme.go:111\""
        ));
    }
    if let (ReviewVersion::V1, "admission.k8s.io/v1beta1") = (version, found) {
        return Err(
            "converting (v1beta1.AdmissionReview) to (v1.AdmissionReview): unknown conversion"
                .into(),
        );
    }
    if let (ReviewVersion::V1Beta1, "admission.k8s.io/v1") = (version, found) {
        return Err(
            "converting (v1.AdmissionReview) to (v1beta1.AdmissionReview): unknown conversion"
                .into(),
        );
    }
    check_types(&review)?;
    Ok(review)
}

/// Rejects fields of another type.
fn check_types(review: &Value) -> Result<(), String> {
    let type_error = |found: &Value, field: &str, ty: &str| {
        let found = match found {
            Value::Array(_) => "array",
            Value::Object(_) => "object",
            Value::String(_) => "string",
            Value::Number(_) => "number",
            Value::Bool(_) => "bool",
            Value::Null => "null",
        };
        let owner = field
            .rsplit_once('.')
            .map_or("AdmissionReview", |_| "AdmissionReview");
        Err(format!(
            "json: cannot unmarshal {found} into Go struct field {owner}.{field} of type {ty}"
        ))
    };
    let Some(response) = review.get_set("response") else {
        return Ok(());
    };
    if !response.is_object() {
        return type_error(response, "response", "v1.AdmissionResponse");
    }
    type IsOfType = fn(&Value) -> bool;
    let fields: [(&str, IsOfType, &str); 6] = [
        ("uid", Value::is_string, "types.UID"),
        ("allowed", Value::is_boolean, "bool"),
        ("status", Value::is_object, "v1.Status"),
        ("patchType", Value::is_string, "v1.PatchType"),
        ("auditAnnotations", Value::is_object, "map[string]string"),
        ("warnings", Value::is_array, "[]string"),
    ];
    for (field, is_right, ty) in fields {
        if let Some(value) = response.get_set(field)
            && !is_right(value)
        {
            return type_error(value, &format!("response.{field}"), ty);
        }
    }
    Ok(())
}

/// Validates the response of a review and returns its decision.
///
/// # Errors
/// A review without a response, or whose uid, kind, version or patch is not valid.
pub(super) fn verify(
    review: Value,
    version: ReviewVersion,
    uid: &str,
    is_mutating: bool,
) -> Result<Response, String> {
    let Some(response) = review.get_set("response") else {
        return Err("webhook response was absent".into());
    };
    let patch = patch_of(response.field("patch"))?;
    let mut patch_type = response.text("patchType").to_owned();
    let has_patch_type = response.has("patchType");
    if version == ReviewVersion::V1 {
        let found = response.text("uid");
        if found != uid {
            return Err(format!("expected response.uid={uid:?}, got {found:?}"));
        }
        let api_version = review.text("apiVersion");
        let kind = review.text("kind");
        if api_version != "admission.k8s.io/v1" || kind != "AdmissionReview" {
            let (group, version) = api_version.split_once('/').unwrap_or(("", api_version));
            return Err(format!(
                "expected webhook response of {GROUP}/v1, Kind=AdmissionReview, got {group}/{version}, Kind={kind}"
            ));
        }
        let refused = match (is_mutating, patch.is_empty(), has_patch_type) {
            (true, false, false) => "webhook returned response.patch but not response.patchType",
            (true, true, true) => "webhook returned response.patchType but not response.patch",
            (true, _, true) if patch_type.is_empty() => {
                "webhook returned invalid response.patchType of \"\""
            }
            (false, false, _) => "validating webhook may not return response.patch",
            (false, _, true) => "validating webhook may not return response.patchType",
            _ => "",
        };
        if !refused.is_empty() {
            return Err(refused.into());
        }
    } else if !patch.is_empty() {
        patch_type = "JSONPatch".into();
    }
    let annotations = response.entries("auditAnnotations").map(|(key, value)| {
        let value = value.as_str().unwrap_or_default();
        (key.clone(), value.to_owned())
    });
    let warnings = response.texts("warnings").map(str::to_owned);
    Ok(Response {
        allowed: response.is_true("allowed"),
        patch: if is_mutating { patch } else { Vec::new() },
        patch_type,
        result: response
            .field("status")
            .as_object()
            .cloned()
            .unwrap_or_default(),
        warnings: warnings.collect(),
        audit_annotations: annotations.collect(),
    })
}

/// The bytes of a patch: in base 64, or as an array of numbers, which Go reads as bytes too.
fn patch_of(patch: &Value) -> Result<Vec<u8>, String> {
    match patch {
        Value::Null => Ok(Vec::new()),
        Value::String(text) => STANDARD
            .decode(text)
            .map_err(|_| "illegal base64 data in response.patch".into()),
        Value::Array(numbers) => {
            let bytes = numbers.iter().map(|number| {
                let byte = number.as_u64().and_then(|n| u8::try_from(n).ok());
                byte.ok_or_else(|| {
                    format!("json: cannot unmarshal {number} into response.patch of type uint8")
                })
            });
            bytes.collect()
        }
        _ => Err("json: cannot unmarshal response.patch into Go value of type []uint8".into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(review: Value, is_mutating: bool) -> Result<Response, String> {
        verify(review, ReviewVersion::V1, "u", is_mutating)
    }

    fn review(response: Value) -> Value {
        json!({"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response})
    }

    #[test]
    fn responses_that_do_not_fit_are_refused() {
        let cases = [
            (review(Value::Null), true, "webhook response was absent"),
            (
                review(json!({"uid": "x"})),
                true,
                r#"expected response.uid="u", got "x""#,
            ),
            (
                json!({"response": {"uid": "u"}}),
                true,
                "expected webhook response of admission.k8s.io/v1, Kind=AdmissionReview, got /, Kind=",
            ),
            (
                review(json!({"uid": "u", "patch": "W10="})),
                true,
                "webhook returned response.patch but not response.patchType",
            ),
            (
                review(json!({"uid": "u", "patchType": "JSONPatch"})),
                true,
                "webhook returned response.patchType but not response.patch",
            ),
            (
                review(json!({"uid": "u", "patch": "W10="})),
                false,
                "validating webhook may not return response.patch",
            ),
            (
                review(json!({"uid": "u", "patchType": "JSONPatch"})),
                false,
                "validating webhook may not return response.patchType",
            ),
        ];
        for (review, is_mutating, expected) in cases {
            assert_eq!(
                checked(review.clone(), is_mutating),
                Err(expected.to_owned()),
                "{review}"
            );
        }
    }

    #[test]
    fn patch_is_read_from_base64_and_from_numbers() {
        for patch in [json!("W10="), json!([91, 93])] {
            let response =
                json!({"uid": "u", "allowed": true, "patch": patch, "patchType": "JSONPatch"});
            let response = checked(review(response), true).expect("a sound response");
            assert_eq!(response.patch, b"[]");
            assert!(response.allowed);
        }
        assert!(patch_of(&json!([256])).is_err());
        assert!(patch_of(&json!("%")).is_err());
    }
}
