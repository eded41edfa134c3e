//! A control plane of other processes, instead of the embedded API server.
//!
//! Input: the kubeconfig of an administrator, in [`KUBECONFIG`]. Outputs: clients, and a cluster
//! without the objects of earlier tests.
//!
//! Such a cluster has its own controllers and scheduler, and no virtual time. Tests share it: they
//! run one at a time.

use std::{env, path::PathBuf, time::Duration};

use bellerophon::client::connect;
use futures_util::future::BoxFuture;
use http::Request;
use kube::{
    Client, Config,
    config::{AuthInfo, KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep};

/// The variable of the environment with the path of the kubeconfig.
pub(crate) const KUBECONFIG: &str = "BELLEROPHON_TEST_KUBECONFIG";

/// The annotation of the namespace `default` by which a cluster permits the deletion of its objects.
const DISPOSABLE: &str = "testkit.bellerophon.io/disposable";

/// The longest time of [`TestCluster::advance`](crate::TestCluster::advance).
const ADVANCE_MAX: Duration = Duration::from_secs(3);

/// How long a condition may take: longer than a rollout of four nodes or a drain of five minutes.
const CONDITION_TIMEOUT: Duration = Duration::from_secs(600);

/// How long the write before a crash may take.
const CRASH_TIMEOUT: Duration = Duration::from_secs(10);

/// The number of volumes, to which the control plane binds claims.
const VOLUMES: usize = 8;

/// The default storage class, and the class of the volumes.
const STORAGE_CLASS: &str = "standard";

/// How long objects of an earlier test may take to be deleted.
const RESET_TIMEOUT: Duration = Duration::from_secs(120);

/// Time between two requests about a state that cannot be watched.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The collections that tests write to. Owners come before their dependents, which would otherwise
/// be created again.
const COLLECTIONS: [&str; 27] = [
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicybindings",
    "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
    "/apis/autoscaling/v2/horizontalpodautoscalers",
    "/apis/batch/v1/cronjobs",
    "/apis/batch/v1/jobs",
    "/apis/apps/v1/deployments",
    "/apis/apps/v1/statefulsets",
    "/apis/apps/v1/daemonsets",
    "/apis/apps/v1/replicasets",
    "/apis/apps/v1/controllerrevisions",
    "/apis/policy/v1/poddisruptionbudgets",
    "/api/v1/pods",
    "/api/v1/persistentvolumeclaims",
    "/api/v1/persistentvolumes",
    "/api/v1/services",
    "/api/v1/configmaps",
    "/api/v1/secrets",
    "/api/v1/serviceaccounts",
    "/apis/coordination.k8s.io/v1/leases",
    "/apis/events.k8s.io/v1/events",
    "/apis/networking.k8s.io/v1/networkpolicies",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings",
    "/apis/rbac.authorization.k8s.io/v1/roles",
    "/api/v1/nodes",
    "/api/v1/namespaces",
];

/// The namespaces of the control plane, which no test writes to.
const SYSTEM_NAMESPACES: [&str; 3] = ["kube-node-lease", "kube-public", "kube-system"];

/// The objects of `default` that the control plane creates again, by collection.
const KEPT: [(&str, &str); 4] = [
    ("/api/v1/namespaces", "default"),
    ("/api/v1/services", "kubernetes"),
    ("/api/v1/configmaps", "kube-root-ca.crt"),
    ("/api/v1/serviceaccounts", "default"),
];

/// Clients of a control plane of other processes.
pub(crate) struct External {
    /// The administrator's.
    pub(crate) client: Client,
    /// Without credentials. The server would prefer the certificate of the administrator to the
    /// token of an account.
    pub(crate) anonymous: Client,
}

/// The kubeconfig of the environment; `None` selects the embedded API server.
fn selected() -> Option<PathBuf> {
    env::var_os(KUBECONFIG).map(PathBuf::from)
}

/// Whether requests go to another process instead of the embedded API server.
pub(crate) fn is_selected() -> bool {
    selected().is_some()
}

/// How long [`TestCluster::advance`](crate::TestCluster::advance) waits.
pub(crate) fn advanced_time(time: Duration) -> Duration {
    match selected() {
        Some(_) => time.min(ADVANCE_MAX),
        None => time,
    }
}

/// How long the write before a crash may take; `None` on the embedded server, where every run has
/// the same writes.
pub(crate) fn crash_timeout() -> Option<Duration> {
    selected().map(|_| CRASH_TIMEOUT)
}

/// How long a condition may take, if it may take `virtual_time` on the embedded server.
pub(crate) fn condition_timeout(virtual_time: Duration) -> Duration {
    match selected() {
        Some(_) => virtual_time.min(CONDITION_TIMEOUT),
        None => virtual_time,
    }
}

impl External {
    /// The control plane of the environment, without the objects of earlier tests; `None` selects
    /// the embedded API server.
    ///
    /// # Panics
    /// The kubeconfig cannot be used, the cluster does not permit the deletion of its objects, or one
    /// cannot be deleted.
    pub(crate) fn connect() -> BoxFuture<'static, Option<Self>> {
        Box::pin(async move {
            let file = selected()?;
            resume_time();
            let kubeconfig = Kubeconfig::read_from(file).expect("a kubeconfig");
            let options = KubeConfigOptions::default();
            let config = Config::from_custom_kubeconfig(kubeconfig, &options).await;
            let config = config.expect("the kubeconfig has a context");
            let mut anonymous = config.clone();
            anonymous.auth_info = AuthInfo::default();
            let external = Self {
                client: connect(config).expect("a client"),
                anonymous: connect(anonymous).expect("a client"),
            };
            let default = external.get("/api/v1/namespaces/default").await;
            let default = default.expect("the namespace default");
            if let Err(refusal) = check_disposable(&default) {
                panic!("{refusal}");
            }
            external.reset().await;
            Some(external)
        })
    }

    /// Deletes what earlier tests left. CustomResourceDefinitions are kept: the garbage collector
    /// would find new ones after 30 seconds only.
    async fn reset(&self) {
        let begun = Instant::now();
        let mut collections = self.custom_resources().await;
        collections.extend(COLLECTIONS.map(str::to_owned));
        loop {
            let mut remaining = Vec::new();
            for collection in &collections {
                remaining.extend(self.delete_all(collection).await);
            }
            if remaining.is_empty() {
                return;
            }
            assert!(
                begun.elapsed() < RESET_TIMEOUT,
                "objects of an earlier test are not deleted: {remaining:?}"
            );
            sleep(POLL_INTERVAL).await;
        }
    }

    /// The collections of custom resources.
    async fn custom_resources(&self) -> Vec<String> {
        let path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions";
        let crds = self.get(path).await.expect("a list");
        let crds = crds["items"].as_array().into_iter().flatten();
        crds.map(|crd| {
            let spec = &crd["spec"];
            let versions = spec["versions"].as_array().into_iter().flatten();
            let mut stored = versions.filter(|version| version["storage"] == true);
            let version = stored.next().expect("a CRD has a stored version");
            format!(
                "/apis/{}/{}/{}",
                text(&spec["group"]),
                text(&version["name"]),
                text(&spec["names"]["plural"])
            )
        })
        .collect()
    }

    /// Requests the deletion of all objects of a collection, and returns their paths.
    async fn delete_all(&self, collection: &str) -> Vec<String> {
        let list = self.get(collection).await.expect("a list");
        let mut paths = Vec::new();
        for object in list["items"].as_array().into_iter().flatten() {
            if is_kept(collection, object) {
                continue;
            }
            let path = path_of(collection, object);
            // The controllers that remove these finalizers have stopped. That of a namespace is in
            // its spec, and its controller runs.
            if object["metadata"]["finalizers"].is_array() {
                let patch = json!({ "metadata": { "finalizers": null } });
                self.send(Request::patch(&path), &patch).await;
            }
            let options = json!({ "gracePeriodSeconds": 0, "propagationPolicy": "Background" });
            self.send(Request::delete(&path), &options).await;
            paths.push(path);
        }
        paths
    }

    /// Waits until a resource is served.
    ///
    /// # Panics
    /// It is not served in time.
    pub(crate) async fn wait_until_served(&self, collection: &str) {
        let begun = Instant::now();
        while self.get(collection).await.is_err() {
            let is_in_time = begun.elapsed() < CONDITION_TIMEOUT;
            assert!(is_in_time, "{collection} is not served");
            sleep(POLL_INTERVAL).await;
        }
    }

    /// Creates the default storage class and volumes of it, as an administrator without a
    /// provisioner does. The storage class outlives the test.
    pub(crate) async fn create_volumes(&self) {
        let class = json!({
            "metadata": {
                "name": STORAGE_CLASS,
                "annotations": { "storageclass.kubernetes.io/is-default-class": "true" },
            },
            "provisioner": "kubernetes.io/no-provisioner",
        });
        let classes = Request::post("/apis/storage.k8s.io/v1/storageclasses");
        self.send(classes, &class).await;
        for number in 1..=VOLUMES {
            let volume = json!({
                "metadata": { "name": format!("volume-{number}") },
                "spec": {
                    "accessModes": ["ReadWriteOnce"],
                    "capacity": { "storage": "100Gi" },
                    "hostPath": { "path": format!("/volumes/{number}") },
                    "storageClassName": STORAGE_CLASS,
                },
            });
            self.send(Request::post("/api/v1/persistentvolumes"), &volume)
                .await;
        }
    }

    async fn get(&self, path: &str) -> kube::Result<Value> {
        let request = Request::get(path).body(Vec::new()).expect("a request");
        self.client.request(request).await
    }

    /// Sends a request whose object may be gone or changed by then; the next round sees that.
    async fn send(&self, request: http::request::Builder, body: &Value) {
        let content_type = content_type(&request);
        let request = request.header("content-type", content_type);
        let request = request.body(body.to_string().into_bytes());
        let answer = self
            .client
            .request::<Value>(request.expect("a request"))
            .await;
        if let Err(error) = answer {
            let is_expected = matches!(&error, kube::Error::Api(status)
                if [404, 409, 422].contains(&status.code));
            assert!(is_expected, "cannot reset the cluster: {error}");
        }
    }
}

