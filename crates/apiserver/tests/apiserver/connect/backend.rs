//! A server with a kubelet and pods behind its dialer, all in this process.

use std::{
    convert::Infallible,
    io,
    net::{Ipv4Addr, SocketAddr},
    pin::Pin,
    sync::{Arc, Mutex},
    time::Duration,
};

use bellerophon_apiserver::{ApiServer, ByteStream, Dialer, Dialing};
use bytes::Bytes;
use http::{Request, Response};
use http_body_util::{BodyExt as _, Full, combinators::UnsyncBoxBody};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::TokioIo;
use kube::{
    Client, Config,
    client::Body,
    config::{KubeConfigOptions, Kubeconfig},
};
use serde_json::{Value, json};
use tokio::sync::watch;

/// No test waits longer for an event.
const TIMEOUT: Duration = Duration::from_secs(60);

/// What a connection to a backend holds in each direction, and the backend itself.
const BUFFER_BYTES: usize = 16 << 10;

pub(crate) type ResponseBody = UnsyncBoxBody<Bytes, io::Error>;

type Answering = Pin<Box<dyn Future<Output = Response<ResponseBody>> + Send>>;

/// A request as a backend got it.
#[derive(Clone, Debug)]
pub(crate) struct Got {
    pub(crate) address: SocketAddr,
    pub(crate) head: http::request::Parts,
    pub(crate) body: Bytes,
}

impl Got {
    /// Method, address, path and query.
    pub(crate) fn line(&self) -> String {
        format!("{} {}{}", self.head.method, self.address, self.head.uri)
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head.headers.get(name)?.to_str().ok()
    }
}

/// Answers whatever is dialed.
#[derive(Clone)]
pub(crate) struct Backend {
    answer: Arc<dyn Fn(SocketAddr, Request<Incoming>) -> Answering + Send + Sync>,
    open: watch::Sender<usize>,
}

impl std::fmt::Debug for Backend {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Backend")
    }
}

impl Backend {
    pub(crate) fn new<F>(
        answer: impl Fn(SocketAddr, Request<Incoming>) -> F + Send + Sync + 'static,
    ) -> Self
    where
        F: Future<Output = Response<ResponseBody>> + Send + 'static,
    {
        Self {
            answer: Arc::new(move |address, request| Box::pin(answer(address, request))),
            open: watch::channel(0).0,
        }
    }

    /// A backend that records requests and responds with the result of `answer`.
    pub(crate) fn recording(
        answer: impl Fn(&Got) -> Response<Full<Bytes>> + Send + Sync + 'static,
    ) -> (Self, Arc<Mutex<Vec<Got>>>) {
        let all: Arc<Mutex<Vec<Got>>> = Arc::default();
        let answer = Arc::new(answer);
        let recorded = all.clone();
        let backend = Self::new(move |address, request| {
            let recorded = recorded.clone();
            let answer = answer.clone();
            async move {
                let (head, body) = request.into_parts();
                let body = body.collect().await.expect("a whole request").to_bytes();
                let got = Got {
                    address,
                    head,
                    body,
                };
                let response = answer(&got);
                recorded.lock().expect("no panic").push(got);
                response.map(|body| body.map_err(io::Error::other).boxed_unsync())
            }
        });
        (backend, all)
    }

    /// Waits until that many connections are open.
    pub(crate) async fn wait_for_open(&self, connections: usize) {
        let mut open = self.open.subscribe();
        within(open.wait_for(|open| *open == connections))
            .await
            .expect("the backend is there");
    }
}

impl Dialer for Backend {
    fn dial(&self, address: SocketAddr) -> Dialing<'_> {
        let (near, far) = tokio::io::duplex(BUFFER_BYTES);
        let answer = self.answer.clone();
        let open = self.open.clone();
        open.send_modify(|open| *open += 1);
        tokio::spawn(async move {
            let far = Closing { stream: far, open };
            let service = service_fn(move |request| {
                let answering = answer(address, request);
                async { Ok::<_, Infallible>(answering.await) }
            });
            let serving = http1::Builder::new()
                .max_buf_size(BUFFER_BYTES)
                .serve_connection(TokioIo::new(far), service);
            // A connection that is cut is what some tests are about.
            let _cut = serving.with_upgrades().await;
        });
        Box::pin(async { Ok(Box::new(near) as Box<dyn ByteStream>) })
    }
}

/// Counts as open until it is dropped.
struct Closing {
    stream: tokio::io::DuplexStream,
    open: watch::Sender<usize>,
}

impl Drop for Closing {
    fn drop(&mut self) {
        self.open.send_modify(|open| *open -= 1);
    }
}

