//! A webhook of kube-rs, as its example has it, called by `bellerophon up`.

use std::{convert::Infallible, sync::Arc};

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use k8s_openapi::{
    ByteString,
    api::{admissionregistration::v1::MutatingWebhookConfiguration, core::v1::ConfigMap},
};
use kube::{
    Api, ResourceExt as _,
    api::PostParams,
    core::{
        DynamicObject,
        admission::{AdmissionRequest, AdmissionResponse, AdmissionReview},
    },
};
use rustls::{ServerConfig, pki_types::PrivateKeyDer};
use serde_json::json;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use crate::running::RunningServer;

/// Denies ConfigMaps with the name `bad`, and labels all others.
fn review(review: AdmissionReview<DynamicObject>) -> AdmissionReview<DynamicObject> {
    let request: AdmissionRequest<_> = match review.try_into() {
        Ok(request) => request,
        Err(error) => return AdmissionResponse::invalid(error).into_review(),
    };
    let response = AdmissionResponse::from(&request);
    let name = request.object.as_ref().map(|object| object.name_any());
    if name.as_deref() == Some("bad") {
        return response.deny("not this name").into_review();
    }
    let patch = json!([{"op": "add", "path": "/metadata/labels", "value": {"seen": "yes"}}]);
    let patch = serde_json::from_value(patch).expect("a patch");
    let response = response.with_patch(patch).expect("a patch is encoded");
    response.into_review()
}

async fn respond(request: Request<Incoming>) -> Result<Response<Full<Bytes>>, Infallible> {
    let body = request.into_body().collect().await.expect("a body");
    let answered = review(serde_json::from_slice(&body.to_bytes()).expect("a review"));
    let answered = serde_json::to_vec(&answered).expect("a review");
    Ok(Response::new(Full::new(answered.into())))
}

async fn serve(tls: TlsAcceptor, stream: TcpStream) {
    let stream = tls.accept(stream).await.expect("a TLS handshake");
    let connection =
        http1::Builder::new().serve_connection(TokioIo::new(stream), service_fn(respond));
    // It ends with the server that calls it.
    let _ = connection.await;
}

/// Starts the webhook; returns its URL and its certificate.
async fn start() -> (String, String) {
    let key = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    let certificate = key.cert.der().clone();
    let private = PrivateKeyDer::Pkcs8(key.signing_key.serialize_der().into());
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_no_client_auth()
        .with_single_cert(vec![certificate], private)
        .expect("a key of the certificate");
    let tls = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address");
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            tokio::spawn(serve(tls.clone(), stream));
        }
    });
    (format!("https://{address}/mutate"), key.cert.pem())
}

#[tokio::test]
async fn webhook_of_kube_rs_is_called() {
    let server = RunningServer::start(&["--nodes", "1"]);
    let client = server.client().await;
    let (url, certificate) = start().await;
    let configuration: MutatingWebhookConfiguration = serde_json::from_value(json!({
        "metadata": {"name": "kube-rs"},
        "webhooks": [{
            "name": "label.example.com",
            "clientConfig": {"url": url, "caBundle": ByteString(certificate.into_bytes())},
            "rules": [{"operations": ["CREATE"], "apiGroups": [""], "apiVersions": ["v1"], "resources": ["configmaps"]}],
            "sideEffects": "None",
            "admissionReviewVersions": ["v1"],
        }],
    }))
    .expect("a configuration");
    let configurations: Api<MutatingWebhookConfiguration> = Api::all(client.clone());
    let parameters = PostParams::default();
    let configured = configurations.create(&parameters, &configuration).await;
    configured.expect("it is valid");

    let config_maps: Api<ConfigMap> = Api::namespaced(client, "default");
    let config_map = |name: &str| -> ConfigMap {
        serde_json::from_value(json!({"metadata": {"name": name}})).expect("a ConfigMap")
    };
    let created = config_maps.create(&parameters, &config_map("good")).await;
    assert_eq!(created.expect("it is admitted").labels()["seen"], "yes");
    let denied = config_maps.create(&parameters, &config_map("bad")).await;
    let message = denied.expect_err("it is denied").to_string();
    let expected = r#"admission webhook "label.example.com" denied the request: not this name"#;
    assert!(message.contains(expected), "{message}");
}
