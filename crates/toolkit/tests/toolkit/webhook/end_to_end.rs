//! What clients of the embedded API server see of declared webhooks.

use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bellerophon::clock::Clock;
use bellerophon::manager::RunningManager;
use bellerophon::prelude::*;
use bellerophon::testing;
use bellerophon::webhook::{
    Endpoint, FailurePolicy, FieldError, OnDryRun, Operation, Rejection, Review, SideEffects,
    Validator, WebhookOptions, WebhookService,
};
use bellerophon_apiserver::{ApiServer, Builder};
use bytes::Bytes;
use http::header::CONTENT_TYPE;
use http::{HeaderValue, Request, Response};
use http_body_util::{BodyExt, Full};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ServiceAccount};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{ApiResource, DynamicObject, Patch, PatchParams, PostParams};
use kube::{Api, Client, CustomResourceExt, ResourceExt};
use serde_json::{Value, json};
use tower::ServiceExt;

use super::conversion::{Hero, v1alpha1};
use crate::harness::server;

fn map(name: &str, data: Value) -> ConfigMap {
    let map = json!({"metadata": {"name": name}, "data": data});
    serde_json::from_value(map).unwrap()
}

/// The message and code of a refusal.
fn refusal<T: std::fmt::Debug>(result: Result<T, kube::Error>) -> (String, u16) {
    match result.unwrap_err() {
        kube::Error::Api(status) => (status.message, status.code),
        other => panic!("{other}"),
    }
}

async fn started(mgr: Manager) -> RunningManager {
    let mut running = mgr.start();
    running.ready().await.unwrap();
    running
}

fn default(_: &Review<ConfigMap>, map: &mut ConfigMap) -> Result<(), Rejection> {
    map.labels_mut()
        .entry("team".into())
        .or_insert_with(|| "none".into());
    Ok(())
}

fn check(review: &Review<ConfigMap>, map: &ConfigMap) -> Result<(), Rejection> {
    let data = map.data.clone().unwrap_or_default();
    if review.operation() == Operation::Delete {
        return Err(Rejection::denied("ConfigMaps stay"));
    }
    if data.contains_key("bad") {
        let error = FieldError::forbidden("data.bad", "is bad");
        return Err(Rejection::invalid([error]));
    }
    assert_eq!(map.labels()["team"], "none", "mutated before");
    Ok(())
}

#[tokio::test]
async fn webhooks_mutate_and_refuse_over_tls_with_automatic_certificates() {
    let server = server().await;
    let client = server.client();
    let options = ManagerOptions {
        webhooks: WebhookOptions {
            bind_address: ([127, 0, 0, 1], 0).into(),
            ..WebhookOptions::default()
        },
        clock: Clock::system(),
        ..testing::options(1)
    };
    let mut mgr = Manager::new(client.clone(), options);
    mgr.webhook::<ConfigMap>()
        .mutate(FailurePolicy::Fail, default)
        .operations([Operation::Create, Operation::Update, Operation::Delete])
        .validate(FailurePolicy::Fail, check);
    let running = started(mgr).await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let create = PostParams::default();
    let created = maps.create(&create, &map("good", json!({}))).await.unwrap();
    assert_eq!(created.labels()["team"], "none");
    let refused = maps.create(&create, &map("bad", json!({"bad": "1"}))).await;
    let expected = "admission webhook \"validate.configmaps.core\" denied the request: ConfigMap \
                    \"bad\" is invalid: data.bad: Forbidden: is bad";
    assert_eq!(refusal(refused), (expected.to_owned(), 422));
    let refused = maps.delete("good", &Default::default()).await;
    let expected = "admission webhook \"validate.configmaps.core\" denied the request: ConfigMaps \
                    stay";
    assert_eq!(refusal(refused), (expected.to_owned(), 403));
    running.stop().await.unwrap();
    // The webhook is down and its failure policy is Fail.
    let (message, code) = refusal(maps.create(&create, &map("late", json!({}))).await);
    assert_eq!(code, 500, "{message}");
    assert!(message.contains("failed calling webhook"), "{message}");
}

