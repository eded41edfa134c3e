//! A webhook of kube-rs, called by `bellerophon up`.

use std::net::Ipv4Addr;

use k8s_openapi::{
    ByteString,
    api::{admissionregistration::v1::MutatingWebhookConfiguration, core::v1::ConfigMap},
};
use kube::{Api, ResourceExt as _, api::PostParams};
use serde_json::json;

use crate::{running::RunningServer, webhook_server};

#[tokio::test]
async fn webhook_of_kube_rs_is_called() {
    let server = RunningServer::start(&["--nodes", "1"]);
    let client = server.client().await;
    let key = rcgen::generate_simple_self_signed(["127.0.0.1".to_owned()]).expect("a certificate");
    let certificate = key.cert.pem();
    let free_port = (Ipv4Addr::LOCALHOST, 0).into();
    let private = key.signing_key.serialize_pem();
    let address = webhook_server::start(free_port, &certificate, &private).await;
    let url = format!("https://{address}/mutate");
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
    let expected =
        r#"admission webhook "label.example.com" denied the request: bad names are refused"#;
    assert!(message.contains(expected), "{message}");
}
