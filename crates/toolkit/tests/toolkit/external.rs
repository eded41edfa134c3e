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

/// The collections that tests write to, the last one is that of namespaces.
const COLLECTIONS: [&str; 10] = [
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "/apis/apps/v1/deployments",
    "/apis/batch/v1/jobs",
    "/api/v1/pods",
    "/api/v1/configmaps",
    "/api/v1/secrets",
    "/apis/coordination.k8s.io/v1/leases",
    "/apis/apiextensions.k8s.io/v1/customresourcedefinitions",
    "/api/v1/namespaces",
];

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
    loop {
        let mut remaining = Vec::new();
        for collection in COLLECTIONS {
            let list: Value = client
                .request(Request::get(collection).body(Vec::new()).unwrap())
                .await
                .unwrap();
            for object in list["items"].as_array().into_iter().flatten() {
                remaining.extend(delete(client, collection, object).await);
            }
        }
        if remaining.is_empty() {
            return;
        }
        assert!(begun.elapsed() < TIMEOUT, "not deleted: {remaining:?}");
        sleep(Duration::from_millis(100)).await;
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
    if metadata["finalizers"].is_array() && !collection.ends_with("customresourcedefinitions") {
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
        assert!([404, 409].contains(&status.code), "cannot reset: {error}");
    }
}