#[tokio::test]
async fn versions_are_converted_over_tls_with_automatic_certificates() {
    let server = server().await;
    let client = server.client();
    let mut crd = Hero::crd();
    let mut old = v1alpha1::Hero::crd().spec.versions.remove(0);
    old.storage = false;
    crd.spec.versions.push(old);
    let crds: Api<CustomResourceDefinition> = Api::all(client.clone());
    let apply = PatchParams::apply("test").force();
    crds.patch("heroes.example.org", &apply, &Patch::Apply(&crd))
        .await
        .unwrap();
    let options = ManagerOptions {
        webhooks: WebhookOptions {
            bind_address: ([127, 0, 0, 1], 0).into(),
            ..WebhookOptions::default()
        },
        clock: Clock::system(),
        ..testing::options(1)
    };
    let mut mgr = Manager::new(client.clone(), options);
    mgr.webhook::<Hero>().convert::<v1alpha1::Hero>();
    let running = started(mgr).await;
    let stored: Api<DynamicObject> =
        Api::default_namespaced_with(client.clone(), &ApiResource::erase::<Hero>(&()));
    let old: Api<DynamicObject> =
        Api::default_namespaced_with(client, &ApiResource::erase::<v1alpha1::Hero>(&()));
    let hero = json!({
        "apiVersion": "example.org/v1", "kind": "Hero", "metadata": {"name": "icarus"},
        "spec": {"horse": "pegasus", "replicas": 7, "team": "heroes"},
    });
    let hero: DynamicObject = serde_json::from_value(hero).unwrap();
    stored.create(&PostParams::default(), &hero).await.unwrap();
    let mut seen = old.get("icarus").await.unwrap();
    assert_eq!(seen.data["spec"], json!({"horse": "pegasus"}));
    seen.data["spec"]["horse"] = "arion".into();
    old.replace("icarus", &PostParams::default(), &seen)
        .await
        .unwrap();
    let hero = stored.get("icarus").await.unwrap();
    let expected = json!({"horse": "arion", "replicas": 7, "team": "heroes"});
    assert_eq!(hero.data["spec"], expected);
    running.stop().await.unwrap();
}

/// A server that calls the webhooks of a Manager in the same process, under paused time.
fn in_process(paths: &[&str]) -> (Builder, Arc<OnceLock<WebhookService>>) {
    let service = Arc::new(OnceLock::<WebhookService>::new());
    let mut builder = ApiServer::builder().seed(1);
    for path in paths {
        let service = service.clone();
        let url = format!("https://operator.heroes.svc:443{path}");
        builder = builder.webhook(&url, move |mut request: Request<Bytes>| {
            let json = HeaderValue::from_static("application/json");
            request.headers_mut().insert(CONTENT_TYPE, json);
            let service = service.get().expect("the Manager exists").clone();
            async move {
                let response = service.oneshot(request.map(Full::new)).await.unwrap();
                let (head, body) = response.into_parts();
                let body = body.collect().await.unwrap().to_bytes();
                Response::from_parts(head, body)
            }
        });
    }
    (builder, service)
}

/// A Manager whose webhooks are behind the Service `operator` in the namespace `heroes`.
fn manager(client: Client) -> Manager {
    let options = ManagerOptions {
        webhooks: WebhookOptions {
            endpoint: Some(Endpoint::service("heroes", "operator")),
            bind_address: ([127, 0, 0, 1], 0).into(),
            ..WebhookOptions::default()
        },
        ..testing::options(1)
    };
    Manager::new(client, options)
}

async fn create_namespace(client: &Client, name: &str) {
    let namespace = json!({"metadata": {"name": name}});
    let namespace: Namespace = serde_json::from_value(namespace).unwrap();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    namespaces
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
}

/// Panics, waits or admits, as the object says.
struct Moody;

impl Validator<ConfigMap> for Moody {
    async fn validate(&self, _: &Review<ConfigMap>, map: &ConfigMap) -> Result<(), Rejection> {
        match map.name_any().as_str() {
            "panic" => panic!("out of luck"),
            "slow" => tokio::time::sleep(Duration::from_secs(60)).await,
            "fail" => return Err(Rejection::failed("the ledger is down")),
            _ => {}
        }
        Ok(())
    }
}

