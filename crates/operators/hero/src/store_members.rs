//! Members over the network: the client of the store, dialed by Pod.
//!
//! In: targets and requests. Out: responses of real members.
//! Guarantees: the certificate of a member must have its host name; inside of a cluster the Pod is
//! dialed directly, outside of it through a port-forward of the API server.

use std::{io, sync::Arc, time::Duration};

use bellerophon_store_client::{
    ByteStream, Client, ClientError, ClientOptions, ClientTls, Dial, Endpoint, Token, api::Status,
};
use futures_util::future::BoxFuture;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use tokio::net::TcpStream;

use crate::{
    member_api::{AdminRequest, AdminResponse, MemberApi, MemberError, Target},
    names,
};

/// How long one attempt of a request may take: a membership change waits for a quorum.
const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a request may take with all its attempts.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(15);

/// How Pods are dialed.
#[derive(Clone)]
pub enum Route {
    /// By their addresses: the operator runs in the cluster.
    PodNetwork,
    /// Through the API server: the operator runs outside of the cluster.
    PortForward(kube::Client),
}

impl Route {
    /// The route of this process: a process in a Pod has the address of the API server in its
    /// environment.
    pub fn of_environment(client: &kube::Client) -> Self {
        if std::env::var_os("KUBERNETES_SERVICE_HOST").is_some() {
            Self::PodNetwork
        } else {
            Self::PortForward(client.clone())
        }
    }
}

/// The members of real stores.
pub struct StoreMembers {
    route: Route,
}

impl StoreMembers {
    /// Members that are reached by this route.
    pub fn new(route: Route) -> Self {
        Self { route }
    }

    fn client(&self, target: &Target) -> Result<Client, MemberError> {
        let endpoint = Endpoint {
            is_https: true,
            host: target.host.clone(),
            port: names::CLIENT_PORT,
        };
        let tls = ClientTls::with_ca(target.ca_pem.as_bytes());
        let mut options = ClientOptions::new(vec![endpoint]);
        options.tls = Some(tls.map_err(|error| MemberError::new(target, error.to_string()))?);
        options.token = Some(Token::new(&target.token));
        options.attempt_timeout = ATTEMPT_TIMEOUT;
        options.request_timeout = REQUEST_TIMEOUT;
        options.dialer = Arc::new(PodDialer {
            route: self.route.clone(),
            namespace: target.namespace.clone(),
            pod: target.pod.clone(),
            ip: target.ip.clone(),
        });
        Ok(Client::new(options))
    }
}

impl MemberApi for StoreMembers {
    fn status<'a>(&'a self, target: &'a Target) -> BoxFuture<'a, Result<Status, MemberError>> {
        Box::pin(async move {
            let status = self.client(target)?.status().await;
            status.map_err(|error| member_error(target, &error))
        })
    }

    fn send<'a>(
        &'a self,
        target: &'a Target,
        request: AdminRequest,
    ) -> BoxFuture<'a, Result<AdminResponse, MemberError>> {
        Box::pin(async move {
            let client = self.client(target)?;
            let response = send(&client, request).await;
            response.map_err(|error| member_error(target, &error))
        })
    }
}

async fn send(client: &Client, request: AdminRequest) -> Result<AdminResponse, ClientError> {
    match request {
        AdminRequest::Initialize(request) => client.initialize(&request).await?,
        AdminRequest::Format(request) => {
            client.format(request.cluster_id, request.member_id).await?
        }
        AdminRequest::Allocate => {
            return client
                .allocate_member_id()
                .await
                .map(AdminResponse::Allocated);
        }
        AdminRequest::AddLearner(request) => {
            client.add_learner(request.id, &request.address).await?
        }
        AdminRequest::ChangeMembership(request) => client.change_membership(&request).await?,
        AdminRequest::TransferLeader(request) => client.transfer_leader(request.to).await?,
        AdminRequest::RaiseFormatLevel(request) => client.raise_format_level(request.level).await?,
        AdminRequest::Compact => client.compact().await?,
    }
    Ok(AdminResponse::Done)
}

/// An error without details that change with every attempt: it becomes part of the status.
fn member_error(target: &Target, error: &ClientError) -> MemberError {
    let message = match error {
        ClientError::Store(error) => format!("{:?}: {error}", error.reason()),
        ClientError::Unavailable { .. } => "it cannot be reached".to_owned(),
        ClientError::OutcomeUnknown { .. } => "the outcome of the request is unknown".to_owned(),
        other => other.to_string(),
    };
    MemberError::new(target, message)
}

/// Dials one Pod.
struct PodDialer {
    route: Route,
    namespace: String,
    pod: String,
    ip: Option<String>,
}

impl Dial for PodDialer {
    fn dial<'a>(
        &'a self,
        endpoint: &'a Endpoint,
    ) -> BoxFuture<'a, io::Result<Box<dyn ByteStream>>> {
        Box::pin(async move {
            match &self.route {
                Route::PodNetwork => {
                    let ip = self
                        .ip
                        .as_deref()
                        .ok_or_else(|| io::Error::other("the Pod has no address"))?;
                    let stream = TcpStream::connect((ip, endpoint.port)).await?;
                    Ok(Box::new(stream) as Box<dyn ByteStream>)
                }
                Route::PortForward(client) => self.forward(client, endpoint.port).await,
            }
        })
    }
}

impl PodDialer {
    async fn forward(&self, client: &kube::Client, port: u16) -> io::Result<Box<dyn ByteStream>> {
        let pods = Api::<Pod>::namespaced(client.clone(), &self.namespace);
        let mut forward = pods
            .portforward(&self.pod, &[port])
            .await
            .map_err(io::Error::other)?;
        let stream = forward.take_stream(port);
        // The task of the port-forward ends with the stream.
        let stream = stream.ok_or_else(|| io::Error::other("the port-forward has no stream"))?;
        Ok(Box::new(stream))
    }
}