impl tokio::io::AsyncRead for Closing {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        buf: &mut tokio::io::ReadBuf<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl tokio::io::AsyncWrite for Closing {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
        bytes: &[u8],
    ) -> std::task::Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(
        mut self: Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

/// The output of a future that must end.
pub(crate) async fn within<T>(future: impl Future<Output = T>) -> T {
    tokio::time::timeout(TIMEOUT, future)
        .await
        .expect("it happens in time")
}

/// A server in front of a backend, and a client in this process and one over HTTPS.
pub(crate) struct Cluster {
    pub(crate) server: ApiServer,
    pub(crate) in_process: Client,
    pub(crate) https: Client,
}

impl Cluster {
    /// A server with a node `n1`, a pod `p` on it with the container `c`, and a pod `waiting` on no
    /// node, all in the namespace `ns`.
    pub(crate) async fn start(dialer: impl Dialer) -> Self {
        let builder = ApiServer::builder().dialer(dialer);
        let builder = builder.listen(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)));
        let server = builder.start().await.expect("a free port");
        let in_process = server.client();
        let https = https(&server).await;
        let cluster = Self {
            server,
            in_process,
            https,
        };
        let namespace = json!({"metadata": {"name": "ns"}});
        cluster.make("/api/v1/namespaces", namespace).await;
        let account = json!({"metadata": {"name": "default"}});
        cluster
            .make("/api/v1/namespaces/ns/serviceaccounts", account)
            .await;
        let node = json!({"metadata": {"name": "n1"}});
        cluster.make("/api/v1/nodes", node).await;
        let status = json!({"status": {
            "addresses": [{"type": "Hostname", "address": "n1"}, {"type": "InternalIP", "address": "10.0.0.1"}],
            "daemonEndpoints": {"kubeletEndpoint": {"Port": 10251}},
        }});
        cluster.patch("/api/v1/nodes/n1/status", status).await;
        cluster.make_pod("p", "n1", &["c"]).await;
        cluster.make_pod("waiting", "", &["c"]).await;
        cluster
    }

    pub(crate) fn both(&self) -> [&Client; 2] {
        [&self.in_process, &self.https]
    }

    /// A client in this process with the permissions of this user alone.
    pub(crate) fn client_of(&self, user: &str) -> Client {
        Client::new(self.server.service().as_user(user, []), "ns")
    }

    pub(crate) async fn make_pod(&self, name: &str, node: &str, containers: &[&str]) {
        let containers: Vec<Value> = containers
            .iter()
            .map(|name| json!({"name": name, "image": "i", "ports": [{"containerPort": 8080}]}))
            .collect();
        let pod = json!({
            "metadata": {"name": name},
            "spec": {"nodeName": node, "containers": containers},
        });
        self.make("/api/v1/namespaces/ns/pods", pod).await;
    }

    pub(crate) async fn set_pod_ip(&self, name: &str, ip: &str) {
        let status = json!({"status": {"podIP": ip, "podIPs": [{"ip": ip}]}});
        let path = format!("/api/v1/namespaces/ns/pods/{name}/status");
        self.patch(&path, status).await;
    }

    pub(crate) async fn make(&self, path: &str, object: Value) {
        let answer = self.send("POST", path, "application/json", object).await;
        assert_eq!(answer.code, 201, "{path}: {}", answer.text);
    }

    pub(crate) async fn patch(&self, path: &str, patch: Value) {
        let media = "application/merge-patch+json";
        let answer = self.send("PATCH", path, media, patch).await;
        assert_eq!(answer.code, 200, "{path}: {}", answer.text);
    }

    async fn send(&self, method: &str, path: &str, media: &str, body: Value) -> Answer {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("content-type", media)
            .body(Body::from(body.to_string().into_bytes()))
            .expect("a request");
        send(&self.in_process, request).await
    }
}

/// A client over HTTPS.
pub(crate) async fn https(server: &ApiServer) -> Client {
    let kubeconfig = server.kubeconfig().expect("it listens");
    let kubeconfig = Kubeconfig::from_yaml(&kubeconfig).expect("a kubeconfig");
    let options = KubeConfigOptions::default();
    let config = Config::from_custom_kubeconfig(kubeconfig, &options)
        .await
        .expect("a usable kubeconfig");
    Client::try_from(config).expect("a client")
}

/// A whole response.
pub(crate) struct Answer {
    pub(crate) code: u16,
    pub(crate) headers: http::HeaderMap,
    pub(crate) text: String,
}

impl Answer {
    /// The message of a `Status`.
    pub(crate) fn message(&self) -> String {
        let status: Value = serde_json::from_str(&self.text).unwrap_or_default();
        status["message"].as_str().unwrap_or(&self.text).to_owned()
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name)?.to_str().ok()
    }
}

pub(crate) async fn send(client: &Client, request: Request<Body>) -> Answer {
    let response = within(client.send(request)).await.expect("a response");
    let (head, body) = response.into_parts();
    let bytes = within(body.collect())
        .await
        .expect("a whole body")
        .to_bytes();
    Answer {
        code: head.status.as_u16(),
        headers: head.headers,
        text: String::from_utf8_lossy(&bytes).into_owned(),
    }
}

pub(crate) fn get(path: &str) -> Request<Body> {
    Request::get(path).body(Body::empty()).expect("a request")
}

pub(crate) fn text(body: impl Into<Bytes>) -> Response<Full<Bytes>> {
    Response::new(Full::new(body.into()))
}
