//! Subresources and admission against a whole server.

use bellerophon_apiserver::{ApiServer, ApiService};
use bytes::Bytes;
use http::Request;
use http_body_util::{BodyExt as _, Full};
use serde_json::{Value, json};
use tower::ServiceExt as _;

/// A server with namespace `ns`.
struct Cluster {
    server: ApiServer,
    service: ApiService,
}

impl Cluster {
    async fn start() -> Self {
        let server = ApiServer::builder()
            .start()
            .await
            .expect("a server without a socket starts");
        let service = server.service();
        let cluster = Self { server, service };
        cluster
            .make("/api/v1/namespaces", json!({"metadata": {"name": "ns"}}))
            .await;
        cluster
    }

    /// With the account that pods run as.
    async fn with_account(self) -> Self {
        self.make(
            "/api/v1/namespaces/ns/serviceaccounts",
            json!({"metadata": {"name": "default"}}),
        )
        .await;
        self
    }

    async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Value,
    ) -> (u16, Value) {
        let media = if method == "PATCH" {
            "application/merge-patch+json"
        } else {
            "application/json"
        };
        let mut request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", media);
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let request = request.body(Full::<Bytes>::from(body)).expect("a request");
        let response = self
            .service
            .clone()
            .oneshot(request)
            .await
            .expect("every request is answered");
        let status = response.status().as_u16();
        let bytes = response
            .into_body()
            .collect()
            .await
            .expect("a whole answer")
            .to_bytes();
        (
            status,
            serde_json::from_slice(&bytes)
                .unwrap_or_else(|_| String::from_utf8_lossy(&bytes).into_owned().into()),
        )
    }

    async fn make(&self, path: &str, body: Value) -> Value {
        let (status, answer) = self.send("POST", path, &[], body).await;
        assert_eq!(status, 201, "{path}: {answer}");
        answer
    }

    async fn read(&self, path: &str) -> Value {
        self.send("GET", path, &[], Value::Null).await.1
    }
}

const PODS: &str = "/api/v1/namespaces/ns/pods";

fn pod(name: &str, node: &str) -> Value {
    json!({"metadata": {"name": name, "labels": {"app": "web"}}, "spec": {"nodeName": node, "containers": [{"name": "a", "image": "app"}]}})
}

