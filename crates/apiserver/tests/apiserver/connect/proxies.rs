//! Proxies to pods, services and nodes.

use std::net::SocketAddr;

use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full};
use kube::client::Body;
use serde_json::json;

use super::backend::{Backend, Cluster, get, send, text};
use bellerophon_apiserver::LoopbackDialer;

const PODS: &str = "/api/v1/namespaces/ns/pods";
const SERVICES: &str = "/api/v1/namespaces/ns/services";

async fn cluster(backend: Backend) -> Cluster {
    let cluster = Cluster::start(backend).await;
    cluster.set_pod_ip("p", "10.1.0.1").await;
    let service = json!({
        "metadata": {"name": "web"},
        "spec": {"ports": [{"name": "http", "port": 80}, {"name": "admin", "port": 81}]},
    });
    cluster.make(SERVICES, service).await;
    let endpoints = json!({
        "metadata": {"name": "web"},
        "subsets": [{
            "addresses": [{"ip": "10.1.0.1", "targetRef": {"kind": "Pod", "namespace": "ns", "name": "p"}}],
            "ports": [{"name": "http", "port": 8080}, {"name": "admin", "port": 8081}],
        }],
    });
    cluster
        .make("/api/v1/namespaces/ns/endpoints", endpoints)
        .await;
    cluster
}

