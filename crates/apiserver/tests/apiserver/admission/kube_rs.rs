//! A webhook of kube-rs, called in the process.

use bellerophon_apiserver::ApiServer;
use bytes::Bytes;
use http::{Request, Response};
use serde_json::{Value, json};

use super::{
    CONFIG_MAPS, MUTATING, config_map, configuration, create, label_webhook::respond, send,
};

const URL: &str = "https://hook.default.svc:443/mutate";

fn serve(request: &Request<Bytes>) -> Response<Bytes> {
    Response::new(respond(request.body()).into())
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