/// Rejects a cluster whose objects may be in use.
fn check_disposable(default: &Value) -> Result<(), String> {
    if default["metadata"]["annotations"][DISPOSABLE] == "true" {
        return Ok(());
    }
    Err(format!(
        "the cluster of {KUBECONFIG} does not permit tests, which delete the objects of all \
         namespaces; for a cluster without other users: \
         kubectl annotate namespace default {DISPOSABLE}=true"
    ))
}

fn content_type(request: &http::request::Builder) -> &'static str {
    match request.method_ref() {
        Some(&http::Method::PATCH) => "application/merge-patch+json",
        _ => "application/json",
    }
}

/// Whether an object is of the control plane.
fn is_kept(collection: &str, object: &Value) -> bool {
    let metadata = &object["metadata"];
    let name = text(&metadata["name"]);
    let namespace = metadata["namespace"].as_str().unwrap_or("default");
    SYSTEM_NAMESPACES.contains(&namespace)
        || (collection == "/api/v1/namespaces" && SYSTEM_NAMESPACES.contains(&name))
        || KEPT.contains(&(collection, name))
        // The garbage collector deletes them with their Service.
        || text(&metadata["labels"]["kubernetes.io/managed-by"]) == "system"
}

/// The path of an object of a collection.
fn path_of(collection: &str, object: &Value) -> String {
    let metadata = &object["metadata"];
    let name = text(&metadata["name"]);
    match (metadata["namespace"].as_str(), collection.rsplit_once('/')) {
        (Some(namespace), Some((version, resource))) => {
            format!("{version}/namespaces/{namespace}/{resource}/{name}")
        }
        _ => format!("{collection}/{name}"),
    }
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn objects_of_the_control_plane_are_kept() {
        let pods = "/api/v1/pods";
        let services = "/api/v1/services";
        let namespaces = "/api/v1/namespaces";
        for (collection, namespace, name, expected) in [
            (pods, Some("default"), "web", false),
            (pods, Some("kube-system"), "dns", true),
            (services, Some("default"), "kubernetes", true),
            (services, Some("default"), "web", false),
            (namespaces, None, "default", true),
            (namespaces, None, "kube-system", true),
            (namespaces, None, "team-a", false),
        ] {
            let object = json!({ "metadata": { "namespace": namespace, "name": name } });
            assert_eq!(
                is_kept(collection, &object),
                expected,
                "{collection} {name}"
            );
        }
    }

    #[test]
    fn cluster_without_the_annotation_is_rejected() {
        let default = |annotations: Value| json!({ "metadata": { "annotations": annotations } });
        assert_eq!(
            check_disposable(&default(json!({ DISPOSABLE: "true" }))),
            Ok(())
        );
        for annotations in [json!(null), json!({}), json!({ DISPOSABLE: "false" })] {
            let refusal = check_disposable(&default(annotations)).expect_err("no permission");
            assert!(
                refusal.contains("kubectl annotate namespace default"),
                "{refusal}"
            );
        }
    }

    #[test]
    fn path_of_an_object_has_its_namespace() {
        let pod = json!({ "metadata": { "namespace": "team-a", "name": "web" } });
        assert_eq!(
            path_of("/api/v1/pods", &pod),
            "/api/v1/namespaces/team-a/pods/web"
        );
        let node = json!({ "metadata": { "name": "node-1" } });
        assert_eq!(path_of("/api/v1/nodes", &node), "/api/v1/nodes/node-1");
    }

    #[test]
    fn virtual_time_is_not_limited_without_a_kubeconfig() {
        let hour = Duration::from_secs(3600);
        assert_eq!(advanced_time(hour), hour);
        assert_eq!(condition_timeout(hour), hour);
        assert_eq!(crash_timeout(), None);
    }
}
