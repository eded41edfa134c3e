//! The HTTPS sockets of kubelets (`up --kubelet-port`): kube-rs connects to a kubelet directly, and
//! who may do so.

use futures_util::StreamExt as _;
use http::Request;
use k8s_openapi::api::core::v1::{Node, Pod};
use kube::api::PostParams;
use kube::{Api, Client, Config};
use serde_json::json;

use crate::process_nodes::{is_ready, wait_for_pod};
use crate::running::RunningServer;

/// The port of a kubelet, as its Node reports it.
async fn kubelet_port(client: &Client, node: &str) -> i32 {
    let nodes: Api<Node> = Api::all(client.clone());
    let node = nodes.get(node).await.expect("a Node");
    let endpoints = node.status.and_then(|status| status.daemon_endpoints);
    let endpoint = endpoints.and_then(|endpoints| endpoints.kubelet_endpoint);
    endpoint.expect("a port").port
}

/// The credentials of the kubeconfig, for the kubelet of a node. Its certificate is self-signed.
async fn kubelet_config(server: &RunningServer, node: &str) -> Config {
    let port = kubelet_port(&server.client().await, node).await;
    let mut config = server.config().await;
    config.accept_invalid_certs = true;
    config.cluster_url = format!("https://localhost:{port}").parse().expect("a URL");
    config
}

/// The same without the client certificate, with a token if there is one.
async fn token_client(server: &RunningServer, node: &str, token: Option<&str>) -> Client {
    let mut config = kubelet_config(server, node).await;
    config.auth_info.client_certificate = None;
    config.auth_info.client_certificate_data = None;
    config.auth_info.client_key = None;
    config.auth_info.client_key_data = None;
    config.auth_info.token = token.map(|token| token.to_owned().into());
    Client::try_from(config).expect("a client")
}

/// The status code and body of a GET.
async fn get(client: &Client, path: &str) -> (u16, String) {
    let request = Request::get(path).body(kube::client::Body::empty());
    let response = client.send(request.expect("a request")).await;
    let response = response.expect("a response");
    let status = response.status().as_u16();
    let body = http_body_util::BodyExt::collect(response.into_body()).await;
    let body = body.expect("a body").to_bytes();
    (status, String::from_utf8_lossy(&body).into_owned())
}

/// A token of the service account `default/default`.
async fn service_account_token(client: &Client) -> String {
    let path = "/api/v1/namespaces/default/serviceaccounts/default/token";
    let review =
        json!({"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}});
    let request = Request::post(path)
        .header("content-type", "application/json")
        .body(serde_json::to_vec(&review).expect("JSON"));
    let answer: serde_json::Value = client
        .request(request.expect("a request"))
        .await
        .expect("a token");
    answer["status"]["token"]
        .as_str()
        .expect("a token")
        .to_owned()
}

/// Grants `get` on subresources of Nodes to the service account `default/default`.
async fn grant(client: &Client, resource: &str) {
    for (path, body) in [
        (
            "clusterroles",
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole",
                "metadata": {"name": "kubelet-reader"},
                "rules": [{"apiGroups": [""], "resources": [resource], "verbs": ["get"]}],
            }),
        ),
        (
            "clusterrolebindings",
            json!({
                "apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding",
                "metadata": {"name": "kubelet-reader"},
                "roleRef": {
                    "apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole",
                    "name": "kubelet-reader",
                },
                "subjects": [
                    {"kind": "ServiceAccount", "namespace": "default", "name": "default"},
                ],
            }),
        ),
    ] {
        let path = format!("/apis/rbac.authorization.k8s.io/v1/{path}");
        let request = Request::post(path)
            .header("content-type", "application/json")
            .body(serde_json::to_vec(&body).expect("JSON"))
            .expect("a request");
        let created: kube::Result<serde_json::Value> = client.request(request).await;
        created.expect("it is created");
    }
}

#[tokio::test]
async fn kubelet_socket_serves_no_request_without_credentials() {
    let server = RunningServer::start(&["--nodes", "1", "--kubelet-port", "0"]);
    let anonymous = token_client(&server, "node-1", None).await;
    let forged = token_client(&server, "node-1", Some("forged")).await;
    for path in [
        "/healthz",
        "/pods",
        "/stats/summary",
        "/exec/default/a/b",
        "/none",
    ] {
        let expected = (401, "Unauthorized".to_owned());
        assert_eq!(get(&anonymous, path).await, expected, "{path}");
        assert_eq!(get(&forged, path).await, expected, "{path}");
    }
}

