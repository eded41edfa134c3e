//! Responses of a kubelet to requests.

use std::io;
use std::sync::Arc;

use bellerophon::ObjectKey;
use bellerophon::kinds::encode;
use bellerophon_streaming::remote_command::{self, UpgradedCommand};
use bellerophon_streaming::{ConnectionOptions, Upgrade, port_forward};
use http::{Request, Response, StatusCode};
use hyper::body::Incoming;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Pod;
use kube::api::ListParams;
use tracing::debug;

use super::super::node_name;
use super::KubeletServer;
use super::access::SocketClient;
use super::logs::{log_options, validate_container_log_status};
use super::relay::{Verb, relay};
use super::response::{self, Body, Refusal};
use super::route::{ContainerPath, PodPath, Route};
use super::stats::Summary;
use super::streams::{PodRef, Process, StreamError, StreamOptions};

/// The kubelet of one node.
pub(super) struct Handler {
    pub(super) node: String,
    pub(super) server: KubeletServer,
    /// `None` for the API server, which has authorized its requests.
    pub(super) client: Option<SocketClient>,
}

impl Handler {
    pub(super) async fn respond(&self, request: Request<Incoming>) -> Response<Body> {
        if let Some(client) = &self.client {
            let path = request.uri().path();
            let authorized =
                client.authorize(&self.node, request.method(), path, request.headers());
            if let Err(refusal) = authorized.await {
                return refusal.into();
            }
        }
        let response = match Route::parse(request.method(), request.uri().path()) {
            Err(refusal) => Err(refusal),
            Ok(Route::Healthz) => Ok(response::text("ok")),
            Ok(Route::Pods) => self.pods().await,
            Ok(Route::StatsSummary) => self.stats_summary().await,
            Ok(Route::ContainerLogs(path)) => self.container_logs(&path, &request).await,
            Ok(Route::Exec(path)) => self.remote_command(Verb::Exec, path, request).await,
            Ok(Route::Attach(path)) => self.remote_command(Verb::Attach, path, request).await,
            Ok(Route::PortForward(path)) => self.port_forward(&path, request).await,
        };
        response.unwrap_or_else(Response::from)
    }

    /// Mirrors `getPods`.
    async fn pods(&self) -> Result<Response<Body>, Refusal> {
        let mut list = br#"{"kind":"PodList","apiVersion":"v1","metadata":{},"items":["#.to_vec();
        for (position, pod) in self.list_pods().await?.iter().enumerate() {
            if position > 0 {
                list.push(b',');
            }
            list.extend_from_slice(&encode(&**pod).map_err(internal)?);
        }
        list.extend_from_slice(b"]}");
        Ok(response::json(list))
    }

    async fn stats_summary(&self) -> Result<Response<Body>, Refusal> {
        let pods = self.list_pods().await?;
        let node = self.server.nodes.get(&self.node);
        let booted_at = node
            .map(|node| node.booted_at)
            .filter(|booted_at| *booted_at != Timestamp::MIN);
        let mut usage = Vec::with_capacity(pods.len());
        for pod in &pods {
            usage.push((&**pod, self.server.container_usage(pod).await));
        }
        let summary = Summary::new(&self.node, booted_at, &usage);
        Ok(response::json(
            serde_json::to_vec(&summary).map_err(internal)?,
        ))
    }

    /// Mirrors `getContainerLogs` and `GetKubeletContainerLogs`.
    async fn container_logs(
        &self,
        path: &ContainerPath,
        request: &Request<Incoming>,
    ) -> Result<Response<Body>, Refusal> {
        let options = log_options(request.uri().query().unwrap_or_default())?;
        let ContainerPath { pod, container } = path;
        let name = &pod.name;
        let Some(pod) = self.find_pod(pod).await? else {
            return Err(Refusal::not_found(format!("pod {name:?} does not exist")));
        };
        if !has_container(&pod, container) {
            let message = format!("container {container:?} not found in pod {name:?}");
            return Err(Refusal::not_found(message));
        }
        validate_container_log_status(&pod, container, options.previous)?;
        let streams = &self.server.streams;
        let log = streams.logs(&pod_ref(&pod), container, options).await;
        // All errors of the runtime have this code upstream.
        let no_log = |error: StreamError| Refusal::new(StatusCode::BAD_REQUEST, error.to_string());
        Ok(response::log(log.map_err(no_log)?))
    }

    /// Mirrors `getExec` and `getAttach`. What the kubelet itself refuses is an HTTP response; a
    /// runtime that fails is reported on the upgraded connection.
    async fn remote_command(
        &self,
        verb: Verb,
        path: ContainerPath,
        mut request: Request<Incoming>,
    ) -> Result<Response<Body>, Refusal> {
        let query = request.uri().query().unwrap_or_default();
        let options = remote_command::StreamOptions::from_query(query);
        let command = options.command.clone();
        let streams = StreamOptions {
            stdin: options.stdin,
            stdout: options.stdout,
            stderr: options.stderr,
            tty: options.tty,
        };
        let upgrade = remote_command::upgrade(&mut request, options, &ConnectionOptions::default());
        let Upgrade { response, upgraded } = upgrade;
        let response = response::of_upgrade(response);
        let Some(upgraded) = upgraded else {
            return Ok(response);
        };
        let Some(pod) = self.find_pod(&path.pod).await? else {
            return Err(Refusal::not_found("pod does not exist"));
        };
        let container = &path.container;
        let process = match verb {
            Verb::Exec => self.exec(&pod, container, command, streams).await,
            Verb::Attach => self.attach(&pod, container, streams).await,
        };
        if let Err(error) = &process
            && !matches!(error, StreamError::Internal(_))
        {
            return Err(error.clone().into());
        }
        self.spawn_relay(verb, upgraded, process);
        Ok(response)
    }