#[tokio::test(start_paused = true)]
async fn pod_waits_a_moment_for_its_default_account() {
    let cluster = Cluster::start().await;
    let (status, answer) = cluster.send("POST", PODS, &[], pod("early", "")).await;
    assert_eq!(status, 403);
    assert_eq!(
        &answer["message"],
        &json!(
            "pods \"early\" is forbidden: error looking up service account ns/default: serviceaccount \"default\" not found"
        )
    );
    let account = async {
        tokio::task::yield_now().await;
        cluster
            .make(
                "/api/v1/namespaces/ns/serviceaccounts",
                json!({"metadata": {"name": "default"}}),
            )
            .await
    };
    let ((status, answer), _) =
        tokio::join!(cluster.send("POST", PODS, &[], pod("patient", "")), account);
    assert_eq!(status, 201, "{answer}");
    assert_eq!(
        &answer["spec"]["serviceAccountName"],
        &json!("default"),
        "{answer}"
    );
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn pods_without_a_node_have_no_kubelet() {
    let cluster = Cluster::start().await.with_account().await;
    cluster.make(PODS, pod("idle", "")).await;
    cluster.make(PODS, pod("placed", "n1")).await;
    for (path, status, message) in [
        ("idle/log", 204, json!("")),
        (
            "idle/log?container=b",
            400,
            json!("container b is not valid for pod idle"),
        ),
        (
            "idle/exec?command=ls",
            400,
            json!("pod idle does not have a host assigned"),
        ),
        (
            "idle/portforward",
            400,
            json!("pod idle does not have a host assigned"),
        ),
        ("idle/proxy", 400, json!("address not allowed")),
        (
            "http:idle:80/proxy/metrics",
            400,
            json!("address not allowed"),
        ),
        ("placed/log", 404, json!("nodes \"n1\" not found")),
        ("placed/attach", 404, json!("nodes \"n1\" not found")),
        ("gone/log", 404, json!("pods \"gone\" not found")),
    ] {
        let (code, answer) = cluster
            .send("GET", &format!("{PODS}/{path}"), &[], Value::Null)
            .await;
        assert_eq!(code, status, "{path}");
        assert_eq!(answer.get("message").unwrap_or(&answer), &message, "{path}");
    }
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn eviction_takes_one_disruption_and_a_dry_run_none() {
    let cluster = Cluster::start().await.with_account().await;
    let budget = "/apis/policy/v1/namespaces/ns/poddisruptionbudgets";
    cluster
        .make(budget, json!({"metadata": {"name": "b"}, "spec": {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}}))
        .await;
    let status = json!({"status": {"observedGeneration": 1, "disruptionsAllowed": 1, "currentHealthy": 2, "desiredHealthy": 1, "expectedPods": 2}});
    assert_eq!(
        cluster
            .send("PATCH", &format!("{budget}/b/status"), &[], status)
            .await
            .0,
        200
    );
    for name in ["one", "two"] {
        cluster.make(PODS, pod(name, "n1")).await;
        let running = json!({"status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
        assert_eq!(
            cluster
                .send("PATCH", &format!("{PODS}/{name}/status"), &[], running)
                .await
                .0,
            200
        );
    }
    let evict = async |name: &str, query: &str| {
        let body =
            json!({"apiVersion": "policy/v1beta1", "kind": "Eviction", "metadata": {"name": name}});
        cluster
            .send("POST", &format!("{PODS}/{name}/eviction{query}"), &[], body)
            .await
            .0
    };
    let allowed =
        async || cluster.read(&format!("{budget}/b")).await["status"]["disruptionsAllowed"].clone();
    assert_eq!(evict("one", "?dryRun=All").await, 201);
    assert_eq!(allowed().await, json!(1));
    assert_eq!(evict("one", "").await, 201);
    assert_eq!(allowed().await, json!(0));
    assert_eq!(evict("two", "").await, 429);
    let one = cluster.read(&format!("{PODS}/one")).await;
    assert!(one["metadata"]["deletionTimestamp"].is_string(), "{one}");
    assert_eq!(
        one["status"]["conditions"][1]["reason"],
        "EvictionByEvictionAPI"
    );
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn classes_marked_default_are_taken() {
    let cluster = Cluster::start().await.with_account().await;
    let default = |kind: &str| json!({format!("{kind}.kubernetes.io/is-default-class"): "true"});
    let classes = "/apis/storage.k8s.io/v1/storageclasses";
    cluster
        .make(classes, json!({"metadata": {"name": "fast", "annotations": default("storageclass")}, "provisioner": "example.com/p"}))
        .await;
    let controller = json!({"controller": "example.com/c"});
    let class = json!({"metadata": {"name": "edge", "annotations": default("ingressclass")}, "spec": controller});
    cluster
        .make("/apis/networking.k8s.io/v1/ingressclasses", class)
        .await;
    let priorities = "/apis/scheduling.k8s.io/v1/priorityclasses";
    cluster
        .make(
            priorities,
            json!({"metadata": {"name": "usual"}, "value": 7, "globalDefault": true}),
        )
        .await;

    let claim = json!({"metadata": {"name": "c"}, "spec": {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}});
    let claim = cluster
        .make("/api/v1/namespaces/ns/persistentvolumeclaims", claim)
        .await;
    assert_eq!(&claim["spec"]["storageClassName"], &json!("fast"));
    assert_eq!(
        &claim["metadata"]["finalizers"],
        &json!(["kubernetes.io/pvc-protection"])
    );
    let backend = json!({"service": {"name": "a", "port": {"number": 80}}});
    let ingress = json!({"metadata": {"name": "i"}, "spec": {"defaultBackend": backend}});
    let ingress = cluster
        .make(
            "/apis/networking.k8s.io/v1/namespaces/ns/ingresses",
            ingress,
        )
        .await;
    assert_eq!(ingress["spec"]["ingressClassName"], "edge");
    let made = cluster.make(PODS, pod("p", "")).await;
    assert_eq!(&made["spec"]["priorityClassName"], &json!("usual"));
    assert_eq!(&made["spec"]["priority"], &json!(7));
    let second = json!({"metadata": {"name": "second"}, "value": 8, "globalDefault": true});
    let (status, refusal) = cluster.send("POST", priorities, &[], second).await;
    assert_eq!(status, 403);
    assert_eq!(
        refusal["message"],
        "priorityclasses.scheduling.k8s.io \"second\" is forbidden: PriorityClass usual is already marked as default. Only one default can exist"
    );
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn stricter_namespace_refuses_new_pods_and_keeps_old_ones() {
    let cluster = Cluster::start().await.with_account().await;
    let mut host = pod("host", "");
    host["spec"]["hostPID"] = true.into();
    cluster.make(PODS, host.clone()).await;
    let labels =
        json!({"metadata": {"labels": {"pod-security.kubernetes.io/enforce": "baseline"}}});
    assert_eq!(
        cluster
            .send("PATCH", "/api/v1/namespaces/ns", &[], labels)
            .await
            .0,
        200
    );
    host["metadata"]["name"] = "again".into();
    let (status, refusal) = cluster.send("POST", PODS, &[], host).await;
    assert_eq!(status, 403);
    assert_eq!(
        &refusal["message"],
        &json!(
            "pods \"again\" is forbidden: violates PodSecurity \"baseline:latest\": host namespaces (hostPID=true)"
        )
    );
    assert_eq!(cluster.read(&format!("{PODS}/host")).await["kind"], "Pod");
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn scale_is_a_table_of_its_own() {
    let cluster = Cluster::start().await;
    let labels = json!({"app": "web"});
    let template = json!({"metadata": {"labels": labels}, "spec": {"containers": [{"name": "a", "image": "app"}]}});
    let deployments = "/apis/apps/v1/namespaces/ns/deployments";
    let spec = json!({"replicas": 3, "selector": {"matchLabels": labels}, "template": template});
    cluster
        .make(
            deployments,
            json!({"metadata": {"name": "web"}, "spec": spec}),
        )
        .await;
    let table = [("accept", "application/json;as=Table;v=v1;g=meta.k8s.io")];
    for (part, wanted) in [
        ("", "Name Ready Up-to-date Available"),
        ("/status", "Name Ready Up-to-date Available"),
        ("/scale", "Name Desired Available Age"),
    ] {
        let (_, answer) = cluster
            .send(
                "GET",
                &format!("{deployments}/web{part}"),
                &table,
                Value::Null,
            )
            .await;
        let names: Vec<&str> = answer["columnDefinitions"]
            .as_array()
            .expect("columns")
            .iter()
            .filter_map(|c| c["name"].as_str())
            .collect();
        assert!(names.join(" ").starts_with(wanted), "{part}: {names:?}");
    }
    let (_, scale) = cluster
        .send(
            "GET",
            &format!("{deployments}/web/scale"),
            &table,
            Value::Null,
        )
        .await;
    assert_eq!(
        scale["rows"][0]["cells"]
            .as_array()
            .map(|cells| &cells[..3]),
        Some([json!("web"), json!(3), json!(0)].as_slice())
    );
    cluster.server.shutdown().await;
}