#[tokio::test]
async fn kubelet_socket_rejects_certificates_of_others() {
    let server = RunningServer::start(&["--nodes", "1", "--kubelet-port", "0"]);
    let mut config = kubelet_config(&server, "node-1").await;
    let mut params = rcgen::CertificateParams::default();
    let names = &mut params.distinguished_name;
    names.push(rcgen::DnType::CommonName, "admin");
    names.push(rcgen::DnType::OrganizationName, "system:masters");
    let key = rcgen::KeyPair::generate().expect("a key");
    let certificate = params.self_signed(&key).expect("a certificate");
    let encode = |pem: String| base64::Engine::encode(&base64::prelude::BASE64_STANDARD, pem);
    config.auth_info.client_certificate_data = Some(encode(certificate.pem()));
    config.auth_info.client_key_data = Some(encode(key.serialize_pem()).into());
    let client = Client::try_from(config).expect("a client");
    let request = Request::get("/pods").body(kube::client::Body::empty());
    let response = client.send(request.expect("a request")).await;
    response.expect_err("the handshake fails");
}

#[tokio::test]
async fn kubelet_socket_authorizes_tokens_by_access_reviews() {
    let server = RunningServer::start(&["--nodes", "2", "--kubelet-port", "0"]);
    let admin = server.client().await;
    let token = service_account_token(&admin).await;
    let kubelet = token_client(&server, "node-2", Some(&token)).await;
    let user = "system:serviceaccount:default:default";
    let (status, message) = get(&kubelet, "/pods").await;
    assert_eq!(status, 403);
    let expected =
        format!("Forbidden (user={user}, verb=get, resource=nodes, subresource(s)=[pods proxy])");
    assert_eq!(message, expected);
    grant(&admin, "nodes/pods").await;
    let (status, pods) = get(&kubelet, "/pods").await;
    assert_eq!(status, 200, "{pods}");
    assert!(pods.contains("PodList"), "{pods}");
    // The permission of one path is none of another.
    let (status, _) = get(&kubelet, "/stats/summary").await;
    assert_eq!(status, 403);
    let (status, _) = get(&kubelet, "/exec/default/app/app?command=id&output=1").await;
    assert_eq!(status, 403);
}

#[cfg(target_os = "linux")]
#[tokio::test]
async fn kube_rs_executes_commands_at_the_kubelet() {
    let options = [&crate::process_nodes::OPTIONS[..], &["--kubelet-port", "0"]].concat();
    let server = RunningServer::start(&options);
    let admin = server.client().await;
    let pods: Api<Pod> = Api::default_namespaced(admin.clone());
    let script = "echo started; trap 'exit 0' TERM; while :; do sleep 0.1; done";
    let pod = json!({
        "metadata": {"name": "app"},
        "spec": {
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "app", "image": "helper/a", "args": ["-c", script]}],
        },
    });
    let pod: Pod = serde_json::from_value(pod).expect("a pod");
    let created = pods.create(&PostParams::default(), &pod).await;
    created.expect("it is created");
    wait_for_pod(&admin, is_ready).await;
    let pod = pods.get("app").await.expect("the pod");
    let node = pod.spec.and_then(|spec| spec.node_name).expect("a node");
    let kubelet = Client::try_from(kubelet_config(&server, &node).await).expect("a client");

    // The request of `Client::kubelet_node_exec`.
    let path =
        "/exec/default/app/app?output=1&command=sh&command=-c&command=echo%20out%3B%20exit%207";
    let request = Request::get(path).body(Vec::new()).expect("a request");
    let mut stream = kubelet
        .connect(request)
        .await
        .expect("a WebSocket")
        .into_stream();
    let mut channels = [Vec::new(), Vec::new(), Vec::new(), Vec::new()];
    while let Some(message) = stream.next().await {
        let message = message.expect("a message");
        if message.is_close() {
            break;
        }
        let data = message.into_data();
        if let Some((channel, bytes)) = data.split_first() {
            channels
                .get_mut(usize::from(*channel))
                .into_iter()
                .for_each(|channel| channel.extend_from_slice(bytes));
        }
    }
    let [_, stdout, _, status] = channels;
    assert_eq!(stdout, b"out\n");
    let status: serde_json::Value = serde_json::from_slice(&status).expect("a Status");
    assert_eq!(status["reason"], "NonZeroExitCode");

    // The request of `Client::kubelet_node_logs`.
    let (code, log) = get(&kubelet, "/containerLogs/default/app/app").await;
    assert_eq!(code, 200);
    assert_eq!(log, "started\n");
}