    /// Mirrors `GetExec`.
    async fn exec(
        &self,
        pod: &Pod,
        container: &str,
        command: Vec<String>,
        streams: StreamOptions,
    ) -> Result<Process, StreamError> {
        if !has_container(pod, container) {
            let message = format!("container not found ({container:?})");
            return Err(StreamError::NotFound(message));
        }
        let runtime = &self.server.streams;
        let pod = pod_ref(pod);
        runtime.exec(&pod, container, command, streams).await
    }

    /// Mirrors `GetAttach`: the terminal is the one that the container was started with.
    async fn attach(
        &self,
        pod: &Pod,
        container: &str,
        streams: StreamOptions,
    ) -> Result<Process, StreamError> {
        let Some(tty) = container_tty(pod, container) else {
            let PodRef {
                namespace, name, ..
            } = pod_ref(pod);
            let message = format!("container {container} not found in pod {name}_{namespace}");
            return Err(StreamError::NotFound(message));
        };
        let streams = StreamOptions {
            stderr: streams.stderr && !tty,
            tty,
            ..streams
        };
        let runtime = &self.server.streams;
        runtime.attach(&pod_ref(pod), container, streams).await
    }

    fn spawn_relay(
        &self,
        verb: Verb,
        upgraded: UpgradedCommand,
        process: Result<Process, StreamError>,
    ) {
        self.server.spawn(relay(verb, upgraded, process));
    }

    /// Mirrors `getPortForward`.
    async fn port_forward(
        &self,
        path: &PodPath,
        mut request: Request<Incoming>,
    ) -> Result<Response<Body>, Refusal> {
        let upgrade = port_forward::upgrade(&mut request, &ConnectionOptions::default());
        let Upgrade { response, upgraded } = upgrade;
        let response = response::of_upgrade(response);
        let Some(upgraded) = upgraded else {
            return Ok(response);
        };
        let Some(pod) = self.find_pod(path).await? else {
            return Err(Refusal::not_found("pod does not exist"));
        };
        let pod = pod_ref(&pod);
        let streams = self.server.streams.clone();
        streams.port_forward(&pod)?;
        self.server.spawn(async move {
            let forward = match upgraded.connections().await {
                Ok(forward) => forward,
                Err(error) => return debug!(%error, "the client of a port-forward is gone"),
            };
            let target = format!("pod {}, uid {}", pod.name, pod.uid);
            let dial = |port| {
                let pod = pod.clone();
                let streams = streams.clone();
                async move { streams.dial(&pod, port).await.map_err(io::Error::other) }
            };
            forward.run(&target, dial).await;
        });
        Ok(response)
    }

    /// A pod of this node. It is read from the API: the informer may not have what the client of
    /// this request has seen, such as the pod's start.
    async fn find_pod(&self, path: &PodPath) -> Result<Option<Arc<Pod>>, Refusal> {
        let key = ObjectKey::namespaced(&path.namespace, &path.name);
        let pod = self
            .server
            .client
            .get::<Pod>(&key)
            .await
            .map_err(internal)?;
        let uid = path.uid.as_ref();
        Ok(pod.filter(|pod| {
            let is_same = uid.is_none_or(|uid| pod.metadata.uid.as_ref() == Some(uid));
            node_name(pod) == Some(&self.node) && is_same
        }))
    }

    async fn list_pods(&self) -> Result<Vec<Arc<Pod>>, Refusal> {
        let on_node = ListParams::default().fields(&format!("spec.nodeName={}", self.node));
        let listed = self.server.client.list(None, &on_node).await;
        listed.map_err(internal)
    }
}

fn internal(error: impl std::error::Error) -> Refusal {
    Refusal::new(StatusCode::INTERNAL_SERVER_ERROR, error.to_string())
}

pub(super) fn pod_ref(pod: &Pod) -> PodRef {
    PodRef {
        namespace: pod.metadata.namespace.clone().unwrap_or_default(),
        name: pod.metadata.name.clone().unwrap_or_default(),
        uid: pod.metadata.uid.clone().unwrap_or_default(),
    }
}

fn has_container(pod: &Pod, name: &str) -> bool {
    container_tty(pod, name).is_some()
}

/// Whether a container has a terminal; `None` if there is no such container. Mirrors
/// `GetContainerSpec`.
fn container_tty(pod: &Pod, name: &str) -> Option<bool> {
    let spec = pod.spec.as_ref()?;
    let containers = spec.containers.iter();
    let containers = containers.chain(spec.init_containers.iter().flatten());
    let containers = containers.map(|container| (&container.name, container.tty));
    let ephemeral = spec.ephemeral_containers.iter().flatten();
    let ephemeral = ephemeral.map(|container| (&container.name, container.tty));
    let mut all = containers.chain(ephemeral);
    let (_, tty) = all.find(|(candidate, _)| *candidate == name)?;
    Some(tty == Some(true))
}
