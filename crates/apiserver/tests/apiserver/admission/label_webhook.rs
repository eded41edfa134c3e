//! A webhook as kube-rs's example has it: the types of `kube::core::admission`, whose patches are
//! arrays of numbers. It denies objects with the name `bad`, and labels all others.
//!
//! The tests of the binary serve it over HTTPS.

use kube::{
    ResourceExt as _,
    core::{
        DynamicObject,
        admission::{AdmissionRequest, AdmissionResponse, AdmissionReview},
    },
};
use serde_json::json;

fn review(review: AdmissionReview<DynamicObject>) -> AdmissionReview<DynamicObject> {
    let request: AdmissionRequest<_> = match review.try_into() {
        Ok(request) => request,
        Err(error) => return AdmissionResponse::invalid(error).into_review(),
    };
    let response = AdmissionResponse::from(&request);
    let Some(object) = request.object else {
        return response.into_review();
    };
    if object.name_any() == "bad" {
        return response.deny("bad names are refused").into_review();
    }
    let patch = json!([{"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}}]);
    let patch = serde_json::from_value(patch).expect("a patch");
    let response = response.with_patch(patch).expect("a patch can be encoded");
    response.into_review()
}

/// The response body to the body of a request.
pub(crate) fn respond(body: &[u8]) -> Vec<u8> {
    let request = serde_json::from_slice(body).expect("a review that kube-rs reads");
    let answered = serde_json::to_value(review(request)).expect("a review");
    let patch = &answered["response"]["patch"];
    assert!(patch.is_null() || patch[0].is_u64(), "{patch}");
    answered.to_string().into_bytes()
}
