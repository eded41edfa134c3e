//! A webhook as kube-rs's example has it: the types of `kube::core::admission`, whose patches are
//! arrays of numbers.

use bellerophon_apiserver::ApiServer;
use bytes::Bytes;
use http::{Request, Response};
use kube::{
    ResourceExt as _,
    core::{
        DynamicObject,
        admission::{AdmissionRequest, AdmissionResponse, AdmissionReview},
    },
};
use serde_json::{Value, json};

use super::{CONFIG_MAPS, MUTATING, config_map, configuration, create, send};

const URL: &str = "https://hook.default.svc:443/mutate";

fn answer(review: AdmissionReview<DynamicObject>) -> AdmissionReview<DynamicObject> {
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

fn serve(request: &Request<Bytes>) -> Response<Bytes> {
    let review = serde_json::from_slice(request.body()).expect("a review that kube-rs reads");
    let answered = serde_json::to_value(answer(review)).expect("a review");
    let patch = &answered["response"]["patch"];
    assert!(patch.is_null() || patch[0].is_u64(), "{patch}");
    Response::new(Bytes::from(answered.to_string()))
}

#[tokio::test(start_paused = true)]
async fn webhook_of_kube_rs_denies_and_patches() {
    let builder = ApiServer::builder().webhook(URL, |request| async move { serve(&request) });
    let server = builder.start().await.expect("a server");
    let client = server.client();
    let service = json!({"service": {"namespace": "default", "name": "hook", "path": "/mutate"}});
    let configured = configuration("MutatingWebhookConfiguration", service, json!({}));
    create(&client, MUTATING, configured).await;
    let created = create(&client, CONFIG_MAPS, config_map("good")).await;
    assert_eq!(created["metadata"]["labels"], json!({"seen": "yes"}));
    let (code, denied) = send(&client, "POST", CONFIG_MAPS, config_map("bad")).await;
    assert_eq!(code, 400, "{denied}");
    assert_eq!(
        denied["message"],
        "admission webhook \"check.example.com\" denied the request: bad names are refused"
    );
    let path = format!("{CONFIG_MAPS}/good");
    let (code, deleted) = send(&client, "DELETE", &path, Value::Null).await;
    assert_eq!(code, 200, "a review without an object: {deleted}");
    server.shutdown().await;
}
