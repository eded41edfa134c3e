//! The authority in its Secret, the certificates that it signs, and calls over TLS.

use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use bellerophon::manager::RunningManager;
use bellerophon::prelude::*;
use bellerophon::testing;
use bellerophon::webhook::{FailurePolicy, Rejection, Review, WebhookOptions};
use bellerophon_apiserver::ApiServer;
use http::Request;
use http_body_util::{BodyExt, Full};
use hyper_util::rt::{TokioExecutor, TokioIo};
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use kube::{Api, Client};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::conversion::{Hero, v1alpha1};
use super::review;
use crate::harness::server;

fn deny(_: &Review<ConfigMap>, _: &ConfigMap) -> Result<(), Rejection> {
    Err(Rejection::denied("over TLS"))
}

/// A replica with one webhook, on a free port.
fn replica(client: &Client, seed: u64) -> Manager {
    let options = ManagerOptions {
        webhooks: WebhookOptions {
            name: Some(format!("replica-{seed}")),
            bind_address: ([127, 0, 0, 1], 0).into(),
            ..WebhookOptions::default()
        },
        // Certificates are verified by the clock of this machine.
        clock: bellerophon::clock::Clock::system(),
        ..testing::options(seed)
    };
    let mut mgr = Manager::new(client.clone(), options);
    mgr.webhook::<ConfigMap>()
        .validate(FailurePolicy::Fail, deny);
    mgr
}

/// The `clientConfig` of a replica.
async fn client_config(client: &Client, name: &str) -> Value {
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations";
    let request = Request::get(format!("{path}/{name}")).body(Vec::new());
    let configuration: Value = client.request(request.unwrap()).await.unwrap();
    configuration["webhooks"][0]["clientConfig"].clone()
}

