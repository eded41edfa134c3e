//! An API server of another process, instead of the embedded one.
//!
//! Input: the kubeconfig of an administrator in `BELLEROPHON_TEST_KUBECONFIG`, as for the testkit.
//! Output: a client of a cluster without the objects of earlier tests, in real time. Tests share it:
//! they run one at a time.

use std::time::Duration;

use http::Request;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

/// The variable of the environment with the path of the kubeconfig.
const KUBECONFIG: &str = "BELLEROPHON_TEST_KUBECONFIG";

/// The annotation of the namespace `default` by which a cluster permits the deletion of its objects.
const DISPOSABLE: &str = "testkit.bellerophon.io/disposable";

/// The collections that tests of toolkit and operators write to. Owners come before their
/// dependents, and definitions after their objects.
const COLLECTIONS: [&str; 18] = [
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "/apis/batch/v1/cronjobs",
    "/apis/batch/v1/jobs",
    "/apis/apps/v1/deployments",
    "/apis/apps/v1/statefulsets",
    "/apis/apps/v1/daemonsets",
    "/apis/apps/v1/replicasets",
    "/apis/policy/v1/poddisruptionbudgets",
    "/api/v1/pods",
    "/api/v1/configmaps",
    "/api/v1/secrets",
    "/apis/coordination.k8s.io/v1/leases",
    "/api/v1/nodes",
    DEFINITIONS,
    "/api/v1/namespaces",
];

/// The definitions of custom resources.
const DEFINITIONS: &str = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";

/// What the control plane creates again.
const KEPT: [&str; 5] = [
    "default",
    "kube-node-lease",
    "kube-public",
    "kube-root-ca.crt",
    "kube-system",
];

/// How long objects of an earlier test may take to be deleted.
const TIMEOUT: Duration = Duration::from_secs(120);

/// A client of the cluster; `None` selects the embedded API server.
pub(crate) async fn connect() -> Option<Client> {
    let file = std::env::var_os(KUBECONFIG)?;
    resume_time();
    let kubeconfig = Kubeconfig::read_from(file).unwrap();
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
    let client = Client::try_from(config.unwrap()).unwrap();
    let request = Request::get("/api/v1/namespaces/default").body(Vec::new());
    let default: Value = client.request(request.unwrap()).await.unwrap();
    let is_disposable = default["metadata"]["annotations"][DISPOSABLE] == "true";
    assert!(
        is_disposable,
        "namespace default does not have the annotation {DISPOSABLE}=true"
    );
    reset(&client).await;
    Some(client)
}

/// Ends the virtual time of a test: another process does not know it.
#[expect(
    clippy::disallowed_methods,
    reason = "only real time shows whether that of the runtime is paused"
)]
fn resume_time() {
    let before = Instant::now();
    std::thread::sleep(Duration::from_millis(2));
    if Instant::now() == before {
        tokio::time::resume();
    }
}

/// Deletes what earlier tests left, and waits until it is gone.
async fn reset(client: &Client) {
    let begun = Instant::now();
    let mut collections = custom_resources(client).await;
    collections.extend(COLLECTIONS.map(str::to_owned));
    loop {
        let mut remaining = Vec::new();
        for collection in &collections {
            for object in list(client, collection).await {
                remaining.extend(delete(client, collection, &object).await);
            }
        }
        if remaining.is_empty() {
            return;
        }
        assert!(begun.elapsed() < TIMEOUT, "not deleted: {remaining:?}");
        sleep(Duration::from_millis(100)).await;
    }
}

/// The collections of custom resources.
async fn custom_resources(client: &Client) -> Vec<String> {
    let definitions = list(client, DEFINITIONS).await;
    let collection = |definition: &Value| {
        let spec = &definition["spec"];
        let mut versions = spec["versions"].as_array().unwrap().iter();
        let version = versions.find(|version| version["storage"] == true).unwrap();
        let text = |value: &Value| value.as_str().unwrap().to_owned();
        let group = text(&spec["group"]);
        let version = text(&version["name"]);
        let plural = text(&spec["names"]["plural"]);
        format!("/apis/{group}/{version}/{plural}")
    };
    definitions.iter().map(collection).collect()
}

/// The objects of a collection; none if it is not served any more, or its conversion webhook has
/// ended, as that of a definition that is deleted next.
async fn list(client: &Client, collection: &str) -> Vec<Value> {
    let request = Request::get(collection).body(Vec::new()).unwrap();
    match client.request::<Value>(request).await {
        Ok(mut list) => match list["items"].take() {
            Value::Array(objects) => objects,
            _ => Vec::new(),
        },
        Err(kube::Error::Api(status)) if [404, 500].contains(&status.code) => Vec::new(),
        Err(error) => panic!("cannot list {collection}: {error}"),
    }
}

/// Deletes an object, and returns its path; `None` if it is kept.
async fn delete(client: &Client, collection: &str, object: &Value) -> Option<String> {
    let metadata = &object["metadata"];
    let name = metadata["name"].as_str().unwrap();
    let namespace = metadata["namespace"].as_str();
    let is_system = namespace.is_some_and(|namespace| namespace.starts_with("kube-"));
    if is_system || KEPT.contains(&name) {
        return None;
    }
    let path = match (namespace, collection.rsplit_once('/')) {
        (Some(namespace), Some((version, resource))) => {
            format!("{version}/namespaces/{namespace}/{resource}/{name}")
        }
        _ => format!("{collection}/{name}"),
    };
    // Those who would remove finalizers do not run any more, except for CRDs.
    if metadata["finalizers"].is_array() && collection != DEFINITIONS {
        let patch = json!({ "metadata": { "finalizers": null } }).to_string();
        let request = Request::patch(&path).header("content-type", "application/merge-patch+json");
        accept_absence(client, request.body(patch.into_bytes()).unwrap()).await;
    }
    let options = json!({ "gracePeriodSeconds": 0 }).to_string();
    let request = Request::delete(&path).header("content-type", "application/json");
    accept_absence(client, request.body(options.into_bytes()).unwrap()).await;
    Some(path)
}

/// Sends a request for an object that may be gone or changed by then.
async fn accept_absence(client: &Client, request: Request<Vec<u8>>) {
    if let Err(error) = client.request::<Value>(request).await {
        let kube::Error::Api(status) = &error else {
            panic!("cannot reset the cluster: {error}")
        };
        let is_expected = [404, 409, 422].contains(&status.code);
        assert!(is_expected, "cannot reset: {error}");
    }
}