#[tokio::test(start_paused = true)]
async fn panics_deadlines_and_failures_follow_the_failure_policy() {
    for policy in [FailurePolicy::Fail, FailurePolicy::Ignore] {
        let (builder, service) = in_process(&["/validate--v1-configmap"]);
        let server = builder.start().await.unwrap();
        let client = server.client();
        create_namespace(&client, "heroes").await;
        let mut mgr = manager(client.clone());
        mgr.webhook::<ConfigMap>()
            .timeout(Duration::from_secs(5))
            .validate(policy, Moody);
        service.set(mgr.webhook_service()).unwrap();
        let running = started(mgr).await;
        let maps: Api<ConfigMap> = Api::default_namespaced(client);
        let create = PostParams::default();
        for (name, why) in [
            ("panic", "panic: out of luck [recovered]"),
            ("slow", "the handler did not answer within 4.5s"),
            ("fail", "the ledger is down"),
        ] {
            let result = maps.create(&create, &map(name, json!({}))).await;
            match policy {
                FailurePolicy::Ignore => assert!(result.is_ok(), "{name}: {result:?}"),
                FailurePolicy::Fail => {
                    let expected = format!(
                        "Internal error occurred: failed calling webhook \
                         \"validate.configmaps.core\": failed to call webhook: {why}"
                    );
                    assert_eq!(refusal(result), (expected, 500), "{name}");
                }
            }
        }
        let good = maps.create(&create, &map("good", json!({}))).await;
        assert!(good.is_ok());
        running.stop().await.unwrap();
    }
}

#[tokio::test(start_paused = true)]
async fn a_dry_run_has_no_side_effect_that_was_not_declared_harmless() {
    let (builder, service) = in_process(&["/validate--v1-configmap"]);
    let server = builder.start().await.unwrap();
    let client = server.client();
    create_namespace(&client, "heroes").await;
    let mut mgr = manager(client.clone());
    let reserve = |_: &Review<ConfigMap>, _: &ConfigMap| -> Result<(), Rejection> {
        panic!("it has side effects")
    };
    let reserve = SideEffects::new(reserve, OnDryRun::Deny);
    mgr.webhook::<ConfigMap>()
        .validate(FailurePolicy::Fail, reserve);
    service.set(mgr.webhook_service()).unwrap();
    let running = started(mgr).await;
    let maps: Api<ConfigMap> = Api::default_namespaced(client);
    let dry_run = PostParams {
        dry_run: true,
        ..PostParams::default()
    };
    let refused = maps.create(&dry_run, &map("dry", json!({}))).await;
    let expected = "admission webhook \"validate.configmaps.core\" denied the request: this \
                    webhook has side effects and does not support dry runs";
    assert_eq!(refusal(refused), (expected.to_owned(), 403));
    running.stop().await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn pods_of_the_operator_start_while_its_webhooks_are_down() {
    let (builder, service) = in_process(&[]);
    let server = builder.start().await.unwrap();
    let client = server.client();
    for namespace in ["heroes", "team-a"] {
        create_namespace(&client, namespace).await;
    }
    for namespace in ["heroes", "team-a", "kube-system"] {
        let account = json!({"metadata": {"name": "default"}});
        let account: ServiceAccount = serde_json::from_value(account).unwrap();
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
        accounts
            .create(&PostParams::default(), &account)
            .await
            .unwrap();
    }
    let mut mgr = manager(client.clone());
    let admit = |_: &Review<Pod>, _: &Pod| Ok(());
    mgr.webhook::<Pod>().validate(FailurePolicy::Fail, admit);
    service.set(mgr.webhook_service()).unwrap();
    started(mgr).await.stop().await.unwrap();

    let pod = json!({
        "metadata": {"name": "operator-0"},
        "spec": {"containers": [{"name": "operator", "image": "operator"}]},
    });
    let pod: Pod = serde_json::from_value(pod).unwrap();
    let create = |namespace: &str| {
        let pods: Api<Pod> = Api::namespaced(client.clone(), namespace);
        let pod = pod.clone();
        async move { pods.create(&PostParams::default(), &pod).await }
    };
    let (message, _) = refusal(create("team-a").await);
    assert!(
        message.contains("failed calling webhook \"validate.pods.core\""),
        "{message}"
    );
    for namespace in ["heroes", "kube-system"] {
        create(namespace).await.unwrap();
    }
}