/// Calls a webhook as an API server does: it trusts the `caBundle` only.
async fn call(config: &Value, protocol: &str) -> Result<Value, Box<dyn std::error::Error>> {
    let bundle = config["caBundle"].as_str().unwrap_or_default();
    let bundle = BASE64_STANDARD.decode(bundle)?;
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(&bundle) {
        roots.add(certificate?)?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![protocol.as_bytes().to_vec()];
    let url: http::Uri = config["url"].as_str().unwrap().parse()?;
    let stream = TcpStream::connect(url.authority().unwrap().as_str()).await?;
    let name = ServerName::try_from(url.host().unwrap().to_owned())?;
    let stream = TlsConnector::from(Arc::new(tls))
        .connect(name, stream)
        .await?;
    let stream = TokioIo::new(stream);
    let body = Full::new(bytes::Bytes::from(review(json!({})).to_string()));
    let request = Request::post(url)
        .header("content-type", "application/json")
        .body(body)?;
    let response = match protocol {
        "h2" => {
            let executor = TokioExecutor::new();
            let (mut sender, connection) =
                hyper::client::conn::http2::handshake(executor, stream).await?;
            tokio::spawn(connection);
            sender.send_request(request).await?
        }
        _ => {
            let (mut sender, connection) = hyper::client::conn::http1::handshake(stream).await?;
            tokio::spawn(connection);
            sender.send_request(request).await?
        }
    };
    let body = response.into_body().collect().await?.to_bytes();
    Ok(serde_json::from_slice(&body)?)
}

async fn started(mgr: Manager) -> RunningManager {
    let mut running = mgr.start();
    running.ready().await.unwrap();
    running
}

#[tokio::test]
async fn a_declared_webhook_is_registered_and_answers_over_tls() {
    let server = server().await;
    let client = server.client();
    let running = started(replica(&client, 1)).await;
    let config = client_config(&client, "replica-1").await;
    for protocol in ["http/1.1", "h2"] {
        let answer = call(&config, protocol).await.unwrap();
        assert_eq!(
            answer["response"]["status"]["message"], "over TLS",
            "{protocol}"
        );
    }
    // Only its own authority is trusted.
    let mut foreign = config.clone();
    foreign["caBundle"] = Value::Null;
    assert!(call(&foreign, "h2").await.is_err());
    running.stop().await.unwrap();
    assert!(call(&config, "h2").await.is_err(), "the server has ended");
    let secret: Secret = Api::default_namespaced(client)
        .get("replica-1-ca")
        .await
        .unwrap();
    let data = secret.data.unwrap();
    let bundle = String::from_utf8(data["ca.crt"].0.clone()).unwrap();
    assert_eq!(bundle.matches("BEGIN CERTIFICATE").count(), 1);
}

/// A replica of one program: all have the same name, and so the same Secret and configuration. The
/// address is its own.
fn replica_at(client: &Client, address: [u8; 4]) -> Manager {
    let options = ManagerOptions {
        webhooks: WebhookOptions {
            name: Some("operator".into()),
            bind_address: (address, 9443).into(),
            ..WebhookOptions::default()
        },
        clock: bellerophon::clock::Clock::system(),
        ..testing::options(u64::from(address[2]) * 256 + u64::from(address[3]))
    };
    let mut mgr = Manager::new(client.clone(), options);
    mgr.webhook::<ConfigMap>()
        .validate(FailurePolicy::Fail, deny);
    mgr
}

#[tokio::test]
async fn two_replicas_that_start_at_the_same_time_have_one_authority() {
    for run in 0..100 {
        let server: ApiServer = ApiServer::builder().seed(run).start().await.unwrap();
        let client = server.client();
        let addresses = [1, 2].map(|replica| [127, 9, u8::try_from(run).unwrap(), replica]);
        let [first, second] = addresses.map(|address| started(replica_at(&client, address)));
        let (first, second) = tokio::join!(first, second);
        // The configuration has the URL of one of them; both answer with the one authority.
        let config = client_config(&client, "operator").await;
        for [a, b, c, d] in addresses {
            let mut config = config.clone();
            config["url"] = format!("https://{a}.{b}.{c}.{d}:9443/validate--v1-configmap").into();
            let answer = call(&config, "h2").await.unwrap();
            assert_eq!(
                answer["response"]["status"]["message"], "over TLS",
                "run {run}"
            );
        }
        let secrets: Api<Secret> = Api::default_namespaced(client);
        let secrets = secrets.list(&Default::default()).await.unwrap();
        assert_eq!(secrets.items.len(), 1);
        first.stop().await.unwrap();
        second.stop().await.unwrap();
        server.shutdown().await;
    }
}

#[tokio::test]
async fn a_secret_that_is_deleted_is_created_again_with_the_same_authority() {
    let server = server().await;
    let client = server.client();
    let running = started(replica(&client, 1)).await;
    let config = client_config(&client, "replica-1").await;
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    let before = secrets.get("replica-1-ca").await.unwrap();
    secrets
        .delete("replica-1-ca", &Default::default())
        .await
        .unwrap();
    let again = async {
        loop {
            if let Ok(secret) = secrets.get("replica-1-ca").await {
                return secret;
            }
            tokio::task::yield_now().await;
        }
    };
    let again = tokio::time::timeout(Duration::from_secs(60), again)
        .await
        .unwrap();
    assert_eq!(again.data, before.data);
    assert!(call(&config, "h2").await.is_ok());
    running.stop().await.unwrap();
}

/// How long a replica may serve a certificate of the former signer, with
/// BELLEROPHON_REQUIRE_TIMELINE=1. A busy machine takes longer.
const SERVED_WITHIN: Duration = Duration::from_secs(1);

#[tokio::test]
async fn a_secret_that_changes_is_served_without_a_restart() {
    let server = server().await;
    let client = server.client();
    let secrets: Api<Secret> = Api::default_namespaced(client.clone());
    let authority = async |seed: u64| {
        let secret = secrets.get(&format!("replica-{seed}-ca")).await.unwrap();
        secret.data.unwrap()
    };
    // The Secret of another program has another authority.
    started(replica(&client, 2)).await.stop().await.unwrap();
    let running = started(replica(&client, 1)).await;
    let authorities = [authority(2).await, authority(1).await];
    let mut config = client_config(&client, "replica-1").await;
    let is_timed = std::env::var_os("BELLEROPHON_REQUIRE_TIMELINE").is_some();
    for (swap, authority) in authorities.iter().cycle().take(100).enumerate() {
        config["caBundle"] = BASE64_STANDARD.encode(&authority["ca.crt"].0).into();
        assert!(call(&config, "http/1.1").await.is_err(), "swap {swap}");
        let change = kube::api::Patch::Merge(json!({"data": authority}));
        let changed = tokio::time::Instant::now();
        secrets
            .patch("replica-1-ca", &Default::default(), &change)
            .await
            .unwrap();
        let served = async {
            while call(&config, "http/1.1").await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        let served = tokio::time::timeout(Duration::from_secs(60), served).await;
        assert!(served.is_ok(), "swap {swap}");
        assert!(
            !is_timed || changed.elapsed() < SERVED_WITHIN,
            "swap {swap}"
        );
    }
    running.stop().await.unwrap();
}

#[tokio::test]
async fn a_conversion_of_a_crd_that_does_not_exist_is_a_clear_error() {
    let server = server().await;
    let mut mgr = replica(&server.client(), 1);
    mgr.webhook::<Hero>().convert::<v1alpha1::Hero>();
    let error = mgr.run_until(std::future::pending()).await.unwrap_err();
    let expected = "the registration of webhooks failed: CustomResourceDefinition \
                    heroes.example.org does not exist; apply the manifests first";
    assert_eq!(error.to_string(), expected);
}

/// The certificates of a configuration's bundle.
async fn bundle(client: &Client) -> Vec<String> {
    let config = client_config(client, "replica-1").await;
    let bundle = BASE64_STANDARD.decode(config["caBundle"].as_str().unwrap());
    let bundle = String::from_utf8(bundle.unwrap()).unwrap();
    let certificates = bundle.split_inclusive("-----END CERTIFICATE-----");
    let certificates = certificates.map(|certificate| certificate.trim().to_owned());
    certificates
        .filter(|certificate| !certificate.is_empty())
        .collect()
}

#[tokio::test(start_paused = true)]
async fn the_leader_rotates_the_authority_in_phases() {
    let server = server().await;
    let client = server.client();
    let manager = |age: Duration| {
        let start = testing::options(1).clock.now() + age;
        let options = ManagerOptions {
            webhooks: WebhookOptions {
                name: Some("replica-1".into()),
                bind_address: ([127, 0, 0, 1], 0).into(),
                ..WebhookOptions::default()
            },
            clock: bellerophon::clock::Clock::starting_at(start),
            ..testing::options(1)
        };
        let mut mgr = Manager::new(client.clone(), options);
        mgr.webhook::<ConfigMap>()
            .validate(FailurePolicy::Fail, deny);
        mgr
    };
    started(manager(Duration::ZERO)).await.stop().await.unwrap();
    let old = bundle(&client).await;
    assert_eq!(old.len(), 1);

    // The next process finds an authority of which two thirds are over.
    let day = Duration::from_secs(24 * 3600);
    let running = started(manager(day * 365 * 2 / 3 + day)).await;
    let minute = Duration::from_secs(60);
    let started = tokio::time::Instant::now();
    let mut changes = vec![old.clone()];
    let mut times = Vec::new();
    while started.elapsed() < day + minute * 90 {
        let now = bundle(&client).await;
        if changes.last() != Some(&now) {
            times.push(started.elapsed().as_secs() / 60);
            changes.push(now);
        }
        tokio::time::sleep(minute).await;
    }
    let [_, both, new] = &changes[..] else {
        panic!("{} bundles instead of 3", changes.len());
    };
    assert_eq!(both.len(), 2, "both are published first");
    assert_eq!(both[0], old[0]);
    assert_eq!(new.as_slice(), &both[1..], "then the old one is dropped");
    // 15 minutes until the new one signs, and a day and an hour until the old one is dropped.
    let dropped_after = times[1] - times[0];
    assert!(
        (24 * 60 + 75..24 * 60 + 80).contains(&dropped_after),
        "{times:?}"
    );

    // A bundle that another client removes is set again.
    let path = "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/replica-1";
    let patch = json!([{"op": "remove", "path": "/webhooks/0/clientConfig/caBundle"}]);
    let request = Request::patch(path)
        .header("content-type", "application/json-patch+json")
        .body(patch.to_string().into_bytes());
    client.request::<Value>(request.unwrap()).await.unwrap();
    tokio::time::sleep(minute).await;
    assert_eq!(bundle(&client).await, *new);
    running.stop().await.unwrap();
}