#[tokio::test]
async fn request_is_passed_on_with_method_path_query_and_body() {
    let (backend, got) = Backend::recording(|got| {
        let mut response = text(format!("{} answered", got.head.method));
        *response.status_mut() = http::StatusCode::ACCEPTED;
        let headers = response.headers_mut();
        headers.insert("x-backend", "1".parse().expect("a value"));
        headers.insert("cache-control", "max-age=5".parse().expect("a value"));
        headers.insert("access-control-allow-origin", "*".parse().expect("a value"));
        response
    });
    let cluster = cluster(backend).await;
    let host = cluster.server.url().expect("it listens");
    let host = host.trim_start_matches("https://");
    for (client, is_https) in cluster.both().into_iter().zip([false, true]) {
        for method in ["GET", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "HEAD"] {
            let request = Request::builder()
                .method(method)
                .uri(format!("{PODS}/p/proxy/a%20b//c/?x=1&x=%2F"))
                .header("x-custom", "2")
                .header("impersonate-user", "admin")
                .header("impersonate-group", "system:masters")
                .header("content-type", "text/custom")
                .body(Body::from(b"request".to_vec()))
                .expect("a request");
            let answer = send(client, request).await;
            assert_eq!(answer.code, 202, "{method}: {}", answer.text);
            let body = format!("{method} answered");
            assert_eq!(answer.text, if method == "HEAD" { "" } else { &body });
            assert_eq!(answer.header("x-backend"), Some("1"));
            assert_eq!(answer.header("access-control-allow-origin"), None);
            let cache = answer.headers.get_all("cache-control");
            let cache: Vec<_> = cache.iter().collect();
            assert_eq!(cache, ["no-cache, private", "max-age=5"]);
            let request = got.lock().expect("no panic").pop().expect("a request");
            let line = format!("{method} 10.1.0.1:8080/a%20b/c/?x=1&x=%2F");
            assert_eq!(request.line(), line);
            assert_eq!(request.body, "request");
            assert_eq!(request.header("x-custom"), Some("2"));
            assert_eq!(request.header("content-type"), Some("text/custom"));
            assert_eq!(request.header("authorization"), None);
            assert_eq!(request.header("impersonate-user"), None);
            let forwarded_for = is_https.then_some("127.0.0.1");
            assert_eq!(request.header("x-forwarded-for"), forwarded_for);
            if is_https {
                assert_eq!(request.header("host"), Some(host));
            }
        }
    }
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn backend_is_chosen_by_name_scheme_and_port() {
    let (backend, got) = Backend::recording(|_| text("ok"));
    let cluster = cluster(backend).await;
    for (path, expected) in [
        (format!("{PODS}/p/proxy/"), "GET 10.1.0.1:8080/"),
        (format!("{PODS}/p:90/proxy/a"), "GET 10.1.0.1:90/a"),
        (format!("{PODS}/http:p:/proxy/a"), "GET 10.1.0.1:8080/a"),
        (format!("{SERVICES}/web:http/proxy/"), "GET 10.1.0.1:8080/"),
        (format!("{SERVICES}/web:81/proxy/a"), "GET 10.1.0.1:8081/a"),
        (
            format!("{SERVICES}/http:web:80/proxy/a"),
            "GET 10.1.0.1:8080/a",
        ),
        (
            "/api/v1/nodes/n1/proxy/stats/summary".into(),
            "GET 10.0.0.1:10251/stats/summary",
        ),
        (
            "/api/v1/nodes/n1:10251/proxy/pods".into(),
            "GET 10.0.0.1:10251/pods",
        ),
        (
            "/api/v1/nodes/n1:9100/proxy/metrics".into(),
            "GET 10.0.0.1:9100/metrics",
        ),
    ] {
        let answer = send(&cluster.in_process, get(&path)).await;
        assert_eq!(answer.code, 200, "{path}: {}", answer.text);
        let request = got.lock().expect("no panic").pop().expect("a request");
        assert_eq!(request.line(), expected, "{path}");
        let uri = request.header("x-forwarded-uri");
        assert_eq!(uri, Some(path.as_str()));
    }
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn proxy_errors_have_the_messages_of_kube_apiserver() {
    let (backend, _) = Backend::recording(|_| text("ok"));
    let cluster = cluster(backend).await;
    cluster.set_pod_ip("waiting", "127.0.0.1").await;
    let service = json!({"metadata": {"name": "idle"}, "spec": {"ports": [{"port": 80}]}});
    cluster.make(SERVICES, service).await;
    let other = json!({
        "metadata": {"name": "idle"},
        "subsets": [{"addresses": [{"ip": "192.0.2.1"}], "ports": [{"port": 80}]}],
    });
    cluster.make("/api/v1/namespaces/ns/endpoints", other).await;
    for (path, code, message) in [
        (
            format!("{PODS}/ftp:p:1/proxy/"),
            400,
            "invalid pod request \"ftp:p:1\"",
        ),
        (
            format!("{PODS}/gone/proxy/"),
            404,
            "pods \"gone\" not found",
        ),
        (format!("{PODS}/waiting/proxy/"), 400, "address not allowed"),
        (
            format!("{SERVICES}/gone/proxy/"),
            404,
            "endpoints \"gone\" not found",
        ),
        (
            format!("{SERVICES}/gone:80/proxy/"),
            404,
            "services \"gone\" not found",
        ),
        (
            format!("{SERVICES}/web:99/proxy/"),
            503,
            "no service port 99 found for service \"web\"",
        ),
        (
            format!("{SERVICES}/idle:80/proxy/"),
            503,
            "no endpoints available for service \"idle:80\"",
        ),
        (
            format!("{SERVICES}/web:none/proxy/"),
            503,
            "no endpoints available for service \"web:none\"",
        ),
        (
            "/api/v1/nodes/gone/proxy/".into(),
            404,
            "nodes \"gone\" not found",
        ),
        (
            "/api/v1/nodes/n1/proxy/?dryRun=All".into(),
            400,
            "dryRun is not supported",
        ),
    ] {
        let answer = send(&cluster.in_process, get(&path)).await;
        assert_eq!(answer.code, code, "{path}: {}", answer.text);
        assert_eq!(answer.message(), message, "{path}");
    }
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn simulated_pod_is_refused_immediately() {
    let cluster = Cluster::start(LoopbackDialer).await;
    cluster.set_pod_ip("p", "10.1.0.1").await;
    let answer = send(&cluster.in_process, get(&format!("{PODS}/p/proxy/"))).await;
    assert_eq!(answer.code, 503);
    let message = answer.message();
    let begin = "error trying to reach service: dial tcp 10.1.0.1:8080: ";
    assert!(message.starts_with(begin), "{message}");
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn pages_and_redirects_are_rewritten_to_the_proxy() {
    let (backend, _) = Backend::recording(|got| {
        let mut response = Response::builder();
        if got.head.uri.path() == "/old" {
            response = response.status(302).header("location", "/new?x=1");
        }
        let response = response.header("content-type", "text/html; charset=utf-8");
        let page = "<a href=\"/next\">next</a>";
        response.body(Full::from(page)).expect("a response")
    });
    let cluster = cluster(backend).await;
    let proxy = format!("{PODS}/p/proxy");
    for client in cluster.both() {
        let page = send(client, get(&format!("{proxy}/"))).await;
        assert_eq!(page.text, format!("<a href=\"{proxy}/next\">next</a>"));
        let old = send(client, get(&format!("{proxy}/old"))).await;
        assert_eq!(old.code, 302);
        assert_eq!(old.header("location"), Some(&*format!("{proxy}/new?x=1")));
        let root = send(client, get(&format!("{proxy}?x=1"))).await;
        assert_eq!(root.code, 301);
        assert_eq!(root.header("location"), Some(&*format!("{proxy}/?x=1")));
    }
    cluster.server.shutdown().await;
}

#[tokio::test]
async fn proxy_needs_the_verb_of_its_method() {
    let (backend, _) = Backend::recording(|_| text("ok"));
    let cluster = cluster(backend).await;
    let rbac = "/apis/rbac.authorization.k8s.io/v1/namespaces/ns";
    let role = json!({
        "metadata": {"name": "reader"},
        "rules": [{"apiGroups": [""], "resources": ["services/proxy"], "verbs": ["get"]}],
    });
    cluster.make(&format!("{rbac}/roles"), role).await;
    let binding = json!({
        "metadata": {"name": "reader"},
        "subjects": [{"kind": "User", "name": "ann", "apiGroup": "rbac.authorization.k8s.io"}],
        "roleRef": {"kind": "Role", "name": "reader", "apiGroup": "rbac.authorization.k8s.io"},
    });
    cluster.make(&format!("{rbac}/rolebindings"), binding).await;
    let ann = cluster.client_of("ann");
    let path = format!("{SERVICES}/web:80/proxy/a");
    assert_eq!(send(&ann, get(&path)).await.code, 200);
    let post = Request::post(&path).body(Body::empty());
    let answer = send(&ann, post.expect("a request")).await;
    let message = "services \"web:80\" is forbidden: User \"ann\" cannot create resource \"services/proxy\" in API group \"\" in the namespace \"ns\"";
    assert_eq!(answer.message(), message);
    cluster.server.shutdown().await;
}

/// More than the buffers of both connections together, in both directions.
#[tokio::test]
async fn large_bodies_are_passed_on_as_they_arrive() {
    const BYTES: usize = 8 << 20;
    let backend = Backend::new(|_: SocketAddr, request| async {
        let echo = request.into_body();
        Response::new(echo.map_err(std::io::Error::other).boxed_unsync())
    });
    let cluster = cluster(backend).await;
    for client in cluster.both() {
        let request = Request::post(format!("{PODS}/p/proxy/echo"))
            .body(Body::from(vec![b'x'; BYTES]))
            .expect("a request");
        let answer = send(client, request).await;
        assert_eq!(answer.text.len(), BYTES);
    }
    cluster.server.shutdown().await;
}

/// A response that is compressed by the backend or not stays as it is.
#[tokio::test]
async fn responses_are_not_compressed_again() {
    let large = Bytes::from(vec![b'x'; 1 << 20]);
    let (backend, _) = Backend::recording(move |_| text(large.clone()));
    let cluster = cluster(backend).await;
    let request = Request::get(format!("{PODS}/p/proxy/"))
        .header("accept-encoding", "gzip")
        .body(Body::empty())
        .expect("a request");
    let answer = send(&cluster.https, request).await;
    assert_eq!(answer.header("content-encoding"), None);
    assert_eq!(answer.header("content-length"), Some("1048576"));
    cluster.server.shutdown().await;
}
